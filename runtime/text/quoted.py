"""Text that remembers, character by character, what in it is quoted and what is a template's own.

A template may cut, join, test and change what it quotes. So each quoted character is written as
another one, from a range that no text uses, and goes wherever the template takes it::

    "<b> " + quote("<i>")     is     "<b> " + "□△○"      and reads as     "<b> <i>"

White space, quotation marks, backslashes and control characters stand for themselves, because
templates strip the first and JSON escapes the others. No special token is made of those alone.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Self, SupportsIndex

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from branchline.protocol import Prompt

_FIRST, _LAST = 0xF0000, 0x10FFFD  # the two planes for private use
_ITSELF = r'[\s"\\\x00-\x1f]'
_MARK = f"[{chr(_FIRST)}-{chr(_LAST)}]"
_QUOTED_RUN = re.compile(f"{_MARK}+(?:{_ITSELF}+{_MARK}+)*")
_stands_for_itself = re.compile(_ITSELF).match


class _Forth(dict[int, int]):
    """The mark of each character, made when it is first asked for."""

    def __init__(self, back: _Back) -> None:
        super().__init__()
        self._back = back
        self._next = _FIRST

    def __missing__(self, char: int) -> int:
        if _stands_for_itself(chr(char)):
            self[char] = char
            return char
        if self._next > _LAST:
            raise ValueError(f"more than {_LAST - _FIRST + 1} different characters")
        mark = self[char] = self._next
        self._back[mark] = char
        self._next += 1
        return mark


class _Back(dict[int, int]):
    """The character of each mark; what is no mark stands for itself."""

    def __missing__(self, char: int) -> int:
        self[char] = char
        return char


class Alphabet:
    """The marks of one rendering."""

    def __init__(self) -> None:
        self._back = _Back()
        self._forth = _Forth(self._back)

    def quote(self, value: Any) -> Any:
        """The same plain data with every text in it quoted, keys too."""
        if isinstance(value, str):
            return Quoted(self.mark(value), self)
        if isinstance(value, dict):
            return {self.quote(key): self.quote(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.quote(item) for item in value]
        return value

    def mark(self, text: str) -> str:
        """The text in marks."""
        return text.translate(self._forth)

    def read(self, text: str) -> str:
        """What a text with marks reads as."""
        return str.translate(text, self._back)

    def pieces(self, text: str) -> Prompt:
        """A text with marks as a prompt: what is quoted is program text, the rest template."""
        return tuple(self._pieces(text))

    def _pieces(self, text: str) -> Iterator[Any]:
        end = 0
        for run in _QUOTED_RUN.finditer(text):
            if run.start() > end:
                yield "template", text[end : run.start()]
            yield "program", self.read(run.group())
            end = run.end()
        if end < len(text):
            yield "template", text[end:]


def concat(parts: Iterable[str]) -> str:
    """The parts as one text, which remembers what is quoted in it."""
    kept = list(parts)
    joined = "".join(kept)
    alphabet = next((part.alphabet for part in kept if isinstance(part, Quoted)), None)
    return joined if alphabet is None else Quoted(joined, alphabet)


def _asked(ask: Callable[..., Any]) -> Any:
    """A method of a text that asks what it reads as."""

    def method(self: Quoted, *arguments: Any) -> Any:
        return ask(self._plain, *map(_plain, arguments))

    return method


def _changed(change: Callable[[str], str]) -> Any:
    """A method that makes another text of it, quoted where this one is."""

    def method(self: Quoted) -> Quoted:
        plain = change(self._plain)
        marked = self.alphabet.mark(plain)
        if len(plain) == len(self):
            places = zip(self._plain, str.__iter__(self), plain, marked, strict=True)
            marked = "".join(new if old == mark else to for old, mark, new, to in places)
        return Quoted(marked, self.alphabet)

    return method


class Quoted(str):
    """A text with marks that answers like the text it reads as, as far as templates ask.

    An operation that is not here works on the marks: nothing quoted is ever taken for a template's
    own, and a different answer shows when the results are compared.
    """

    __slots__ = ("_plain", "alphabet")

    alphabet: Alphabet
    _plain: str

    def __new__(cls, marked: str, alphabet: Alphabet) -> Self:
        """`marked`, which is written in marks of `alphabet`."""
        made = super().__new__(cls, marked)
        made.alphabet = alphabet
        made._plain = alphabet.read(marked)
        return made

    def __str__(self) -> str:
        return self

    # What it reads as

    __hash__: Any = _asked(str.__hash__)
    __eq__: Any = _asked(str.__eq__)
    __ne__: Any = _asked(str.__ne__)
    __lt__: Any = _asked(str.__lt__)
    __contains__: Any = _asked(str.__contains__)
    startswith: Any = _asked(str.startswith)
    endswith: Any = _asked(str.endswith)
    find: Any = _asked(str.find)
    rfind: Any = _asked(str.rfind)
    index: Any = _asked(str.index)
    count: Any = _asked(str.count)
    isdigit: Any = _asked(str.isdigit)
    isalpha: Any = _asked(str.isalpha)
    isspace: Any = _asked(str.isspace)

    # What becomes of it

    lower: Any = _changed(str.lower)
    upper: Any = _changed(str.upper)
    title: Any = _changed(str.title)
    capitalize: Any = _changed(str.capitalize)

    def __add__(self, other: str) -> str:
        return concat((self, other)) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: str) -> str:
        return concat((other, self)) if isinstance(other, str) else NotImplemented

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> str:
        """Quoted where this text is, and where `new` is."""
        if not old:
            return Quoted(str.replace(self, old, new, count), self.alphabet)
        parts = self.split(old, count)
        return concat(one for part in parts for one in (new, part))[len(new) :]

    # Its parts

    def __getitem__(self, at: SupportsIndex | slice[Any, Any, Any]) -> Quoted:
        return Quoted(super().__getitem__(at), self.alphabet)

    def __iter__(self) -> Iterator[str]:
        return (self[at] for at in range(len(self)))

    def strip(self, chars: str | None = None, /) -> Quoted:
        """Without white space, or `chars`, around it."""
        return self.lstrip(chars).rstrip(chars)

    def lstrip(self, chars: str | None = None, /) -> Quoted:
        """Without white space, or `chars`, before it."""
        return self[len(self) - len(self._plain.lstrip(_plain(chars))) :]

    def rstrip(self, chars: str | None = None, /) -> Quoted:
        """Without white space, or `chars`, after it."""
        return self[: len(self._plain.rstrip(_plain(chars)))]

    def removeprefix(self, prefix: str, /) -> Quoted:
        """Without `prefix`, if it begins so."""
        return self[len(self) - len(self._plain.removeprefix(_plain(prefix))) :]

    def removesuffix(self, suffix: str, /) -> Quoted:
        """Without `suffix`, if it ends so."""
        return self[: len(self._plain.removesuffix(_plain(suffix)))]

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[Any]:
        """The parts between separators."""
        return self._apart(self._plain.split(_plain(sep), maxsplit), sep)

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[Any]:
        """The parts between separators, looked for from the end."""
        return self._apart(self._plain.rsplit(_plain(sep), maxsplit), sep)

    def partition(self, sep: str, /) -> tuple[Any, Any, Any]:
        """What is before the first separator, the separator, the rest."""
        head, found, _ = self._plain.partition(_plain(sep))
        return self._three(len(head), len(found))

    def rpartition(self, sep: str, /) -> tuple[Any, Any, Any]:
        """What is before the last separator, the separator, the rest."""
        head, found, _ = self._plain.rpartition(_plain(sep))
        return self._three(len(head), len(found))

    def splitlines(self, keepends: bool = False) -> list[Any]:
        """The lines."""
        lines, start = [], 0
        for whole in self._plain.splitlines(keepends=True):
            shown = whole if keepends else whole.splitlines()[0]
            lines.append(self[start : start + len(shown)])
            start += len(whole)
        return lines

    def _three(self, start: int, length: int) -> tuple[Any, Any, Any]:
        end = start + length
        return self[:start], self[start:end], self[end:]

    def _apart(self, parts: list[str], sep: str | None) -> list[Any]:
        """The places of `parts`, which follow each other with `sep`, or white space, between."""
        cut: list[Quoted] = []
        end = 0
        for part in parts:
            between = len(sep) if sep is not None and cut else 0
            start = self._plain.index(part, end) if sep is None else end + between
            end = start + len(part)
            cut.append(self[start:end])
        return cut


def _plain(value: Any) -> Any:
    """What a text reads as; anything else as it is."""
    if isinstance(value, tuple):
        return tuple(_plain(item) for item in value)
    return value._plain if isinstance(value, Quoted) else value
