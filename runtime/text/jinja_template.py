"""Renders a model's own chat template, with the names that templates expect from transformers."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from branchline.errors import InvalidRequest, ModelError
from branchline.runtime.text.quoted import concat

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jinja2.parser import Parser


class _GenerationTag(Extension):
    """`{% generation %}`, which marks what a model says in training data, and shows its body."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class NoChatTemplate(InvalidRequest):
    """The model has no chat template."""


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as models were trained on it; jinja2's own escapes characters that matter in HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _environment() -> ImmutableSandboxedEnvironment:
    """Templates come with a model's files, which nobody has read, so they run in a sandbox."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.concat = concat  # type: ignore[method-assign]
    return environment


def compile_template(source: str) -> jinja2.Template:
    """The template of a model; ModelError where it is not Jinja."""
    try:
        return _environment().from_string(source)
    except jinja2.TemplateError as error:
        raise ModelError(f"the model's chat template is not valid: {error}") from error


def names_in(source: str) -> frozenset[str]:
    """What a template asks for by name: variables, attributes, and keys that it spells out."""
    tree = _environment().parse(source)
    variables = (node.name for node in tree.find_all(jinja2.nodes.Name))
    attributes = (node.attr for node in tree.find_all(jinja2.nodes.Getattr))
    constants = (node.value for node in tree.find_all(jinja2.nodes.Const))
    return frozenset(map(str, (*variables, *attributes, *constants)))


def render(
    template: jinja2.Template,
    messages: Sequence[Mapping[str, Any]],
    add_generation_prompt: bool,
    special_texts: Mapping[str, str],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    now: datetime | None = None,
) -> str:
    """The text of a conversation; InvalidRequest where the template refuses it."""
    try:
        return template.render(
            messages=messages,
            tools=tools,
            documents=None,
            add_generation_prompt=add_generation_prompt,
            strftime_now=(now or datetime.now()).strftime,
            **special_texts,
        )
    except (jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError) as error:
        raise InvalidRequest(f"the chat template refuses this conversation: {error}") from error
