"""The acceptor: what the reference does is accepted, and what was tampered with is rejected there."""

from __future__ import annotations

import dataclasses
import functools

import pytest

from loopspec import acceptor as acceptors
from loopspec import scenario as scenarios
from loopspec import trace as t
from loopspec.acceptor import accept
from loopspec.adapters.reference import ReferenceAdapter
from loopspec.bench.executor import Executor
from loopspec.library import examples
from loopspec.loop import check_arguments
from loopspec.scenario import PROBE_TOOLS
from loopspec.trace import Trace
from loopspec.vocabulary import PROFILES, AssistantMessage, Call, EventType, Text, TextDelta, ToolResult
from meta.rows import WALKS


def fits(call: Call) -> bool:
    """Whether the arguments fit the probe tool's schema."""
    return check_arguments(call.arguments, PROBE_TOOLS[call.name])[0] is not None


def played(text: str, claims: dict[str, str] | None = None) -> Trace:
    (scenario,) = scenarios.parse(text)
    with Executor(ReferenceAdapter(claims or PROFILES["rejecting"])) as executor:
        return executor.run(scenario)


TWO_TOOLS = """
name: two-tools
prompts:
  - replies:
      - [text: "I look. ", call: c1, call: c2, reason: toolUse]
      - [text: "Done.", reason: stop]
"""
CANCEL_IN_TOOL = """
name: cancel-in-a-tool
prompts:
  - replies: [[call: c1, call: c2, reason: toolUse]]
    tools: {c1: [cancel, deaf]}
"""
CANCEL_MID_TEXT = """
name: cancel-mid-text
prompts:
  - replies: [[text: "The first. ", cancel, text: "The second.", reason: stop]]
"""
STALL = """
name: stall
prompts: [{replies: [[text: "a", stall]]}]
"""


@functools.cache
def trace_of(text: str) -> Trace:
    return played(text)


def find(trace: Trace, kind: type, **fields: object) -> int:
    """The position of the first entry of a kind with these fields."""
    for at, entry in enumerate(trace):
        if isinstance(entry, kind) and all(getattr(entry, k) == v for k, v in fields.items()):
            return at
    raise LookupError(f"no {kind.__name__} with {fields}")


def told(trace: Trace, type: EventType, **fields: object) -> int:
    for at, entry in enumerate(trace):
        event = entry.event if isinstance(entry, t.Told) else None
        if event and event.type == type and all(getattr(event, k) == v for k, v in fields.items()):
            return at
    raise LookupError(f"no {type} with {fields}")


def without(trace: Trace, *positions: int) -> Trace:
    return Trace(tuple(entry for at, entry in enumerate(trace) if at not in positions))


def moved(trace: Trace, at: int, to: int) -> Trace:
    entries = list(trace.entries)
    entries.insert(to, entries.pop(at))
    return Trace(tuple(entries))


def changed(trace: Trace, at: int, **fields: object) -> Trace:
    entries = list(trace.entries)
    entries[at] = dataclasses.replace(entries[at], **fields)  # type: ignore[arg-type, type-var]
    return Trace(tuple(entries))


def twice(trace: Trace, at: int) -> Trace:
    return Trace((*trace.entries[: at + 1], *trace.entries[at:]))


# --------------------------------------------------------------------------------------------
# What is accepted


@pytest.mark.parametrize("profile", PROFILES)
def test_the_reference_is_accepted_in_every_example_under_its_own_claims(profile):
    """The machine has a path for whatever the loop built round it does."""
    for scenario in examples():
        claims = {**PROFILES[profile], **scenario.claims}
        with Executor(ReferenceAdapter(claims)) as executor:
            result = accept(executor.run(scenario), fits=fits)
        assert result, f"{scenario.name}: {result.words}"
        assert not result.bounded, scenario.name


@pytest.mark.parametrize("walk", WALKS, ids=str)
def test_the_reference_is_accepted_on_every_row(walk):
    """So it is in the scenarios that walk every row of the table, whether arguments are known to fit or not."""
    with Executor(ReferenceAdapter(walk.claims)) as executor:
        trace = executor.run(walk.scenario)
    assert accept(trace, fits=fits), accept(trace, fits=fits).words
    assert accept(trace), accept(trace).words


def test_a_target_that_tells_fewer_events_is_held_to_those():
    """Events of a type that it never tells are no part of what the trace shows."""
    trace = trace_of(TWO_TOOLS)
    quiet = without(trace, *(at for at, entry in enumerate(trace) if isinstance(entry, t.Told)))
    header = dataclasses.replace(trace.header, observes=("history",))
    unseen = Trace((header, *quiet.entries[1:]))
    assert accept(unseen)
    assert not accept(quiet)
    assert accept(quiet, tells=())


def test_a_cancellation_may_take_effect_anywhere_between_its_sending_and_its_return():
    """What came before it took effect may stand behind its sending, unless the target was at rest."""
    exact = trace_of(TWO_TOOLS.replace("call: c2", "cancel, call: c2"))
    assert accept(exact)
    trace = changed(exact, 0, grade="event")
    assert accept(trace)
    sent = find(trace, t.CancelSent)
    before = told(trace, EventType.TEXT_DELTA)
    assert before < sent
    assert accept(moved(trace, before, sent))
    rejected(moved(exact, before, sent), sent - 1, "cancel sent", "legal: text_delta")


PARALLEL = {**PROFILES["rejecting"], "tools": "parallel-completion-order"}
TWO_SLOW_TOOLS = """
name: two-slow-tools
prompts:
  - replies:
      - [call: c1, call: c2, reason: toolUse]
      - [text: "Done.", reason: stop]
    tools: {c1: deaf, c2: [cancel, deaf]}
"""


def test_parallel_tools_may_be_entered_after_all_of_them_were_told():
    """A loop may tell of all calls and then enter their tools; a sequential one may not."""
    trace = played(TWO_SLOW_TOOLS, PARALLEL)
    first = find(trace, t.ToolStarted, start=1)
    second = told(trace, EventType.TOOL_START, call_id="c2")
    assert first < second
    later = moved(trace, first, second)
    assert accept(trace)
    assert accept(later)
    assert not accept(later, PROFILES["rejecting"])


def test_a_parallel_tool_that_had_not_been_entered_when_the_run_was_cancelled_must_not_be():
    """Although its start had been told."""
    trace = played(TWO_SLOW_TOOLS, PARALLEL)
    first = find(trace, t.ToolStarted, start=1)
    returned = find(trace, t.CancelReturned)
    header = dataclasses.replace(trace.header, grade="event")
    trace = Trace((header, *trace.entries[1:]))
    rejected(moved(trace, first, returned), returned, "tool c1 started", "was draining")


# --------------------------------------------------------------------------------------------
# What is rejected, and where


def rejected(trace: Trace, at: int, *words: str) -> None:
    result = accept(trace, fits=fits)
    assert not result
    assert result.at == at, result.words
    for word in words:
        assert word in result.words


def test_a_tool_that_starts_after_the_cancellation_is_rejected_there():
    """The words name the entry, what happened, where the machine was and what was legal."""
    trace = trace_of(CANCEL_IN_TOOL)
    returned = find(trace, t.CancelReturned)
    late = t.ToolStarted(2, "probe", '{"value": "c2"}', "c2", 1)
    doctored = Trace((*trace.entries[: returned + 1], late, *trace.entries[returned + 1 :]))
    rejected(doctored, returned + 1, f"entry {returned + 1}: tool c2 started", "was draining", "legal:")
    assert "the tool of c1 settling" in accept(doctored).words


def test_a_request_after_the_cancellation_is_rejected_there():
    trace = trace_of(CANCEL_MID_TEXT)
    returned = find(trace, t.CancelReturned)
    first = trace.entries[find(trace, t.Requested)]
    again = dataclasses.replace(first, request=9)
    doctored = Trace((*trace.entries[: returned + 1], again, *trace.entries[returned + 1 :]))
    rejected(doctored, returned + 1, "request 9 came", "settled as failed (cancelled)")


def test_an_event_that_was_not_told_is_missed_at_the_next_thing_the_target_does():
    trace = trace_of(TWO_TOOLS)
    at = told(trace, EventType.TOOL_END, call_id="c1")
    rejected(without(trace, at), at, "message_start tool of c1 was told", "legal: tool_end of c1")


def test_an_event_told_twice_is_rejected():
    trace = trace_of(TWO_TOOLS)
    at = told(trace, EventType.TOOL_START, call_id="c1")
    rejected(twice(trace, at), at + 1, "tool_start of c1 was told", "legal: the tool of c1 started")


def test_events_in_the_wrong_order_are_rejected_at_the_first_of_them():
    trace = trace_of(TWO_TOOLS)
    end = told(trace, EventType.TOOL_END, call_id="c1")
    rejected(moved(trace, end, end + 1), end, "legal: tool_end of c1")


def test_a_tool_that_starts_before_its_call_is_told_is_rejected():
    trace = trace_of(TWO_TOOLS)
    start = find(trace, t.ToolStarted, start=1)
    told_at = told(trace, EventType.TOOL_START, call_id="c1")
    rejected(moved(trace, start, told_at), told_at, "tool c1 started")


def test_a_tool_that_starts_twice_is_rejected():
    trace = trace_of(TWO_TOOLS)
    at = find(trace, t.ToolStarted, start=1)
    rejected(twice(trace, at), at + 1, "tool c1 started")


def test_a_tool_that_settles_without_having_started_is_rejected():
    trace = trace_of(TWO_TOOLS)
    start = find(trace, t.ToolStarted, start=1)
    settled = find(trace, t.ToolSettled, start=1)
    rejected(without(trace, start), settled - 1, "tool c1 settled")


def test_other_arguments_than_those_sent_are_rejected():
    trace = trace_of(TWO_TOOLS)
    at = find(trace, t.ToolStarted, start=1)
    rejected(changed(trace, at, arguments='{"value": "c3"}'), at, "tool c1 started")


def test_parallel_tools_are_rejected_where_they_are_sequential():
    trace = played(TWO_TOOLS, {**PROFILES["rejecting"], "tools": "parallel-completion-order"})
    second = told(trace, EventType.TOOL_START, call_id="c2")
    result = accept(trace, PROFILES["rejecting"], fits=fits)
    assert result.at is not None
    assert result.at <= second


def test_a_text_that_the_model_did_not_send_is_rejected():
    trace = trace_of(TWO_TOOLS)
    at = find(trace, t.Sent, piece=TextDelta("I look. "))
    delta = told(trace, EventType.TEXT_DELTA)
    rejected(changed(trace, at, piece=TextDelta("You look. ")), delta, "'I look. '", "'You look. '")


def test_a_request_without_a_result_is_rejected():
    trace = trace_of(TWO_TOOLS)
    at = find(trace, t.Requested, request=2)
    messages = trace.entries[at].messages  # type: ignore[union-attr]
    rejected(changed(trace, at, messages=messages[:-1]), at, "request 2 came with 3 messages")


def test_a_request_with_an_altered_result_is_rejected():
    trace = trace_of(TWO_TOOLS)
    at = find(trace, t.Requested, request=2)
    messages = trace.entries[at].messages  # type: ignore[union-attr]
    assert isinstance(messages[-1], ToolResult)
    altered = (*messages[:-1], dataclasses.replace(messages[-1], text="something else"))
    rejected(changed(trace, at, messages=altered), at, "request 2 came")


def test_a_request_for_another_prompt_is_rejected():
    trace = trace_of(TWO_TOOLS)
    at = find(trace, t.Requested, request=2)
    rejected(changed(trace, at, prompt=7), at, "request 2 came")


def test_a_third_request_is_rejected():
    trace = trace_of(TWO_TOOLS)
    at = find(trace, t.Requested, request=2)
    rejected(twice(trace, at), at + 1, "request 2 came", "more of the reply")


def test_a_history_that_lost_a_message_is_rejected():
    trace = trace_of(TWO_TOOLS)
    at = find(trace, t.HistoryRead, prompt=1)
    messages = trace.entries[at].messages  # type: ignore[union-attr]
    rejected(changed(trace, at, messages=messages[1:]), at, "the history after prompt 1")


def test_a_prefix_in_history_is_rejected_where_prefixes_are_discarded():
    trace = trace_of(CANCEL_MID_TEXT)
    at = find(trace, t.HistoryRead, prompt=1)
    messages = trace.entries[at].messages  # type: ignore[union-attr]
    prefix = AssistantMessage((Text("The first. "),), "aborted", interrupted=True)
    rejected(changed(trace, at, messages=(*messages, prefix)), at, "the history after prompt 1")


@pytest.mark.parametrize(
    "fields", [{"outcome": "failed"}, {"form": "raised"}, {"form": "told"}, {"answer": "Not this."}], ids=str
)
def test_a_settlement_unlike_the_runs_is_rejected(fields):
    trace = trace_of(TWO_TOOLS)
    at = find(trace, t.Settled, prompt=1)
    rejected(changed(trace, at, **fields), at, "prompt 1 settled", "legal: settled as completed")


def test_a_cancelled_run_that_settles_as_a_success_is_rejected():
    trace = trace_of(CANCEL_IN_TOOL)
    at = find(trace, t.Settled, prompt=1)
    doctored = changed(trace, at, outcome="completed", form="returned", reason=None)
    rejected(doctored, at, "prompt 1 settled as completed", "legal: settled as failed (cancelled)")


def test_a_settlement_that_never_came_is_missed_at_the_next_prompt_or_at_the_end():
    trace = trace_of(TWO_TOOLS)
    first = find(trace, t.Settled, prompt=1)
    last = find(trace, t.Settled, prompt=2)
    # The history is read when the run is at rest, so that is where it is missed.
    rejected(without(trace, first), first, "the history after prompt 1", "legal: settled as completed")
    both = without(trace, first, find(trace, t.HistoryRead, prompt=1))
    rejected(both, first, "prompt 2 was given")
    tail = without(trace, last, find(trace, t.HistoryRead, prompt=2))
    rejected(tail, len(tail), "the trace ends", "legal: settled as completed")


def test_a_settlement_told_twice_is_rejected():
    trace = trace_of(TWO_TOOLS)
    at = find(trace, t.Settled, prompt=1)
    rejected(twice(trace, at), at + 1, "prompt 1 settled", "the machine was idle; legal: a prompt")


def test_a_signal_that_nobody_gave_is_rejected():
    trace = trace_of(TWO_TOOLS)
    at = find(trace, t.ToolStarted, start=1)
    signal = t.Signalled("tool", 1)
    doctored = Trace((*trace.entries[: at + 1], signal, *trace.entries[at + 1 :]))
    rejected(doctored, at + 1, "the signal was seen by tool 1")


def test_a_hang_is_legal_only_where_nothing_can_move():
    """A reply that stalls hangs the run. One that went on does not: that would be the target's fault."""
    assert accept(trace_of(STALL))
    trace = trace_of(TWO_TOOLS)
    at = find(trace, t.ToolSettled, start=1)
    hung = Trace((*trace.entries[: at + 1], t.Hung(1, "still")))
    rejected(hung, at + 1, "prompt 1 hung", "legal: tool_end of c1")


def test_a_target_that_is_lost_is_rejected():
    trace = trace_of(TWO_TOOLS)
    at = find(trace, t.ToolStarted, start=1)
    rejected(Trace((*trace.entries[:at], t.TargetLost("died"))), at, "the target was lost (died)")


def test_the_end_of_the_trace_in_the_middle_of_a_run_is_rejected():
    trace = trace_of(TWO_TOOLS)
    at = find(trace, t.ToolStarted, start=1)
    rejected(Trace(trace.entries[: at + 1]), at + 1, "the trace ends", "the tool of c1 settling")


# --------------------------------------------------------------------------------------------
# The two profiles tell each other apart


def test_the_profiles_reject_each_other_where_they_first_differ():
    """With events, that is the first bracket; the other way round, the first event without one."""
    mine, yours = PROFILES["rejecting"], PROFILES["durable-prefix"]
    rejecting, durable = played(CANCEL_MID_TEXT, mine), played(CANCEL_MID_TEXT, yours)
    result = accept(rejecting, yours)
    assert result.at == told(rejecting, EventType.MESSAGE_START, role="user")
    assert "legal: run_start told" in result.words
    result = accept(durable, mine)
    assert result.at == told(durable, EventType.RUN_START)


def test_the_profiles_reject_each_other_also_by_history_alone():
    """Without events the form of the settlement, and then the kept prefix, tell them apart."""
    same = {"failure": "marked", "answer": "told", "failed_attempt": "absent", "brackets": "none"}
    drops = {**PROFILES["rejecting"], **same}
    keeps = {**drops, "cancelled_prefix": "finalize"}
    dropped, kept = played(CANCEL_MID_TEXT, drops), played(CANCEL_MID_TEXT, keeps)
    for trace, claims in ((dropped, keeps), (kept, drops)):
        header = dataclasses.replace(trace.header, observes=("history",))
        unseen = Trace((header, *(e for e in trace.entries[1:] if not isinstance(e, t.Told))))
        assert accept(unseen)
        assert accept(unseen, claims).at == find(unseen, t.HistoryRead, prompt=1)
        header = dataclasses.replace(trace.header, observes=())
        shown = Trace((header, *(e for e in unseen.entries[1:] if not isinstance(e, t.HistoryRead))))
        assert accept(shown)
        assert accept(shown, claims).at == find(shown, t.Requested, request=2)


@pytest.mark.parametrize("profile", PROFILES)
def test_every_example_of_one_profile_is_rejected_under_the_other(profile):
    """The brackets alone tell them apart, in every scenario in which a run begins."""
    (other,) = (claims for name, claims in PROFILES.items() if name != profile)
    with Executor(ReferenceAdapter(PROFILES[profile])) as executor:
        for scenario in examples():
            trace = executor.run(scenario)
            if any(isinstance(entry, t.Told) for entry in trace):
                assert not accept(trace, other), scenario.name


# --------------------------------------------------------------------------------------------
# The bound


def test_a_result_says_when_not_all_configurations_could_be_followed(monkeypatch):
    """A rejection that rests on a part of the configurations is not certain, and says so."""
    monkeypatch.setattr(acceptors, "AT_MOST", 1)
    result = accept(trace_of(TWO_TOOLS))
    assert result.bounded
    assert not result
    assert "not certain" in result.words
