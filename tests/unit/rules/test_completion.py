"""The chapter completion: what a reply's end means, told in traces."""

import pytest
from build_completion import Story, breaks, call, hidden, holds, silent

from loopspec.rules import RULES, replies
from loopspec.scenario import PROBE_TOOLS
from loopspec.vocabulary import Reason, ReasoningDelta, Terminator, UserMessage


def asked(**header: object) -> Story:
    """A prompt was given and the target asked."""
    claims = header.pop("claims", None)
    return Story(claims, **header).prompt().request()  # type: ignore[arg-type]


def test_rules_know_the_probe_tools_that_targets_are_given() -> None:
    """What the rules take for fitting arguments is what the tools' schemas say."""
    types = {"string": str, "integer": int}
    for name, schema in PROBE_TOOLS.items():
        assert {key: types[part["type"]] for key, part in schema["properties"].items()} == (
            replies._PROBES[name]
        )
        assert set(schema["required"]) == replies._REQUIRED[name]


@pytest.mark.parametrize("chapter", ["completion", "stream", "limits"])
def test_every_rule_is_a_sentence_with_a_source_and_a_reason(chapter: str) -> None:
    """A rule says MUST or SHOULD in a sentence of its own; an observed one says neither."""
    rules = [rule for rule in RULES.values() if rule.chapter == chapter]
    assert rules
    for rule in rules:
        assert rule.source
        assert rule.reason
        assert rule.sentence[0].isupper()
        assert rule.sentence.endswith(".")
        assert ("MUST" in rule.sentence) == (rule.level in ("core", "claim"))


class TestAnswerWithoutCalls:
    """A reply with text and without calls completes the run, and no request follows."""

    rule = "completion.answer-without-calls"

    @pytest.mark.parametrize("reason", ["stop", "toolUse"])
    def test_an_answer_that_completes_holds(self, reason: str) -> None:
        holds(self.rule, asked().reply("Done.", reason=reason).completes("Done."))

    def test_a_request_after_the_answer_breaks(self) -> None:
        story = asked().reply("Done.").request().reply("Done.").completes("Done.")
        found = list(RULES[self.rule].check(story.index()))
        assert "request 2" in found[0].words
        assert "answer without calls" in found[0].words

    def test_a_failure_after_the_answer_breaks(self) -> None:
        assert "settled as failed" in breaks(self.rule, asked().reply("Done.").fails())

    def test_a_hang_after_the_answer_breaks(self) -> None:
        assert "it hung" in breaks(self.rule, asked().reply("Done.").hangs())

    def test_a_lost_target_after_the_answer_breaks(self) -> None:
        assert "lost" in breaks(self.rule, asked().reply("Done.").lost())

    def test_a_cancellation_on_the_end_of_the_answer_is_not_judged(self) -> None:
        silent(self.rule, asked().reply("Done.").cancel().fails("cancelled"))

    def test_a_listener_that_raised_is_not_judged_here(self) -> None:
        silent(self.rule, asked().reply("Done.").listener_raises().fails("listener"))

    def test_a_second_accepted_prompt_at_the_same_time_is_not_judged_here(self) -> None:
        story = asked().prompt(running=True).reply("Done.").request(prompt=2).reply("Done.")
        silent(self.rule, story.completes("Done.", prompt=2).completes("Done.", prompt=1))

    def test_a_refused_prompt_at_the_same_time_changes_nothing(self) -> None:
        story = asked().prompt(running=True).fails("busy", outcome="refused")
        assert "failed" in breaks(self.rule, story.reply("Done.").fails(prompt=1))

    def test_other_replies_are_not_answers(self) -> None:
        silent(self.rule, asked().reply("Done.", reason="length").fails("length"))
        silent(self.rule, asked().reply(reason="stop").fails())
        silent(self.rule, asked().sent("Done.", Reason("stop")).fault("end").fails())

    def test_an_auxiliary_request_is_not_there(self) -> None:
        story = asked().reply("Done.").request(serves="auxiliary").reply("A title").completes("Done.")
        holds(self.rule, story)

    def test_a_loop_that_waits_for_an_open_body_breaks_another_rule(self) -> None:
        story = asked().sent("Done.", Reason("stop")).sent(Terminator()).fault("stall").hangs()
        silent(self.rule, story)


class TestCallsDecide:
    """The whole reply is looked at, its batch runs, and one request carries the results."""

    rule = "completion.calls-decide"

    @pytest.mark.parametrize("reason", ["stop", "toolUse"])
    def test_a_batch_and_a_request_with_its_results_holds(self, reason: str) -> None:
        story = asked().reply("I look. ", call(0, "c1"), call(1, "c2"), reason=reason)
        holds(self.rule, story.tool("c1").tool("c2").request().reply("Done.").completes("Done."))

    def test_calls_taken_for_an_answer_because_of_the_label_breaks(self) -> None:
        story = asked().reply("I look. ", call(0, "c1")).completes("I look. ")
        assert "c1" in breaks(self.rule, story)

    def test_leaving_after_the_batch_breaks(self) -> None:
        story = asked().reply(call(0, "c1")).tool("c1").completes()
        assert "a request with their results was to follow" in breaks(self.rule, story)

    def test_failing_or_hanging_after_a_sound_batch_breaks(self) -> None:
        assert "failed" in breaks(self.rule, asked().reply(call(0, "c1")).tool("c1").fails())
        assert "hung" in breaks(self.rule, asked().reply(call(0, "c1")).tool("c1").hangs())

    def test_a_request_without_a_result_breaks(self) -> None:
        story = asked().reply(call(0, "c1"), call(1, "c2")).tool("c1").tool("c2", keep=False)
        assert "c2" in breaks(self.rule, story.request().reply("Done.").completes())

    def test_made_up_results_break(self) -> None:
        story = asked().reply(call(0, "c1")).result("c1").request().reply("Done.").completes()
        assert "no tool started" in breaks(self.rule, story)

    def test_two_requests_with_the_results_break(self) -> None:
        story = asked().reply(call(0, "c1")).tool("c1").request().request().reply("Done.")
        assert "exactly one request" in breaks(self.rule, story.completes())

    def test_ids_of_the_target_s_own_are_judged_elsewhere(self) -> None:
        story = asked().reply(call(0, "c1")).tool("c1", keep=False).result("other")
        holds(self.rule, story.request().reply("Done.").completes())

    def test_results_told_as_text_are_carried_too(self) -> None:
        story = asked().reply(call(0, "c1")).tool("c1", keep=False)
        story.messages.append(UserMessage("Observation: result of c1"))
        holds(self.rule, story.request().reply("Done.").completes())

    def test_a_limit_may_end_the_run(self) -> None:
        story = asked(max_turns=1).reply(call(0, "c1")).tool("c1")
        silent(self.rule, story.fails("limit"))

    def test_a_limit_that_the_target_does_not_have_excuses_nothing(self) -> None:
        story = asked(max_turns=1, observes=("history",)).reply(call(0, "c1")).tool("c1")
        assert "failed" in breaks(self.rule, story.fails(None))

    def test_a_cancellation_may_end_the_run(self) -> None:
        silent(self.rule, asked().reply(call(0, "c1")).cancel().fails("cancelled"))

    def test_a_failing_tool_may_end_the_run_unless_it_is_claimed_to_be_answered(self) -> None:
        def story(claims: dict[str, str]) -> Story:
            return asked(claims=claims).reply(call(0, "c1")).tool("c1", "raised").fails("tool")

        silent(self.rule, story({"tool_exception": "raises"}))
        silent(self.rule, story({}))
        assert "failed" in breaks(self.rule, story({"tool_exception": "answers"}))

    def test_an_unknown_tool_or_wrong_arguments_may_end_the_run_unless_claimed(self) -> None:
        unknown = call(0, "c1", name="nothing")
        wrong = call(0, "c1", '{"value": 3}')
        silent(self.rule, asked().reply(unknown).fails("tool"))
        silent(self.rule, asked(claims={"invalid_arguments": "raises"}).reply(wrong).fails("tool"))
        claims = {"unknown_tool": "answers", "invalid_arguments": "answers"}
        breaks(self.rule, asked(claims=claims).reply(unknown).fails("tool"))
        breaks(self.rule, asked(claims=claims).reply(wrong).fails("tool"))

    def test_success_after_an_unknown_tool_breaks_whatever_is_claimed(self) -> None:
        breaks(self.rule, asked().reply("So. ", call(0, "c1", name="nothing")).completes("So. "))

    def test_a_tool_that_never_ends_is_waited_for(self) -> None:
        silent(self.rule, asked().reply(call(0, "c1")).start("c1").hangs())

    def test_batches_that_are_not_ordinary_are_judged_elsewhere(self) -> None:
        silent(self.rule, asked().reply(call(0, "x"), call(1, "x")).fails())
        silent(self.rule, asked().reply(call(0, "")).fails())
        silent(self.rule, asked().reply(call(0, "c1", '{"value": "c')).fails())
        silent(self.rule, asked().reply(call(0, "c1", ended=False)).fails())


class TestToolLabelWithoutCalls:
    """`toolUse` without calls never leads to a request on unchanged history."""

    rule = "completion.tool-label-without-calls"

    def test_ending_the_run_holds(self) -> None:
        holds(self.rule, asked().reply("I look.", reason="toolUse").completes("I look."))
        holds(self.rule, asked().reply(reason="toolUse").fails())

    def test_asking_again_breaks_also_with_the_empty_message_kept(self) -> None:
        story = asked().reply(reason="toolUse").request().reply("Done.").completes()
        assert "request 2 asked again" in breaks(self.rule, story)

    def test_asking_with_something_new_said_holds(self) -> None:
        story = asked().reply(reason="toolUse")
        story.messages.append(UserMessage("Please go on."))
        holds(self.rule, story.request().reply("Done.").completes())

    def test_other_replies_are_not_judged(self) -> None:
        silent(self.rule, asked().reply(call(0, "c1"), reason="toolUse").tool("c1").completes())
        silent(self.rule, asked().reply().request().reply("Done.").completes())


EXECUTES_NOTHING = {
    "completion.error-executes-nothing": "error",
    "completion.length-executes-nothing": "length",
    "completion.refusal-executes-nothing": "refusal",
}


@pytest.mark.parametrize(("rule", "reason"), EXECUTES_NOTHING.items())
class TestExecutesNothing:
    """After error, length and refusal no call of the reply starts."""

    def test_no_start_holds(self, rule: str, reason: str) -> None:
        holds(rule, asked().reply(call(0, "c1"), reason=reason).fails())

    def test_a_start_breaks(self, rule: str, reason: str) -> None:
        words = breaks(rule, asked().reply(call(0, "c1"), reason=reason).start("c1").fails())
        assert "'c1'" in words
        assert reason in words

    def test_a_start_before_the_reason_breaks(self, rule: str, reason: str) -> None:
        story = asked().sent(call(0, "c1")).start("c1").sent(Reason(reason), Terminator())
        breaks(rule, story.fails())

    def test_a_start_with_repaired_arguments_breaks(self, rule: str, reason: str) -> None:
        story = asked().reply(call(0, "c1", '{"value": "c', ended=False), reason=reason)
        assert "no scripted call" in breaks(rule, story.start(None, '{"value": "c"}').fails())

    def test_a_start_after_the_next_request_breaks(self, rule: str, reason: str) -> None:
        story = asked().reply(call(0, "c1"), reason=reason).request().start("c1")
        breaks(rule, story.reply("Done.").completes())

    def test_the_same_id_in_the_next_reply_is_that_reply_s(self, rule: str, reason: str) -> None:
        story = asked().reply(call(0, "c1"), reason=reason).request().reply(call(0, "c1"))
        holds(rule, story.tool("c1").request().reply("Done.").completes())

    def test_a_start_breaks_even_when_cancelled(self, rule: str, reason: str) -> None:
        breaks(rule, asked().reply(call(0, "c1"), reason=reason).cancel().start("c1").fails())

    def test_a_reply_without_calls_or_with_another_reason_is_silent(self, rule: str, reason: str) -> None:
        silent(rule, asked().reply("Done.", reason=reason).fails())
        silent(rule, asked().reply(call(0, "c1")).tool("c1").completes())


class TestAbortedByProvider:
    """`aborted` without a cancellation: nothing starts, and the run fails, not as cancelled."""

    rule = "completion.aborted-by-provider"

    def test_a_failure_holds(self) -> None:
        holds(self.rule, asked().reply(call(0, "c1"), reason="aborted").fails("provider"))

    def test_told_as_cancelled_breaks(self) -> None:
        assert "cancelled" in breaks(self.rule, asked().reply(reason="aborted").fails("cancelled"))

    def test_success_breaks(self) -> None:
        assert "completed" in breaks(self.rule, asked().reply("So", reason="aborted").completes())

    def test_a_start_breaks(self) -> None:
        breaks(self.rule, asked().reply(call(0, "c1"), reason="aborted").start("c1").fails())

    def test_going_on_with_results_breaks(self) -> None:
        story = asked().reply(call(0, "c1"), reason="aborted").result("c1").request()
        assert "went on" in breaks(self.rule, story.reply("Done.").completes())

    def test_another_attempt_is_not_judged(self) -> None:
        story = asked().sent("So", Reason("aborted"), Terminator()).request().reply("Done.")
        silent(self.rule, story.completes())

    def test_a_cancelled_run_is_not_judged(self) -> None:
        silent(self.rule, asked().cancel().reply(reason="aborted").fails("cancelled"))


class TestLengthOutcome:
    """After `length` the run ends, or goes on, as claimed."""

    rule = "completion.length-outcome"

    @pytest.mark.parametrize("value", ["fails", "marked"])
    def test_ending_apart_from_success_holds(self, value: str) -> None:
        story = asked(claims={"length": value}).reply("Trunc", reason="length")
        holds(self.rule, story.fails("length"))

    @pytest.mark.parametrize("value", ["fails", "marked"])
    def test_success_or_another_request_breaks(self, value: str) -> None:
        claims = {"length": value}
        breaks(self.rule, asked(claims=claims).reply("Trunc", reason="length").completes("Trunc"))
        story = asked(claims=claims).reply("Trunc", reason="length").request().reply("Done.")
        assert "request 2 followed" in breaks(self.rule, story.completes())
        breaks(self.rule, asked(claims=claims).reply("Trunc", reason="length").hangs())

    def test_answering_the_calls_by_errors_holds(self) -> None:
        story = asked(claims={"length": "answers"}).reply(call(0, "c1"), reason="length")
        holds(self.rule, story.result("c1", True).request().reply("Done.").completes())

    def test_answers_without_a_result_or_with_a_success_breaks(self) -> None:
        def story() -> Story:
            return asked(claims={"length": "answers"}).reply(call(0, "c1"), reason="length")

        assert "lacks" in breaks(self.rule, story().request().reply("Done.").completes())
        assert "marks" in breaks(self.rule, story().result("c1").request().reply("x").completes())
        assert "failed" in breaks(self.rule, story().fails("length"))

    def test_answers_says_nothing_of_a_reply_without_calls(self) -> None:
        silent(self.rule, asked(claims={"length": "answers"}).reply("Tr", reason="length").fails())

    def test_a_limit_or_a_cancellation_excuses_an_answer(self) -> None:
        claims = {"length": "answers"}
        story = asked(claims=claims, max_turns=1).reply(call(0, "c1"), reason="length")
        silent(self.rule, story.result("c1", True).fails("limit"))
        silent(self.rule, asked(claims=claims).reply(call(0, "c1"), reason="length").cancel().fails())

    def test_a_length_without_its_terminator_is_judged_elsewhere(self) -> None:
        story = asked(claims={"length": "answers"}).sent(call(0, "c1"), Reason("length"))
        silent(self.rule, story.fault("half_frame").fails())


class TestDeferred:
    """`deferred` or `pending` is never the answer; the run fails or resumes, as claimed."""

    rule = "completion.deferred-is-not-final"
    claimed = "completion.deferred-outcome"

    @pytest.mark.parametrize("reason", ["deferred", "pending"])
    def test_a_failure_holds(self, reason: str) -> None:
        story = asked(claims={"deferred": "fails"}).reply("So", call(0, "c1"), reason=reason)
        story.fails("unfinished")
        holds(self.rule, story)
        holds(self.claimed, story)

    @pytest.mark.parametrize("reason", ["deferred", "pending"])
    def test_taking_it_for_the_answer_breaks(self, reason: str) -> None:
        story = asked(claims={"deferred": "fails"}).reply("So", reason=reason).completes("So")
        assert "not an answer" in breaks(self.rule, story)
        assert "completed" in breaks(self.claimed, story)

    def test_a_start_breaks(self) -> None:
        breaks(self.rule, asked().reply(call(0, "c1"), reason="deferred").start("c1").fails())

    def test_resuming_holds_where_it_is_claimed_and_breaks_where_failing_is(self) -> None:
        def story(value: str) -> Story:
            first = asked(claims={"deferred": value}).reply(reason="deferred")
            return first.request().reply("Done.").completes("Done.")

        holds(self.rule, story("resumes"))
        holds(self.claimed, story("resumes"))
        assert "request 2 followed" in breaks(self.claimed, story("fails"))

    def test_failing_breaks_where_resuming_is_claimed_unless_the_limit_is_met(self) -> None:
        claims = {"deferred": "resumes"}
        breaks(self.claimed, asked(claims=claims).reply(reason="deferred").fails("unfinished"))
        silent(self.claimed, asked(claims=claims, max_turns=1).reply(reason="deferred").fails("limit"))

    def test_a_hang_is_no_answer_but_no_claimed_outcome_either(self) -> None:
        story = asked(claims={"deferred": "fails"}).reply(reason="deferred").hangs()
        holds(self.rule, story)
        breaks(self.claimed, story)

    def test_other_replies_and_cancelled_ones_are_silent(self) -> None:
        for rule in (self.rule, self.claimed):
            silent(rule, asked(claims={"deferred": "fails"}).reply("Done.").completes())
            story = asked(claims={"deferred": "fails"}).reply(reason="deferred").cancel()
            silent(rule, story.completes())


class TestRefusalIsTold:
    """A refusal is told from an answer, and the same request is not sent again."""

    rule = "completion.refusal-is-told"

    def test_a_failure_holds_in_any_form(self) -> None:
        holds(self.rule, asked().reply("No.", reason="refusal").fails("refusal", "returned"))

    def test_success_breaks(self) -> None:
        assert "completed" in breaks(self.rule, asked().reply("No.", reason="refusal").completes("No."))

    def test_the_same_request_again_breaks(self) -> None:
        story = asked().sent(Reason("refusal"), Terminator()).request().reply("Done.").completes()
        assert "sent again as request 2" in breaks(self.rule, story)

    def test_a_different_request_holds(self) -> None:
        story = asked().sent(Reason("refusal"), Terminator())
        story.messages.append(UserMessage("Say why."))
        holds(self.rule, story.request().reply("Because.").completes())

    def test_a_hang_breaks_and_a_cancelled_run_is_silent(self) -> None:
        breaks(self.rule, asked().reply(reason="refusal").hangs())
        silent(self.rule, asked().reply(reason="refusal").cancel().completes())
        silent(self.rule, asked().reply("Done.").completes())


class TestUnknownReasonFails:
    """An unknown reason is a failure, never a stop."""

    rule = "completion.unknown-reason-fails"

    def test_a_failure_holds(self) -> None:
        holds(self.rule, asked().reply("Done.", reason="brand_new").fails())

    def test_success_breaks(self) -> None:
        assert "brand_new" in breaks(self.rule, asked().reply("Done.", reason="brand_new").completes())

    def test_running_its_calls_breaks(self) -> None:
        story = asked().reply(call(0, "c1"), reason="brand_new").tool("c1").request()
        assert "'c1'" in breaks(self.rule, story.reply("Done.").completes())

    def test_another_attempt_and_a_known_reason_are_silent(self) -> None:
        story = asked().reply("So", reason="brand_new").request().reply("Done.").completes()
        silent(self.rule, story)
        silent(self.rule, asked().reply("Done.").completes())
        silent(self.rule, asked().reply("Done.", reason="length").completes())

    def test_a_reply_that_stalled_before_its_terminator_is_not_over(self) -> None:
        silent(self.rule, asked().sent("So", Reason("brand_new")).fault("stall").hangs())


class TestEmptyStop:
    """A stop with neither text nor calls has the claimed outcome, and is not asked without bound."""

    rule = "completion.empty-stop"

    def empty(self, value: str, times: int = 1) -> Story:
        story = Story({"empty_stop": value}).prompt()
        for _ in range(times):
            story.request().reply(ReasoningDelta("Hm."))
        return story

    def test_each_claimed_outcome_holds(self) -> None:
        holds(self.rule, self.empty("completes").completes(""))
        holds(self.rule, self.empty("fails").fails())
        holds(self.rule, self.empty("asks-again").request().reply("Done.").completes("Done."))
        holds(self.rule, self.empty("asks-again", 3).fails())

    def test_another_outcome_breaks(self) -> None:
        assert "complete the run" in breaks(self.rule, self.empty("completes").fails())
        assert "request 2" in breaks(self.rule, self.empty("completes").request().reply("Done.").completes())
        assert "fail the run" in breaks(self.rule, self.empty("fails").completes(""))
        assert "asked again" in breaks(self.rule, self.empty("asks-again").completes(""))

    def test_attempts_before_failing_are_bounded(self) -> None:
        holds(self.rule, self.empty("fails", 6).fails())
        assert "8 requests in a row" in _words(self.rule, self.empty("asks-again", 10).fails())

    def test_a_request_with_something_new_said_is_not_on_unchanged_history(self) -> None:
        story = self.empty("asks-again")
        for turn in range(10):
            story.messages.append(UserMessage(f"Please, {turn}."))
            story.request().reply()
        holds(self.rule, story.fails())

    def test_a_limit_excuses_not_asking_again(self) -> None:
        story = Story({"empty_stop": "asks-again"}, max_turns=1).prompt().request().reply()
        silent(self.rule, story.fails("limit"))

    def test_text_calls_other_reasons_and_cancellations_are_silent(self) -> None:
        claims = {"empty_stop": "fails"}
        silent(self.rule, asked(claims=claims).reply(" ").completes(" "))
        silent(self.rule, asked(claims=claims).reply(reason="toolUse").completes(""))
        silent(self.rule, asked(claims=claims).reply(call(0, "c1")).tool("c1").completes())
        silent(self.rule, asked(claims=claims).reply().cancel().completes(""))


def _words(rule: str, story: Story) -> str:
    found = RULES[rule].check(story.index())
    return "; ".join(getattr(item, "words", "") for item in found)


class TestFailureIsTold:
    """A run that did not complete is not reported as completed."""

    rule = "completion.failure-is-told"

    def test_a_failed_reply_told_as_failed_holds(self) -> None:
        holds(self.rule, asked().reply("So", reason="error").fails())
        holds(self.rule, asked().sent("So").fault("disconnect").fails(form="returned"))

    def test_a_failed_reply_told_as_success_breaks(self) -> None:
        assert "failed" in breaks(self.rule, asked().reply("So", reason="error").completes("So"))
        breaks(self.rule, asked().sent("So").fault("disconnect").completes("So"))
        breaks(self.rule, asked().sent("So").fault("end").completes("So"))

    @pytest.mark.parametrize("grade", ["exact", "event", "racing"])
    def test_a_reply_cut_by_a_cancellation_is_no_success(self, grade: str) -> None:
        story = asked(grade=grade).sent("So").cancel()
        assert "never ended" in breaks(self.rule, story.completes("So"))
        holds(self.rule, asked(grade=grade).sent("So").cancel().fails("cancelled"))

    def test_a_batch_cut_by_a_cancellation_is_no_success(self) -> None:
        story = asked().reply(call(0, "c1"), call(1, "c2")).cancel().tool("c1")
        assert "without an answer" in breaks(self.rule, story.completes())

    def test_a_run_that_asked_nothing_is_no_success(self) -> None:
        assert "asked the model nothing" in breaks(self.rule, Story().prompt().cancel().completes())
        holds(self.rule, Story().prompt().cancel().fails("cancelled"))

    def test_a_cancellation_on_the_end_of_an_answer_is_not_judged(self) -> None:
        silent(self.rule, asked().reply("Done.").cancel().completes("Done."))

    def test_answers_hangs_and_ends_with_rules_of_their_own_are_silent(self) -> None:
        silent(self.rule, asked().reply("Done.").completes("Done."))
        silent(self.rule, asked().sent("So").fault("disconnect").hangs())
        silent(self.rule, asked().reply("So", reason="length").completes("So"))
        silent(self.rule, asked().reply("So", reason="refusal").completes("So"))
        silent(self.rule, asked().reply("So").sent(Reason("error"), Terminator()).completes("So"))

    def test_a_later_attempt_that_answers_completes_the_run(self) -> None:
        silent(self.rule, asked().sent("So").fault("disconnect").request().reply("x").completes("x"))

    def test_a_refused_prompt_is_silent(self) -> None:
        silent(self.rule, Story().prompt().fails("busy", outcome="refused"))


class TestFailureForm:
    """A failed run raises, or settles with a mark, as claimed."""

    rule = "completion.failure-form"

    def failed(self, value: str, form: str, reason: str = "provider", **more: str) -> Story:
        claims = {"failure": value, **more}
        return asked(claims=claims).reply("So", reason="error").fails(reason, form)

    def test_the_claimed_form_holds(self) -> None:
        holds(self.rule, self.failed("raises", "raised"))
        holds(self.rule, self.failed("marked", "returned"))
        holds(self.rule, self.failed("marked", "told"))

    def test_the_other_form_breaks(self) -> None:
        assert "was to raise" in breaks(self.rule, self.failed("raises", "returned"))
        assert "mark" in breaks(self.rule, self.failed("marked", "raised"))

    def test_a_length_that_is_claimed_as_marked_is_left_out(self) -> None:
        def story(value: str) -> Story:
            claims = {"failure": "raises", "length": value}
            return asked(claims=claims).reply("So", reason="length").fails("length", "returned")

        silent(self.rule, story("marked"))
        breaks(self.rule, story("fails"))

    def test_a_limit_that_is_claimed_as_marked_is_left_out(self) -> None:
        claims = {"failure": "raises", "max_turns": "marked"}
        story = asked(claims=claims, max_turns=1).reply(call(0, "c1")).tool("c1")
        silent(self.rule, story.fails("limit", "returned"))

    def test_cancelled_refused_completed_and_tool_failures_are_silent(self) -> None:
        silent(self.rule, self.failed("marked", "raised", "cancelled"))
        claims = {"failure": "marked"}
        silent(self.rule, asked(claims=claims).sent("So").cancel().fails(None, "raised"))
        silent(self.rule, Story(claims).prompt().fails("busy", outcome="refused"))
        silent(self.rule, asked(claims=claims).reply("Done.").completes())
        silent(self.rule, asked(claims=claims).reply(call(0, "c1")).tool("c1", "raised").fails("tool"))


class TestFailureCarriesMessage:
    """The provider's own message is part of the failure."""

    rule = "completion.failure-carries-message"

    def test_the_message_anywhere_in_the_failure_holds(self) -> None:
        error = {"reason": "error", "error": "overloaded"}
        holds(self.rule, asked().reply(**error).fails(message="provider: overloaded"))
        story = asked().sent("So").fault("error", "overloaded")
        holds(self.rule, story.fails(message="failed", raised=[{"message": "overloaded"}]))

    def test_a_status_s_message_is_the_provider_s_too(self) -> None:
        holds(self.rule, asked().fault("status", "503: down").fails(message="Error 503 - down"))

    def test_a_failure_without_it_breaks(self) -> None:
        story = asked().fault("status", "503: down").fails(message="something went wrong")
        assert "'down'" in breaks(self.rule, story)

    def test_no_message_no_failure_and_a_cancellation_are_silent(self) -> None:
        silent(self.rule, asked().reply(reason="error").fails(message="failed"))
        silent(self.rule, asked().sent("So").fault("error", "overloaded").completes())
        silent(self.rule, asked().cancel().fault("error", "overloaded").fails("cancelled"))


class TestAnswerForm:
    """A completed run returns its last message, or tells it, as claimed."""

    rule = "completion.answer-form"

    def answered(self, value: str, **header: object) -> Story:
        story = asked(claims={"answer": value}, **header).reply("First. ", call(0, "c1")).tool("c1")
        return story.request().reply("Last.")

    def test_the_last_message_returned_holds(self) -> None:
        holds(self.rule, self.answered("returned").completes("Last. "))

    def test_something_else_returned_breaks(self) -> None:
        for answer in ("First. ", "First. Last.", None):
            assert "'Last.'" in breaks(self.rule, self.answered("returned").completes(answer))

    def test_only_told_breaks_where_returning_is_claimed(self) -> None:
        breaks(self.rule, self.answered("returned").completes("Last.", "told"))

    def test_told_at_the_end_or_in_events_holds(self) -> None:
        holds(self.rule, self.answered("told").completes("Last.", "told"))
        story = self.answered("told").told("message_end", role="assistant", text="Last.")
        holds(self.rule, story.completes(None, "told"))
        story = self.answered("told").told("text_delta", text="La").told("text_delta", text="st.")
        holds(self.rule, story.completes(None, "told"))

    def test_not_told_breaks_or_is_hidden_where_events_are_not_seen(self) -> None:
        breaks(self.rule, self.answered("told").completes(None, "told"))
        assert "events" in hidden(self.rule, self.answered("told", observes=()).completes(None, "told"))

    def test_failed_empty_and_cancelled_runs_are_silent(self) -> None:
        claims = {"answer": "returned"}
        silent(self.rule, asked(claims=claims).reply("Done.").fails())
        silent(self.rule, asked(claims=claims).reply().completes(""))
        silent(self.rule, asked(claims=claims).reply("Done.").cancel().completes(None))
