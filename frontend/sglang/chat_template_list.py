"""The templates that SGLang names, and which models' paths ask for which."""

from __future__ import annotations

import re

from branchline.sglang.chat_templates import (
    ChatTemplate,
    ChatTemplateStyle,
    get_chat_template,
    register_chat_template,
    register_chat_template_matching_function,
)

ROLES = ("system", "user", "assistant")
CHATML_PARTS = {role: (f"<|im_start|>{role}\n", "<|im_end|>\n") for role in ROLES}
LLAMA3_PARTS = {
    role: (f"<|start_header_id|>{role}<|end_header_id|>\n\n", "<|eot_id|>") for role in ROLES
}
VICUNA_SYSTEM = (
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives "
    "helpful, detailed, and polite answers to the user's questions."
)
IMAGE_OF_QWEN = "<|vision_start|><|image_pad|><|vision_end|>"

# name: (default system prompt, system, user, assistant, stop strings)
_PLAIN: dict[str, tuple[str | None, tuple[str, str], tuple[str, str], tuple[str, str], str]] = {
    "default": (None, ("SYSTEM:", "\n"), ("USER:", "\n"), ("ASSISTANT:", "\n"), ""),
    "claude": (None, ("", ""), ("\n\nHuman: ", ""), ("\n\nAssistant:", ""), ""),
    "vicuna_v1.1": (VICUNA_SYSTEM, ("", " "), ("USER:", " "), ("ASSISTANT:", "</s>"), ""),
    "minicpmv": (None, ("", " "), ("user:", " "), ("assistant:", "</s>"), "<|im_end|>"),
    "minicpmo": (None, ("", " "), ("user:", " "), ("assistant:", "</s>"), "<|im_end|>"),
    "janus-pro": (
        None,
        ("", ""),
        ("<|User|>", ""),
        ("<|Assistant|>", "<｜end▁of▁sentence｜>"),
        "<｜end▁of▁sentence｜>",
    ),
    "yi-vl": (None, ("", "\n\n"), ("### Human:", "\n"), ("### Assistant:", "\n"), ""),
    "gemma-it": (
        None,
        ("", ""),
        ("<start_of_turn>user\n", "<end_of_turn>\n"),
        ("<start_of_turn>model\n", "<end_of_turn>\n"),
        "",
    ),
    "c4ai-command-r": (
        None,
        ("<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>", "<|END_OF_TURN_TOKEN|>"),
        ("<|START_OF_TURN_TOKEN|><|USER_TOKEN|>", "<|END_OF_TURN_TOKEN|>"),
        ("<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>", "<|END_OF_TURN_TOKEN|>"),
        "",
    ),
    "granite-3-instruct": (
        None,
        ("<|start_of_role|>system<|end_of_role|>", "<|end_of_text|>"),
        ("<|start_of_role|>user<|end_of_role|>", "<|end_of_text|>"),
        ("<|start_of_role|>assistant<|end_of_role|>", "<|end_of_text|>"),
        "<|end_of_text|>",
    ),
    "deepseek-v3": (
        None,
        ("", ""),
        ("<｜User｜>", ""),
        ("<｜Assistant｜>", "<｜end▁of▁sentence｜>"),
        "<｜end▁of▁sentence｜>",
    ),
}


def _register_all() -> None:
    for name, (default, system, user, assistant, stop) in _PLAIN.items():
        parts = {"system": system, "user": user, "assistant": assistant}
        register_chat_template(ChatTemplate(name, default, parts, (stop,) if stop else ()))
    helpful = "You are a helpful assistant."
    chatml = {
        "chatml": None,
        "chatml-llava": "Answer the questions.",
        "qwen": helpful,
        "qwen2-vl": helpful,
        "yi-1.5": None,
        "dbrx-instruct": None,
    }
    for name, default in chatml.items():
        image = IMAGE_OF_QWEN if name == "qwen2-vl" else "<image>"
        template = ChatTemplate(name, default, CHATML_PARTS, ("<|im_end|>",), image_token=image)
        register_chat_template(template)
    for name in ("llama-3-instruct", "llama-3-instruct-llava"):
        register_chat_template(ChatTemplate(name, None, LLAMA3_PARTS, ("<|eot_id|>",)))
    llama4 = {role: (f"<|header_start|>{role}<|header_end|>\n\n", "<|eot|>") for role in ROLES}
    register_chat_template(
        ChatTemplate("llama-4", None, llama4, ("<|eot|>",), image_token="<|image|>")
    )
    llama2 = {
        "system": ("<<SYS>>\n", "\n<</SYS>>\n\n"),
        "user": ("[INST] ", " [/INST]"),
        "assistant": ("", " </s><s>"),
    }
    register_chat_template(
        ChatTemplate("llama-2-chat", None, llama2, style=ChatTemplateStyle.LLAMA2)
    )


# What a model's path must have in it, most particular first.
_BY_PATH = (
    (r"vicuna|llava-v1\.5|llava-next-video-7b", "vicuna_v1.1"),
    (r"deepseek-(v3|r1)(?!.*base)", "deepseek-v3"),
    (r"llava.*llama-?3|llama-?3.*llava", "llama-3-instruct-llava"),
    (r"llama-2.*chat|codellama.*instruct", "llama-2-chat"),
    (r"(mistral|mixtral).*instruct", "llama-2-chat"),
    (r"llama-?4.*instruct", "llama-4"),
    (r"llama-3.*instruct", "llama-3-instruct"),
    (r"llava-(v1\.6(-yi)?-34b|next-video-34b|onevision-qwen2)", "chatml-llava"),
    (r"yi-vl", "yi-vl"),
    (r"yi-1\.5.*chat", "yi-1.5"),
    (r"qwen.*vl", "qwen2-vl"),
    (r"qwen.*(chat|instruct)", "qwen"),
    (r"tinyllama.*chat|smollm.*instruct", "chatml"),
    (r"gemma.*it", "gemma-it"),
    (r"dbrx.*instruct", "dbrx-instruct"),
    (r"c4ai-command-r", "c4ai-command-r"),
    (r"granite.*instruct", "granite-3-instruct"),
    (r"minicpm-v", "minicpmv"),
    (r"minicpm-o", "minicpmo"),
    (r"janus", "janus-pro"),
    (r"claude", "claude"),
)


@register_chat_template_matching_function
def _by_path(model_path: str) -> ChatTemplate | None:
    for pattern, name in _BY_PATH:
        if re.search(pattern, model_path, re.IGNORECASE):
            return get_chat_template(name)
    return None


_register_all()
