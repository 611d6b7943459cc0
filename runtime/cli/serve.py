"""`branchline serve`: a runtime process that programs connect to."""

from __future__ import annotations

import argparse
from dataclasses import fields

from branchline.runtime.cli.flags import add_config_flags, given_settings, help_of
from branchline.runtime.cli.pull import pull_if_missing
from branchline.runtime.config import RuntimeConfig


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
    add_config_flags(parser, leave_out={"model"})
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Serve; a model of the catalogue is fetched first where it is missing."""
    config = RuntimeConfig(**given_settings(arguments))
    pull_if_missing(config.model)
    from branchline.runtime.server import serve  # torch comes with it

    return serve(config)
