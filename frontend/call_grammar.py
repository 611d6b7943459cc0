"""How a model writes calls of functions, and the grammar that holds it to that.

A call is written as many instruct models learn it::

    <tool_call>
    {"name": "weather", "arguments": {"city": "Oslo"}}
    </tool_call>

Further calls follow on the next line. Text may come before the first one, if the model may also
answer itself; nothing comes after the last one but the end.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from branchline.constraint import checked

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from branchline.grammar import Grammar

BEGIN, END = "<tool_call>", "</tool_call>"
MAX_CALLS = 16  # in a text, so that one who repeats himself comes to an end


def call_grammar(schemas: Mapping[str, object], *, free: bool, several: bool) -> Grammar:
    """What a model may write.

    Args:
        schemas: of the arguments, as JSON Schema, by the functions that may be called.
        free: whether it may also answer itself, before the calls or in place of them.
        several: whether calls may follow each other.

    Raises:
        InvalidRequest: the schemas are too long.
    """
    begin = json.dumps(BEGIN)
    more = rf' ("\n" call){{0,{MAX_CALLS - 1}}}' if several else ""
    either = " | ".join(f"rest_{at}" for at in range(len(schemas)))
    lines = [f"call: {begin} rest", f"rest: {either}"]
    if free:
        lines += [f"start: TEXT | lead rest{more}", r"TEXT: /(.|\n)*/"]
        lines += [f"lead[lazy]: TEXT {begin}"]
    else:
        lines += [f"start: call{more}"]
    tail = json.dumps("}\n" + END)
    for at, (name, schema) in enumerate(schemas.items()):
        head = json.dumps(f'\n{{"name": {json.dumps(name)}, "arguments": ')
        lines += [f"rest_{at}: {head} args_{at} {tail}", f"args_{at}: %json {json.dumps(schema)}"]
    return checked("lark", "\n".join(lines))


def manual(functions: Iterable[Mapping[str, object]]) -> str:
    """What to tell a model whose template knows of no tools: what it may call, and how.

    Args:
        functions: each with its "name", "description" and "parameters", a JSON Schema.
    """
    lines = "\n".join(json.dumps(function, ensure_ascii=False) for function in functions)
    example = f'{BEGIN}\n{{"name": <function>, "arguments": {{<name>: <value>, …}}}}\n{END}'
    return (
        f"You can call these functions:\n{lines}\n"
        f"To call one, write\n{example}\n"
        "and nothing after it but further calls. The results come in the next message."
    )
