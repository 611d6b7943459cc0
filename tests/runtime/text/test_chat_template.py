"""Chat templates: rendered as transformers does, cut into prefixes and suffixes, or not cut."""

from __future__ import annotations

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers.utils.chat_template_utils import render_jinja_template

from branchline.errors import InvalidRequest
from branchline.runtime.text import cut_chat_template

from .small import make

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
STRIPS = (
    "{{ bos_token }}{% for m in messages %}{{ '<|' + m.role + '|>\n\n' + m.content | trim }}"
    "{{ '<|eot|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n\n' }}{% endif %}"
)
REJECTS_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    + CHATML
)
THINKS = (
    "{% for m in messages %}{{ '[' + m.role + ']' }}{{ m.content.split('</think>')[-1] + '[/]' }}"
    "{% endfor %}{% if add_generation_prompt %}[assistant]<think>\n{% endif %}"
)
SYSTEM_INSIDE_USER = (
    "{% if messages[0].role == 'system' %}{% set system = messages[0].content %}"
    "{% set messages = messages[1:] %}{% endif %}{% for m in messages %}{% if m.role == 'user' %}"
    "[INST] {% if loop.first and system %}{{ '<<SYS>>' + system + '<</SYS>>' }}{% endif %}"
    "{{ m.content }} [/INST]{% else %}{{ ' ' + m.content + '</s>' }}{% endif %}{% endfor %}"
)
LAST_TURN_DIFFERS = (
    "{% for m in messages %}{{ m.role + ': ' + m.content }}"
    "{{ '\n' if not loop.last else ' (end)' }}{% endfor %}"
)
UPPERCASE = "{% for m in messages %}{{ m.role + ': ' + m.content | upper + '\n' }}{% endfor %}"
COUNTS = (
    "{% for m in messages %}{{ m.role }} {{ m.content | length }}: {{ m.content }}\n{% endfor %}"
)
CONTENT_DECIDES = (
    "{% for m in messages %}{{ m.role + ': ' }}{% if 'words' in m.content %}(long) {% endif %}"
    "{{ m.content + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
REFUSES_ALL = "{{ raise_exception('never') }}"
USES_TOOLS = "{% if tools is not none %}{{ raise_exception('tools') }}{% endif %}" + CHATML


def renderer(template, **fields):
    return make(chat_template=template, **fields).render


def chat(*turns):
    return [{"role": role, "content": content} for role, content in turns]


def join(cut, messages, generation_prompt):
    """What the frontend does with a template that was cut."""
    text = "" if messages[0]["role"] == "system" else cut.default_system or ""
    for message in messages:
        text += cut.prefix[message["role"]] + message["content"] + cut.suffix[message["role"]]
    return text + (cut.prefix["assistant"] if generation_prompt else "")


contents = st.text(min_size=1).map(str.strip).filter(bool)


@st.composite
def conversations(draw):
    turns = [("system", draw(contents))] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(0, 3))):
        turns += [("user", draw(contents)), ("assistant", draw(contents))]
    return chat(*turns, ("user", draw(contents)))


@given(conversations(), st.booleans())
def test_a_cut_template_joins_to_what_it_renders(messages, prompt):
    for render in (CUTTABLE_RENDER, STRIPPING_RENDER):
        cut = cut_chat_template(render)
        assert join(cut, messages, prompt) == render(messages, add_generation_prompt=prompt)


CUTTABLE_RENDER = renderer(CHATML)
STRIPPING_RENDER = renderer(STRIPS, ggml__bos_token_id=257)


def test_what_comes_before_the_first_turn_is_kept():
    cut = cut_chat_template(STRIPPING_RENDER)
    assert cut.default_system == "<|start|>"  # its BOS
    assert cut.prefix["system"] == "<|start|><|system|>\n\n"
    assert cut.prefix["user"] == "<|user|>\n\n"


def test_a_template_that_refuses_the_system_role_has_none():
    render = renderer(REJECTS_SYSTEM)
    cut = cut_chat_template(render)
    assert set(cut.prefix) == set(cut.suffix) == {"user", "assistant"}
    with pytest.raises(InvalidRequest, match="no system role"):
        render(chat(("system", "x"), ("user", "y")), add_generation_prompt=True)


def test_an_answer_begins_as_the_generation_prompt_says():
    cut = cut_chat_template(renderer(THINKS))
    assert cut.prefix == {
        "user": "[user]",
        "assistant": "[assistant]<think>\n",
        "system": "[system]",
    }


@pytest.mark.parametrize(
    "template",
    [SYSTEM_INSIDE_USER, LAST_TURN_DIFFERS, UPPERCASE, COUNTS, CONTENT_DECIDES, REFUSES_ALL, "x"],
)
def test_what_cannot_be_cut_has_no_roles(template):
    cut = cut_chat_template(renderer(template))
    assert (cut.prefix, cut.suffix, cut.default_system) == ({}, {}, None)


def test_a_system_turn_inside_another_cannot_be_told_apart_from_it():
    cut = cut_chat_template(renderer(SYSTEM_INSIDE_USER.replace("' ' + ", "")))
    assert cut.prefix == {"user": "[INST] ", "assistant": ""}
    assert cut.suffix == {"user": " [/INST]", "assistant": "</s>"}


def test_a_model_without_a_template_says_so():
    assert cut_chat_template(make().render) is None
    with pytest.raises(InvalidRequest, match="no chat template"):
        make().render(chat(("user", "x")), add_generation_prompt=True)


@pytest.mark.parametrize(
    "template",
    [
        CHATML,
        STRIPS,
        SYSTEM_INSIDE_USER,
        USES_TOOLS,
        "{{ messages | tojson }} {{ messages | tojson(indent=2) }} {{ {'b': '<é>'} | tojson }}",
        "{% for m in messages %}\n  {% if loop.last %}\n{% break %}{% endif %}\n.{% endfor %}",
        "a{% generation %}{{ messages[0].content }}{% endgeneration %}b",
    ],
)
def test_rendering_is_that_of_transformers(template):
    messages = chat(("system", "Say <é>."), ("user", " hi\n"), ("assistant", "'yes'"))
    for prompt in (False, True):
        expected, _ = render_jinja_template(
            [messages],
            chat_template=template,
            add_generation_prompt=prompt,
            bos_token="<|start|>",
        )
        render = renderer(template, ggml__bos_token_id=257)
        assert render(messages, add_generation_prompt=prompt) == expected[0]


def test_a_template_can_say_the_date():
    text = renderer("{{ strftime_now('%Y') }}")(chat(("user", "x")), add_generation_prompt=True)
    assert abs(int(text) - datetime.now().year) <= 1


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages[7].content + 'x' }}",
        "{{ 1 + 'x' }}",
        "{{ 1 // 0 }}",
    ],
)
def test_a_template_that_fails_is_a_refusal(template):
    with pytest.raises(InvalidRequest, match="the chat template refuses"):
        renderer(template)(chat(("user", "x")), add_generation_prompt=True)


def test_smollm2s_own_template(smollm2_tokenizer):
    cut = cut_chat_template(smollm2_tokenizer.render)
    assert cut.prefix["assistant"] == "<|im_start|>assistant\n"
    assert cut.default_system.startswith("<|im_start|>system\nYou are a helpful AI assistant")
    for messages in (
        chat(("user", "Hi")),
        chat(("system", "Be brief."), ("user", "Hi")),
        chat(("user", " a "), ("assistant", "b\n"), ("user", "")),
        chat(("system", ""), ("user", "x"), ("assistant", "y"), ("user", "世界 <|im_end|>")),
    ):
        for prompt in (False, True):
            expected, _ = render_jinja_template(
                [messages],
                chat_template=smollm2_tokenizer.chat_template,
                add_generation_prompt=prompt,
            )
            assert smollm2_tokenizer.render(messages, add_generation_prompt=prompt) == expected[0]
            assert join(cut, messages, prompt) == expected[0]
