"""Events: what a target tells while it runs, for targets that tell it.

Targets tell what they have. Nobody has to tell the start of a turn, so a kind of event is judged
only where the target was seen to tell it, or claims to. What is judged is that the events are true
and that a listener can rely on them: what was started is ended, what has ended is over, and what
was shown is what is kept.

Events carry no number of their run. They are read in *stretches*: from a prompt to the next one
that was not given while another ran.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from loopspec.rules.base import Broke, Finding, Held, Hidden, rule
from loopspec.rules.cuts import cuts, decided, exact, owner, quote, racing
from loopspec.rules.delivered import at_rest, further_messages, told_of
from loopspec.trace_index import Exchange, Run, TraceIndex
from loopspec.vocabulary import (
    FAILED_REASONS,
    AssistantMessage,
    Event,
    EventType,
    FailureReason,
    Level,
    Outcome,
    Reason,
)

UNTOLD = Hidden("the target's events are not shown")

STARTS: dict[str, str] = {
    EventType.RUN_START: "run",
    EventType.TURN_START: "turn",
    EventType.MESSAGE_START: "message",
    EventType.TOOL_START: "tool",
}
ENDS: dict[str, str] = {
    EventType.RUN_END: "run",
    EventType.TURN_END: "turn",
    EventType.MESSAGE_END: "message",
    EventType.TOOL_END: "tool",
}
CONTENT = frozenset({
    EventType.MESSAGE_START, EventType.MESSAGE_END, EventType.TEXT_DELTA,
    EventType.REASONING_DELTA, EventType.CALL, EventType.TOOL_START, EventType.TOOL_END,
})  # fmt: skip

At = tuple[int, Event]


@dataclass(frozen=True, slots=True)
class Stretch:
    """The runs from one prompt to the next that came after them, and what was told meanwhile."""

    runs: tuple[Run, ...]
    events: tuple[At, ...]

    @property
    def alone(self) -> Run | None:
        """Its run, if it is the only one."""
        accepted = [run for run in self.runs if not run.refused]
        return accepted[0] if len(self.runs) == len(accepted) == 1 else None

    @property
    def stopped(self) -> bool:
        """Whether a run of it hung or was lost, so that its events do not end."""
        return any(run.settled is None for run in self.runs)

    @property
    def raised(self) -> bool:
        """Whether a listener failed, so that the target may not have been able to tell more."""
        return any(run.listener_raised_at for run in self.runs)


def stretches(index: TraceIndex) -> list[Stretch]:
    """The stretches of a trace that have a run."""
    firsts = [run for run in index.runs if not run.prompted.running]
    found = []
    for place, first in enumerate(firsts):
        end = firsts[place + 1].at if place + 1 < len(firsts) else len(index.trace)
        runs = tuple(run for run in index.runs if first.at <= run.at < end)
        events = tuple((at, event) for at, event in index.events if first.at < at < end)
        found.append(Stretch(runs, events))
    return found


def told_kinds(index: TraceIndex) -> set[str]:
    """The types of event that this trace has."""
    return {event.type for _, event in index.events}


def _brackets(index: TraceIndex, kind: str) -> bool:
    """Whether the target claims to tell the start and end of ``run`` or ``turn``."""
    return index.claim("brackets") in (kind, "both")


# --------------------------------------------------------------------------------------------
# Starts and ends


@rule(
    "events.one-end-each",
    "Every start that is told MUST have exactly one end after it, and no end MUST come without its"
    " start; a message that was interrupted may be closed by the end of its run instead.",
    source="EVT14",
)
def one_end_each(index: TraceIndex) -> Iterator[Finding]:
    """A view draws something at a start and takes it away at its end.

    An end that never comes leaves a spinner turning for ever.
    """
    if not index.observes("events"):
        if index.runs:
            yield UNTOLD
        return
    kinds = [kind for kind in ("run", "turn", "message", "tool") if _both_told(index, kind)]
    for stretch in stretches(index):
        broken = False
        pairs: list[int] = []
        for kind in kinds:
            for found in _pairs(index, stretch, kind):
                if isinstance(found, Broke):
                    broken = True
                    yield found
                else:
                    pairs.append(found)
        if pairs and not broken:
            yield Held(*pairs[:4])


def _both_told(index: TraceIndex, kind: str) -> bool:
    told = told_kinds(index)
    start = next(item for item, name in STARTS.items() if name == kind)
    end = next(item for item, name in ENDS.items() if name == kind)
    return start in told and (end in told or _brackets(index, kind))


def _pairs(index: TraceIndex, stretch: Stretch, kind: str) -> Iterator[int | Broke]:
    """The starts of a kind that have their end, and what is wrong with the others."""
    keys = _keys(index, stretch, kind)
    still: dict[str, list[int]] = {}
    for at, event in stretch.events:
        key = keys.get(at)
        if key is None:
            continue
        if event.type in STARTS:
            still.setdefault(key, []).append(at)
        elif still.get(key):
            yield still[key].pop()
        else:
            yield Broke(f"the end of {key} was told without a start before it", at)
    spare = _interrupted(index, stretch) if kind == "message" else 0
    for key, places in still.items():
        if stretch.stopped or stretch.raised:
            continue
        if key == "assistant message":
            places = places[: max(0, len(places) - spare)]
        for at in places:
            yield Broke(f"the start of {key} was told, and no end of it ever was", at)


def _keys(index: TraceIndex, stretch: Stretch, kind: str) -> dict[int, str]:
    """What each start or end of a kind belongs to; roles that are told only one of are left out."""
    mine = [(at, e) for at, e in stretch.events if kind in (STARTS.get(e.type), ENDS.get(e.type))]
    if kind == "tool":
        named = all(event.call_id is not None for _, event in mine)
        return {at: f"tool {event.call_id}" if named else "a tool" for at, event in mine}
    if kind != "message":
        return {at: f"a {kind}" for at, _ in mine}
    roles = {
        role
        for role in {event.role for _, event in index.events}
        if _role_told(index, EventType.MESSAGE_START, role) and _role_told(index, EventType.MESSAGE_END, role)
    }
    return {at: f"{e.role or 'assistant'} message" for at, e in mine if e.role in roles}


def _role_told(index: TraceIndex, kind: EventType, role: str | None) -> bool:
    return any(event.type == kind and event.role == role for _, event in index.events)


def _interrupted(index: TraceIndex, stretch: Stretch) -> int:
    """How many replies may not have become a message; their messages may stay open."""
    return sum(
        not _whole(exchange) or _cut_unseen(index, run, exchange)
        for run in stretch.runs
        for exchange in run.exchanges
    )


def _cut_unseen(index: TraceIndex, run: Run, exchange: Exchange) -> bool:
    """Whether a listener cancelled while some of this reply may not have been consumed.

    What the bench had sent by then may all have been in the target's buffers.
    """
    following = index.next_in_run(exchange)
    end = following.at if following is not None else len(index.trace)
    inside = [cancel for cancel in run.cancels if "listener" in cancel.at]
    return not exact(index) and any(exchange.at < cancel.sent_at < end for cancel in inside)


def _whole(exchange: Exchange) -> bool:
    """Whether the reply came to its end, and nothing in it said that it failed."""
    reasons = [sent.piece.reason for _, sent in exchange.sent if isinstance(sent.piece, Reason)]
    ended = exchange.terminator_at is not None and exchange.cancelled_at is None
    return ended and bool(reasons) and not exchange.failed and not FAILED_REASONS & set(reasons)


@rule(
    "events.brackets",
    "What is told of messages and tools MUST stand inside a turn, and turns inside a run, as far as"
    " the target claims to tell turns and runs.",
    source="A",
    claim="brackets",
    values=("turn", "run", "both"),
)
def brackets(index: TraceIndex) -> Iterator[Finding]:
    """Brackets let a listener group what it hears without knowing the loop.

    They are worth nothing if something may stand outside them.
    """
    if not index.observes("events"):
        if any(run.exchanges for run in index.runs):
            yield UNTOLD
        return
    for stretch in stretches(index):
        run = stretch.alone
        if run is None or not run.exchanges:
            continue
        found = [broke for broke in _outside(index, stretch) if broke is not None]
        yield from found[:1]
        if not found and stretch.events:
            yield Held(stretch.events[0][0], stretch.events[-1][0])


def _outside(index: TraceIndex, stretch: Stretch) -> Iterator[Broke | None]:
    """What stands outside of the brackets that are claimed."""
    runs, turns = _brackets(index, "run"), _brackets(index, "turn")
    in_run = in_turn = False
    seen_turn = False
    for at, event in stretch.events:
        kind = event.type
        if kind == EventType.RUN_START:
            in_run = True
        elif kind == EventType.RUN_END:
            if turns and in_turn:
                yield Broke("the end of the run was told while a turn of it was still open", at)
            in_run = in_turn = False
        elif kind == EventType.TURN_START:
            if turns and in_turn:
                yield Broke("a turn was told to start while another was still open", at)
            if runs and not in_run:
                yield Broke("a turn was told to start outside of a run", at)
            in_turn = seen_turn = True
        elif kind == EventType.TURN_END:
            in_turn = False
        elif _belongs_in_turn(event):
            if turns and not in_turn:
                yield Broke(f"{_words(event)} was told outside of a turn", at)
            if runs and not in_run:
                yield Broke(f"{_words(event)} was told outside of a run", at)
    if turns and not seen_turn and not stretch.raised:
        first = stretch.runs[0]
        yield Broke(f"no start of a turn was told in run {first.number}", first.at)


def _belongs_in_turn(event: Event) -> bool:
    ours = (*CONTENT, EventType.STREAM_END)
    return event.type in ours and event.role not in ("user", "system")


def _words(event: Event) -> str:
    what = event.role or event.call_id
    return event.type + (f" ({what})" if what else "")


# --------------------------------------------------------------------------------------------
# The end of a run

_SAME: dict[str, frozenset[str]] = {
    "error": frozenset(FailureReason) - {FailureReason.CANCELLED},
    "aborted": frozenset({FailureReason.CANCELLED, FailureReason.PROVIDER}),
    "deferred": frozenset({FailureReason.UNFINISHED}),
    "pending": frozenset({FailureReason.UNFINISHED}),
    **{str(reason): frozenset({reason}) for reason in FailureReason},
}
_GOOD = frozenset({"completed", "stop", "toolUse"})


@rule(
    "events.one-terminal",
    "Each run MUST have exactly one terminal event, where the target tells terminal events, and its"
    " reason MUST be that of the run's outcome.",
    source="EVT09, EVT10, EVT11, EVT13, EVT15, EVT16",
)
def one_terminal(index: TraceIndex) -> Iterator[Finding]:
    """A listener and the caller of the prompt must not learn two different ends of one run."""
    if not index.observes("events"):
        if index.runs:
            yield UNTOLD
        return
    if EventType.RUN_END not in told_kinds(index) and not _brackets(index, "run"):
        return
    for stretch in stretches(index):
        ends = [(at, event) for at, event in stretch.events if event.type == EventType.RUN_END]
        accepted = [run for run in stretch.runs if not run.refused]
        certain = [run for run in accepted if run.exchanges and run.settled is not None]
        least = 0 if stretch.raised else len(certain)
        if not least <= len(ends) <= len(accepted):
            numbers = ", ".join(str(run.number) for run in accepted) or "none"
            yield Broke(
                f"one terminal event was to be told for each run ({numbers}), and there were {len(ends)}",
                *([at for at, _ in ends] or [run.end or run.at for run in certain[:1]]),
            )
        elif ends:
            yield from _same_reason(index, stretch, *ends[-1])


def _same_reason(index: TraceIndex, stretch: Stretch, at: int, end: Event) -> Iterator[Finding]:
    run = stretch.alone
    settled = run.settled if run is not None else None
    judged = run is not None and not stretch.raised and not _cut_at_its_end(index, run)
    if run is None or settled is None or not judged:
        yield Held(at)
        return
    completed = settled.outcome == Outcome.COMPLETED
    reasons = _SAME.get(end.reason or "", frozenset())
    known = settled.reason not in (None, FailureReason.UNKNOWN)
    differs = (
        (completed and bool(reasons) and settled.reason not in reasons)
        or (not completed and end.reason in _GOOD)
        or (not completed and known and bool(reasons) and settled.reason not in reasons)
    )
    if differs and end.reason != FailureReason.UNKNOWN:
        reason = f" ({settled.reason})" if settled.reason else ""
        yield Broke(
            f"the terminal event of run {run.number} was to say what the run came to,"
            f" {settled.outcome}{reason}, and says {end.reason!r}",
            at,
            run.settled_at or at,
        )
    else:
        yield Held(at, run.settled_at or at)


def _cut_at_its_end(index: TraceIndex, run: Run) -> bool:
    """Whether a cancellation met a run that was ending anyway: its outcome is not judged."""
    return any(decided(index, cut) for cut in cuts(index) if cut.run is run)


@rule(
    "events.nothing-after-terminal",
    "After the terminal event of a run, no event of its content or its tools MUST be told.",
    source="EVT07, EVT10",
)
def nothing_after_terminal(index: TraceIndex) -> Iterator[Finding]:
    """Whoever has heard the end has let go of what it held for the run."""
    if not index.observes("events"):
        if index.runs:
            yield UNTOLD
        return
    for stretch in stretches(index):
        ends = [at for at, event in stretch.events if event.type == EventType.RUN_END]
        runs = [run for run in stretch.runs if run.exchanges or not run.refused]
        if not ends or len(ends) < len(runs):
            continue
        end = ends[0] if stretch.alone is not None else ends[-1]
        late = [(at, event) for at, event in stretch.events if at > end and event.type in CONTENT]
        if late:
            at, event = late[0]
            yield Broke(
                f"nothing was to be told after the end of run {stretch.runs[-1].number}, but"
                f" {_words(event)} was",
                end,
                at,
            )
        else:
            yield Held(end)


# --------------------------------------------------------------------------------------------
# Calls and tools


@rule(
    "events.call-told-before-execution",
    "A call MUST be told before its tool starts, where the target tells calls.",
    source="EVT",
)
def call_told_before_execution(index: TraceIndex) -> Iterator[Finding]:
    """A user who may stop a tool has to see its call before it acts.

    A target without an event for calls tells a call by its tool's start. Where events come by
    another way than tool calls, a late one of those says nothing of the loop.
    """
    if not index.starts:
        return
    if not index.observes("events"):
        yield UNTOLD
        return
    calls = [(at, event) for at, event in index.events if event.type == EventType.CALL]
    # On the native wire events and tool calls come by one channel, so their order is known.
    if not calls and (exact(index) or index.header.wire == "native"):
        calls = [(at, event) for at, event in index.events if event.type == EventType.TOOL_START]
    if not calls:
        return
    if racing(index):
        yield Hidden("grade racing: events and tools come by different ways")
        return
    for start in index.starts:
        call_id = start.entry.call_id
        exchange = owner(index, start)
        if not call_id or exchange is None:
            continue
        since = [(at, event) for at, event in calls if exchange.at < at < start.at]
        if any(event.call_id in (None, call_id) for _, event in since):
            yield Held(since[0][0], start.at)
        else:
            yield Broke(f"call {call_id} was to be told before its tool started, but was not", start.at)


@rule(
    "events.tool-end-after-its-start",
    "A tool's end MUST be told after its start; of a call whose tool never ran, either neither MUST"
    " be told or both, with the end marked as an error.",
    source="B",
)
def tool_end_after_its_start(index: TraceIndex) -> Iterator[Finding]:
    """A skipped call has done nothing, and no event may say otherwise."""
    if not any(exchange.calls for exchange in index.exchanges):
        return
    if not index.observes("events"):
        yield UNTOLD
        return
    if not {EventType.TOOL_START, EventType.TOOL_END} <= told_kinds(index):
        return
    for exchange in index.exchanges:
        run = index.run_of(exchange)
        if run is not None and run.settled is not None:
            yield from _tool_events(index, exchange, run)


def _tool_events(index: TraceIndex, exchange: Exchange, run: Run) -> Iterator[Finding]:
    """The start and end that were told for each call of one reply."""
    ids = [call.id for call in exchange.calls]
    following = index.next_in_run(exchange)
    bounds = [item.at for item in index.runs if item.at > exchange.at and not item.prompted.running]
    bounds += [following.at] if following is not None else []
    end = min(bounds, default=len(index.trace))
    told = [(at, event) for at, event in index.events if exchange.at < at < end]
    ran = {item.entry.call_id for item in index.starts if owner(index, item) is exchange}
    guessed = any(item.entry.call_id is None for item in index.starts)
    for call in exchange.calls:
        if not call.id or ids.count(call.id) > 1:
            continue
        mine = [(at, event) for at, event in told if event.call_id == call.id]
        starts = [at for at, event in mine if event.type == EventType.TOOL_START]
        ends = [(at, event) for at, event in mine if event.type == EventType.TOOL_END]
        skipped = call.id not in ran and not guessed
        wrong = _wrong_pair(starts, ends, skipped and not run.listener_raised_at)
        if wrong:
            places = sorted([*starts, *(at for at, _ in ends)])
            yield Broke(f"call {call.id}: {wrong}", *places)
        elif ends:
            yield Held(starts[0], ends[0][0])


def _wrong_pair(starts: list[int], ends: list[At], skipped: bool) -> str | None:
    if ends and (not starts or ends[0][0] < starts[0]):
        return "the end of its tool was told, and no start before it"
    if skipped and starts and not ends:
        return "its tool never ran; a start was told for it, and no end"
    if skipped and any(event.is_error is False for _, event in ends):
        return "its tool never ran, but its end was told without an error"
    return None


# --------------------------------------------------------------------------------------------
# What was shown, and what is kept


@rule(
    "events.shown-adds-up",
    "The deltas that are told of a reply MUST add up to the message that is kept of it.",
    source="A",
)
def shown_adds_up(index: TraceIndex) -> Iterator[Finding]:
    """The user reads the deltas and the model reads the message: they talk about the same text."""
    if not index.observes("events"):
        if any(exchange.accepted for exchange in index.exchanges):
            yield UNTOLD
        return
    if EventType.TEXT_DELTA not in told_kinds(index):
        return
    for stretch in stretches(index):
        run = stretch.alone
        for exchange in run.exchanges if run is not None else ():
            if exchange.accepted and exchange.request.streaming and exchange.text.strip():
                yield from _adds_up(index, exchange)


def _adds_up(index: TraceIndex, exchange: Exchange) -> Iterator[Finding]:
    deltas = [(at, e) for at, e in told_of(index, exchange) if e.type == EventType.TEXT_DELTA]
    shown = "".join(event.text or "" for _, event in deltas)
    place = _kept_text(index, exchange)
    if place is None:
        yield Hidden("neither history nor a later request shows what was kept")
        return
    at, kept = place
    if shown == kept:
        yield Held(exchange.at, *(at for at, _ in deltas[-1:]), at)
    else:
        yield Broke(
            f"the deltas told of the reply to request {exchange.number} were to add up to the"
            f" message kept, {quote(kept)}, and are {quote(shown)}",
            exchange.at,
            at,
        )


def _kept_text(index: TraceIndex, exchange: Exchange) -> tuple[int, str] | None:
    """The text that is kept of a reply, and where it shows; ``None``: it is not to be found."""
    run = index.run_of(exchange)
    if run is None:
        return None
    history = at_rest(index, run)
    places = [(history[0], history[1].messages)] if history is not None else []
    places += [(later.at, later.request.messages) for later in index.later_requests(exchange.at)]
    for at, messages in places:
        found = further_messages(index, messages, run, exchange)
        if len(found) == 1 and not found[0].interrupted:  # of a prefix, blank blocks may be left out
            return at, found[0].text
    return None


@rule(
    "events.recorded-before-told",
    "Whether a message is in history when its end is told.",
    source="B",
    level=Level.OBSERVED,
)
def recorded_before_told(index: TraceIndex) -> Iterator[Finding]:
    """Both sources are silent, and both orders are found.

    It shows only where history was read between the request and the event.
    """
    for at, event in index.events:
        if event.type != EventType.MESSAGE_END or event.role != "assistant" or not event.text:
            continue
        asked = max((item.at for item in index.exchanges if item.at < at), default=0)
        reads = [read for place, read in index.histories if asked < place < at]
        if not reads:
            yield Hidden("history was not read just before the event")
        elif any(isinstance(m, AssistantMessage) and m.text == event.text for m in reads[-1].messages):
            yield Held(at)
        else:
            yield Broke("the message was told before it was in history", at)
