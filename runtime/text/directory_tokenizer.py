"""Reads the tokenizer of a Hugging Face directory: tokenizer.json and the configs beside it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from branchline.errors import ModelError
from branchline.runtime.text.parts import TokenizerParts

if TYPE_CHECKING:
    from pathlib import Path

_TEXT_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token")


def read_directory_tokenizer(path: Path) -> TokenizerParts:
    """The tokenizer of the model in `path`.

    Raises:
        ModelError: tokenizer.json is missing, cannot be read, or is of an unsupported kind.
    """
    spec = _json(path / "tokenizer.json")
    if not spec:
        raise ModelError(
            f"{path} has no tokenizer.json; load the tokenizer with transformers and "
            "save_pretrained() it there"
        )
    if not spec.keys() >= {"model", "added_tokens"}:
        raise ModelError(
            f"{path / 'tokenizer.json'} is not a tokenizer: it has no model or no added_tokens"
        )
    kind = spec["model"].get("type", "BPE")
    if kind != "BPE":
        raise ModelError(f"{path / 'tokenizer.json'} is of kind {kind}: only BPE is supported")
    config = _json(path / "tokenizer_config.json")
    texts = {name: _text(config.get(name)) for name in _TEXT_NAMES}
    ids = _token_ids(spec)
    bos_id = ids.get(texts["bos_token"])
    added = _begins_with(spec.get("post_processor"))
    if bos_id is None:
        bos_id = ids.get(added)
    adds_bos = config.get("add_bos_token")
    if adds_bos is None:
        adds_bos = added != ""
    if adds_bos and bos_id is None:
        raise ModelError(
            f"{path}: the tokenizer adds BOS, but its bos_token is not in its vocabulary"
        )
    model_config = _json(path / "config.json")
    return TokenizerParts(
        spec=spec,
        vocab_size=max(model_config.get("vocab_size", 0), max(ids.values()) + 1),
        stop_token_ids=_stops(path, model_config, ids.get(texts["eos_token"])),
        bos_id=bos_id,
        adds_bos=adds_bos,
        chat_template=_chat_template(path, config),
        special_texts={name: text for name, text in texts.items() if text},
    )


def _json(path: Path) -> dict[str, Any]:
    """The object in a file; empty where there is no such file."""
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    if not isinstance(loaded, dict):
        raise ModelError(f"{path} cannot be read: it holds no JSON object")
    return loaded


def _text(token: str | dict[str, Any] | None) -> str:
    """A special token's text, which configs spell as a string or as an object with `content`."""
    return str(token["content"]) if isinstance(token, dict) else token or ""


def _token_ids(spec: dict[str, Any]) -> dict[str, int]:
    vocab: dict[str, int] = spec["model"]["vocab"]
    return vocab | {token["content"]: token["id"] for token in spec["added_tokens"]}


def _begins_with(processor: dict[str, Any] | None) -> str:
    """The special token that a post-processor puts before a text; empty if none."""
    match processor:
        case {"type": "Sequence", "processors": processors}:
            return next(filter(None, map(_begins_with, processors)), "")
        case {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": text}}, *_]}:
            return str(text)
        case _:
            return ""


def _stops(path: Path, config: dict[str, Any], eos: int | None) -> frozenset[int]:
    """Every end of text: generation_config's (else config's) and the tokenizer's own."""
    declared = _json(path / "generation_config.json").get(
        "eos_token_id", config.get("eos_token_id")
    )
    stops = [declared] if isinstance(declared, int) else declared or []
    return frozenset(stops) | ({eos} if eos is not None else frozenset())


def _chat_template(path: Path, config: dict[str, Any]) -> str | None:
    file = path / "chat_template.jinja"
    if file.exists():
        return file.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):  # several, by name
        template = {named["name"]: named["template"] for named in template}.get("default")
    return template
