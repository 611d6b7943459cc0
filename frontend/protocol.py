"""The wire protocol: frozen dataclasses, msgpack, everything that arrives validated here.

A message travels as one msgpack map whose `type` names the dataclass. The first message of a client
is `Hello`, the runtime answers with `Greeting`; both carry the protocol's version. An rid is unique
per connection.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar

import msgpack
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from branchline.errors import ProtocolError
from branchline.hints import Branch, Hints, check_branch, check_program
from branchline.runtime_info import RequestView, RuntimeInfo, TreeNode  # noqa: TC001, for pydantic
from branchline.sampling_params import SamplingParams

M = TypeVar("M")

PROTOCOL_VERSION = 3
MAX_MESSAGE_BYTES = 64 * 1024 * 1024

_FORBID_EXTRA = ConfigDict(extra="forbid")
_IGNORE_EXTRA = ConfigDict(extra="ignore")

# A part of a prompt: ("template", text) is parsed for special tokens, ("program", text) never is,
# ("tokens", ids) is what a model produced. Neighbouring text is joined before it is tokenized.
TemplatePiece = tuple[Literal["template"], str]
ProgramPiece = tuple[Literal["program"], str]
TokensPiece = tuple[Literal["tokens"], tuple[int, ...]]
Piece = TemplatePiece | ProgramPiece | TokensPiece
Prompt = tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages that the model's own chat template renders, all of them together.

    A message is plain data as chat APIs have it: role, content, and where the template knows them
    name, tool_calls and tool_call_id. What it says is never parsed for special tokens.
    """

    __pydantic_config__ = _FORBID_EXTRA
    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] = ()
    goes_on: bool = False  # the last message, the assistant's, is continued


# ---------------------------------------------------------------------------- client to runtime


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message of a connection.

    Fields of a later version are ignored, so that the refusal can name both versions.
    """

    __pydantic_config__ = _IGNORE_EXTRA
    version: int
    client: str = ""  # a name for the log
    type: Literal["hello"] = "hello"


@dataclass(frozen=True, slots=True)
class Generate:
    """Continue a prompt. Answered by updates, one with a finish for each choice, or a failure."""

    __pydantic_config__ = _FORBID_EXTRA
    rid: str
    prompt: Prompt = ()
    params: SamplingParams = field(default_factory=SamplingParams)
    stream: bool = True  # False: one update per choice, at its end
    cache_salt: str | None = None
    program: str | None = None  # the run this request belongs to; unique on the connection
    priority: int = 0  # higher is admitted first
    timeout: float | None = None  # seconds after arrival: then it fails with code `timeout`
    hints: Hints | None = None
    conversation: Conversation | None = None  # in place of a prompt
    type: Literal["generate"] = "generate"


@dataclass(frozen=True, slots=True)
class Score:
    """The log-likelihood of each choice after a prompt. Answered by `Scored` or a failure."""

    __pydantic_config__ = _FORBID_EXTRA
    rid: str
    prompt: Prompt
    choices: tuple[str, ...]
    unconditional: bool = False  # also without the prompt
    cache_salt: str | None = None
    program: str | None = None
    priority: int = 0
    timeout: float | None = None
    hints: Hints | None = None
    type: Literal["score"] = "score"


@dataclass(frozen=True, slots=True)
class Abort:
    """End a request. A live one answers with a failure `aborted`; an unknown rid is ignored."""

    __pydantic_config__ = _FORBID_EXTRA
    rid: str
    type: Literal["abort"] = "abort"


@dataclass(frozen=True, slots=True)
class Ended:
    """A program, or a branch of it with those below, asks for nothing more.

    Advice like `Hints`: nothing is answered, what is live goes on, and what is not known is
    ignored.

    Raises:
        ValueError: the program or the branch breaks a rule.
    """

    __pydantic_config__ = _FORBID_EXTRA
    program: str
    branch: Branch = ()
    type: Literal["ended"] = "ended"

    def __post_init__(self) -> None:
        check_program(self.program)
        check_branch(self.branch)


@dataclass(frozen=True, slots=True)
class Flush:
    """Drop every cached prefix that no request holds."""

    __pydantic_config__ = _FORBID_EXTRA
    rid: str
    type: Literal["flush"] = "flush"


@dataclass(frozen=True, slots=True)
class Info:
    """Ask what the runtime is doing."""

    __pydantic_config__ = _FORBID_EXTRA
    rid: str
    type: Literal["info"] = "info"


@dataclass(frozen=True, slots=True)
class Inspect:
    """Ask for a picture of the tree and of the requests."""

    __pydantic_config__ = _FORBID_EXTRA
    rid: str
    nodes: int = 2000  # at most this many nodes of the tree, the largest
    type: Literal["inspect"] = "inspect"


@dataclass(frozen=True, slots=True)
class Ping:
    """A heartbeat; `seen`, the messages received so far, bounds the client's backlog."""

    __pydantic_config__ = _FORBID_EXTRA
    seen: int = 0
    type: Literal["ping"] = "ping"


@dataclass(frozen=True, slots=True)
class Bye:
    """The client leaves; its requests are aborted."""

    __pydantic_config__ = _FORBID_EXTRA
    type: Literal["bye"] = "bye"


# ---------------------------------------------------------------------------- runtime to client


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A model's chat template, cut at its contents: a turn is `prefix + content + suffix`."""

    __pydantic_config__ = _FORBID_EXTRA
    prefix: dict[str, str]  # by role: system, user, assistant; what is missing is refused
    suffix: dict[str, str]
    # What a template puts before a conversation without a system turn: often a whole one
    default_system: str | None = None
    stop: tuple[str, ...] = ()  # stop strings every generation gets (named templates only)


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What a client needs to know of the model that is served."""

    __pydantic_config__ = _FORBID_EXTRA
    name: str
    vocab_size: int
    context_length: int  # prompt and output together
    stop_token_ids: tuple[int, ...]
    chat_template: ChatTemplate | None = None
    # Fields of SamplingParams as the model's authors recommend them, for who asks for that
    generation_defaults: dict[str, int | float] = field(default_factory=dict)
    takes_tools: bool = False  # the chat template of its own shows tools, and calls of them


@dataclass(frozen=True, slots=True)
class Greeting:
    """The runtime's answer to `Hello`."""

    __pydantic_config__ = _FORBID_EXTRA
    version: int
    model: ModelCard
    heartbeat: float = 2.0  # seconds between pings
    type: Literal["greeting"] = "greeting"


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token with its log-probability; None for the first of a prompt, which has no context."""

    __pydantic_config__ = _FORBID_EXTRA
    logprob: float | None
    token: int
    top: tuple[tuple[float, int], ...] = ()  # (logprob, token), most likely first
    # What they read as, if asked: `bytes:\xe2\x80` where that is no text by itself. A backend that
    # tells texts and no ids has -1 for those.
    text: str | None = None
    top_texts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """What a choice cost, in tokens."""

    __pydantic_config__ = _FORBID_EXTRA
    prompt_tokens: int
    cached_tokens: int  # of the prompt, found in the tree and not computed
    completion_tokens: int
    forced_tokens: int = 0  # of the completion, taken from the grammar without being sampled
    recalled_tokens: int = 0  # of the prompt: ids the model wrote, sent back as text


@dataclass(frozen=True, slots=True)
class Finish:
    """Why and how a choice ended."""

    __pydantic_config__ = _FORBID_EXTRA
    reason: Literal["stop", "length"]
    matched: str | int | None = None  # the stop string or the stop id
    # What the generation adds to a state: its first `kept` ids, then `tail` as program text.
    kept: int = 0
    tail: str = ""
    seed: int = 0  # the seed that was used
    note: str = ""  # where two wishes could not both be met, which one was: for people to read


@dataclass(frozen=True, slots=True)
class Update:
    """What is new in one choice of one request: never takes back what an earlier update said."""

    __pydantic_config__ = _FORBID_EXTRA
    rid: str
    index: int = 0  # of the choice
    text: str = ""
    ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()  # one for each id, if asked
    prompt_logprobs: tuple[TokenLogprob, ...] = ()  # in the first update that has them
    # max_tokens=0 with top_logprobs: the next position's
    next_top: tuple[tuple[float, int], ...] = ()
    finish: Finish | None = None
    usage: Usage | None = None  # with the finish


@dataclass(frozen=True, slots=True)
class Outputs:
    """All that one step produced for one client."""

    __pydantic_config__ = _FORBID_EXTRA
    updates: tuple[Update, ...]
    type: Literal["outputs"] = "outputs"


@dataclass(frozen=True, slots=True)
class ChoiceScore:
    """The tokens of one choice after the prompt, with their logprobs."""

    __pydantic_config__ = _FORBID_EXTRA
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    # Without the prompt, if asked; the first has no context
    unconditional: tuple[float | None, ...] | None = None


@dataclass(frozen=True, slots=True)
class Scored:
    """The answer to `Score`, choices in the order of the request."""

    __pydantic_config__ = _FORBID_EXTRA
    rid: str
    choices: tuple[ChoiceScore, ...]
    usage: Usage
    type: Literal["scored"] = "scored"


@dataclass(frozen=True, slots=True)
class Flushed:
    """The answer to `Flush`."""

    __pydantic_config__ = _FORBID_EXTRA
    rid: str
    pages: int  # that became free
    type: Literal["flushed"] = "flushed"


@dataclass(frozen=True, slots=True)
class InfoReply:
    """The answer to `Info`."""

    __pydantic_config__ = _FORBID_EXTRA
    rid: str
    info: RuntimeInfo
    type: Literal["info_reply"] = "info_reply"


@dataclass(frozen=True, slots=True)
class Inspection:
    """The answer to `Inspect`: parents come before their children."""

    __pydantic_config__ = _FORBID_EXTRA
    rid: str
    nodes: tuple[TreeNode, ...]
    total_nodes: int
    requests: tuple[RequestView, ...]  # running first, then the next in line; at most 1,000
    info: RuntimeInfo
    type: Literal["inspection"] = "inspection"


@dataclass(frozen=True, slots=True)
class Pong:
    """The runtime's heartbeat."""

    __pydantic_config__ = _FORBID_EXTRA
    type: Literal["pong"] = "pong"


FailureCode = Literal["invalid", "aborted", "timeout", "overloaded", "protocol", "internal"]


@dataclass(frozen=True, slots=True)
class Failure:
    """A request, or with no rid a frame, that was refused or ended without an answer."""

    __pydantic_config__ = _FORBID_EXTRA
    rid: str | None
    code: FailureCode
    message: str
    type: Literal["failure"] = "failure"


ClientMessage = Hello | Generate | Score | Abort | Ended | Flush | Info | Inspect | Ping | Bye
RuntimeMessage = Greeting | Outputs | Scored | Flushed | InfoReply | Inspection | Pong | Failure

_client_messages: TypeAdapter[ClientMessage] = TypeAdapter(
    Annotated[ClientMessage, Field(discriminator="type")]
)
_runtime_messages: TypeAdapter[RuntimeMessage] = TypeAdapter(
    Annotated[RuntimeMessage, Field(discriminator="type")]
)


def encode_client(message: ClientMessage) -> bytes:
    """The frame of a message from a client.

    Raises:
        ProtocolError: it cannot travel: half a surrogate pair in a text, an integer beyond 64 bits,
            a hint that is not plain data, more than MAX_MESSAGE_BYTES.
    """
    try:
        frame = bytes(msgpack.packb(_client_messages.dump_python(message)))
    except (ValueError, TypeError, OverflowError) as error:
        raise ProtocolError(f"a {message.type} message that cannot be sent: {error}") from None
    _bound(frame)
    return frame


def encode_runtime(message: RuntimeMessage) -> bytes:
    """The frame of a message from the runtime."""
    return bytes(msgpack.packb(_runtime_messages.dump_python(message)))


def decode_client(frame: bytes) -> ClientMessage:
    """The message in a frame that a client sent.

    Raises:
        ProtocolError: the frame is too large, not msgpack, no known message, or breaks a rule.
    """
    _bound(frame)
    return _decode(frame, _client_messages)


def decode_runtime(frame: bytes) -> RuntimeMessage:
    """The message in a frame that the runtime sent, of any size: a client trusts its runtime.

    Raises:
        ProtocolError: the frame is not msgpack, not a known message, or breaks a field's rule.
    """
    return _decode(frame, _runtime_messages)


def rid_of(frame: bytes) -> str | None:
    """The rid in a frame that may not be valid, so that the answer to it can name the request."""
    try:
        raw = _unpack(frame)
    except ProtocolError:
        return None
    rid = raw.get("rid") if isinstance(raw, dict) else None
    return rid if isinstance(rid, str) else None


def _decode(frame: bytes, adapter: TypeAdapter[M]) -> M:
    try:
        return adapter.validate_python(_unpack(frame))
    except ValidationError as error:
        raise ProtocolError(_explain(error)) from None


def _bound(frame: bytes) -> None:
    if len(frame) > MAX_MESSAGE_BYTES:
        raise ProtocolError(f"a frame of {len(frame)} bytes; at most {MAX_MESSAGE_BYTES}")


def _unpack(frame: bytes) -> Any:
    try:
        return msgpack.unpackb(frame, use_list=False, strict_map_key=False)
    # TypeError: a map in place of a key
    except (ValueError, TypeError, msgpack.exceptions.UnpackException, RecursionError) as error:
        raise ProtocolError(f"a frame of {len(frame)} bytes that is not msgpack: {error}") from None


def _explain(error: ValidationError) -> str:
    """The first faults of a message, each as `field: rule`."""
    faults = []
    for fault in error.errors(include_url=False)[:3]:
        where = ".".join(str(part) for part in fault["loc"]) or "message"
        faults.append(f"{where}: {fault['msg']}")
    return "; ".join(faults)
