"""Tools: what becomes of the calls of a reply.

A call is a wish of the model's. It is carried out once, as it was sent, or it is answered with an
error; what its tool returned goes back unchanged. Three things are left to implementations and
judged as claimed: what a failing call means for the run, in which order tools run and results
stand, and what becomes of a result that comes after a cancellation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from loopspec.rules.base import Broke, Finding, Held, Hidden, rule
from loopspec.rules.batches import (
    PROBES,
    Batch,
    Failure,
    Sight,
    batch_of,
    batches,
    deciding_sight,
    disturbance,
    failures,
    fault_of,
    locate,
    may_end,
    must_run,
    objection,
    odd_ids,
    quoted,
    result_there,
    sights,
)
from loopspec.rules.replies import calls_of, outcome_words
from loopspec.trace_index import Exchange, SentCall, Start, TraceIndex, results_after
from loopspec.vocabulary import Grade, Message, Outcome


@rule(
    "tools.executed-once",
    "Each call of an accepted reply MUST start at most once, and exactly once if nothing ended its"
    " batch early, with the arguments that were sent.",
    source="TOO14",
)
def executed_once(index: TraceIndex) -> Iterator[Finding]:
    """A tool acts on the world.

    A call that runs twice doubles its effect, one that never runs leaves the model waiting for
    something that nobody did, and one that runs with other arguments does what nobody asked for.
    """
    for batch in batches(index):
        found = [*_too_often(batch), *_not_asked_for(index, batch), *_never_started(index, batch)]
        yield from found
        at = [start.at for _, starts in batch.starts for start in starts]
        if at and not found:
            yield Held(*at)


def _too_often(batch: Batch) -> Iterator[Finding]:
    for call, starts in batch.starts:
        if len(starts) > 1:
            yield Broke(
                f"call {call.id!r} of the reply to request {batch.exchange.number} was to start once"
                f" and started {len(starts)} times",
                *(start.at for start in starts),
            )


def _not_asked_for(index: TraceIndex, batch: Batch) -> Iterator[Finding]:
    for start in batch.strays:
        alike = [(call, starts) for call, starts in batch.starts if call.name == start.entry.tool]
        waiting = [call for call, starts in alike if not starts and must_run(call, index)]
        number = batch.exchange.number
        got = f"{start.entry.tool} was entered with {quoted(start.entry.arguments)}"
        if waiting:
            sent = " or ".join(quoted(call.arguments) for call in waiting)
            yield Broke(f"{got}, but the reply to request {number} sent {sent}", start.at)
        elif not any(not starts for _, starts in alike):
            # A call with faulty arguments that nothing served explains the start better:
            # what reached the tool is then a question for tools.arguments-validated.
            yield Broke(f"{got}, and no call of the reply to request {number} asks for that", start.at)


def _never_started(index: TraceIndex, batch: Batch) -> Iterator[Finding]:
    missing = [
        call.id
        for call, starts in batch.starts
        if not starts and must_run(call, index) and not batch.stray(call.name)
    ]
    if missing and not odd_ids(batch.exchange) and not may_end(index, batch):
        yield Broke(
            f"call {', '.join(map(repr, missing))} of the reply to request {batch.exchange.number} was"
            f" to start once and never started, although nothing ended the batch;"
            f" {outcome_words(batch.run)}",
            batch.exchange.at,
            *([batch.run.end] if batch.run.end is not None else []),
        )


def _failing_calls(index: TraceIndex, claim: str, what: str) -> Iterator[Finding]:
    """The three rules on calls that fail: answered with an error, or the run fails, as claimed."""
    for batch in batches(index):
        failed = [failure for failure in failures(batch) if failure.claim == claim]
        if not failed or odd_ids(batch.exchange) or may_end(index, batch, besides=claim):
            continue
        if index.claim(claim) == "raises":
            yield _run_failed(index, batch, failed, what)
        else:
            yield from _answered(index, batch, failed, what)


def _told(batch: Batch, failed: Sequence[Failure], what: str) -> str:
    ids = ", ".join(repr(failure.call.id) for failure in failed)
    return f"call {ids} of the reply to request {batch.exchange.number} {what}"


def _run_failed(index: TraceIndex, batch: Batch, failed: Sequence[Failure], what: str) -> Finding:
    following = index.next_in_run(batch.exchange)
    settled = batch.run.settled
    words = f"{_told(batch, failed, what)}; the claim is that the run fails, but"
    if following is not None:
        return Broke(f"{words} request {following.number} followed", batch.exchange.at, following.at)
    at = batch.exchange.at if batch.run.settled_at is None else batch.run.settled_at
    if settled is None or settled.outcome != Outcome.FAILED:
        return Broke(f"{words} {outcome_words(batch.run)}", at)
    return Held(at)


def _answered(index: TraceIndex, batch: Batch, failed: Sequence[Failure], what: str) -> Iterator[Finding]:
    following = index.next_in_run(batch.exchange)
    told = _told(batch, failed, what)
    if following is None:
        at = batch.exchange.at if batch.run.end is None else batch.run.end
        yield Broke(
            f"{told}; the claim is an error result and a further request, but there was no further"
            f" request and {outcome_words(batch.run)}",
            at,
        )
        return
    missing = [
        failure.call.id
        for failure in failed
        if result_there(index, batch.exchange, failure.call, following.request.messages) is None
    ]
    unrun = [
        call.id
        for call, starts in batch.starts
        if not starts and must_run(call, index) and not batch.stray(call.name)
    ]
    for ids, wanted in ((missing, "has no result for"), (unrun, "followed without running")):
        if ids:
            names = ", ".join(map(repr, ids))
            yield Broke(f"{told}; request {following.number} {wanted} {names}", following.at)
    if not missing and not unrun:
        yield Held(batch.exchange.at, following.at)


@rule(
    "tools.unknown-tool",
    "A call of a tool that does not exist MUST get an error result while its siblings run and the"
    " model goes on, or MUST fail the run, as the target claims.",
    source="B",
    claim="unknown_tool",
)
def unknown_tool(index: TraceIndex) -> Iterator[Finding]:
    """Models invent names.

    Told so, they choose another tool; a loop that ends in silence, or lets the siblings fall, takes
    the chance from them.
    """
    yield from _failing_calls(index, "unknown_tool", "names a tool that does not exist")


@rule(
    "tools.invalid-arguments",
    "A call whose arguments are not what its tool declares MUST get an error result while its"
    " siblings run and the model goes on, or MUST fail the run, as the target claims.",
    source="B",
    claim="invalid_arguments",
)
def invalid_arguments(index: TraceIndex) -> Iterator[Finding]:
    """A model corrects its arguments once it is told what was wrong with them.

    One bad string must not decide over the other calls of the batch.
    """
    yield from _failing_calls(index, "invalid_arguments", "has arguments that its tool does not take")


@rule(
    "tools.exception",
    "A tool that raises MUST give its call an error result while its siblings run and the model goes"
    " on, or MUST fail the run, as the target claims.",
    source="B",
    claim="tool_exception",
)
def exception(index: TraceIndex) -> Iterator[Finding]:
    """Tools fail in daily work.

    What that means for the run is a choice, and a caller has to be able to rely on the choice that
    was documented.
    """
    yield from _failing_calls(index, "tool_exception", "was run by a tool that raised")


def _owed(index: TraceIndex, batch: Batch, failed: Sequence[Failure]) -> list[tuple[SentCall, str]]:
    """The siblings whose results the loop had for certain, with what they returned."""
    if disturbance(index, batch.run, batch.exchange.at) is not None:
        return []
    went_on = index.next_in_run(batch.exchange) is not None
    calls = [call for call, _ in batch.starts]
    earliest = min(calls.index(failure.call) for failure in failed)
    raised = min((f.at for f in failed if f.at is not None), default=None)
    owed = []
    for place, (call, starts) in enumerate(batch.starts):
        for start in starts[:1]:
            if start.settled is None or start.settled.how != "returned" or start.settled_at is None:
                continue
            in_time = start.settled_at < raised if raised is not None else place < earliest
            if batch.finished([start]) and (went_on or in_time):
                owed.append((call, start.settled.text))
    return owed


def _holds(messages: Sequence[Message], text: str) -> bool:
    """Whether a returned text is anywhere in the messages; some targets keep results as text."""
    return any(text in message.text for message in messages)


@rule(
    "tools.failure-leaves-history-paired",
    "When a call of a batch fails, every call of the batch MUST still get a result in history, and the"
    " results of its siblings MUST be kept, whatever the target claims.",
    source="B",
)
def failure_leaves_history_paired(index: TraceIndex) -> Iterator[Finding]:
    """The siblings' effects have happened.

    A history without their results makes the model do them again, and one with an open call is
    refused by the provider from then on.
    """
    for batch in batches(index):
        failed = [failure for failure in failures(batch) if failure.claim is not None]
        if not failed or odd_ids(batch.exchange):
            continue
        stands = deciding_sight(index, batch.exchange)
        requests = (sight for sight in sights(index, batch.exchange) if sight.request)
        sight = stands if stands is not None and stands.request else next(requests, stands)
        if sight is not None:
            yield from _paired(index, batch, failed, sight)


def _paired(index: TraceIndex, batch: Batch, failed: Sequence[Failure], sight: Sight) -> Iterator[Finding]:
    """What the place that decides has of a batch with a failed call."""
    there = {call.id: result_there(index, batch.exchange, call, sight.messages) for call, _ in batch.starts}
    stands = locate(index, batch.exchange, sight.messages) is not None
    lacking = {call.id for call in batch.calls if stands and there[call.id] is None}
    owed = {call.id for call, text in _owed(index, batch, failed) if not _holds(sight.messages, text)}
    # At rest a result may still be lacking, if the next request has it; a wrong one stays wrong.
    missing = lacking | owed if sight.request else {name for name in owed if there[name] is not None}
    if missing:
        ids = ", ".join(repr(call.id) for call, _ in batch.starts if call.id in missing)
        yield Broke(
            f"a call of the reply to request {batch.exchange.number} failed"
            f" ({failed[0].call.id!r}); after that {sight.where} lacks the result of {ids}",
            batch.exchange.at,
            sight.at,
        )
    elif stands and not lacking and not owed:
        yield Held(sight.at)


@rule(
    "tools.arguments-validated",
    "Arguments that break the schema which a tool declares MUST NOT reach the tool; a documented"
    " conversion of a value to the declared type is not a break.",
    source="B",
)
def arguments_validated(index: TraceIndex) -> Iterator[Finding]:
    """A tool is written for the arguments it declares.

    What happens with others is decided by accident, after the damage. What counts is what the tool
    was given: arguments that were made to fit before are the matter of other rules.
    """
    for start in index.starts:
        if start.entry.tool not in PROBES:
            continue
        why = objection(start.entry.tool, start.entry.arguments.strip() or "{}")
        if why is not None:
            yield Broke(
                f"{start.entry.tool} was entered with {quoted(start.entry.arguments)}, although {why}",
                start.at,
            )
    for batch in batches(index):
        for call, starts in batch.starts:
            if call.name not in PROBES or starts or batch.stray(call.name):
                continue  # whether a start that no call explains serves this call, nobody knows
            if objection(call.name, call.arguments.strip() or "{}") is not None:
                yield Held(batch.exchange.at)


def _owes_error(batch: Batch, call: SentCall, starts: Sequence[Start]) -> bool:
    """Whether every result of this call is an error result, because no tool returned one."""
    if batch.run.end is None or batch.stray(call.name):
        return False
    if call.name not in PROBES and fault_of(call, batch.exchange) is None:
        return False
    end = batch.run.end
    return not any(
        start.settled is not None and start.settled.how == "returned"
        and start.settled_at is not None and start.settled_at < end
        for start in starts
    )  # fmt: skip


@rule(
    "tools.error-marked",
    "Where the history or the wire has a mark for errors, every error result MUST bear it.",
    source="B, TOO13",
)
def error_marked(index: TraceIndex) -> Iterator[Finding]:
    """Without the mark a model has to guess from words whether its call worked.

    A call that no tool returned from has no other result than an error.
    """
    for exchange in index.exchanges:
        run = index.run_of(exchange)
        if not calls_of(exchange) or run is None or odd_ids(exchange) or exchange.failed:
            continue
        batch = batch_of(index, exchange, run)
        for call, starts in batch.starts:
            if _owes_error(batch, call, starts):
                yield from _marks(index, exchange, call)


def _marks(index: TraceIndex, exchange: Exchange, call: SentCall) -> Iterator[Finding]:
    marked, seen = [], False
    for sight in sights(index, exchange):
        result = result_there(index, exchange, call, sight.messages)
        if result is None:
            continue
        seen = True
        if index.observes("error_marks") and result.is_error is False:
            yield Broke(
                f"no tool returned a result for call {call.id!r}, but {sight.where} has"
                f" {quoted(result.text)} for it, not marked as an error",
                sight.at,
            )
            return
        if index.observes("error_marks") and result.is_error:
            marked.append(sight.at)
    if marked:
        yield Held(*marked)
    elif seen:
        yield Hidden("results in requests and history carry no error mark here")


def _returned(index: TraceIndex) -> Iterator[tuple[Batch, SentCall, Start, str]]:
    """Every result that a tool returned in a batch that went on to the next request."""
    for batch in batches(index):
        if odd_ids(batch.exchange) or may_end(index, batch):
            continue
        for call, starts in batch.starts:
            settled = starts[0].settled if len(starts) == 1 else None
            if settled is not None and settled.how == "returned" and batch.finished(starts):
                yield batch, call, starts[0], settled.text


@rule(
    "tools.result-unaltered",
    "The result that is sent back to the model MUST be what the tool returned.",
    source="D",
)
def result_unaltered(index: TraceIndex) -> Iterator[Finding]:
    """The model acts on what it reads.

    A result that was cut, wrapped or swapped is one that no tool gave.
    """
    for batch, call, start, text in _returned(index):
        if not text.strip():
            continue  # a wire may ask for a word where the tool gave none
        seen = []
        for sight in sights(index, batch.exchange):
            result = result_there(index, batch.exchange, call, sight.messages)
            if result is not None and result.text != text:
                yield Broke(
                    f"the tool returned {quoted(text)} for call {call.id!r}, but {sight.where} has"
                    f" {quoted(result.text)}",
                    start.settled_at or start.at,
                    sight.at,
                )
                break
            seen += [sight.at] if result is not None else []
        else:
            if seen:
                yield Held(*seen)


@rule(
    "tools.empty-result-answers",
    "An empty result MUST still answer its call.",
    source="PAI12",
)
def empty_result_answers(index: TraceIndex) -> Iterator[Finding]:
    """A tool may have nothing to say.

    Its call is answered all the same, and a call without a result spoils every later request.
    """
    for batch, call, start, text in _returned(index):
        if text.strip():
            continue
        seen = []
        for sight in sights(index, batch.exchange):
            if locate(index, batch.exchange, sight.messages) is None:
                continue
            if result_there(index, batch.exchange, call, sight.messages) is None:
                yield Broke(
                    f"the tool returned an empty result for call {call.id!r}, and {sight.where} has"
                    " the call without a result",
                    start.settled_at or start.at,
                    sight.at,
                )
                break
            seen.append(sight.at)
        else:
            if seen:
                yield Held(*seen)


def _settle_place(start: Start) -> float:
    return float("inf") if start.settled_at is None else start.settled_at


def _sequence(batch: Batch) -> Iterator[Finding]:
    """One after the other, in the order of the reply."""
    order = [(start, place) for place, (_, starts) in enumerate(batch.starts) for start in starts[:1]]
    order.sort(key=lambda item: item[0].at)
    calls = [call for call, _ in batch.starts]
    broke = False
    for (one, place), (other, later) in pairwise(order):
        if _settle_place(one) > other.at or place > later:
            broke = True
            how = "after" if place > later else "before the end of"
            yield Broke(
                f"the claim is one tool after the other in the reply's order, but call"
                f" {calls[later].id!r} started {how} call {calls[place].id!r}",
                one.at,
                other.at,
            )
    if len(order) > 1 and not broke:
        yield Held(*(start.at for start, _ in order))


def _overlap(index: TraceIndex, batch: Batch) -> Iterator[Finding]:
    """Side by side: shown by an overlap, disproved by a run that hangs on one tool alone."""
    firsts = [starts[0] for _, starts in batch.starts if starts]
    for one in firsts:
        for other in firsts:
            if one.at < other.at < _settle_place(one):
                yield Held(one.at, other.at)
                return
    idle = [call.id for call, starts in batch.starts if not starts and must_run(call, index)]
    waiting = [start for start in firsts if start.settled_at is None]
    quiet = disturbance(index, batch.run, batch.exchange.at) is None
    if quiet and batch.run.hung_at is not None and idle and waiting:
        yield Broke(
            f"the claim is tools side by side, but the run stood still in {waiting[0].entry.call_id!r}"
            f" while {', '.join(map(repr, idle))} had not been started",
            waiting[0].at,
            batch.run.hung_at,
        )


def _result_order(index: TraceIndex, batch: Batch, by_completion: bool) -> Iterator[Finding]:
    if by_completion:
        done = [starts[0] for _, starts in batch.starts if batch.finished(starts)]
        wanted = [start.call.id for start in sorted(done, key=_settle_place) if start.call]
    else:
        wanted = [call.id for call, _ in batch.starts]
    seen = []
    for sight in sights(index, batch.exchange):
        position = locate(index, batch.exchange, sight.messages)
        if position is None:
            continue
        group = results_after(sight.messages, position)
        got = [result.call_id for result in group if result.call_id in wanted]
        expected = [call_id for call_id in wanted if call_id in got]
        if got != expected:
            yield Broke(
                f"the results of the reply to request {batch.exchange.number} were to stand in the"
                f" order {', '.join(map(repr, expected))}, but {sight.where} has them as"
                f" {', '.join(map(repr, got))}",
                sight.at,
            )
            return
        seen += [sight.at] if len(got) > 1 else []
    if seen:
        yield Held(*seen)


@rule(
    "tools.order",
    "The tools of a batch MUST run one after the other or side by side, and their results MUST stand"
    " in the order of the calls or of completion, as the target claims.",
    source="A, B",
    claim="tools",
)
def order(index: TraceIndex) -> Iterator[Finding]:
    """A tool's author has to know whether it may count on the tool before.

    A fixed order of results makes two runs comparable.
    """
    claimed = index.claim("tools")
    for batch in batches(index):
        if len(batch.starts) < 2 or odd_ids(batch.exchange):
            continue
        yield from _sequence(batch) if claimed == "sequential" else _overlap(index, batch)
        if not may_end(index, batch):
            yield from _result_order(index, batch, claimed == "parallel-completion-order")


def _late(index: TraceIndex, batch: Batch, start: Start) -> bool:
    """Whether the target was cancelled before this tool returned, and still had to settle.

    Where a listener had failed before, it is that which ended the batch.
    """
    exact = index.header.grade == Grade.EXACT
    end = batch.run.settled_at
    settled = start.settled_at
    if settled is None or end is None or settled > end:
        return False
    if start.settled is None or start.settled.how != "returned":
        return False
    if index.claim("listener_failure") != "ignored" and any(
        batch.exchange.at < at < settled for at in batch.run.listener_raised_at
    ):
        return False
    return any(
        cancel.sent_at > batch.exchange.at
        and (cancel.sent_at if exact else cancel.returned_at or end) < settled
        for cancel in batch.run.cancels
    )


@rule(
    "tools.late-result",
    "A result that arrives after the cancellation MUST be kept, or MUST be replaced by an error"
    " result that says aborted, as the target claims.",
    source="A",
    claim="late_result",
)
def late_result(index: TraceIndex) -> Iterator[Finding]:
    """The effect has happened.

    Whether the model is told so, or told that the call was aborted, has to be known to whoever
    writes the next prompt.
    """
    keeps = index.claim("late_result") == "kept"
    for batch in batches(index):
        if odd_ids(batch.exchange):
            continue
        for call, starts in batch.starts:
            start = starts[0] if starts else None
            if start is None or start.settled is None or not _late(index, batch, start):
                continue
            for sight in sights(index, batch.exchange):
                result = result_there(index, batch.exchange, call, sight.messages)
                if result is None:
                    continue
                real = result.text == start.settled.text and not result.is_error
                wanted = "kept" if keeps else "replaced by an aborted one"
                if keeps and not real and index.claim("cancelled_tool") == "races":
                    continue  # the race was lost before the result came
                if keeps != real or (not keeps and result.is_error is False):
                    yield Broke(
                        f"the result {quoted(start.settled.text)} of call {call.id!r} came after the"
                        f" cancellation and was to be {wanted}, but {sight.where} has"
                        f" {quoted(result.text)}",
                        start.settled_at or start.at,
                        sight.at,
                    )
                    break
                yield Held(start.settled_at or start.at, sight.at)
