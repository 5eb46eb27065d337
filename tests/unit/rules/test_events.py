"""The chapter events, told in traces."""

from __future__ import annotations

from typing import Any

import pytest
from build_cancellation import Cut, alone, batch, breaks, call, cut, hidden, holds, silent

from loopspec.rules import RULES, Broke
from loopspec.vocabulary import Reason, Terminator

BLIND = ("history",)
BOTH = {"brackets": "both"}


def told(*events: str, claims: dict[str, str] | None = None, **header: Any) -> Cut:
    """A prompt, its request, and events told after it: ``type`` or ``type:role-or-id``."""
    return tell(alone(claims, **header), *events)


def tell(story: Cut, *events: str) -> Cut:
    """More events; what follows the colon is a call's id for tools and a role for messages."""
    for event in events:
        kind, _, what = event.partition(":")
        field = "call_id" if kind.startswith(("tool", "call")) else "role"
        story.told(kind, **({field: what} if what else {}))
    return story


def found(rule: str, story: Cut) -> str:
    """The words of the breaks of a story in which the rule also holds somewhere."""
    return "; ".join(i.words for i in RULES[rule].check(story.index()) if isinstance(i, Broke))


class TestOneEndEach:
    """Every start has one end, in order."""

    rule = "events.one-end-each"
    message = ("message_start:assistant", "message_end:assistant")

    def test_pairs_hold(self) -> None:
        story = told("run_start", *self.message, "tool_start:c1", "tool_end:c1", "run_end")
        holds(self.rule, story.completes())

    def test_a_start_without_an_end_breaks(self) -> None:
        story = told("tool_start:c1", "tool_end:c1", "tool_start:c2").completes()
        assert "tool c2" in breaks(self.rule, story)

    def test_an_end_without_a_start_breaks(self) -> None:
        assert "without a start" in breaks(
            self.rule, told(*self.message, "message_end:assistant").completes()
        )

    def test_an_end_before_its_start_breaks(self) -> None:
        breaks(self.rule, told("tool_end:c1", "tool_start:c1").completes())

    def test_tools_side_by_side_hold(self) -> None:
        holds(self.rule, told("tool_start:a", "tool_start:b", "tool_end:a", "tool_end:b").completes())

    def test_an_interrupted_message_may_be_closed_by_its_run(self) -> None:
        story = tell(cut("The first "), "message_start:assistant").cancelled().prompt().request()
        holds(self.rule, tell(story, *self.message).reply("Done.").completes())

    def test_a_whole_reply_is_no_excuse(self) -> None:
        story = tell(alone().reply("Done."), "message_start:assistant").completes().prompt().request()
        story = tell(story, *self.message).reply("Done.").completes()
        assert "the start of assistant message" in found(self.rule, story)

    def test_ends_that_a_target_never_tells_are_not_asked_for(self) -> None:
        silent(self.rule, told("tool_start:c1", "message_start:assistant").completes())

    def test_ends_that_a_target_claims_to_tell_are(self) -> None:
        breaks(self.rule, told("run_start", claims=BOTH).completes())

    def test_a_hung_run_has_not_ended_yet(self) -> None:
        story = told("tool_start:c1", "tool_end:c1", "tool_start:c2").hangs()
        holds(self.rule, story)

    def test_it_is_hidden_without_events(self) -> None:
        hidden(self.rule, alone(observes=BLIND).reply("Done.").completes())


class TestBrackets:
    """Messages and tools nest in turns, turns in runs, as claimed."""

    rule = "events.brackets"
    inside = (
        "message_start:assistant",
        "text_delta",
        "message_end:assistant",
        "tool_start:c1",
        "tool_end:c1",
    )

    def test_nested_events_hold(self) -> None:
        story = told("run_start", "turn_start", *self.inside, "turn_end", "run_end", claims=BOTH)
        holds(self.rule, story.completes())

    def test_content_outside_of_a_turn_breaks(self) -> None:
        story = told("run_start", "turn_start", "turn_end", *self.inside, "run_end", claims=BOTH)
        assert "message_start (assistant) was told outside of a turn" in breaks(self.rule, story.completes())

    def test_a_turn_outside_of_a_run_breaks(self) -> None:
        story = told("turn_start", "run_start", *self.inside, "turn_end", "run_end", claims=BOTH)
        assert "outside of a run" in breaks(self.rule, story.completes())

    def test_a_turn_in_a_turn_breaks(self) -> None:
        story = told("run_start", "turn_start", "turn_start", "turn_end", "run_end", claims=BOTH)
        breaks(self.rule, story.completes())

    def test_a_run_that_ends_before_its_turn_breaks(self) -> None:
        story = told("run_start", "turn_start", *self.inside, "run_end", "turn_end", claims=BOTH)
        assert "still open" in breaks(self.rule, story.completes())

    def test_no_turn_at_all_breaks_where_turns_are_claimed(self) -> None:
        assert "no start of a turn" in breaks(self.rule, told(claims={"brackets": "turn"}).completes())

    def test_no_turn_is_asked_for_where_only_runs_are_claimed(self) -> None:
        holds(self.rule, told("run_start", *self.inside, "run_end", claims={"brackets": "run"}).completes())

    def test_the_users_message_may_stand_outside(self) -> None:
        story = told("message_start:user", "message_end:user", "run_start", "turn_start", "turn_end")
        story.entries[0] = told(claims=BOTH).entries[0]
        holds(self.rule, tell(story, "run_end").completes())

    def test_it_is_silent_where_nothing_was_asked(self) -> None:
        silent(self.rule, Cut(BOTH).prompt().cancels_run().cancelled())

    def test_it_is_hidden_without_events(self) -> None:
        hidden(self.rule, alone(BOTH, observes=BLIND).reply("Done.").completes())


class TestOneTerminal:
    """One terminal event a run, and its reason is the outcome's."""

    rule = "events.one-terminal"

    def ends(self, *reasons: str | None, story: Cut | None = None, **header: Any) -> Cut:
        story = story or alone(**header).reply("Done.")
        for reason in reasons:
            story.told("run_end", reason=reason)
        return story

    @pytest.mark.parametrize("reason", ["completed", "stop", None])
    def test_one_end_with_the_same_reason_holds(self, reason: str | None) -> None:
        holds(self.rule, self.ends(reason).completes())

    def test_two_ends_break(self) -> None:
        assert "there were 2" in breaks(
            self.rule, self.ends("cancelled", "completed", story=cut("Do")).cancelled()
        )

    def test_no_end_breaks_where_other_runs_have_one(self) -> None:
        story = alone().sent("Do").fault("error").fails().prompt().request().reply("Done.")
        assert "there were 0" in found(self.rule, self.ends("completed", story=story).completes())

    def test_no_end_breaks_where_it_is_claimed(self) -> None:
        breaks(self.rule, alone(BOTH).reply("Done.").completes())

    @pytest.mark.parametrize("reason", ["completed", "stop", "provider", "error"])
    def test_a_cancelled_run_that_is_told_otherwise_breaks(self, reason: str) -> None:
        assert "cancelled" in breaks(self.rule, self.ends(reason, story=cut("Do")).cancelled())

    @pytest.mark.parametrize("reason", ["cancelled", "aborted", None])
    def test_a_cancelled_run_that_is_told_as_cancelled_holds(self, reason: str | None) -> None:
        holds(self.rule, self.ends(reason, story=cut("Do")).cancelled())

    def test_a_failure_whose_reason_is_not_known_is_no_success(self) -> None:
        story = alone().sent("Do").fault("error")
        breaks(self.rule, self.ends("completed", story=story).fails("unknown"))
        holds(self.rule, self.ends("error", story=alone().sent("Do").fault("error")).fails("unknown"))

    def test_a_completed_run_that_is_told_as_failed_breaks(self) -> None:
        breaks(self.rule, self.ends("error").completes())

    def test_a_cancellation_on_the_end_of_an_answer_is_not_judged(self) -> None:
        holds(self.rule, self.ends("cancelled", story=alone().reply("Done.").cancels_run()).completes())

    def test_a_refused_prompt_has_no_end(self) -> None:
        story = batch("c1").starts_tool("c1").second().refused().settles_tool("c1").answers("c1")
        holds(
            self.rule,
            self.ends("completed", story=story.request(prompt=1).reply("Done.")).completes(prompt=1),
        )

    def test_it_is_silent_where_no_ends_are_told(self) -> None:
        silent(self.rule, alone().reply("Done.").completes())

    def test_it_is_hidden_without_events(self) -> None:
        hidden(self.rule, alone(observes=BLIND).reply("Done.").completes())


class TestNothingAfterTerminal:
    """No content or tool event after it."""

    rule = "events.nothing-after-terminal"

    def test_nothing_holds(self) -> None:
        holds(self.rule, told("text_delta", "run_end").completes())

    @pytest.mark.parametrize("kind", ["text_delta", "tool_end:c1", "message_end:assistant", "call:c1"])
    def test_content_breaks(self, kind: str) -> None:
        assert kind.partition(":")[0] in breaks(self.rule, told("run_end", kind).completes())

    def test_the_next_run_has_content_of_its_own(self) -> None:
        story = told("run_end").completes().prompt().request()
        holds(self.rule, tell(story, "text_delta", "run_end").reply("Done.").completes())

    def test_a_queued_run_follows_the_end_of_the_first(self) -> None:
        story = batch("c1").starts_tool("c1").second().settles_tool("c1").cancels_run().told("run_end")
        story.cancelled(1).hears("[prompt 2]").request()
        holds(self.rule, tell(story, "text_delta", "run_end").reply("Done.").completes())

    def test_it_is_silent_where_no_ends_are_told(self) -> None:
        silent(self.rule, told("text_delta").completes())

    def test_it_is_hidden_without_events(self) -> None:
        hidden(self.rule, alone(observes=BLIND).completes())


class TestCallToldBeforeExecution:
    """A call is told before its tool starts."""

    rule = "events.call-told-before-execution"

    def test_telling_first_holds(self) -> None:
        holds(self.rule, tell(batch("c1"), "call:c1").tool("c1").done())

    def test_telling_afterwards_breaks(self) -> None:
        assert "call c1" in breaks(self.rule, tell(batch("c1").tool("c1"), "call:c1").done())

    def test_telling_only_the_sibling_breaks(self) -> None:
        breaks(self.rule, tell(batch("c1", "c2"), "call:c2").tool("c1").done())

    def test_a_tools_start_tells_its_call_where_nothing_else_does(self) -> None:
        holds(self.rule, tell(batch("c1"), "tool_start:c1").tool("c1").done())
        breaks(self.rule, tell(batch("c1").tool("c1"), "tool_start:c1").done())

    def test_a_tools_start_may_lag_where_the_target_moves_by_itself(self) -> None:
        late = tell(batch("c1", grade="event", wire="chat").tool("c1"), "tool_start:c1").done()
        silent(self.rule, late)

    def test_it_is_silent_where_no_tool_started(self) -> None:
        silent(self.rule, alone().reply("Done.").completes())

    def test_a_race_cannot_be_judged(self) -> None:
        hidden(self.rule, tell(batch("c1", grade="racing"), "call:c1").tool("c1").done())

    def test_it_is_hidden_without_events(self) -> None:
        hidden(self.rule, batch("c1", observes=BLIND).tool("c1").done())


class TestToolEndAfterItsStart:
    """A tool's end comes after its start; a skipped call has neither, or both with an error."""

    rule = "events.tool-end-after-its-start"

    def skipped(self) -> Cut:
        story = tell(batch("c1", "c2"), "tool_start:c1").starts_tool("c1").cancels_run()
        return story.settles_tool("c1").told("tool_end", call_id="c1", is_error=False)

    def test_start_and_end_hold(self) -> None:
        holds(self.rule, tell(tell(batch("c1"), "tool_start:c1").tool("c1"), "tool_end:c1").done())

    def test_an_end_before_its_start_breaks(self) -> None:
        story = tell(batch("c1"), "tool_end:c1", "tool_start:c1").tool("c1").done()
        assert "no start before it" in breaks(self.rule, story)

    def test_a_skipped_call_without_events_holds(self) -> None:
        holds(self.rule, self.skipped().cancelled())

    def test_a_skipped_call_with_both_and_an_error_holds(self) -> None:
        story = tell(self.skipped(), "tool_start:c2").told("tool_end", call_id="c2", is_error=True)
        holds(self.rule, story.cancelled())

    def test_a_skipped_call_that_ended_well_breaks(self) -> None:
        story = tell(self.skipped(), "tool_start:c2").told("tool_end", call_id="c2", is_error=False)
        assert "without an error" in found(self.rule, story.cancelled())

    def test_a_skipped_call_that_only_started_breaks(self) -> None:
        story = tell(self.skipped(), "tool_start:c2").cancelled()
        assert "a start was told for it, and no end" in found(self.rule, story)

    def test_it_is_silent_where_only_starts_are_told(self) -> None:
        silent(self.rule, tell(batch("c1"), "tool_start:c1").tool("c1").done())

    def test_it_is_silent_where_nothing_was_called(self) -> None:
        silent(self.rule, told("tool_start:x", "tool_end:x").completes())

    def test_it_is_hidden_without_events(self) -> None:
        hidden(self.rule, batch("c1", observes=BLIND).tool("c1").done())


class TestShownAddsUp:
    """The deltas shown add up to the message kept."""

    rule = "events.shown-adds-up"

    def shown(self, *texts: str, keep: str = "The answer.", **header: Any) -> Cut:
        story = alone(**header).sent("The answer.")
        for text in texts:
            story.delta(text)
        return story.sent(Reason("stop"), Terminator()).keep(keep).completes()

    def test_the_same_text_holds(self) -> None:
        holds(self.rule, self.shown("The ", "answer.").history())

    def test_a_missing_delta_breaks(self) -> None:
        assert "'answer.'" in breaks(self.rule, self.shown("answer.").history())

    def test_a_doubled_delta_breaks(self) -> None:
        breaks(self.rule, self.shown("The ", "The ", "answer.").history())

    def test_a_message_that_is_kept_otherwise_breaks(self) -> None:
        breaks(self.rule, self.shown("The answer.", keep="The answer").history())

    def test_each_turn_has_its_own_deltas(self) -> None:
        story = alone().sent("One.").delta("One.").sent(call(0, "c1"), Reason("toolUse"), Terminator())
        story.keep("One.", call(0, "c1")).tool("c1").request().sent("Two.").delta("Two.")
        holds(self.rule, story.sent(Reason("stop"), Terminator()).keep("Two.").completes().history())

    def test_it_is_silent_where_the_reply_was_cut(self) -> None:
        silent(self.rule, cut("The answer.").delta("The").cancelled().history())

    def test_it_is_silent_where_no_deltas_are_told(self) -> None:
        silent(self.rule, self.shown().history())

    def test_it_is_hidden_where_nothing_shows_what_was_kept(self) -> None:
        hidden(self.rule, self.shown("The answer.", observes=("events",)))

    def test_it_is_hidden_without_events(self) -> None:
        hidden(self.rule, self.shown(observes=BLIND).history())


class TestRecordedBeforeTold:
    """Observed: whether a message is in history before its end is told."""

    rule = "events.recorded-before-told"

    def end(self, story: Cut) -> Cut:
        return story.told("message_end", role="assistant", text="Done.")

    def test_recorded_first_is_noted(self) -> None:
        holds(self.rule, self.end(alone().reply("Done.").history()).completes())

    def test_told_first_is_noted(self) -> None:
        story = self.end(alone().sent("Done.").history()).completes()
        assert "before it was in history" in breaks(self.rule, story)

    def test_it_is_hidden_where_history_is_read_only_at_rest(self) -> None:
        hidden(self.rule, self.end(alone().reply("Done.")).completes().history())

    def test_it_is_silent_without_the_event(self) -> None:
        silent(self.rule, alone().reply("Done.").completes().history())


def test_all_rules_of_the_chapter_are_here() -> None:
    """Each rule of the chapter has a class of tests that names it."""
    named = {item.rule for item in globals().values() if hasattr(item, "rule") and isinstance(item.rule, str)}
    assert named == {name for name in RULES if name.startswith("events.")}
