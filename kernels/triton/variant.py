"""What a shipped kernel is, before anything is compiled: its code, types, constants and launch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

_TYPE_NAMES = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
    torch.int32: "i32",
    torch.int64: "i64",
}


@dataclass(frozen=True, slots=True)
class Variant:
    """One shipped configuration of a kernel: all that ahead-of-time compilation needs to know.

    Its launcher reads the same record, so that what is tested is what runs.
    """

    name: str  # "rms_norm bf16 n4096"
    kernel: Any  # the @triton.jit function
    types: dict[str, str]  # argument -> "*bf16", "*fp32", "*i64", "fp32", "i32" …
    constants: dict[str, Any]  # the rest: the tl.constexpr arguments
    aligned: frozenset[str]  # integers that 16 always divides; pointers always are
    num_warps: int
    num_stages: int
    wide_loads: int = 0  # at least so many 16-byte loads (LDG.128 and LDGSTS.128)
    uses_dot: bool = False  # has instructions for tensor cores

    def __post_init__(self) -> None:
        named = list(self.types) + list(self.constants)
        assert sorted(named) == sorted(self.kernel.arg_names), (self.name, named)
        assert all(self.types[name] in ("i32", "i64") for name in self.aligned), self.aligned

    @property
    def options(self) -> dict[str, Any]:
        """The compiler's options; what Triton's versions have other defaults for is named."""
        return {
            "num_warps": self.num_warps,
            "num_stages": self.num_stages,
            "enable_fp_fusion": True,
        }


def pointer(dtype: torch.dtype) -> str:
    """The type of a pointer to elements of `dtype`: `*bf16`."""
    return "*" + _TYPE_NAMES[dtype]


def type_name(dtype: torch.dtype) -> str:
    """Triton's name of `dtype`: `bf16`."""
    return _TYPE_NAMES[dtype]
