"""The kernel sets that one test covers."""

from branchline.kernels import KernelSet, cpu_kernels, reference_kernels
from branchline.kernels.jit.device import jit_kernels
from branchline.kernels.jit.team import jit_is_available

COMPILED = [jit_kernels()] if jit_is_available() else []
SETS: list[KernelSet] = [reference_kernels(), cpu_kernels(), *COMPILED]
