"""Loops that do wrong when they are cancelled: they stay, go on, say nothing, or say it to others."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from loopspec import machine as fsm
from loopspec.adapters.reference import ReferenceAdapter, ReferenceSession
from loopspec.loop import BusyError, ReferenceLoop
from loopspec.machine import Kind, Row, State
from loopspec.signals import Signal
from loopspec.vocabulary import Call, FailureReason, Message, Outcome, Piece, ToolResult
from meta.faulty import claims, fault, machine_with
from meta.faulty.parts import keeps_results, sends, set_to, without

# --------------------------------------------------------------------------------------------
# Runs that do not settle, or settle too early


class WaitsForTheProvider(ReferenceLoop):
    """Tells the provider to stop, and then waits until it has."""

    async def _carry_out(self, run: Any, output: fsm.Output) -> None:
        waits = {task for task in (run.opening, run.pull) if task is not None}
        await super()._carry_out(run, output)
        if isinstance(output, fsm.CloseStream) and waits:
            await asyncio.wait(waits)


class HearsBetweenPieces(ReferenceLoop):
    """Sets the signal at once, and looks at it when the next piece has come."""

    def cancel(self) -> None:
        run = self._run
        waits = None if run is None else run.pull or run.opening
        if run is None or waits is None:
            super().cancel()
            return
        run.signal.set()
        waits.add_done_callback(lambda _: run.feed(fsm.Cancelled()))


fault("cancellation.settles-deaf-provider", "waits-for-a-provider-to-stop",
      "A cancelled run settles when the provider has stopped, and not before.",
      loop=WaitsForTheProvider)  # fmt: skip
fault("cancellation.settles-deaf-provider", "hears-a-cancellation-only-when-a-piece-comes",
      "The cancellation is looked at when the provider has yielded once more.",
      loop=HearsBetweenPieces)  # fmt: skip

fault("cancellation.tool", "leaves-a-tool-behind-that-it-claims-to-wait-for",
      "The run settles while its tool still runs, where waiting is claimed.",
      loop=set_to(cancelled_tool="races"))  # fmt: skip
fault("cancellation.tool", "waits-for-a-tool-that-it-claims-to-race",
      "A tool that never ends holds the run, where racing is claimed.",
      claims(cancelled_tool="races"), loop=set_to(cancelled_tool="waits"))  # fmt: skip


def _waits_for_one(m: fsm.Machine, i: Any, out: list[fsm.Output]) -> None:
    """The first tool that ends after the cancellation is the last that is waited for."""
    fsm.ACTIONS["answer the call"](m, i, out)
    fsm._skip_rest(m, out, "the run was cancelled")
    fsm._settle(m, out, fsm.CANCELLED)


fault("cancellation.tool", "waits-for-one-of-several-tools",
      "The run settles when the first of its tools has ended.",
      claims(tools="parallel-source-order"),
      machine=machine_with(
          rows={(State.DRAINING, Kind.TOOL_SETTLED): (Row("always", State.FAILED, "wait for one"),)},
          actions={"wait for one": _waits_for_one},
      ))  # fmt: skip


# --------------------------------------------------------------------------------------------
# What the caller is told


def _settles_with(*settle: Any) -> dict[str, Any]:
    """The actions that end a cancelled run, with another settlement."""

    def ending(then: str) -> Any:
        def action(m: fsm.Machine, i: Any, out: list[fsm.Output]) -> None:
            fsm.ACTIONS[then](m, i, out)
            out[:] = [fsm.Settle(*settle) if output == fsm.CANCELLED else output for output in out]

        return action

    names = ("discard the prefix", "finalize the prefix", "fail as cancelled", "finish draining")
    return {name: ending(name) for name in names}


fault("cancellation.reported-as-cancelled", "calls-a-cancellation-an-error-of-the-provider",
      "A cancelled run fails as if its provider had failed.",
      machine=machine_with(
          actions=_settles_with(Outcome.FAILED, FailureReason.PROVIDER, "the request was aborted")
      ))  # fmt: skip
fault("cancellation.reported-as-cancelled", "calls-a-cancellation-a-success",
      "A cancelled run completes with nothing.",
      machine=machine_with(actions=_settles_with(Outcome.COMPLETED)))  # fmt: skip


# --------------------------------------------------------------------------------------------
# What begins all the same


_BETWEEN = (State.OPENING, State.BETWEEN, State.DISPATCHING, State.STARTING)


class HearsNothingBetween(ReferenceLoop):
    """A cancellation stops a reply, or a tool, and nothing where neither is under way."""

    def cancel(self) -> None:
        run = self._run
        if run is None or not run.machine.turn or run.machine.state not in _BETWEEN:
            super().cancel()


class StopsTheTools(ReferenceLoop):
    """A cancellation while tools run stops the tools; the model hears of it and goes on."""

    def cancel(self) -> None:
        run = self._run
        if run is not None and run.machine.running:
            run.tool_signal.set()
        else:
            super().cancel()


fault("cancellation.no-request-after", "asks-what-to-do-with-cancelled-tools",
      "A cancellation ends the tools that run, and the model is asked again.",
      loop=StopsTheTools)  # fmt: skip
fault("cancellation.no-request-after", "does-not-hear-a-cancellation-between-turns",
      "A cancellation while results are told, or tools announced, is not heard.",
      loop=HearsNothingBetween)  # fmt: skip


def _stay(*places: tuple[State, Kind]) -> dict[tuple[State, Kind], tuple[Row, ...]]:
    return {(state, kind): (Row("always", state, "do nothing"),) for state, kind in places}


fault("cancellation.no-tool-after", "starts-the-tool-that-it-has-announced",
      "A cancellation between a tool's announcement and its start is not looked at.",
      machine=machine_with(rows=_stay((State.STARTING, Kind.CANCEL))))  # fmt: skip
fault("cancellation.no-tool-after", "runs-a-cancelled-batch-to-its-end",
      "The cancellation is looked at before each request, and not before each tool.",
      machine=machine_with(rows=_stay(
          (State.DISPATCHING, Kind.CANCEL), (State.STARTING, Kind.CANCEL), (State.EXECUTING, Kind.CANCEL),
      )))  # fmt: skip


class ForgetsForAFailure(ReferenceLoop):
    """A tool that fails after the cancellation brings its run back to life."""

    async def _enter(self, run: Any, place: int, call: Call) -> fsm.ToolSettled:
        settled = await super()._enter(run, place, call)
        if settled.failure is not None and run.machine.state is State.DRAINING:
            run.machine.state, run.machine.cause, run.signal = State.EXECUTING, None, Signal()
        return settled


fault("cancellation.outranks-tool-failure", "lets-the-model-try-again-when-a-cancelled-tool-fails",
      "A tool that fails after the cancellation is a tool that failed, and the model goes on.",
      loop=ForgetsForAFailure)  # fmt: skip


class HearsOnceItHasAsked(ReferenceLoop):
    """A cancellation before the first request is dropped."""

    def cancel(self) -> None:
        run = self._run
        if run is None or run.machine.turn:
            super().cancel()


fault("cancellation.before-first-request", "asks-once-before-it-looks-at-the-cancellation",
      "A cancellation before the first request is not heard.", loop=HearsOnceItHasAsked)  # fmt: skip
fault("cancellation.before-first-request", "waits-for-tools-when-it-has-not-even-asked",
      "A run that is cancelled before its first request waits for tools to end.",
      machine=machine_with(
          rows={(State.OPENING, Kind.CANCEL): (Row("always", State.DRAINING, "drain, cancelled"),)}
      ))  # fmt: skip


# --------------------------------------------------------------------------------------------
# Calls that had not started


def _unstarted(result: Message) -> bool:
    return isinstance(result, ToolResult) and result.text.startswith("This call was not run")


fault("cancellation.unstarted-call", "sends-unstarted-calls-without-results",
      "Calls that a cancellation left unstarted are sent without results.",
      loop=sends(without(_unstarted)))  # fmt: skip
fault("cancellation.unstarted-call", "answers-unstarted-calls-as-if-they-had-run",
      "The result of a call that was not run is no error.",
      loop=keeps_results(
          lambda result: [dataclasses.replace(result, is_error=False) if _unstarted(result) else result]
      ))  # fmt: skip
fault("cancellation.unstarted-call", "gives-unstarted-calls-the-code-of-aborted-ones",
      "A call that was not run has the code of one that was.",
      claims(result_codes="yes"),
      loop=keeps_results(
          lambda result: [dataclasses.replace(result, code="ABORTED") if _unstarted(result) else result]
      ))  # fmt: skip
fault("cancellation.unstarted-call", "gives-unstarted-calls-no-code",
      "A call that was not run has no code, where codes are claimed.",
      claims(result_codes="yes"),
      loop=keeps_results(
          lambda result: [dataclasses.replace(result, code=None) if _unstarted(result) else result]
      ))  # fmt: skip


# --------------------------------------------------------------------------------------------
# Who hears of it


class ReadsAhead(ReferenceLoop):
    """A reply is read into a queue by a task that no cancellation reaches."""

    async def _open(self, run: Any, messages: tuple[Message, ...]) -> AsyncIterator[Piece]:
        stream = await self._model.open(messages, tuple(self._tools), Signal())
        queue: asyncio.Queue[Piece | Exception | None] = asyncio.Queue()

        async def read() -> None:
            try:
                async for piece in stream:
                    queue.put_nowait(piece)
            except Exception as error:
                queue.put_nowait(error)
            queue.put_nowait(None)

        async def pieces() -> AsyncIterator[Piece]:
            while (item := await queue.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                yield item

        self._spawn(read())
        return pieces()


class LetsAReplyOpen(ReferenceLoop):
    """A request whose reply has not opened is left to itself; its provider has no signal yet."""

    async def _open(self, run: Any, messages: tuple[Message, ...]) -> AsyncIterator[Piece]:
        own = Signal()
        stream = await self._model.open(messages, tuple(self._tools), own)
        run.signal.on_abort(own.set)
        return stream

    def _abandon(self, run: Any) -> None:
        run.opening = None
        super()._abandon(run)


fault("cancellation.reaches-provider", "reads-a-reply-to-its-end-behind-the-back-of-the-run",
      "A cancelled reply is read on in the background.", loop=ReadsAhead)  # fmt: skip
fault("cancellation.reaches-provider", "leaves-a-reply-that-has-not-opened-to-itself",
      "The provider hears nothing of a cancellation before its reply has opened.",
      loop=LetsAReplyOpen)  # fmt: skip


class SignalsTheFirst(ReferenceLoop):
    """The first tool of each batch has the run's signal, and the others have one that nobody sets."""

    async def _enter(self, run: Any, place: int, call: Call) -> fsm.ToolSettled:
        with_signal = dataclasses.replace(run, tool_signal=Signal()) if place else run
        return await super()._enter(with_signal, place, call)


def _drain_in_silence(m: fsm.Machine, i: Any, out: list[fsm.Output]) -> None:
    fsm.ACTIONS["drain, cancelled"](m, i, out)
    out[:] = [output for output in out if not isinstance(output, fsm.SignalTools)]


fault("cancellation.reaches-tools", "gives-its-tools-no-signal",
      "Tools have no signal, where one is claimed.", loop=set_to(tool_signal=""))  # fmt: skip
fault("cancellation.reaches-tools", "gives-its-signal-to-one-of-several-tools",
      "Of a batch that runs side by side the first tool alone sees the signal.",
      claims(tools="parallel-source-order"), loop=SignalsTheFirst)  # fmt: skip
fault("cancellation.reaches-tools", "waits-for-its-tools-without-telling-them",
      "A cancelled run waits for its tools to end, and does not tell them.",
      machine=machine_with(actions={"drain, cancelled": _drain_in_silence}))  # fmt: skip


# --------------------------------------------------------------------------------------------
# The cancel call


@dataclass
class WaitingSession(ReferenceSession):
    """A conversation whose cancel comes back when the run is over."""

    latest: asyncio.Future[Any] | None = None

    def prompt(self, text: str) -> Any:
        self.latest = asyncio.ensure_future(super().prompt(text))
        return self.latest

    def cancel(self) -> Any:
        super().cancel()
        return self._over()

    async def _over(self) -> None:
        if self.latest is not None:
            await asyncio.wait({self.latest})


class WaitingAdapter(ReferenceAdapter):
    """The reference loop whose cancel comes back when the run is over."""

    async def open(self, bench: Any, settings: Any) -> ReferenceSession:
        return WaitingSession((await super().open(bench, settings)).loop)


fault("cancellation.returns-at-once", "comes-back-from-cancel-when-the-run-is-over",
      "The cancel call waits for the settlement.", adapter=WaitingAdapter)  # fmt: skip


# --------------------------------------------------------------------------------------------
# Later runs


class OneSignalForTools(ReferenceLoop):
    """All runs share one signal for their tools."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._shared = Signal()

    def _begin(self, *args: Any, **kwargs: Any) -> None:
        super()._begin(*args, **kwargs)
        if self._run is not None:
            self._run.tool_signal = self._shared


class OneSignalForReplies(ReferenceLoop):
    """All runs show the provider one signal."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._shared = Signal()

    def cancel(self) -> None:
        if self._run is not None:
            self._shared.set()
        super().cancel()

    async def _open(self, run: Any, messages: tuple[Message, ...]) -> AsyncIterator[Piece]:
        return await self._model.open(messages, tuple(self._tools), self._shared)


class LeavesAFlag(ReferenceLoop):
    """A cancellation of a run leaves a flag, and the next run finds it."""

    left = False

    def cancel(self) -> None:
        self.left = self.left or self.leaves()
        super().cancel()

    def leaves(self) -> bool:
        return self._run is not None

    def _begin(self, *args: Any, **kwargs: Any) -> None:
        super()._begin(*args, **kwargs)
        if self.left:
            self.left = False
            super().cancel()


class LeavesAFlagIfIdle(LeavesAFlag):
    """A cancellation that finds no run leaves a flag."""

    def leaves(self) -> bool:
        return self._run is None


class LeavesAFlagIfCancelled(LeavesAFlag):
    """A second cancellation of a run leaves a flag."""

    def leaves(self) -> bool:
        return self._run is not None and self._run.signal.aborted


fault("cancellation.fresh-signal", "keeps-one-signal-for-the-tools-of-all-runs",
      "The tools of a later run see the signal of an earlier one.", loop=OneSignalForTools)  # fmt: skip
fault("cancellation.fresh-signal", "keeps-one-signal-for-the-replies-of-all-runs",
      "The provider sees, in a later run, the signal of an earlier one.",
      loop=OneSignalForReplies)  # fmt: skip
fault("cancellation.fresh-signal", "takes-its-flag-back-one-run-too-late",
      "A cancellation ends its run and the next one.", loop=LeavesAFlag)  # fmt: skip


class FreeOnceCancelled(ReferenceLoop):
    """A run that was asked to stop counts as over."""

    def prompt(self, text: str) -> asyncio.Future[Any]:
        if self._run is not None and self._run.signal.aborted:
            self._run = None
        return super().prompt(text)


class RefusesOnceCancelled(ReferenceLoop):
    """Prompts wait for a run, but not for one that was asked to stop."""

    def prompt(self, text: str) -> asyncio.Future[Any]:
        if self._run is not None and self._run.signal.aborted:
            refused: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            refused.set_exception(BusyError("the run is being cancelled"))
            return refused
        return super().prompt(text)


fault("cancellation.busy-until-settled", "is-free-as-soon-as-it-is-cancelled",
      "A prompt during a cancellation begins at once, where refusing is claimed.",
      loop=FreeOnceCancelled)  # fmt: skip
fault("cancellation.busy-until-settled", "refuses-prompts-while-it-is-being-cancelled",
      "A prompt during a cancellation is refused, where waiting is claimed.",
      claims(concurrent_prompt="queued"), loop=RefusesOnceCancelled)  # fmt: skip


# --------------------------------------------------------------------------------------------
# Cancellations that are to change nothing


class TakesBackWhenIdle(ReferenceLoop):
    """A cancellation while idle takes the last message back."""

    def cancel(self) -> None:
        if self._run is None:
            del self.messages[-1:]
        super().cancel()


fault("cancellation.idle", "keeps-an-idle-cancellation-for-the-next-run",
      "A cancellation while nothing runs ends the next run.", loop=LeavesAFlagIfIdle)  # fmt: skip
fault("cancellation.idle", "takes-a-message-back-when-it-is-cancelled-idle",
      "A cancellation while nothing runs takes the last message out of history.",
      loop=TakesBackWhenIdle)  # fmt: skip


class Toggles(ReferenceLoop):
    """A second cancellation takes the first one back."""

    def cancel(self) -> None:
        run = self._run
        if run is not None and run.machine.state is State.DRAINING:
            run.machine.state, run.machine.cause, run.signal = State.EXECUTING, None, Signal()
        else:
            super().cancel()


def _give_up(m: fsm.Machine, i: Any, out: list[fsm.Output]) -> None:
    fsm._skip_rest(m, out, "the run was cancelled twice")
    fsm._settle(m, out, fsm.Settle(Outcome.FAILED, FailureReason.UNKNOWN, "the run was cancelled twice"))


fault("cancellation.twice", "takes-a-cancellation-back-at-the-second",
      "A second cancellation of a run revokes the first.", loop=Toggles)  # fmt: skip
fault("cancellation.twice", "fails-for-another-reason-when-cancelled-twice",
      "A second cancellation ends the run as a failure that is none.",
      machine=machine_with(
          rows={(State.DRAINING, Kind.CANCEL): (Row("always", State.FAILED, "give up"),)},
          actions={"give up": _give_up},
      ))  # fmt: skip
fault("cancellation.twice", "ends-the-next-run-with-the-second-cancellation",
      "The second cancellation of a run is kept for the next.", loop=LeavesAFlagIfCancelled)  # fmt: skip
