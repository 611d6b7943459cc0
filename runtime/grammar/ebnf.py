"""GBNF as Lark, character by character.

GBNF has no lexer: ``word "a"`` with ``word ::= [a-z]+`` matches "banana". llguidance's lexer would
let `word` take all of it. So every terminal that is made here is one character, and the parser
decides the rest.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from branchline.errors import InvalidRequest

_PART = re.compile(
    r"""(?P<space>\s+|\#[^\n]*)
    | (?P<rule>[\w-]+)\s*::=
    | (?P<name>[\w-]+)
    | (?P<text>"(?:\\.|[^"\\\n])*")
    | (?P<chars>\[(?:\\.|[^]\\\n])+\])
    | (?P<any>\.)
    | (?P<repeat>[*+?]|\{\s*\d+\s*(?:,\s*\d*\s*)?\})
    | (?P<or>\|)
    | (?P<open>\()
    | (?P<close>\))
    """,
    re.VERBOSE | re.ASCII,
)
_CHAR = re.compile(
    r"""\\(?:x(?P<x>[0-9a-fA-F]{2})|u(?P<u>[0-9a-fA-F]{4})|U(?P<U>[0-9a-fA-F]{8})|(?P<named>.))
    | (?P<plain>[^\\])""",
    re.VERBOSE | re.DOTALL,
)
_NAMED = {"n": "\n", "r": "\r", "t": "\t"} | {char: char for char in '\\"[]-^/'}
_SHOWN = 20  # characters of a source in an error


def lark_of_ebnf(source: str) -> str:
    """The same grammar in llguidance's dialect of Lark; `root` is its start.

    Raises:
        InvalidRequest: a syntax error, a rule that is missing or there twice.
    """
    lark = _Lark()
    at = 0
    while at < len(source):
        part = _PART.match(source, at)
        if part is None:
            line = source.count("\n", 0, at) + 1
            raise InvalidRequest(f"line {line}: not GBNF at {source[at : at + _SHOWN]!r}")
        kind = part.lastgroup
        assert kind is not None, "every alternative is a group"
        lark.add(kind, part[kind])
        at = part.end()
    return lark.finish()


@dataclass(slots=True)
class _Lark:
    """The translation so far."""

    out: list[str] = field(default_factory=list)
    rules: dict[str, int] = field(default_factory=dict)  # a name and its number
    defined: set[str] = field(default_factory=set)
    depth: int = 0  # of parentheses
    empty: bool = True  # whether nothing stands in the current alternative yet

    def add(self, kind: str, text: str) -> None:
        """One part of the source."""
        match kind:
            case "space":
                return
            case "rule":
                self._rule(text)
                return
            case _ if not self.defined:
                raise InvalidRequest(f'it begins with {text!r} and not with a rule, as "root ::="')
            case "name":
                self.out.append(self._name(text))
            case "text":
                self.out.append(f"({' '.join(map(_literal, _chars(text[1:-1]))) or _EMPTY})")
            case "chars":
                self.out.append(_class(text))
            case "any":
                self.out.append("/(?s:.)/")
            case "repeat":
                if self.empty:
                    raise InvalidRequest(f"{text!r} follows nothing that it could repeat")
                self.out.append("".join(text.split()))
            case "open":
                self.depth += 1
                self.out.append("(")
            case "or" | "close":
                self._end_alternative(text)
        self.empty = kind in {"open", "or"}

    def finish(self) -> str:
        """The whole text."""
        self._end_rule()
        missing = [name for name in ("root", *self.rules) if name not in self.defined]
        if missing:
            raise InvalidRequest(f"there is no rule {missing[0]!r}")
        return " ".join(["%llguidance {}\nstart:", self._name("root"), *self.out])

    def _rule(self, name: str) -> None:
        self._end_rule()
        if name in self.defined:
            raise InvalidRequest(f"there are two rules {name!r}")
        self.defined.add(name)
        self.out.append(f"\n{self._name(name)}:")
        self.empty = True

    def _end_rule(self) -> None:
        if self.defined:
            self._end_alternative("")
        if self.depth > 0:
            raise InvalidRequest("a parenthesis is not closed")

    def _end_alternative(self, text: str) -> None:
        if self.empty:
            self.out.append(_EMPTY)
        if text == ")":
            self.depth -= 1
            if self.depth < 0:
                raise InvalidRequest("a parenthesis is closed that was not opened")
        self.out.append(text)

    def _name(self, name: str) -> str:
        return f"r{self.rules.setdefault(name, len(self.rules))}"


_EMPTY = '""'


def _chars(text: str) -> list[str]:
    """The characters that a literal or a class spells, escapes resolved."""
    found = []
    for part in _CHAR.finditer(text):
        kind = part.lastgroup
        assert kind is not None, "every alternative is a group"
        found.append(_char(kind, part[kind]))
    return found


def _char(kind: str, text: str) -> str:
    if kind == "plain":
        return text
    if kind == "named":
        if text not in _NAMED:
            raise InvalidRequest(f"there is no escape \\{text}")
        return _NAMED[text]
    code = int(text, 16)
    if code > 0x10FFFF or 0xD800 <= code < 0xE000:
        raise InvalidRequest(f"\\{kind}{text} is no character")
    return chr(code)


def _literal(char: str) -> str:
    return f"/{_hex(char)}/"


def _class(text: str) -> str:
    """A class, every character as its number; a minus between two makes a range of them."""
    inner = text[1:-1]
    negated = inner.startswith("^")
    parts: list[str] = []
    for part in _CHAR.finditer(inner[1:] if negated else inner):
        kind = part.lastgroup
        assert kind is not None, "every alternative is a group"
        ranges = part.group() == "-" and parts and "-" not in parts[-1:]
        parts.append("-" if ranges else _hex(_char(kind, part[kind])))
    if parts and parts[-1] == "-":
        parts[-1] = _hex("-")
    return f"/[{'^' if negated else ''}{''.join(parts)}]/"


def _hex(char: str) -> str:
    return f"\\x{{{ord(char):x}}}"
