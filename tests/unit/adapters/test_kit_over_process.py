"""A target behind the Python kit does in its process what one in this process does."""

import asyncio
import math
import os
import signal
import sys

import pytest
from stub_bench import ANSWER, CALL, CHILDREN, MANIFEST, Bench, deaf, fail, loops, run, wait

from loopspec.adapters.jsonrpc import BenchFault
from loopspec.adapters.process import ProcessAdapter, TargetRaised
from loopspec.adapters.protocol import OpenSettings, ProviderError
from loopspec.scenario import On
from loopspec.vocabulary import (
    AssistantMessage,
    Call,
    Text,
    TextDelta,
    ToolResult,
    UserMessage,
)

TURNS = [
    UserMessage("go"),
    AssistantMessage((Call("c1", "probe", '{"value": "1"}'),), "toolUse"),
    ToolResult("c1", "probe", "result", False),
    AssistantMessage((Text("Done."),), "stop"),
]


def test_two_turns_arrive_whole_and_in_order():
    """Requests, pieces, tools, events and the settlement come in the order in which they happen."""
    bench = Bench(CALL, ANSWER)

    async def scenario(session, bench):
        settled = await session.prompt("go")
        bench.log.append("settled")
        return settled.raw, await session.history()

    raw, history = run(scenario, bench)
    assert raw == {"returned": {"text": "Done."}}
    assert history == TURNS
    assert list(bench.requests[1].messages) == TURNS[:3]
    assert bench.requests[0].tools == ("probe",)
    assert bench.log == [
        "told run_start", "request of 1", "sent call_start", "sent arguments", "sent call_end",
        "sent reason", "sent terminator", 'tool {"value": "1"} for c1', "request of 3", "sent text",
        "told text_delta", "sent reason", "sent terminator", "told run_end", "settled",
    ]  # fmt: skip


def test_a_late_event_comes_after_the_settlement_before_it():
    """Both are in the pipe at once; what the settlement wakes runs before the next message."""
    bench = Bench()

    async def scenario(session, bench):
        task = asyncio.ensure_future(session.prompt("late"))
        task.add_done_callback(lambda _: bench.log.append("settled"))
        await task
        await session.barrier()

    run(scenario, bench)
    assert bench.log == ["settled", "told run_end"]


def test_one_child_serves_many_sessions_and_event_loops():
    """A second event loop finds the same child, and sessions do not see each other."""
    adapter = loops()

    async def once(last):
        bench = Bench(ANSWER)
        session = await adapter.open(bench, OpenSettings())
        await session.prompt("go")
        history = await session.history()
        await session.close()
        pid = adapter.pid
        if last:
            await adapter.aclose()
        return pid, history

    assert asyncio.run(once(False)) == asyncio.run(once(True))
    assert adapter.pid is None


def test_prints_of_the_target_do_not_touch_the_protocol():
    """Prints go to stderr, before serving and after."""

    async def scenario(session, bench):
        return (await session.prompt("print")).raw

    assert run(scenario) == {"returned": {"text": "printed"}}


@pytest.mark.parametrize(
    ("text", "raw"),
    [
        ("echo", {"returned": {"text": "echo"}}),
        ("echo told", {"returned": {"text": "echo told"}, "told": True}),
        ("odd", {"returned": {"object": "<class 'set'>", "nan": "nan", "pair": [1, "x"]}}),
    ],
)
def test_returned_values_are_plain(text, raw):
    """What JSON lacks becomes its repr; ``told`` is kept."""

    async def scenario(session, bench):
        return (await session.prompt(text)).raw

    assert run(scenario) == raw


def test_exceptions_arrive_as_a_chain_with_types_and_fields():
    """Outermost first; bases by name; public plain fields only. SystemExit is no exception to it."""

    async def scenario(session, bench):
        return (await session.prompt("raise")).raw["raised"], (await session.prompt("exit")).raw["raised"]

    (outer, inner), (left,) = run(scenario)
    assert outer == {
        "type": "__main__.DomainError",
        "mro": ["__main__.DomainError", "builtins.Exception", "builtins.BaseException"],
        "message": "outside",
        "fields": {"code": 7},
    }
    assert (inner["type"], inner["message"]) == ("builtins.ValueError", "inside")
    assert left["type"] == "builtins.SystemExit"


@pytest.mark.parametrize("turns", [0, -1, math.nan, -math.inf])
def test_refused_settings_raise_from_open(turns):
    """Numbers that JSON lacks reach the target as numbers."""

    async def scenario(session, bench):
        pytest.fail("it was opened")

    with pytest.raises(TargetRaised, match=r"builtins\.ValueError: max_turns is") as caught:
        run(scenario, settings=OpenSettings(max_turns=turns))
    assert caught.value.raw["raised"][0]["message"] == f"max_turns is {turns}"


def test_infinity_and_other_wires_are_given_to_the_target():
    """An infinite limit is a number, and a base URL is that of the wire."""

    async def scenario(session, bench):
        return (await session.prompt("echo")).raw

    settings = OpenSettings(max_turns=math.inf, wire="chat")
    assert run(scenario, settings=settings) == {"returned": {"text": "echo"}}


def test_provider_errors_reach_the_target_at_open_and_in_the_stream():
    """They are the kit's ProviderError, with the status."""
    bench = Bench(ProviderError("busy", 503), [TextDelta("a"), ProviderError("broken")])

    async def scenario(session, bench):
        return [(await session.prompt("go")).raw["raised"][0] for _ in range(2)]

    first, second = run(scenario, bench)
    assert (first["type"], first["fields"]) == ("loopspec_kit.ProviderError", {"status": 503})
    assert (second["message"], second["fields"]) == ("broken", {"status": None})
    assert "stream closed" not in bench.log


def test_a_failing_tool_is_a_tool_error_in_the_target():
    """The target's loop answers it as it likes."""

    async def scenario(session, bench):
        await session.prompt("go")
        return await session.history()

    assert run(scenario, Bench(CALL, ANSWER, tool=fail))[2] == ToolResult("c1", "probe", "no luck", True)


def test_a_fault_of_the_bench_is_never_the_targets():
    """Whoever waits gets BenchFault with the cause."""

    async def broken(bench, signal):
        raise KeyError("ours")

    async def scenario(session, bench):
        await session.prompt("go")

    with pytest.raises(BenchFault, match="KeyError: 'ours'"):
        run(scenario, Bench(CALL, tool=broken))


# -- barriers


@pytest.mark.parametrize(
    ("text", "timers", "threads"),
    [("wait", False, False), ("timer", True, False), ("thread", False, True)],
)
def test_the_barrier_says_what_could_still_move(text, timers, threads):
    """It is answered while the run waits, and again when nothing runs."""

    async def scenario(session, bench):
        task = asyncio.ensure_future(session.prompt(text))
        await asyncio.sleep(0)
        moving = await session.barrier()
        await session.cancel()
        await task
        return moving, await session.barrier()

    moving, after = run(scenario)
    assert (moving.timers, moving.threads) == (timers, threads)
    assert (after.timers, after.threads) == (False, False)


def test_the_barrier_comes_after_everything_before_it():
    """What was sent before it has been taken in, and its consequences have been told."""
    bench = Bench(ANSWER)

    async def scenario(session, bench):
        task = asyncio.ensure_future(session.prompt("wait"))
        await asyncio.sleep(0)
        await session.barrier()
        bench.log.append("barrier")
        await session.cancel()
        return (await task).raw

    assert run(scenario, bench) == {"returned": {"text": "woken"}}
    assert bench.log == ["told run_start", "barrier"]


def test_a_thread_that_waits_for_the_bench_does_not_move():
    """A synchronous loop in a thread tells and calls from there, in order."""
    bench = Bench(tool=wait)

    async def scenario(session, bench):
        task = asyncio.ensure_future(session.prompt("sync"))
        await bench.reached.wait()
        moving = await session.barrier()
        bench.release.set()
        return moving, (await task).raw

    moving, raw = run(scenario, bench)
    assert not moving.threads
    assert raw == {"returned": {"text": "at last"}}
    assert bench.log == ["told tool_start", "tool {'value': '1'} for c", "told tool_end"]


def test_call_sync_in_the_loops_own_thread_is_refused():
    """It would wait for itself; the message says what to do."""

    async def scenario(session, bench):
        return (await session.prompt("stuck")).raw["raised"][0]

    raised = run(scenario)
    assert raised["type"] == "builtins.RuntimeError"
    assert "asyncio.to_thread" in raised["message"]


# -- cancelling


def test_cancel_signals_the_running_tool_and_returns_afterwards():
    """The signal is told before the answer to ``cancel``."""
    bench = Bench(CALL, ANSWER, tool=wait)

    async def scenario(session, bench):
        task = asyncio.ensure_future(session.prompt("go"))
        await bench.reached.wait()
        await session.cancel()
        bench.log.append("returned")
        bench.release.set()
        await task

    run(scenario, bench)
    at = bench.log.index("tool signalled")
    assert bench.log[at : at + 3] == ["tool signalled", "returned", "request of 3"]


def test_cancel_signals_the_provider():
    """Between two pieces as well: the signal belongs to the whole reply."""
    gate = asyncio.Event()
    bench = Bench([TextDelta("a"), gate, *ANSWER])

    async def scenario(session, bench):
        task = asyncio.ensure_future(session.prompt("go"))
        await bench.reached.wait()
        await session.cancel()
        bench.log.append("returned")
        gate.set()
        await task

    run(scenario, bench)
    assert bench.log[-8:-5] == ["told text_delta", "provider signalled", "returned"]


def by_task():
    return OpenSettings(options={"cancel": "task"})


def test_task_cancel_ends_a_heeding_tool():
    """The kit cancels the task of the run; the bench's tool gives way; the chain says so."""
    bench = Bench(CALL, tool=wait)

    async def scenario(session, bench):
        task = asyncio.ensure_future(session.prompt("go"))
        await bench.reached.wait()
        await session.cancel()
        return (await task).raw["raised"]

    raised = run(scenario, bench, settings=by_task())
    assert [item["type"] for item in raised] == ["asyncio.exceptions.CancelledError"]
    assert bench.log[-1] == "tool cancelled"


def test_task_cancel_waits_for_a_deaf_tool():
    """A tool that goes on makes the target's await go on, as it would in one process."""
    bench = Bench(CALL, ANSWER, tool=deaf)

    async def scenario(session, bench):
        task = asyncio.ensure_future(session.prompt("go"))
        await bench.reached.wait()
        await session.cancel()
        return (await task).raw

    assert run(scenario, bench, settings=by_task()) == {"returned": {"text": "Done."}}
    assert "tool ignored a cancellation" in bench.log


def test_task_cancel_ends_the_stream_and_closes_it():
    """Cancelled while it waits for a piece: the bench's stream sees it, then its end."""
    bench = Bench([TextDelta("a"), asyncio.Event()])

    async def scenario(session, bench):
        task = asyncio.ensure_future(session.prompt("go"))
        await bench.reached.wait()
        await session.cancel()
        raised = (await task).raw["raised"]
        await session.barrier()
        return raised

    assert run(scenario, bench, settings=by_task())[0]["type"] == "asyncio.exceptions.CancelledError"
    assert bench.log[-2:] == ["stream cancelled", "stream closed"]


@pytest.mark.parametrize("options", [{}, {"cancel": "task"}, {"awaits": True}])
def test_cancel_with_the_prompt_comes_before_the_first_request(options):
    """Right behind the first step of the prompt: the target has been given it, and no more."""
    bench = Bench(ANSWER)

    async def scenario(session, bench):
        return (await session.prompt("go", cancel="with_prompt")).raw

    raw = run(scenario, bench, settings=OpenSettings(options=options))
    sent, returned = bench.log.index("cancel sent with the prompt"), bench.log.index("cancel returned")
    assert sent < returned
    assert not any(line.startswith("told text_delta") for line in bench.log[:sent])
    if options == {"cancel": "task"}:
        assert raw["raised"][0]["type"] == "asyncio.exceptions.CancelledError"


# -- in the listener


def test_on_raise_fails_inside_the_listener():
    """The second text delta that fits; the target sees the kit's ListenerError."""
    bench = Bench([TextDelta("a"), TextDelta("b"), *ANSWER])

    async def scenario(session, bench):
        settled = await session.prompt("go", on=(On(event="text_delta", nth=2, do="raise"),))
        await session.barrier()
        return settled.raw

    assert run(scenario, bench)["raised"][0]["type"] == "loopspec_kit.ListenerError"
    assert [line for line in bench.log if line.startswith(("told", "listener"))] == [
        "told run_start", "told text_delta", "told text_delta", "listener raised",
    ]  # fmt: skip


@pytest.mark.parametrize("awaits", [False, True])
def test_on_cancel_calls_the_targets_cancel_there(awaits):
    """Before the listener returns; an awaitable cancel has returned when it was awaited."""
    bench = Bench(ANSWER)

    async def scenario(session, bench):
        await session.prompt("go", on=[{"event": "text_delta", "do": "cancel"}])

    run(scenario, bench, settings=OpenSettings(options={"awaits": awaits}))
    at = bench.log.index("told text_delta")
    wanted = ["cancel sent in the listener, on text_delta", "provider signalled", "cancel returned"]
    assert [line for line in bench.log[at:] if line in wanted] == wanted


def test_on_prompt_lets_the_bench_give_a_second_one():
    """The kit says when; the prompt itself comes from the bench."""
    bench = Bench(ANSWER)

    async def scenario(session, bench):
        def second():
            bench.task = asyncio.ensure_future(session.prompt("echo second"))

        bench.child_second_prompt = second
        first = await session.prompt("go", on=[{"event": "text_delta", "do": "prompt"}])
        return first.raw, (await bench.task).raw

    first, second = run(scenario, bench)
    assert (first["returned"]["text"], second["returned"]["text"]) == ("Done.", "echo second")


def test_on_is_disarmed_when_its_prompt_settles():
    """What did not happen in its prompt does not happen in the next."""
    bench = Bench(ANSWER, ANSWER)

    async def scenario(session, bench):
        await session.prompt("go", on=[{"event": "text_delta", "nth": 2, "do": "raise"}])
        return (await session.prompt("go")).raw

    assert run(scenario, bench) == {"returned": {"text": "Done."}}


# -- forks, closing, awaitable operations


def test_a_fork_starts_with_the_history_of_its_session():
    """And goes its own way after that."""
    bench = Bench(ANSWER, ANSWER)

    async def scenario(session, bench):
        await session.prompt("go")
        fork = await session.fork()
        await fork.prompt("go")
        return len(await session.history()), len(await fork.history())

    assert run(scenario, bench) == (2, 4)


def test_operations_may_be_awaitable_and_optional():
    """No fork is None; a close that raises is nobody's business."""
    bench = Bench(ANSWER)

    async def scenario(session, bench):
        assert session.fork is None
        await session.prompt("go")
        await session.cancel()
        history = await session.history()
        await session.close()
        return len(history)

    assert run(scenario, bench, settings=OpenSettings(options={"awaits": True})) == 2


def test_closing_a_session_frees_the_run_that_hangs_in_it():
    """The child goes on, and the answer that nobody waits for any more is dropped."""
    adapter = loops()

    async def scenario(session, bench):
        task = asyncio.ensure_future(session.prompt("wait"))
        await session.barrier()
        task.cancel()
        pid = adapter.pid
        await session.close()
        other = await adapter.open(bench, OpenSettings())
        settled = await other.prompt("echo")
        await other.barrier()
        return pid == adapter.pid, settled.raw

    assert run(scenario, adapter=adapter) == (True, {"returned": {"text": "echo"}})


def test_the_kit_serves_an_adapter_from_a_file():
    """``loopspec_kit.py adapter.py:Name`` is a command."""
    kit = CHILDREN.parents[3] / "reference/loopspec/adapters/kits/loopspec_kit.py"
    adapter = ProcessAdapter(MANIFEST, [sys.executable, str(kit), f"{CHILDREN / 'loops.py'}:Adapter"])

    async def scenario(session, bench):
        return (await session.prompt("echo")).raw

    assert run(scenario, adapter=adapter) == {"returned": {"text": "echo"}}


def test_the_child_ends_when_its_host_is_gone():
    """Stdin ends while the target's own code blocks the event loop."""
    code = (
        "import loopspec_kit as kit, threading\n"
        "class A:\n"
        "    async def open(self, bench, settings):\n"
        "        threading.Event().wait()\n"
        "kit.serve(A)"
    )
    adapter = ProcessAdapter(MANIFEST, [sys.executable, "-c", code])

    async def main():
        task = asyncio.ensure_future(adapter.open(Bench(), OpenSettings()))
        while adapter.pid is None:
            await asyncio.sleep(0)
        child = adapter._host.channel.child
        handle = os.pidfd_open(child.pid)
        child._process.stdin.close()
        loop = asyncio.get_running_loop()
        dead = loop.create_future()
        loop.add_reader(handle, lambda: dead.done() or dead.set_result(True))
        await dead
        loop.remove_reader(handle)
        os.close(handle)
        with pytest.raises(Exception, match=signal.SIGKILL.name):
            await task

    asyncio.run(asyncio.wait_for(main(), 60))
