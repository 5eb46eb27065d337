"""Limits: how many requests a run may make.

A limit counts the requests of one run, and it is looked at before each request. A run that meets
it has failed: its last reply asked for more, so there is no answer, whatever is at hand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from loopspec.rules.base import Broke, Finding, Held, Hidden, rule
from loopspec.rules.replies import (
    accepted,
    batch_may_end_run,
    calls_of,
    end_of,
    evidence,
    excused,
    has_limits,
    limit_of,
    members_of,
    missing_results,
    ordinary_batch,
    outcome_words,
    reply_words,
    starts_in,
    text_of,
    turn_of,
    valid_limit,
    waits_for_tool,
)
from loopspec.trace_index import Exchange, Run, TraceIndex
from loopspec.vocabulary import FailureReason, Level, Message


def _asks_on(index: TraceIndex, exchange: Exchange) -> bool:
    """The reply asks for tools whose results the model would see, if a turn were left."""
    return (
        accepted(exchange)
        and bool(calls_of(exchange))
        and ordinary_batch(index, exchange)
        and not batch_may_end_run(index, exchange)
        and not waits_for_tool(index, exchange)
    )


def _stopped_at(index: TraceIndex, run: Run) -> Exchange | None:
    """The exchange at which the limit ended the run: the last one allowed, and it asks on."""
    limit = limit_of(index)
    last = run.last
    if limit is None or last is None or len(run.exchanges) != limit or excused(index, run):
        return None
    return last if run.end is not None and _asks_on(index, last) else None


@rule(
    "limits.requests-counted",
    """With a limit of 1, 2 or 3 turns and tool calls in every reply the run MUST make exactly 1, 2
    or 3 requests.""",
    source="B, LIM03",
    claim="max_turns",
    relation=True,
)
def requests_counted(family: Sequence[TraceIndex]) -> Iterator[Finding]:
    """One request too many is the usual mistake: the limit is looked at after it.

    Several limits are compared because a loop that counts wrongly may be right for one of them.
    """
    members = members_of(family, "limits.requests-counted")
    judged = broken = False
    for index in members:
        limit = limit_of(index)
        run = index.runs[0] if index.runs else None
        if limit is None or run is None or run.end is None or excused(index, run):
            continue
        if not all(_asks_on(index, exchange) for exchange in run.exchanges[:limit]):
            continue
        judged = True
        made = len(run.exchanges)
        if made != limit:
            broken = True
            yield Broke(
                f"with a limit of {limit} the run was to make exactly {limit} requests, but it made "
                f"{made} and then {outcome_words(run)}",
                *evidence(*(exchange.at for exchange in run.exchanges), run.end),
                member=index.header.member,
            )
    if judged and not broken:
        yield Held()


@rule(
    "limits.checked-before-request",
    """A run that has made as many requests as its limit allows MUST end before another one, with
    the results of its last turn in history.""",
    source="B",
    claim="max_turns",
)
def checked_before_request(index: TraceIndex) -> Iterator[Finding]:
    """The limit is there to bound what a run costs, so it stands before the request, not after it.

    The last turn's tools did run, and the next prompt must find what they said.
    """
    limit = limit_of(index)
    for run in index.runs:
        if limit is not None and len(run.exchanges) > limit:
            extra = run.exchanges[limit]
            if not excused(index, run, extra.at):
                yield Broke(
                    f"the limit is {limit}; the run was to end before request {extra.number}, its "
                    f"{limit + 1}th, but it was sent",
                    *evidence(run.exchanges[limit - 1].at, extra.at),
                )
            continue
        last = _stopped_at(index, run)
        if last is None:
            continue
        if run.settled is None:
            yield Broke(
                f"the run was to end at its limit of {limit}, but {outcome_words(run)}",
                *evidence(end_of(last), run.end),
            )
        else:
            yield from _results_kept(index, run, last)


def _results_kept(index: TraceIndex, run: Run, last: Exchange) -> Iterator[Finding]:
    """The results of the last turn are in history, or else in the next prompt's request."""
    read: tuple[int, tuple[Message, ...]] | None = None
    where = "history"
    history = index.history_after(run)
    following = index.next_run(run)
    if history is not None:
        read = history[0], history[1].messages
    elif following is not None and following.exchanges and not following.prompted.fork:
        first = following.exchanges[0]
        read, where = (first.at, first.request.messages), f"request {first.number}"
    if read is None:
        yield Hidden("neither the history nor a later request of this target was seen")
        return
    at, messages = read
    missing = missing_results(index, last, messages)
    if missing:
        yield Broke(
            f"the run ended at its limit; the results of {', '.join(call.id for call in missing)} "
            f"were to be kept, but {where} lacks them",
            *evidence(end_of(last), run.settled_at, at),
        )
    else:
        yield Held(*evidence(end_of(last), run.settled_at, at))


@rule(
    "limits.never-success",
    "A run that was ended by its turn limit MUST NOT be reported as completed.",
    source="B",
)
def never_success(index: TraceIndex) -> Iterator[Finding]:
    """The model was still asking for tools, so there is no answer.

    A caller that is told of success takes whatever text is at hand for one.
    """
    for run in index.runs:
        last = _stopped_at(index, run)
        if last is None or run.settled is None:
            continue
        places = evidence(end_of(last), *(s.at for s in starts_in(index, last)), run.settled_at)
        if run.completed:
            yield Broke(
                f"{reply_words(last)} was the last that the limit of {limit_of(index)} allows and "
                f"asked for tools; the run was not to be reported as completed, but "
                f"{outcome_words(run)}",
                *places,
            )
        else:
            yield Held(*places)


@rule(
    "limits.answer-on-last-turn",
    "An answer without tool calls on the last turn that the limit allows MUST complete the run.",
    source="D",
    claim="max_turns",
)
def answer_on_last_turn(index: TraceIndex) -> Iterator[Finding]:
    """The limit bounds requests, and no further one is needed.

    Failing here throws away an answer that was paid for.
    """
    limit = limit_of(index)
    for run in index.runs:
        last = run.last
        if limit is None or last is None or run.end is None or turn_of(run, last) != limit:
            continue
        answer = accepted(last) and not calls_of(last) and text_of(last).strip()
        if not answer or excused(index, run):
            continue
        if run.completed:
            yield Held(*evidence(end_of(last), run.settled_at))
        else:
            yield Broke(
                f"{reply_words(last)} is an answer on the last of {limit} turns; the run was to "
                f"complete, but {outcome_words(run)}",
                *evidence(end_of(last), run.end),
            )


@rule(
    "limits.counter-is-per-run",
    "Each prompt MUST start counting its turns from zero.",
    source="B",
    claim="max_turns",
)
def counter_is_per_run(index: TraceIndex) -> Iterator[Finding]:
    """The limit bounds one run. A counter that lives on makes every conversation end for good."""
    limit = limit_of(index)
    used = 0
    for run in index.runs:
        before, made = used, len(run.exchanges)
        used += made
        fresh = run.prompted.fork or excused(index, run)
        # What shows a counter that lives on is a run for which the earlier ones left too little.
        if limit is None or not before or before + max(made, 1) <= limit or fresh:
            continue
        if run.settled is None or made > limit:
            continue
        told = run.settled.reason == FailureReason.LIMIT
        cut = run.last is not None and _asks_on(index, run.last)
        if made < limit and (told or cut or (made == 0 and not run.completed)):
            yield Broke(
                f"the earlier prompts made {before} requests; prompt {run.number} was to start from "
                f"zero and had {limit} of its own, but made {made} and {outcome_words(run)}",
                *evidence(run.at, *(exchange.at for exchange in run.exchanges), run.settled_at),
            )
        elif made:
            yield Held(*evidence(run.at, *(exchange.at for exchange in run.exchanges)))


@rule(
    "limits.invalid-limit",
    """A limit that is not a positive whole number SHOULD be refused before anything happens.""",
    source="D",
    level=Level.ADVISORY,
)
def invalid_limit(index: TraceIndex) -> Iterator[Finding]:
    """Nothing, minus one or one and a half is a mistake of the caller's.

    The cheapest moment to say so is the first.
    """
    if index.header.max_turns is None or valid_limit(index.header.max_turns):
        return
    if not has_limits(index):
        yield Hidden("this target has no turn limit")
        return
    limit = index.header.max_turns
    if index.exchanges:
        first = index.exchanges[0]
        yield Broke(
            f"a limit of {limit} was to be refused before anything happens, but request "
            f"{first.number} was sent",
            *evidence(0, first.at),
        )
        return
    taken = [run for run in index.runs if run.settled is None or run.completed]
    for run in taken:
        yield Broke(
            f"a limit of {limit} was to be refused, but {outcome_words(run)}",
            *evidence(0, run.at, run.end),
        )
    if not taken:
        yield Held(*evidence(0, *(run.settled_at for run in index.runs)))
