"""Pages that decoding requests hold ahead: the page table then stays as it is for many steps."""

from __future__ import annotations

from branchline.runtime.memory import RESERVED

from .stub import continuation, make_harness, make_request


def ahead(request) -> int:
    return request.held - request.kv_len


def test_requests_that_decode_together_get_pages_at_the_same_step() -> None:
    harness = make_harness(overlap=False)
    first = make_request([1, 2, 3], max_tokens=90, ignore_eos=True)
    second = make_request([4, 5], max_tokens=90, ignore_eos=True)
    harness.loop.submit([first])
    for _ in range(5):
        harness.step()
    harness.loop.submit([second])
    changes = []
    for _ in range(5 * RESERVED):
        before = first.held, second.held
        harness.step()
        changes.append((first.held, second.held) != before)
        if second.output_len > 2:
            assert ahead(first) == ahead(second)
    assert sum(changes[RESERVED:]) == 4
    harness.run()
    for request in (first, second):
        assert harness.output(request) == continuation(request.prompt, 90, ignore_eos=True)


def test_no_more_than_the_output_can_need() -> None:
    harness = make_harness(overlap=False)
    request = make_request([1, 2, 3], max_tokens=6, ignore_eos=True)
    harness.loop.submit([request])
    harness.step()
    harness.step()
    assert request.held == 3 + 5, "the last token is never computed"
    harness.run()


def test_one_page_at_a_time_where_there_is_little_room() -> None:
    harness = make_harness(pages=2 * RESERVED, overlap=False)
    request = make_request([1, 2, 3], max_tokens=20, ignore_eos=True)
    harness.loop.submit([request])
    for _ in range(9):
        harness.step()
        assert ahead(request) == 0
    harness.run()
    assert harness.output(request) == continuation([1, 2, 3], 20, ignore_eos=True)


def test_what_was_not_used_is_given_back() -> None:
    harness = make_harness()
    request = make_request([1, 2, 3], max_tokens=90, ignore_eos=True)
    harness.loop.submit([request])
    while not ahead(request):
        harness.step()
    memory = harness.loop.scheduler.memory
    assert memory.private([request]) == request.held - request.cached_len
    harness.loop.abort([request])
    harness.run()
    assert memory.pool.free + memory.tree.cached == memory.pool.total - 1
