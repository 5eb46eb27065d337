"""Loops that read a reply wrongly: past its end, not to its end, or as if it had one."""

from __future__ import annotations

import json
from typing import Any

from loopspec import machine as fsm
from loopspec.assembler import Assembler
from loopspec.loop import ReferenceLoop
from loopspec.machine import ACTIONS, Kind, Machine, Row, State
from loopspec.vocabulary import (
    ArgumentsDelta,
    AssistantMessage,
    Block,
    Call,
    CallStart,
    Message,
    Outcome,
    Piece,
    Reason,
    Terminator,
    TextDelta,
    is_complete_json,
)
from meta.faulty import fault, machine_with
from meta.faulty.parts import assembles

# --------------------------------------------------------------------------------------------
# Ends that are none


def _as_stop(m: Machine, i: Any, out: list[fsm.Output]) -> None:
    m.reason = Reason("stop")
    ACTIONS["record the reply"](m, i, out)


def takes_for_stop(*kinds: Kind) -> type[Machine]:
    """A machine that records a reply as whole when one of these comes in its middle."""
    row = (Row("always", State.RECORDED, "take it for a stop"),)
    rows = {(state, kind): row for state in (State.STREAMING, State.ENDING) for kind in kinds}
    return machine_with(rows=rows, actions={"take it for a stop": _as_stop})


fault("stream.missing-reason-fails", "takes-a-stream-that-ends-without-a-reason-for-a-stop",
      "Keeps half an answer as the answer.", machine=takes_for_stop(Kind.STREAM_ENDED))  # fmt: skip
fault("stream.missing-reason-fails", "takes-a-terminator-without-a-reason-for-a-stop",
      "Asks only whether the stream was ended in good order.", machine=takes_for_stop(Kind.TERMINATOR))  # fmt: skip
fault("stream.error-mid-reply", "takes-a-stream-that-breaks-for-a-stop",
      "Swallows the failure of a stream, and goes on with what had come.",
      machine=takes_for_stop(Kind.STREAM_FAILED))  # fmt: skip


def _answer_with_nothing(m: Machine, i: Any, out: list[fsm.Output]) -> None:
    out.append(fsm.CloseStream())
    fsm._settle(m, out, fsm.Settle(Outcome.COMPLETED, answer=AssistantMessage(())))


fault("stream.error-before-first-event", "answers-with-nothing-when-the-request-fails",
      "Completes with an empty answer where the provider refuses the request.",
      machine=machine_with(
          rows={(State.REQUESTING, Kind.STREAM_FAILED): (Row("always", State.COMPLETED, "answer with nothing"),)},
          actions={"answer with nothing": _answer_with_nothing},
      ))  # fmt: skip

# --------------------------------------------------------------------------------------------
# Reading on, and letting go

_READS_ON = {
    (State.ENDING, Kind.TERMINATOR): (Row("always", State.ENDING, "do nothing"),),
}
fault("stream.acts-without-end-of-body", "waits-for-the-end-of-the-body",
      "Takes the end of the body, and not the terminator, for the end of the reply.",
      machine=machine_with(rows=_READS_ON))  # fmt: skip
fault("stream.nothing-after-terminator", "keeps-what-comes-after-the-terminator",
      "Reads to the end of the body, and takes all of it for the reply.",
      machine=machine_with(rows=_READS_ON))  # fmt: skip


class TerminatorLast:
    """A stream whose terminator comes behind all that came with it."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.came: list[Piece] = []

    def __aiter__(self) -> TerminatorLast:
        return self

    async def __anext__(self) -> Piece:
        if self.came:
            return self.came.pop(0)
        piece: Piece = await self.inner.__anext__()
        if isinstance(piece, Terminator):
            while (late := self.inner.ready()) is not None:
                self.came.append(late)
            self.came = [item for item in self.came if not isinstance(item, Terminator)]
            self.came.append(piece)
            return self.came.pop(0)
        return piece

    async def aclose(self) -> None:
        await self.inner.aclose()


class TakesWhatCameToo(ReferenceLoop):
    """Looks for the terminator only when everything that was there with it has been taken."""

    async def _open(self, run: Any, messages: tuple[Message, ...]) -> Any:
        return TerminatorLast(await super()._open(run, messages))


fault("stream.nothing-after-terminator", "takes-what-came-with-the-terminator",
      "Waits for nothing after the terminator, and takes what is already there.", loop=TakesWhatCameToo)  # fmt: skip


class ClosesNothing(ReferenceLoop):
    """Leaves every stream to the garbage collector."""

    def _close_stream(self, stream: Any) -> None: ...


class ClosesOnlyWhatIsOver(ReferenceLoop):
    """Closes a stream whose reply is over, and leaves one that it gives up."""

    def _abandon(self, run: Any) -> None:
        if run.pull is not None:
            run.stream = None
        super()._abandon(run)


fault("stream.closed-on-every-exit", "closes-no-stream",
      "Stops reading at the terminator, and leaves the stream open.", loop=ClosesNothing)  # fmt: skip
fault("stream.closed-on-every-exit", "leaves-open-the-stream-of-a-reply-that-it-gives-up",
      "Closes the streams of whole replies, and not that of a cancelled one.", loop=ClosesOnlyWhatIsOver)  # fmt: skip

# --------------------------------------------------------------------------------------------
# Calls that are not whole, or not their own


def _all_whole(m: Machine, i: Any, out: list[fsm.Output]) -> None:
    ACTIONS["record the reply"](m, i, out)
    for call in m.calls:
        call.whole = True


fault("stream.unfinished-call-not-started", "starts-a-call-whose-end-never-came",
      "Asks whether the arguments parse, and not whether they are all there.",
      machine=machine_with(actions={"record the reply": _all_whole}))  # fmt: skip


def _repaired(text: str) -> str:
    """The text with quotes and brackets added until it parses."""
    for end in ("", '"', "}", '"}', ": null}", '": null}'):
        if is_complete_json(text + end):
            return text + end
    return text


def _repair(blocks: tuple[Block, ...]) -> list[Block]:
    return [
        Call(block.id, block.name, _repaired(block.arguments)) if isinstance(block, Call) else block
        for block in blocks
    ]


def _empty_if_broken(blocks: tuple[Block, ...]) -> list[Block]:
    return [
        Call(block.id, block.name, block.arguments if is_complete_json(block.arguments) else json.dumps({}))
        if isinstance(block, Call) else block
        for block in blocks
    ]  # fmt: skip


fault("stream.cut-arguments-not-repaired", "repairs-arguments-that-were-cut",
      "Closes quotes and brackets until the arguments parse, and runs that.",
      machine=machine_with(assembles=assembles(_repair)))  # fmt: skip
fault("stream.cut-arguments-not-repaired", "runs-with-nothing-what-does-not-parse",
      "Takes arguments that do not parse for no arguments at all.",
      machine=machine_with(assembles=assembles(_empty_if_broken)))  # fmt: skip


class ToTheLatest(Assembler):
    """Adds arguments to the call that began last, whatever index they have."""

    def push(self, piece: Piece) -> None:
        if isinstance(piece, CallStart):
            self.latest = piece.index
        elif isinstance(piece, ArgumentsDelta):
            piece = ArgumentsDelta(self.latest, piece.text)
        super().push(piece)


class OneAtATime(Assembler):
    """Takes the start of a call for the end of the one before."""

    def push(self, piece: Piece) -> None:
        if isinstance(piece, CallStart):
            self.latest = piece.index
        elif isinstance(piece, ArgumentsDelta) and piece.index != self.latest:
            return
        super().push(piece)


class TrimsPieces(Assembler):
    """Trims each piece of text that comes."""

    def push(self, piece: Piece) -> None:
        super().push(TextDelta(piece.text.strip()) if isinstance(piece, TextDelta) else piece)


class DropsRepeats(Assembler):
    """Takes a piece of arguments that is the same as the one before for a repeat."""

    before: str | None = None

    def push(self, piece: Piece) -> None:
        if isinstance(piece, ArgumentsDelta):
            if piece.text == self.before:
                return
            self.before = piece.text
        super().push(piece)


fault("stream.interleaved-calls", "adds-arguments-to-the-latest-call",
      "Puts the arguments of calls that interleave into the one that began last.",
      machine=machine_with(assembles=ToTheLatest))  # fmt: skip
fault("stream.interleaved-calls", "drops-arguments-of-all-but-the-latest-call",
      "Loses the arguments that come for a call when another has begun.",
      machine=machine_with(assembles=OneAtATime))  # fmt: skip
fault("stream.chunking-invariant", "trims-each-piece-of-text",
      "Loses the white space at which a text was cut.", machine=machine_with(assembles=TrimsPieces))  # fmt: skip
fault("stream.chunking-invariant", "drops-pieces-that-repeat",
      "Loses the second of two equal pieces of arguments.", machine=machine_with(assembles=DropsRepeats))  # fmt: skip
