"""Which runtime a command talks to: one that is there, or one that it starts for itself."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from branchline.client import connect
from branchline.errors import RuntimeUnavailable
from branchline.launcher import Runtime
from branchline.paths import default_address, is_listening, socket_path
from branchline.runtime.cli.flags import add_config_flags, given_settings
from branchline.runtime.cli.pull import pull_if_missing
from branchline.runtime.config import RuntimeConfig
from branchline.transport import ClientConfig

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from branchline.backend import Backend
    from branchline.client import Client


def add_address_flag(parser: argparse.ArgumentParser) -> None:
    """Add `--address`, the runtime to talk to."""
    parser.add_argument(
        "--address",
        metavar="TEXT",
        help="ZeroMQ address of a runtime that is there (default: the one of `branchline serve`)",
    )


def add_backend_flags(parser: argparse.ArgumentParser) -> None:
    """Add `--address` and the settings of a runtime that is started for the command."""
    add_address_flag(parser)
    add_config_flags(parser, leave_out={"address"})


def attach(address: str | None) -> Client:
    """The runtime at `address`, or the one of `branchline serve`, which may still be starting.

    Raises:
        RuntimeUnavailable: nobody is there.
    """
    if address is not None:
        return connect(address)
    if not _is_served():
        raise RuntimeUnavailable(
            f"nobody listens at {default_address()}; start a runtime with `branchline serve`, or "
            "name one with --address"
        )
    return connect(connect_timeout=ClientConfig().startup_timeout)


@contextlib.contextmanager
def backend(arguments: argparse.Namespace) -> Iterator[Backend]:
    """The runtime at `--address`; else the one of `branchline serve`; else one for this command.

    Settings ask for a runtime of that kind, so one that is already there will not do.
    """
    settings = {
        name: value for name, value in given_settings(arguments).items() if name != "address"
    }
    if arguments.address is not None or (not settings and _is_served()):
        with attach(arguments.address) as client:
            yield client
        return
    pull_if_missing(RuntimeConfig(**settings).model)
    print("branchline: starting a runtime for this command", file=sys.stderr)
    with Runtime(**settings) as runtime:
        yield runtime


def _is_served() -> bool:
    path = socket_path(default_address())
    return path is not None and path.exists() and is_listening(path)
