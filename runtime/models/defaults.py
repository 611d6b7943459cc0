"""The sampling parameters that a model's authors recommend."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from branchline.errors import ModelError
from branchline.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from branchline.runtime.models.gguf_file import GGUFFile

_NAMES = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
_GGUF_NAMES = {
    "temperature": "general.sampling.temp",
    "top_k": "general.sampling.top_k",
    "top_p": "general.sampling.top_p",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}


def defaults_of_directory(directory: Path) -> dict[str, float]:
    """What `generation_config.json` says, if there is one. Raises ModelError if it is damaged."""
    path = directory / "generation_config.json"
    if not path.is_file():
        return {}
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path}: not JSON: {error}") from error
    return _usable({name: values.get(name) for name in _NAMES})


def defaults_of_gguf(file: GGUFFile) -> dict[str, float]:
    """What the fields of a GGUF file say."""
    return _usable({name: file.value(field) for name, field in _GGUF_NAMES.items()})


def _usable(values: Mapping[str, Any]) -> dict[str, float]:
    """The numbers that are in range; others mean "off" elsewhere, like a top_k of 0."""
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, int | float) and _in_range(name, value)
    }


def _in_range(name: str, value: Any) -> bool:
    try:
        replace(SamplingParams(), **{name: value})
    except ValueError:
        return False
    return True
