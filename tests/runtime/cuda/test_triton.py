"""The loop on Triton's kernels: the same greedy tokens as on the CPU's reference.

Interpreted, or with TRITON_INTERPRET=0 on a CUDA device, in its graphs.
"""

from __future__ import annotations

import pytest
import torch

from branchline.kernels.reference import reference_kernels
from branchline.kernels.triton.device import triton_kernels
from branchline.kernels.triton.launch import INTERPRETED
from branchline.runtime.cuda.graphs import BUCKETS as ALL_BUCKETS
from branchline.runtime.cuda.graphs import CudaGraphs, RecordedGraphs
from branchline.runtime.cuda.queue import CudaQueue, HostQueue
from branchline.runtime.cuda.start import _GRAPH_BYTES, MODES, state_bytes, triton_runner
from branchline.runtime.runner import CpuRunner
from branchline.runtime.sizing import Limits
from branchline.runtime.streams import WorkerStream

from ..grammars import TokenGrammar, constrain
from ..stub import make_request
from .devices import TINY, harness_on, settings_of, tiny_model

# Padding computes on whatever its memory held; numpy warns where a device would not.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

BUCKETS = (1, 2, 4, 8, 16)
SHARED = [(7 * i * i) % 125 + 1 for i in range(30)]
PROMPTS = [[*SHARED, 1], [*SHARED, 2, 3], SHARED[:9], [*SHARED[:20], 7]]
LENGTHS = [6, 5, 6, 3]


def requests_of(**params):
    return [
        make_request(prompt, max_tokens=length, ignore_eos=True, **params)
        for prompt, length in zip(PROMPTS, LENGTHS, strict=True)
    ]


def run(harness, times: int = 1, **params) -> list[list[int]]:
    """The same prompts so many times: after the first they are cached."""
    found = []
    for _ in range(times):
        requests = requests_of(**params)
        harness.run(*requests)
        found += [harness.output(request) for request in requests]
    return found


@pytest.fixture(scope="module")
def device_model():
    model = tiny_model(triton_kernels("cpu" if INTERPRETED else "cuda"))
    model.segment_cost = 0  # as on a device where sharing always pays
    return model


def device(model, limits: Limits, **settings):
    config = settings_of(**settings)
    if INTERPRETED:
        queue, graphs = HostQueue(check_syncs=config.check_syncs), RecordedGraphs()
    else:
        queue = CudaQueue(torch.device("cuda"), check_syncs=config.check_syncs)
        graphs = CudaGraphs()
    runner = triton_runner(model, config, limits, queue, graphs, BUCKETS)
    return harness_on(runner, model, config, limits)


def reference(limits: Limits, **settings):
    config = settings_of(overlap=False, cascade=False, **settings)
    model = tiny_model(reference_kernels())
    runner = CpuRunner(model, WorkerStream(), config.max_running, limits)
    return harness_on(runner, model, config, limits)


ROOMY = Limits(400, 64)


@pytest.fixture(scope="module")
def right() -> list[list[int]]:
    harness = reference(ROOMY)
    found = run(harness)
    harness.loop.stop()
    return found


@pytest.mark.parametrize(("overlap", "times"), [(False, 1), (True, 2)])
def test_greedy_tokens(device_model, right, overlap, times):
    harness = device(device_model, ROOMY, overlap=overlap)
    assert run(harness, times) == right * times
    counters = harness.loop.counters
    assert counters.positions_read < counters.positions_attended, "segments were shared"


def test_chunks_and_retraction(device_model, right):
    harness = device(
        device_model, Limits(39, 37), chunk_tokens=7, max_batch_tokens=17, max_running=4
    )
    assert run(harness) == right
    assert harness.loop.scheduler.retractions > 0


def test_a_draw_may_be_padded_beyond_the_slots(device_model, right):
    harness = device(device_model, ROOMY, max_running=5)  # 6 slots, and draws of 8
    requests = requests_of() + requests_of()[:1]
    harness.run(*requests)
    assert [harness.output(request) for request in requests] == right + right[:1]


def test_grammars_beside_others_and_their_logprobs(device_model):
    """Drawn with penalties: what was drawn where a token was forced must not count."""
    some = set(range(1, 52, 3))
    grammar = TokenGrammar.text(some, 40, some, *([42] * 3), some)
    found = []
    for harness in (
        reference(ROOMY),
        device(device_model, ROOMY, overlap=True, check_syncs=True),
    ):
        requests = [
            constrain(make_request(prompt, max_tokens=20, **params), grammar, TINY.vocab_size)
            for prompt in PROMPTS[2:]
            for params in (
                {"presence_penalty": 1.5},
                {"temperature": 0.9, "frequency_penalty": 1.0},
                {"top_logprobs": 2},
            )
        ]
        free = requests_of()[:1]
        harness.run(*requests, *free)
        found.append([harness.output(request) for request in requests + free])
        found.append(
            [entry.token for r in requests for entry in r.logprobs]
            + [token for r in requests for entry in r.logprobs for _, token in entry.top]
        )
    assert found[0] == found[2]
    assert found[1] == found[3]
    assert max(found[1]) > 52, "logprobs are those of logits without a mask"


def tensors_of(*owners) -> set[torch.Tensor]:
    """Everything that the objects hold, whatever holds it: `Tensor` is hashed by identity."""
    found: set[torch.Tensor] = set()
    for owner in owners:
        names = getattr(owner, "__slots__", None) or vars(owner)
        found |= {value for name in names if torch.is_tensor(value := getattr(owner, name))}
    return found


def test_what_a_runner_keeps_is_counted(device_model):
    config = settings_of(max_running=5, max_batch_tokens=512)
    runner = device(device_model, ROOMY, max_running=5, max_batch_tokens=512).runner
    sampler, forwards = runner._draws.sampler, runner._forwards
    kept = tensors_of(runner._tables, runner._planner._largest, sampler, sampler._work, forwards)
    graphs = _GRAPH_BYTES * len(ALL_BUCKETS) * (1 + len(MODES))
    counted = state_bytes(device_model, config, forwards.drawn.device) - graphs
    held = sum(tensor.numel() * tensor.itemsize for tensor in kept)
    assert 0.8 * held < counted < 2 * held


def test_nothing_waits_for_the_device(device_model, right):
    harness = device(device_model, ROOMY, check_syncs=True, overlap=True)
    assert run(harness, top_logprobs=1, logprob_start=0) == right
    with pytest.raises(RuntimeError), harness.runner._queue.launching():
        torch.ones(1, device=harness.runner._queue.device).item()
