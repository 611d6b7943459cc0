"""The roles of a conversation: whole turns, their beginnings and their ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from branchline.nodes import ExprList, RoleBegin, RoleEnd, as_node

if TYPE_CHECKING:
    from branchline.nodes import Node


def system(expr: str | Node | None = None) -> ExprList:
    """A system turn; an empty one without an expression."""
    return turn("system", expr)


def user(expr: str | Node | None = None) -> ExprList:
    """A user turn; an empty one without an expression."""
    return turn("user", expr)


def assistant(expr: str | Node | None = None) -> ExprList:
    """An assistant turn; an empty one without an expression."""
    return turn("assistant", expr)


def turn(role: str, expr: str | Node | None) -> ExprList:
    """A turn of any role."""
    content = () if expr is None else (as_node(expr),)
    return ExprList((RoleBegin(role), *content, RoleEnd(role)))


def system_begin() -> RoleBegin:
    """The start of a system turn."""
    return RoleBegin("system")


def system_end() -> RoleEnd:
    """The end of a system turn."""
    return RoleEnd("system")


def user_begin() -> RoleBegin:
    """The start of a user turn."""
    return RoleBegin("user")


def user_end() -> RoleEnd:
    """The end of a user turn."""
    return RoleEnd("user")


def assistant_begin() -> RoleBegin:
    """The start of an assistant turn."""
    return RoleBegin("assistant")


def assistant_end() -> RoleEnd:
    """The end of an assistant turn."""
    return RoleEnd("assistant")
