"""How a kernel starts: one function, so that no misspelt argument passes unseen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from triton import knobs

if TYPE_CHECKING:
    from branchline.kernels.triton.variant import Variant

# Whether kernels run on CPU tensors, by the interpreter (TRITON_INTERPRET=1). Triton decides it for
# each kernel when its module is imported, so it cannot change later. The interpreter computes
# bfloat16 dots on their bit patterns, so there a kernel with tl.dot converts to float32 first:
# its constant F32DOT is this.
INTERPRETED: bool = knobs.runtime.interpret


def launch(variant: Variant, grid: tuple[int, ...], **arguments: Any) -> None:
    """Run the kernel of `variant` with `arguments`, all that are not its constants.

    A grid with a zero runs nothing. Triton ignores keywords it does not know, and compiles once
    more, without 16-byte loads, for an integer that 16 does not divide; here both are bugs.
    """
    assert arguments.keys() == variant.types.keys(), (variant.name, sorted(arguments))
    for name in variant.aligned:
        assert arguments[name] % 16 == 0, (variant.name, name, arguments[name])
    if 0 in grid:
        return
    variant.kernel[grid](**arguments, **variant.constants, **variant.options)
