"""The chapter run, told in traces."""

from __future__ import annotations

from typing import Any

import pytest
from build_cancellation import Cut, alone, batch, breaks, call, cut, hidden, holds, silent

from loopspec.rules import RULES, Broke
from loopspec.trace import Finding
from loopspec.vocabulary import Reason, Terminator

REFUSED = {"concurrent_prompt": "refused"}
QUEUED = {"concurrent_prompt": "queued"}
APART = {"concurrent_prompt": "apart"}
FAILS = {"listener_failure": "fails"}
IGNORED = {"listener_failure": "ignored"}


def found(rule: str, story: Cut) -> str:
    """The words of the breaks of a story in which the rule also holds somewhere."""
    return "; ".join(i.words for i in RULES[rule].check(story.index()) if isinstance(i, Broke))


def failed(**header: Any) -> Cut:
    """A run whose stream broke, and that was told as failed."""
    return alone(**header).sent("Half of ").fault("error", "overloaded").fails()


class TestReleased:
    """After every settlement the loop is idle and accepts a prompt."""

    rule = "run.released"

    def test_an_accepted_prompt_holds(self) -> None:
        holds(self.rule, failed().again())

    def test_a_refused_prompt_breaks(self) -> None:
        words = breaks(self.rule, failed().prompt().refused(message="a run is active"))
        assert "a run is active" in words

    def test_a_prompt_that_is_never_taken_up_breaks(self) -> None:
        assert "never taken up" in breaks(self.rule, failed().prompt().hangs())

    def test_a_prompt_that_is_refused_as_invalid_is_no_sign_of_business(self) -> None:
        holds(self.rule, failed().prompt().fails("invalid", outcome="refused"))

    def test_a_run_that_hung_is_still_running(self) -> None:
        silent(self.rule, cut("The ").hangs().prompt().refused())

    def test_a_prompt_while_running_is_another_rules_business(self) -> None:
        story = batch("c1").starts_tool("c1").second().refused().settles_tool("c1").answers("c1")
        silent(self.rule, story.request(prompt=1).reply("Done.").completes(prompt=1))

    def test_it_is_silent_for_the_last_run(self) -> None:
        silent(self.rule, failed())


class TestRecovers:
    """The next prompt after any failure sends a valid request and completes."""

    rule = "run.recovers"

    def test_a_completed_prompt_holds(self) -> None:
        holds(self.rule, failed().again())

    def test_a_prompt_that_fails_at_once_breaks(self) -> None:
        words = breaks(self.rule, failed().prompt().fails("unknown", message="tool results are missing"))
        assert "tool results are missing" in words
        assert "without asking" in words

    def test_a_request_that_the_api_refuses_breaks(self) -> None:
        story = failed().prompt().request(findings=(Finding("A1", "no tool_result for c1"),))
        assert "A1: no tool_result for c1" in breaks(self.rule, story.fault("status").fails())

    def test_a_hang_breaks(self) -> None:
        assert "never settled" in breaks(self.rule, failed().prompt().request().reply("Done.").hangs())

    def test_a_next_run_with_troubles_of_its_own_is_not_judged(self) -> None:
        silent(self.rule, failed().prompt().request().sent("Do").fault("error").fails())
        silent(self.rule, failed().prompt().request().sent("Do").cancels_run().cancelled())

    def test_it_is_silent_after_a_success(self) -> None:
        silent(self.rule, alone().reply("Done.").completes().prompt().fails())

    def test_it_is_silent_for_settings_that_are_refused(self) -> None:
        silent(self.rule, failed().prompt().fails("invalid"))


class TestNoLateActivity:
    """After settlement nothing more is asked, started, told or recorded for that run."""

    rule = "run.no-late-activity"

    def test_nothing_more_holds(self) -> None:
        holds(self.rule, cut("The first ").cancelled().history().again())

    def test_a_late_request_breaks(self) -> None:
        story = cut("The ").cancelled().prompt(recovery=True).request(prompt=1).request()
        assert "request 2" in found(self.rule, story.reply("Done.").completes())

    def test_a_late_tool_breaks(self) -> None:
        story = cut("I will ", call(0, "c1")).cancelled().runs("c1")
        assert "for call 'c1'" in breaks(self.rule, story)

    def test_a_late_tool_breaks_in_the_middle_of_the_next_run(self) -> None:
        story = cut("I will ", call(0, "c1")).cancelled().prompt(recovery=True).request().runs("c1")
        assert "run 1 had settled" in found(self.rule, story.reply("Done.").completes())

    def test_a_late_tool_with_other_arguments_breaks(self) -> None:
        breaks(self.rule, cut("I will ", call(0, "c1")).cancelled().strays("{}"))

    def test_a_late_event_breaks(self) -> None:
        assert "text_delta" in breaks(self.rule, cut("The first ").cancelled().delta("point"))

    def test_the_end_of_the_run_may_be_what_settles_it(self) -> None:
        holds(self.rule, alone().reply("Done.").completes(form="told").told("run_end"))
        breaks(self.rule, alone().reply("Done.").completes().told("run_end"))

    def test_a_late_message_breaks(self) -> None:
        story = cut("The first ").cancelled().history().keeps("The first ").prompt(recovery=True)
        words = found(self.rule, story.request().reply("Done.").completes().history())
        assert "recorded afterwards" in words

    def test_a_result_for_a_call_that_had_none_is_a_repair(self) -> None:
        story = batch("c1").starts_tool("c1").cancels_run().settles_tool("c1").cancelled().history()
        holds(
            self.rule, story.aborts("c1").prompt(recovery=True).request().reply("Done.").completes().history()
        )

    def test_events_of_a_queued_run_are_its_own(self) -> None:
        story = batch("c1").starts_tool("c1").second().cancels_run().settles_tool("c1").cancelled(1)
        story.hears("[prompt 2]").request().delta("Done.").reply("Done.").completes()
        holds(self.rule, story)

    def test_it_is_silent_for_a_run_that_never_settled(self) -> None:
        silent(self.rule, cut("The first ").hangs().delta("point"))


class TestUnexpectedStreamException:
    """The run fails and is released."""

    rule = "run.unexpected-stream-exception"

    def broken(self, fault: str = "disconnect") -> Cut:
        return alone().sent("Half of ").fault(fault)

    @pytest.mark.parametrize("fault", ["error", "disconnect", "malformed", "status"])
    def test_a_failed_run_holds(self, fault: str) -> None:
        holds(self.rule, self.broken(fault).fails().again())

    def test_a_completed_run_breaks(self) -> None:
        assert "but it completed" in breaks(self.rule, self.broken().completes("Half of "))

    def test_a_hang_breaks(self) -> None:
        assert "never settled" in breaks(self.rule, self.broken().hangs())

    def test_a_loop_that_stays_busy_breaks(self) -> None:
        assert "prompt 2 was refused" in breaks(self.rule, self.broken().fails().prompt().refused())

    def test_another_attempt_is_judged_by_its_own_end(self) -> None:
        silent(self.rule, self.broken().request().reply("Done.").completes())

    def test_a_reply_that_had_told_its_reason_is_another_rules_business(self) -> None:
        silent(self.rule, alone().sent("Done.", Reason("stop")).fault("disconnect").completes())

    def test_a_clean_end_is_no_exception(self) -> None:
        silent(self.rule, self.broken("end").completes())

    def test_it_is_silent_after_a_cancellation(self) -> None:
        silent(self.rule, cut("Half of ").fault("disconnect").cancelled())


class TestBusy:
    """A second prompt while running is refused without a trace, or waits, or runs apart."""

    rule = "run.busy"

    def second(self, claims: dict[str, str]) -> Cut:
        return batch("c1", claims=claims).starts_tool("c1").second()

    def finish(self, story: Cut) -> Cut:
        story.settles_tool("c1").answers("c1").request(prompt=1)
        return story.reply("Done.").completes(prompt=1)

    def test_refusing_holds_where_that_is_claimed(self) -> None:
        holds(self.rule, self.finish(self.second(REFUSED).refused()).again())

    def test_a_failure_that_the_manifest_does_not_map_is_a_refusal(self) -> None:
        holds(self.rule, self.finish(self.second(REFUSED).fails("unknown")))

    def test_running_it_breaks_where_refusing_is_claimed(self) -> None:
        story = self.second(REFUSED).hears("[prompt 2]").request().reply("Two.").completes()
        assert "request 2 was made for it" in breaks(self.rule, self.finish(story))

    def test_refusing_it_late_breaks(self) -> None:
        assert "at once" in breaks(self.rule, self.finish(self.second(REFUSED)).refused())

    def test_a_refused_prompt_that_stays_in_history_breaks(self) -> None:
        story = self.finish(self.second(REFUSED).refused()).hears("[prompt 2]").again()
        assert "stands in request 3" in breaks(self.rule, story)

    def test_waiting_holds_where_queueing_is_claimed(self) -> None:
        story = self.finish(self.second(QUEUED)).hears("[prompt 2]").request()
        holds(self.rule, story.reply("Two.").completes())

    def test_waiting_ends_when_the_work_does_not_when_the_caller_hears_of_it(self) -> None:
        story = self.second(QUEUED).settles_tool("c1").answers("c1").request(prompt=1).reply("Done.")
        story.hears("[prompt 2]").request().completes(prompt=1)
        holds(self.rule, story.reply("Two.").completes())

    def test_a_request_at_once_breaks_where_queueing_is_claimed(self) -> None:
        story = self.second(QUEUED).hears("[prompt 2]").request().reply("Two.").completes()
        assert "while run 1 was at work" in breaks(self.rule, self.finish(story))

    def test_refusing_breaks_where_queueing_is_claimed(self) -> None:
        breaks(self.rule, self.finish(self.second(QUEUED).refused()))

    def test_a_request_at_once_holds_where_running_apart_is_claimed(self) -> None:
        story = self.second(APART).hears("[prompt 2]").request().reply("Two.").completes()
        holds(self.rule, self.finish(story))

    def test_a_hang_breaks_where_running_apart_is_claimed(self) -> None:
        story = self.second(APART).hears("[prompt 2]").request()
        assert "never settled" in breaks(self.rule, self.finish(story.hung(2)))

    def test_it_is_silent_where_prompts_do_not_meet(self) -> None:
        silent(self.rule, alone(REFUSED).reply("Done.").completes().again())

    def test_it_is_silent_after_a_cancellation(self) -> None:
        story = batch("c1", claims=REFUSED).starts_tool("c1").cancels_run().second().refused()
        silent(self.rule, story.settles_tool("c1").cancelled(1))


class TestConcurrentPromptsDoNotCorrupt:
    """Two prompts at once never lose a message, split a call from its result, or end each other."""

    rule = "run.concurrent-prompts-do-not-corrupt"

    def both(self, claims: dict[str, str] | None = None) -> Cut:
        """The second prompt is served after the first, with one history."""
        story = batch("c1", claims=claims).starts_tool("c1").second().settles_tool("c1").answers("c1")
        story.request(prompt=1).reply("One.").completes(prompt=1).hears("[prompt 2]").request()
        return story.reply("Two.").completes()

    def test_a_whole_history_holds(self) -> None:
        holds(self.rule, self.both().again())

    def test_a_refused_prompt_holds(self) -> None:
        story = batch("c1").starts_tool("c1").second().refused().settles_tool("c1").answers("c1")
        holds(self.rule, story.request(prompt=1).reply("One.").completes(prompt=1).again())

    def test_a_lost_prompt_breaks(self) -> None:
        story = self.both().drops(lambda m: getattr(m, "text", "") == "[prompt 2]").again()
        assert "lost prompt 2" in breaks(self.rule, story)

    def test_a_lost_answer_breaks(self) -> None:
        story = self.both().drops(lambda m: getattr(m, "text", "") == "One.").again()
        assert "lost the answer 'One.'" in breaks(self.rule, story)

    def test_a_prompt_between_call_and_result_breaks(self) -> None:
        story = batch("c1").starts_tool("c1").second().hears("[prompt 2]").settles_tool("c1")
        story.answers("c1").request(prompt=1).reply("One.").completes(prompt=1).completes()
        assert "between call c1 and its result" in breaks(self.rule, story)

    def test_a_run_that_is_ended_by_the_other_breaks(self) -> None:
        story = alone().second().refused().completes(prompt=1).sent("One.", Reason("stop"), Terminator())
        assert "settled while its request 1 was open" in breaks(self.rule, story)

    def test_a_failure_without_a_cause_breaks(self) -> None:
        story = batch("c1").starts_tool("c1").second().refused().settles_tool("c1").answers("c1")
        story.request(prompt=1).reply("One.").fails("unknown", message="locked", prompt=1)
        assert "locked" in breaks(self.rule, story)

    def test_histories_apart_need_not_have_each_others_prompts(self) -> None:
        story = self.both(APART).drops(lambda m: getattr(m, "text", "") == "[prompt 2]").again()
        holds(self.rule, story)

    def test_it_is_silent_where_prompts_do_not_meet(self) -> None:
        silent(self.rule, alone().reply("Done.").completes().again())


class TestListenerFailure:
    """An exception in a listener fails the run, or is ignored, as claimed."""

    rule = "run.listener-failure"

    def raised(self, claims: dict[str, str]) -> Cut:
        return alone(claims).sent("The ").delta("The ").listener_raises()

    def test_a_failed_run_holds_where_that_is_claimed(self) -> None:
        holds(self.rule, self.raised(FAILS).fails("listener"))

    def test_a_completed_run_breaks_where_failing_is_claimed(self) -> None:
        assert "it completed" in breaks(self.rule, self.raised(FAILS).reply("answer.").completes())

    def test_a_completed_run_holds_where_ignoring_is_claimed(self) -> None:
        holds(self.rule, self.raised(IGNORED).reply("answer.").completes())

    def test_a_failed_run_breaks_where_ignoring_is_claimed(self) -> None:
        assert "ignore it" in breaks(self.rule, self.raised(IGNORED).fails("listener"))

    def test_a_run_that_fails_for_another_cause_is_not_judged(self) -> None:
        silent(self.rule, self.raised(IGNORED).fault("error").fails())
        silent(self.rule, alone(FAILS).sent("The ").fault("error").listener_raises().completes())

    def test_a_listener_that_raises_on_the_end_itself_may_be_too_late(self) -> None:
        story = alone(FAILS).reply("Done.").told("run_end").listener_raises()
        silent(self.rule, story.completes())

    def test_it_is_silent_after_a_cancellation(self) -> None:
        silent(self.rule, self.raised(FAILS).cancels_run().completes())

    def test_it_is_silent_where_no_listener_raised(self) -> None:
        silent(self.rule, alone(FAILS).reply("Done.").completes())


class TestListenerFailureContained:
    """Either way the run is released and every call paired."""

    rule = "run.listener-failure-contained"

    def raised(self, **header: Any) -> Cut:
        """A listener raises when the first of two tools has ended."""
        story = batch("c1", "c2", **header).runs("c1")
        return story.told("tool_end", call_id="c1").listener_raises().answers("c1")

    def test_paired_calls_and_an_accepted_prompt_hold(self) -> None:
        holds(self.rule, self.raised().aborts("c2").fails("listener").again())

    def test_a_call_without_a_result_breaks(self) -> None:
        assert "none for c2" in breaks(self.rule, self.raised().fails("listener").again())

    def test_history_shows_it_where_no_request_follows(self) -> None:
        assert "history has none for c2" in breaks(self.rule, self.raised().fails("listener").history())

    def test_a_loop_that_stays_busy_breaks(self) -> None:
        story = self.raised().aborts("c2").fails("listener").prompt().refused()
        assert "to be released" in breaks(self.rule, story)

    def test_a_hang_breaks(self) -> None:
        assert "never did" in breaks(self.rule, self.raised().hangs())

    def test_a_run_may_wait_for_its_tools_for_ever(self) -> None:
        silent(self.rule, batch("c1").starts_tool("c1").listener_raises().hangs())

    def test_calls_of_a_reply_that_was_dropped_need_no_result(self) -> None:
        story = alone().sent("I will ", call(0, "c1")).listener_raises().fails("listener").again()
        holds(self.rule, story)

    def test_it_is_silent_where_no_listener_raised(self) -> None:
        silent(self.rule, batch("c1").tool("c1").done())

    def test_it_is_hidden_where_nothing_is_shown(self) -> None:
        hidden(self.rule, self.raised(observes=("events",)).fails("listener"))


def test_all_rules_of_the_chapter_are_here() -> None:
    """Each rule of the chapter has a class of tests that names it."""
    named = {item.rule for item in globals().values() if hasattr(item, "rule") and isinstance(item.rule, str)}
    assert named == {name for name in RULES if name.startswith("run.")}
