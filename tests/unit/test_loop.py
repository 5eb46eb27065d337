"""The reference loop: the shell round the machine, and all that can come in between."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import pytest

from loopspec.bench.stillness import StillLoop
from loopspec.loop import (
    BusyError,
    InvalidLimit,
    ReferenceLoop,
    RunCancelled,
    RunFailed,
    Settlement,
    check_arguments,
)
from loopspec.machine import TABLE, Choices, IllegalInput, Kind, Machine, State
from loopspec.signals import Signal
from loopspec.vocabulary import (
    ArgumentsDelta,
    AssistantMessage,
    CallEnd,
    CallStart,
    Event,
    FailureReason,
    Message,
    Outcome,
    Piece,
    Reason,
    Terminator,
    TextDelta,
    ToolResult,
    UserMessage,
)

PROBE = {"type": "object", "properties": {"value": {"type": "string"}}, "required": ["value"]}


def answer(text: str = "Done.") -> list[Any]:
    return [TextDelta(text), Reason("stop"), Terminator()]


def calls(*ids: str) -> list[Any]:
    pieces: list[Any] = []
    for index, name in enumerate(ids):
        pieces += [
            CallStart(index, name, "probe"),
            ArgumentsDelta(index, f'{{"value": "{name}"}}'),
            CallEnd(index),
        ]
    return [*pieces, Reason("toolUse"), Terminator()]


class ScriptedModel:
    """Replies by request. An item is a piece, an exception to raise, or an event to wait for."""

    def __init__(
        self, *replies: list[Any], opening: Callable[[Signal], Awaitable[None]] | None = None
    ) -> None:
        self.replies = list(replies)
        self.requests: list[tuple[Message, ...]] = []
        self.signals: list[Signal] = []
        self.closed: list[int] = []
        self.opening = opening

    async def open(
        self, messages: tuple[Message, ...], tools: tuple[str, ...], signal: Signal
    ) -> AsyncIterator[Piece]:
        self.requests.append(messages)
        self.signals.append(signal)
        if self.opening is not None:
            await self.opening(signal)
        return self._stream(len(self.requests), self.replies.pop(0))

    async def _stream(self, number: int, reply: list[Any]) -> AsyncIterator[Piece]:
        try:
            for item in reply:
                if isinstance(item, Exception):
                    raise item
                if isinstance(item, asyncio.Event):
                    await item.wait()
                else:
                    yield item
        finally:
            self.closed.append(number)


class Tool:
    """A tool named ``probe`` that does what it is given."""

    name, schema = "probe", PROBE

    def __init__(self, *does: Callable[[Signal | None], Awaitable[str]]) -> None:
        self.does = list(does)
        self.started: list[str] = []

    async def call(self, arguments: Any, call_id: str, signal: Signal | None) -> str:
        self.started.append(call_id)
        return await self.does.pop(0)(signal) if self.does else f"result of {call_id}"


class Deaf:
    """Waits for an event and cannot be stopped before: cancelling it changes nothing."""

    def __init__(self, then: Exception | None = None) -> None:
        self.free = asyncio.Event()
        self.then = then
        self.left = False

    async def __call__(self, signal: Signal | None = None) -> str:
        while not self.free.is_set():
            try:
                await self.free.wait()
            except asyncio.CancelledError:
                continue
        self.left = True
        if self.then is not None:
            raise self.then
        return "late"


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run a story; whatever asyncio complains about afterwards fails it."""
    complaints: list[dict[str, Any]] = []

    async def story() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        await main
        await still()
        gc.collect()
        await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=StillLoop) as runner:
        runner.run(story())
    gc.collect()
    assert complaints == []


async def still() -> None:
    """Wait until nothing can move."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, StillLoop)
    await loop.still()


def loop_of(model: ScriptedModel, *tools: Tool, **claims: str) -> ReferenceLoop:
    return ReferenceLoop(model, tools or (Tool(),), Choices(**claims))


def texts(messages: Any) -> list[str]:
    return [message.text for message in messages]


async def cancelled(awaitable: Awaitable[Settlement]) -> None:
    with pytest.raises(RunCancelled):
        await awaitable


# --------------------------------------------------------------------------------------------
# A run


def test_an_answer_is_returned_and_recorded():
    """The prompt's future gives the settlement; history has the prompt and the answer."""

    async def story() -> None:
        model = ScriptedModel(answer())
        loop = loop_of(model)
        settled = await loop.prompt("go")
        assert (settled.outcome, settled.answer) == (Outcome.COMPLETED, loop.messages[-1])
        assert texts(loop.messages) == ["go", "Done."]
        assert not loop.running
        await still()
        assert model.closed == [1]

    run(story())


def test_a_batch_goes_back_to_the_model():
    """The results are part of the next request."""

    async def story() -> None:
        model, tool = ScriptedModel(calls("c1", "c2"), answer()), Tool()
        await loop_of(model, tool).prompt("go")
        assert tool.started == ["c1", "c2"]
        assert texts(model.requests[1]) == ["go", "", "result of c1", "result of c2"]

    run(story())


def test_the_loop_is_busy_from_the_call_on():
    """Not only from the first await: two prompts in a row cannot both begin."""

    async def story() -> None:
        loop = loop_of(ScriptedModel(answer()))
        first = loop.prompt("one")
        assert loop.running
        with pytest.raises(BusyError):
            await loop.prompt("two")
        await first
        assert texts(loop.messages) == ["one", "Done."]

    run(story())


def test_a_failure_is_raised_or_marked():
    """As claimed; the reason is the same."""

    async def story() -> None:
        with pytest.raises(RunFailed, match="down") as caught:
            await loop_of(ScriptedModel([RuntimeError("down")])).prompt("go")
        assert caught.value.reason is FailureReason.PROVIDER
        settled = await loop_of(ScriptedModel([RuntimeError("down")]), failure="marked").prompt("go")
        assert (settled.outcome, settled.reason, settled.message) == (Outcome.FAILED, "provider", "down")

    run(story())


def test_after_a_failure_the_next_prompt_completes():
    """Every settlement releases the loop."""

    async def story() -> None:
        loop = loop_of(ScriptedModel([TextDelta("a"), RuntimeError("down")], answer()))
        with pytest.raises(RunFailed):
            await loop.prompt("one")
        await loop.prompt("two")
        assert texts(loop.messages) == ["one", "two", "Done."]

    run(story())


@pytest.mark.parametrize("limit", [0, -1, True, 1.0, 1.5, float("inf"), "2"])
def test_a_limit_that_is_no_positive_whole_number_is_refused(limit):
    """Before anything happens, and in words that name the remedy."""
    with pytest.raises(InvalidLimit, match="positive whole number"):
        ReferenceLoop(ScriptedModel(), max_turns=limit)


def test_a_stream_is_closed_on_every_exit():
    """After completion, failure and cancellation, also where the body would go on."""

    async def story() -> None:
        model = ScriptedModel(
            [*answer(), TextDelta("more")], [TextDelta("a"), Terminator(), TextDelta("b")],
            [TextDelta("a"), asyncio.Event()],
        )  # fmt: skip
        loop = loop_of(model)
        await loop.prompt("one")
        with pytest.raises(RunFailed):
            await loop.prompt("two")
        third = loop.prompt("three")
        await still()
        loop.cancel()
        await cancelled(third)
        await still()
        assert model.closed == [1, 2, 3]

    run(story())


# --------------------------------------------------------------------------------------------
# Second prompts


def test_a_refused_prompt_leaves_no_trace():
    """It is in no history, and no request follows for it."""

    async def story() -> None:
        model = ScriptedModel(answer())
        loop = loop_of(model)
        first, second = loop.prompt("one"), loop.prompt("two")
        with pytest.raises(BusyError, match="wait for it, or cancel it"):
            await second
        await first
        assert texts(loop.messages) == ["one", "Done."]
        assert len(model.requests) == 1

    run(story())


def test_queued_prompts_run_in_order_one_after_the_other():
    """The second begins when the first has settled, however that settled."""

    async def story() -> None:
        model = ScriptedModel([RuntimeError("down")], answer("two"), answer("three"))
        loop = loop_of(model, concurrent_prompt="queued")
        one, two, three = (loop.prompt(text) for text in ("1", "2", "3"))
        with pytest.raises(RunFailed):
            await one
        assert (await two).answer == AssistantMessage(*_blocks("two"))
        assert (await three).answer == AssistantMessage(*_blocks("three"))
        assert texts(loop.messages) == ["1", "2", "two", "3", "three"]

    run(story())


def _blocks(text: str) -> tuple[Any, str]:
    from loopspec.vocabulary import Text

    return (Text(text),), "stop"


def test_cancelling_the_running_prompt_leaves_the_queued_one():
    """A cancellation ends one run."""

    async def story() -> None:
        loop = loop_of(ScriptedModel([asyncio.Event()], answer()), concurrent_prompt="queued")
        first, second = loop.prompt("one"), loop.prompt("two")
        await still()
        loop.cancel()
        await cancelled(first)
        assert (await second).outcome is Outcome.COMPLETED

    run(story())


def test_a_queued_prompt_that_nobody_waits_for_any_more_is_never_run():
    """To stop waiting is to cancel, also before it began."""

    async def story() -> None:
        gate = asyncio.Event()
        model = ScriptedModel([gate, *answer()], answer("three"))
        loop = loop_of(model, concurrent_prompt="queued")
        first, second, third = (loop.prompt(text) for text in ("1", "2", "3"))
        await still()
        second.cancel()
        gate.set()
        await first
        await third
        assert texts(loop.messages) == ["1", "Done.", "3", "three"]

    run(story())


def test_a_queued_prompt_can_be_given_up_while_it_runs():
    """Like any other."""

    async def story() -> None:
        model = ScriptedModel(answer(), [TextDelta("a"), asyncio.Event()])
        loop = loop_of(model, concurrent_prompt="queued")
        first, second = loop.prompt("1"), loop.prompt("2")
        await first
        await still()
        second.cancel()
        await still()
        assert not loop.running
        assert model.signals[1].aborted
        assert not model.signals[0].aborted

    run(story())


def test_a_prompt_apart_runs_beside_and_joins_the_history_whole():
    """Neither run's messages come between a call and its result of the other."""

    async def story() -> None:
        gate = asyncio.Event()

        async def waits(_: Signal | None) -> str:
            await gate.wait()
            return "at last"

        model = ScriptedModel(calls("c1"), answer("apart"), answer("first"))
        loop = loop_of(model, Tool(waits), concurrent_prompt="apart")
        first = loop.prompt("1")
        await still()
        second = loop.prompt("2")
        assert (await second).outcome is Outcome.COMPLETED
        assert texts(loop.messages) == ["1", ""]
        gate.set()
        await first
        assert texts(loop.messages) == ["1", "", "at last", "first", "2", "apart"]
        assert texts(model.requests[2]) == ["1", "", "at last"]

    run(story())


def test_closing_drops_the_prompts_that_wait():
    """Nothing begins any more, and those who wait are told."""

    async def story() -> None:
        model = ScriptedModel([asyncio.Event()])
        loop = loop_of(model, concurrent_prompt="queued")
        first, second = loop.prompt("1"), loop.prompt("2")
        await still()
        await loop.close()
        for prompt in (first, second):
            with pytest.raises(asyncio.CancelledError):
                await prompt
        await still()
        assert len(model.requests) == 1

    run(story())


# --------------------------------------------------------------------------------------------
# Cancelling


def test_cancelling_while_idle_changes_nothing_now_or_later():
    """Before the first run, between two, and twice."""

    async def story() -> None:
        model = ScriptedModel(answer(), answer())
        loop = loop_of(model)
        loop.cancel()
        await loop.prompt("one")
        loop.cancel()
        loop.cancel()
        assert (await loop.prompt("two")).outcome is Outcome.COMPLETED
        assert [signal.aborted for signal in model.signals] == [False, False]

    run(story())


def test_a_cancellation_in_the_tick_of_the_prompt_asks_nothing():
    """Nothing was begun yet, and nothing begins."""

    async def story() -> None:
        model = ScriptedModel()
        loop = loop_of(model)
        prompt = loop.prompt("go")
        loop.cancel()
        await cancelled(prompt)
        assert model.requests == []
        assert texts(loop.messages) == ["go"]

    run(story())


@pytest.mark.parametrize("where", ["opening", "stream"])
@pytest.mark.parametrize("then", [None, RuntimeError("much later")], ids=["yields late", "fails late"])
def test_a_deaf_provider_cannot_hold_a_cancelled_run(where, then):
    """Neither in its opening nor in its stream. What it does later is nobody's surprise."""

    async def story() -> None:
        deaf = Deaf(then)

        class DeafModel(ScriptedModel):
            async def _stream(self, number: int, reply: list[Any]) -> AsyncIterator[Piece]:
                yield TextDelta("a")
                await deaf()
                yield TextDelta("late")

        async def opening(_: Signal) -> None:
            await deaf()

        model = DeafModel([], opening=opening if where == "opening" else None)
        loop = loop_of(model)
        prompt = loop.prompt("go")
        await still()
        loop.cancel()
        await cancelled(prompt)
        assert not loop.running
        before = list(loop.messages)
        deaf.free.set()
        await still()
        assert deaf.left
        assert loop.messages == before

    run(story())


def test_a_deaf_tool_is_waited_for_or_raced_as_claimed():
    """Waited for, the run hangs with it; raced, its result comes too late for everything."""

    async def story() -> None:
        deaf = Deaf()
        loop = loop_of(ScriptedModel(calls("c1")), Tool(deaf))
        prompt = loop.prompt("go")
        await still()
        loop.cancel()
        await still()
        assert not prompt.done()
        deaf.free.set()
        await cancelled(prompt)

        deaf = Deaf(RuntimeError("much later"))
        loop = loop_of(ScriptedModel(calls("c1")), Tool(deaf), cancelled_tool="races")
        prompt = loop.prompt("go")
        await still()
        loop.cancel()
        await cancelled(prompt)
        before = list(loop.messages)
        deaf.free.set()
        await still()
        assert deaf.left
        assert loop.messages == before

    run(story())


def test_a_tool_sees_the_signal_where_that_is_claimed():
    """Otherwise it is given none."""

    async def story(claimed: str) -> None:
        seen: list[Signal | None] = []
        loop: ReferenceLoop

        async def looks(signal: Signal | None) -> str:
            seen.append(signal)
            loop.cancel()
            return "ok"

        loop = loop_of(ScriptedModel(calls("c1")), Tool(looks), tool_signal=claimed)
        await cancelled(loop.prompt("go"))
        (signal,) = seen
        assert (signal is not None and signal.aborted) == (claimed == "yes")

    run(story("yes"))
    run(story(""))


def test_a_signal_never_leaks_into_the_next_run():
    """Each run has its own."""

    async def story() -> None:
        model = ScriptedModel([asyncio.Event()], answer())
        loop = loop_of(model)
        first = loop.prompt("one")
        await still()
        loop.cancel()
        await cancelled(first)
        await loop.prompt("two")
        assert [signal.aborted for signal in model.signals] == [True, False]

    run(story())


@pytest.mark.parametrize("started", [False, True], ids=["before it begins", "in the stream"])
def test_cancelling_the_task_that_waits_cancels_the_run(started):
    """The run is released although nobody is there to be told."""

    async def story() -> None:
        model = ScriptedModel([TextDelta("a"), asyncio.Event()], answer())
        loop = loop_of(model)

        async def waits() -> None:
            await loop.prompt("one")

        task = asyncio.ensure_future(waits())
        await asyncio.sleep(0)
        if started:
            await still()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await still()
        assert not loop.running
        assert len(model.requests) == started
        assert (await loop.prompt("two")).outcome is Outcome.COMPLETED if started else True

    run(story())


def test_giving_up_the_future_itself_cancels_the_run():
    """Also if it was never awaited."""

    async def story() -> None:
        model = ScriptedModel([asyncio.Event()])
        loop = loop_of(model)
        future = loop.prompt("one")
        await still()
        future.cancel()
        await still()
        assert not loop.running
        assert model.signals[0].aborted

    run(story())


# --------------------------------------------------------------------------------------------
# Listeners


def fails_on(type: str) -> Callable[[Event], None]:
    def listener(event: Event) -> None:
        if event.type == type:
            raise RuntimeError("the listener broke")

    return listener


def test_a_failing_listener_fails_the_run_or_is_ignored_as_claimed():
    """Failing, the run is released and says why."""

    async def story() -> None:
        loop = loop_of(ScriptedModel(answer(), answer()))
        loop.subscribe(fails_on("text_delta"))
        with pytest.raises(RunFailed, match="the listener broke") as caught:
            await loop.prompt("go")
        assert caught.value.reason is FailureReason.LISTENER
        assert not loop.running
        loop = loop_of(ScriptedModel(answer()), listener_failure="ignored")
        loop.subscribe(fails_on("text_delta"))
        assert (await loop.prompt("go")).outcome is Outcome.COMPLETED

    run(story())


def test_a_listener_that_fails_in_a_batch_leaves_every_call_answered():
    """The call that was announced is never run, and has its error result."""

    async def story() -> None:
        tool = Tool()
        loop = loop_of(ScriptedModel(calls("c1", "c2")), tool)
        loop.subscribe(fails_on("tool_start"))
        with pytest.raises(RunFailed):
            await loop.prompt("go")
        assert tool.started == []
        assert [m.call_id for m in loop.messages if m.role == "tool"] == ["c1", "c2"]  # type: ignore[union-attr]

    run(story())


def test_a_listener_that_fails_after_its_wait_is_a_failing_listener():
    """It makes no difference how it failed."""

    async def story() -> None:
        async def slow(event: Event) -> None:
            await asyncio.sleep(0)
            fails_on("message_end")(event)

        loop = loop_of(ScriptedModel(answer()))
        loop.subscribe(slow)
        with pytest.raises(RunFailed) as caught:
            await loop.prompt("go")
        assert caught.value.reason is FailureReason.LISTENER

    run(story())


def test_a_slow_listener_delays_the_run_and_sees_everything_in_order():
    """The next thing happens when the event before it has been heard."""

    async def story() -> None:
        gate = asyncio.Event()
        heard: list[str] = []

        async def slow(event: Event) -> None:
            if event.type == "message_end" and event.role == "user":
                await gate.wait()
            heard.append(event.type)

        model = ScriptedModel(answer())
        loop = loop_of(model)
        loop.subscribe(slow)
        prompt = loop.prompt("go")
        await still()
        assert model.requests == []
        gate.set()
        await prompt
        assert heard == ["message_start", "message_end", "message_start", "text_delta", "message_end"]

    run(story())


def test_a_run_that_is_cancelled_while_a_listener_is_slow_asks_nothing_more():
    """The cancellation counts from its call, not from when the listener is done."""

    async def story() -> None:
        gate = asyncio.Event()
        model = ScriptedModel()
        loop = loop_of(model)

        async def slow(_: Event) -> None:
            await gate.wait()

        loop.subscribe(slow)
        prompt = loop.prompt("go")
        await still()
        loop.cancel()
        gate.set()
        await cancelled(prompt)
        assert model.requests == []

    run(story())


def test_a_listener_may_cancel_or_prompt():
    """From inside an event; the run that it hears of is the one that is cancelled."""

    async def story() -> None:
        loop = loop_of(ScriptedModel(answer()))
        refused: list[asyncio.Future[Settlement]] = []

        def listener(event: Event) -> None:
            if event.type == "text_delta":
                refused.append(loop.prompt("another"))
                loop.cancel()

        loop.subscribe(listener)
        await cancelled(loop.prompt("go"))
        with pytest.raises(BusyError):
            await refused[0]

    run(story())


def test_an_illegal_input_from_inside_a_listener_is_not_taken_for_its_failure():
    """A fault of the loop itself comes out as what it is, even where listeners are ignored."""

    async def story() -> None:
        table = {**TABLE, (State.STREAMING, Kind.CANCEL): ()}
        loop = ReferenceLoop(
            ScriptedModel(answer()), (), Choices(listener_failure="ignored"),
            machine=lambda choices, limit: Machine(choices, limit, table),
        )  # fmt: skip
        loop.subscribe(lambda event: loop.cancel() if event.type == "text_delta" else None)
        with pytest.raises(IllegalInput, match="streaming"):
            await loop.prompt("go")
        assert not loop.running

    run(story())


# --------------------------------------------------------------------------------------------
# Between a decision and its being carried out


def test_a_request_that_was_decided_but_not_begun_is_not_made_after_a_cancellation():
    """The cancellation comes in the one turn of the event loop between the two."""

    async def story() -> None:
        model = ScriptedModel(answer())
        loop = loop_of(model)
        prompt = loop.prompt("go")
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(loop.cancel)
        await cancelled(prompt)
        assert model.requests == []

    run(story())


@pytest.mark.parametrize("how", ["waits", "races"])
def test_a_tool_that_was_decided_but_not_entered_is_not_run_after_a_cancellation(how):
    """Its call has an error result, like any other that was not run."""

    async def story() -> None:
        tool = Tool()
        loop = loop_of(ScriptedModel(calls("c1")), tool, cancelled_tool=how)
        original = loop._run_tool

        def cancels(*given: Any) -> Any:
            loop.cancel()
            return original(*given)

        loop._run_tool = cancels  # type: ignore[method-assign]
        await cancelled(loop.prompt("go"))
        assert tool.started == []
        (result,) = [message for message in loop.messages if isinstance(message, ToolResult)]
        assert result.is_error

    run(story())


# --------------------------------------------------------------------------------------------
# Forks and arguments


def test_a_fork_goes_on_from_the_same_history_and_shares_nothing():
    """Both are loops of their own."""

    async def story() -> None:
        loop = loop_of(ScriptedModel(answer("one"), answer("two"), answer("three")))
        await loop.prompt("1")
        fork = loop.fork()
        await fork.prompt("2")
        await loop.prompt("3")
        assert texts(fork.messages) == ["1", "one", "2", "two"]
        assert texts(loop.messages) == ["1", "one", "3", "three"]
        assert loop.fork(1).messages == [UserMessage("1")]

    run(story())


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ('{"value": "a"}', ""),
        ('{"value": "a", "more": 1}', ""),
        ('{"value": "a', "not complete JSON"),
        ('["a"]', "not a JSON object"),
        ("{}", "'value' is missing"),
        ("", "'value' is missing"),
        ('{"value": 1}', "'value' is not of type string"),
        ('{"value": null}', "'value' is not of type string"),
    ],
)
def test_arguments_are_checked_against_the_schema(text, wrong):
    """What is wrong is said in words; what is right is handed over parsed."""
    arguments, words = check_arguments(text, PROBE)
    assert wrong in words
    assert (arguments is None) == bool(wrong)


def test_a_truth_value_is_no_whole_number():
    """In Python it is one; in JSON Schema it is not."""
    schema = {"properties": {"amount": {"type": "integer"}}}
    assert check_arguments('{"amount": true}', schema)[0] is None
    assert check_arguments('{"amount": 2}', schema)[0] == {"amount": 2}
