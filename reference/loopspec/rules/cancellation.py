"""Cancellation: what must end, what must not begin, and who must hear of it.

A cancellation is the only word that a caller has once a run goes wrong, so the chapter is about
whether that word counts: the run settles and says why, nothing more begins, those who work for it
hear of it, and nobody else does. Which cancellations are judged, and from when, is said in
``cuts.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from loopspec.rules.base import Broke, Finding, Held, Hidden, rule
from loopspec.rules.cuts import (
    RACES,
    UNPLACED,
    Cut,
    breaks,
    call_names,
    cuts,
    decided,
    outlives,
    placed,
    quote,
    racing,
    running_tools,
    starts_of,
    unknown_starts,
)
from loopspec.rules.replies import sound
from loopspec.rules.sameness import outcome
from loopspec.rules.turns import next_request
from loopspec.trace_index import Exchange, SentCall, Start, TraceIndex
from loopspec.vocabulary import AssistantMessage, FailureReason, Message, ToolResult

# --------------------------------------------------------------------------------------------
# The run settles


@rule(
    "cancellation.settles-deaf-provider",
    "A run that is cancelled while it waits for the provider, be it for the reply to open, for its"
    " next piece or for its end, MUST settle although the provider never yields again.",
    source="B, STR04, CAN06",
)
def settles_deaf_provider(index: TraceIndex) -> Iterator[Finding]:
    """A provider that fell silent is the commonest reason to cancel.

    A cancellation that needs the provider's help leaves the user with a run that nothing but a
    restart can end.
    """
    for cut in cuts(index):
        reply, run, sent_at = cut.reply, cut.run, cut.cancel.sent_at
        if reply is None or any(item.settled is None for item in running_tools(index, cut)):
            continue
        if racing(index):
            yield RACES
        elif run.settled_at is None and run.end is not None:
            lost = run.hung_at is None
            yield Broke(
                f"{cut.words} while the reply to request {reply.number} was open, had to settle"
                f" without the provider, but {'the target was lost' if lost else 'it never did'}",
                sent_at,
                run.end,
            )
        elif run.settled_at is not None and not _provider_ended(reply, sent_at, run.settled_at):
            yield Held(sent_at, run.settled_at)


def _provider_ended(reply: Exchange, sent_at: int, settled_at: int) -> bool:
    """Whether the reply came to its end before the settlement: then nobody knows who was waited for."""
    ends = [reply.reason_at, reply.terminator_at, *(at for at, _ in breaks(reply))]
    return any(at is not None and sent_at < at < settled_at for at in ends)


@rule(
    "cancellation.tool",
    "A run that is cancelled while a tool runs MUST settle only after that tool has ended where"
    " the target claims to wait for it, and MUST settle although that tool never ends where it"
    " claims to race it.",
    source="A, B",
    claim="cancelled_tool",
)
def tool(index: TraceIndex) -> Iterator[Finding]:
    """Nothing can force local code to stop.

    A caller has to know which of the two honest answers it gets: a settlement that means that
    nothing runs any more, or one that comes in any case.
    """
    check = _races if index.claim("cancelled_tool") == "races" else _waits
    for cut in cuts(index):
        running = running_tools(index, cut)
        if running and cut.run.lost_at is None:
            yield from [RACES] if racing(index) else check(cut, running)


def _races(cut: Cut, running: Sequence[Start]) -> Iterator[Finding]:
    run, sent_at = cut.run, cut.cancel.sent_at
    if run.hung_at is not None:
        yield Broke(
            f"{cut.words} while {call_names(running)} ran, claims to race a tool and had to settle,"
            " but it never did",
            sent_at,
            run.hung_at,
        )
    elif run.settled_at is not None and any(outlives(item, run.settled_at) for item in running):
        yield Held(sent_at, run.settled_at)


def _waits(cut: Cut, running: Sequence[Start]) -> Iterator[Finding]:
    run, sent_at = cut.run, cut.cancel.sent_at
    if run.settled_at is not None:
        early = [item for item in running if outlives(item, run.settled_at)]
        if early:
            yield Broke(
                f"{cut.words} claims to wait for a tool that runs, but it settled while"
                f" {call_names(early)} still ran",
                sent_at,
                *(item.at for item in early),
                run.settled_at,
            )
        else:
            yield Held(sent_at, run.settled_at)
    elif run.hung_at is not None and any(item.settled_at is None for item in running):
        yield Held(sent_at, run.hung_at)
    elif run.hung_at is not None:
        yield Broke(
            f"{cut.words} while {call_names(running)} ran, had to settle once every tool had ended,"
            " but it never did",
            sent_at,
            run.hung_at,
        )


@rule(
    "cancellation.reported-as-cancelled",
    "A cancelled run MUST be told as cancelled, and not as an error, a limit or a success, where"
    " the target's documentation names a way to tell.",
    source="B, CAN13, CAN14, EVT16",
)
def reported_as_cancelled(index: TraceIndex) -> Iterator[Finding]:
    """A caller retries an error, goes on after a success, and does neither after a cancellation.

    It can only choose if it can tell them apart by something other than a text.
    """
    for cut in cuts(index):
        run, settled, settled_at = cut.run, cut.run.settled, cut.run.settled_at
        if settled is None or settled_at is None or run.listener_raised_at or decided(index, cut):
            continue
        if racing(index):
            yield RACES
        elif not index.observes("cancel_told"):
            yield Hidden("the target's documentation names no way to tell a cancellation")
        elif settled.reason == FailureReason.CANCELLED:
            yield Held(cut.cancel.sent_at, settled_at)
        else:
            yield Broke(
                f"{cut.words} had to be told as cancelled, and was told as {outcome(run)}",
                cut.cancel.sent_at,
                settled_at,
            )


# --------------------------------------------------------------------------------------------
# Nothing begins


@rule(
    "cancellation.no-request-after",
    "Once the cancel call has returned, the cancelled run MUST NOT begin another model request.",
    source="B, EVT10, CAN05",
)
def no_request_after(index: TraceIndex) -> Iterator[Finding]:
    """A request costs money, and its reply can start tools.

    Whoever cancelled has said that neither is wanted, and has no second way to say it.
    """
    for cut in cuts(index):
        returned = cut.cancel.returned_at
        if returned is None:
            continue
        late = [item for item in cut.run.exchanges if item.at > returned]
        if racing(index):
            yield RACES
        elif late:
            yield Broke(
                f"{cut.words} was to ask nothing once the cancel call had returned, but request"
                f" {late[0].number} followed",
                returned,
                late[0].at,
            )
        elif cut.run.end is not None:
            yield Held(returned, cut.run.end)


@rule(
    "cancellation.no-tool-after",
    "Once the cancel call has returned, a tool of the cancelled run MUST NOT start: a loop MUST"
    " look at the cancellation before each tool execution.",
    source="B, CAN01, CAN04",
)
def no_tool_after(index: TraceIndex) -> Iterator[Finding]:
    """Tools have effects that nothing undoes.

    Between a cancellation and the end of its run, each further start is an effect that the user
    has just forbidden.
    """
    for cut in cuts(index):
        returned, run = cut.cancel.returned_at, cut.run
        if returned is None or not any(item.calls for item in run.exchanges):
            continue
        starts = [*starts_of(index, run), *unknown_starts(index, run)]
        late = [item for item in starts if item.at > returned]
        if racing(index):
            yield RACES
        elif late:
            yield Broke(
                f"{cut.words} was to start no tool once the cancel call had returned, but"
                f" {late[0].entry.tool} was entered for {late[0].entry.call_id or 'no known call'}",
                returned,
                late[0].at,
            )
        elif run.end is not None:
            yield Held(returned, run.end)


@rule(
    "cancellation.outranks-tool-failure",
    "A tool that fails after the cancellation MUST NOT let the model go on: the cancellation"
    " outranks the failure.",
    source="B",
)
def outranks_tool_failure(index: TraceIndex) -> Iterator[Finding]:
    """A failure of a tool normally goes back to the model as a result.

    A cancelled tool fails very often, just because it was cancelled, and that must not revive the
    run.
    """
    for cut in cuts(index):
        returned = cut.cancel.returned_at
        failed = [item for item in running_tools(index, cut) if _failed(item)]
        if returned is None or not failed:
            continue
        ended = failed[0].settled_at or failed[0].at
        late = [item for item in cut.run.exchanges if item.at > max(ended, returned)]
        if racing(index):
            yield RACES
        elif late:
            yield Broke(
                f"{cut.words} was not to go on when {call_names(failed[:1])} failed, but request"
                f" {late[0].number} followed",
                returned,
                ended,
                late[0].at,
            )
        elif cut.run.end is not None:
            yield Held(returned, ended, cut.run.end)


def _failed(start: Start) -> bool:
    return start.settled is not None and start.settled.how in ("raised", "cancelled")


@rule(
    "cancellation.before-first-request",
    "A run that is cancelled before its first request MUST settle without requesting anything.",
    source="B",
)
def before_first_request(index: TraceIndex) -> Iterator[Finding]:
    """The cancellation is looked at before each model request, and the first is one of them.

    A loop that looks only between turns asks once for nothing.
    """
    for cut in cuts(index):
        returned, run = cut.cancel.returned_at, cut.run
        if cut.last is not None or returned is None or run.lost_at is not None:
            continue
        if any(item.at < returned for item in run.exchanges):
            continue  # it was on its way before the cancel call had returned
        if racing(index):
            yield RACES
        elif run.exchanges:
            first = run.exchanges[0]
            yield Broke(
                f"{cut.words} before its first request, was to ask nothing, but request {first.number} came",
                returned,
                first.at,
            )
        elif run.hung_at is not None:
            yield Broke(
                f"{cut.words} before its first request, had to settle, but it never did",
                returned,
                run.hung_at,
            )
        elif run.settled_at is not None:
            yield Held(returned, run.settled_at)


# --------------------------------------------------------------------------------------------
# The batch that was cut


@rule(
    "cancellation.unstarted-call",
    "A call of an accepted reply that had not started when the run was cancelled MUST NOT run, and"
    " MUST get an error result under its own id, with a code of its own where the target claims"
    " result codes.",
    source="A, B",
)
def unstarted_call(index: TraceIndex) -> Iterator[Finding]:
    """The provider's API refuses a history in which a call has no answer.

    So a call that never ran still needs one, and it has to say that nothing was done: the model
    cannot tell otherwise.
    """
    for cut in cuts(index):
        last = cut.last
        if last is None or cut.cancel.returned_at is None or not last.accepted:
            continue
        calls = [] if cut.run.listener_raised_at else _waiting(index, last, cut)
        if not calls:
            continue
        if racing(index):
            yield RACES
        elif not placed(index, cut) and not index.starts_of(last):
            yield UNPLACED
        elif unknown_starts(index, cut.run):
            yield Hidden("a tool was entered that serves no known call")
        else:
            for call in calls:
                yield from _unstarted(index, cut, last, call)


def _waiting(index: TraceIndex, exchange: Exchange, cut: Cut) -> list[SentCall]:
    """The calls that had not started when the cancel call returned; repeated ids are left out."""
    ids = [call.id for call in exchange.calls]
    returned = cut.cancel.returned_at or 0
    started = {item.entry.call_id for item in starts_of(index, cut.run) if item.at < returned}
    return [call for call in exchange.calls if call.id and ids.count(call.id) == 1 and call.id not in started]


def _unstarted(index: TraceIndex, cut: Cut, exchange: Exchange, call: SentCall) -> Iterator[Finding]:
    returned = cut.cancel.returned_at or 0
    late = [t for t in starts_of(index, cut.run) if t.at > returned and t.entry.call_id == call.id]
    if late:
        yield Broke(
            f"{cut.words} was never to run call {call.id}, but its tool was entered",
            returned,
            late[0].at,
        )
        return
    places = _places(index, cut, call)
    if not places:
        yield Hidden("neither history nor a later request shows what the call got")
        return
    for where, at, messages in places:
        wrong = _wrong(index, call, messages)
        if wrong is None and where == "history" and index.claim("result_codes") is not None:
            wrong = _wrong_code(index, exchange, call, messages)
        if wrong is not None:
            yield Broke(
                f"{cut.words} never ran call {call.id}; {where} had to hold an error result for"
                f" it, but {wrong}",
                returned,
                at,
            )
            return
    yield Held(call.began_at, returned, places[-1][1])


def _places(index: TraceIndex, cut: Cut, call: SentCall) -> list[tuple[str, int, tuple[Message, ...]]]:
    """Where the call's result can be seen after the run: its history, and the next request.

    A target may put its history in order when it makes the next request, and not before: a history
    at rest that has no result yet decides nothing.
    """
    places: list[tuple[str, int, tuple[Message, ...]]] = []
    history = index.history_after(cut.run)
    if history is not None and _result(history[1].messages, call.id) is not None:
        places.append(("history", history[0], history[1].messages))
    request = next_request(index, cut.run)
    if request is not None:
        places.append((f"request {request.number}", request.at, request.request.messages))
    return places


def _result(messages: Sequence[Message], call_id: str) -> ToolResult | None:
    """The result that follows the last message with this call."""
    found: ToolResult | None = None
    for message in reversed(messages):
        if isinstance(message, ToolResult) and message.call_id == call_id:
            found = message
        elif isinstance(message, AssistantMessage) and call_id in [c.id for c in message.calls]:
            return found
    return None


def _wrong(index: TraceIndex, call: SentCall, messages: Sequence[Message]) -> str | None:
    result = _result(messages, call.id)
    if result is None:
        return "there is none"
    if result.is_error is False and index.observes("error_marks"):
        return f"the result {quote(result.text)} is not marked as one"
    return None


def _wrong_code(
    index: TraceIndex, exchange: Exchange, call: SentCall, messages: Sequence[Message]
) -> str | None:
    """What is wrong with the code. A call that cannot run may have been answered for that."""
    result = _result(messages, call.id)
    if result is None or not sound(exchange, call):
        return None
    if result.code is None:
        return "it has no code, although result codes are claimed"
    started = [item for item in exchange.calls if index.start_of(item) is not None]
    others = [_result(messages, item.id) for item in started]
    if any(item is not None and item.code == result.code for item in others):
        return f"its code {result.code!r} is also that of a call that had started"
    return None


# The second half of the chapter. It registers its rules when it is imported, hence last.
from loopspec.rules import cancellation_signal as _signal  # noqa: E402, F401
