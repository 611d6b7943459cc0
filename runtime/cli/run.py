"""`branchline run`: a Python program with a runtime as its default backend."""

from __future__ import annotations

import argparse
import runpy
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from branchline import set_default_backend
from branchline.errors import InvalidRequest
from branchline.runtime.cli import connection

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from branchline.runtime.text import Tokenizer


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "run",
        help="run a program",
        description="Run a Python program against the runtime at --address, else the one of "
        "`branchline serve`, else one that is started for it. Where SGLang is not installed, a "
        "program that imports sglang gets Branchline under its names.",
    )
    connection.add_backend_flags(parser)
    parser.add_argument("program", metavar="PROGRAM.py")
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="...", help="the program's own arguments"
    )
    parser.set_defaults(execute=execute)


def execute(arguments: argparse.Namespace) -> int:
    """Run the program as `__main__` and return its exit status."""
    from branchline.sglang import mirror  # no other command needs it

    program = Path(arguments.program)
    if not program.is_file():
        raise InvalidRequest(f"{program}: no such file")
    with connection.backend(arguments) as backend:
        set_default_backend(backend)
        # As Python would find it for the program: a real one in its own folder counts.
        sys.path.insert(0, str(program.resolve().parent))
        mirror.install(_tokenizers(backend.card.name, getattr(arguments, "model", None)))
        return _run_as_main(program, arguments.arguments)


def _run_as_main(program: Path, arguments: list[str]) -> int:
    """What `python PROGRAM.py ...` does; a traceback shows the program's frames, not ours."""
    sys.argv = [str(program), *arguments]
    try:
        runpy.run_path(str(program), run_name="__main__")
    except Exception as error:  # noqa: BLE001 - whatever a program raises ends the program, not us
        traceback.print_exception(type(error), error, _from_file(error.__traceback__, program))
        return 1
    return 0


def _tokenizers(served: str, source: str | None) -> Callable[[str], Tokenizer]:
    """Loads a model's tokenizer by its name; the served one's also where a path has given it."""

    def load(name: str) -> Tokenizer:
        from branchline.runtime.models.gguf_file import GGUFFile
        from branchline.runtime.models.source import resolve
        from branchline.runtime.text import Tokenizer

        path = resolve(source if source is not None and name == served else name)
        if path.is_dir():
            return Tokenizer.from_directory(path)
        return Tokenizer.from_gguf(GGUFFile(path))

    return load


def _from_file(frames: TracebackType | None, program: Path) -> TracebackType | None:
    """The part of a traceback that starts in the program; nothing where it could not even start."""
    while frames is not None and frames.tb_frame.f_code.co_filename != str(program):
        frames = frames.tb_next
    return frames
