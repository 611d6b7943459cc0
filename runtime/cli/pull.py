"""`branchline pull`: fetch a model of the catalogue."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from branchline.errors import ModelError
from branchline.runtime.models.catalog import CATALOG
from branchline.runtime.models.pull import pull

if TYPE_CHECKING:
    import argparse


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    names = ", ".join(CATALOG)
    parser = commands.add_parser("pull", help=f"fetch a model: {names}")
    parser.add_argument("name", metavar="NAME", help=names)
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Fetch the model unless it is there, and check it either way."""
    record = CATALOG.get(arguments.name)
    if record is None:
        known = ", ".join(CATALOG)
        raise ModelError(f"{arguments.name!r} is not in the catalogue, which has {known}")
    pull(record, print)
    return 0


def pull_if_missing(model: str) -> None:
    """Fetch what `model` names, where it is a name of the catalogue and its file is not there."""
    record = CATALOG.get(model)
    if record is not None and not record.path.is_file():
        pull(record, lambda text: print(text, file=sys.stderr))
