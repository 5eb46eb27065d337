"""Prefix, second half: what the model hears of a cut reply, and what does not finalize one.

The first half says what is kept and told. Here stands what reaches a request, under either claim,
and what must leave no interrupted message at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from loopspec.rules.base import Broke, Finding, Held, Hidden, rule
from loopspec.rules.cuts import RACES, UNPLACED, cuts, placed, quote, racing
from loopspec.rules.delivered import (
    NO_HISTORY,
    UNSEEN,
    Interrupted,
    at_rest,
    carries,
    each,
    further_messages,
    judged,
    kept_anywhere,
    kept_in,
    kept_runs,
    listed,
    of_kind,
    says,
    sent_runs,
    told_of,
)
from loopspec.rules.replies import overlapped
from loopspec.rules.turns import has_prompt, messages_of, next_request
from loopspec.trace_index import Exchange, Run, TraceIndex
from loopspec.vocabulary import AssistantMessage, EventType, Message, OtherMessage, UserMessage

# --------------------------------------------------------------------------------------------
# What the model hears of it


@rule(
    "prefix.in-next-request",
    "The next request MUST carry what was kept of a cancelled reply (reasoning alone only where"
    " the wire accepts it).",
    source="A, HIS01",
    claim="cancelled_prefix",
    values=("finalize",),
)
def in_next_request(index: TraceIndex) -> Iterator[Finding]:
    """What the user can see and the model cannot is the gap that finalizing closes."""
    for item in judged(index):
        if isinstance(item, Hidden):
            yield item
        elif (request := next_request(index, item.run)) is not None:
            yield from _carried(index, item, request)


@rule(
    "prefix.in-fork",
    "A fork of the conversation at the cancelled run MUST carry what was kept of its reply.",
    source="A",
    claim="cancelled_prefix",
    values=("finalize",),
    also_needs=("fork",),
)
def in_fork(index: TraceIndex) -> Iterator[Finding]:
    """A fork that lacks what its reader sees inherits the gap."""
    for item in judged(index):
        request = None
        if isinstance(item, Interrupted):
            request = next_request(index, item.run, fork=True)
        if isinstance(item, Interrupted) and request is not None:
            yield from _carried(index, item, request)
        elif isinstance(item, Hidden) and any(run.prompted.fork for run in index.runs):
            yield item


def _carried(index: TraceIndex, item: Interrupted, request: Exchange) -> Iterator[Finding]:
    """Whether a request carries the kept text, and the reasoning where its wire has room."""
    message = kept_in(index, request.request.messages, item.run, item.exchange)
    runs = kept_runs(message) if message is not None else []
    where = (item.exchange.at, item.cut.cancel.sent_at, request.at)
    native = index.header.wire == "native"
    if not item.expected("text").strip() and not native and not says(runs):
        yield Hidden(f"the wire {index.header.wire} need not take reasoning alone")
        return
    for kind in ("text", "reasoning"):
        have = of_kind(runs, kind)
        optional = kind == "reasoning" and not have and not native
        if not optional and not _as_kept(index, item, kind, have):
            yield Broke(
                f"request {request.number} was to carry the {kind}"
                f" {quote(item.expected(kind))} that was kept, and has {quote(have)}",
                *where,
            )
            return
    yield Held(*where)


def _as_kept(index: TraceIndex, item: Interrupted, kind: str, have: str) -> bool:
    """What history kept is what is carried; where it is not shown, what was delivered is."""
    history = at_rest(index, item.run)
    message = None
    if history is not None:
        message = kept_in(index, history[1].messages, item.run, item.exchange)
    if message is not None and carries(kept_runs(message), kind, have):
        return bool(have) or not item.expected(kind).strip() or kind == "reasoning"
    return item.fits_kind(index, kind, have) or carries(item.delivered, kind, have)


@rule(
    "prefix.no-extra-message",
    "A cancellation MUST NOT add a message of its own to what the model hears, such as a note that"
    " the user interrupted.",
    source="A",
    claim="cancelled_prefix",
    values=("finalize",),
)
def no_extra_message(index: TraceIndex) -> Iterator[Finding]:
    """A note in the user's name is something that the user did not say.

    That the run was cancelled is in the record of the run, where later decisions can find it.
    """
    yield from each(index, _extra, blank=None)


def _extra(index: TraceIndex, item: Interrupted) -> Iterator[Finding]:
    request = next_request(index, item.run)
    if request is None:
        return
    before = _strangers(index, item.exchange.request.messages, item.run)
    after = _strangers(index, request.request.messages, item.run)
    # What a target puts before every prompt stands before the next one, too.
    allowed = len(before) + _preamble(index, item.exchange.request.messages, item.run)
    if len(after) > allowed:
        yield Broke(
            f"request {request.number} was to hold nothing between the cancelled reply and the next"
            f" prompt, and holds {quote(after[-1])}",
            item.cut.cancel.sent_at,
            request.at,
        )
    else:
        yield Held(item.cut.cancel.sent_at, request.at)


def _strangers(index: TraceIndex, messages: Sequence[Message], run: Run) -> list[str]:
    """The user and other messages of a run that are no prompt of ours."""
    mine = messages_of(index, messages, run)
    return [item.text for item in mine if isinstance(item, UserMessage | OtherMessage)]


def _preamble(index: TraceIndex, messages: Sequence[Message], run: Run) -> int:
    """How many messages that are no prompt stand directly before the run's prompt."""
    count = 0
    for message in messages:
        if not isinstance(message, UserMessage | OtherMessage):
            count = 0
        elif run.prompted.text in message.text:
            return count
        elif any(other.prompted.text in message.text for other in index.runs):
            count = 0
        else:
            count += 1
    return 0


# --------------------------------------------------------------------------------------------
# What does not finalize


@rule(
    "prefix.only-by-cancellation",
    "A reply that is cut short by anything but a cancellation, such as a failing stream or a"
    " failing listener, MUST NOT be kept as an interrupted message.",
    source="A",
    claim="cancelled_prefix",
    values=("finalize",),
)
def only_by_cancellation(index: TraceIndex) -> Iterator[Finding]:
    """Only the user's decision turns delivered text into a message.

    A failed request will be made again, and its half answer would stand beside the whole one.
    """
    for run in index.runs:
        exchange = run.last
        if run.cancels or run.completed or exchange is None or run.lost_at is not None:
            continue
        if overlapped(index, run):
            continue
        raised = [at for at in run.listener_raised_at if at > exchange.at]
        cut_short = bool(raised) and (exchange.reason_at is None or exchange.reason_at > raised[0])
        if not (exchange.failed or cut_short) or not says(sent_runs(exchange)):
            continue
        seen = kept_anywhere(index, run, exchange)
        told = [at for at, event in told_of(index, exchange) if event.interrupted]
        if seen is None and not index.observes("events"):
            yield UNSEEN
            continue
        message = seen[1] if seen is not None else None
        marked = message is not None and message.interrupted
        why = "a failing listener" if cut_short else "a failed reply"
        if marked or told:
            yield Broke(
                f"{why} was to leave no interrupted message in run {run.number}, but"
                f" {quote(message.text) if message is not None else 'one'} is kept as one",
                exchange.at,
                *(told[:1] or [seen[0] if seen else exchange.at]),
            )
        else:
            yield Held(exchange.at, seen[0] if seen is not None else exchange.at)


@rule(
    "prefix.committed-message-unmarked",
    "A cancellation after a reply has become a message, in its tools or between turns, MUST NOT"
    " mark that message as interrupted.",
    source="A",
    claim="cancelled_prefix",
    values=("finalize",),
)
def committed_message_unmarked(index: TraceIndex) -> Iterator[Finding]:
    """The model had said everything it wanted to say.

    What was interrupted is the batch, and the results of its calls say so.
    """
    for cut in cuts(index):
        whole = [
            item
            for item in cut.run.exchanges
            if item.accepted and item.calls and (item.terminator_at or 0) < cut.cancel.sent_at
        ]
        if not whole:
            continue
        if racing(index) or (not placed(index, cut) and not index.starts_of(whole[-1])):
            yield RACES if racing(index) else UNPLACED
            continue
        history = at_rest(index, cut.run)
        if history is None:
            yield NO_HISTORY
            continue
        ids = {call.id for item in whole for call in item.calls}
        marked = [
            message
            for message in messages_of(index, history[1].messages, cut.run)
            if isinstance(message, AssistantMessage)
            and message.interrupted
            and any(call.id in ids for call in message.calls)
        ]
        if marked:
            yield Broke(
                f"{cut.words} was cancelled after its reply with"
                f" {', '.join(call.id for call in marked[0].calls)} was whole; the message was not"
                " to be marked as interrupted, but is",
                whole[-1].at,
                cut.cancel.sent_at,
                history[0],
            )
        else:
            yield Held(whole[-1].at, cut.cancel.sent_at, history[0])


@rule(
    "prefix.discarded",
    "Where the target claims to discard a cancelled reply, the next request MUST NOT hold anything"
    " of it, be it text, reasoning or a call, and MUST still hold the prompt.",
    source="B",
    claim="cancelled_prefix",
    values=("discard",),
)
def discarded(index: TraceIndex) -> Iterator[Finding]:
    """Half an answer that the model takes for its own is worse than none.

    The prompt is not part of the reply: it was said, and it stays said.
    """
    yield from each(index, _discarded, blank=None)


def _discarded(index: TraceIndex, item: Interrupted) -> Iterator[Finding]:
    request = next_request(index, item.run)
    if request is None:
        return
    messages = request.request.messages
    where = (item.exchange.at, item.cut.cancel.sent_at, request.at)
    if not has_prompt(messages, item.run):
        yield Broke(
            f"request {request.number} was to hold the prompt of the cancelled run"
            f" {item.run.number}, and does not",
            *where,
        )
        return
    found = further_messages(index, messages, item.run, item.exchange)
    left = [message for message in found if _is_of(item.exchange, message)]
    if left:
        calls = ", ".join(call.id for call in left[0].calls)
        yield Broke(
            f"request {request.number} was to hold nothing of the cancelled reply to request"
            f" {item.exchange.number}, and holds {listed(kept_runs(left[0]))}"
            f"{f' and the calls {calls}' if calls else ''}",
            *where,
        )
    else:
        yield Held(*where)


def _is_of(exchange: Exchange, message: AssistantMessage) -> bool:
    """Whether a message holds something that only this reply said."""
    runs = sent_runs(exchange)
    ids = {text for kind, text in runs if kind == "call"}
    text, reasoning = of_kind(runs, "text").strip(), of_kind(runs, "reasoning").strip()
    said, thought = message.text.strip(), message.reasoning.strip()
    return (
        any(call.id in ids for call in message.calls)
        or bool(said and text and (text.startswith(said) or said.startswith(text)))
        or bool(thought and reasoning.startswith(thought))
    )


# --------------------------------------------------------------------------------------------
# Attempts


@rule(
    "prefix.attempt-recorded",
    "A failed reply, or a cancelled one that had delivered nothing to say, MUST be recorded as an"
    " attempt before its failure is handled, and MUST NOT reach a request, where the target claims"
    " to record attempts.",
    source="A",
    claim="failed_attempt",
    values=("attempt",),
)
def attempt_recorded(index: TraceIndex) -> Iterator[Finding]:
    """What a provider sent stays on record even if it became no message.

    Recorded before the failure is handled, it is there for whoever handles it.
    """
    for run in index.runs:
        for exchange in run.exchanges:
            if exchange.sent and exchange.failed and exchange.cancelled_at is None:
                raised = any(at > exchange.at for at in run.listener_raised_at)
                if not raised:
                    yield from _attempt(index, run, exchange)
    if index.claim("cancelled_prefix") == "finalize":
        yield from each(index, lambda _, item: _attempt(index, item.run, item.exchange), blank=True)


def _attempt(index: TraceIndex, run: Run, exchange: Exchange) -> Iterator[Finding]:
    for request in index.later_requests(exchange.at):
        found = further_messages(index, request.request.messages, run, exchange)
        left = [message for message in found if _is_of(exchange, message)]
        if left and index.run_of(request) is not run:
            yield Broke(
                f"the failed reply to request {exchange.number} was to reach no request, but"
                f" request {request.number} has {quote(left[0].text)}",
                exchange.at,
                request.at,
            )
            return
    if not index.observes("events"):
        yield Hidden("the target's events are not shown")
        return
    if run.settled_at is None or overlapped(index, run):
        return
    told = told_of(index, exchange)
    ends = [at for at, event in told if event.type == EventType.RUN_END]
    handled = min([*ends, run.settled_at])
    attempts = [at for at, event in told if event.type == EventType.ATTEMPT]
    if not attempts:
        yield Broke(
            f"the reply to request {exchange.number} became no message and was to be recorded as an"
            " attempt, but none was told",
            exchange.at,
            handled,
        )
    elif attempts[0] > handled:
        yield Broke(
            f"the attempt of request {exchange.number} was to be recorded before its failure was"
            " handled, and was recorded after",
            exchange.at,
            handled,
            attempts[0],
        )
    else:
        yield Held(exchange.at, attempts[0])
