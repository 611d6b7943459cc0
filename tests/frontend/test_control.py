from __future__ import annotations

import asyncio
import threading
import time

import pytest

import branchline as bl
from branchline.errors import (
    InvalidRequest,
    RequestAborted,
    RequestTimeout,
    RuntimeFailed,
    RuntimeUnavailable,
)

QUICK = bl.Retry(attempts=3, delay=0.001)


def run(body, backend, **settings):
    return bl.function(body).run(backend=backend, **settings)


def until(condition):
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline, "still not so after 5 s"
        time.sleep(0.005)


def cause(read):
    with pytest.raises(bl.ProgramError) as caught:
        read()
    return caught.value.__cause__


# ------------------------------------------------------------------------------- errors


def test_an_error_knows_its_node() -> None:
    node = bl.gen("x", temperature=0)
    state = run(lambda s: s.__iadd__("a" + node), bl.Mock(RuntimeFailed("a bug")))
    assert state.error().node == node
    assert state.error().prompt_tail == "a"


# ------------------------------------------------------------------------------- timeouts


@pytest.mark.parametrize("node", [bl.gen("x", timeout=0.05), bl.select("x", ["a"], timeout=0.05)])
def test_a_node_that_takes_too_long_is_aborted(node, soon) -> None:
    backend = bl.Mock("ok", hold=True)
    state = run(lambda s: s.__iadd__("a" + node), backend)
    error = cause(lambda: soon(lambda: state["x"]))
    assert isinstance(error, RequestTimeout)
    assert isinstance(error, TimeoutError)
    assert "timeout=0.05" in str(error)
    assert (backend.alive, len(backend.aborted)) == (0, 1)


def test_a_run_that_takes_too_long_ends_and_its_siblings_are_read(soon) -> None:
    backend = bl.Mock({"quick": "ok", "slow": bl.Reply("late", delay=60)})

    def body(s):
        s += "start "
        forks = s.fork(2)
        forks += lambda i: ("quick", "slow")[i] + bl.gen("x")
        forks.join()
        return forks

    state = soon(lambda: run(body, backend, timeout=1))
    forks = state.ret_value
    assert forks[0]["x"] == "ok"
    assert isinstance(cause(lambda: forks[1]["x"]), RequestTimeout)
    assert "the run took longer than its timeout=1" in str(forks[1].error())
    # What comes after the time is over is not asked at all.
    state += "more" + bl.gen("y")
    assert isinstance(cause(lambda: soon(lambda: state["y"])), RequestTimeout)


def test_the_time_of_an_item_counts_from_its_own_start() -> None:
    @bl.function
    def program(s, i):
        if i == 0:
            time.sleep(1.2)
        else:
            s += f"{i}" + bl.gen("x")

    states = program.run_batch([(0,), (1,)], backend=bl.Mock("ok"), num_threads=1, timeout=1)
    assert states[1]["x"] == "ok"


@pytest.mark.parametrize("wrong", [0, -1, float("nan"), float("inf"), "5", True])
def test_a_timeout_is_a_number_of_seconds(wrong) -> None:
    with pytest.raises(InvalidRequest, match="timeout="):
        bl.gen("x", timeout=wrong)
    with pytest.raises(InvalidRequest, match="timeout="):
        run(lambda s: s.sync(), bl.Mock(), timeout=wrong)


# ------------------------------------------------------------------------------- retries


def test_what_may_pass_is_tried_again() -> None:
    backend = bl.Mock([RuntimeUnavailable("busy"), RuntimeUnavailable("busy"), "ok", "next"])
    state = run(lambda s: s.__iadd__("a" + bl.gen("x") + bl.gen("y")), backend, retry=QUICK)
    assert (state["x"], state["y"]) == ("ok", "next")
    assert len({request.rid for request in backend.requests}) == 4


def test_a_gens_own_policy_comes_first_and_the_last_error_is_raised() -> None:
    errors = [RuntimeUnavailable(f"busy {i}") for i in range(4)]
    backend = bl.Mock(errors)
    node = bl.gen("x", retry=bl.Retry(attempts=2, delay=0))
    state = run(lambda s: s.__iadd__("a" + node), backend, retry=QUICK)
    assert cause(lambda: state["x"]) is errors[1]
    assert len(backend.requests) == 2


@pytest.mark.parametrize("error", [InvalidRequest("wrong"), RuntimeFailed("a bug")])
def test_what_will_not_pass_is_final(error) -> None:
    backend = bl.Mock([error, "ok"])
    state = run(lambda s: s.__iadd__("a" + bl.gen("x")), backend, retry=QUICK)
    assert cause(lambda: state["x"]) is error
    assert len(backend.requests) == 1


def test_a_timeout_is_tried_again_and_so_is_a_select() -> None:
    backend = bl.Mock([bl.Reply("late", delay=60), "ok"], select=[RuntimeUnavailable("busy"), "b"])

    def body(s):
        s += "a" + bl.gen("x", timeout=0.5) + bl.select("y", ["b", "c"])

    state = run(body, backend, retry=QUICK)
    assert (state["x"], state["y"]) == ("ok", "b")


def test_what_a_stream_has_shown_is_not_asked_again(soon) -> None:
    busy = RuntimeUnavailable("busy")

    def streamed(*answers):
        backend = bl.Mock(list(answers))
        state = run(lambda s: s.__iadd__("a" + bl.gen("x")), backend, retry=QUICK, stream=True)
        return state, backend

    state, _ = streamed(busy, "fine")
    assert "".join(soon(lambda: [*state.text_iter()])) == "afine"
    state, backend = streamed(bl.Reply("half", error=busy), "fine")
    assert cause(lambda: soon(lambda: state["x"])) is busy
    assert len(backend.requests) == 1


def test_waits_grow_to_a_bound_and_differ() -> None:
    retry = bl.Retry(attempts=6, delay=1, factor=2, max_delay=5, jitter=0)
    busy = RuntimeUnavailable("busy")
    assert [retry.wait(busy, failed) for failed in range(1, 7)] == [1, 2, 4, 5, 5, None]
    assert retry.wait(RuntimeFailed("a bug"), 1) is None
    drawn = [bl.Retry(delay=1, jitter=0.5).wait(busy, 1) for _ in range(50)]
    assert all(0.5 <= wait <= 1 for wait in drawn)
    assert len(set(drawn)) > 1


@pytest.mark.parametrize(
    "wrong", [{"attempts": 0}, {"delay": -1}, {"factor": float("nan")}, {"jitter": 2}]
)
def test_a_policy_has_rules(wrong) -> None:
    with pytest.raises(InvalidRequest, match=f"{next(iter(wrong))}="):
        bl.Retry(**wrong)
    with pytest.raises(InvalidRequest, match="must be a Retry"):
        bl.gen("x", retry=3)


# ------------------------------------------------------------------------------- cancelling


def test_a_run_is_cancelled_from_another_thread(soon) -> None:
    backend = bl.Mock("ok", hold=True)

    def body(s):
        s += "a"
        forks = s.fork(3)
        forks += lambda i: f"{i}" + bl.gen("x")
        s += "b" + bl.gen("y")
        return s["y"]

    state = run(body, backend, stream=True)
    backend.wait_for_requests(4)
    state.cancel()
    for read in (state.text, lambda: state["y"], lambda: state.ret_value):
        assert isinstance(cause(lambda read=read: soon(read)), RequestAborted)
    until(lambda: backend.alive == 0)
    assert len(backend.aborted) == 4


def test_a_cancelled_branch_leaves_the_others(soon) -> None:
    backend = bl.Mock("ok", hold=True)

    def body(s):
        s += "a"
        forks = s.fork(2)
        inner = forks[0].fork(2)
        inner += "in" + bl.gen("x")
        forks[1] += "out" + bl.gen("x")
        backend.wait_for_requests(3)
        forks[0].cancel()
        until(lambda: len(backend.aborted) == 2)
        backend.release()
        assert forks[1]["x"] == "ok"
        forks[0] += "more" + bl.gen("z")
        for read in (lambda: inner[0]["x"], inner[1].text, lambda: forks[0]["z"]):
            assert isinstance(cause(read), RequestAborted)
        s += bl.gen("y")

    state = soon(lambda: run(body, backend))
    assert soon(lambda: state["y"]) == "ok"
    assert len(backend.requests) == 4


def test_a_with_block_aborts_what_it_leaves() -> None:
    backend = bl.Mock("ok", hold=True)
    program = bl.function(lambda s: s.__iadd__("a" + bl.gen("x")))
    with program.run(backend=backend):
        backend.wait_for_requests(1)
    until(lambda: len(backend.aborted) == 1)
    backend.release()
    with program.run(backend=backend) as state:
        state.sync()
    state += bl.gen("y")  # it had ended by itself: nothing was cancelled
    assert state["y"] == "ok"


def test_leaving_the_body_by_more_than_an_error_aborts() -> None:
    backend = bl.Mock("ok", hold=True)

    def body(s):
        s += "a" + bl.gen("x")
        backend.wait_for_requests(1)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(body, backend)
    until(lambda: len(backend.aborted) == 1)


def test_leaving_a_batch_early_aborts_what_runs() -> None:
    backend = bl.Mock("ok", hold=True)

    @bl.function
    def program(s, i):
        s += f"{i}"
        if i:
            s += bl.gen("x")

    results = program.run_batch(
        [(i,) for i in range(50)], backend=backend, num_threads=3, as_completed=True
    )
    assert next(results)[1].text() == "0"
    backend.wait_for_requests(2)
    results.close()
    until(lambda: backend.alive == 0)
    assert len(backend.requests) <= 4


def test_the_programs_that_a_program_begins_end_with_it(soon) -> None:
    backend = bl.Mock("ok", hold=True)
    inner = bl.function(lambda s, i: s.__iadd__(f"{i}" + bl.gen("x")))

    def body(s):
        tips = [inner.run(i, backend=backend) for i in range(2)]
        s += tips[0]["x"]
        return tips

    state = run(body, backend, stream=True)
    backend.wait_for_requests(2)
    state.cancel()
    assert isinstance(cause(lambda: soon(state.text)), RequestAborted)
    until(lambda: len(backend.aborted) == 2)
    # Those that come from elsewhere are not touched.
    backend.release()
    assert inner.run(3, backend=backend)["x"] == "ok"


def test_the_programs_that_a_program_begins_have_no_more_time_than_it(soon) -> None:
    backend = bl.Mock("ok", hold=True)
    inner = bl.function(lambda s: s.__iadd__("a" + bl.gen("x")))
    errors = []

    def body(s):
        for timeout in (None, 60, 0.01):
            state = inner.run(backend=backend, timeout=timeout)
            errors.append(str(cause(lambda state=state: state["x"])))

    soon(lambda: run(body, backend, timeout=0.2))
    assert [error.rpartition("=")[2] for error in errors][:2] == ["0.2", "0.2"]


def test_the_first_branch_wins_and_the_others_are_cancelled(soon) -> None:
    backend = bl.Mock(
        {
            "0": bl.Reply("late", delay=60),
            "1": RuntimeUnavailable("gone"),
            "2": bl.Reply("won", 0.05),
        }
    )

    def body(s):
        s += "race "
        forks = s.fork(3)
        forks += lambda i: f"{i}" + bl.gen("x")
        winner = forks.first()
        until(lambda: backend.alive == 0)
        assert [error is None for error in forks.errors()] == [False, False, True]
        return winner["x"]

    assert soon(lambda: run(body, backend)).ret_value == "won"


def test_a_race_that_all_lose_raises(soon) -> None:
    def body(s):
        with pytest.raises(InvalidRequest, match="no branches"):
            s.fork(0).first()
        s += "race "
        forks = s.fork(2)
        forks += bl.gen("x")
        forks.first()

    assert isinstance(
        cause(lambda: soon(lambda: run(body, bl.Mock(RuntimeUnavailable("gone"))))),
        RuntimeUnavailable,
    )


def test_async_branches_race_too() -> None:
    @bl.function
    async def program(s):
        s += "race "
        forks = s.fork(2)
        forks += lambda i: f"{i}" + bl.gen("x")
        return await (await forks.first())["x"]

    async def main():
        backend = bl.Mock({"0": bl.Reply("late", delay=60), "1": "won"})
        return (await asyncio.wait_for(program(backend=backend), 5)).ret_value

    assert asyncio.run(main()) == "won"


def test_map_and_join_give_results() -> None:
    def body(s):
        s["mine"] = 0
        s += "a"
        forks = s.fork(2)
        forks += lambda i: f"{i}" + bl.gen("x")
        assert forks.map(lambda branch: branch["x"]) == ["ok", "ok"]
        forks[1]["extra"] = 1
        return forks.join()

    assert run(body, bl.Mock("ok")).ret_value == [{"x": "ok"}, {"x": "ok", "extra": 1}]


def test_cancelling_takes_no_thread() -> None:
    backend = bl.Mock("ok", hold=True)
    state = run(lambda s: s.__iadd__("a" + bl.gen("x")), backend)
    before = threading.active_count()
    state.cancel()
    assert isinstance(cause(lambda: state["x"]), RequestAborted)
    assert threading.active_count() == before
