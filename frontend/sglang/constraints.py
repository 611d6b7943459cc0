"""What a backend leaves to be watched over: a `stop_regex`, and the promises that it cannot keep.

A runtime holds its model to `dtype`, `regex` and `json_schema`. A model that somebody else serves
is only asked, so there a text that has ended is checked, and one that is not as promised is an
error with the text in it. A text that `max_tokens` cut is not checked: a constrained one would be
cut as well.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING

from branchline.errors import BranchlineError
from branchline.protocol import Finish
from branchline.sglang.params import BY_DTYPE

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from branchline.protocol import Update
    from branchline.sglang.params import Params

SHOWN_CHARS = 200


class NotAsPromised(BranchlineError, ValueError):
    """A generated text breaks the `dtype`, `regex` or `json_schema` of its gen."""


async def watched(
    updates: AsyncGenerator[Update, None], params: Params, *, checks: bool
) -> AsyncGenerator[Update, None]:
    """The updates of a generation, ended where a `stop_regex` matches, and checked if asked.

    Raises:
        NotAsPromised: a choice has ended with another text than its gen asks for.
    """
    texts: defaultdict[int, str] = defaultdict(str)
    ended: set[int] = set()
    async with aclosing(updates):
        async for update in updates:
            if update.index in ended:
                continue
            shown = _cut(texts[update.index], update, params)
            texts[update.index] += shown.text
            if shown.finish is not None:
                ended.add(update.index)
                if checks and shown.finish.reason == "stop":
                    check(texts[update.index], params)
            yield shown
            if len(ended) == params.n:
                return


def check(text: str, params: Params) -> None:
    """Raise NotAsPromised if a text is not what its gen asks for."""
    if params.dtype is not None:
        _check_match(text, BY_DTYPE[params.dtype], f"dtype={params.dtype}")
    elif params.regex is not None:
        _check_match(text, params.regex, f"regex={params.regex!r}")
    elif params.json_schema is not None:
        try:
            json.loads(text)
        except ValueError as error:
            raise NotAsPromised(
                f"json_schema: the model wrote {text[:SHOWN_CHARS]!r}, which is not JSON: {error}"
            ) from None


def _check_match(text: str, pattern: str, asked: str) -> None:
    if re.fullmatch(pattern, text) is None:
        raise NotAsPromised(
            f"{asked}: the model wrote {text[:SHOWN_CHARS]!r}, which does not match; nothing "
            "holds this endpoint's model to it"
        )


def _cut(before: str, update: Update, params: Params) -> Update:
    """An update that ends where a `stop_regex` matches, if one does.

    The state gets the text itself then: which of the ids are wholly before the end is not known.
    """
    text = before + update.text
    found = [(match.end(), p) for p in params.stop_regex if (match := re.search(p, text))]
    if not found:
        return update
    end, pattern = min(found)
    end = max(end, len(before))
    finish = Finish("stop", pattern, 0, text[:end], params.seed or 0)
    return replace(update, text=text[len(before) : end], finish=finish)
