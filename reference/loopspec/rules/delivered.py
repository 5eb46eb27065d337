"""What a cut or failed reply had delivered, and what a history kept of it. No rules.

Text and reasoning are compared as lists of *runs*: stretches of one kind. Wires and histories cut
blocks differently (Chat Completions has one text for a whole message), so adjacent blocks of one
kind are joined before comparing. A blank block may be left out; where the wire has no border
between it and the next one it cannot be, so both readings are legal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from loopspec.rules.base import Finding, Hidden
from loopspec.rules.cuts import RACES, UNPLACED, Cut, cuts, exact, placed, quote, racing
from loopspec.rules.turns import messages_of, next_request
from loopspec.trace import HistoryRead
from loopspec.trace_index import Exchange, Run, TraceIndex
from loopspec.vocabulary import (
    FAILED_REASONS,
    AssistantMessage,
    Call,
    CallStart,
    Event,
    EventType,
    Message,
    Piece,
    Reasoning,
    ReasoningDelta,
    Text,
    TextDelta,
)

Runs = list[tuple[str, str]]
"""Stretches of ``text`` and ``reasoning``; a ``call`` carries its id."""


def _push(runs: Runs, kind: str, text: str, apart: bool = False) -> None:
    if runs and runs[-1][0] == kind and not apart:
        runs[-1] = (kind, runs[-1][1] + text)
    else:
        runs.append((kind, text))


def sent_runs(exchange: Exchange, before: int | None = None) -> Runs:
    """What the bench sent of a reply (before a position), as blocks in stream order."""
    runs: Runs = []
    for at, sent in exchange.sent:
        piece: Piece = sent.piece
        if before is not None and at > before:
            break
        if isinstance(piece, TextDelta | ReasoningDelta):
            _push(runs, piece.type, piece.text)
        elif isinstance(piece, CallStart):
            runs.append(("call", piece.id))
    return runs


def kept_runs(message: AssistantMessage) -> Runs:
    """The blocks of a message."""
    runs: Runs = []
    for block in message.blocks:
        if isinstance(block, Text | Reasoning):
            runs.append((block.type, block.text))
        elif isinstance(block, Call):
            runs.append(("call", block.id))
    return runs


def prose(runs: Iterable[tuple[str, str]], *, blank: bool) -> Runs:
    """Without calls, adjacent stretches of one kind joined; ``blank``: blank ones stay."""
    joined: Runs = []
    for kind, text in runs:
        if kind != "call" and (blank or text.strip()):
            _push(joined, kind, text)
    return joined


def of_kind(runs: Iterable[tuple[str, str]], kind: str) -> str:
    """All of one kind, joined."""
    return "".join(text for item, text in runs if item == kind)


def carries(runs: Runs, kind: str, have: str) -> bool:
    """Whether ``have`` is all stretches of a kind in order, with at most white space between them.

    A wire that has one text for a message makes some loops join their blocks with a line break.
    """
    at = 0
    for item, text in runs:
        if item != kind or not text.strip():
            continue
        gap = have[at:].find(text)
        if gap < 0 or have[at : at + gap].strip():
            return False
        at += gap + len(text)
    return not have[at:].strip()


def says(runs: Runs) -> bool:
    """Whether anything but blank text and reasoning is there."""
    return any(kind != "call" and text.strip() for kind, text in runs)


def begins(short: Runs, long: Runs) -> bool:
    """Whether ``long`` begins with ``short``, stretch by stretch."""
    if not short:
        return True
    if len(short) > len(long) or short[:-1] != long[: len(short) - 1]:
        return False
    kind, text = short[-1]
    other, whole = long[len(short) - 1]
    return kind == other and whole.startswith(text)


@dataclass(frozen=True, slots=True)
class Interrupted:
    """A reply that a cancellation cut while it was on its way, and what had been delivered."""

    cut: Cut
    exchange: Exchange
    delivered: Runs

    @property
    def run(self) -> Run:
        """The cancelled run."""
        return self.cut.run

    def expected(self, kind: str | None = None) -> str:
        """What was delivered, for a person."""
        if kind is not None:
            return of_kind(self.delivered, kind)
        return "".join(text for item, text in self.delivered if item != "call")

    def fits(self, index: TraceIndex, kept: Runs) -> bool:
        """Whether kept text and reasoning are what was delivered, in order and untrimmed.

        Where the target moves by itself it may have consumed some of what came after.
        """
        for blank in (False, True):
            low = prose(self.delivered, blank=blank)
            high = low if exact(index) else prose(sent_runs(self.exchange), blank=blank)
            have = prose(kept, blank=blank)
            if begins(low, have) and begins(have, high):
                return True
        return False

    def fits_kind(self, index: TraceIndex, kind: str, kept: str, *, loosely: bool = False) -> bool:
        """As :meth:`fits`, for one kind whatever its order; ``loosely``: but for white space."""
        for blank in (False, True):
            low = of_kind(prose(self.delivered, blank=blank), kind)
            high = low if exact(index) else of_kind(prose(sent_runs(self.exchange), blank=blank), kind)
            if loosely:
                low, high, kept = ("".join(item.split()) for item in (low, high, kept))
            if kept.startswith(low) and high.startswith(kept):
                return True
        return False


def interruptions(index: TraceIndex) -> Iterator[Interrupted]:
    """Every reply that was cut while it was on its way, and by nothing but a cancellation."""
    for cut in cuts(index):
        reply = cut.reply
        if reply is not None and not cut.run.listener_raised_at and cut.run.lost_at is None:
            yield Interrupted(cut, reply, sent_runs(reply, cut.cancel.sent_at))


# --------------------------------------------------------------------------------------------
# What was kept


def _same_message(message: AssistantMessage, exchange: Exchange) -> bool:
    """Whether a message is this reply's. A failed reply's may be there for display only."""
    if message.interrupted or (exchange.failed and message.stop_reason not in FAILED_REASONS):
        return False
    ids = {call.id for call in exchange.calls}
    if message.calls:
        # An empty or repeated id may have been made a distinct one.
        odd = "" in ids or len(ids) < len(exchange.calls)
        renamed = odd and len(message.calls) == len(exchange.calls) and message.text == exchange.text
        return renamed or any(call.id in ids for call in message.calls)
    return message.text == exchange.text


def further_messages(
    index: TraceIndex, messages: Iterable[Message], run: Run, exchange: Exchange
) -> list[AssistantMessage]:
    """The assistant messages of the run that are not those of its other replies."""
    mine = messages_of(index, list(messages), run)
    left = [message for message in mine if isinstance(message, AssistantMessage)]
    for other in run.exchanges:
        if other is not exchange:
            match = next((item for item in left if _same_message(item, other)), None)
            left = [item for item in left if item is not match]
    return left


def kept_in(
    index: TraceIndex, messages: Iterable[Message], run: Run, exchange: Exchange
) -> AssistantMessage | None:
    """The message that a list holds of this reply, if it holds one."""
    found = further_messages(index, messages, run, exchange)
    marked = [message for message in found if message.interrupted]
    return next(iter(marked or found), None)


def at_rest(index: TraceIndex, run: Run) -> tuple[int, HistoryRead] | None:
    """The history that was read after this run, where the variant shows it."""
    return index.history_after(run) if index.observes("history") else None


def kept_anywhere(
    index: TraceIndex, run: Run, exchange: Exchange
) -> tuple[int, AssistantMessage | None] | None:
    """What was kept of a reply, by history or else by the next request; ``None``: not shown."""
    history = at_rest(index, run)
    if history is not None:
        return history[0], kept_in(index, history[1].messages, run, exchange)
    request = next_request(index, run)
    if request is not None:
        return request.at, kept_in(index, request.request.messages, run, exchange)
    return None


# --------------------------------------------------------------------------------------------
# What was shown


def told_of(index: TraceIndex, exchange: Exchange) -> list[tuple[int, Event]]:
    """The events between a request and the next request, or the next prompt at rest."""
    later = [item.at for item in index.exchanges if item.at > exchange.at]
    later += [run.at for run in index.runs if run.at > exchange.at and not run.prompted.running]
    end = min(later, default=len(index.trace))
    return [(at, event) for at, event in index.events if exchange.at < at < end]


def shown(index: TraceIndex, exchange: Exchange, kind: str) -> str:
    """The deltas of one kind that were told of a reply, joined."""
    wanted = EventType.TEXT_DELTA if kind == "text" else EventType.REASONING_DELTA
    return "".join(e.text or "" for _, e in told_of(index, exchange) if e.type == wanted)


def without_blank(runs: Runs, kind: str, length: int) -> str:
    """The first ``length`` characters of one kind, the blank stretches among them left out."""
    out = ""
    for item, text in runs:
        if item == kind and length > 0:
            part = text[:length]
            length -= len(part)
            out += part if part.strip() else ""
    return out


# --------------------------------------------------------------------------------------------
# Which of them are judged

NO_HISTORY = Hidden("the target's history is not shown")
UNSEEN = Hidden("neither history nor a later request shows what was kept")


def judged(index: TraceIndex, *, blank: bool | None = False) -> Iterator[Interrupted | Hidden]:
    """The interruptions that can be judged.

    ``blank``: only those that delivered nothing to say, or only the others; ``None``: all.
    """
    for item in interruptions(index):
        if blank is not None and says(item.delivered) == blank:
            continue
        if racing(index):
            yield RACES
        elif not placed(index, item.cut):
            yield UNPLACED
        else:
            yield item


def each(
    index: TraceIndex,
    check: Callable[[TraceIndex, Interrupted], Iterator[Finding]],
    *,
    blank: bool | None = False,
) -> Iterator[Finding]:
    """What a check finds in the interruptions that can be judged; ``blank`` as there."""
    for item in judged(index, blank=blank):
        if isinstance(item, Hidden):
            yield item
        else:
            yield from check(index, item)


def listed(runs: Sequence[tuple[str, str]]) -> str:
    """Text and reasoning, for a person."""
    return ", ".join(f"{kind} {quote(text)}" for kind, text in runs if kind != "call") or "nothing"
