"""What became of the calls of a reply, and where history shows it: readings for three chapters.

No rules stand here; ``tools``, ``pairing`` and ``history`` ask these questions of a trace.

**Which replies are judged.** A reply that ended with ``stop`` or ``toolUse`` was *taken* when
nothing disturbed the run after its request, or when the target showed that it had the whole reply:
a tool of it started, a further request came, or the end of its message was told. A cancellation or
a failing listener may come between the last byte that the bench sent and the moment at which the
target looked at it; then nobody can know, and the rules are silent.

**Where results are looked for.** A *sight* is a place that shows the target's history after a
reply: a later request, or the history that was read at rest. A later request counts only where it
must build on the reply: in the same run, or in one that was prompted after the reply's run ended.
A reply's message is found in a sight by the ids of its calls, in order, because an id may be used
again in a later turn; where the ids were changed, by names and arguments.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from loopspec.rules.replies import accepted, calls_of, overlapped, terminator_at
from loopspec.trace_index import Exchange, Run, SentCall, Start, TraceIndex
from loopspec.vocabulary import (
    ACCEPTING_REASONS,
    AssistantMessage,
    EventType,
    FailureReason,
    Grade,
    Message,
    Reason,
    ToolResult,
)

# --------------------------------------------------------------------------------------------
# What the probe tools accept

PROBES: dict[str, dict[str, tuple[str, bool]]] = {
    "probe": {"value": ("string", True)},
    "probe_number": {"amount": ("integer", True)},
    "probe_optional": {"note": ("string", False)},
}
"""For each probe tool its properties, with their JSON type and whether they are required.

Rules do not read the scenario language, so the few facts that they need stand here as data; a test
holds them equal to the schemas that targets are given."""


def same_json(one: Any, other: Any) -> bool:
    """Whether two parsed JSON values are the same value (1 and 1.0 are, 1 and true are not)."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_json(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same_json, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def parsed(text: str) -> tuple[bool, Any]:
    """Whether ``text`` is JSON, and its value."""
    try:
        return True, json.loads(text)
    except ValueError:
        return False, None


def same_arguments(one: str, other: str) -> bool:
    """Whether two argument texts are the same JSON value (or the same text, if neither is JSON)."""
    (one_is, one_value), (other_is, other_value) = parsed(one), parsed(other)
    return same_json(one_value, other_value) if one_is and other_is else one == other


def objection(tool: str, arguments: str) -> str | None:
    """Why ``arguments`` are not what the probe ``tool`` declares, in words; ``None``: they are."""
    is_json, value = parsed(arguments)
    if not is_json:
        return "they are not JSON"
    if not isinstance(value, dict):
        return "they are not an object"
    for name, (kind, required) in PROBES[tool].items():
        item = value.get(name)
        if item is None:
            if required:
                return f"the required {name!r} is missing"
        elif kind == "string" and not isinstance(item, str):
            return f"{name!r} is not a string"
        elif kind == "integer" and (
            isinstance(item, bool)
            or not isinstance(item, int | float)
            or (isinstance(item, float) and not item.is_integer())
        ):
            return f"{name!r} is not a whole number"
    return None


def names_more(tool: str, arguments: str) -> bool:
    """Whether ``arguments`` are an object with members that the probe ``tool`` does not declare.

    The schema allows them, and a target may forbid them all the same.
    """
    _, value = parsed(arguments)
    return isinstance(value, dict) and bool(value.keys() - PROBES[tool].keys())


def fault_of(call: SentCall, exchange: Exchange) -> str | None:
    """The claim that says what such a call leads to: ``unknown_tool``, ``invalid_arguments``.

    ``None``: nothing is wrong with the call, or it names a tool that the target itself offered.
    """
    if call.name not in PROBES:
        return None if call.name in exchange.request.tools else "unknown_tool"
    # Some providers send nothing where a call has no arguments, and loops read that as {}.
    return "invalid_arguments" if objection(call.name, call.arguments.strip() or "{}") else None


def finished_call(call: SentCall, index: TraceIndex) -> bool:
    """Whether the wire said that the call is whole, where it can say so."""
    return call.ended_at is not None or "call_end" not in index.header.can_express


def must_run(call: SentCall, index: TraceIndex) -> bool:
    """Whether the call is whole and fits its tool, so that nothing excuses not running it."""
    if call.name not in PROBES or names_more(call.name, call.arguments):
        return False
    return objection(call.name, call.arguments) is None and finished_call(call, index)


def _scalar(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value.strip() if isinstance(value, str) else json.dumps(value)


def _converts(tool: str, sent: str, got: str) -> bool:
    """Whether ``got`` may be a plain conversion of ``sent``.

    The declared properties say the same (``"12"`` for ``12``); undeclared ones may be gone, and
    absent optional ones may be null.
    """
    (_, before), (_, after) = parsed(sent), parsed(got)
    if tool not in PROBES or not isinstance(before, dict) or not isinstance(after, dict):
        return False
    for name in PROBES[tool]:
        one, other = before.get(name), after.get(name)
        if (one is None) != (other is None) or _scalar(one) != _scalar(other):
            return False
    return all(key in PROBES[tool] or same_json(before.get(key), after[key]) for key in after)


# --------------------------------------------------------------------------------------------
# Batches

_MEMOS: WeakKeyDictionary[TraceIndex, dict[Any, Any]] = WeakKeyDictionary()


def _once(index: TraceIndex, key: tuple[Any, ...], read: Callable[[], Any]) -> Any:
    """What ``read`` gives for ``key``, read once an index: many rules ask the same questions."""
    memo = _MEMOS.setdefault(index, {})
    if key not in memo:
        memo[key] = read()
    return memo[key]


def disturbance(index: TraceIndex, run: Run, after: int) -> int | None:
    """Where a cancellation or a failing listener first came between in ``run``, after a position."""
    places = [cancel.sent_at for cancel in run.cancels]
    if index.claim("listener_failure") != "ignored":
        places += run.listener_raised_at
    return min((at for at in places if at > after), default=None)


def _shown_taken(index: TraceIndex, exchange: Exchange, run: Run, disturbed: int | None) -> bool:
    following = index.next_in_run(exchange)
    if following is not None or any(start.call for start in index.starts_of(exchange)):
        return True
    ids = {call.id for call in calls_of(exchange)}
    end = terminator_at(exchange)
    for at, event in index.run_events(run):
        if end is None or at < end:
            continue
        if event.type in (EventType.TOOL_START, EventType.TOOL_END) and event.call_id in ids:
            return True
        if event.type == EventType.MESSAGE_END and event.role == "assistant" and not event.interrupted:
            in_time = disturbed is None or at < disturbed
            if event.reason in ACCEPTING_REASONS or (event.reason is None and in_time):
                return True
    return False


def shown_taken(index: TraceIndex, exchange: Exchange) -> bool:
    """Whether the target did something that shows it had the whole of an accepted reply."""
    run = index.run_of(exchange)
    if run is None or not _accepted(exchange):
        return False
    return _shown_taken(index, exchange, run, disturbance(index, run, exchange.at))


def taken(index: TraceIndex, exchange: Exchange) -> bool:
    """Whether the target certainly accepted this reply; see the module's text."""
    found: bool = _once(index, ("taken", exchange.number), lambda: _taken(index, exchange))
    return found


def _reasons(exchange: Exchange) -> set[str]:
    """All reasons that came before the terminator; two that differ may be read either way."""
    end = terminator_at(exchange)
    return {
        sent.piece.reason
        for at, sent in exchange.sent
        if isinstance(sent.piece, Reason) and (end is None or at < end)
    }


def _accepted(exchange: Exchange) -> bool:
    return accepted(exchange) and _reasons(exchange) <= ACCEPTING_REASONS


def _taken(index: TraceIndex, exchange: Exchange) -> bool:
    run = index.run_of(exchange)
    if run is None or not _accepted(exchange):
        return False
    disturbed = disturbance(index, run, exchange.at)
    quiet = disturbed is None and run.settled is not None
    return quiet or _shown_taken(index, exchange, run, disturbed)


def failed_alone(index: TraceIndex, exchange: Exchange) -> bool:
    """Whether this reply failed, and the target cannot have seen anything else first.

    Neither a cancellation, that is, nor a failing listener, nor a reason that accepts it.
    """
    run = index.run_of(exchange)
    if run is None or not exchange.failed or exchange.cancelled_at is not None:
        return False
    if _reasons(exchange) & ACCEPTING_REASONS:
        return False
    following = index.next_in_run(exchange)
    end = len(index.trace) if following is None else following.at
    over_at = min(
        (at for at in (exchange.terminator_at, *(at for at, _ in exchange.faults)) if at), default=end
    )
    exact = index.header.grade == Grade.EXACT
    if index.claim("listener_failure") != "ignored" and any(
        exchange.at < at < (over_at if exact else end) for at in run.listener_raised_at
    ):
        return False
    racing = index.header.grade == Grade.RACING
    # Before a cancellation from outside, the bench waits until the target has seen the failure.
    return not any(
        exchange.at < cancel.sent_at < end and (racing or "listener" in cancel.at) for cancel in run.cancels
    )


def odd_ids(exchange: Exchange) -> bool:
    """Whether the reply has an empty id or one id twice: a rule of its own says what is legal."""
    ids = [call.id for call in calls_of(exchange)]
    return "" in ids or len(set(ids)) < len(ids)


@dataclass(slots=True)
class Batch:
    """The calls of a reply with the starts that serve each of them.

    ``calls`` are those that the wire said were whole: the target may leave out any other.
    ``strays`` are tools that were entered while this batch was the latest, with arguments that no
    call has and that are no conversion of a call's.
    """

    exchange: Exchange
    run: Run
    starts: list[tuple[SentCall, list[Start]]]
    calls: list[SentCall]
    strays: list[Start]

    def stray(self, tool: str) -> bool:
        """Whether this tool was entered in a way that no call explains."""
        return any(start.entry.tool == tool for start in self.strays)

    def finished(self, starts: Sequence[Start]) -> bool:
        """Whether one of these starts returned or raised before the run ended."""
        end = self.run.end
        return any(
            start.settled is not None and start.settled.how in ("returned", "raised")
            and start.settled_at is not None and (end is None or start.settled_at < end)
            for start in starts
        )  # fmt: skip


def _serving(index: TraceIndex) -> list[tuple[Start, SentCall]]:
    """Each start with the call that it serves.

    The index looks for the call in the newest reply alone. A start may also come late, or while
    another run has asked something; then it is the newest earlier call of that id and tool, and of
    twins the one with these arguments that no start serves yet.
    """
    found = [(start, start.call) for start in index.starts if start.call is not None]
    for start in index.starts:
        entry = start.entry
        if start.call is not None or entry.call_id is None:
            continue
        for exchange in reversed(index.exchanges):
            calls = calls_of(exchange) if exchange.at < start.at else []
            alike = [c for c in calls if c.id == entry.call_id and c.name == entry.tool]
            if alike:
                exact = [c for c in alike if same_arguments(c.arguments, entry.arguments)] or alike
                free = [c for c in exact if not any(c is served for _, served in found)]
                found.append((start, (free or exact)[0]))
                break
    return sorted(found, key=lambda item: item[0].at)


def batch_of(index: TraceIndex, exchange: Exchange, run: Run) -> Batch:
    """The batch of one reply."""
    serving: list[tuple[Start, SentCall]] = _once(index, ("serving",), lambda: _serving(index))
    starts = [(call, [start for start, served in serving if served is call]) for call in calls_of(exchange)]
    strays: list[Start] = []
    for start in [] if overlapped(index, run) else index.starts_of(exchange):
        if start.call is not None or start.entry.call_id is not None:
            continue
        entry = start.entry
        fits = (
            served
            for call, served in starts
            if not served and call.name == entry.tool
            and _converts(entry.tool, call.arguments, entry.arguments)
        )  # fmt: skip
        home = next(fits, strays)
        home.append(start)
    whole = [call for call, _ in starts if finished_call(call, index)]
    return Batch(exchange, run, starts, whole, strays)


def batches(index: TraceIndex) -> list[Batch]:
    """The batches of all replies that were taken and have calls."""
    found: list[Batch] = _once(index, ("batches",), lambda: list(_batches(index)))
    return found


def _batches(index: TraceIndex) -> Iterator[Batch]:
    for exchange in index.exchanges:
        run = index.run_of(exchange)
        if calls_of(exchange) and run is not None and taken(index, exchange):
            yield batch_of(index, exchange, run)


@dataclass(frozen=True, slots=True)
class Failure:
    """A call that could not give a result; ``claim`` says by which claim it is judged.

    A call that the reply did not finish has none, nor has one with members that its tool does not
    declare: what they lead to is nobody's claim.
    """

    call: SentCall
    claim: str | None
    at: int | None = None


def failures(batch: Batch) -> list[Failure]:
    """The calls of a batch that failed: unknown tool, invalid arguments, a tool that raised."""
    found = []
    for call, starts in batch.starts:
        raised = [s.settled_at for s in starts if s.settled is not None and s.settled.how == "raised"]
        claim = fault_of(call, batch.exchange)
        if raised:
            found.append(Failure(call, "tool_exception", raised[0]))
        elif starts or batch.stray(call.name):
            continue
        elif not any(call is whole for whole in batch.calls):
            found.append(Failure(call, None))
        elif claim is not None:
            found.append(Failure(call, claim))
        elif call.name in PROBES and names_more(call.name, call.arguments):
            found.append(Failure(call, None))
    return found


def may_end(index: TraceIndex, batch: Batch, besides: str = "") -> bool:
    """Whether something may have ended the batch early.

    That is a cancellation, a listener, a limit, a hang, a second prompt at the same time, or a
    failing call that no claim says is answered. ``besides`` is a claim to leave out.
    """
    following = index.next_in_run(batch.exchange)
    disturbed = disturbance(index, batch.run, batch.exchange.at)
    if overlapped(index, batch.run):
        return True
    if disturbed is not None and (following is None or disturbed < following.at):
        return True
    if following is not None:
        return False
    if batch.run.settled is None or batch.run.settled.reason == FailureReason.LIMIT:
        return True
    claims = {failure.claim for failure in failures(batch)} - {besides}
    return any(claim is None or index.claim(claim) != "answers" for claim in claims)


# --------------------------------------------------------------------------------------------
# Sights


@dataclass(frozen=True, slots=True)
class Sight:
    """A place that shows the target's history: ``where`` names it in words."""

    at: int
    where: str
    messages: tuple[Message, ...]
    request: bool


def builds_on(index: TraceIndex, run: Run, later: Exchange) -> bool:
    """Whether a later request must carry what ``run`` left in history."""
    owner = index.run_of(later)
    if owner is None or (index.lost_at is not None and later.at > index.lost_at):
        return False
    if owner is run:
        return True
    queued = index.claim("concurrent_prompt") == "queued"
    if run.prompted.running and not queued:
        return False
    return run.end is not None and later.at > run.end and (queued or owner.at > run.end)


def sights(index: TraceIndex, exchange: Exchange) -> list[Sight]:
    """Where the history after this reply shows, in the order of the trace."""
    found: list[Sight] = _once(index, ("sights", exchange.number), lambda: _sights(index, exchange))
    return found


def _sights(index: TraceIndex, exchange: Exchange) -> list[Sight]:
    run = index.run_of(exchange)
    if run is None:
        return []
    found = [
        Sight(later.at, f"request {later.number}", later.request.messages, True)
        for later in index.later_requests(exchange.at)
        if builds_on(index, run, later)
    ]
    apart = run.prompted.running and index.claim("concurrent_prompt") != "queued"
    for at, history in index.histories:
        if run.end is None or at < run.end or apart:
            continue
        where = f"the history after prompt {history.prompt}"
        found.append(Sight(at, where, history.messages, False))
    return sorted(found, key=lambda sight: sight.at)


def deciding_sight(index: TraceIndex, exchange: Exchange) -> Sight | None:
    """The place that decides what a batch's end left in history.

    That is the next request in which the reply still stands, or else the history that was read at
    rest. A target may put its history in order when it makes the next request, and not before.
    """
    standing = [
        sight for sight in sights(index, exchange) if locate(index, exchange, sight.messages) is not None
    ]
    return next((sight for sight in standing if sight.request), next(iter(standing), None))


def _first(
    messages: Sequence[Message], begin: int, exchange: Exchange, senders: Mapping[str, Exchange]
) -> int | None:
    """The first message from ``begin`` on that has the reply's ids, or else the same calls.

    ``senders`` are the replies by the ids that they sent: a message that has an id of another reply
    is that other reply.
    """
    ids = {call.id for call in calls_of(exchange)}
    shape = [(call.name, call.arguments) for call in calls_of(exchange)]
    alike = None
    for at in range(begin, len(messages)):
        message = messages[at]
        if not isinstance(message, AssistantMessage) or not message.calls:
            continue
        if any(call.id in ids for call in message.calls):
            return at
        theirs = any(senders.get(call.id, exchange) is not exchange for call in message.calls)
        if alike is None and not theirs and len(message.calls) == len(shape) and all(
            call.name == name and same_arguments(call.arguments, arguments)
            for call, (name, arguments) in zip(message.calls, shape, strict=True)
        ):  # fmt: skip
            alike = at
    return alike


def locate(index: TraceIndex, exchange: Exchange, messages: tuple[Message, ...]) -> int | None:
    """The position of the message that is this reply with calls, or ``None``.

    ``messages`` belong to the trace, so that their identity stands for them.
    """
    key = ("locate", exchange.number, id(messages))
    found: int | None = _once(index, key, lambda: _locate(index, exchange, messages))
    return found


def _locate(index: TraceIndex, exchange: Exchange, messages: tuple[Message, ...]) -> int | None:
    senders: dict[str, Exchange] = _once(index, ("senders",), lambda: _senders(index))
    at = -1
    for other in index.exchanges:
        if other is exchange:
            return _first(messages, at + 1, exchange, senders)
        if calls_of(other) and taken(index, other):
            found = _first(messages, at + 1, other, senders)
            at = at if found is None else found
    return None


def _senders(index: TraceIndex) -> dict[str, Exchange]:
    return {call.id: exchange for exchange in index.exchanges for call in calls_of(exchange)}


def answers(messages: Sequence[Message], position: int, call_id: str) -> list[ToolResult]:
    """The results of one call of the message at ``position``, up to where its id is used again."""
    found = []
    for message in messages[position + 1 :]:
        if isinstance(message, ToolResult) and message.call_id == call_id:
            found.append(message)
        elif isinstance(message, AssistantMessage) and any(c.id == call_id for c in message.calls):
            break
    return found


def id_there(message: Message, exchange: Exchange, call: SentCall) -> str:
    """The id under which a located message carries the call: its own, unless ids were changed."""
    calls = message.calls if isinstance(message, AssistantMessage) else ()
    if any(item.id == call.id for item in calls) or len(calls) != len(calls_of(exchange)):
        return call.id
    return calls[next(i for i, item in enumerate(calls_of(exchange)) if item is call)].id


def result_there(
    index: TraceIndex, exchange: Exchange, call: SentCall, messages: tuple[Message, ...]
) -> ToolResult | None:
    """The first result of a call in a message list, if the list has its reply and the result."""
    position = locate(index, exchange, messages)
    if position is None:
        return None
    found = answers(messages, position, id_there(messages[position], exchange, call))
    return found[0] if found else None


def quoted(text: str) -> str:
    """A text for a finding's words, in quotes and not longer than a line."""
    return repr(text if len(text) <= 60 else text[:57] + "...")
