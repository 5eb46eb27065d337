"""Stillness: an event loop that knows when nothing can move, without waiting for any time."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest

from loopspec.bench.stillness import HORIZON, SocketLoop, StillLoop, StuckError, run_still


def current() -> StillLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, StillLoop)
    return loop


def test_still_returns_when_every_task_waits_for_something_that_only_the_caller_can_give():
    """However many steps the others still had to do."""

    async def story() -> None:
        gate = asyncio.Event()
        steps: list[int] = []

        async def works() -> None:
            for step in range(100):
                await asyncio.sleep(0)
                steps.append(step)
            await gate.wait()
            steps.append(-1)

        task = asyncio.ensure_future(works())
        await current().still()
        assert steps == list(range(100))
        gate.set()
        await current().still()
        assert steps[-1] == -1
        await task

    run_still(story())


def test_everybody_who_waits_for_stillness_is_told():
    """Several may ask at once."""

    async def story() -> None:
        await asyncio.gather(*(current().still() for _ in range(5)))

    run_still(story())


def test_who_is_told_first_can_move_before_the_next_stillness():
    """A stillness is asked for anew each time."""

    async def story() -> None:
        order: list[str] = []

        async def asks(name: str) -> None:
            for _ in range(2):
                await current().still()
                order.append(name)

        await asyncio.gather(asks("a"), asks("b"))
        assert order == ["a", "b", "a", "b"]

    run_still(story())


def test_a_waiter_that_is_done_by_then_is_left_alone():
    """The runner waits for stillness or a settlement, whichever comes first."""

    async def story() -> None:
        waiter = current().create_future()
        current().when_still(waiter)
        waiter.set_result(None)
        await current().still()

    run_still(story())


def test_short_timers_run_in_virtual_time_before_the_loop_counts_as_still():
    """They are something that moves; no real second passes."""

    async def story() -> None:
        woke: list[float] = []

        async def sleeps() -> None:
            for _ in range(20):
                await asyncio.sleep(HORIZON / 2)
            woke.append(current().time())

        task = asyncio.ensure_future(sleeps())
        await current().still()
        assert woke
        assert woke[0] >= 10 * HORIZON
        await task

    began = time.monotonic()
    run_still(story())
    assert time.monotonic() - began < 5


def test_a_long_timer_stays_where_it_is_while_somebody_asks_for_stillness():
    """A target's own time-out must not go off because the bench holds something back."""

    async def story() -> None:
        task = asyncio.ensure_future(asyncio.sleep(HORIZON * 100))
        await current().still()
        assert not task.done()
        task.cancel()

    run_still(story())


def test_a_long_timer_runs_when_nobody_asks():
    """Then there is nothing to hold back."""

    async def story() -> None:
        await asyncio.sleep(HORIZON * 100)
        assert current().time() >= HORIZON * 100

    run_still(story())


def test_a_loop_that_only_sets_timers_counts_as_still_in_the_end():
    """Something that wakes for ever and does nothing must not keep the bench waiting for ever."""

    async def story() -> None:
        async def ticks() -> None:
            while True:
                await asyncio.sleep(HORIZON / 10)

        task = asyncio.ensure_future(ticks())
        await current().still()
        task.cancel()

    run_still(story())


def test_a_loop_that_nothing_can_wake_is_a_fault_of_the_bench():
    """It is an error at once, and not a hang."""

    async def story() -> None:
        await asyncio.get_running_loop().create_future()

    loop = StillLoop()
    main = loop.create_task(story())
    with pytest.raises(StuckError, match="nothing can wake the event loop"):
        loop.run_until_complete(main)
    main.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(main)
    loop.close()


def test_what_a_run_leaves_behind_is_cancelled():
    """The next one starts clean."""
    left: list[asyncio.Task[None]] = []

    async def waits() -> None:
        await asyncio.get_running_loop().create_future()

    async def story() -> str:
        left.append(asyncio.ensure_future(waits()))
        await asyncio.sleep(0)
        return "done"

    assert run_still(story()) == "done"
    assert left[0].cancelled()


def test_with_sockets_stillness_is_that_no_file_is_ready_either():
    """What was written has been read by the time that the loop counts as still."""

    async def story() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SocketLoop)
        ours, theirs = socket.socketpair()
        received: list[bytes] = []

        async def reads() -> None:
            reader, writer = await asyncio.open_connection(sock=theirs)
            while data := await reader.read(100):
                received.append(data)
            writer.close()
            await writer.wait_closed()

        task = asyncio.ensure_future(reads())
        ours.setblocking(False)
        await loop.still()
        for word in (b"one", b"two"):
            ours.send(word)
            await loop.still()
            assert received[-1] == word
        ours.close()
        await task

    with asyncio.Runner(loop_factory=SocketLoop) as runner:
        runner.run(story())


def test_with_sockets_time_is_real():
    """A timer that is not due does not run early, and stillness comes before it."""

    async def story() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SocketLoop)
        timer = asyncio.ensure_future(asyncio.sleep(60))
        await loop.still()
        assert not timer.done()
        timer.cancel()

    with asyncio.Runner(loop_factory=SocketLoop) as runner:
        runner.run(story())
