"""`python -m branchline.gateway`: serve a runtime over HTTP until a signal ends it."""

from __future__ import annotations

import argparse
import ipaddress
import logging
import os
import resource
import signal
import sys
import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING

from branchline.errors import BranchlineError
from branchline.gateway.app import create_app
from branchline.gateway.link import RuntimeLink
from branchline.gateway.server import serving
from branchline.gateway.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from branchline.gateway.server import Serving

HOST, PORT = "127.0.0.1", 8000
DESCRIPTORS = 2**16
PARENT_SECONDS = 0.5  # between looks whether the parent is there
# Arguments can be read by every user of a machine, so a key may come here instead.
KEY_VARIABLE = "BRANCHLINE_API_KEY"

logger = logging.getLogger("branchline.gateway")


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve; the exit status."""
    given = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    _allow_descriptors()
    try:
        settings = _settings(given)
        with closing(RuntimeLink(given.connect)) as link:
            link.start()
            _serve(link, settings, given)
    except (BranchlineError, ValueError, OSError) as error:
        print(f"gateway: {error}", file=sys.stderr)
        return 1
    return 0


def _serve(link: RuntimeLink, settings: Settings, given: argparse.Namespace) -> None:
    with serving(create_app(link, settings), given.host, given.port) as server:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: server.stop())
        if not settings.api_keys and not _is_local(given.host):
            logger.warning("anybody who reaches %s may use it: no API key is set", given.host)
        if given.parent_pid is not None:
            _watch(given.parent_pid, server)
        print(f"gateway at {server.url} for {link.address}", flush=True)
        server.ended.result()


def _parser() -> argparse.ArgumentParser:
    defaults = Settings()
    parser = argparse.ArgumentParser(prog="branchline.gateway", description=__doc__)
    add = parser.add_argument
    add("--connect", metavar="ADDRESS", help="where the runtime listens")
    add("--host", default=HOST, help=f"address to listen at (default: {HOST}, this machine only)")
    add("--port", type=int, default=PORT, help=f"0 takes a free one (default: {PORT})")
    add(
        "--api-key",
        action="append",
        default=[],
        metavar="KEY",
        help=f"a key that clients may send; may be repeated (also, with spaces: {KEY_VARIABLE})",
    )
    add(
        "--served-model-name",
        action="append",
        default=[],
        metavar="NAME",
        help="a name that the model answers to as well; may be repeated",
    )
    add(
        "--max-open",
        type=int,
        default=defaults.max_open,
        help="prompts that wait or run at once; more are refused with 429 (default: %(default)s)",
    )
    add(
        "--max-body-bytes",
        type=int,
        default=defaults.max_body_bytes,
        help="of a request (default: %(default)s)",
    )
    add("--timeout", type=float, help="seconds that a request may take at most (default: any)")
    add("--parent-pid", type=int, help="end when this parent process is gone")
    return parser


def _settings(given: argparse.Namespace) -> Settings:
    return Settings(
        api_keys=(*given.api_key, *os.environ.get(KEY_VARIABLE, "").split()),
        model_names=tuple(given.served_model_name),
        max_open=given.max_open,
        max_body_bytes=given.max_body_bytes,
        timeout=given.timeout,
    )


def _allow_descriptors() -> None:
    """Every connection takes one: allow as many as this process may ask for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


def _watch(parent: int, server: Serving) -> None:
    """Let the server end when the process that started it is gone, however that ended."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_SECONDS)
        server.stop()

    threading.Thread(target=watch, name="parent watch", daemon=True).start()


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


if __name__ == "__main__":
    sys.exit(main())
