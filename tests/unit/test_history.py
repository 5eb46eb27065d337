"""History: what the next request carries of it, and forks that part no call from its result."""

from __future__ import annotations

import copy
import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopspec.history import NO_RESULT, fork, normalise, unanswered
from loopspec.vocabulary import (
    AssistantMessage,
    Call,
    Message,
    OtherMessage,
    Reasoning,
    SystemMessage,
    Text,
    ToolResult,
    UserMessage,
    is_complete_json,
)

USER = UserMessage("Go on.")
C1, C2 = Call("c1", "probe", '{"value": "c1"}'), Call("c2", "probe", '{"value": "c2"}')
R1, R2 = ToolResult("c1", "probe", "one", False), ToolResult("c2", "probe", "two", False)
ANSWER = AssistantMessage((Text("Done."),), "stop")
CALLS = AssistantMessage((Text("I look."), C1, C2), "toolUse")


def test_what_is_whole_is_sent_as_it_is():
    """A history of completed turns needs no change."""
    history = (SystemMessage("Be brief."), USER, CALLS, R1, R2, ANSWER)
    assert normalise(history) == history


@pytest.mark.parametrize("reason", ["error", "aborted"])
def test_a_failed_reply_is_left_out_with_the_results_of_its_calls(reason):
    """It may be kept for display; the model never sees it again."""
    failed = dataclasses.replace(CALLS, stop_reason=reason)
    assert normalise([USER, failed, R1, USER]) == (USER, USER)


def test_an_interrupted_prefix_is_sent_although_its_reason_is_aborted():
    """The user has read it, so the model knows it."""
    prefix = AssistantMessage((Text("The first "),), "aborted", interrupted=True)
    assert normalise([USER, prefix]) == (USER, prefix)


@pytest.mark.parametrize("reason", ["length", "deferred", "refusal", "odd"])
def test_other_reasons_do_not_make_a_reply_a_failed_one(reason):
    """They have rules of their own; their text stays."""
    reply = AssistantMessage((Text("So far"),), reason)
    assert normalise([USER, reply]) == (USER, reply)


@pytest.mark.parametrize("blocks", [(), (Text(""),), (Text(" \n"), Reasoning(""))], ids=str)
def test_a_message_without_content_is_left_out(blocks):
    """No API accepts one."""
    assert normalise([USER, AssistantMessage(blocks, "stop"), USER]) == (USER, USER)


def test_blank_blocks_beside_others_are_left_out():
    """Nor do APIs accept an empty block."""
    message = AssistantMessage((Text(" "), Text("a"), Reasoning("")), "stop")
    assert normalise([message]) == (AssistantMessage((Text("a"),), "stop"),)


def test_results_stay_in_the_order_of_history():
    """Parallel tools may settle in another order than the calls'; events, history and request agree."""
    assert normalise([USER, CALLS, R2, R1]) == (USER, CALLS, R2, R1)


def test_results_that_had_to_be_added_come_after_those_of_history():
    """What was really delivered keeps its place."""
    added = ToolResult("c1", "probe", NO_RESULT, is_error=True)
    assert normalise([CALLS, R2]) == (CALLS, R2, added)


def test_a_call_without_a_result_gets_an_error_result():
    """A call that nothing answers is refused by every API."""
    added = ToolResult("c2", "probe", NO_RESULT, is_error=True)
    assert normalise([USER, CALLS, R1, USER]) == (USER, CALLS, R1, added, USER)


def test_the_first_of_two_results_for_one_call_counts():
    """A result that was delivered is never replaced."""
    late = dataclasses.replace(R1, text="late")
    assert normalise([CALLS, R1, late, R2]) == (CALLS, R1, R2)


def test_a_result_without_a_call_is_left_out():
    """At the start, after an answer, or after another message than its reply."""
    assert normalise([R1, USER, R1, ANSWER, R2]) == (USER, ANSWER)


def test_a_result_that_is_not_adjacent_is_left_out_and_its_call_answered():
    """APIs want results directly behind their calls; one that strayed is no longer a result."""
    one = AssistantMessage((C1,), "toolUse")
    added = ToolResult("c1", "probe", NO_RESULT, is_error=True)
    assert normalise([one, USER, R1]) == (one, added, USER)


@pytest.mark.parametrize("arguments", ["", "{", '{"value": "c', "not json"])
def test_arguments_that_are_not_complete_json_are_sent_as_an_empty_object(arguments):
    """The call has its (error) result by then; the arguments only have to be acceptable."""
    cut = AssistantMessage((Call("c1", "probe", arguments),), "toolUse")
    sent, result = normalise([cut, R1])
    assert isinstance(sent, AssistantMessage)
    assert sent.calls == (Call("c1", "probe", "{}"),)
    assert result == R1


def test_what_is_no_message_of_ours_is_passed_on():
    """Rules can then object to it; hiding it would hide the fault."""
    other = OtherMessage("?")
    assert normalise([other, USER]) == (other, USER)


# --------------------------------------------------------------------------------------------
# Whatever stands in it

TEXT = st.sampled_from(["", " ", "a", "b\n"])
CALL = st.builds(Call, st.just(""), st.just("probe"), st.sampled_from(["{}", "{", "", '{"a": 1}']))
BLOCKS = st.lists(st.one_of(st.builds(Text, TEXT), st.builds(Reasoning, TEXT), CALL), max_size=4)


@st.composite
def assistants(draw: st.DrawFn) -> AssistantMessage:
    """A reply whose calls have distinct ids, as the assembler makes them."""
    blocks = draw(BLOCKS)
    named = [
        dataclasses.replace(b, id=f"c{place}") if isinstance(b, Call) else b for place, b in enumerate(blocks)
    ]
    reason = draw(st.sampled_from(["stop", "toolUse", "error", "aborted", "length", None]))
    return AssistantMessage(tuple(named), reason, draw(st.booleans()))


MESSAGES: st.SearchStrategy[list[Message]] = st.lists(
    st.one_of(
        st.builds(UserMessage, TEXT),
        assistants(),
        st.builds(
            ToolResult, st.sampled_from(["c0", "c1", "c2", "c9"]), st.just("probe"), TEXT, st.booleans()
        ),
    ),
    max_size=10,
)


@given(MESSAGES)
def test_every_call_is_followed_by_exactly_its_result(history):
    """Results follow their reply at once, one for each call, and stand nowhere else."""
    sent = list(normalise(history))
    while sent:
        message = sent.pop(0)
        assert not isinstance(message, ToolResult)
        calls = message.calls if isinstance(message, AssistantMessage) else ()
        results = [sent.pop(0) for _ in calls]
        answered = [result.call_id for result in results if isinstance(result, ToolResult)]
        assert sorted(answered) == sorted(call.id for call in calls)


@given(MESSAGES)
def test_what_is_sent_is_acceptable(history):
    """No empty reply, no blank block, no cut arguments, no failed reply."""
    for message in normalise(history):
        if isinstance(message, AssistantMessage):
            assert message.blocks
            assert message.interrupted or message.stop_reason not in ("error", "aborted")
            assert all(block.text.strip() for block in message.blocks if not isinstance(block, Call))
            assert all(is_complete_json(call.arguments) for call in message.calls)


@given(MESSAGES)
def test_normalising_twice_changes_nothing_more(history):
    """What is sent is at rest."""
    once = normalise(history)
    assert normalise(once) == once


@given(MESSAGES)
def test_every_user_message_is_sent_once_and_in_order(history):
    """Whatever becomes of the replies."""
    users = [message for message in history if isinstance(message, UserMessage)]
    assert [message for message in normalise(history) if isinstance(message, UserMessage)] == users


@given(MESSAGES)
def test_the_history_is_not_changed(history):
    """It is the user's; a request is a view of it."""
    before = copy.deepcopy(history)
    normalise(history)
    assert history == before


@given(MESSAGES)
def test_nothing_that_is_sent_is_unanswered(history):
    """The loop's own question agrees with what is sent."""
    assert unanswered(normalise(history)) == []


# --------------------------------------------------------------------------------------------
# Forks

HISTORY = [USER, CALLS, R1, R2, ANSWER, USER, ANSWER]


def test_a_fork_has_the_history_up_to_a_message():
    """Or all of it; and it is a list of its own."""
    assert fork(HISTORY) == HISTORY
    assert fork(HISTORY) is not HISTORY
    assert fork(HISTORY, 5) == HISTORY[:5]
    assert fork(HISTORY, 0) == []


@pytest.mark.parametrize("at", [2, 3])
def test_a_fork_between_a_call_and_its_results_is_moved_before_the_reply(at):
    """A call that has a result is never parted from it."""
    assert fork(HISTORY, at) == [USER]


def test_a_fork_of_a_history_with_an_unanswered_call_elsewhere_is_still_whole():
    """That one call has no result is no reason to part another from its own."""
    history = [USER, AssistantMessage((C1,), "toolUse"), USER, CALLS, R1, R2]
    assert fork(history, 5) == history[:3]


@pytest.mark.parametrize("at", [-1, 8])
def test_a_fork_outside_the_history_is_an_error(at):
    """It says where, and how long the history is."""
    with pytest.raises(IndexError, match="has 7 messages"):
        fork(HISTORY, at)


@given(st.integers(0, len(HISTORY)))
def test_no_fork_has_an_unanswered_call(at):
    """Wherever it is made."""
    assert unanswered(fork(HISTORY, at)) == []
