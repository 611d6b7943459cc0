"""A GGUF file: its fields as plain Python values, its tensors dequantized one at a time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np

from branchline.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterator

# What `GGUFReader` raises on bytes that are not a GGUF file, or only the beginning of one.
_CORRUPT = (
    ValueError,
    KeyError,
    IndexError,
    TypeError,
    ArithmeticError,
    MemoryError,
    RecursionError,
)


class GGUFFile:
    """A GGUF file, memory-mapped.

    Opening one reads every field: about half a second for a vocabulary of 50,000 tokens.

    Raises:
        ModelError: the file is missing, cut short, corrupt, in several parts or big-endian.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise ModelError(f"{self.path}: no such file")
        try:
            with np.errstate(all="raise"):
                self._reader = _Reader(self.path)
        except OSError as error:
            raise ModelError(f"{self.path}: cannot be read: {error.strerror or error}") from error
        except _CORRUPT as error:
            raise ModelError(f"{self.path}: not a GGUF file, or a damaged one: {error}") from error
        if self._reader.byte_order != "I":
            raise ModelError(f"{self.path}: its byte order is not this machine's")
        if self.value("split.count", 1) > 1:
            raise ModelError(
                f"{self.path}: one part of a split model; merge the parts with llama-gguf-split"
            )
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}

    def value(self, key: str, default: Any = None) -> Any:
        """The field `key`: a str, int, float, bool or a list of these; `default` if absent."""
        field = self._reader.get_field(key)
        if field is None:
            return default
        try:
            return field.contents()
        except UnicodeDecodeError as error:
            raise ModelError(f"{self.path}: the field {key} is not UTF-8: {error}") from error

    @property
    def architecture(self) -> str:
        """llama.cpp's name for the kind of model, the prefix of its fields."""
        return str(self.value("general.architecture", "unnamed"))

    def model_value(self, key: str, default: Any = None) -> Any:
        """The field `key` below the architecture's name."""
        return self.value(f"{self.architecture}.{key}", default)

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def names(self) -> Iterator[str]:
        """The names of all tensors, in the order of the file."""
        return iter(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of the tensor `name`, rows first. Raises ModelError if there is none."""
        return tuple(reversed(self._find(name).shape.tolist()))

    def tensor(self, name: str) -> np.ndarray[Any, np.dtype[np.float32]]:
        """The tensor `name`, dequantized to a new float32 array of its shape, rows first.

        Raises:
            ModelError: there is no such tensor, its type has no dequantization, or it holds NaN.
        """
        tensor = self._find(name)
        try:
            with np.errstate(all="ignore"):
                values = gguf.dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError as error:
            kind = tensor.tensor_type.name
            raise ModelError(f"{self.path}: {name} is {kind}, which is not supported") from error
        if not np.isfinite(values).all():
            raise ModelError(f"{self.path}: {name} holds values that are not finite: damaged")
        return np.array(values, dtype=np.float32)

    def _find(self, name: str) -> gguf.ReaderTensor:
        if name not in self._tensors:
            raise ModelError(f"{self.path}: has no tensor {name}")
        return self._tensors[name]


class _Reader(gguf.GGUFReader):  # type: ignore[misc]  # gguf is not followed
    """The `gguf` package's reader, strict about the end of the file and three times as fast.

    The original slices a memmap, which is slow for each of the 150,000 parts of a vocabulary, and
    clips silently at the end, so a damaged length makes it loop for hours.
    """

    def _get(
        self, offset: int, dtype: Any, count: int = 1, override_order: str | None = None
    ) -> np.ndarray[Any, Any]:
        kind = np.dtype(dtype).newbyteorder(override_order or self.byte_order)
        end = int(offset) + int(count) * kind.itemsize
        if end > len(self.data):
            raise ValueError(f"needs {end} bytes and has {len(self.data)}")
        return np.frombuffer(self.data, kind, int(count), int(offset))
