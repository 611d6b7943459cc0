"""What an OpenAI-compatible endpoint answers, as updates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from branchline.errors import RequestAborted, RuntimeFailed
from branchline.protocol import Finish, TokenLogprob, Update, Usage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from branchline.protocol import Generate

UNKNOWN_TOKEN = -1


class Answers:
    """The choices of one request, of which the endpoint tells all at once or part by part."""

    def __init__(self, request: Generate, *, chat: bool) -> None:
        self._request = request
        self._chat = chat
        self._texts = [""] * request.params.n
        self._finishes: dict[int, Finish] = {}
        self._usage = Usage(0, 0, 0)

    def whole(self, answer: Mapping[str, Any]) -> Iterator[Update]:
        """One update for each choice, of an answer that is complete."""
        updates = list(self.part(answer))
        for update in updates:
            yield Update(
                update.rid,
                update.index,
                update.text,
                logprobs=update.logprobs,
                finish=self._finish(update.index),
                usage=self._usage_of(update.index),
            )

    def part(self, event: Mapping[str, Any]) -> Iterator[Update]:
        """What a part of the answer adds to the choices. The ends are kept for `ends`."""
        self._usage = _usage(event.get("usage")) or self._usage
        for choice in event.get("choices") or ():
            index = choice.get("index", 0)
            if not 0 <= index < len(self._texts):
                raise RuntimeFailed(f"the endpoint answers choice {index} of {len(self._texts)}")
            text = self._text(choice)
            self._texts[index] += text
            if choice.get("finish_reason"):
                self._finishes[index] = self._end(choice)
            logprobs = _logprobs(choice.get("logprobs") or {})
            if text or logprobs or index in self._finishes:
                yield Update(self._request.rid, index, text, logprobs=logprobs)

    def ends(self) -> Iterator[Update]:
        """The last update of each choice, when all has come: the usage comes last of all."""
        for index in range(len(self._texts)):
            yield Update(
                self._request.rid,
                index,
                finish=self._finish(index),
                usage=self._usage_of(index),
            )

    def _text(self, choice: Mapping[str, Any]) -> str:
        if self._chat:
            message = choice.get("delta") or choice.get("message") or {}
            if message.get("refusal"):
                raise RequestAborted(f"the model refuses to answer: {message['refusal']}")
            return message.get("content") or ""
        return choice.get("text") or ""

    def _end(self, choice: Mapping[str, Any]) -> Finish:
        reason = choice["finish_reason"]
        if reason == "content_filter":
            raise RequestAborted("the endpoint's content filter ended the answer")
        return Finish(
            "length" if reason == "length" else "stop",
            choice.get("stop_reason"),  # what was matched, of endpoints that tell
            seed=self._request.params.seed or 0,
        )

    def _finish(self, index: int) -> Finish:
        """The end of a choice: all that it wrote is the program's text from here on."""
        finish = self._finishes.get(index)
        if finish is None:
            raise RuntimeFailed(f"the endpoint never finished choice {index}")
        return Finish(finish.reason, finish.matched, 0, self._texts[index], finish.seed)

    def _usage_of(self, index: int) -> Usage:
        return self._usage if index == 0 else Usage(0, 0, 0)


def _usage(usage: Mapping[str, Any] | None) -> Usage | None:
    if not usage:
        return None
    details = usage.get("prompt_tokens_details") or {}
    return Usage(
        prompt_tokens=usage.get("prompt_tokens") or 0,
        cached_tokens=details.get("cached_tokens") or 0,
        completion_tokens=usage.get("completion_tokens") or 0,
    )


def _logprobs(logprobs: Mapping[str, Any]) -> tuple[TokenLogprob, ...]:
    """Those of the tokens, in the shape that chats have or in that of completions."""
    if logprobs.get("content"):
        return tuple(
            _logprob(
                token["logprob"],
                token["token"],
                {top["token"]: top["logprob"] for top in token.get("top_logprobs") or ()},
            )
            for token in logprobs["content"]
        )
    tokens = logprobs.get("tokens") or ()
    values = logprobs.get("token_logprobs") or ()
    tops = logprobs.get("top_logprobs") or [{}] * len(tokens)
    return tuple(
        _logprob(logprob, token, top or {})
        for logprob, token, top in zip(values, tokens, tops, strict=False)
    )


def _logprob(logprob: float, text: str, top: Mapping[str, float]) -> TokenLogprob:
    ranked = sorted(top.items(), key=lambda item: -item[1])
    return TokenLogprob(
        logprob,
        UNKNOWN_TOKEN,
        tuple((value, UNKNOWN_TOKEN) for _, value in ranked),
        text,
        tuple(token for token, _ in ranked),
    )
