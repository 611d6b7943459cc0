"""A whole runtime put together: model, loop and service, without the socket."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from branchline.errors import InvalidRequest, ModelError
from branchline.runtime.admission import Admission
from branchline.runtime.compiling import LazyCompiler
from branchline.runtime.loop import Loop
from branchline.runtime.recall import Recall
from branchline.runtime.runner import CpuRunner
from branchline.runtime.service import Service
from branchline.runtime.sizing import size_memory
from branchline.runtime.streams import WorkerStream

if TYPE_CHECKING:
    from collections.abc import Callable

    from branchline.protocol import ModelCard, RuntimeMessage
    from branchline.runtime.compiling import Compiler
    from branchline.runtime.config import RuntimeConfig
    from branchline.runtime.models.load import Loaded
    from branchline.runtime.runner import Runner
    from branchline.runtime.sizing import Limits


@dataclass(frozen=True, slots=True)
class Assembly:
    """The parts of a runtime; its loop is not started yet."""

    service: Service
    loop: Loop
    card: ModelCard  # with the context that fits
    page_bytes: int

    def summary(self, address: str) -> str:
        """What is served where, and how much of it fits."""
        pages = self.loop.limits.pages - 1
        return (
            f"branchline: {self.card.name} at {address}\n"
            f"  context: {self.card.context_length:,} tokens, prompt and output together\n"
            f"  pool: {pages:,} pages, one token each, {pages * self.page_bytes / 2**20:,.0f} MiB"
        )


def assemble(
    config: RuntimeConfig,
    post: Callable[[bytes, RuntimeMessage], None],
    on_fatal: Callable[[BaseException], None],
) -> Assembly:
    """Load the model and build what serves it.

    Args:
        config: what to serve and how.
        post: sends a message to a client; called from the engine thread too, must not wait.
        on_fatal: told of a bug in the loop, after every live request was.

    Raises:
        ModelError: the model cannot be loaded.
        InvalidRequest: a setting does not fit the model or the memory.
    """
    ready = _on_cpu(config) if device_of(config) == "cpu" else _on_cuda(config)
    loaded, limits = ready.loaded, ready.limits
    card = replace(loaded.card, context_length=limits.max_context)
    recall = None if config.deterministic else Recall(loaded.tokenizer)
    service = Service(Admission(loaded.tokenizer, card, recall), config, post, _compiler(loaded))
    loop = Loop(
        ready.runner,
        config,
        limits,
        model_name=card.name,
        segment_cost=loaded.model.segment_cost,
        on_events=service.on_events,
        on_fatal=on_fatal,
    )
    service.attach(loop)
    return Assembly(service, loop, card, loaded.model.page_bytes)


def _compiler(loaded: Loaded) -> Compiler:
    def make() -> Compiler:
        # What grammars need is heavy, and most runtimes never see one.
        from branchline.runtime.grammar.compiler import GrammarCompiler
        from branchline.runtime.grammar.vocabulary import Vocabulary

        try:
            vocabulary = Vocabulary.of(loaded.tokenizer)
        except ModelError as error:
            raise InvalidRequest(f"this model serves no grammar: {error}") from error
        # Masks are as long as the logits: what the model has beyond its tokenizer is no text.
        rest = [None] * (loaded.card.vocab_size - vocabulary.size)
        tokens = [*vocabulary.token_bytes, *rest]
        return GrammarCompiler(Vocabulary(tokens, vocabulary.eos, vocabulary.encode))

    return LazyCompiler(make)


def device_of(config: RuntimeConfig) -> str:
    """The device that serves: `cpu`, `cuda`, or `cuda-interpreted`."""
    import torch

    if config.device != "auto":
        return config.device
    # What is quantized is the CPU's linears.
    return "cuda" if torch.cuda.is_available() and config.quantization is None else "cpu"


@dataclass(frozen=True, slots=True)
class Ready:
    """A model on its device, its pool allocated."""

    loaded: Loaded
    limits: Limits
    runner: Runner


def _on_cpu(config: RuntimeConfig) -> Ready:
    """Everything of torch happens on the worker thread, the loading too."""
    import torch

    from branchline.runtime.models.load import load

    stream = WorkerStream(config.threads)
    dtype = getattr(torch, config.dtype or "float32")
    loading = stream.submit(
        lambda: load(config.model, dtype=dtype, quantization=config.quantization)
    )
    try:
        loaded = loading.result()
        limits = size_memory(loaded.model, config)
        return Ready(loaded, limits, CpuRunner(loaded.model, stream, config.max_running, limits))
    except BaseException:
        stream.close()
        raise


def _on_cuda(config: RuntimeConfig) -> Ready:
    from branchline.runtime.cuda import start

    return Ready(*start(config, interpreted=device_of(config) == "cuda-interpreted"))
