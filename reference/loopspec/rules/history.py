"""History: what the next request is made of.

What completed stays, what failed is not sent, and every prompt is there once. These rules are
judged by the requests that follow, because that is what the model reads; the history at rest is
looked at where it is shown.

Texts are compared without their outer blanks, and adjacent messages may have been merged, because
APIs ask for both. A reply that was being sent when a cancellation came is no failed reply: the
chapter ``prefix`` says what becomes of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from loopspec.rules.base import Broke, Finding, Held, Hidden, rule
from loopspec.rules.batches import (
    PROBES,
    Sight,
    builds_on,
    disturbance,
    failed_alone,
    id_there,
    locate,
    odd_ids,
    parsed,
    quoted,
    result_there,
    same_json,
    shown_taken,
    sights,
    taken,
)
from loopspec.rules.replies import calls_of, reason_of, text_of
from loopspec.trace_index import Exchange, Run, SentCall, TraceIndex
from loopspec.vocabulary import (
    FAILED_REASONS,
    AssistantMessage,
    Call,
    EventType,
    Message,
    OtherMessage,
    Outcome,
    StopReason,
    SystemMessage,
    TextDelta,
    ToolResult,
    UserMessage,
)


def _solid(text: str) -> str:
    """A text without any blanks, so that trimming and joining change nothing."""
    return "".join(text.split())


def _mark(run: Run) -> str:
    """What is unique in a prompt's text: its bracketed token, or else all of it."""
    token = re.match(r"\[[^\]]+\]", run.prompted.text)
    return token.group() if token else run.prompted.text.strip()


# --------------------------------------------------------------------------------------------
# What stays


def _completed(index: TraceIndex, run: Run) -> list[Exchange]:
    """The replies that had become messages when ``run`` ended."""
    found = []
    for exchange in index.exchanges:
        owner = index.run_of(exchange)
        if owner is None or run.end is None or exchange.at > run.end or not taken(index, exchange):
            continue
        calls = calls_of(exchange)
        # A reply with ids or arguments that cannot be used may be refused as a whole.
        usable = all(call.whole for call in calls) and not odd_ids(exchange)
        # Where a cancellation lands on the end of an answer, the answer may be lost.
        last = index.next_in_run(exchange) is None
        grey = last and not calls and disturbance(index, owner, exchange.at) is not None
        content = bool(calls or _solid(text_of(exchange)))
        if content and not grey and (usable or shown_taken(index, exchange)):
            found.append(exchange)
    return found


def _there(index: TraceIndex, exchange: Exchange, messages: tuple[Message, ...]) -> bool:
    """Whether a completed reply is in a message list, if only as text."""
    calls = calls_of(exchange)
    if not calls:
        text = _solid(text_of(exchange))
        return any(text in _solid(m.text) for m in messages if isinstance(m, AssistantMessage))
    if locate(index, exchange, messages) is not None:
        return True
    return all(any(call.id in message.text for message in messages) for call in calls)


def _lost_results(
    index: TraceIndex, exchange: Exchange, run: Run, places: Sequence[Sight], sight: Sight
) -> list[str]:
    """The calls whose results were in an earlier place and are not in this one."""
    if locate(index, exchange, sight.messages) is None:
        return []
    before = [place for place in places if run.end is not None and place.at < run.end]
    return [
        call.id
        for call in calls_of(exchange)
        if any(result_there(index, exchange, call, place.messages) for place in before)
        and result_there(index, exchange, call, sight.messages) is None
    ]


@rule(
    "history.completed-messages-stay",
    "Messages that had completed before a failure MUST still be in history and in the requests after it.",
    source="B",
)
def completed_messages_stay(index: TraceIndex) -> Iterator[Finding]:
    """A failure ends a run, not the conversation.

    What the user has read and what tools have done is true after it as before.
    """
    failed = [r for r in index.runs if r.settled is not None and r.settled.outcome == Outcome.FAILED]
    for run, following in zip_longest(failed, failed[1:]):
        until = len(index.trace) if following is None or following.end is None else following.end
        gone: dict[int, list[str]] = {}
        seen: dict[int, str] = {}
        for exchange in _completed(index, run):
            places = sights(index, exchange)
            for sight in places:
                if run.end is None or not run.end < sight.at <= until:
                    continue
                seen[sight.at] = sight.where
                if not _there(index, exchange, sight.messages):
                    gone.setdefault(sight.at, []).append(f"the reply to request {exchange.number}")
                lost = _lost_results(index, exchange, run, places, sight)
                gone.setdefault(sight.at, []).extend(f"the result of {call!r}" for call in lost)
        broken = next((at for at in sorted(gone) if gone[at]), None)
        if broken is not None and run.settled_at is not None:
            yield Broke(
                f"prompt {run.number} failed, and {seen[broken]} lacks what had completed before:"
                f" {', '.join(gone[broken])}",
                run.settled_at,
                broken,
            )
        elif seen and run.settled_at is not None:
            yield Held(run.settled_at, *sorted(seen))


@rule(
    "history.text-with-calls-kept",
    "The text that a reply has beside its calls MUST be sent back with them.",
    source="D",
)
def text_with_calls_kept(index: TraceIndex) -> Iterator[Finding]:
    """Models say what they are about to do, and go on from there.

    Without that text the calls stand in the history with no reason.
    """
    for exchange in index.exchanges:
        text = text_of(exchange)
        if not calls_of(exchange) or not text.strip() or not taken(index, exchange):
            continue
        seen = []
        for sight in sights(index, exchange):
            position = locate(index, exchange, sight.messages)
            if position is None:
                continue
            got = _neighbours(sight.messages, position)
            if _solid(text) not in _solid(got):
                yield Broke(
                    f"the reply to request {exchange.number} has the text {quoted(text)} beside its"
                    f" calls, but {sight.where} has {quoted(got)} with them",
                    exchange.at,
                    sight.at,
                )
                break
            seen.append(sight.at)
        else:
            if seen:
                yield Held(exchange.at, *seen)


def _neighbours(messages: Sequence[Message], position: int) -> str:
    """The text of a message and of the assistant messages next to it: wires may part a reply."""
    first = last = position
    while first > 0 and isinstance(messages[first - 1], AssistantMessage):
        first -= 1
    while last + 1 < len(messages) and isinstance(messages[last + 1], AssistantMessage):
        last += 1
    return "".join(message.text for message in messages[first : last + 1])


def _count(mark: str, messages: Sequence[Message]) -> int:
    return sum(message.text.count(mark) for message in messages if isinstance(message, UserMessage))


def _taken_up(run: Run) -> bool:
    """Whether this prompt was accepted: it led to a request before any cancellation."""
    cancelled = min((cancel.sent_at for cancel in run.cancels), default=None)
    return not run.refused and any(cancelled is None or exchange.at < cancelled for exchange in run.exchanges)


@rule(
    "history.prompt-once",
    "Each accepted prompt MUST be in every later request exactly once, also after failure,"
    " cancellation and retry; adjacent user messages may be merged, and a refusal may drop its prompt"
    " where that is claimed.",
    source="D",
)
def prompt_once(index: TraceIndex) -> Iterator[Finding]:
    """The user sees the prompt on the screen, once.

    A model that never reads it, or reads it twice, answers another conversation.
    """
    for run in index.runs:
        if not _taken_up(run):
            continue
        mark = _mark(run)
        refused = any(reason_of(item) == StopReason.REFUSAL for item in run.exchanges)
        droppable = refused and index.claim("refused_prompt") == "dropped"
        seen, broken = [], False
        for later in index.later_requests(run.at):
            if not builds_on(index, run, later):
                continue
            count = _count(mark, later.request.messages)
            seen.append(later.at)
            if count > 1 or (count == 0 and not droppable):
                broken = True
                yield Broke(
                    f"request {later.number} has prompt {run.number} ({quoted(mark)})"
                    f" {count} times in its user messages; expected once",
                    run.at,
                    later.at,
                )
                break
        if len(seen) > 1 and not broken:
            yield Held(run.at, *seen[1:])


# --------------------------------------------------------------------------------------------
# What does not come in


def _deltas(exchange: Exchange) -> list[str]:
    pieces = [sent.piece for _, sent in exchange.sent]
    return [piece.text for piece in pieces if isinstance(piece, TextDelta)]


def _blocks(exchange: Exchange) -> set[str]:
    """The whole text of a reply, and each of its text blocks, without outer blanks."""
    blocks = [""]
    for _, sent in exchange.sent:
        if isinstance(sent.piece, TextDelta):
            blocks[-1] += sent.piece.text
        elif blocks[-1]:
            blocks.append("")
    return {block.strip() for block in (*blocks, text_of(exchange))} - {""}


def _fragments(exchange: Exchange) -> set[str]:
    """Every stretch of deltas that is not a whole block."""
    deltas = _deltas(exchange)
    stretches = {
        "".join(deltas[first:last]).strip()
        for first in range(len(deltas))
        for last in range(first + 1, len(deltas) + 1)
    }
    return stretches - _blocks(exchange) - {""}


def _assistant_texts(messages: Sequence[Message]) -> list[str]:
    texts = [message.text.strip() for message in messages if isinstance(message, AssistantMessage)]
    return [text for text in texts if text]


@rule(
    "history.no-drafts",
    "A delta or a draft of a reply MUST NOT be a message of its own, in history or in a request.",
    source="B",
)
def no_drafts(index: TraceIndex) -> Iterator[Finding]:
    """A reply is one message.

    Its pieces are for the screen; kept as messages, they repeat what the whole says.
    """
    whole = [exchange for exchange in index.exchanges if taken(index, exchange)]
    partial = [exchange for exchange in index.exchanges if exchange not in whole]
    known = set[str]().union(*map(_blocks, whole))
    for exchange in index.exchanges:
        if len(_deltas(exchange)) < 2:
            continue
        if exchange in whole:
            # One prefix of a reply that was cancelled or failed may be a message.
            other = set[str]().union(*(_fragments(item) | _blocks(item) for item in partial))
            drafts, allowed = _fragments(exchange) - known - other, 0
        else:
            drafts = (_fragments(exchange) | _blocks(exchange)) - known
            allowed = sum(bool(drafts & (_fragments(item) | _blocks(item))) for item in partial)
        yield from _drafts_in(index, exchange, drafts, allowed)


def _drafts_in(index: TraceIndex, exchange: Exchange, drafts: set[str], allowed: int) -> Iterator[Finding]:
    seen = []
    for sight in sights(index, exchange):
        found = [text for text in _assistant_texts(sight.messages) if text in drafts]
        if len(found) > allowed:
            yield Broke(
                f"{sight.where} has {', '.join(map(quoted, found))} as messages of their own, which"
                f" are drafts of the reply to request {exchange.number}",
                exchange.at,
                sight.at,
            )
            return
        seen.append(sight.at)
    if seen:
        yield Held(exchange.at, *seen)


def _leak(index: TraceIndex, exchange: Exchange, message: Message) -> str | None:
    """What a message has of a failed reply that no other reply explains, in words."""
    others = [other for other in index.exchanges if other is not exchange and not other.failed]
    if not isinstance(message, AssistantMessage):
        text = text_of(exchange).strip()
        # A short text may stand in a message by chance.
        fits = len(text) >= 8 and not isinstance(message, ToolResult) and text in message.text
        ours = [*(text_of(item) for item in others), *(run.prompted.text for run in index.runs)]
        return quoted(text) if fits and not any(text in other for other in ours) else None
    told = (
        (message.text, text_of(exchange), [text_of(item) for item in others]),
        (message.reasoning, exchange.reasoning, [item.reasoning for item in others]),
    )
    for got, sent, explained in told:
        text, failed = got.strip(), sent.strip()
        if not text or not failed or any(text in other for other in explained):
            continue
        whole = failed in text and not any(failed in other for other in explained)
        if whole or failed.startswith(text):
            return quoted(text)
    ids = {call.id for call in exchange.calls} - {call.id for item in others for call in item.calls}
    return next((f"call {call.id!r}" for call in message.calls if call.id in ids - {""}), None)


@rule(
    "history.failed-reply-not-sent",
    "The content of a reply that failed without a cancellation MUST NOT be in a later request.",
    source="A, B",
)
def failed_reply_not_sent(index: TraceIndex) -> Iterator[Finding]:
    """Nobody knows what was still to come of a reply that broke off.

    Its calls have no results, its reasoning no signature; an empty message in its place is refused.
    """
    for exchange in index.exchanges:
        if not failed_alone(index, exchange):
            continue
        seen = []
        for later in index.later_requests(exchange.at):
            leaks = [_leak(index, exchange, message) for message in later.request.messages]
            leaks += [_hollow(index, message) for message in later.request.messages]
            found = next((leak for leak in leaks if leak is not None), None)
            if found is not None:
                yield Broke(
                    f"the reply to request {exchange.number} failed, but request {later.number} has {found}",
                    exchange.at,
                    later.at,
                )
                break
            seen.append(later.at)
        else:
            if seen:
                yield Held(exchange.at, *seen)


def _hollow(index: TraceIndex, message: Message) -> str | None:
    """An assistant message without content, where no reply that was kept had none."""
    if not isinstance(message, AssistantMessage) or message.calls:
        return None
    if _solid(message.text + message.reasoning):
        return None
    empty = any(
        not item.failed and not item.calls and not _solid(item.text + item.reasoning)
        for item in index.exchanges
    )
    return None if empty else "an assistant message without content in its place"


def _section(messages: Sequence[Message], run: Run, runs: Sequence[Run]) -> list[Message]:
    """The messages between a run's prompt and the next one's."""
    marks = [_mark(other) for other in runs if other is not run]
    begin = [at for at, message in enumerate(messages) if _count(_mark(run), [message])]
    if not begin:
        return list(messages)
    section = []
    for message in messages[begin[-1] + 1 :]:
        if isinstance(message, UserMessage) and any(mark in message.text for mark in marks):
            break
        section.append(message)
    return section


@rule(
    "history.failed-reply-display",
    "A reply that failed MUST be absent from history, or kept there for display, or recorded as an"
    " attempt, as the target claims.",
    source="A, B",
    claim="failed_attempt",
)
def failed_reply_display(index: TraceIndex) -> Iterator[Finding]:
    """A user may want to read how far the model came.

    Clients are written for one of the three ways, and show nothing, or twice, with another.
    """
    claimed = index.claim("failed_attempt")
    for exchange in index.exchanges:
        run = index.run_of(exchange)
        reported = exchange.reason in FAILED_REASONS
        content = bool(_solid(text_of(exchange) + exchange.reasoning) or exchange.calls)
        if run is None or not failed_alone(index, exchange) or not (reported or content):
            continue
        if claimed == "attempt":
            yield from _attempt(index, exchange, run)
        # Only a reply that came to its end can be kept for display: a broken stream leaves drafts.
        if claimed == "absent" or (claimed == "display" and reported):
            yield from _display(index, exchange, run, wanted=claimed == "display")


def _attempt(index: TraceIndex, exchange: Exchange, run: Run) -> Iterator[Finding]:
    if not index.observes("events"):
        yield Hidden("attempts are told as events, and this target's events cannot be seen")
        return
    following = index.next_in_run(exchange)
    end = run.end if following is None else following.at
    if end is None:
        return
    told = [at for at, event in index.events if event.type == EventType.ATTEMPT and exchange.at < at < end]
    if told:
        yield Held(exchange.at, *told)
    else:
        yield Broke(
            f"the reply to request {exchange.number} failed and was to be recorded as an attempt, but"
            " no attempt was told before its run went on or ended",
            exchange.at,
            end,
        )


def _display(index: TraceIndex, exchange: Exchange, run: Run, wanted: bool) -> Iterator[Finding]:
    if not index.observes("history"):
        yield Hidden("this target's history cannot be seen")
        return
    read = next((sight for sight in sights(index, exchange) if not sight.request), None)
    if read is None:
        return
    shown = any(
        isinstance(message, AssistantMessage)
        and not message.interrupted
        and (message.stop_reason in FAILED_REASONS or _leak(index, exchange, message) is not None)
        for message in _section(read.messages, run, index.runs)
    )
    if shown == wanted:
        yield Held(exchange.at, read.at)
    else:
        words = "kept for display, but is not in" if wanted else "absent, but is in"
        yield Broke(
            f"the reply to request {exchange.number} failed and was to be {words} {read.where}",
            exchange.at,
            read.at,
        )


# --------------------------------------------------------------------------------------------
# Requests as a whole


@rule(
    "history.sendable",
    "Every request MUST be one that the API it is sent to would accept.",
    source="TOO08, HIS07",
)
def sendable(index: TraceIndex) -> Iterator[Finding]:
    """One refused history refuses every request after it.

    The rules of the real APIs are not written in one place, and loops meet them one by one.
    """
    for exchange in index.exchanges:
        if exchange.request.findings:
            said = "; ".join(f"{item.code}: {item.text}" for item in exchange.request.findings)
            yield Broke(f"the API would refuse request {exchange.number}: {said}", exchange.at)
        elif any(isinstance(m, AssistantMessage | ToolResult) for m in exchange.request.messages):
            yield Held(exchange.at)


@rule(
    "history.only-messages-reach-the-model",
    "A request MUST carry nothing but user messages, assistant messages, tool results and, before"
    " them, the system prompt.",
    source="A",
)
def only_messages_reach_the_model(index: TraceIndex) -> Iterator[Finding]:
    """Notes, marks and records of the loop are for people.

    The model would take them for something that somebody said.
    """
    seen = []
    for exchange in index.exchanges:
        strange = None
        begun = False
        for message in exchange.request.messages:
            if isinstance(message, OtherMessage):
                strange = f"{quoted(message.text)}, which is no message of a conversation"
            elif isinstance(message, SystemMessage) and begun:
                strange = f"the system message {quoted(message.text)} in the middle of the conversation"
            begun = begun or not isinstance(message, SystemMessage)
        if strange is None:
            seen.append(exchange.at)
        else:
            yield Broke(f"request {exchange.number} has {strange}", exchange.at)
    if seen and len(seen) == len(index.exchanges):
        yield Held(*seen)


@rule(
    "history.failures-do-not-pile-up",
    "Any number of failures in a row MUST leave the next request as one failure would, but for their"
    " prompts.",
    source="D",
    relation=True,
)
def failures_do_not_pile_up(family: Sequence[TraceIndex]) -> Iterator[Finding]:
    """A provider that is down for an hour fails often.

    What each failure leaves behind adds up, until the first good request is refused or misread.
    """
    members = [(failed, index, last) for index in family for failed, last in _after_failures(index)]
    members.sort(key=lambda member: member[0])
    if not members or members[0][0] == members[-1][0]:
        return
    fewest, first, base = members[0]
    for failed, index, last in members[1:]:
        if failed == fewest:
            continue
        wanted, got = _but_prompts(first, base), _but_prompts(index, last)
        if wanted == got:
            yield Held(last.at)
        else:
            yield Broke(
                f"after {failed} failures request {last.number} has {len(got)} messages beside the"
                f" prompts ({_roles(got)}); after {fewest} it has {len(wanted)} ({_roles(wanted)})",
                last.at,
                member=index.header.member,
            )


def _after_failures(index: TraceIndex) -> Iterator[tuple[int, Exchange]]:
    """How many runs failed by their replies at the end of a trace, and the first request after."""
    failed = 0
    for run in index.runs:
        lost = run.settled is not None and run.settled.outcome == Outcome.FAILED
        if lost and run.last is not None and run.last.failed:
            failed += 1
        elif failed:
            if run.exchanges:
                yield failed, run.exchanges[0]
            return


def _but_prompts(index: TraceIndex, exchange: Exchange) -> list[Message]:
    marks = [_mark(run) for run in index.runs]
    return [
        message
        for message in exchange.request.messages
        if not isinstance(message, SystemMessage)
        and not (isinstance(message, UserMessage) and any(mark in message.text for mark in marks))
    ]


def _roles(messages: Sequence[Message]) -> str:
    return ", ".join(message.role for message in messages) or "none"


# --------------------------------------------------------------------------------------------
# Arguments


def _meaning_kept(call: SentCall, got: str) -> str | None:
    """Why arguments that were sent back are not what came; ``None``: they are, or mean nothing."""
    was_json, sent = parsed(call.arguments)
    is_json, value = parsed(got)
    if not call.arguments.strip():
        blank = not got.strip() or (is_json and value in ({}, None, ""))
        return None if blank else "where no arguments came"
    if was_json and is_json and same_json(sent, value):
        return None
    if was_json and isinstance(sent, dict):
        return f"where {quoted(call.arguments)} came"
    # What came is no object, so an API may not take it as it is.
    if got == call.arguments:
        return None
    if not is_json:
        return f"which is no JSON, where {quoted(call.arguments)} came"
    if isinstance(value, dict):
        declared = PROBES.get(call.name, {})
        guessed = [key for key in value if key in declared and value[key] != call.arguments]
        return f"guessed from {quoted(call.arguments)}" if guessed else None
    return None if value == call.arguments else f"where {quoted(call.arguments)} came"


@rule(
    "history.arguments-unaltered",
    "Arguments that are well-formed MUST be sent back as they came, as JSON values; malformed ones"
    " MUST be sent back in a form that the API accepts and that means nothing else.",
    source="D",
)
def arguments_unaltered(index: TraceIndex) -> Iterator[Finding]:
    """History says what the model asked for.

    Repaired or coerced arguments make it read that it asked for something else.
    """
    for exchange in index.exchanges:
        if not calls_of(exchange) or odd_ids(exchange) or exchange.failed:
            continue
        seen = []
        for sight in sights(index, exchange):
            position = locate(index, exchange, sight.messages) if sight.request else None
            if position is None:
                continue
            wrong = _altered(exchange, sight.messages[position])
            if wrong is not None:
                yield Broke(f"{sight.where} has {wrong}", exchange.at, sight.at)
                break
            seen.append(sight.at)
        else:
            if seen:
                yield Held(exchange.at, *seen)


def _altered(exchange: Exchange, message: Message) -> str | None:
    there: dict[str, Call] = (
        {call.id: call for call in message.calls} if isinstance(message, AssistantMessage) else {}
    )
    for call in calls_of(exchange):
        found = there.get(id_there(message, exchange, call))
        why = _meaning_kept(call, found.arguments) if found is not None else None
        if found is not None and why is not None:
            return f"call {call.id!r} with the arguments {quoted(found.arguments)}, {why}"
    return None
