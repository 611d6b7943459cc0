"""SGLang's settings of a process, `sgl.global_config`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

VERBOSE = 2  # from this verbosity on, a run prints its text


@dataclass(slots=True)
class GlobalConfig:
    """What programs set on `global_config`.

    The two `enable_` settings and `spaces_between_special_tokens_in_out` change nothing: the
    runtime finds every shared prefix by itself, and detokenizes as the model does.
    """

    verbosity: int = 0
    default_backend: Any = None
    skip_special_tokens_in_output: bool = True
    spaces_between_special_tokens_in_out: bool = True
    enable_precache_with_tracing: bool = True
    enable_parallel_encoding: bool = True


global_config = GlobalConfig()
