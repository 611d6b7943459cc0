"""From a client's message to requests for the loop: what a user can get wrong ends here."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from branchline.hints import Hints, check_program
from branchline.runtime.constraint import Constraint, Wishes
from branchline.runtime.deadlines import check_timeout
from branchline.runtime.gather import Generation, Scoring
from branchline.runtime.policy import MOST_PRIORITY
from branchline.runtime.reports import begin
from branchline.runtime.request import Origin, Request
from branchline.runtime.text import TextStream, chars_in
from branchline.sampling_params import MAX_CHOICES, SamplingParams
from branchline.seeds import derive_seed

if TYPE_CHECKING:
    from branchline.protocol import Generate, ModelCard, Prompt, Score
    from branchline.runtime.grammar import CompiledGrammar
    from branchline.runtime.recall import Recall
    from branchline.runtime.text import Tokenizer

# No vocabulary in use has a longer token. A prompt with more than that for each token of context
# is refused unread: tokenizing 64 MiB would keep everybody else waiting.
MAX_TOKEN_CHARS = 256


@dataclass(frozen=True, slots=True)
class Admission:
    """Checks messages against the model and makes them jobs. Breaking a rule raises ValueError."""

    tokenizer: Tokenizer
    card: ModelCard  # its context_length is what fits here
    recall: Recall | None = None  # of earlier answers, in conversations

    def generation(self, client: bytes, message: Generate) -> Generation:
        """A request for each of the `n` choices."""
        _check_turn(message)
        origin = _origin(message)
        params = message.params
        params.check_vocabulary(self.card.vocab_size)
        pieces, recalled = self._prompt(message)
        prompt = self._encode(pieces)
        self._check_logprob_start(params, len(prompt))
        params = _clamped(params, self.card.context_length - len(prompt))
        stop_ids = frozenset(params.stop_token_ids)
        # A grammar decides where EOS may be: `ignore_eos` is then only not to want it.
        if params.grammar is not None or not params.ignore_eos:
            stop_ids |= frozenset(self.card.stop_token_ids)
        seed = secrets.randbits(63) if params.seed is None else params.seed
        requests = [
            Request(
                prompt=prompt,
                params=params,
                seed=seed if params.n == 1 else derive_seed(seed, index),
                text=TextStream(self.tokenizer, prompt, params, stop_ids),
                stop_ids=stop_ids,
                rid=message.rid,
                index=index,
                client=client,
                stream=message.stream,
                salt=message.cache_salt,
                priority=message.priority,
                timeout=message.timeout,
                recalled_tokens=recalled,
                origin=origin if index == 0 else None,  # a program goes on from the first
            )
            for index in range(params.n)
        ]
        text_of = self.tokenizer.token_texts() if params.logprob_texts else None
        recall = None if message.conversation is None else self.recall
        remember = None if recall is None else recall.remember
        return Generation(client, message.rid, requests, text_of, remember)

    def constrain(self, job: Generation, grammar: CompiledGrammar) -> None:
        """Let the requests of a job that the loop does not have yet follow a grammar."""
        first = job.requests[0]
        if not self.card.stop_token_ids:
            raise ValueError("this model has no end-of-sequence token, so no grammar could end")
        if first.params.max_tokens:
            wishes = Wishes(
                first.params,
                eos=frozenset(self.card.stop_token_ids),
                stop_ids=first.stop_ids,
                vocab_size=self.card.vocab_size,
            )
            begin(job.requests, Constraint(grammar.start(), wishes))

    def scoring(self, client: bytes, message: Score) -> Scoring:
        """A request for each choice, and if asked another for the choice without the prompt."""
        _check_turn(message)
        origin = _origin(message)
        if not message.choices:
            raise ValueError("choices is empty: name at least one")
        if len(message.choices) > MAX_CHOICES:
            raise ValueError(f"{len(message.choices)} choices: at most {MAX_CHOICES}")
        self._encode(message.prompt)  # its faults are named before those of a choice
        sequences = [  # (ids, from where on they are scored)
            self._encode_choice(message.prompt, choice) for choice in message.choices
        ]
        if message.unconditional:
            sequences += [(ids[start:], 0) for ids, start in sequences]
        requests = [
            self._prefill(client, message, index, ids, start)
            for index, (ids, start) in enumerate(sequences)
        ]
        if origin is not None:
            requests[0].origin = replace(origin, goes_on_at=sequences[0][1])
        return Scoring(client, message.rid, requests, len(message.choices))

    def _prompt(self, message: Generate) -> tuple[Prompt, int]:
        """What is asked to go on, and how many ids of earlier answers are in it.

        A conversation is what the model's template makes of it.
        """
        conversation = message.conversation
        if conversation is None:
            return message.prompt, 0
        if message.prompt:
            raise ValueError("a prompt and a conversation: send one of them")
        try:
            self._check_chars(chars_in(conversation.messages) + chars_in(conversation.tools))
            prompt = self.tokenizer.converse(conversation)
        except RecursionError:
            raise ValueError("the conversation is nested too deeply") from None
        return (prompt, 0) if self.recall is None else self.recall.apply(prompt, message.cache_salt)

    def _encode(self, prompt: Prompt) -> list[int]:
        """The ids of a prompt that leaves room for at least one more token."""
        self._check_chars(sum(len(content) for kind, content in prompt if kind != "tokens"))
        self._check_length("the prompt", sum(len(ids) for kind, ids in prompt if kind == "tokens"))
        ids = self.tokenizer.encode(prompt)
        self._check_length("the prompt", len(ids))
        return ids

    def _encode_choice(self, prompt: Prompt, choice: str) -> tuple[list[int], int]:
        self._check_chars(len(choice))
        ids, start = self.tokenizer.encode_choice(prompt, choice)
        assert 0 < start < len(ids), "a choice has tokens, and something before them"
        self._check_length(f"the prompt with the choice {choice!r}", len(ids))
        return ids, start

    def _prefill(
        self, client: bytes, message: Score, index: int, ids: list[int], start: int
    ) -> Request:
        params = SamplingParams(max_tokens=0, temperature=0.0, logprob_start=start)
        return Request(
            prompt=ids,
            params=params,
            seed=0,
            text=TextStream(self.tokenizer, ids, params, frozenset()),
            rid=message.rid,
            index=index,
            client=client,
            stream=False,
            salt=message.cache_salt,
            priority=message.priority,
            timeout=message.timeout,
        )

    def _check_chars(self, chars: int) -> None:
        context = self.card.context_length
        if chars > context * MAX_TOKEN_CHARS:
            raise ValueError(f"a text of {chars} characters: the context is {context} tokens")

    def _check_length(self, what: str, length: int) -> None:
        context = self.card.context_length
        if length >= context:
            raise ValueError(
                f"{what} has {length} tokens: the context is {context}, "
                f"prompt and output together; send at most {context - 1}"
            )

    def _check_logprob_start(self, params: SamplingParams, prompt_len: int) -> None:
        if params.logprob_start is not None and params.logprob_start >= prompt_len:
            raise ValueError(
                f"logprob_start={params.logprob_start}: the prompt has {prompt_len} tokens, "
                f"the last is {prompt_len - 1}"
            )


def _clamped(params: SamplingParams, room: int) -> SamplingParams:
    """The parameters with no more output than there is room for."""
    if params.max_tokens <= room:
        return params
    return replace(params, max_tokens=room, min_tokens=min(params.min_tokens, room))


def _origin(message: Generate | Score) -> Origin | None:
    check_program(message.program)
    if message.program is None and message.hints is None:
        return None
    hints = message.hints or Hints()
    if message.program is None and hints.branch:
        raise ValueError(f"branch={hints.branch}: of which program? Send its id as well")
    return Origin(message.program, hints)


def _check_turn(message: Generate | Score) -> None:
    if abs(message.priority) > MOST_PRIORITY:
        raise ValueError(
            f"priority={message.priority}: must be from {-MOST_PRIORITY} to {MOST_PRIORITY}"
        )
    check_timeout(message.timeout)
