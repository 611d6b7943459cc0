"""Device operations: a `KernelSet` for each device, and the reference every one of them equals.

`reference_kernels` is plain torch, written to be read; `cpu_kernels` is the fastest that torch has
for a CPU, `fastest_cpu_kernels` compiles its own where it can. All compute the same numbers up to
rounding, read K and V only through the pages a plan names, and keep no state between batches.
"""

from branchline.kernels.cpu import cpu_kernels
from branchline.kernels.cpu_int8 import cpu_int8_kernels, int8_is_exact
from branchline.kernels.fastest import fastest_cpu_kernels, fastest_int8_kernels
from branchline.kernels.kernel_set import KernelSet, Linear, Segment
from branchline.kernels.reference import reference_kernels

__all__ = [
    "KernelSet",
    "Linear",
    "Segment",
    "cpu_int8_kernels",
    "cpu_kernels",
    "fastest_cpu_kernels",
    "fastest_int8_kernels",
    "int8_is_exact",
    "reference_kernels",
]
