"""Where a decoder's weights come from: one tensor at a time, under Hugging Face's names."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol

from safetensors import SafetensorError, safe_open

from branchline.errors import ModelError

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from torch import Tensor

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"


class Weights(Protocol):
    """Tensors by name. A decoder takes each that it needs, once; none is kept here.

    With `int8` two decoders take them, one after the other: one to calibrate, one to serve.
    """

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor `name` in the model's dtype, a copy of its own.

        Raises:
            ModelError: there is no such tensor, or it has another shape.
        """

    def left(self) -> list[str]:
        """The tensors that nobody took."""


def check_shape(where: object, name: str, found: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    """Raises ModelError if a tensor has not the shape that the configuration gives it."""
    if found != wanted:
        raise ModelError(f"{where}: {name} is {list(found)}, the configuration says {list(wanted)}")


class SafetensorsWeights:
    """The weights of a Hugging Face directory, in one file or in shards, memory-mapped."""

    def __init__(self, directory: Path, dtype: torch.dtype) -> None:
        """Raises ModelError if a file is missing or damaged."""
        self._directory = directory
        self._dtype = dtype
        self._files = {path: _open(path) for path in _shards(directory)}
        self._places = {
            name: file
            for file in self._files.values()
            for name in file.keys()  # noqa: SIM118  # not a dict
        }
        self._untaken = dict.fromkeys(self._places)

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """See `Weights.take`."""
        if name not in self._places:
            raise ModelError(f"{self._directory}: has no tensor {name}")
        self._untaken.pop(name, None)
        tensor: Tensor = self._places[name].get_tensor(name)
        check_shape(self._directory, name, tuple(tensor.shape), shape)
        if not tensor.is_floating_point():
            raise ModelError(f"{self._directory}: {name} is {tensor.dtype}: quantized weights")
        return tensor.to(self._dtype, copy=True)

    def left(self) -> list[str]:
        """See `Weights.left`."""
        return list(self._untaken)


def _shards(directory: Path) -> list[Path]:
    """The files of the weights; a missing shard is found when it is opened."""
    index = directory / _INDEX
    if not index.is_file():
        return [directory / _SINGLE]
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{index}: not an index of shards: {error!r}") from error
    return [directory / name for name in sorted(names)]


def _open(path: Path) -> Any:
    if not path.is_file():
        raise ModelError(f"{path}: no such file; weights are read from safetensors files only")
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path}: not a safetensors file, or a damaged one: {error}") from error
