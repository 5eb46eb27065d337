"""The chapter prefix, told in traces."""

from __future__ import annotations

from typing import Any

import pytest
from build_cancellation import Cut, alone, batch, breaks, call, cut, hidden, holds, silent, thought

from loopspec.rules import RULES
from loopspec.vocabulary import Call, OtherMessage, Reason, Reasoning, ReasoningDelta, Terminator

FINALIZE = {"cancelled_prefix": "finalize"}
DISCARD = {"cancelled_prefix": "discard"}
ATTEMPT = {"failed_attempt": "attempt"}
FORK = {**FINALIZE, "fork": "yes"}


def stopped(*pieces: Any, claims: dict[str, str] | None = None, **header: Any) -> Cut:
    """A reply that is cancelled after these pieces; the target claims to finalize."""
    return cut(*pieces, claims=claims or FINALIZE, **header)


class TestKept:
    """Delivered text and reasoning become one message at the end, marked as interrupted."""

    rule = "prefix.kept"

    def test_a_marked_message_holds(self) -> None:
        holds(self.rule, stopped("The first ").keeps("The first ").cancelled().history())

    def test_reasoning_alone_holds(self) -> None:
        story = stopped(ReasoningDelta("Two points.")).keeps(thought("Two points."))
        holds(self.rule, story.cancelled().history())

    def test_no_message_breaks(self) -> None:
        words = breaks(self.rule, stopped("The first ").cancelled().history())
        assert "'The first '" in words
        assert "0 messages" in words

    def test_two_messages_break(self) -> None:
        story = stopped("The first ").keeps("The ").keeps("first ").cancelled().history()
        assert "2 messages" in breaks(self.rule, story)

    def test_an_unmarked_message_breaks(self) -> None:
        story = stopped("The first ").keeps("The first ", interrupted=False).cancelled().history()
        assert "not marked" in breaks(self.rule, story)

    def test_half_of_the_text_breaks(self) -> None:
        assert "its text was to be" in breaks(
            self.rule, stopped("The first ").keeps("The ").cancelled().history()
        )

    def test_text_that_came_after_the_cancellation_breaks_where_nothing_moves_by_itself(self) -> None:
        story = stopped("The first ").sent("point").keeps("The first point").cancelled().history()
        breaks(self.rule, story)

    def test_text_that_came_after_it_may_be_kept_by_a_target_that_moves_by_itself(self) -> None:
        story = stopped("The first ", grade="event").sent("point").keeps("The first point")
        holds(self.rule, story.cancelled().history())

    def test_a_message_that_is_not_the_last_breaks(self) -> None:
        story = stopped("The first ").keeps("The first ").hears("stopped").cancelled().history()
        assert "not the last" in breaks(self.rule, story)

    def test_white_space_is_another_rules_business(self) -> None:
        holds(self.rule, stopped("The first ").keeps("The first").cancelled().history())

    def test_an_earlier_turn_of_the_run_is_not_taken_for_it(self) -> None:
        story = batch("c1", claims=FINALIZE).tool("c1").request().sent("There ").cancels_run()
        holds(self.rule, story.keeps("There ").cancelled().history())

    def test_it_is_silent_where_nothing_was_delivered(self) -> None:
        silent(self.rule, stopped(" \n").cancelled().history())

    def test_it_is_silent_where_a_listener_failed_too(self) -> None:
        silent(self.rule, stopped("The first ").listener_raises().cancelled().history())

    def test_a_reply_that_had_told_its_reason_may_be_whole(self) -> None:
        silent(self.rule, stopped("The first.", Reason("stop")).cancelled().history())

    def test_it_is_hidden_without_history(self) -> None:
        hidden(self.rule, stopped("The first ", observes=("events",)).cancelled())

    @pytest.mark.parametrize("grade", ["event", "racing"])
    def test_what_was_consumed_is_not_known_everywhere(self, grade: str) -> None:
        story = alone(FINALIZE, grade=grade).sent("The ").cancels_run("listener of text_delta")
        hidden(self.rule, story.cancelled().history())


class TestBlocks:
    """Closed and open blocks that are not blank, in stream order, untrimmed; no calls."""

    rule = "prefix.blocks"
    pieces = (ReasoningDelta("Look. "), "I will ", call(0, "c1"), "and ")

    def test_text_and_reasoning_in_order_hold(self) -> None:
        story = stopped(*self.pieces).keeps(thought("Look. "), "I will ", "and ")
        holds(self.rule, story.cancelled().history())

    def test_blocks_of_one_kind_may_be_joined(self) -> None:
        story = stopped(*self.pieces).keeps(thought("Look. "), "I will and ")
        holds(self.rule, story.cancelled().history())

    def test_a_call_breaks(self) -> None:
        story = stopped(*self.pieces).keeps(thought("Look. "), "I will and ", Call("c1", "probe", "{}"))
        assert "no calls, and holds c1" in breaks(self.rule, story.cancelled().history())

    def test_trimmed_text_breaks(self) -> None:
        story = stopped("The first ").keeps("The first").cancelled().history()
        assert "'The first '" in breaks(self.rule, story)

    def test_another_order_breaks(self) -> None:
        story = stopped("I see. ", ReasoningDelta("Look.")).keeps(thought("Look."), "I see. ")
        breaks(self.rule, story.cancelled().history())

    def test_a_blank_block_breaks(self) -> None:
        story = stopped(" ", ReasoningDelta("Look.")).keeps(" ", thought("Look."))
        assert "blank block" in breaks(self.rule, story.cancelled().history())

    def test_a_blank_block_between_others_may_be_left_out(self) -> None:
        story = stopped("One.", ReasoningDelta(" "), "Two.").keeps("One.", "Two.")
        holds(self.rule, story.cancelled().history())

    def test_it_is_silent_where_nothing_was_kept(self) -> None:
        silent(self.rule, stopped("The first ").cancelled().history())

    def test_it_is_hidden_without_history(self) -> None:
        hidden(self.rule, stopped("The first ", observes=("events",)).cancelled())


class TestBlankWritesNoMessage:
    """Nothing but white space or calls leaves no message."""

    rule = "prefix.blank-writes-no-message"

    def test_no_message_holds(self) -> None:
        holds(self.rule, stopped(" \n", call(0, "c1")).cancelled().history())

    def test_a_blank_message_breaks(self) -> None:
        assert "history has text" in breaks(self.rule, stopped(" ").keeps(" ").cancelled().history())

    def test_an_empty_message_breaks(self) -> None:
        assert "history has nothing" in breaks(self.rule, stopped().keeps().cancelled().history())

    def test_a_message_with_the_call_breaks(self) -> None:
        story = stopped(call(0, "c1")).keeps(Call("c1", "probe", "{}")).cancelled()
        assert "request 2 has nothing with calls" in breaks(self.rule, story.again())

    def test_pieces_that_a_moving_target_took_later_are_no_break(self) -> None:
        story = stopped(" ", grade="event").sent("The first ").keeps(" The first ").cancelled()
        holds(self.rule, story.history())

    def test_it_is_silent_where_something_was_delivered(self) -> None:
        silent(self.rule, stopped("The first ").cancelled().history())

    def test_it_is_hidden_where_nothing_is_shown(self) -> None:
        hidden(self.rule, stopped(" ", observes=("events",)).cancelled())


class TestNamesItsProvider:
    """The message says which provider and model sent it, where messages do."""

    rule = "prefix.names-its-provider"

    def told(self, before: str | None, now: str | None) -> Cut:
        story = alone(FINALIZE).sent("One.", Reason("stop"), Terminator())
        story.keeps("One.", interrupted=False, provider=before).completes("One.").prompt().request()
        return story.sent("Two ").cancels_run().keeps("Two ", provider=now).cancelled().history()

    def test_the_same_provider_holds(self) -> None:
        holds(self.rule, self.told("acme/large", "acme/large"))

    def test_no_provider_breaks(self) -> None:
        assert "names none" in breaks(self.rule, self.told("acme/large", None))

    def test_another_provider_breaks(self) -> None:
        breaks(self.rule, self.told("acme/large", "other/small"))

    def test_it_is_silent_where_messages_name_none(self) -> None:
        silent(self.rule, self.told(None, None))

    def test_it_is_hidden_without_history(self) -> None:
        hidden(self.rule, stopped("Two ", observes=("events",)).cancelled())


class TestOrder:
    """The message, then the end of its stream, of its turn, and of the run, as cancelled."""

    rule = "prefix.order"
    ends = ("message_end", "stream_end", "turn_end", "run_end")

    def told(self, *kinds: str, reason: str | None = "cancelled") -> Cut:
        story = stopped("The first ")
        for kind in kinds:
            role = "assistant" if kind == "message_end" else None
            story.told(kind, role=role, reason=reason if kind == "run_end" else None)
        return story.cancelled()

    def test_this_order_holds(self) -> None:
        holds(self.rule, self.told(*self.ends))

    @pytest.mark.parametrize("missing", [1, 2])
    def test_a_target_may_have_fewer_ends(self, missing: int) -> None:
        holds(self.rule, self.told(*(kind for kind in self.ends if kind != self.ends[missing])))

    def test_a_message_after_the_end_of_its_stream_breaks(self) -> None:
        words = breaks(self.rule, self.told("stream_end", "message_end", "turn_end", "run_end"))
        assert "was end of the stream, the message" in words

    def test_a_turn_that_ends_after_its_run_breaks(self) -> None:
        breaks(self.rule, self.told("message_end", "stream_end", "run_end", "turn_end"))

    def test_another_reason_breaks(self) -> None:
        assert "'completed'" in breaks(self.rule, self.told(*self.ends, reason="completed"))

    def test_it_is_hidden_where_no_ends_are_told(self) -> None:
        hidden(self.rule, self.told())

    def test_it_is_silent_where_nothing_was_delivered(self) -> None:
        silent(self.rule, stopped(" ").told("run_end").cancelled())


class TestBetweenShownAndSent:
    """Shown is a prefix of kept, kept a prefix of sent."""

    rule = "prefix.between-shown-and-sent"

    def told(self, shown: str, kept: str | None, grade: str = "exact") -> Cut:
        story = alone(FINALIZE, grade=grade).sent("The first ", "point").delta(shown).cancels_run()
        story.sent(" and more")
        return (story.keeps(kept) if kept else story).cancelled().history()

    def test_shown_in_kept_in_sent_holds(self) -> None:
        holds(self.rule, self.told("The first ", "The first point"))

    def test_more_shown_than_kept_breaks(self) -> None:
        assert "was to be a prefix of what is kept" in breaks(self.rule, self.told("The first ", "The "))

    def test_shown_and_nothing_kept_breaks(self) -> None:
        breaks(self.rule, self.told("The first ", None))

    def test_kept_and_never_sent_breaks(self) -> None:
        assert "kept was to be a prefix" in breaks(self.rule, self.told("The", "The first [interrupted]"))

    def test_it_is_judged_even_in_a_race(self) -> None:
        holds(self.rule, self.told("The first ", "The first point and more", "racing"))
        breaks(self.rule, self.told("The first ", None, "racing"))

    def test_in_a_race_the_whole_reply_may_have_been_sent(self) -> None:
        story = alone(FINALIZE, grade="racing").sent("The first.", Reason("stop"), Terminator())
        holds(self.rule, story.delta("The ").cancels_run().keeps("The fi").cancelled().history())

    def test_blank_text_that_was_shown_need_not_be_kept(self) -> None:
        story = alone(FINALIZE).sent(" ", ReasoningDelta("Look.")).delta(" ").cancels_run()
        holds(self.rule, story.keeps(thought("Look.")).cancelled().history())

    def test_the_next_request_shows_it_as_well(self) -> None:
        story = alone(FINALIZE, observes=("events",)).sent("The first ").delta("The ").cancels_run()
        breaks(self.rule, story.cancelled().again())

    def test_it_is_hidden_where_nothing_is_shown(self) -> None:
        hidden(self.rule, alone(FINALIZE, observes=()).sent("The ").cancels_run().cancelled())

    def test_it_is_silent_without_a_cancellation(self) -> None:
        silent(self.rule, alone(FINALIZE).sent("The ").delta("The ").fault("error").fails().history())


class TestInNextRequest:
    """The next request carries what was kept."""

    rule = "prefix.in-next-request"

    def test_the_kept_text_holds(self) -> None:
        holds(self.rule, stopped("First, plan. ").keeps("First, plan. ").cancelled().again())

    def test_no_text_breaks(self) -> None:
        story = stopped("First, plan. ").cancelled().again()
        assert "request 2 was to carry the text 'First, plan. '" in breaks(self.rule, story)

    def test_text_that_is_only_in_history_breaks(self) -> None:
        story = stopped("First, plan. ").keeps("First, plan. ").cancelled().history()
        story.messages.pop()
        breaks(self.rule, story.again())

    def test_trimmed_text_breaks(self) -> None:
        breaks(self.rule, stopped("First, plan. ").keeps("First, plan.").cancelled().again())

    def test_blocks_may_be_joined_with_white_space(self) -> None:
        story = stopped("First. ", ReasoningDelta("Hm. "), "Then.").keeps(
            "First. \n", Reasoning("Hm. "), "Then."
        )
        holds(self.rule, story.cancelled().again())

    def test_blocks_in_another_order_break(self) -> None:
        story = stopped("First. ", ReasoningDelta("Hm. "), "Then.").keeps(
            "Then.", Reasoning("Hm. "), "First. "
        )
        breaks(self.rule, story.cancelled().again())

    def test_reasoning_beside_text_need_not_be_carried_by_every_wire(self) -> None:
        story = stopped(ReasoningDelta("Hm. "), "Plan. ", wire="chat").keeps("Plan. ").cancelled()
        holds(self.rule, story.again())

    def test_reasoning_alone_is_carried_where_the_wire_is_known_to_take_it(self) -> None:
        breaks(self.rule, stopped(ReasoningDelta("Hm. ")).cancelled().again())
        hidden(self.rule, stopped(ReasoningDelta("Hm. "), wire="chat").cancelled().again())

    def test_it_is_silent_without_a_next_request(self) -> None:
        silent(self.rule, stopped("First, plan. ").cancelled())


class TestInFork:
    """A fork at that point carries it too."""

    rule = "prefix.in-fork"

    def fork(self, keep: bool) -> Cut:
        story = stopped("First, plan. ", claims=FORK)
        story = story.keeps("First, plan. ") if keep else story
        return story.cancelled().prompt(fork=True).request().reply("Done.").completes()

    def test_the_kept_text_holds(self) -> None:
        holds(self.rule, self.fork(True))

    def test_no_text_breaks(self) -> None:
        assert "request 2 was to carry" in breaks(self.rule, self.fork(False))

    def test_it_is_silent_without_a_fork(self) -> None:
        silent(self.rule, stopped("First, plan. ", claims=FORK).cancelled().again())


class TestNoExtraMessage:
    """No message such as "interrupted by user" is added."""

    rule = "prefix.no-extra-message"

    def test_nothing_between_holds(self) -> None:
        holds(self.rule, stopped("The first ").keeps("The first ").cancelled().again())

    def test_a_note_breaks(self) -> None:
        story = stopped("The first ").keeps("The first ").hears("[interrupted by user]").cancelled()
        assert "'[interrupted by user]'" in breaks(self.rule, story.again())

    def test_a_note_of_another_kind_breaks(self) -> None:
        story = stopped("The first ").keeps("The first ")
        story.messages.append(OtherMessage("interrupted"))
        breaks(self.rule, story.cancelled().again())

    def test_what_stands_before_every_prompt_is_no_note(self) -> None:
        story = Cut(FINALIZE).hears("It is Monday.").prompt().request().sent("The ").cancels_run()
        story.keeps("The ").cancelled().hears("It is Tuesday.")
        holds(self.rule, story.again())

    def test_merged_user_messages_are_legal(self) -> None:
        story = stopped(" ").cancelled().prompt(recovery=True)
        story.messages = story.messages[:0]
        holds(self.rule, story.hears("[prompt 1]\n\n[prompt 2]").request().reply("Done.").completes())

    def test_it_is_silent_without_a_next_request(self) -> None:
        silent(self.rule, stopped("The first ").cancelled())


class TestOnlyByCancellation:
    """A failing listener or stream does not finalize a prefix."""

    rule = "prefix.only-by-cancellation"

    def failed(self, **header: Any) -> Cut:
        return alone(FINALIZE, **header).sent("The first ").fault("error", "overloaded")

    def test_no_message_holds(self) -> None:
        holds(self.rule, self.failed().fails().history())

    def test_a_marked_message_breaks(self) -> None:
        assert "'The first '" in breaks(self.rule, self.failed().keeps("The first ").fails().history())

    def test_a_marked_message_after_a_failing_listener_breaks(self) -> None:
        story = alone(FINALIZE).sent("The first ").listener_raises().keeps("The first ")
        assert "a failing listener" in breaks(self.rule, story.fails("listener").history())

    def test_telling_one_breaks(self) -> None:
        story = self.failed().told("message_end", role="assistant", interrupted=True).fails()
        breaks(self.rule, story.history())

    def test_a_failed_reply_that_is_kept_for_display_is_no_break(self) -> None:
        story = self.failed().keeps("The first ", interrupted=False, stop_reason="error")
        holds(self.rule, story.fails().history())

    def test_it_is_silent_after_a_cancellation(self) -> None:
        silent(self.rule, stopped("The first ").keeps("The first ").cancelled().history())

    def test_it_is_silent_after_a_whole_answer(self) -> None:
        silent(self.rule, alone(FINALIZE).reply("Done.").completes().history())

    def test_it_is_hidden_where_nothing_is_shown(self) -> None:
        hidden(self.rule, self.failed(observes=()).fails())


class TestCommittedMessageUnmarked:
    """A cancellation after the reply became a message does not mark it."""

    rule = "prefix.committed-message-unmarked"

    def told(self, interrupted: bool) -> Cut:
        story = batch("c1", claims=FINALIZE)
        story.messages.pop()
        story.keeps(Call("c1", "probe", '{"value": "c1"}'), interrupted=interrupted)
        return story.starts_tool("c1").cancels_run().settles_tool("c1").answers("c1").cancelled()

    def test_an_unmarked_message_holds(self) -> None:
        holds(self.rule, self.told(False).history())

    def test_a_marked_message_breaks(self) -> None:
        assert "whole" in breaks(self.rule, self.told(True).history())

    def test_it_is_silent_where_the_reply_was_cut(self) -> None:
        silent(self.rule, stopped("I will ", call(0, "c1")).keeps("I will ").cancelled().history())

    def test_it_is_hidden_without_history(self) -> None:
        story = batch("c1", claims=FINALIZE, observes=("events",)).starts_tool("c1").cancels_run()
        hidden(self.rule, story.settles_tool("c1").cancelled())


class TestDiscarded:
    """Nothing of it is in the next request; the prompt still is."""

    rule = "prefix.discarded"
    pieces = ("The first ", call(0, "c1"))

    def told(self, **header: Any) -> Cut:
        return stopped(*self.pieces, claims=DISCARD, **header)

    def test_nothing_of_it_holds(self) -> None:
        holds(self.rule, self.told().cancelled().again())

    def test_its_text_breaks(self) -> None:
        story = self.told().keeps("The first", interrupted=False).cancelled().again()
        assert "holds text 'The first'" in breaks(self.rule, story)

    def test_its_call_breaks(self) -> None:
        story = self.told().keeps(Call("c1", "probe", "{}"), interrupted=False).aborts("c1")
        assert "the calls c1" in breaks(self.rule, story.cancelled().again())

    def test_a_lost_prompt_breaks(self) -> None:
        story = self.told().cancelled()
        story.messages.clear()
        assert "was to hold the prompt" in breaks(self.rule, story.again())

    def test_display_in_history_is_no_break(self) -> None:
        story = self.told().keeps("The first ", interrupted=False, stop_reason="aborted")
        story.cancelled().history().messages.pop()
        holds(self.rule, story.again())

    def test_it_is_silent_without_a_next_request(self) -> None:
        silent(self.rule, self.told().cancelled())

    def test_a_race_cannot_be_judged(self) -> None:
        hidden(self.rule, self.told(grade="racing").cancelled().again())


class TestAttemptRecorded:
    """A failed or blank reply is recorded before its failure is handled, and reaches no request."""

    rule = "prefix.attempt-recorded"

    def failed(self) -> Cut:
        return alone(ATTEMPT).sent("The first ", Reason("error", "overloaded"), Terminator())

    def test_an_attempt_before_the_end_holds(self) -> None:
        holds(self.rule, self.failed().told("attempt", text="The first ").told("run_end").fails().again())

    def test_no_attempt_breaks(self) -> None:
        assert "none was told" in breaks(self.rule, self.failed().told("run_end").fails())

    def test_an_attempt_after_the_end_breaks(self) -> None:
        assert "recorded after" in breaks(self.rule, self.failed().told("run_end").told("attempt").fails())

    def test_an_attempt_that_reaches_a_request_breaks(self) -> None:
        story = self.failed().told("attempt").keeps("The first ", interrupted=False).fails().again()
        assert "request 2 has 'The first '" in breaks(self.rule, story)

    def test_a_cancelled_reply_that_said_nothing_is_an_attempt_too(self) -> None:
        claims = {**ATTEMPT, **FINALIZE}
        holds(self.rule, stopped(" ", claims=claims).told("attempt").cancelled())
        breaks(self.rule, stopped(" ", claims=claims).cancelled())

    def test_it_is_silent_for_a_whole_answer(self) -> None:
        silent(self.rule, alone(ATTEMPT).reply("Done.").completes())

    def test_it_is_silent_where_the_provider_sent_nothing(self) -> None:
        silent(self.rule, alone(ATTEMPT).fault("status", "500: down").fails())

    def test_it_is_hidden_without_events(self) -> None:
        story = alone(ATTEMPT, observes=("history",)).sent("The ", Reason("error"), Terminator())
        hidden(self.rule, story.fails())


def test_all_rules_of_the_chapter_are_here() -> None:
    """Each rule of the chapter has a class of tests that names it."""
    named = {item.rule for item in globals().values() if hasattr(item, "rule") and isinstance(item.rule, str)}
    assert named == {name for name in RULES if name.startswith("prefix.")}
