"""Loops that do not come back: busy for ever, out of order, or still at work when they have settled."""

from __future__ import annotations

import asyncio
from typing import Any

from loopspec import machine as fsm
from loopspec.loop import BusyError, ReferenceLoop
from loopspec.machine import Machine
from loopspec.vocabulary import (
    AssistantMessage,
    Call,
    Event,
    EventType,
    FailureReason,
    Message,
    Outcome,
    UserMessage,
)
from meta.faulty import claims, fault, machine_with
from meta.faulty.over_chat import ChatAdapter
from meta.faulty.parts import sends_as_it_is, set_to

QUEUED = claims(concurrent_prompt="queued")
APART = claims(concurrent_prompt="apart")
IGNORES = claims(listener_failure="ignored")

# --------------------------------------------------------------------------------------------
# After a run


class StaysBusy(ReferenceLoop):
    """Keeps a run that failed, as a run, until it is told to drop it."""

    def _release(self, run: Any) -> None:
        super()._release(run)
        if self.stays(run.settle):
            self._run = run

    def stays(self, settle: fsm.Settle | None) -> bool:
        return settle is not None and settle.outcome is Outcome.FAILED

    def prompt(self, text: str) -> asyncio.Future[Any]:
        if self._run is not None and self._run.machine.settled:
            refused: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            refused.set_exception(BusyError("another run has not settled"))
            return refused
        return super().prompt(text)


class StaysBusyWhenCancelled(StaysBusy):
    """As it says."""

    def stays(self, settle: fsm.Settle | None) -> bool:
        return settle is not None and settle.reason is FailureReason.CANCELLED


class StaysBusyAfterAListener(StaysBusy):
    """As it says."""

    def stays(self, settle: fsm.Settle | None) -> bool:
        return settle is not None and settle.reason is FailureReason.LISTENER


fault("run.released", "stays-busy-after-a-failure", "A run that failed is never let go of.",
      loop=StaysBusy)  # fmt: skip
fault("run.released", "stays-busy-after-a-cancellation", "A run that was cancelled is never let go of.",
      loop=StaysBusyWhenCancelled)  # fmt: skip
fault("run.recovers", "sends-what-is-left-of-a-failed-run",
      "Calls without results, and replies that failed, are in the next request.",
      machine=machine_with(actions={
          "fail as cancelled": lambda m, i, out: fsm._settle(m, out, fsm.CANCELLED),
          "fail as truncated": lambda m, i, out: fsm._settle(
              m, out, fsm._failure(FailureReason.LENGTH, "the reply was cut off")),
          "fail as refused": lambda m, i, out: fsm._settle(
              m, out, fsm._failure(FailureReason.REFUSAL, "the model refused to answer")),
      }), loop=sends_as_it_is(list), adapter=ChatAdapter)  # fmt: skip


class FailsOnceMore(ReferenceLoop):
    """Raises the failure of the last run again when the next one is over."""

    failed: fsm.Settle | None = None

    def _release(self, run: Any) -> None:
        before, self.failed = self.failed, None
        if before is not None:
            run.settle = before
        elif run.settle is not None and run.settle.reason is FailureReason.PROVIDER:
            self.failed = run.settle
        super()._release(run)


fault("run.recovers", "fails-once-more-for-the-same-reason",
      "The run after a failed one has the same outcome, whatever it came to.", loop=FailsOnceMore)  # fmt: skip


async def settled() -> None:
    """Let everybody hear of the settlement first; that takes them some turns of the event loop."""
    for _ in range(20):
        await asyncio.sleep(0)


class TellsLate(ReferenceLoop):
    """Tells the end of a cancelled reply when its run is over."""

    def _release(self, run: Any) -> None:
        super()._release(run)
        if run.settle is not None and run.settle.reason is FailureReason.CANCELLED:
            self._spawn(self._late(run))

    async def _late(self, run: Any) -> None:
        await settled()
        await self._emit(run, Event(EventType.TEXT_DELTA, role="assistant", text="(stopped)"))


class RecordsLate(ReferenceLoop):
    """Records a cancelled reply when the next prompt is given."""

    late: Message | None = None

    def _begin(self, text: str, future: Any, apart: bool = False) -> None:
        if self.late is not None:
            self.messages.append(self.late)
            self.late = None
        super()._begin(text, future, apart)

    def _release(self, run: Any) -> None:
        settle, blocks = run.settle, run.machine.assembler.interrupted_blocks()
        if (
            settle is not None
            and settle.reason is FailureReason.CANCELLED
            and blocks
            and not run.machine.reply
        ):
            self.late = AssistantMessage(blocks)
        super()._release(run)


class RunsAToolLate(ReferenceLoop):
    """Begins the tools of a cancelled batch when its run has settled."""

    def _release(self, run: Any) -> None:
        super()._release(run)
        settle = run.settle
        if settle is not None and settle.reason is FailureReason.CANCELLED:
            for place, call in enumerate(run.machine.calls):
                if place not in run.tools and call.call.name in self._tools:
                    self._spawn(self._late(run, place, call.call))

    async def _late(self, run: Any, place: int, call: Call) -> None:
        await settled()
        await self._enter(run, place, call)


fault("run.no-late-activity", "tells-something-when-its-run-is-over",
      "An event of a cancelled run comes behind its settlement.", loop=TellsLate)  # fmt: skip
fault("run.no-late-activity", "records-a-cancelled-reply-with-the-next-prompt",
      "A message of a cancelled run is put into history when nobody looks.", loop=RecordsLate)  # fmt: skip
fault("run.no-late-activity", "runs-the-rest-of-a-batch-when-its-run-is-over",
      "The tools that a cancellation left out run in the background.", loop=RunsAToolLate)  # fmt: skip

# --------------------------------------------------------------------------------------------
# Exceptions that nobody foresaw


class DiesWithItsStream(ReferenceLoop):
    """Leaves everything as it stands when a stream raises, and so stays busy."""

    def _release(self, run: Any) -> None:
        settle = run.settle
        broken = settle is not None and settle.reason is FailureReason.PROVIDER and run.machine.reason is None
        if broken:
            self._waiting.clear()
            run.pull = run.stream = None
        else:
            super()._release(run)

    def prompt(self, text: str) -> asyncio.Future[Any]:
        if self._run is not None and self._run.machine.settled:
            refused: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            refused.set_exception(BusyError("another run has not settled"))
            return refused
        return super().prompt(text)


fault("run.unexpected-stream-exception", "is-not-let-go-of-when-a-stream-raises",
      "The exception of a stream passes the place where the run would be released.",
      loop=DiesWithItsStream)  # fmt: skip

# --------------------------------------------------------------------------------------------
# Two prompts at once

fault("run.busy", "lets-a-prompt-wait-that-it-claims-to-refuse",
      "A second prompt waits for its turn.", loop=set_to(concurrent_prompt="queued"))  # fmt: skip
fault("run.busy", "refuses-a-prompt-that-it-claims-to-queue",
      "A second prompt is refused.", QUEUED, loop=set_to(concurrent_prompt="refused"))  # fmt: skip
fault("run.busy", "runs-a-prompt-apart-that-it-claims-to-queue",
      "A second prompt begins while the first one runs.", QUEUED, loop=set_to(concurrent_prompt="apart"))  # fmt: skip


class RecordsRefused(ReferenceLoop):
    """Puts a prompt into history before it looks whether it may run."""

    def prompt(self, text: str) -> asyncio.Future[Any]:
        if self._run is not None:
            self.messages.append(UserMessage(text))
        return super().prompt(text)


fault("run.busy", "keeps-a-prompt-that-it-refused",
      "A prompt that was refused is in history all the same.", loop=RecordsRefused)  # fmt: skip


class EndsTheFirst(ReferenceLoop):
    """A second prompt cancels the run that is under way."""

    def prompt(self, text: str) -> asyncio.Future[Any]:
        if self._run is not None:
            self.cancel()
        return super().prompt(text)


class LosesTheFirst(ReferenceLoop):
    """A run that goes apart overwrites what the other one adds meanwhile."""

    def _release(self, run: Any) -> None:
        super()._release(run)
        if run.apart:
            self.messages[:] = run.messages


fault("run.concurrent-prompts-do-not-corrupt", "ends-a-run-for-the-next-prompt",
      "A second prompt ends the first one's run.", QUEUED, loop=EndsTheFirst)  # fmt: skip
fault("run.concurrent-prompts-do-not-corrupt", "overwrites-a-run-with-one-that-ran-beside-it",
      "The history of the run that ends last is the history.", APART, loop=LosesTheFirst)  # fmt: skip

# --------------------------------------------------------------------------------------------
# Listeners

fault("run.listener-failure", "ignores-a-listener-that-it-claims-to-fail-by",
      "An exception in a listener changes nothing.", loop=set_to(listener_failure="ignored"))  # fmt: skip
fault("run.listener-failure", "fails-by-a-listener-that-it-claims-to-ignore",
      "An exception in a listener ends the run.", IGNORES, loop=set_to(listener_failure="fails"))  # fmt: skip
fault("run.listener-failure-contained", "stays-busy-after-a-listener-s-failure",
      "A run that a listener ended is never let go of.", loop=StaysBusyAfterAListener)  # fmt: skip


def _leave_calls(m: Machine, i: Any, out: list[fsm.Output]) -> None:
    fsm._drain_listener(m, i, out)
    assert m.cause is not None
    fsm._settle(m, out, m.cause)


fault("run.listener-failure-contained", "leaves-calls-open-when-a-listener-fails",
      "A run that a listener ended has calls without results, and sends them so.",
      machine=machine_with(actions={"fail by the listener": _leave_calls}),
      loop=sends_as_it_is(list))  # fmt: skip
