"""Loops that lose, mar or leak what was delivered before a cancellation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

from loopspec import machine as fsm
from loopspec.assembler import Assembler
from loopspec.loop import ReferenceLoop
from loopspec.machine import ACTIONS, Machine
from loopspec.vocabulary import (
    AssistantMessage,
    Block,
    Call,
    EventType,
    FailureReason,
    Message,
    Reasoning,
    StopReason,
    Text,
    UserMessage,
)
from meta.faulty import fault, machine_with
from meta.faulty.events import DURABLE, always, holding, tells
from meta.faulty.parts import keeps, sends, set_to, without

Blocks = tuple[Block, ...]


def _cut(message: Message) -> bool:
    return isinstance(message, AssistantMessage) and message.interrupted


def keeps_cut(**changes: Any) -> type[ReferenceLoop]:
    """A loop that keeps an interrupted message with some of its fields changed."""
    return keeps(lambda m: [dataclasses.replace(m, **changes)] if _cut(m) else [m])


def cuts(change: Callable[[Assembler, Blocks], Iterable[Block]]) -> type[Machine]:
    """A machine that makes other blocks of a reply that was cut."""

    class Cuts(Assembler):
        def interrupted_blocks(self) -> Blocks:
            return tuple(change(self, super().interrupted_blocks()))

    return machine_with(assembles=Cuts)


def _with_text(change: Callable[[str], str]) -> Callable[[Assembler, Blocks], Iterable[Block]]:
    return lambda _, blocks: [
        type(block)(change(block.text)) if isinstance(block, Text | Reasoning) else block for block in blocks
    ]


# --------------------------------------------------------------------------------------------
# What is kept

fault("prefix.kept", "throws-away-what-it-claims-to-keep",
      "A cancelled reply leaves nothing in history.", DURABLE, loop=set_to(cancelled_prefix="discard"))  # fmt: skip
fault("prefix.kept", "keeps-a-prefix-as-if-it-were-whole",
      "What was delivered is a message, and nothing says that it was cut.", DURABLE,
      loop=keeps_cut(interrupted=False, stop_reason=StopReason.STOP))  # fmt: skip
fault("prefix.blocks", "keeps-the-calls-of-a-prefix",
      "The interrupted message has the calls that had begun.", DURABLE,
      machine=cuts(lambda self, _: self.blocks()))  # fmt: skip
fault("prefix.blocks", "trims-a-prefix", "The white space at the cut is lost.", DURABLE,
      machine=cuts(_with_text(str.strip)))  # fmt: skip
fault("prefix.blocks", "keeps-only-the-text-of-a-prefix", "The reasoning is left out.", DURABLE,
      machine=cuts(lambda _, blocks: [block for block in blocks if isinstance(block, Text)]))  # fmt: skip


def _keep_anything(m: Machine, i: Any, out: list[fsm.Output]) -> None:
    if m.assembler.interrupted_blocks():
        ACTIONS["finalize the prefix"](m, i, out)
        return
    out.append(fsm.CloseStream())
    out.append(fsm.Append(AssistantMessage((), stop_reason=StopReason.ABORTED, interrupted=True)))
    fsm._end_stream(m, out)
    fsm._settle(m, out, fsm.CANCELLED)


fault("prefix.blank-writes-no-message", "keeps-a-prefix-of-nothing",
      "A cancellation before the first piece leaves an empty message.", DURABLE,
      machine=machine_with(actions={"finalize the prefix": _keep_anything}))  # fmt: skip
fault("prefix.blank-writes-no-message", "keeps-a-prefix-of-white-space",
      "A reply that had sent only white space leaves a message of it.", DURABLE,
      machine=cuts(lambda self, kept: kept or [b for b in self.blocks() if not isinstance(b, Call)]))  # fmt: skip
fault("prefix.blank-writes-no-message", "keeps-calls-where-nothing-was-said",
      "A reply that had only begun a call leaves a message with that call.", DURABLE,
      machine=cuts(lambda self, kept: kept or [b for b in self.blocks() if isinstance(b, Call)]))  # fmt: skip


class SignsOnlyWhatIsWhole(ReferenceLoop):
    """Leaves the provider's name out of a message that was cut."""

    def _signed(self, message: Message) -> Message:
        return message if _cut(message) else super()._signed(message)


fault("prefix.names-its-provider", "names-no-provider-of-a-prefix",
      "Whole messages say where they came from, and the interrupted one does not.", DURABLE,
      loop=SignsOnlyWhatIsWhole)  # fmt: skip


class SignsPrefixItself(ReferenceLoop):
    """Names itself, not the provider, as the origin of a message that was cut."""

    def _signed(self, message: Message) -> Message:
        signed = super()._signed(message)
        if _cut(signed) and isinstance(signed, AssistantMessage):
            return dataclasses.replace(signed, provider="the loop")
        return signed


fault("prefix.names-its-provider", "names-itself-as-provider-of-a-prefix",
      "The interrupted message says that it came from the loop.", DURABLE,
      loop=SignsPrefixItself)  # fmt: skip


def _stream_end_first(m: Machine, i: Any, out: list[fsm.Output]) -> None:
    ACTIONS["finalize the prefix"](m, i, out)
    out.sort(key=lambda item: not (isinstance(item, fsm.Emit) and item.event.type == EventType.STREAM_END))


fault("prefix.order", "tells-the-end-of-the-stream-first",
      "The stream is told to end, and then its message.", DURABLE,
      machine=machine_with(actions={
          "finalize the prefix": _stream_end_first,
      }))  # fmt: skip


fault("prefix.order", "tells-no-reason-with-the-end-of-a-cancelled-run",
      "The run's end has the reason of a failed provider.", DURABLE,
      loop=always(lambda e: (
          (dataclasses.replace(e, reason=FailureReason.PROVIDER),)
          if e.type == EventType.RUN_END and e.reason == FailureReason.CANCELLED else (e,)
      )))  # fmt: skip
fault("prefix.between-shown-and-sent", "keeps-less-than-it-has-shown",
      "The last characters on the screen are not in the message.", DURABLE,
      machine=cuts(_with_text(lambda text: text[:-3] or text)))  # fmt: skip
fault("prefix.between-shown-and-sent", "closes-a-prefix-with-dots",
      "Adds an ellipsis that the provider never sent.", DURABLE,
      machine=cuts(_with_text(lambda text: f"{text}...")))  # fmt: skip

# --------------------------------------------------------------------------------------------
# What the model hears

fault("prefix.in-next-request", "shows-a-prefix-and-does-not-send-it",
      "The interrupted message is in history, and in no request.", DURABLE, loop=sends(without(_cut)))  # fmt: skip


def _with_blocks(message: Message, change: Callable[[Blocks], Iterable[Block]]) -> Message:
    """The message, with other blocks if it was cut."""
    if not isinstance(message, AssistantMessage) or not message.interrupted:
        return message
    return dataclasses.replace(message, blocks=tuple(change(message.blocks)))


def _unreasoned(blocks: Blocks) -> Iterable[Block]:
    return [block for block in blocks if not isinstance(block, Reasoning)]


fault("prefix.in-next-request", "sends-a-prefix-without-its-reasoning",
      "History has the reasoning of a cancelled reply, and the request only its text.", DURABLE,
      loop=sends(lambda messages: [_with_blocks(m, _unreasoned) for m in messages]))  # fmt: skip


class ForksWithoutPrefix(ReferenceLoop):
    """A fork has only what was whole."""

    def fork(self, at: int | None = None) -> ReferenceLoop:
        other = super().fork(at)
        other.messages = [message for message in other.messages if not _cut(message)]
        return other


fault("prefix.in-fork", "forks-without-the-prefix",
      "A fork at a cancelled run lacks what its reader sees.", DURABLE, loop=ForksWithoutPrefix)  # fmt: skip


def _to_last_space(blocks: Blocks) -> Iterable[Block]:
    return [
        type(block)(block.text.rstrip().rpartition(" ")[0]) if isinstance(block, Text) else block
        for block in blocks
    ]


class ForksWholeWords(ReferenceLoop):
    """A fork has a prefix only as far as its words are surely whole."""

    def fork(self, at: int | None = None) -> ReferenceLoop:
        other = super().fork(at)
        other.messages = [_with_blocks(message, _to_last_space) for message in other.messages]
        return other


fault("prefix.in-fork", "forks-without-the-last-word-of-the-prefix",
      "The word at the cut is in history, and not in its fork.", DURABLE, loop=ForksWholeWords)  # fmt: skip
fault("prefix.no-extra-message", "tells-the-model-that-it-was-interrupted",
      "A note in the user's name stands behind what was kept.", DURABLE,
      loop=keeps(lambda m: [m, UserMessage("[interrupted by the user]")] if _cut(m) else [m]))  # fmt: skip


def _announced(messages: list[Message]) -> list[Message]:
    """Each interrupted message, with a note before it."""
    note = UserMessage("[the next answer was interrupted]")
    return [item for message in messages for item in ([note, message] if _cut(message) else [message])]


fault("prefix.no-extra-message", "announces-a-prefix-in-requests-only",
      "A note that history does not have stands before what was kept.", DURABLE,
      loop=sends(_announced))  # fmt: skip

# --------------------------------------------------------------------------------------------
# What is no prefix


def _keep_all_the_same(action: str) -> type[Machine]:
    """A machine that finalizes a prefix when this action ends the run."""

    def kept(m: Machine, i: Any, out: list[fsm.Output]) -> None:
        ACTIONS[action](m, i, out)
        blocks = m.assembler.interrupted_blocks()
        if blocks and m.reply is None:
            message = AssistantMessage(blocks, stop_reason=StopReason.ABORTED, interrupted=True)
            out.insert(0, fsm.Append(message))

    return machine_with(actions={action: kept})


fault("prefix.only-by-cancellation", "keeps-the-prefix-of-a-reply-that-failed",
      "A stream that breaks leaves an interrupted message.", DURABLE,
      machine=_keep_all_the_same("fail the reply"))  # fmt: skip
fault("prefix.only-by-cancellation", "keeps-the-prefix-when-a-listener-fails",
      "A listener that raises leaves an interrupted message.", DURABLE,
      machine=_keep_all_the_same("fail by the listener"))  # fmt: skip


class MarksWhatWasWhole(ReferenceLoop):
    """Marks the last message of a cancelled run, whatever was interrupted."""

    def _release(self, run: Any) -> None:
        settle = run.settle
        if settle is not None and settle.reason is FailureReason.CANCELLED:
            for place in range(len(run.messages) - 1, run.first - 1, -1):
                message = run.messages[place]
                if isinstance(message, AssistantMessage):
                    run.messages[place] = dataclasses.replace(message, interrupted=True)
                    break
        super()._release(run)


fault("prefix.committed-message-unmarked", "marks-a-message-whose-tools-were-cancelled",
      "A reply that was whole is marked as interrupted, because its batch was.", DURABLE,
      loop=MarksWhatWasWhole)  # fmt: skip


class MarksEarlierTurns(ReferenceLoop):
    """Marks the turns before the cancelled one, whose results are all there."""

    def _release(self, run: Any) -> None:
        settle = run.settle
        if settle is not None and settle.reason is FailureReason.CANCELLED:
            own = range(run.first, len(run.messages))
            spoken = [place for place in own if isinstance(run.messages[place], AssistantMessage)]
            for place in spoken[:-1]:
                run.messages[place] = dataclasses.replace(run.messages[place], interrupted=True)
        super()._release(run)


fault("prefix.committed-message-unmarked", "marks-the-turns-before-the-cancelled-one",
      "A reply whose tools had all ended is marked, because a later one was cut.", DURABLE,
      loop=MarksEarlierTurns)  # fmt: skip
fault("prefix.discarded", "keeps-what-it-claims-to-discard",
      "A cancelled reply is in the next request.", loop=set_to(cancelled_prefix="finalize"))  # fmt: skip


class ForgetsThePrompt(ReferenceLoop):
    """Takes the prompt back together with the reply that was cancelled."""

    def _release(self, run: Any) -> None:
        if run.settle is not None and run.settle.reason is FailureReason.CANCELLED:
            del run.messages[run.first :]
        super()._release(run)


fault("prefix.discarded", "discards-the-prompt-with-the-reply",
      "A run that was cancelled leaves nothing at all, not even what the user had said.",
      loop=ForgetsThePrompt)  # fmt: skip


def _attempt_late() -> Any:
    return holding(EventType.ATTEMPT, EventType.RUN_END)()


fault("prefix.attempt-recorded", "records-no-attempt", "A failed reply leaves no record.", DURABLE,
      loop=always(lambda e: () if e.type == EventType.ATTEMPT else (e,)))  # fmt: skip
fault("prefix.attempt-recorded", "records-an-attempt-when-its-failure-was-handled",
      "The record of a failed reply comes behind the end of its run.", DURABLE,
      loop=tells(_attempt_late))  # fmt: skip


def _send_attempts(loop: ReferenceLoop, messages: list[Message]) -> list[Message]:
    return [*messages[:-1], *(a for a in loop.attempts if a.text.strip()), *messages[-1:]]


class SendsAttempts(ReferenceLoop):
    """Shows the model what it said in a reply that failed."""

    def normalise(self, messages: Any) -> tuple[Message, ...]:
        return tuple(_send_attempts(self, list(super().normalise(messages))))


fault("prefix.attempt-recorded", "sends-its-attempts",
      "What was recorded of a failed reply is in the next request.", DURABLE, loop=SendsAttempts)  # fmt: skip
