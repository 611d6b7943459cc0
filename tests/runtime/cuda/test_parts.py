"""Graphs and buckets, staging, tables, the guard, and what fits: each part by itself."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from branchline.errors import InvalidRequest, ModelError
from branchline.runtime.config import RuntimeConfig
from branchline.runtime.cuda.graphs import BUCKETS, RecordedGraphs, bucket_of, buckets_for
from branchline.runtime.cuda.guard import SyncError, refuse_syncs
from branchline.runtime.cuda.queue import HostQueue
from branchline.runtime.cuda.sizing import Footprint, largest_step, size_pool
from branchline.runtime.cuda.staging import Staging
from branchline.runtime.cuda.tables import Tables, patch_words
from branchline.runtime.memory import Patch
from branchline.runtime.sizing import Limits

from .devices import tiny_model

GIB = 2**30


def test_buckets() -> None:
    assert BUCKETS[:6] == (1, 2, 4, 8, 16, 24)
    assert BUCKETS[-5:] == (256, 320, 384, 448, 512)
    assert list(BUCKETS) == sorted(set(BUCKETS))
    assert buckets_for(9) == (1, 2, 4, 8, 16)
    assert buckets_for(8) == (1, 2, 4, 8)
    assert buckets_for(5000) == BUCKETS
    assert [bucket_of(count, (1, 2, 4)) for count in (1, 3, 4, 5)] == [1, 4, 4, None]


def test_a_recorded_graph_reads_what_its_tensors_hold_at_the_replay() -> None:
    source, result = torch.zeros(2), torch.zeros(2)
    graph = RecordedGraphs().capture(lambda: result.copy_(source + 1))
    source.fill_(4)
    assert result.tolist() == [0, 0]
    graph.replay()
    assert result.tolist() == [5, 5]


class SlowQueue(HostQueue):
    """A copy is made only when the host waits for it: what is overwritten before is lost."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = 0

    def record(self):
        queue = self

        class Copied:
            def synchronize(self) -> None:
                queue.waits += 1

        return Copied()


def test_staging_waits_before_it_writes_over_a_buffer_that_is_read() -> None:
    queue = SlowQueue()
    staging = Staging(queue)
    for send in range(7):
        first, second = staging.send([np.full(3, send, np.int32), np.arange(send, dtype=np.int32)])
        assert first.tolist() == [send] * 3
        assert second.tolist() == list(range(send))
        assert queue.waits == max(0, send - 2)


def test_staging_takes_more_than_its_first_buffers_hold() -> None:
    staging = Staging(HostQueue(check_syncs=True))
    words = np.arange(200_000, dtype=np.int32)
    with staging._queue.launching():
        (sent,) = staging.send([words])
    assert np.array_equal(sent.numpy(), words)


def test_of_two_patches_of_a_slot_the_last_one_wins() -> None:
    def patch(slot: int, start: int, *pages: int) -> Patch:
        return Patch(slot, start, np.array(pages, np.int32))

    tables = Tables(slots=3, max_context=20, tokens=4, device=torch.device("cpu"))
    patches = [patch(1, 0, 5, 6, 7), patch(2, 18, 8, 9), patch(1, 1, 10, 11, 12)]
    words = patch_words(patches, tables.page_table.shape[1])
    tables.patch(*map(torch.from_numpy, words))
    assert tables.page_table[1, :5].tolist() == [5, 10, 11, 12, 0]
    assert tables.page_table[2, 17:20].tolist() == [0, 8, 9]
    assert int(tables.page_table.count_nonzero()) == 6
    assert all(len(part) == 0 for part in patch_words([], 32))


@pytest.mark.parametrize(
    "wait",
    [
        lambda x: x.sum().item(),
        lambda x: bool(x.any()),
        lambda x: int(x[1]),
        lambda x: float(x[1]),
        lambda x: [0, 1][x[1].long()],
        lambda x: f"{x[1]:.1f}",
        lambda x: x.tolist(),
        lambda x: x.numpy(),
        lambda x: x.cpu(),
        lambda x: x.nonzero(),
        lambda x: x[x > 1],
        lambda x: x.masked_select(x > 1),
        lambda x: torch.equal(x, x),
        lambda x: x.unique(),
        lambda x: x.index_put_((x > 1,), torch.zeros(1)),
    ],
)
@pytest.mark.parametrize("inference", [False, True])
def test_the_guard_finds_what_would_wait(wait, inference: bool) -> None:
    with torch.inference_mode(inference):
        x = torch.arange(4.0)
        wait(x.clone())
        with refuse_syncs(), pytest.raises(SyncError):
            wait(x)


def test_the_guard_lets_pass_what_does_not_wait() -> None:
    x, at = torch.arange(4.0), torch.tensor([3, 0])
    with refuse_syncs():
        picked = torch.where(x[at] > 1, x[at], -x[at])
        picked += torch.from_numpy(np.ones(2, np.float32)).to(x.device, non_blocking=True)
    assert picked.tolist() == [4, 1]


class Model:
    vocab_size = 10
    context_length = 8192
    page_bytes = 2**17
    segment_cost = 0


FOOTPRINT = Footprint(total=80 * GIB, others=GIB, weights=15 * GIB, activations=2 * GIB, state=GIB)


def size(footprint: Footprint = FOOTPRINT, **settings: object) -> Limits:
    return size_pool(footprint, Model(), RuntimeConfig(**settings))  # type: ignore[arg-type]


def test_what_the_fraction_leaves_is_pages() -> None:
    assert size() == Limits(pages=(72 - 19) * GIB // 2**17, max_context=8192)
    assert size(memory_fraction=0.5).pages == (40 - 19) * GIB // 2**17
    assert size(kv_memory="2GiB").pages == 2 * GIB // 2**17


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"memory_fraction": 0.2}, "memory_fraction=0.2 leaves -3.00 GiB for keys and values (of "),
        ({"memory_fraction": 0.2}, "of 80.00 GiB: in use by others 1.00, weights 15.00, activat"),
        ({"kv_memory": "60GiB"}, "kv_memory=60GiB: memory_fraction=0.9 leaves 53.00 GiB (of 80"),
        ({"kv_memory": "1GiB", "max_context": 8192}, "does not fit: 1024 MiB hold 8191 tokens"),
        ({"kv_memory": "100MiB"}, "under the least context of 1024; raise kv_memory"),
        ({"memory_fraction": 0.0}, "memory_fraction=0.0: must be in (0, 1]"),
    ],
)
def test_what_does_not_fit_refuses_with_the_numbers(settings, says: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(says)):
        size(**settings)


def test_the_largest_step_runs() -> None:
    from branchline.kernels.reference import reference_kernels

    model = tiny_model(reference_kernels())
    largest_step(model, 40, 7, HostQueue())
    assert model._pools[0][0].shape[0] == 41


def test_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from branchline.runtime.cuda import start

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InvalidRequest, match="device=cuda: torch sees no CUDA device"):
        start(RuntimeConfig(device="cuda"), interpreted=False)


@pytest.mark.parametrize("size", [8, 80, 96])
def test_heads_that_have_no_tiles_are_refused_by_their_size(size: int) -> None:
    from branchline.kernels.reference import reference_kernels
    from branchline.runtime.cuda.start import heads_of

    model = tiny_model(reference_kernels())
    assert heads_of(model).size == model.config.head_dim
    model.config = replace(model.config, head_dim=size)
    with pytest.raises(ModelError, match=f"head size of {size}.*powers of two from 16"):
        heads_of(model)
