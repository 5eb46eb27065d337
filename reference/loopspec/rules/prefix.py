"""Prefix: what becomes of text that was delivered before a cancellation.

The user has read it; the model either said it or did not. There are two honest answers, and a
target claims one. *Finalize*: the delivered text becomes a message that is marked as interrupted,
and the model hears of it. *Discard*: the model hears nothing of it. What is legal in neither is
half of it: text without its mark, a call that never ran, a note that nobody wrote.

Only a cancellation finalizes. A reply that failed by itself leaves no message, whatever it had
said; where the target claims to record attempts, that is where its text stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from loopspec.rules.base import Broke, Finding, Held, Hidden, rule
from loopspec.rules.cuts import RACES, UNPLACED, cuts, placed, quote, racing
from loopspec.rules.delivered import (
    Interrupted,
    at_rest,
    further_messages,
    interruptions,
    kept_anywhere,
    kept_in,
    kept_runs,
    of_kind,
    says,
    sent_runs,
    shown,
    told_of,
    without_blank,
)
from loopspec.rules.turns import has_prompt, messages_of, next_request
from loopspec.trace_index import Exchange, Run, TraceIndex
from loopspec.vocabulary import (
    AssistantMessage,
    Event,
    EventType,
    FailureReason,
    Message,
    OtherMessage,
    StopReason,
    UserMessage,
)

NO_HISTORY = Hidden("the target's history is not shown")
UNSEEN = Hidden("neither history nor a later request shows what was kept")


def _judged(index: TraceIndex, *, blank: bool | None = False) -> Iterator[Interrupted | Hidden]:
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


def _each(
    index: TraceIndex,
    check: Callable[[TraceIndex, Interrupted], Iterator[Finding]],
    *,
    blank: bool | None = False,
) -> Iterator[Finding]:
    for item in _judged(index, blank=blank):
        if isinstance(item, Hidden):
            yield item
        else:
            yield from check(index, item)


# --------------------------------------------------------------------------------------------
# The message


@rule(
    "prefix.kept",
    "Text and reasoning that were delivered before a cancellation MUST become one assistant"
    " message at the end of history, and that message MUST be marked as interrupted.",
    source="A",
    claim="cancelled_prefix",
    values=("finalize",),
)
def kept(index: TraceIndex) -> Iterator[Finding]:
    """The user has read the text and will refer to it ("expand on your second point").

    The mark says that the model did not choose to stop there.
    """
    yield from _each(index, _kept)


def _kept(index: TraceIndex, item: Interrupted) -> Iterator[Finding]:
    history = at_rest(index, item.run)
    if history is None:
        yield NO_HISTORY
        return
    at, read = history
    found = further_messages(index, read.messages, item.run, item.exchange)
    wish = (
        f"{item.cut.words} had delivered {quote(item.expected())}, which had to be kept as one"
        " interrupted message"
    )
    where = (item.exchange.at, item.cut.cancel.sent_at, at)
    if len(found) != 1:
        texts = ", ".join(quote(message.text) for message in found)
        yield Broke(f"{wish}; history has {len(found)} messages for it {texts}".rstrip(), *where)
        return
    message = found[0]
    runs = kept_runs(message)
    for kind in ("text", "reasoning"):
        if not item.fits_kind(index, kind, of_kind(runs, kind), loosely=True):
            yield Broke(
                f"{wish}; its {kind} was to be {quote(item.expected(kind))}, and is"
                f" {quote(of_kind(runs, kind))}",
                *where,
            )
            return
    if not message.interrupted:
        yield Broke(f"{wish}; the message is not marked as interrupted", *where)
    elif not _is_last(read.messages, message):
        yield Broke(f"{wish}; the message is not the last of the history", *where)
    else:
        yield Held(*where)


def _is_last(messages: Sequence[Message], message: AssistantMessage) -> bool:
    spoken = [item for item in messages if not isinstance(item, OtherMessage)]
    return bool(spoken) and spoken[-1] is message


@rule(
    "prefix.blocks",
    "The interrupted message MUST hold the blocks of text and reasoning that are not blank, closed"
    " or still open, in stream order and untrimmed, and MUST NOT hold calls or other blocks.",
    source="A",
    claim="cancelled_prefix",
    values=("finalize",),
)
def blocks(index: TraceIndex) -> Iterator[Finding]:
    """What was delivered is kept as it was delivered.

    A call is left out, because it was never dispatched: with it would have to come a result, and
    that would claim an outcome that did not occur.
    """
    yield from _each(index, _blocks)


def _blocks(index: TraceIndex, item: Interrupted) -> Iterator[Finding]:
    history = at_rest(index, item.run)
    if history is None:
        yield NO_HISTORY
        return
    at, read = history
    message = kept_in(index, read.messages, item.run, item.exchange)
    if message is None:
        return
    runs = kept_runs(message)
    where = (item.exchange.at, item.cut.cancel.sent_at, at)
    empty = [text for kind, text in runs if kind != "call" and not text.strip()]
    if message.calls:
        ids = ", ".join(call.id for call in message.calls)
        yield Broke(f"the interrupted message was to hold no calls, and holds {ids}", *where)
    elif empty:
        yield Broke(f"the interrupted message was to hold no blank block, and holds {empty[0]!r}", *where)
    elif not item.fits(index, runs):
        yield Broke(
            f"the interrupted message was to hold {_listed(item.delivered)}, and holds {_listed(runs)}",
            *where,
        )
    else:
        yield Held(*where)


def _listed(runs: Sequence[tuple[str, str]]) -> str:
    return ", ".join(f"{kind} {quote(text)}" for kind, text in runs if kind != "call") or "nothing"


@rule(
    "prefix.blank-writes-no-message",
    "A cancellation before anything but white space or calls was delivered MUST NOT leave an"
    " assistant message.",
    source="A",
    claim="cancelled_prefix",
    values=("finalize",),
)
def blank_writes_no_message(index: TraceIndex) -> Iterator[Finding]:
    """An empty message helps nobody, and the providers' APIs refuse it in the next request."""
    yield from _each(index, _blank, blank=True)


def _blank(index: TraceIndex, item: Interrupted) -> Iterator[Finding]:
    places = []
    history, request = at_rest(index, item.run), next_request(index, item.run)
    if history is not None:
        places.append(("history", history[0], history[1].messages))
    if request is not None:
        places.append((f"request {request.number}", request.at, request.request.messages))
    if not places:
        yield UNSEEN
        return
    for where, at, messages in places:
        found = further_messages(index, messages, item.run, item.exchange)
        later = [message for message in found if _may_be_later(index, item, message)]
        if len(found) > len(later):
            extra = next(message for message in found if message not in later)
            yield Broke(
                f"{item.cut.words} had delivered nothing to say, and was to leave no message, but"
                f" {where} has {_listed(kept_runs(extra))}"
                f"{' with calls' if extra.calls else ''}",
                item.cut.cancel.sent_at,
                at,
            )
            return
    yield Held(item.cut.cancel.sent_at, places[-1][1])


def _may_be_later(index: TraceIndex, item: Interrupted, message: AssistantMessage) -> bool:
    """Whether the message may be of pieces that a target which moves by itself consumed later."""
    runs = kept_runs(message)
    return says(runs) and not message.calls and item.fits(index, runs)


@rule(
    "prefix.names-its-provider",
    "Where messages name the provider and model that sent them, the interrupted message MUST name"
    " its own as well.",
    source="A",
    claim="cancelled_prefix",
    values=("finalize",),
)
def names_its_provider(index: TraceIndex) -> Iterator[Finding]:
    """The route is part of what identifies the delivered text.

    A view that shows the failed request, and a later request that may carry reasoning only to the
    model that it came from, both need it.
    """
    yield from _each(index, _names)


def _names(index: TraceIndex, item: Interrupted) -> Iterator[Finding]:
    history = at_rest(index, item.run)
    if history is None:
        yield NO_HISTORY
        return
    message = kept_in(index, history[1].messages, item.run, item.exchange)
    others = [
        other.provider
        for _, read in index.histories
        for other in read.messages
        if isinstance(other, AssistantMessage) and not other.interrupted and other.blocks
    ]
    if message is None or not any(others) or not message.interrupted:
        return
    if message.provider is None:
        yield Broke(
            f"other messages name their provider ({others[0]}), the interrupted one names none",
            item.cut.cancel.sent_at,
            history[0],
        )
    elif message.provider not in others:
        yield Broke(
            f"the interrupted message was to name {others[0]}, and names {message.provider}",
            item.cut.cancel.sent_at,
            history[0],
        )
    else:
        yield Held(item.cut.cancel.sent_at, history[0])


# --------------------------------------------------------------------------------------------
# What was told of it


@rule(
    "prefix.order",
    "After a cancellation the target MUST tell the interrupted message first, then the end of its"
    " stream, then the end of its turn, then the end of the run, with the cancellation as reason.",
    source="A",
    claim="cancelled_prefix",
    values=("finalize",),
)
def order(index: TraceIndex) -> Iterator[Finding]:
    """Whoever hears that a stream or a run has ended looks at what it left.

    The message has to be there by then.
    """
    yield from _each(index, _order)


def _order(index: TraceIndex, item: Interrupted) -> Iterator[Finding]:
    after = [(at, event) for at, event in told_of(index, item.exchange) if at > item.cut.cancel.sent_at]
    places = _places_of(after)
    if len(places) < 2:
        if item.run.settled_at is not None:
            yield Hidden("the target does not tell the ends of messages, streams, turns and runs")
        return
    told = [(at, name) for name, at in places.items()]
    if told != sorted(told):
        wish = ", ".join(places)
        came = ", ".join(name for _, name in sorted(told))
        yield Broke(f"the order was to be {wish}, and was {came}", *sorted(places.values()))
        return
    end = next((event for _, event in after if event.type == EventType.RUN_END), None)
    reasons = (None, FailureReason.CANCELLED, StopReason.ABORTED)
    if end is not None and end.reason not in reasons:
        yield Broke(
            f"the end of the run was to be told as cancelled, and was told as {end.reason!r}",
            places["end of the run"],
        )
    else:
        yield Held(*places.values())


def _places_of(events: Sequence[tuple[int, Event]]) -> dict[str, int]:
    """Where each of the four ends was first told, in the order in which they have to come."""
    kinds = {
        "the message": EventType.MESSAGE_END,
        "end of the stream": EventType.STREAM_END,
        "end of the turn": EventType.TURN_END,
        "end of the run": EventType.RUN_END,
    }
    places: dict[str, int] = {}
    for name, kind in kinds.items():
        for at, event in events:
            theirs = kind == EventType.MESSAGE_END and event.role not in (None, "assistant")
            if event.type == kind and not theirs:
                places[name] = at
                break
    return places


@rule(
    "prefix.between-shown-and-sent",
    "What was shown of a cancelled reply MUST be a prefix of what is kept of it, and what is kept"
    " MUST be a prefix of what the provider sent.",
    source="A",
    claim="cancelled_prefix",
    values=("finalize",),
)
def between_shown_and_sent(index: TraceIndex) -> Iterator[Finding]:
    """It is the purpose of keeping a prefix that the model knows what the user has read.

    This envelope holds however the cancellation races with the stream, so it is judged even where
    nothing else can be.
    """
    for cut in cuts(index):
        loose = racing(index) or not placed(index, cut)
        exchange = cut.last if loose else cut.reply
        if exchange is None or cut.run.listener_raised_at or exchange.failed:
            continue
        seen = kept_anywhere(index, cut.run, exchange)
        if seen is None:
            yield UNSEEN
            continue
        at, message = seen
        runs = kept_runs(message) if message is not None else []
        wrong = None
        for kind in ("text", "reasoning"):
            wrong = wrong or _outside(index, exchange, kind, of_kind(runs, kind))
        if wrong:
            yield Broke(wrong, exchange.at, cut.cancel.sent_at, at)
        elif exchange.sent:
            yield Held(exchange.at, cut.cancel.sent_at, at)


def _outside(index: TraceIndex, exchange: Exchange, kind: str, have: str) -> str | None:
    """How shown, kept and sent do not contain each other, or ``None``."""
    told, sent = shown(index, exchange, kind), sent_runs(exchange)
    whole = of_kind(sent, kind)
    spoken = without_blank(sent, kind, len(whole))
    if not whole.startswith(have) and not spoken.startswith(have):
        return f"the {kind} kept was to be a prefix of {quote(whole)}, and is {quote(have)}"
    if kind == "reasoning" and not have:
        return None  # whether a place has room for reasoning is not known
    if have.startswith((told, without_blank(sent, kind, len(told)))):
        return None
    return f"the {kind} shown, {quote(told)}, was to be a prefix of what is kept, {quote(have)}"


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
    for item in _judged(index):
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
    for item in _judged(index):
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
    if message is not None and of_kind(kept_runs(message), kind) == have:
        return bool(have) or not item.expected(kind).strip() or kind == "reasoning"
    return item.fits_kind(index, kind, have)


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
    yield from _each(index, _extra, blank=None)


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
    yield from _each(index, _discarded, blank=None)


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
            f" {item.exchange.number}, and holds {_listed(kept_runs(left[0]))}"
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
        yield from _each(index, lambda _, item: _attempt(index, item.run, item.exchange), blank=True)


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
    if run.settled_at is None:
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
