"""Python functions that a model may call: what they take, and a call of one."""

from __future__ import annotations

import inspect
import json
import typing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PydanticSchemaGenerationError,
    PydanticUserError,
    TypeAdapter,
    ValidationError,
    create_model,
)

from branchline.call_grammar import BEGIN, END
from branchline.docstring import described
from branchline.errors import InvalidRequest
from branchline.schema_of import described_schema, schema_of
from branchline.typed import explain

if TYPE_CHECKING:
    from collections.abc import Callable

_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True, slots=True)
class Tool:
    """A function, by its name, its docstring and its type hints.

    Attributes:
        name: the function's.
        description: what its docstring says before the first section.
        parameters: the JSON Schema of its arguments, with what the docstring's Args say of each.
        function: what is called.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    function: Callable[..., Any]
    _arguments: TypeAdapter[BaseModel] = field(repr=False, compare=False)

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Tool:
        """The tool that a function is.

        Raises:
            InvalidRequest: it has no name, a parameter has no type hint, or its values cannot be
                read from JSON.
        """
        name = getattr(function, "__name__", "")
        if not (callable(function) and name.isidentifier() and name.isascii()):
            raise InvalidRequest(f"tools: {function!r} is no function with a plain name; use def")
        description, told = described(function)
        arguments = _adapter(name, function, told)
        return cls(name, description, described_schema(arguments), function, arguments)

    def written(self, **arguments: Any) -> str:
        """How a call of it reads, for a worked example.

        Raises:
            InvalidRequest: it does not take these arguments.
        """
        said = self._arguments.dump_json(self._read(arguments), by_alias=True, exclude_unset=True)
        call = {"name": self.name, "arguments": json.loads(said)}
        return f"{BEGIN}\n{json.dumps(call, ensure_ascii=False)}\n{END}"

    @property
    def enforced(self) -> dict[str, Any]:
        """The schema that a model's arguments are held to."""
        return schema_of(self._arguments)

    def arguments(self, said: object) -> dict[str, Any]:
        """What a model said as values of the parameters' types.

        Raises:
            InvalidRequest: it is none.
        """
        read = self._read(said)
        fields = type(read).model_fields.items()
        return {str(f.alias): getattr(read, at) for at, f in fields if at in read.model_fields_set}

    def _read(self, said: object) -> BaseModel:
        try:
            return self._arguments.validate_python(said)
        except ValidationError as error:
            raise InvalidRequest(f"{self.name}: {explain(error)}") from None


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that a model wrote.

    Attributes:
        name: of the function.
        arguments: by name, as values of the types in its hints.
        tool: the function and what is known of it.
    """

    name: str
    arguments: dict[str, Any]
    tool: Tool = field(repr=False)

    def run(self) -> Any:
        """What the function returns; of an async one, what is to be awaited."""
        return self.tool.function(**self.arguments)


def _adapter(
    name: str, function: Callable[..., Any], told: dict[str, str]
) -> TypeAdapter[BaseModel]:
    """What reads the arguments: an object with a member for each parameter and no others."""
    hints = _hints(name, function)
    fields: dict[str, Any] = {}
    for at, parameter in enumerate(inspect.signature(function).parameters.values()):
        label = f"tools: {name}({parameter.name})"
        if parameter.kind not in _BY_NAME:
            raise InvalidRequest(f"{label}: a model calls by name, so not * nor / parameters")
        if parameter.name not in hints:
            raise InvalidRequest(f"{label}: needs a type hint, for example {parameter.name}: str")
        _check(label, hints[parameter.name])
        needed = parameter.default is inspect.Parameter.empty
        fields[f"at_{at}"] = (  # a name of a model's own attribute would be refused
            hints[parameter.name],
            Field(
                ... if needed else parameter.default,
                alias=parameter.name,
                description=told.get(parameter.name),
            ),
        )
    return TypeAdapter(create_model(name, __config__=ConfigDict(extra="forbid"), **fields))


def _hints(name: str, function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise InvalidRequest(f"tools: {name}: a type hint that has no meaning: {error}") from None


def _check(label: str, hint: Any) -> None:
    try:
        TypeAdapter(hint).json_schema()
    except (PydanticSchemaGenerationError, PydanticUserError, TypeError) as error:
        why = str(error).partition("\n")[0]
        raise InvalidRequest(f"{label}: {hint!r} cannot be read from JSON: {why}") from None
