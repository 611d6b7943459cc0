"""`branchline serve`: a runtime that programs connect to, and with `--http` any client.

Without `--http` and `--restarts` this process becomes the runtime. With either it stays small, runs
the runtime and the gateway as processes of their own, and keeps them up.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from branchline import launcher
from branchline.errors import InvalidRequest
from branchline.paths import default_address
from branchline.runtime.cli.flags import add_config_flags, given_settings, help_of
from branchline.runtime.cli.pull import pull_if_missing
from branchline.runtime.config import RuntimeConfig
from branchline.runtime.supervisor import Part, Restarts, Supervisor

if TYPE_CHECKING:
    from collections.abc import Sequence

GATEWAY = (sys.executable, "-P", "-m", "branchline.gateway")
GATEWAY_PACKAGES = ("fastapi", "prometheus_client", "uvicorn")
# Keys go to it where no list of processes shows them, and may come to us the same way
KEYS_VARIABLE = "BRANCHLINE_API_KEY"
DEFAULTS = Restarts()

# Flags of ours: the gateway's flag, the type, what help calls the value, what it says.
HTTP_FLAGS: dict[str, tuple[str, type, str, str]] = {
    "--http-host": (
        "--host",
        str,
        "HOST",
        "where it listens (default: 127.0.0.1, for this machine only; 0.0.0.0 is for everybody)",
    ),
    "--http-timeout": ("--timeout", float, "X", "seconds that a request over HTTP may take"),
    "--http-max-open": ("--max-open", int, "N", "prompts over HTTP at once; one more gets a 429"),
    "--http-max-body": ("--max-body-bytes", int, "N", "bytes of a request"),
    "--served-model-name": (
        "--served-model-name",
        str,
        "NAME",
        "a name that the model answers to as well",
    ),
}


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "serve", help="serve a model", description="Serve a model until Ctrl-C."
    )
    parser.add_argument(
        "model",
        nargs="?",
        default=argparse.SUPPRESS,
        metavar="MODEL",
        help=next(help_of(setting) for setting in fields(RuntimeConfig) if setting.name == "model"),
    )
    _add_http_flags(parser)
    add_config_flags(parser, leave_out={"model"})
    parser.set_defaults(execute=execute)


def _add_http_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("over HTTP")
    group.add_argument(
        "--http", type=int, metavar="PORT", help="serve OpenAI's protocol and the page there too"
    )
    for flag, (_, kind, metavar, text) in HTTP_FLAGS.items():
        group.add_argument(flag, type=kind, metavar=metavar, help=text)
    group.add_argument(
        "--api-key",
        action="append",
        metavar="KEY",
        help=f"a key that HTTP clients must show; may be repeated (in secret: {KEYS_VARIABLE})",
    )
    group.add_argument(
        "--restarts",
        type=int,
        metavar="N",
        help=f"start a runtime that died again, at most this often in {DEFAULTS.window:g} s "
        f"(default: {DEFAULTS.most} with --http, else not at all)",
    )


def execute(arguments: argparse.Namespace) -> int:
    """Serve; a model of the catalogue is fetched first where it is missing."""
    config = RuntimeConfig(**given_settings(arguments))
    parts = _parts(arguments)
    pull_if_missing(config.model)
    if parts:
        Supervisor(parts).run()
        return 0
    from branchline.runtime.server import serve  # torch comes with it

    return serve(config)


def _parts(arguments: argparse.Namespace) -> list[Part]:
    """The processes that this one is to keep up; none where it is the runtime itself.

    Raises:
        InvalidRequest: flags do not go together, or what HTTP needs is not installed.
    """
    if arguments.http is None:
        _refuse_http_flags(arguments)
        if arguments.restarts is None:
            return []
    settings = {"address": default_address(), **given_settings(arguments)}
    address: str = settings["address"]
    if address.endswith(":*"):
        raise InvalidRequest(f"address={address}: name the port, or it changes at a restart")
    restarts = _restarts(arguments.restarts)
    parent = f"--parent-pid={os.getpid()}"
    flags = [launcher.as_flag(name, value) for name, value in settings.items()]
    parts = [Part("runtime", (*launcher.SERVER, parent, *flags), restarts)]
    if arguments.http is not None:
        where = (parent, f"--connect={address}", f"--port={arguments.http}")
        parts.append(_gateway(arguments, where, restarts))
    return parts


def _refuse_http_flags(arguments: argparse.Namespace) -> None:
    for flag in ("--api-key", *HTTP_FLAGS):
        if _given(arguments, flag) is not None:
            raise InvalidRequest(f"{flag}: needs --http PORT")


def _restarts(most: int | None) -> Restarts:
    if most is None:
        return DEFAULTS
    if most < 0:
        raise InvalidRequest(f"restarts={most}: must be at least 0")
    return replace(DEFAULTS, most=most)


def _gateway(arguments: argparse.Namespace, where: Sequence[str], restarts: Restarts) -> Part:
    if not 0 <= arguments.http < 2**16:
        raise InvalidRequest(f"http={arguments.http}: a port is from 0 to {2**16 - 1}")
    missing = [name for name in GATEWAY_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise InvalidRequest(
            f"--http: {', '.join(missing)} is not installed; pip install 'branchline[http]'"
        )
    flags = [
        f"{theirs}={value}"
        for ours, (theirs, *_) in HTTP_FLAGS.items()
        if (value := _given(arguments, ours)) is not None
    ]
    keys = arguments.api_key or []
    if any(key.split() != [key] for key in keys):
        raise InvalidRequest("--api-key: a key has at least one character, and no spaces")
    all_keys = " ".join([os.environ.get(KEYS_VARIABLE, ""), *keys])
    environment = {**os.environ, KEYS_VARIABLE: all_keys}
    return Part("gateway", (*GATEWAY, *where, *flags), restarts, environment)


def _given(arguments: argparse.Namespace, flag: str) -> Any:
    return getattr(arguments, flag.removeprefix("--").replace("-", "_"))
