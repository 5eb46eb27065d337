"""The chapter limits: how many requests a run may make, told in traces."""

import pytest
from build_completion import Story, breaks, call, hidden, holds, silent

from loopspec.rules import RULES
from loopspec.vocabulary import ToolResult

CLAIM = {"max_turns": "fails"}


def limited(limit: float, turns: int, claims: dict[str, str] | None = None, **header: object) -> Story:
    """A run under a limit that had so many turns with a call each."""
    story = Story(CLAIM if claims is None else claims, max_turns=limit, **header)
    return with_turns(story.prompt(), turns)


def with_turns(story: Story, turns: int) -> Story:
    """So many turns with one call each, answered."""
    for _ in range(turns):
        name = f"c{story.requests + 1}"
        story.request().reply(call(0, name)).tool(name)
    return story


class TestRequestsCounted:
    """With a limit of 1, 2, 3 and calls in every reply: exactly 1, 2, 3 requests."""

    rule = "limits.requests-counted"

    def member(self, limit: int, turns: int) -> Story:
        return limited(limit, turns, family=self.rule, member=str(limit)).fails("limit")

    def test_as_many_requests_as_the_limit_hold(self) -> None:
        holds(self.rule, *(self.member(n, n) for n in (1, 2, 3)))

    def test_a_family_may_have_a_name_of_its_own_after_the_rule_s(self) -> None:
        header = {"family": f"{self.rule}/deaf", "member": "1"}
        holds(self.rule, limited(1, 1, **header).fails("limit"))

    @pytest.mark.parametrize("off", [-1, 1])
    def test_one_more_or_one_less_breaks(self, off: int) -> None:
        words = breaks(self.rule, self.member(1, 1), self.member(2, 2 + off))
        assert "exactly 2" in words
        assert f"made {2 + off}" in words

    def test_the_break_names_the_member(self) -> None:
        stories = [self.member(1, 1), self.member(2, 3)]
        found = list(RULES[self.rule].check([story.index() for story in stories]))
        assert [item.member for item in found] == ["2"]

    def test_other_families_answers_and_cancelled_runs_are_silent(self) -> None:
        silent(self.rule, limited(1, 2).fails("limit"))
        header = {"family": self.rule, "member": "3"}
        silent(self.rule, limited(3, 1, **header).request().reply("Done.").completes("Done."))
        silent(self.rule, limited(3, 1, **header).cancel().fails("cancelled"))


class TestCheckedBeforeRequest:
    """The run ends before request n+1, and the results of turn n are in history."""

    rule = "limits.checked-before-request"

    def test_ending_with_the_results_kept_holds(self) -> None:
        holds(self.rule, limited(2, 2).fails("limit").history())

    def test_one_request_more_breaks(self) -> None:
        story = limited(2, 2).request().reply("Done.").completes("Done.")
        assert "before request 3" in breaks(self.rule, story)

    def test_a_result_that_is_lost_breaks(self) -> None:
        assert "c2" in breaks(self.rule, limited(2, 2).fails("limit").history("c2"))

    def test_without_history_the_next_request_shows_it(self) -> None:
        def story(lost: bool) -> Story:
            first = limited(1, 1, observes=("limit",)).fails("limit")
            if lost:
                first.messages = [m for m in first.messages if not isinstance(m, ToolResult)]
            return first.prompt(recovery=True).request().reply("Done.").completes("Done.")

        holds(self.rule, story(lost=False))
        assert "request 2 lacks" in breaks(self.rule, story(lost=True))

    def test_without_either_it_is_hidden(self) -> None:
        assert "history" in hidden(self.rule, limited(1, 1, observes=("limit",)).fails("limit"))

    def test_a_hang_at_the_limit_breaks(self) -> None:
        assert "hung" in breaks(self.rule, limited(1, 1).hangs())

    def test_answers_cancellations_and_failing_tools_are_silent(self) -> None:
        story = limited(2, 1).request().reply("Done.").completes("Done.").history()
        silent(self.rule, story)
        silent(self.rule, limited(1, 1).cancel().fails("cancelled").history())
        story = Story(CLAIM, max_turns=1).prompt().request().reply(call(0, "c1"))
        silent(self.rule, story.tool("c1", "raised").fails("tool").history())
        story = Story(CLAIM, max_turns=1).prompt().request().reply(call(0, "c1"))
        silent(self.rule, story.start("c1").hangs())

    def test_a_run_without_a_limit_is_silent(self) -> None:
        silent(self.rule, with_turns(Story(CLAIM).prompt(), 3).fails("provider").history())


class TestNeverSuccess:
    """A run ended by its limit is not reported as completed."""

    rule = "limits.never-success"

    def test_told_as_failed_holds_in_any_form_and_with_any_reason(self) -> None:
        holds(self.rule, limited(2, 2, claims={}).fails("limit"))
        holds(self.rule, limited(2, 2, claims={}).fails("unknown", "returned"))

    def test_told_as_completed_breaks(self) -> None:
        words = breaks(self.rule, limited(2, 2, claims={}).completes("I look. "))
        assert "limit of 2" in words
        assert "completed" in words

    def test_hangs_answers_cancellations_and_early_ends_are_silent(self) -> None:
        silent(self.rule, limited(1, 1).hangs())
        silent(self.rule, limited(2, 1).request().reply("Done.").completes("Done."))
        silent(self.rule, limited(1, 1).cancel().completes())
        silent(self.rule, limited(2, 1).completes())

    def test_a_target_without_limits_is_silent(self) -> None:
        silent(self.rule, limited(1, 1, claims={}, observes=()).completes())


class TestAnswerOnLastTurn:
    """An answer on turn n completes."""

    rule = "limits.answer-on-last-turn"

    def test_completing_holds(self) -> None:
        holds(self.rule, limited(2, 1).request().reply("Done.").completes("Done."))

    def test_failing_or_hanging_breaks(self) -> None:
        assert "last of 2" in breaks(self.rule, limited(2, 1).request().reply("Done.").fails("limit"))
        breaks(self.rule, limited(2, 1).request().reply("Done.").hangs())

    def test_earlier_answers_calls_and_cancellations_are_silent(self) -> None:
        silent(self.rule, limited(3, 1).request().reply("Done.").completes("Done."))
        silent(self.rule, limited(2, 2).fails("limit"))
        silent(self.rule, limited(2, 1).request().reply("Done.").cancel().fails("cancelled"))


class TestCounterIsPerRun:
    """The next prompt starts from zero."""

    rule = "limits.counter-is-per-run"

    def test_a_second_run_with_all_its_turns_holds(self) -> None:
        story = limited(2, 2).fails("limit").prompt()
        holds(self.rule, with_turns(story, 1).request().reply("Done.").completes("Done."))
        holds(self.rule, with_turns(limited(2, 2).fails("limit").prompt(), 2).fails("limit"))

    def test_a_second_run_that_asks_nothing_breaks(self) -> None:
        story = limited(2, 2).fails("limit").prompt(recovery=True).fails("unknown")
        assert "start from zero" in breaks(self.rule, story)

    def test_a_second_run_that_is_cut_short_breaks(self) -> None:
        story = with_turns(limited(3, 2).request().reply("Done.").completes().prompt(), 1)
        assert "made 1" in breaks(self.rule, story.fails("unknown"))

    def test_what_a_living_counter_would_allow_too_is_silent(self) -> None:
        story = limited(5, 1).request().reply("Done.").completes().prompt().request()
        silent(self.rule, story.reply("Done.").completes("Done."))
        silent(self.rule, limited(2, 2).fails("limit"))

    def test_cancelled_forked_and_refused_prompts_are_silent(self) -> None:
        silent(self.rule, limited(1, 1).fails("limit").prompt().cancel().fails("cancelled"))
        silent(self.rule, limited(1, 1).fails("limit").prompt(fork=True).fails("limit"))
        silent(self.rule, limited(1, 1).fails("limit").prompt().fails("busy", outcome="refused"))


@pytest.mark.parametrize("limit", [0, -1, 1.5])
class TestInvalidLimit:
    """A limit that is not a positive whole number is refused before anything happens."""

    rule = "limits.invalid-limit"

    def test_refusing_or_failing_at_once_holds(self, limit: float) -> None:
        holds(self.rule, Story(max_turns=limit).prompt().fails("invalid", outcome="refused"))
        holds(self.rule, Story(max_turns=limit).prompt().fails("unknown"))

    def test_a_request_breaks(self, limit: float) -> None:
        story = Story(max_turns=limit).prompt().request().reply("Done.").completes("Done.")
        assert f"a limit of {limit}" in breaks(self.rule, story)

    def test_success_without_a_request_or_a_hang_breaks(self, limit: float) -> None:
        breaks(self.rule, Story(max_turns=limit).prompt().completes(""))
        breaks(self.rule, Story(max_turns=limit).prompt().hangs())

    def test_a_target_without_limits_hides_it(self, limit: float) -> None:
        story = Story(max_turns=limit, observes=()).prompt().request().reply("Done.").completes()
        assert "no turn limit" in hidden(self.rule, story)

    def test_valid_limits_are_silent(self, limit: float) -> None:
        for valid in (None, 1, 2.0):
            silent(self.rule, Story(max_turns=valid).prompt().request().reply("Done.").completes())
