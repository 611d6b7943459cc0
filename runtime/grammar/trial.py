"""A grammar that may be dangerous is first compiled by a process of its own.

llguidance recurses over rules and references: a chain of some thousands overflows the stack, and
with it would go the runtime. And where it works out what is forced, it holds the interpreter's
lock: seconds, for a text of a million characters. Both take a large source or large counts.
"""

from __future__ import annotations

import math
import re
import subprocess
import sys
import threading
import time

from branchline.errors import InvalidRequest

_LARGE = 8 * 1024  # characters; a chain that fits in less is harmless
_MANY = 20_000  # repetitions, of one count inside another

_SECONDS = 10  # of all
_STEP_SECONDS = 1.0  # of the first step
_MEMORY = 4 * 1024**3  # bytes of address space
_STACK = 2 * 1024**2  # bytes: a quarter of what the threads of the runtime have
_TOO_SLOW = 3  # the exit status

_COUNT = re.compile(r"(?<!\\x)\{\s*([0-9]*)\s*,?\s*([0-9]*)\s*\}")


def needed(source: str) -> bool:
    """Whether a grammar, as llguidance reads it, may be dangerous."""
    counts = (int(most or least or 1) for least, most in _COUNT.findall(source))
    return len(source) > _LARGE or math.prod(max(count, 1) for count in counts) > _MANY


def survive(source: str) -> None:
    """Compile a grammar in another process, whatever comes of it.

    Args:
        source: as llguidance reads it.

    Raises:
        InvalidRequest: the process did not live to the end.
    """
    command = [sys.executable, "-P", "-m", "branchline.runtime.grammar.trial"]
    try:
        done = subprocess.run(
            command, input=source.encode(), capture_output=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise InvalidRequest(f"compiling it takes more than {_SECONDS} seconds") from None
    if done.returncode == _TOO_SLOW:
        raise InvalidRequest("it is too complex: its first step takes over a second")
    if done.returncode:
        raise InvalidRequest(
            "compiling it takes too much: its rules or references are nested too deeply, "
            f"or it needs more than {_MEMORY >> 30} GiB of memory"
        )


def _compile(source: str, slow: threading.Event) -> None:
    """Build a matcher and take its first step; a grammar's errors do not matter here."""
    import numpy as np
    from llguidance import LLMatcher, LLTokenizer

    tokenizer = LLTokenizer("byte")
    matcher = LLMatcher(tokenizer, source, log_level=0)
    mask = np.zeros(-(-tokenizer.vocab_size // 32), np.int32)
    began = time.thread_time()
    matcher.deep_copy().unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
    if time.thread_time() - began < _STEP_SECONDS:
        matcher.compute_ff_tokens()
    if time.thread_time() - began > _STEP_SECONDS:
        slow.set()


def _main() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    threading.stack_size(_STACK)
    slow = threading.Event()
    source = sys.stdin.buffer.read().decode()
    thread = threading.Thread(target=_compile, args=(source, slow))
    thread.start()
    thread.join()
    sys.exit(_TOO_SLOW if slow.is_set() else 0)


if __name__ == "__main__":
    _main()
