"""Finds on the CPU what would wait for a CUDA device: each such call is an error."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from collections.abc import Iterator

_aten = torch.ops.aten
# What brings a value or a shape to the host.
_OPERATIONS = frozenset(
    {
        _aten._local_scalar_dense,  # item, and float(), int(), bool() of a tensor
        _aten.is_nonzero,
        _aten.nonzero,
        _aten.nonzero_numpy,
        _aten.masked_select,
        _aten.equal,
        _aten.unique_consecutive,
        _aten._unique2,
    }
)
_INDEXING = frozenset({_aten.index, _aten.index_put, _aten.index_put_})
_METHODS = frozenset(
    {
        torch.Tensor.item,  # in inference mode no operation either
        torch.Tensor.__bool__,
        torch.Tensor.__int__,
        torch.Tensor.__index__,
        torch.Tensor.__float__,
        torch.Tensor.__format__,
        torch.Tensor.tolist,
        torch.Tensor.numpy,
        torch.Tensor.cpu,
        torch.Tensor.__array__,
    }
)


class SyncError(RuntimeError):
    """A launch would have waited for the device."""


@contextmanager
def refuse_syncs() -> Iterator[None]:
    """A block in which no tensor is read by the host, as if all were on a device."""
    with _Methods(), _Operations():  # type: ignore[no-untyped-call]
        yield


class _Methods(TorchFunctionMode):
    """Methods that read a CPU tensor without an operation."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _METHODS:
            raise SyncError(f"Tensor.{func.__name__} waits for the device")
        return func(*args, **(kwargs or {}))


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        operation = func.overloadpacket
        if operation in _OPERATIONS or (operation in _INDEXING and _has_mask(args[1])):
            raise SyncError(f"{operation} waits for the device")
        return func(*args, **(kwargs or {}))


def _has_mask(indices: Any) -> bool:
    """Whether something is indexed by a mask: the shape of the result is then the device's."""
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)
