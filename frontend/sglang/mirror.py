"""Lets `import sglang` mean this package in a process where SGLang is not installed."""

from __future__ import annotations

import functools
import importlib
import sys
from importlib.machinery import PathFinder
from types import ModuleType
from typing import TYPE_CHECKING

from branchline.sglang import tokenizers

if TYPE_CHECKING:
    from collections.abc import Callable

    from branchline.sglang.tokenizers import RuntimeTokenizer

# SGLang's modules that programs import, and what stands for each. Old places come after new ones.
MODULES = {
    "sglang": "branchline.sglang",
    "sglang.api": "branchline.sglang.api",
    "sglang.lang.api": "branchline.sglang.api",
    "sglang.lang.ir": "branchline.sglang.ir",
    "sglang.lang.choices": "branchline.choices",
    "sglang.lang.interpreter": "branchline.sglang.interpreter",
    "sglang.lang.chat_template": "branchline.sglang.chat_templates",
    "sglang.lang.backend.base_backend": "branchline.sglang.backend",
    "sglang.lang.backend.runtime_endpoint": "branchline.sglang.endpoint",
    "sglang.lang.backend.openai": "branchline.sglang.hosted",
    "sglang.lang.backend.anthropic": "branchline.sglang.hosted",
    "sglang.lang.backend.litellm": "branchline.sglang.hosted",
    "sglang.lang.backend.vertexai": "branchline.sglang.hosted",
    "sglang.backend.openai": "branchline.sglang.hosted",
    "sglang.backend.runtime_endpoint": "branchline.sglang.endpoint",
    "sglang.lang.global_config": "branchline.sglang.config",
    "sglang.global_config": "branchline.sglang.config",
    "sglang.utils": "branchline.sglang.utils",
    "sglang.test.test_utils": "branchline.sglang.test_utils",
    "sglang.test.test_programs": "branchline.sglang.test_programs",
    "sglang.srt.utils": "branchline.sglang.srt_utils",
    "sglang.srt.utils.hf_transformers_utils": "branchline.sglang.tokenizers",
    "sglang.srt.hf_transformers_utils": "branchline.sglang.tokenizers",
    "sglang.srt.server_args": "branchline.sglang.server_args",
    "sglang.srt.constrained.outlines_backend": "branchline.sglang.schemas",
    "sglang.srt.parser.reasoning_parser": "branchline.sglang.reasoning_parser",
    "sglang.srt.reasoning_parser": "branchline.sglang.reasoning_parser",
}


def install(load_tokenizer: Callable[[str], RuntimeTokenizer] | None = None) -> bool:
    """Let SGLang's names stand for Branchline's in this process, unless SGLang is installed.

    Args:
        load_tokenizer: how the tokenizer of a model is loaded, by what the model is called.

    Returns:
        Whether they do.
    """
    if is_installed():
        return False
    tokenizers.provide(load_tokenizer)
    modules = {name: importlib.import_module(ours) for name, ours in MODULES.items()}
    for name in MODULES:
        modules = {parent: _folder(parent) for parent in _parents(name)} | modules
    sys.modules.update(modules)
    for name, module in modules.items():
        parent, _, child = name.rpartition(".")
        if parent and not hasattr(modules[parent], child):  # a function or a setting has the name
            setattr(modules[parent], child, module)
    return True


def uninstall() -> None:
    """Undo `install`."""
    tokenizers.provide(None)
    for name in [name for name in sys.modules if name.split(".")[0] == "sglang"]:
        del sys.modules[name]


def is_installed() -> bool:
    """Whether there is an SGLang that would be imported: not a mere folder of that name."""
    found = PathFinder.find_spec("sglang")
    return found is not None and found.origin is not None


def _parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


@functools.cache
def _folder(name: str) -> ModuleType:
    """A module that is only there to have others in it. Nothing is searched in its folder."""
    module = ModuleType(name, "A part of SGLang's package, as far as Branchline has it.")
    module.__path__ = []
    return module
