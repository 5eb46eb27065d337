"""Pairing: calls and their results in history and in every request.

Every provider API asks for the same: a message with calls is followed at once by one result for
each of them, under its id, and by nothing else. A history that breaks this is refused from then on,
so one interrupted batch can end a conversation for good.

The first rules look at each request by itself, whatever led to it. The later ones follow a batch:
what ended it, which calls were left, and what history shows of them afterwards. Where a target
erased the whole reply, there is nothing to pair; that is for ``history.completed-messages-stay``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from loopspec.rules.base import Broke, Finding, Held, Hidden, rule
from loopspec.rules.batches import (
    Batch,
    Sight,
    answers,
    batch_of,
    batches,
    deciding_sight,
    failed_alone,
    locate,
    odd_ids,
    quoted,
    result_there,
    sights,
)
from loopspec.rules.replies import calls_of, overlapped
from loopspec.trace_index import Cancel, Exchange, SentCall, Start, TraceIndex, results_after
from loopspec.vocabulary import AssistantMessage, EventType, Grade, Message, ToolResult

PLAIN_ID = re.compile(r"[A-Za-z0-9_-]{1,40}")
"""Ids that every provider API takes. A target may have to rewrite others."""


def _replies(messages: Sequence[Message]) -> Iterator[tuple[int, AssistantMessage]]:
    """The assistant messages with calls, and where they stand."""
    for at, message in enumerate(messages):
        if isinstance(message, AssistantMessage) and message.calls:
            yield at, message


def _single_ids(message: AssistantMessage) -> list[str]:
    """The ids of a message that are not empty and not repeated in it."""
    counts = Counter(call.id for call in message.calls)
    return [call_id for call_id, count in counts.items() if call_id and count == 1]


def _words(ids: Sequence[str]) -> str:
    return ", ".join(map(repr, ids)) or "none"


def _all_sights(index: TraceIndex) -> list[Sight]:
    """Every request, and the history wherever it was read."""
    found = [
        Sight(item.at, f"request {item.number}", item.request.messages, True) for item in index.exchanges
    ]
    found += [
        Sight(at, f"the history after prompt {read.prompt}", read.messages, False)
        for at, read in index.histories
    ]
    return sorted(found, key=lambda sight: sight.at)


# --------------------------------------------------------------------------------------------
# Each request by itself


@rule(
    "pairing.every-call-answered-once",
    "In every request each call MUST have exactly one result.",
    source="B, PAI02",
)
def every_call_answered_once(index: TraceIndex) -> Iterator[Finding]:
    """Providers refuse a request with an open call, and one with two results for a call.

    As the history goes with every request, such a conversation cannot be taken up again.
    """
    for exchange in index.exchanges:
        messages = exchange.request.messages
        checked, broken = False, False
        for at, message in _replies(messages):
            for call_id in _single_ids(message):
                checked = True
                count = len(answers(messages, at, call_id))
                if count != 1:
                    broken = True
                    yield Broke(
                        f"request {exchange.number} has {count or 'no'} results for call {call_id!r};"
                        f" expected exactly one",
                        exchange.at,
                    )
        if checked and not broken:
            yield Held(exchange.at)


@rule(
    "pairing.no-orphan-result",
    "A result MUST NOT be in a request or in history unless the call that it answers stands before it.",
    source="D",
)
def no_orphan_result(index: TraceIndex) -> Iterator[Finding]:
    """A result without its call answers a question that nobody asked; providers refuse it."""
    for sight in _all_sights(index):
        known: set[str] = set()
        results, orphans = 0, []
        for message in sight.messages:
            if isinstance(message, AssistantMessage):
                known |= {call.id for call in message.calls}
            elif isinstance(message, ToolResult) and (message.call_id or sight.request):
                results += 1
                if message.call_id not in known:
                    orphans.append(message.call_id)
        if orphans:
            yield Broke(
                f"{sight.where} has a result for {_words(orphans)}, but no call of that id before it",
                sight.at,
            )
        elif results:
            yield Held(sight.at)


@rule(
    "pairing.adjacent",
    "In every request the results of a reply MUST follow it at once and as one group.",
    source="PAI06, PAI14",
)
def adjacent(index: TraceIndex) -> Iterator[Finding]:
    """Providers read calls and results as one exchange.

    A message between them, a user's note say, makes them refuse the request.
    """
    for exchange in index.exchanges:
        messages = exchange.request.messages
        checked, broken = False, False
        for at, message in _replies(messages):
            group = [result.call_id for result in results_after(messages, at)]
            apart = [
                call_id
                for call_id in _single_ids(message)
                if len(answers(messages, at, call_id)) > group.count(call_id)
            ]
            checked = checked or bool(group)
            if apart:
                broken = True
                yield Broke(
                    f"in request {exchange.number} the result of {_words(apart)} does not stand in the"
                    f" group directly after its reply (that group: {_words(group)})",
                    exchange.at,
                )
        if checked and not broken:
            yield Held(exchange.at)


@rule(
    "pairing.names-kept",
    "The tool name that a result bears, where it bears one, MUST be the name in its call.",
    source="B",
)
def names_kept(index: TraceIndex) -> Iterator[Finding]:
    """Some APIs match results by name, and every reader of a history does."""
    for sight in _all_sights(index):
        names: dict[str, str] = {}
        checked, broken = False, False
        for message in sight.messages:
            if isinstance(message, AssistantMessage):
                single = set(_single_ids(message))
                names.update({call.id: call.name for call in message.calls if call.id in single})
            elif isinstance(message, ToolResult) and message.name and message.call_id in names:
                checked = True
                if message.name != names[message.call_id]:
                    broken = True
                    yield Broke(
                        f"{sight.where} has the result of {message.call_id!r} under the name"
                        f" {message.name!r}, but the call names {names[message.call_id]!r}",
                        sight.at,
                    )
        if checked and not broken:
            yield Held(sight.at)


@rule(
    "pairing.repeated-ids",
    "A reply with an empty id, or with one id twice, MUST NOT lead to a request with two calls or two"
    " results of one id; the target may refuse the reply or make its ids unique. An id that is used"
    " again in a later turn is no repeat.",
    source="PAI21",
)
def repeated_ids(index: TraceIndex) -> Iterator[Finding]:
    """Some models give every call the same id, or none.

    Kept by id, one result hides the other; sent as they came, the request is refused.
    """
    uses: Counter[str] = Counter()
    odd = False
    for exchange in index.exchanges:
        calls: Counter[str] = Counter()
        results: Counter[str] = Counter()
        for message in exchange.request.messages:
            if isinstance(message, AssistantMessage):
                calls.update(call.id for call in message.calls)
            elif isinstance(message, ToolResult):
                results.update([message.call_id])
        # One id may stand in a request as often as there were replies that used it.
        for what, counted in (("calls", calls), ("results", results)):
            for call_id, count in counted.items():
                if odd and count > max(1, uses[call_id]):
                    yield Broke(
                        f"request {exchange.number} has {count} {what} of the id {call_id!r}, which"
                        f" {uses[call_id]} replies had used",
                        exchange.at,
                    )
                    break
            else:
                continue
            break
        else:
            if odd:
                yield Held(exchange.at)
        uses.update({call.id for call in exchange.calls})
        odd = odd or odd_ids(exchange)


# --------------------------------------------------------------------------------------------
# A batch and what history shows of it


@rule(
    "pairing.ids-kept",
    "Calls and results in history and in requests MUST bear the ids that the provider gave.",
    source="B",
)
def ids_kept(index: TraceIndex) -> Iterator[Finding]:
    """An id is how the provider, the client and the log speak of the same call."""
    for exchange in index.exchanges:
        calls = calls_of(exchange)
        plain = all(PLAIN_ID.fullmatch(call.id) for call in calls)
        if not calls or not plain or odd_ids(exchange) or exchange.failed:
            continue
        seen = []
        for sight in sights(index, exchange):
            found = _ids_in(index, exchange, sight)
            if found is None:
                continue
            wrong = _changed([call.id for call in calls], *found)
            if wrong is not None:
                yield Broke(
                    f"the reply to request {exchange.number} has the calls"
                    f" {_words([call.id for call in calls])}, but {sight.where} has {wrong}",
                    exchange.at,
                    sight.at,
                )
                break
            seen.append(sight.at)
        else:
            if seen:
                yield Held(*seen)


def _ids_in(index: TraceIndex, exchange: Exchange, sight: Sight) -> tuple[list[str], list[str]] | None:
    """The ids of a reply's calls, and of the results after them; ``None``: it shows no ids."""
    position = locate(index, exchange, sight.messages)
    message = None if position is None else sight.messages[position]
    if position is None or not isinstance(message, AssistantMessage):
        return None
    ids = [call.id for call in message.calls]
    if not sight.request and not all(ids):
        return None
    return ids, [result.call_id for result in results_after(sight.messages, position)]


def _changed(sent: list[str], calls: list[str], results: list[str]) -> str | None:
    if len(calls) == len(sent) and set(calls) != set(sent):
        return f"them as {_words(calls)}"
    if len(results) == len(calls) and set(calls) <= set(sent) and set(results) != set(calls):
        return f"their results as {_words(results)}"
    return None


@rule(
    "pairing.same-order-everywhere",
    "Events, history and the next request MUST agree on the order of the results of a batch.",
    source="D",
)
def same_order_everywhere(index: TraceIndex) -> Iterator[Finding]:
    """A client that shows one order and a model that reads another do not speak of the same run."""
    for batch in batches(index):
        ids = [call.id for call, _ in batch.starts]
        if len(ids) < 2 or odd_ids(batch.exchange):
            continue
        orders = [order for order in _orders(index, batch, ids) if len(order[2]) > 1]
        if len(orders) < 2:
            if orders and not (index.observes("history") or index.observes("events")):
                yield Hidden("neither the history nor the events of this target can be seen")
            continue
        first_at, first_where, first = orders[0]
        for at, where, order in orders[1:]:
            one = [call_id for call_id in first if call_id in order]
            other = [call_id for call_id in order if call_id in first]
            if one != other:
                yield Broke(
                    f"the results of the reply to request {batch.exchange.number} stand as"
                    f" {_words(one)} in {first_where}, but as {_words(other)} in {where}",
                    first_at,
                    at,
                )
                break
        else:
            yield Held(*(at for at, _, _ in orders))


def _orders(index: TraceIndex, batch: Batch, ids: Sequence[str]) -> Iterator[tuple[int, str, list[str]]]:
    """The orders in which the results of a batch were told and stand, each with its place."""
    following = index.next_in_run(batch.exchange)
    told: dict[str, int] = {}
    for at, event in index.run_events(batch.run):
        inside = at > batch.exchange.at and (following is None or at < following.at)
        is_result = event.type == EventType.MESSAGE_END and event.role == "tool"
        if inside and is_result and event.call_id in ids and event.call_id is not None:
            told.setdefault(event.call_id, at)
    if told:
        yield max(told.values()), "the events", list(told)
    for sight in sights(index, batch.exchange):
        position = locate(index, batch.exchange, sight.messages)
        if position is not None:
            group = [result.call_id for result in results_after(sight.messages, position)]
            yield sight.at, sight.where, list(dict.fromkeys(item for item in group if item in ids))


@rule(
    "pairing.none-for-failed-reply",
    "A result MUST NOT be made up for a call of a reply that failed.",
    source="B",
)
def none_for_failed_reply(index: TraceIndex) -> Iterator[Finding]:
    """A failed reply is left out of the next request.

    A result made up for one of its calls stays behind without a call, and the request is refused.
    """
    for exchange in index.exchanges:
        run = index.run_of(exchange)
        if run is None or not failed_alone(index, exchange):
            continue
        elsewhere = {call.id for other in index.exchanges if other is not exchange for call in other.calls}
        batch = batch_of(index, exchange, run)
        ids = {call.id for call, starts in batch.starts if not starts and not batch.stray(call.name)}
        ids -= {*elsewhere, ""}
        places = sights(index, exchange) if ids else []
        for sight in places:
            made_up = [
                message.call_id
                for message in sight.messages
                if isinstance(message, ToolResult) and message.call_id in ids
            ]
            if made_up:
                yield Broke(
                    f"the reply to request {exchange.number} failed and its calls never ran, but"
                    f" {sight.where} has a result for {_words(made_up)}",
                    exchange.at,
                    sight.at,
                )
                break
        else:
            if places:
                yield Held(exchange.at, *(sight.at for sight in places))


def _ended_early(index: TraceIndex, batch: Batch) -> str | None:
    """What ended a batch before its results went to the model, in words; ``None``: nothing did."""
    run = batch.run
    if index.next_in_run(batch.exchange) is not None or run.settled is None or run.completed:
        return None
    if any(cancel.sent_at > batch.exchange.at for cancel in run.cancels):
        return "a cancellation"
    if any(at > batch.exchange.at for at in run.listener_raised_at):
        return "a failing listener"
    return "the failure of the run"


@rule(
    "pairing.interrupted-batch-completed",
    "Whatever ends a batch early, each of its calls without a result MUST get an error result under"
    " its own id.",
    source="A, B",
)
def interrupted_batch_completed(index: TraceIndex) -> Iterator[Finding]:
    """The reply with its calls is in history, so each call has to be answered there.

    Otherwise the next prompt is refused, and the user has lost the conversation to one key press.
    """
    for batch in batches(index):
        cause = _ended_early(index, batch)
        left = [call for call, starts in batch.starts if not batch.finished(starts)]
        if cause is None or not left or odd_ids(batch.exchange):
            continue
        sight = deciding_sight(index, batch.exchange)
        if sight is None:
            continue
        missing, wrong = _incomplete(index, batch, left, sight)
        if wrong is None and missing and not sight.request:
            continue  # at rest a result may still be lacking, if the next request has it
        if wrong is None and missing:
            wrong = f"has no result for {_words(missing)}"
        if wrong is None:
            yield Held(batch.exchange.at, sight.at)
        else:
            yield Broke(
                f"{cause} ended the batch of request {batch.exchange.number} while"
                f" {_words([call.id for call in left])} had no result; {sight.where} {wrong}",
                batch.exchange.at,
                sight.at,
            )


def _incomplete(
    index: TraceIndex, batch: Batch, left: Sequence[SentCall], sight: Sight
) -> tuple[list[str], str | None]:
    """The calls without a result in one place, and a result there that is wrong, in words."""
    missing = []
    for call in batch.calls:
        result = result_there(index, batch.exchange, call, sight.messages)
        if result is None:
            missing.append(call.id)
        elif any(call is item for item in left) and result.is_error is False:
            return missing, f"has {quoted(result.text)} for {call.id!r}, which is not an error result"
    return missing, None


def _stop(index: TraceIndex, batch: Batch) -> tuple[int, str] | None:
    """From where on nothing more of a batch may begin, and why.

    A cancellation counts from the moment when its call came back. Where the exact moment cannot be
    known (a racing cancellation, tools that were dispatched together before a listener failed), the
    settlement of the run is taken.
    """
    run, following = batch.run, index.next_in_run(batch.exchange)
    racing = index.header.grade == Grade.RACING

    def inside(at: int) -> bool:
        return at > batch.exchange.at and (following is None or at < following.at)

    cancel = next((item for item in run.cancels if inside(item.sent_at)), None)
    if cancel is not None and not overlapped(index, run):
        at = run.settled_at if racing or cancel.returned_at is None else cancel.returned_at
        return None if at is None else (at, "a cancellation")
    raised = next((at for at in run.listener_raised_at if inside(at)), None)
    if raised is not None and index.claim("listener_failure") == "fails" and not overlapped(index, run):
        exact = index.claim("tools") == "sequential" and not racing
        at = raised if exact else run.settled_at
        return None if at is None else (at, "a failing listener")
    failed = following is None and run.settled is not None and not run.completed
    if failed and run.settled_at is not None:
        return run.settled_at, "the failure of the run"
    return None


@rule(
    "pairing.skipped-never-run",
    "A call that its batch left without a result MUST NOT be run after the batch was ended, then or"
    " later, and no request MUST follow in that run.",
    source="A, B",
)
def skipped_never_run(index: TraceIndex) -> Iterator[Finding]:
    """History says that the call did not run, and the user who cancelled believes it.

    A tool that starts after that acts behind both.
    """
    for batch in batches(index):
        stop = _stop(index, batch)
        if stop is None:
            continue
        at, cause = stop
        left = [call.id for call, starts in batch.starts if not _done_before(starts, at)]
        if not left:
            continue
        told = f"{cause} ended the batch of request {batch.exchange.number} with {_words(left)} open"
        starts = [start for _, served in batch.starts for start in served] + batch.strays
        late = [start for start in starts if start.at > at]
        for start in late:
            yield Broke(
                f"{told}, but {start.entry.tool} was entered with {quoted(start.entry.arguments)} afterwards",
                at,
                start.at,
            )
        following = index.next_in_run(batch.exchange)
        if following is not None and following.at > at:
            yield Broke(f"{told}, but request {following.number} followed", at, following.at)
        elif not late:
            yield Held(at)


def _done_before(starts: Sequence[Start], at: int) -> bool:
    return any(
        start.settled is not None and start.settled.how in ("returned", "raised")
        and start.settled_at is not None and start.settled_at < at
        for start in starts
    )  # fmt: skip


@rule(
    "pairing.settled-result-stays",
    "A result that its tool had delivered before the cancellation MUST NOT be replaced.",
    source="D, TOO11",
)
def settled_result_stays(index: TraceIndex) -> Iterator[Finding]:
    """The tool has done its work, and the loop knew it before anyone cancelled.

    To tell the model otherwise makes it do the work again.
    """
    for batch in batches(index):
        cancel = next((c for c in batch.run.cancels if c.sent_at > batch.exchange.at), None)
        if cancel is None or odd_ids(batch.exchange) or overlapped(index, batch.run):
            continue
        for call, starts in batch.starts:
            start = starts[0] if len(starts) == 1 else None
            if start is None or start.settled is None or start.settled.how != "returned":
                continue
            if start.settled_at is None or start.settled_at > cancel.sent_at:
                continue
            if _had_it(index, batch, call, start.settled_at, cancel):
                yield from _stays(index, batch, call, start.settled.text, start.settled_at)
            else:
                yield Hidden("whether the target had the result when it was cancelled is not known")


def _had_it(index: TraceIndex, batch: Batch, call: SentCall, settled_at: int, cancel: Cancel) -> bool:
    """Whether the target had a returned result in its hands when it was cancelled.

    A later request says so, and so does the event of its end. Before a cancellation from outside
    the bench waits until the target has taken in everything; in a listener it cannot, and at grade
    ``racing`` it does not know.
    """
    following = index.next_in_run(batch.exchange)
    if following is not None and following.at < cancel.sent_at:
        return True
    for at, event in index.events:
        result = event.type == EventType.MESSAGE_END and event.role == "tool"
        ended = result or event.type == EventType.TOOL_END
        if ended and event.call_id == call.id and settled_at < at < cancel.sent_at:
            return True
    return "listener" not in cancel.at and index.header.grade != Grade.RACING


def _stays(index: TraceIndex, batch: Batch, call: SentCall, text: str, settled_at: int) -> Iterator[Finding]:
    seen = []
    for sight in sights(index, batch.exchange):
        result = result_there(index, batch.exchange, call, sight.messages)
        if result is None:
            continue
        # Where the tool gave nothing, a wire may ask for a word in its place.
        if result.is_error or (text.strip() and text not in result.text):
            yield Broke(
                f"call {call.id!r} had returned {quoted(text)} before the cancellation, but"
                f" {sight.where} has {quoted(result.text)}"
                f"{', marked as an error' if result.is_error else ''}",
                settled_at,
                sight.at,
            )
            return
        seen.append(sight.at)
    if seen:
        yield Held(settled_at, *seen)
