"""The chapter cancellation, told in traces."""

from __future__ import annotations

from typing import Any

import pytest
from build_cancellation import Cut, alone, batch, breaks, call, cut, family, hidden, holds, silent

from loopspec.rules import RULES
from loopspec.vocabulary import Reason, Terminator

WAITS = {"cancelled_tool": "waits"}
RACES = {"cancelled_tool": "races"}
CODED = {"result_codes": "yes"}
SIGNAL = {"tool_signal": "yes"}


def in_tool(*ids: str, running: str = "c1", claims: dict[str, str] | None = None, **header: Any) -> Cut:
    """A batch that is cancelled while the tool of one call runs."""
    return batch(*ids, claims=claims, **header).starts_tool(running).cancels_run("tool c1, start 1")


class TestSettlesDeafProvider:
    """A run cancelled while it waits for the provider settles though that never yields again."""

    rule = "cancellation.settles-deaf-provider"

    def test_a_run_that_settles_holds(self) -> None:
        holds(self.rule, cut("The first ").fault("stall").cancelled())

    def test_a_run_that_hangs_breaks(self) -> None:
        words = breaks(self.rule, cut("The first ").fault("stall").hangs())
        assert "the reply to request 1 was open" in words
        assert "it never did" in words

    def test_a_target_that_dies_breaks(self) -> None:
        assert "the target was lost" in breaks(self.rule, cut("The first ").lost())

    def test_it_is_silent_without_a_cancellation(self) -> None:
        silent(self.rule, alone().sent("The first ").fault("stall").hangs())

    def test_it_is_silent_where_the_reply_came_to_its_end_first(self) -> None:
        """Then nobody knows whether the loop would have settled without it."""
        silent(self.rule, cut("The ").sent("first.", Reason("stop"), Terminator()).cancelled())

    def test_a_cancellation_at_the_end_of_an_answer_is_not_judged(self) -> None:
        silent(self.rule, alone().reply("Done.").cancels_run().hangs())

    def test_a_tool_that_was_started_from_an_open_reply_is_another_rules_business(self) -> None:
        silent(self.rule, alone().sent(call(0, "c1")).starts_tool("c1").cancels_run().hangs())

    def test_a_race_cannot_be_judged(self) -> None:
        hidden(self.rule, cut("The first ", grade="racing").hangs())


class TestTool:
    """With a started tool the run waits for it, or races it, as claimed."""

    rule = "cancellation.tool"

    def test_waiting_for_the_tool_holds_where_that_is_claimed(self) -> None:
        holds(self.rule, in_tool("c1", claims=WAITS).settles_tool("c1").cancelled())

    def test_a_tool_that_never_ends_hangs_the_run_legally(self) -> None:
        holds(self.rule, in_tool("c1", claims=WAITS).hangs())

    def test_settling_before_the_tool_breaks_where_waiting_is_claimed(self) -> None:
        words = breaks(self.rule, in_tool("c1", claims=WAITS).cancelled().settles_tool("c1"))
        assert "settled while c1 still ran" in words

    def test_hanging_after_the_tool_has_ended_breaks(self) -> None:
        breaks(self.rule, in_tool("c1", claims=WAITS).settles_tool("c1").hangs())

    def test_settling_before_the_tool_holds_where_racing_is_claimed(self) -> None:
        holds(self.rule, in_tool("c1", claims=RACES).cancelled().settles_tool("c1"))

    def test_hanging_breaks_where_racing_is_claimed(self) -> None:
        assert "claims to race" in breaks(self.rule, in_tool("c1", claims=RACES).hangs())

    def test_a_tool_that_ended_first_shows_no_race(self) -> None:
        silent(self.rule, in_tool("c1", claims=RACES).settles_tool("c1").cancelled())

    def test_it_is_silent_where_no_tool_runs(self) -> None:
        silent(self.rule, cut("The first ", claims=WAITS).cancelled())


class TestReportedAsCancelled:
    """A cancelled run is told as cancelled, not as error, limit or success."""

    rule = "cancellation.reported-as-cancelled"

    def test_told_as_cancelled_holds(self) -> None:
        holds(self.rule, cut("The first ").cancelled())

    def test_told_as_completed_breaks(self) -> None:
        assert "was told as completed" in breaks(self.rule, cut("The first ").completes("The first "))

    @pytest.mark.parametrize("reason", ["provider", "limit", "unknown", None])
    def test_told_as_another_failure_breaks(self, reason: str | None) -> None:
        breaks(self.rule, cut("The first ").fails(reason))

    def test_a_cancellation_on_the_end_of_an_answer_is_never_judged(self) -> None:
        silent(self.rule, alone().reply("Done.").cancels_run().completes("Done."))
        silent(self.rule, alone().sent("Done.", Reason("stop")).cancels_run().completes("Done."))

    def test_a_cancellation_after_a_failure_is_never_judged(self) -> None:
        silent(self.rule, alone().sent("Do", Reason("error")).cancels_run().fails())
        silent(self.rule, alone().sent("Do").fault("disconnect").cancels_run().fails())

    def test_a_tool_that_fails_because_it_was_cancelled_does_not_change_it(self) -> None:
        breaks(self.rule, in_tool("c1").settles_tool("c1", "raised").fails("tool"))

    def test_a_tool_whose_failure_is_claimed_to_end_the_run_may_change_it(self) -> None:
        claims = {"tool_exception": "raises"}
        silent(self.rule, in_tool("c1", claims=claims).settles_tool("c1", "raised").fails("tool"))

    def test_the_last_turn_that_the_limit_allows_may_end_either_way(self) -> None:
        story = batch("c1", max_turns=1).runs("c1").cancels_run("listener of tool_end")
        silent(self.rule, story.fails("limit"))

    def test_a_running_tool_of_the_last_turn_is_cancelled_not_limited(self) -> None:
        breaks(self.rule, in_tool("c1", max_turns=1).settles_tool("c1").fails("limit"))

    def test_a_failing_listener_is_another_end(self) -> None:
        silent(self.rule, cut("The first ").listener_raises().fails("listener"))

    def test_it_is_hidden_where_no_way_to_tell_is_documented(self) -> None:
        hidden(self.rule, cut("The first ", observes=("events",)).fails("unknown"))

    def test_it_is_silent_where_a_queued_prompt_was_not_under_way(self) -> None:
        story = cut("The ").second().cancelled(1)
        story.hears("[prompt 2]").request(prompt=2).reply("Done.").completes("Done.")
        holds(self.rule, story)


class TestNoRequestAfter:
    """No request begins after the cancel call returned."""

    rule = "cancellation.no-request-after"

    def test_no_request_holds(self) -> None:
        holds(self.rule, in_tool("c1").settles_tool("c1").cancelled())

    def test_a_request_breaks(self) -> None:
        story = in_tool("c1").settles_tool("c1").answers("c1").request().reply("Done.").cancelled()
        assert "request 2 followed" in breaks(self.rule, story)

    def test_a_request_before_the_call_came_back_was_on_its_way(self) -> None:
        story = batch("c1").runs("c1").answers("c1").cancel_sent().request().cancel_returned()
        holds(self.rule, story.cancelled())

    def test_the_next_run_may_ask(self) -> None:
        holds(self.rule, cut("The first ").cancelled().again())

    def test_requests_of_the_targets_own_do_not_count(self) -> None:
        holds(self.rule, cut("The first ").request(serves="auxiliary").cancelled())

    def test_it_is_silent_without_a_cancellation(self) -> None:
        silent(self.rule, alone().reply("Done.").completes("Done."))

    def test_a_race_cannot_be_judged(self) -> None:
        hidden(self.rule, cut("The first ", grade="racing").request().cancelled())


class TestNoToolAfter:
    """No tool starts after the cancel call returned."""

    rule = "cancellation.no-tool-after"

    def test_no_start_holds(self) -> None:
        holds(self.rule, in_tool("c1", "c2").settles_tool("c1").cancelled())

    def test_a_start_breaks(self) -> None:
        story = in_tool("c1", "c2").settles_tool("c1").runs("c2").cancelled()
        assert "probe was entered for c2" in breaks(self.rule, story)

    def test_a_start_with_arguments_that_no_call_has_breaks(self) -> None:
        story = cut("I will look. ", call(0, "c1", '{"value": ')).strays('{"value": ""}').cancelled()
        assert "no known call" in breaks(self.rule, story)

    def test_a_start_in_the_middle_of_the_next_run_breaks(self) -> None:
        """The recovery prompt is the barrier that shows late activity."""
        story = in_tool("c1", "c2").settles_tool("c1").cancelled()
        breaks(self.rule, story.prompt(recovery=True).request().runs("c2").reply("Done.").completes())

    def test_it_is_silent_where_nothing_was_called(self) -> None:
        silent(self.rule, cut("The first ").cancelled())


class TestOutranksToolFailure:
    """A tool that fails after the cancellation does not let the model go on."""

    rule = "cancellation.outranks-tool-failure"

    def test_no_request_after_the_failure_holds(self) -> None:
        holds(self.rule, in_tool("c1").settles_tool("c1", "raised").cancelled())

    def test_a_request_after_the_failure_breaks(self) -> None:
        story = in_tool("c1").settles_tool("c1", "raised").answers("c1", is_error=True)
        assert "when c1 failed" in breaks(self.rule, story.request().reply("Sorry.").completes())

    def test_it_is_silent_where_the_tool_returns(self) -> None:
        silent(self.rule, in_tool("c1").settles_tool("c1").request().cancelled())

    def test_it_is_silent_where_the_tool_failed_before(self) -> None:
        silent(self.rule, batch("c1").runs("c1", "raised").cancels_run().cancelled())


class TestBeforeFirstRequest:
    """A run cancelled before its first request settles without requesting anything."""

    rule = "cancellation.before-first-request"

    def test_no_request_holds(self) -> None:
        holds(self.rule, Cut().prompt().cancels_run("before the first request").cancelled())

    def test_a_request_breaks(self) -> None:
        story = Cut().prompt().cancels_run("before the first request").request().cancelled()
        assert "request 1 came" in breaks(self.rule, story)

    def test_a_hang_breaks(self) -> None:
        breaks(self.rule, Cut().prompt().cancels_run("before the first request").hangs())

    def test_a_request_that_was_on_its_way_is_no_break(self) -> None:
        story = Cut().prompt().cancel_sent("with the prompt").request().cancel_returned()
        silent(self.rule, story.cancelled())

    def test_it_is_silent_after_the_first_request(self) -> None:
        silent(self.rule, cut("The first ").cancelled())


class TestUnstartedCall:
    """A call that had not started never runs and gets an error result."""

    rule = "cancellation.unstarted-call"

    def ended(self, **more: Any) -> Cut:
        return in_tool("c1", "c2", **more).settles_tool("c1").answers("c1")

    def test_an_error_result_holds(self) -> None:
        holds(self.rule, self.ended().aborts("c2").cancelled().history().again())

    def test_no_result_breaks(self) -> None:
        assert "there is none" in breaks(self.rule, self.ended().cancelled().again())

    def test_a_history_that_is_put_in_order_for_the_next_request_holds(self) -> None:
        holds(self.rule, self.ended().cancelled().history().aborts("c2").again())

    def test_a_history_at_rest_without_a_result_decides_nothing(self) -> None:
        hidden(self.rule, self.ended().cancelled().history())

    def test_a_result_that_is_not_marked_as_an_error_breaks(self) -> None:
        story = self.ended().answers("c2", text="skipped").cancelled().history()
        assert "not marked as one" in breaks(self.rule, story)

    def test_an_unmarked_result_is_no_break_where_marks_are_not_shown(self) -> None:
        story = self.ended(observes=("history",)).answers("c2", text="skipped")
        holds(self.rule, story.cancelled().history())

    def test_a_call_that_runs_later_breaks(self) -> None:
        story = self.ended().runs("c2").answers("c2").cancelled().history()
        assert "never to run call c2" in breaks(self.rule, story)

    def test_a_code_of_its_own_holds_where_codes_are_claimed(self) -> None:
        story = in_tool("c1", "c2", claims=CODED).settles_tool("c1").coded("c1", "ABORTED")
        holds(self.rule, story.coded("c2", "ABORTED_BEFORE_DISPATCH").cancelled().history())

    def test_no_code_breaks_where_codes_are_claimed(self) -> None:
        story = self.ended(claims=CODED).coded("c2", None).cancelled().history()
        assert "no code" in breaks(self.rule, story)

    def test_the_code_of_a_started_call_breaks(self) -> None:
        story = in_tool("c1", "c2", claims=CODED).settles_tool("c1").coded("c1", "ABORTED")
        assert "had started" in breaks(self.rule, story.coded("c2", "ABORTED").cancelled().history())

    def test_a_call_of_a_tool_that_is_not_there_may_have_been_answered_for_that(self) -> None:
        story = alone(CODED).reply(call(0, "c1", name="no_such_tool"), call(1, "c2"), reason="toolUse")
        story.coded("c1", None).starts_tool("c2").cancels_run().settles_tool("c2").answers("c2")
        holds(self.rule, story.cancelled().history())

    def test_it_is_silent_where_the_reply_was_cut(self) -> None:
        silent(self.rule, cut("I will look. ", call(0, "c1")).cancelled().history())

    def test_it_is_silent_where_every_call_had_started(self) -> None:
        silent(self.rule, in_tool("c1").settles_tool("c1").answers("c1").cancelled().history())

    def test_calls_with_one_id_are_left_to_another_rule(self) -> None:
        silent(self.rule, in_tool("c1", "x", "x").settles_tool("c1").answers("c1").cancelled().history())

    def test_it_is_hidden_where_no_result_can_be_seen(self) -> None:
        hidden(self.rule, self.ended().cancelled())

    def test_a_listener_in_another_process_may_have_cancelled_before_the_end_of_the_reply(self) -> None:
        story = batch("c1", "c2", grade="event").cancels_run("in the listener, on text_delta")
        hidden(self.rule, story.cancelled().history())


class TestReachesProvider:
    """The stream sees the signal, or its connection is closed."""

    rule = "cancellation.reaches-provider"

    def test_a_signal_holds(self) -> None:
        holds(self.rule, cut("The first ").provider_sees().cancelled())

    def test_a_closed_connection_holds(self) -> None:
        holds(self.rule, cut("The first ").closed().cancelled())

    def test_a_stream_that_stays_open_breaks(self) -> None:
        assert "it stayed open" in breaks(self.rule, cut("The first ").cancelled().closed("bench"))

    def test_a_stream_that_is_read_to_its_end_breaks(self) -> None:
        story = cut("The first ").sent("point.", Reason("stop"), Terminator()).closed().cancelled()
        assert "sent to its end" in breaks(self.rule, story)

    def test_a_reply_that_was_over_too_soon_hides_it_where_closing_takes_time(self) -> None:
        story = cut("The first ", grade="event").sent("point.", Reason("stop"), Terminator())
        hidden(self.rule, story.closed().cancelled())

    def test_it_is_silent_where_the_reply_was_over(self) -> None:
        silent(self.rule, in_tool("c1").settles_tool("c1").cancelled())


class TestReachesTools:
    """A running tool sees the signal."""

    rule = "cancellation.reaches-tools"

    def test_a_signal_holds(self) -> None:
        holds(self.rule, in_tool("c1", claims=SIGNAL).tool_sees("c1").settles_tool("c1").cancelled())

    def test_a_cancelled_task_holds(self) -> None:
        holds(self.rule, in_tool("c1", claims=SIGNAL).settles_tool("c1", "cancelled").cancelled())

    def test_no_signal_breaks(self) -> None:
        assert "saw no signal" in breaks(self.rule, in_tool("c1", claims=SIGNAL).hangs())

    def test_a_tool_that_returned_unaware_breaks_where_nothing_moves_by_itself(self) -> None:
        breaks(self.rule, in_tool("c1", claims=SIGNAL).settles_tool("c1").cancelled())

    def test_a_tool_that_returned_soon_is_not_judged_where_signals_take_time(self) -> None:
        silent(self.rule, in_tool("c1", claims=SIGNAL, grade="event").settles_tool("c1").cancelled())

    def test_it_is_silent_where_no_tool_runs(self) -> None:
        silent(self.rule, batch("c1", claims=SIGNAL).runs("c1").cancels_run().cancelled())

    def test_it_is_hidden_where_tools_are_not_shown_the_signal(self) -> None:
        hidden(self.rule, in_tool("c1", claims=SIGNAL, observes=("events",)).hangs())


class TestReturnsAtOnce:
    """The cancel call does not wait for the run."""

    rule = "cancellation.returns-at-once"

    def waiting(self) -> Cut:
        return batch("c1").starts_tool("c1").cancel_sent().settles_tool("c1")

    def test_returning_before_the_run_has_settled_holds(self) -> None:
        holds(self.rule, in_tool("c1").settles_tool("c1").cancelled())

    def test_returning_after_the_tool_and_the_run_breaks(self) -> None:
        assert "only after run 1" in breaks(self.rule, self.waiting().cancelled().cancel_returned())

    def test_never_returning_breaks(self) -> None:
        assert "never did" in breaks(self.rule, self.waiting().cancelled())

    def test_returning_just_after_the_settlement_may_be_chance(self) -> None:
        silent(self.rule, alone().sent("The ").cancel_sent().cancelled().cancel_returned())

    def test_it_is_silent_without_a_cancellation(self) -> None:
        silent(self.rule, alone().reply("Done.").completes("Done."))


class TestFreshSignal:
    """A signal never leaks into the next run."""

    rule = "cancellation.fresh-signal"

    def test_an_untouched_next_run_holds(self) -> None:
        holds(self.rule, cut("The first ").cancelled().again())

    def test_a_signal_in_the_next_run_breaks(self) -> None:
        story = cut("The first ").cancelled().prompt().request().provider_sees().reply("Done.")
        assert "saw a signal" in breaks(self.rule, story.completes())

    def test_a_next_run_that_is_told_as_cancelled_breaks(self) -> None:
        assert "told as cancelled" in breaks(self.rule, cut("The ").cancelled().prompt().cancelled())

    def test_an_idle_cancellation_must_not_leak_either(self) -> None:
        breaks(self.rule, Cut().cancels_run("idle").prompt().cancelled())

    def test_it_is_silent_without_a_cancellation(self) -> None:
        silent(self.rule, alone().reply("Done.").completes().again())

    def test_it_is_silent_where_the_next_run_is_cancelled_too(self) -> None:
        silent(self.rule, cut("The ").cancelled().prompt().request().cancels_run().cancelled())


class TestBusyUntilSettled:
    """A prompt between cancellation and settlement is treated as one while running."""

    rule = "cancellation.busy-until-settled"

    def second(self, claim: str) -> Cut:
        return in_tool("c1", claims={"concurrent_prompt": claim, **WAITS}).second()

    def test_refusing_holds_where_that_is_claimed(self) -> None:
        holds(self.rule, self.second("refused").refused().settles_tool("c1").cancelled(1))

    def test_running_it_breaks_where_refusing_is_claimed(self) -> None:
        story = self.second("refused").hears("[prompt 2]").request().reply("Done.").completes()
        assert "to be refused" in breaks(self.rule, story.settles_tool("c1").cancelled(1))

    def test_queueing_holds_where_that_is_claimed(self) -> None:
        story = self.second("queued").settles_tool("c1").cancelled(1)
        holds(self.rule, story.hears("[prompt 2]").request().reply("Done.").completes())

    def test_a_request_while_the_tool_runs_breaks_where_queueing_is_claimed(self) -> None:
        story = self.second("queued").hears("[prompt 2]").request().reply("Done.").completes()
        breaks(self.rule, story.settles_tool("c1").cancelled(1))

    def test_losing_it_breaks_where_queueing_is_claimed(self) -> None:
        story = self.second("queued").settles_tool("c1").cancelled(1).cancelled(2)
        assert "no request was ever made" in breaks(self.rule, story)

    def test_refusing_breaks_where_running_apart_is_claimed(self) -> None:
        breaks(self.rule, self.second("apart").refused().settles_tool("c1").cancelled(1))

    def test_it_is_silent_where_the_prompt_came_before_the_cancellation(self) -> None:
        claims = {"concurrent_prompt": "refused"}
        story = batch("c1", claims=claims).starts_tool("c1").second().refused().cancels_run()
        silent(self.rule, story.settles_tool("c1").cancelled(1))


class TestIdle:
    """Cancelling while idle changes nothing, now or in the next run."""

    rule = "cancellation.idle"

    def told(self, member: str, idle: bool, **header: Any) -> Cut:
        story = family(member, self.rule, **header).prompt().request().reply("One.").completes("One.")
        return story.cancels_run("idle") if idle else story

    def test_the_same_runs_hold(self) -> None:
        one, two = self.told("without", False).again(), self.told("with", True).again()
        holds(self.rule, one, two)

    def test_another_outcome_breaks(self) -> None:
        words = breaks(
            self.rule, self.told("without", False).again(), self.told("with", True).prompt().cancelled()
        )
        assert "the outcome is failed (cancelled) instead of completed" in words

    def test_another_message_in_the_next_request_breaks(self) -> None:
        other = self.told("with", True).hears("[interrupted by user]").again()
        assert "request 2 has" in breaks(self.rule, self.told("without", False).again(), other)

    def test_another_tool_breaks(self) -> None:
        def run(member: str, idle: bool) -> Cut:
            return self.told(member, idle).prompt().request().reply(call(0, "c1"), reason="toolUse")

        one = run("without", False).runs("c1").answers("c1").done()
        two = run("with", True).answers("c1").done()
        assert "the tools started are []" in breaks(self.rule, one, two)

    def test_it_is_silent_where_the_cancellation_met_a_run(self) -> None:
        other = family("with", self.rule).prompt().request().cancels_run().cancelled()
        silent(self.rule, self.told("without", False), other)

    def test_it_is_silent_for_one_member(self) -> None:
        silent(self.rule, self.told("with", True).again())

    def test_a_race_cannot_be_judged(self) -> None:
        hidden(self.rule, self.told("without", False), self.told("with", True, grade="racing"))


class TestTwice:
    """A second cancellation changes nothing."""

    rule = "cancellation.twice"

    def told(self, member: str, times: int) -> Cut:
        story = family(member, self.rule).prompt().request().reply(call(0, "c1"), reason="toolUse")
        story.starts_tool("c1")
        for _ in range(times):
            story.cancels_run("tool c1, start 1")
        return story.settles_tool("c1")

    def test_the_same_runs_hold(self) -> None:
        one = self.told("once", 1).answers("c1").cancelled().again()
        holds(self.rule, one, self.told("twice", 2).answers("c1").cancelled().again())

    def test_a_replaced_result_breaks(self) -> None:
        one = self.told("once", 1).answers("c1").cancelled().again()
        words = breaks(self.rule, one, self.told("twice", 2).aborts("c1").cancelled().again())
        assert "'aborted'" in words

    def test_a_hang_breaks(self) -> None:
        assert "a hang" in breaks(self.rule, self.told("once", 1).cancelled(), self.told("twice", 2).hangs())

    def test_figures_in_a_result_may_differ(self) -> None:
        def story(member: str, times: int, text: str) -> Cut:
            return self.told(member, times).answers("c1", text=text, is_error=True).cancelled().again()

        holds(self.rule, story("once", 1, "aborted after 0.3 s"), story("twice", 2, "aborted after 12 s"))

    def test_it_is_silent_where_nobody_cancelled_twice(self) -> None:
        silent(self.rule, self.told("once", 1).cancelled(), self.told("never", 0).completes())


def test_all_rules_of_the_chapter_are_here() -> None:
    """Each rule of the chapter has a class of tests that names it."""
    named = {item.rule for item in globals().values() if hasattr(item, "rule") and isinstance(item.rule, str)}
    assert named == {name for name in RULES if name.startswith("cancellation.")}
