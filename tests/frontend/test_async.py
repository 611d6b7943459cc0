# ruff: noqa: PLW2901 - a loop over branches appends to them with +=

from __future__ import annotations

import asyncio
import threading
import time

import pytest

import branchline as bl
from branchline.errors import InvalidRequest, RequestAborted, RuntimeUnavailable

from .fake_backend import CHATML, FakeBackend


@bl.function
async def ask(s, question, delay=0.0):
    await asyncio.sleep(delay)
    s += question + "=" + bl.gen("answer")
    return (await s["answer"]) + "!"


def echo(text):
    return text.removesuffix("=").upper()


def bounded(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 5))


def test_a_program_is_awaited_and_its_state_is_an_ordinary_one() -> None:
    state = bounded(ask("a", backend=FakeBackend(echo), temperature=0))
    assert type(state) is bl.ProgramState
    assert (state["answer"], state.text(), state.ret_value) == ("A", "a=A", "A!")


def test_gather_runs_programs_at_the_same_time() -> None:
    backend = FakeBackend(echo, delay=0.1)

    async def main():
        return await asyncio.gather(*(ask(q, backend=backend) for q in "abcdefgh"))

    assert [state["answer"] for state in bounded(main())] == [*"ABCDEFGH"]
    assert backend.most_alive == 8


def test_a_task_group_takes_a_program() -> None:
    async def main():
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(ask("a", backend=FakeBackend(echo)))
        return task.result()["answer"]

    assert bounded(main()) == "A"


def test_from_ordinary_code_it_runs_like_any_program() -> None:
    backend = FakeBackend(echo)
    assert ask.run("a", backend=backend).ret_value == "A!"
    states = ask.run_batch([("a", 0.05), {"question": "b"}], backend=backend, seed=1)
    assert [state["answer"] for state in states] == ["A", "B"]
    assert ask.bind(question="z").run(backend=backend)["answer"] == "Z"
    with pytest.raises(TypeError, match="question"):
        ask.run(backend=backend)
    with pytest.raises(TypeError, match="question"):
        ask(backend=backend)  # before it is awaited
    results = ask.run_batch([("a", 0.2), ("b",)], backend=backend, as_completed=True)
    assert [(index, state["answer"]) for index, state in results] == [(1, "B"), (0, "A")]


def test_inside_an_event_loop_running_it_would_block() -> None:
    async def main():
        with pytest.raises(RuntimeError, match=r"write await ask\(…\)"):
            ask.run("a", backend=FakeBackend())
        with pytest.raises(RuntimeError, match=r"asyncio\.gather"):
            ask.run_batch([("a",)], backend=FakeBackend())

    bounded(main())


def test_a_variable_is_followed_as_it_is_written() -> None:
    @bl.function
    async def program(s):
        s += "Q:" + bl.gen("x")
        seen = [piece async for piece in s["x"]]
        s += "." + bl.gen("y")
        return seen, [piece async for piece in s.text_iter()]

    async def main():
        state = program.start(backend=FakeBackend("abc"), stream=True)
        outside = [piece async for piece in state["y"]]
        return outside, (await state).ret_value

    outside, (x, text) = bounded(main())
    assert outside == x == ["a", "b", "c"]
    assert "".join(text) == "Q:abc.abc"
    state = program.run(backend=FakeBackend("abc"), stream=True)
    assert "".join(state.text_iter()) == "Q:abc.abc"


def test_everything_that_is_read_can_be_awaited() -> None:
    @bl.function
    async def program(s):
        s += bl.user("Hi")
        with s.assistant(), s.var_scope("v"):
            s += "so: " + bl.gen("x", type=int)
        s.user("more")
        s["mine"] = 1
        assert (await s["x"], await s.text_of("x"), await s["v"]) == (7, "7", "so: 7")
        assert await s.get_var("mine") == 1
        assert "mine" in s
        assert (await s.get_meta_info("x"))["completion_tokens"] == 1
        assert await s.get_meta_info("nope") is None
        assert [turn["content"] for turn in await s.messages()][1:] == ["Hi", "so: 7", "more"]
        assert await s.error() is None
        await s.sync()
        assert s.ret_value is None
        return await s.text()

    state = bounded(program(backend=FakeBackend("7", template=CHATML)))
    assert state.ret_value == state.text()


def test_what_is_not_there_is_an_error(soon) -> None:
    @bl.function
    async def program(s):
        s += "t" + bl.gen("x")
        with pytest.raises(KeyError, match="nope"):
            await s["nope"]
        with pytest.raises(TypeError, match="has to be awaited"):
            s += f"{s['x']}"
        with pytest.raises(InvalidRequest, match="appends text"):
            s += s["x"]

    soon(lambda: program.run(backend=FakeBackend()))


def test_forks_run_at_the_same_time_and_join() -> None:
    @bl.function
    async def program(s):
        s += "root "
        forks = s.fork(3)
        forks += lambda i: f"{i}" + bl.gen("x")
        forks[0] += "!"

        async def consider(branch):
            branch += (await branch["x"]) + bl.gen("y")
            return await branch["y"]

        seen = await forks.map(consider)
        made = await forks.join()
        assert made == [{"x": f"{i}", "y": f"{i}" if i else "0"} for i in range(3)]
        async with s.copy() as t:
            t += "copied" + bl.gen("z")
        return seen, await s["x"], await s["z"], await forks.errors()

    backend = FakeBackend(lambda text: text[-1] if text[-1].isdigit() else "d", delay=0.01)
    assert bounded(program(backend=backend)).ret_value == (
        ["0", "1", "2"], ["0", "1", "2"], ["d"], [None] * 3,
    )  # fmt: skip
    assert backend.most_alive == 3


def test_the_bodys_exception_is_the_callers() -> None:
    @bl.function
    async def program(s):
        s += "a" + bl.gen("x")
        await s["x"]
        raise ZeroDivisionError("mine")

    async def main():
        with pytest.raises(ZeroDivisionError, match="mine"):
            await program(backend=FakeBackend())
        state = program.start(backend=FakeBackend())
        with pytest.raises(bl.ProgramError, match="mine"):
            await state
        assert await state["x"] == "ok"
        with pytest.raises(bl.ProgramError, match="mine"):
            await state.text()

    bounded(main())
    with pytest.raises(ZeroDivisionError, match="mine"):
        program.run(backend=FakeBackend())
    (state,) = program.run_batch([{}], backend=FakeBackend())
    assert "mine" in str(state.error())


def test_a_failure_is_raised_where_it_is_awaited() -> None:
    @bl.function
    async def program(s):
        s += bl.gen("x")
        await s["x"]

    with pytest.raises(bl.ProgramError, match="gone") as caught:
        bounded(program(backend=FakeBackend(RuntimeUnavailable("gone"))))
    assert caught.value.variable == "x"


def test_cancelling_the_task_aborts_what_the_program_asked(soon) -> None:
    backend = bl.Mock("ok", hold=True)
    states = []

    @bl.function
    async def program(s):
        states.append(s)
        s += "t" + bl.gen("x")
        await asyncio.sleep(60)

    async def main():
        task = asyncio.create_task(program(backend=backend))
        await asyncio.to_thread(backend.wait_for_requests, 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(bl.ProgramError) as caught:
            await states[0]["x"]
        assert isinstance(caught.value.__cause__, RequestAborted)
        state = program.start(backend=backend)
        await asyncio.to_thread(backend.wait_for_requests, 2)
        state.cancel()
        with pytest.raises(bl.ProgramError, match="was cancelled"):
            await state

    bounded(main())
    assert (len(backend.aborted), backend.alive) == (2, 0)


def test_a_reader_that_is_cancelled_cancels_nothing_else() -> None:
    backend = FakeBackend(gated=True)

    async def main():
        state = ask.start("a", backend=backend)
        for read in (lambda: state["answer"], state.text, lambda: state):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(_await(read()), 0.02)
        backend.open_gate()
        return (await state)["answer"]

    assert bounded(main()) == "ok"


async def _await(awaitable):
    return await awaitable


def test_leaving_a_batch_early_cancels_what_runs() -> None:
    backend = bl.Mock("ok", hold=True)

    @bl.function
    async def program(s, i):
        s += f"{i}"
        if i:
            s += bl.gen("x")
            await s["x"]

    results = program.run_batch(
        [(i,) for i in range(50)], backend=backend, num_threads=3, as_completed=True
    )
    assert next(results)[0] == 0
    backend.wait_for_requests(2)
    results.close()
    deadline = time.monotonic() + 5
    while backend.alive:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert len(backend.aborted) == len(backend.requests) <= 4


def test_an_ordinary_programs_state_can_be_awaited() -> None:
    @bl.function
    def program(s, i):
        s += f"{i}" + bl.gen("x")

    async def main():
        backend = FakeBackend(lambda text: text, delay=0.05)
        states = await asyncio.gather(*(program.run(i, backend=backend) for i in range(4)))
        assert all("x" in state for state in states)
        return [state["x"] for state in states]

    assert bounded(main()) == [*"0123"]


def test_a_method_is_an_async_program() -> None:
    class Asker:
        @bl.function
        async def ask(self, s, word):
            s += word + bl.gen("x")

    assert bounded(Asker().ask("w", backend=FakeBackend())).text() == "wok"


def test_trees_of_thought_take_a_few_threads_and_a_request_for_each_node() -> None:
    most = []

    @bl.function
    async def tree(s, i):
        s += f"{i}"

        async def grow(branch, depth):
            if depth:
                forks = branch.fork(2)
                forks += "-" + bl.gen("x")
                await forks.map(lambda child: read(child, depth))

        async def read(child, depth):
            await child["x"]
            await grow(child, depth - 1)

        await grow(s, 4)
        most.append(threading.active_count())

    async def main():
        return await asyncio.gather(*(tree(i, backend=backend) for i in range(64)))

    backend = FakeBackend(delay=0.001)
    asyncio.run(asyncio.wait_for(main(), 20))
    assert len(backend.requests) == 64 * 30
    assert max(most) < 10
