"""Prefix: what becomes of text that was delivered before a cancellation.

The user has read it; the model either said it or did not. There are two honest answers, and a
target claims one. *Finalize*: the delivered text becomes a message that is marked as interrupted,
and the model hears of it. *Discard*: the model hears nothing of it. What is legal in neither is
half of it: text without its mark, a call that never ran, a note that nobody wrote.

Only a cancellation finalizes. A reply that failed by itself leaves no message, whatever it had
said; where the target claims to record attempts, that is where its text stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from loopspec.rules.base import Broke, Finding, Held, Hidden, rule
from loopspec.rules.cuts import cuts, placed, quote, racing
from loopspec.rules.delivered import (
    NO_HISTORY,
    UNSEEN,
    Interrupted,
    at_rest,
    each,
    further_messages,
    kept_anywhere,
    kept_in,
    kept_runs,
    listed,
    of_kind,
    says,
    sent_runs,
    shown,
    told_of,
    without_blank,
)
from loopspec.rules.replies import overlapped
from loopspec.rules.turns import next_request
from loopspec.trace_index import Exchange, TraceIndex
from loopspec.vocabulary import (
    AssistantMessage,
    Event,
    EventType,
    FailureReason,
    Message,
    OtherMessage,
    StopReason,
)

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
    yield from each(index, _kept)


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
    yield from each(index, _blocks)


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
            f"the interrupted message was to hold {listed(item.delivered)}, and holds {listed(runs)}",
            *where,
        )
    else:
        yield Held(*where)


@rule(
    "prefix.blank-writes-no-message",
    "A cancellation before anything but white space or calls was delivered MUST NOT leave an empty"
    " message or any other message of the reply.",
    source="A",
    claim="cancelled_prefix",
    values=("finalize",),
)
def blank_writes_no_message(index: TraceIndex) -> Iterator[Finding]:
    """An empty message helps nobody, and the providers' APIs refuse it in the next request."""
    yield from each(index, _blank, blank=True)


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
                f" {where} has {listed(kept_runs(extra))}"
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
    yield from each(index, _names)


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
    yield from each(index, _order)


def _order(index: TraceIndex, item: Interrupted) -> Iterator[Finding]:
    after = [(at, event) for at, event in told_of(index, item.exchange) if at > item.cut.cancel.sent_at]
    places = _places_of(after)
    if overlapped(index, item.run):
        return
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
        if overlapped(index, cut.run):
            continue  # whose deltas are told is not known
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


# The second half of the chapter. It registers its rules when it is imported, hence last.
from loopspec.rules import prefix_heard as _heard  # noqa: E402, F401
