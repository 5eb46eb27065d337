"""The machine: both tables are total, illegal inputs change nothing, and every run ends once and whole."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopspec import machine as fsm
from loopspec.history import unanswered
from loopspec.machine import (
    ACTIONS,
    AWAIT_POINTS,
    CALL_TABLE,
    GUARDS,
    TABLE,
    CallInput,
    CallState,
    CallStatus,
    Choices,
    IllegalInput,
    Kind,
    Machine,
    State,
    row_ids,
)
from loopspec.vocabulary import (
    CLAIMS,
    PROFILES,
    ArgumentsDelta,
    AssistantMessage,
    Call,
    CallEnd,
    CallStart,
    EventType,
    FailureReason,
    Outcome,
    Reason,
    ReasoningDelta,
    StopReason,
    Terminator,
    Text,
    TextDelta,
    Usage,
    UserMessage,
)

C1, C2 = Call("c1", "probe", "{}"), Call("c2", "probe", "{}")
ONE_OF_EACH: dict[Kind, fsm.Input] = {
    Kind.PROMPT: fsm.Prompted("go"),
    Kind.PROCEED: fsm.Proceed(),
    Kind.OPENED: fsm.Opened(),
    Kind.TEXT: fsm.Received(TextDelta("a")),
    Kind.REASONING: fsm.Received(ReasoningDelta("a")),
    Kind.CALL: fsm.Received(CallStart(0, "c1", "probe")),
    Kind.USAGE: fsm.Received(Usage(1, 1)),
    Kind.REASON: fsm.Received(Reason("stop")),
    Kind.TERMINATOR: fsm.Received(Terminator()),
    Kind.STREAM_FAILED: fsm.StreamFailed("down"),
    Kind.STREAM_ENDED: fsm.StreamEnded(),
    Kind.TOOL_STARTED: fsm.ToolStarted(0),
    Kind.TOOL_SETTLED: fsm.ToolSettled(0, "a"),
    Kind.CANCEL: fsm.Cancelled(),
    Kind.LISTENER_FAILED: fsm.ListenerFailed("no"),
}


def machine(claims: dict[str, str] | None = None, max_turns: int | None = None) -> Machine:
    return Machine(Choices.of(claims or PROFILES["rejecting"]), max_turns)


def whole_state(m: Machine) -> tuple[Any, ...]:
    """All there is to a machine, its paths too."""
    return (*m.snapshot(), tuple(m.path), tuple(m.call_path))


def feed(m: Machine, *inputs: Any) -> list[Any]:
    """Feed inputs, pieces as they are; the outputs of all."""
    outputs: list[Any] = []
    for item in inputs:
        outputs += m.feed(item if hasattr(item, "kind") else fsm.Received(item))
    return outputs


def open_reply(m: Machine) -> None:
    feed(m, fsm.Prompted("go"), fsm.Proceed(), fsm.Opened())


def batch(m: Machine, *calls: Call) -> None:
    """Bring a machine to where a batch of these calls is about to be dispatched."""
    open_reply(m)
    for index, call in enumerate(calls):
        feed(m, CallStart(index, call.id, call.name), ArgumentsDelta(index, call.arguments), CallEnd(index))
    feed(m, Reason("toolUse"), Terminator(), fsm.Proceed())


def start(m: Machine) -> None:
    """Dispatch and enter the next tool."""
    (wanted,) = [o for o in feed(m, fsm.Proceed(), fsm.Proceed()) if isinstance(o, fsm.StartTool)]
    feed(m, fsm.ToolStarted(wanted.place))


def of(outputs: list[Any], kind: type) -> list[Any]:
    return [output for output in outputs if isinstance(output, kind)]


def events(outputs: list[Any]) -> list[str]:
    return [output.event.type for output in of(outputs, fsm.Emit)]


# --------------------------------------------------------------------------------------------
# Totality


def test_every_state_has_an_entry_for_every_kind_of_input():
    """The table is total: what is illegal is so on purpose, by an empty entry."""
    assert set(TABLE) == set(itertools.product(State, Kind))


def test_every_call_state_has_an_entry_for_every_input():
    """So is the call's table."""
    assert set(CALL_TABLE) == set(itertools.product(CallState, CallInput))


def test_rows_name_guards_and_actions_that_exist_and_all_of_those_are_used():
    """Nothing in the table is without meaning, and nothing is kept that the table does not name."""
    rows = [row for rows in TABLE.values() for row in rows]
    assert {row.guard for row in rows} == set(GUARDS)
    assert {row.action for row in rows} == set(ACTIONS)


def test_a_row_is_known_by_its_state_input_and_guard():
    """No two rows have the same id."""
    assert len(set(row_ids())) == len(row_ids())


def test_settled_states_lead_nowhere_else():
    """Whatever comes after the settlement, the run stays settled."""
    for (state, _), rows in TABLE.items():
        if state in (State.COMPLETED, State.FAILED):
            assert {row.next for row in rows} <= {state}


def test_a_cancellation_is_legal_in_every_state():
    """There is no moment in which a run cannot be cancelled."""
    assert all(TABLE[state, Kind.CANCEL] for state in State)


def test_a_cancelled_run_is_settled_or_waits_for_started_tools():
    """A cancellation leads out of every await point, to the settlement or to the draining of tools."""
    for state in AWAIT_POINTS:
        assert {row.next for row in TABLE[state, Kind.CANCEL]} <= {State.FAILED, State.DRAINING}


def _settings() -> list[Choices]:
    """All values of those claims that guards ask for, each with the others as they are by default."""
    base = [Choices.of(profile) for profile in PROFILES.values()]
    return [
        *dict.fromkeys(
            base + [Choices.of({name: value}) for name, values in CLAIMS.items() for value in values]
        )
    ]


def _batches() -> list[list[CallStatus]]:
    one = [[CallStatus(C1, True, a)] for a in CallState]
    two = [[CallStatus(C1, True, a), CallStatus(C2, True, b)] for a in CallState for b in CallState]
    return [[], *one, *two]


def _variants(kind: Kind) -> list[fsm.Input]:
    if kind is Kind.TOOL_STARTED:
        return [fsm.ToolStarted(0), fsm.ToolStarted(1)]
    if kind is Kind.TOOL_SETTLED:
        failures = (None, "unknown_tool", "invalid_arguments", "tool_exception")
        return [fsm.ToolSettled(place, "a", failure) for place in (0, 1) for failure in failures]
    return [ONE_OF_EACH[kind]]


REASONS = [None, *(Reason(reason) for reason in StopReason), Reason("never heard of")]
REPLIES = [
    None,
    AssistantMessage(()),
    AssistantMessage((Text(" "),)),
    AssistantMessage((Text("a"),)),
    AssistantMessage((Text("a"), C1)),
]


@pytest.mark.parametrize("kind", [kind for kind in Kind if any(TABLE[s, kind] for s in State)])
def test_of_the_guards_of_one_state_and_input_exactly_one_holds(kind):
    """Rows are neither missing nor in each other's way, whatever was claimed and whatever came before.

    The last guard of a pair therefore holds whenever the earlier ones do not, and the order of rows
    means nothing: no row can stand in for one that was deleted.
    """
    groups = {tuple(row.guard for row in TABLE[state, kind]) for state in State} - {()}
    calls_matter = kind in (Kind.TOOL_STARTED, Kind.TOOL_SETTLED, Kind.CANCEL, Kind.LISTENER_FAILED)
    batches = _batches() if calls_matter else [[]]
    for choices, reason, (turn, limit), again in itertools.product(
        _settings(),
        REASONS if not calls_matter else REASONS[:2],
        [(0, None), (1, 1), (1, 2)],
        [0, fsm.ASK_AGAIN_AT_MOST],
    ):
        m = Machine(choices, limit)
        m.turn, m.reason, m.asked_again = turn, reason, again
        for reply in REPLIES if kind is Kind.PROCEED else REPLIES[:1]:
            m.reply = reply
            own = [CallStatus(call, True) for call in reply.calls] if reply else []
            for m.calls in [own] if kind is Kind.PROCEED else batches:
                for given_ in _variants(kind):
                    for guards in groups:
                        holding = [guard for guard in guards if GUARDS[guard](m, given_)]
                        assert len(holding) == 1, (guards, holding, m.snapshot())


# --------------------------------------------------------------------------------------------
# Illegal inputs


@pytest.mark.parametrize("state", State)
def test_an_illegal_input_names_what_is_legal_and_changes_nothing(state):
    """It is one exception, it says where the run is and what it could take, and the run is as it was."""
    for kind in Kind:
        if TABLE[state, kind]:
            continue
        m = machine()
        m.state, m.calls = state, [CallStatus(C1, True, CallState.STARTED)]
        before = whole_state(m)
        with pytest.raises(IllegalInput) as caught:
            m.feed(ONE_OF_EACH[kind])
        assert whole_state(m) == before
        assert (caught.value.state, caught.value.input) == (state, kind)
        assert list(caught.value.legal) == [k for k in Kind if TABLE[state, k]]
        for legal in caught.value.legal:
            assert str(legal) in str(caught.value)


@pytest.mark.parametrize(
    ("state", "given_"), [pair for pair, after in CALL_TABLE.items() if after is None], ids=str
)
def test_an_illegal_move_of_a_call_names_what_is_legal_and_changes_nothing(state, given_):
    """The call's own table refuses in the same way, whatever row of the run's table it came by."""
    m = machine()
    batch(m, C1, C2)
    start(m)
    m.calls[1].state = state
    before = whole_state(m)
    refuse = {
        CallInput.START: lambda: m.feed(fsm.ToolStarted(1)),
        CallInput.SETTLE: lambda: m.feed(fsm.ToolSettled(1, "a")),
        CallInput.SKIP: lambda: m.advance_call(1, CallInput.SKIP),
    }[given_]
    with pytest.raises(IllegalInput) as caught:
        refuse()
    assert whole_state(m) == before
    assert "c2" in str(caught.value)
    assert list(caught.value.legal) == [i for i in CallInput if CALL_TABLE[state, i] is not None]


def test_a_call_that_is_not_in_the_batch_is_illegal_and_changes_nothing():
    """A place outside the batch is refused like any other illegal input, not by an index error."""
    m = machine()
    batch(m, C1)
    start(m)
    before = whole_state(m)
    for place in (-1, 1):
        with pytest.raises(IllegalInput, match="not in the batch"):
            m.feed(fsm.ToolSettled(place, "a"))
    assert whole_state(m) == before


@pytest.mark.parametrize("move", [move for move, after in CALL_TABLE.items() if after is not None], ids=str)
def test_a_batch_that_cannot_move_all_its_calls_moves_none(move):
    """If one call of a batch refuses, those that had moved before it are as they were."""
    m = Machine(Choices(cancelled_tool="races"), call_table={**CALL_TABLE, move: None})
    batch(m, C1, C2)
    state, given_ = move
    if (state, given_) == (CallState.ANNOUNCED, CallInput.START):
        inputs: list[Any] = [fsm.ToolStarted(0)]
    elif state is CallState.ANNOUNCED and given_ is CallInput.SETTLE:
        inputs = [fsm.ToolSettled(0, "a", "unknown_tool")]
    elif given_ is CallInput.SETTLE:
        inputs = [fsm.ToolStarted(0), fsm.ToolSettled(0, "a")]
    else:
        inputs = [fsm.ToolStarted(0), fsm.Cancelled()]
    feed(m, fsm.Proceed(), fsm.Proceed(), *inputs[:-1])
    before = whole_state(m)
    with pytest.raises(IllegalInput):
        m.feed(inputs[-1])
    assert whole_state(m) == before


# --------------------------------------------------------------------------------------------
# Copies


def test_a_copy_goes_its_own_way():
    """What is fed to a copy is not fed to the machine that it was made of, and the other way round."""
    m = machine()
    batch(m, C1, C2)
    before = whole_state(m)
    other = m.copy()
    assert whole_state(other) == before
    start(other)
    feed(other, fsm.ToolSettled(0, "a"), fsm.Cancelled())
    assert whole_state(m) == before
    assert other.settled


def test_a_copy_of_an_open_reply_shares_no_text():
    """The reply that is being put together is copied too."""
    m = machine()
    open_reply(m)
    feed(m, TextDelta("a"))
    other = m.copy()
    feed(other, TextDelta("b"))
    assert m.assembler.blocks() == (Text("a"),)
    assert other.assembler.blocks() == (Text("ab"),)


# --------------------------------------------------------------------------------------------
# The main ways


def test_an_answer_settles_the_run_with_one_request():
    """Prompt, request, reply, answer: in this order, and nothing more."""
    m = machine()
    told = feed(m, fsm.Prompted("go"))
    assert of(told, fsm.Append) == [fsm.Append(UserMessage("go"))]
    assert of(feed(m, fsm.Proceed()), fsm.SendRequest)
    feed(m, fsm.Opened(), TextDelta("Yes."), Reason("stop"))
    recorded = feed(m, Terminator())
    answer = AssistantMessage((Text("Yes."),), "stop")
    assert of(recorded, fsm.Append) == [fsm.Append(answer)]
    assert feed(m, fsm.Proceed()) == [fsm.Settle(Outcome.COMPLETED, answer=answer)]
    assert m.state is State.COMPLETED


def test_a_batch_is_run_one_call_at_a_time_and_followed_by_one_request():
    """Sequential tools: the second is announced when the first has its result."""
    m = machine()
    batch(m, C1, C2)
    start(m)
    first = feed(m, fsm.ToolSettled(0, "one"))
    assert not of(first, fsm.StartTool)
    start(m)
    feed(m, fsm.ToolSettled(1, "two"))
    assert m.state is State.BETWEEN
    assert of(feed(m, fsm.Proceed(), fsm.Proceed()), fsm.SendRequest)


def test_results_in_source_order_wait_for_those_before_them():
    """Parallel in source order: whatever settles first, results are appended as the calls stand."""
    m = machine({**PROFILES["rejecting"], "tools": "parallel-source-order"})
    batch(m, C1, C2)
    start(m)
    start(m)
    assert not of(feed(m, fsm.ToolSettled(1, "two")), fsm.Append)
    appended = of(feed(m, fsm.ToolSettled(0, "one")), fsm.Append)
    assert [output.message.call_id for output in appended] == ["c1", "c2"]


def test_results_in_completion_order_come_as_they_settle():
    """Parallel in completion order: the first to settle is the first to be appended."""
    m = machine({**PROFILES["rejecting"], "tools": "parallel-completion-order"})
    batch(m, C1, C2)
    start(m)
    start(m)
    (second,) = of(feed(m, fsm.ToolSettled(1, "two")), fsm.Append)
    assert second.message.call_id == "c2"


def test_a_limit_is_checked_before_each_request():
    """With a limit of one, the batch of the first reply is run and nothing more is asked."""
    m = machine(max_turns=1)
    batch(m, C1)
    start(m)
    feed(m, fsm.ToolSettled(0, "a"))
    outputs = feed(m, fsm.Proceed())
    assert not of(outputs, fsm.SendRequest)
    assert of(outputs, fsm.Settle)[0].reason is FailureReason.LIMIT


@pytest.mark.parametrize("reason", ["error", "aborted", "length", "deferred", "pending", "refusal", "odd"])
def test_no_call_of_such_a_reply_is_started(reason):
    """Only replies that end with stop or toolUse are acted on."""
    m = machine()
    open_reply(m)
    feed(m, CallStart(0, "c1", "probe"), ArgumentsDelta(0, "{}"), CallEnd(0), Reason(reason))
    outputs = feed(m, Terminator())
    if not m.settled:
        outputs += feed(m, fsm.Proceed())
    assert not of(outputs, fsm.StartTool)
    assert of(outputs, fsm.Settle)[0].outcome is Outcome.FAILED


def test_a_cut_stream_finalizes_its_prefix_or_leaves_nothing():
    """The two profiles differ in what a cancellation leaves of the reply."""
    for profile, kept in (
        ("durable-prefix", [AssistantMessage((Text("a"),), "aborted", True)]),
        ("rejecting", []),
    ):
        m = machine(PROFILES[profile])
        open_reply(m)
        feed(m, TextDelta("a"), CallStart(0, "c1", "probe"))
        outputs = feed(m, fsm.Cancelled())
        assert [output.message for output in of(outputs, fsm.Append)] == kept
        assert of(outputs, fsm.Settle)[0].reason is FailureReason.CANCELLED


def test_the_prefix_stands_before_the_ends_of_its_stream_turn_and_run():
    """The message, then the end of its stream, then of its turn, then of the run."""
    m = machine(PROFILES["durable-prefix"])
    open_reply(m)
    feed(m, TextDelta("a"))
    outputs = feed(m, fsm.Cancelled())
    assert isinstance(outputs[1], fsm.Append)
    assert events(outputs) == [
        EventType.MESSAGE_END, EventType.STREAM_END, EventType.TURN_END, EventType.RUN_END,
    ]  # fmt: skip


def test_a_cancelled_batch_is_completed_with_error_results():
    """The started tool is waited for, the others are never run, and each call has its result."""
    m = machine(PROFILES["durable-prefix"])
    batch(m, C1, C2)
    start(m)
    assert of(feed(m, fsm.Cancelled()), fsm.SignalTools)
    assert m.state is State.DRAINING
    outputs = feed(m, fsm.ToolSettled(0, "late"))
    results = [output.message for output in of(outputs, fsm.Append)]
    assert [(r.call_id, r.is_error, r.code) for r in results] == [
        ("c1", False, None), ("c2", True, "ABORTED_BEFORE_DISPATCH"),
    ]  # fmt: skip
    assert of(outputs, fsm.Settle)[0].reason is FailureReason.CANCELLED


def test_a_raced_tool_is_not_waited_for():
    """Where a cancellation races the tools, the run settles at once and a late result is illegal."""
    m = machine({**PROFILES["rejecting"], "cancelled_tool": "races"})
    batch(m, C1)
    start(m)
    assert of(feed(m, fsm.Cancelled()), fsm.Settle)
    with pytest.raises(IllegalInput):
        m.feed(fsm.ToolSettled(0, "late"))


def test_a_tool_that_raises_where_that_is_claimed_ends_the_run_with_the_batch_whole():
    """The siblings' results are kept, and the calls not run get error results."""
    m = machine({**PROFILES["rejecting"], "tool_exception": "raises"})
    batch(m, C1, C2)
    start(m)
    outputs = feed(m, fsm.ToolSettled(0, "boom", "tool_exception"))
    assert [output.message.call_id for output in of(outputs, fsm.Append)] == ["c1", "c2"]
    assert of(outputs, fsm.Settle)[0].reason is FailureReason.TOOL


# --------------------------------------------------------------------------------------------
# Whatever comes, in whatever order


ANY_CLAIMS = st.fixed_dictionaries({name: st.sampled_from(values) for name, values in CLAIMS.items()})
PIECES = st.one_of(
    st.builds(TextDelta, st.sampled_from(["", " ", "a"])),
    st.builds(ReasoningDelta, st.sampled_from(["", "b"])),
    st.builds(CallStart, st.integers(0, 2), st.sampled_from(["", "c1", "c2"]), st.just("probe")),
    st.builds(ArgumentsDelta, st.integers(0, 2), st.sampled_from(["{}", "{"])),
    st.builds(CallEnd, st.integers(0, 2)),
    st.just(Usage(1, 1)),
    st.builds(Reason, st.sampled_from([*StopReason, "odd"])),
    st.just(Terminator()),
)
INPUTS = st.one_of(
    st.just(fsm.Proceed()),
    st.just(fsm.Proceed()),
    st.just(fsm.Opened()),
    st.builds(fsm.Received, PIECES),
    st.builds(fsm.ToolStarted, st.integers(0, 2)),
    st.builds(
        fsm.ToolSettled, st.integers(0, 2), st.just("r"),
        st.sampled_from([None, "unknown_tool", "invalid_arguments", "tool_exception"]), st.booleans(),
    ),
    st.sampled_from(
        [fsm.StreamFailed("x"), fsm.StreamEnded(), fsm.Cancelled(), fsm.ListenerFailed("y"), fsm.Prompted("p")]
    ),
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(ANY_CLAIMS, st.sampled_from([None, 1, 2]), st.lists(INPUTS, max_size=60))
def test_whatever_comes_a_run_settles_at_most_once_and_leaves_every_call_with_its_result(
    claims, limit, inputs
):
    """Illegal inputs change nothing; a settled run asks and starts nothing more; its history is paired."""
    m = machine(claims, limit)
    history, settled, requests = [], 0, 0
    for item in [fsm.Prompted("go"), *inputs]:
        before = whole_state(m)
        try:
            outputs = m.feed(item)
        except IllegalInput:
            assert whole_state(m) == before
            continue
        assert not (settled and of(outputs, (fsm.SendRequest, fsm.StartTool, fsm.RunTool, fsm.Append))), (
            outputs
        )
        history += [output.message for output in of(outputs, fsm.Append)]
        settled += len(of(outputs, fsm.Settle))
        requests += len(of(outputs, fsm.SendRequest))
    assert settled == m.settled
    assert limit is None or requests <= limit
    if settled:
        assert unanswered(history) == []


@settings(max_examples=100, deadline=None)
@given(ANY_CLAIMS, st.lists(INPUTS, max_size=40))
def test_a_copy_does_what_the_machine_would_have_done(claims, inputs):
    """Fed the same, both give the same outputs and are in the same state, at every point."""
    m = machine(claims)
    m.feed(fsm.Prompted("go"))
    for item in inputs:
        other = m.copy()
        try:
            expected: Any = m.feed(item)
        except IllegalInput as error:
            expected = str(error)
        try:
            actual: Any = other.feed(item)
        except IllegalInput as error:
            actual = str(error)
        assert actual == expected
        assert whole_state(other) == whole_state(m)
