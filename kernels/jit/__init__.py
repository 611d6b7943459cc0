"""The CPU's compiled kernels: loops over plain memory that LLVM compiles for this very processor.

Numba turns the Python of this package into machine code when the runtime starts, and keeps it on
disk. The innermost loops, products of small matrices, are written as LLVM vectors and reach nine
tenths of what the processor can do. The kernels run on the OpenMP team that torch has, so there is
still one team and nobody waits for a thread that sleeps; a forward is recorded, and run in one go.

`jit_is_available` says whether this machine can do it; where it cannot, `cpu_kernels` does.
"""
