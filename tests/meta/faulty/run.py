"""Loops that are not free when they should be, not over when they say so, or spoilt by others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from loopspec import machine as fsm
from loopspec.loop import ReferenceLoop
from loopspec.machine import Kind, Row, State
from loopspec.vocabulary import (
    Call,
    Event,
    EventType,
    FailureReason,
    Message,
    Outcome,
    Piece,
    Reason,
    StopReason,
    TextDelta,
    UserMessage,
)
from meta.faulty import claims, fault, machine_with
from meta.faulty.over_chat import ChatAdapter
from meta.faulty.parts import sends_as_it_is, set_to

# --------------------------------------------------------------------------------------------
# Loops that are not free afterwards


def stays_busy(after: Callable[[fsm.Settle], bool]) -> type[ReferenceLoop]:
    """A loop that is not released after some settlements."""

    class StaysBusy(ReferenceLoop):
        def _release(self, run: Any) -> None:
            super()._release(run)
            if run.settle is not None and after(run.settle) and not run.apart:
                self._run = run

    return StaysBusy


fault("run.released", "stays-busy-after-a-failure", "A run that failed is never over.",
      loop=stays_busy(lambda settle: settle.reason is FailureReason.PROVIDER))  # fmt: skip
fault("run.released", "stays-busy-after-a-cancellation", "A run that was cancelled is never over.",
      loop=stays_busy(lambda settle: settle.reason is FailureReason.CANCELLED))  # fmt: skip
fault("run.released", "lets-prompts-wait-for-a-run-that-failed",
      "Prompts wait, and they wait for a run that is over.",
      claims(concurrent_prompt="queued"),
      loop=stays_busy(lambda settle: settle.outcome is Outcome.FAILED))  # fmt: skip


class KeepsTheError(ReferenceLoop):
    """The first request after a failure meets the old error."""

    broken: str | None = None

    async def _carry_out(self, run: Any, output: fsm.Output) -> None:
        if isinstance(output, fsm.Settle) and output.reason is FailureReason.PROVIDER:
            self.broken = None if self.broken else output.message
        await super()._carry_out(run, output)

    async def _open(self, run: Any, messages: tuple[Message, ...]) -> AsyncIterator[Piece]:
        if self.broken:
            raise ConnectionError(self.broken)
        return await super()._open(run, messages)


fault("run.recovers", "fails-once-more-for-an-old-error",
      "The prompt after a failed one fails with the same error, and nothing is asked.",
      loop=KeepsTheError)  # fmt: skip
fault("run.recovers", "asks-with-the-half-of-a-reply-that-failed",
      "The request after a failed reply has its calls, and no results for them.",
      loop=sends_as_it_is(list), adapter=ChatAdapter)  # fmt: skip


# --------------------------------------------------------------------------------------------
# Runs that are not over when they have settled


class ReadsOn(ReferenceLoop):
    """What a provider that was given up still sends is told."""

    def _abandon(self, run: Any) -> None:
        stream, pull, run.stream, run.pull = run.stream, run.pull, None, None
        if stream is not None and pull is not None:
            self._spawn(self._read_on(run, stream, pull))
        super()._abandon(run)

    async def _read_on(self, run: Any, stream: Any, pull: Any) -> None:
        piece = await pull
        while True:
            if isinstance(piece, TextDelta):
                await self._emit(run, Event(type=EventType.TEXT_DELTA, role="assistant", text=piece.text))
            piece = await self._pull(stream)


class TellsRacedTools(ReferenceLoop):
    """The end of a tool is told whenever it comes."""

    async def _run_tool(self, run: Any, place: int, call: Call) -> None:
        await super()._run_tool(run, place, call)
        if run.settle is not None:
            await self._emit(run, Event(type=EventType.TOOL_END, call_id=call.id))


class AsksForRacedTools(ReferenceLoop):
    """A result that comes after the end of its run is shown to the model."""

    async def _run_tool(self, run: Any, place: int, call: Call) -> None:
        await super()._run_tool(run, place, call)
        if run.settle is not None:
            await self._model.open(self.normalise(run.messages), tuple(self._tools), run.tool_signal)


class StartsAfterRacedTools(ReferenceLoop):
    """A tool that ends lets the next call of its batch run, whether or not the run is over."""

    async def _run_tool(self, run: Any, place: int, call: Call) -> None:
        await super()._run_tool(run, place, call)
        rest = [status.call for status in run.machine.calls[place + 1 :]]
        if run.settle is not None and rest:
            await self._enter(run, place + 1, rest[0])


fault("run.no-late-activity", "tells-what-a-given-up-provider-still-sends",
      "Pieces of a reply are told after the run has settled.", loop=ReadsOn)  # fmt: skip
fault("run.no-late-activity", "tells-the-end-of-a-tool-that-it-left-behind",
      "A tool that outlives its run is told as ended after the settlement.",
      claims(cancelled_tool="races"), loop=TellsRacedTools)  # fmt: skip
fault("run.no-late-activity", "asks-the-model-about-a-late-result",
      "A tool that outlives its run makes it ask once more.",
      claims(cancelled_tool="races"), loop=AsksForRacedTools)  # fmt: skip
fault("run.no-late-activity", "starts-the-next-tool-when-a-late-one-ends",
      "A tool that outlives its run starts the next of its batch.",
      claims(cancelled_tool="races"), loop=StartsAfterRacedTools)  # fmt: skip


# --------------------------------------------------------------------------------------------
# Streams that break


def _record_what_came(m: fsm.Machine, i: Any, out: list[fsm.Output]) -> None:
    """What came before the stream broke is taken for a reply that ended with a stop."""
    if isinstance(i, fsm.StreamFailed):
        m.reason = Reason(StopReason.STOP)
    fsm.ACTIONS["record the reply"](m, i, out)


class WaitsForMore(ReferenceLoop):
    """An exception of the stream ends the reading of it, and nothing else."""

    @staticmethod
    async def _pull(stream: AsyncIterator[Piece]) -> Piece:
        try:
            return await stream.__anext__()
        except StopAsyncIteration:
            raise
        except Exception:
            never: asyncio.Future[Piece] = asyncio.get_running_loop().create_future()
            return await never


fault("run.unexpected-stream-exception", "takes-a-broken-reply-for-a-whole-one",
      "A reply whose stream broke is recorded as if it had stopped there.",
      machine=machine_with(
          rows={(State.STREAMING, Kind.STREAM_FAILED): (Row("always", State.RECORDED, "record the reply"),)},
          actions={"record the reply": _record_what_came},
      ))  # fmt: skip
fault("run.unexpected-stream-exception", "waits-for-more-of-a-stream-that-broke",
      "The task that reads the stream dies of an exception, and the run waits for it.",
      loop=WaitsForMore)  # fmt: skip


# --------------------------------------------------------------------------------------------
# Two prompts at once

for _claimed, _done in (
    ("refused", "queued"), ("refused", "apart"), ("queued", "refused"), ("queued", "apart"),
    ("apart", "refused"), ("apart", "queued"),
):  # fmt: skip
    _says = {"refused": "refuse", "queued": "queue", "apart": "run-apart"}
    _does = {"refused": "refuses", "queued": "queues", "apart": "runs-apart"}[_done]
    fault("run.busy", f"{_does}-a-second-prompt-that-it-claims-to-{_says[_claimed]}",
          f"A second prompt is {_done}, where {_claimed} is claimed.",
          claims(concurrent_prompt=_claimed), loop=set_to(concurrent_prompt=_done))  # fmt: skip


class RemembersARefusedPrompt(ReferenceLoop):
    """A prompt that was refused stands in history once the run is over."""

    def prompt(self, text: str) -> asyncio.Future[Any]:
        if self._run is not None:
            self._held_back.append(UserMessage(text))
        return super().prompt(text)


fault("run.busy", "keeps-the-text-of-a-refused-prompt",
      "A prompt is refused, and its text is sent with the next request.",
      loop=RemembersARefusedPrompt)  # fmt: skip


class CancelsTheFirst(ReferenceLoop):
    """A second prompt ends the run that is under way, and waits for its end."""

    def prompt(self, text: str) -> asyncio.Future[Any]:
        self.cancel()
        return super().prompt(text)


class PutsItInAtOnce(ReferenceLoop):
    """A prompt stands in history as soon as it is given, and history is sent as it stands."""

    def prompt(self, text: str) -> asyncio.Future[Any]:
        if self._run is not None:
            self.messages.append(UserMessage(text))
        return super().prompt(text)

    def normalise(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        return tuple(messages)


class ForgetsTheRunBefore(ReferenceLoop):
    """The prompt that waited begins from where the run before it began."""

    def _release(self, run: Any) -> None:
        if self._waiting and not run.apart:
            del self.messages[run.first :]
        super()._release(run)


fault("run.concurrent-prompts-do-not-corrupt", "ends-a-run-for-the-sake-of-a-second-prompt",
      "A second prompt cancels the run that is under way.",
      claims(concurrent_prompt="queued"), loop=CancelsTheFirst)  # fmt: skip
fault("run.concurrent-prompts-do-not-corrupt", "puts-a-second-prompt-between-a-call-and-its-result",
      "A prompt that waits stands in history at once, wherever that is.",
      claims(concurrent_prompt="queued"), loop=PutsItInAtOnce)  # fmt: skip
fault("run.concurrent-prompts-do-not-corrupt", "forgets-a-run-when-a-prompt-waits-for-it",
      "The history that a waiting prompt begins with lacks the run that it waited for.",
      claims(concurrent_prompt="queued"), loop=ForgetsTheRunBefore)  # fmt: skip


# --------------------------------------------------------------------------------------------
# Listeners that fail

fault("run.listener-failure", "ignores-a-failing-listener-that-it-claims-to-fail-for",
      "A listener's exception is swallowed, where failing the run is claimed.",
      loop=set_to(listener_failure="ignored"))  # fmt: skip
fault("run.listener-failure", "fails-for-a-listener-that-it-claims-to-ignore",
      "A listener's exception fails the run, where ignoring it is claimed.",
      claims(listener_failure="ignored"), loop=set_to(listener_failure="fails"))  # fmt: skip


def _leave_the_rest(m: fsm.Machine, i: Any, out: list[fsm.Output]) -> None:
    """The run fails, and nobody answers the calls that are still open."""
    out.append(fsm.CloseStream())
    fsm._settle(m, out, fsm._failure(FailureReason.LISTENER, i.message))


fault("run.listener-failure-contained", "stays-busy-when-a-listener-failed",
      "A listener's exception fails the run, and does not release it.",
      loop=stays_busy(lambda settle: settle.reason is FailureReason.LISTENER))  # fmt: skip
fault("run.listener-failure-contained", "leaves-calls-open-when-a-listener-failed",
      "A listener's exception ends the batch without results for the rest of it.",
      loop=sends_as_it_is(list),
      machine=machine_with(actions={"fail by the listener": _leave_the_rest}))  # fmt: skip
fault("run.listener-failure-contained", "waits-for-tools-that-a-failing-listener-kept-from-running",
      "A listener's exception before a tool has started makes the run wait for that tool.",
      machine=machine_with(rows={
          (state, Kind.LISTENER_FAILED): (Row("always", State.DRAINING, "drain, listener failed"),)
          for state in (State.DISPATCHING, State.STARTING)
      }))  # fmt: skip
