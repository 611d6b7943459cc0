"""The arguments of SGLang's server, read as settings of Branchline's runtime."""

from __future__ import annotations

from typing import Any

from branchline.errors import InvalidRequest

# Each of SGLang's that the runtime has, under its own name.
SETTINGS = {
    "model_path": "model",
    "device": "device",
    "dtype": "dtype",
    "context_length": "max_context",
    "max_running_requests": "max_running",
    "chunked_prefill_size": "chunk_tokens",
    "mem_fraction_static": "memory_fraction",
}
# What only says where and how SGLang's server runs: a program's runtime does without.
WITHOUT_EFFECT = frozenset(
    {
        *("host", "port", "api_key", "log_level", "log_requests", "served_model_name"),
        *("tokenizer_path", "trust_remote_code", "random_seed", "chat_template"),
        *("attention_backend", "sampling_backend", "grammar_backend", "disable_cuda_graph"),
    }
)


class ServerArgs:
    """SGLang's server arguments, by name; each is an attribute.

    Raises:
        InvalidRequest: the runtime has nothing of that kind.
    """

    def __init__(self, model_path: str, **arguments: Any) -> None:
        self.model_path = model_path
        if arguments.get("tp_size", 1) != 1:
            raise InvalidRequest(f"tp_size={arguments['tp_size']}: the runtime has one device")
        unknown = arguments.keys() - SETTINGS.keys() - WITHOUT_EFFECT
        unknown -= {"tp_size", "disable_radix_cache"}
        if unknown:
            raise InvalidRequest(
                f"{', '.join(sorted(unknown))}: Branchline's runtime has no such setting; of "
                f"SGLang's it has disable_radix_cache, {', '.join(SETTINGS)}"
            )
        self.__dict__.update(arguments)

    def settings(self) -> dict[str, Any]:
        """The same as fields of `RuntimeConfig`; what is None or `auto` is left to the runtime."""
        named = {
            SETTINGS[name]: value
            for name, value in vars(self).items()
            if name in SETTINGS and value not in (None, "auto")
        }
        if getattr(self, "disable_radix_cache", False):
            named["cache"] = False
        return named
