"""The flags of a runtime, made from the fields of `RuntimeConfig`."""

from __future__ import annotations

import argparse
from dataclasses import Field, fields
from types import UnionType
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from branchline.runtime.config import RuntimeConfig

if TYPE_CHECKING:
    from collections.abc import Collection


def add_config_flags(parser: argparse.ArgumentParser, *, leave_out: Collection[str] = ()) -> None:
    """Add `--field-name` for every setting. One that is not given leaves no attribute behind."""
    group = parser.add_argument_group("the runtime")
    hints = get_type_hints(RuntimeConfig)
    for setting in fields(RuntimeConfig):
        if setting.name in leave_out:
            continue
        flag = "--" + setting.name.replace("_", "-")
        kind = _plain_type(hints[setting.name])
        if kind is bool:
            group.add_argument(
                flag,
                action=argparse.BooleanOptionalAction,
                default=argparse.SUPPRESS,
                help=help_of(setting),
            )
        else:
            metavar = {str: "TEXT", int: "N", float: "X"}[kind]
            group.add_argument(
                flag, type=kind, metavar=metavar, default=argparse.SUPPRESS, help=help_of(setting)
            )


def given_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings that the command line names."""
    given = vars(arguments)
    return {
        setting.name: given[setting.name]
        for setting in fields(RuntimeConfig)
        if setting.name in given
    }


def _plain_type(annotation: Any) -> type:
    """The type of a value that is given: `int` for `int | None`."""
    if isinstance(annotation, UnionType):
        (annotation,) = (one for one in get_args(annotation) if one is not type(None))
    assert isinstance(annotation, type)
    return annotation


def help_of(setting: Field[Any]) -> str:
    """What a setting is, and its default, in argparse's spelling."""
    text: str = setting.metadata["help"]
    if isinstance(setting.default, bool):
        text += f" (default: {'on' if setting.default else 'off'})"
    elif setting.default is not None:
        text += f" (default: {setting.default})"
    return text.replace("%", "%%")
