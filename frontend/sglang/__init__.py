"""SGLang's frontend on Branchline: its programs run unchanged.

`import branchline.sglang as sgl` has every name that `import sglang as sgl` has. `branchline run`
lets the latter mean this package where SGLang is not installed, along with the modules that
programs import from it (`mirror.MODULES`). Names, order of arguments, defaults and results are
SGLang's, and special tokens in a program's text are special tokens.

What differs, on purpose:

* An error is raised where its result is read, with its cause; nothing waits for ever.
* A gen without a name makes no variable. A join has None where a branch lacks one.
* `dtype`, `regex` and `json_schema` are checked when the text is there, not while it is written.
* `RuntimeEndpoint("http://…")` is the runtime of `branchline run`, whatever the address.
* A parameter of a program that is called like a setting of `run` is the program's.
* A fork waits for nothing, and no body runs for the sake of a cache.

What a model would have to see, or a provider alone speaks, is refused by name.
"""

from __future__ import annotations

from branchline.choices import (
    greedy_token_selection,
    token_length_normalized,
    unconditional_likelihood_normalized,
)
from branchline.sglang import chat_template_list as _templates  # registers SGLang's templates
from branchline.sglang.api import (
    Engine,
    Runtime,
    assistant,
    assistant_begin,
    assistant_end,
    flush_cache,
    function,
    gen,
    gen_int,
    gen_string,
    get_server_args,
    get_server_info,
    image,
    select,
    separate_reasoning,
    set_default_backend,
    system,
    system_begin,
    system_end,
    user,
    user_begin,
    user_end,
    video,
)
from branchline.sglang.config import global_config
from branchline.sglang.endpoint import RuntimeEndpoint
from branchline.sglang.hosted import Anthropic, Crusoe, LiteLLM, OpenAI, VertexAI
from branchline.sglang.server_args import ServerArgs

__version__ = "0.5.5"  # of the SGLang whose frontend this is

__all__ = [
    "Anthropic",
    "Crusoe",
    "Engine",
    "LiteLLM",
    "OpenAI",
    "Runtime",
    "RuntimeEndpoint",
    "ServerArgs",
    "VertexAI",
    "__version__",
    "assistant",
    "assistant_begin",
    "assistant_end",
    "flush_cache",
    "function",
    "gen",
    "gen_int",
    "gen_string",
    "get_server_args",
    "get_server_info",
    "global_config",
    "greedy_token_selection",
    "image",
    "select",
    "separate_reasoning",
    "set_default_backend",
    "system",
    "system_begin",
    "system_end",
    "token_length_normalized",
    "unconditional_likelihood_normalized",
    "user",
    "user_begin",
    "user_end",
    "video",
]

assert _templates is not None, "imported for what it does"
