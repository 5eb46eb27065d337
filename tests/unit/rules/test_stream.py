"""The chapter stream: from bytes to a message, told in traces."""

import pytest
from build_completion import Story, breaks, call, hidden, holds, silent

from loopspec.rules import RULES
from loopspec.trace import Finding
from loopspec.vocabulary import (
    ArgumentsDelta,
    CallEnd,
    CallStart,
    Reason,
    ReasoningDelta,
    Terminator,
    TextDelta,
    Usage,
)

STOP = (Reason("stop"), Terminator())


def asked(**header: object) -> Story:
    """A prompt was given and the target asked."""
    return Story(**header).prompt().request()  # type: ignore[arg-type]


class TestMissingReasonFails:
    """A stream that ends without a reason is a failure, and nothing starts."""

    rule = "stream.missing-reason-fails"

    @pytest.mark.parametrize("fault", ["end", "half_frame"])
    def test_a_failure_holds(self, fault: str) -> None:
        holds(self.rule, asked().sent("So", call(0, "c1")).fault(fault).fails())

    def test_success_breaks(self) -> None:
        assert "without a reason" in breaks(self.rule, asked().sent("So").fault("end").completes("So"))

    def test_a_terminator_does_not_stand_for_a_reason(self) -> None:
        breaks(self.rule, asked().sent("So", Terminator()).completes("So"))
        holds(self.rule, asked().sent("So", Terminator()).fails())

    def test_a_hang_breaks(self) -> None:
        assert "hung" in breaks(self.rule, asked().fault("end").hangs())

    def test_a_start_breaks(self) -> None:
        story = asked().sent(call(0, "c1")).fault("end").start("c1").fails()
        assert "'c1'" in breaks(self.rule, story)

    def test_going_on_with_results_breaks(self) -> None:
        story = asked().sent(call(0, "c1")).fault("end").keep(call(0, "c1")).tool("c1").request()
        assert "went on" in breaks(self.rule, story.reply("Done.").completes())

    def test_other_ends_another_attempt_and_cancellations_are_silent(self) -> None:
        silent(self.rule, asked().reply("Done.").completes())
        silent(self.rule, asked().sent("So").fault("disconnect").fails())
        silent(self.rule, asked().sent("So", Reason("stop")).fault("end").completes())
        silent(self.rule, asked().sent("So").fault("end").request().reply("Done.").completes())
        silent(self.rule, asked().sent("So").cancel().fault("end").fails("cancelled"))
        silent(self.rule, asked().sent("So").fault("stall").hangs())


class TestMissingTerminatorTolerated:
    """A stream whose reason came and whose terminator did not is recorded, never judged."""

    rule = "stream.missing-terminator-tolerated"

    def test_both_ways_are_recorded(self) -> None:
        assert RULES[self.rule].level == "observed"
        holds(self.rule, asked().sent("Done.", Reason("stop")).fault("end").completes("Done."))
        breaks(self.rule, asked().sent("Done.", Reason("stop")).fault("end").fails())

    def test_whole_replies_and_other_ends_are_silent(self) -> None:
        silent(self.rule, asked().reply("Done.").completes())
        silent(self.rule, asked().sent("So").fault("end").fails())
        silent(self.rule, asked().sent("So", Reason("stop")).fault("disconnect").fails())
        silent(self.rule, asked().sent("So", Reason("stop")).cancel().fault("end").fails())


class TestErrorBeforeFirstEvent:
    """The provider fails before the first piece: the run fails and nothing starts."""

    rule = "stream.error-before-first-event"

    @pytest.mark.parametrize("fault", ["status", "error", "disconnect", "malformed"])
    def test_a_failure_holds_and_success_breaks(self, fault: str) -> None:
        holds(self.rule, asked().fault(fault, "503: down").fails())
        assert fault in breaks(self.rule, asked().fault(fault).completes(""))

    def test_a_hang_breaks(self) -> None:
        breaks(self.rule, asked().fault("status", "503: down").hangs())

    def test_after_a_batch_it_is_the_same(self) -> None:
        story = asked().reply(call(0, "c1")).tool("c1").request().fault("status")
        assert "completed" in breaks(self.rule, story.completes())

    def test_another_attempt_is_not_judged(self) -> None:
        silent(self.rule, asked().fault("status").request().reply("Done.").completes())

    def test_a_later_failure_a_clean_end_and_a_cancellation_are_silent(self) -> None:
        silent(self.rule, asked().sent("So").fault("error").fails())
        silent(self.rule, asked().fault("end").fails())
        silent(self.rule, asked().cancel().fault("error").fails("cancelled"))
        silent(self.rule, asked().reply("Done.").completes())

    def test_a_request_that_the_api_refused_is_the_target_s_own_fault(self) -> None:
        story = Story().prompt().request(findings=(Finding("C1", "no result"),))
        silent(self.rule, story.fault("status", "400: no result").request().reply("x").completes())


class TestErrorMidReply:
    """The stream fails before its end: likewise, whatever was sent before."""

    rule = "stream.error-mid-reply"

    @pytest.mark.parametrize("fault", ["error", "disconnect", "malformed"])
    def test_a_failure_holds_and_success_breaks(self, fault: str) -> None:
        holds(self.rule, asked().sent("So", call(0, "c1")).fault(fault).fails())
        breaks(self.rule, asked().sent("So").fault(fault).completes("So"))

    def test_a_start_of_a_whole_call_breaks(self) -> None:
        story = asked().sent(call(0, "c1")).fault("disconnect").start("c1").fails()
        assert "'c1'" in breaks(self.rule, story)

    def test_a_failure_after_the_reason_counts_where_the_order_is_certain(self) -> None:
        def story(grade: str) -> Story:
            return asked(grade=grade).sent("So", Reason("stop")).fault("error").completes("So")

        breaks(self.rule, story("exact"))
        silent(self.rule, story("event"))
        silent(self.rule, story("racing"))

    def test_a_failure_after_the_terminator_a_stall_and_a_cancellation_are_silent(self) -> None:
        silent(self.rule, asked().sent("Done.", *STOP).fault("disconnect").completes())
        silent(self.rule, asked().sent("So").fault("stall").hangs())
        silent(self.rule, asked().sent("So").cancel().fault("disconnect").fails("cancelled"))
        silent(self.rule, asked().fault("disconnect").fails())


class TestActsWithoutEndOfBody:
    """Once reason and terminator are there, the loop goes on although the body stays open."""

    rule = "stream.acts-without-end-of-body"

    def test_starting_a_tool_or_settling_holds(self) -> None:
        story = asked().sent(call(0, "c1"), *STOP).fault("stall").tool("c1").request().reply("x")
        holds(self.rule, story.completes())
        holds(self.rule, asked().sent("Done.", *STOP).fault("stall").completes("Done."))
        holds(self.rule, asked().sent("Done.", *STOP).completes("Done.").closed("bench"))

    def test_waiting_for_the_end_breaks(self) -> None:
        story = asked().sent("Done.", *STOP).fault("stall").hangs().closed("bench")
        assert "stayed open" in breaks(self.rule, story)

    def test_acting_only_once_the_bench_closed_the_body_breaks(self) -> None:
        story = asked().sent("Done.", *STOP).fault("stall").closed("bench").completes("Done.")
        assert "until the bench closed" in breaks(self.rule, story)

    def test_bodies_that_end_stalls_before_and_cancellations_are_silent(self) -> None:
        silent(self.rule, asked().reply("Done.").completes("Done."))
        silent(self.rule, asked().sent("Done.", Reason("stop")).fault("stall").hangs())
        silent(self.rule, asked().sent("Done.", *STOP).fault("stall").cancel().fails("cancelled"))


class TestNothingAfterTerminator:
    """What arrives after the terminator changes nothing."""

    rule = "stream.nothing-after-terminator"

    def late(self, *pieces: object) -> Story:
        return asked().sent("Done.", *STOP, *pieces)  # type: ignore[arg-type]

    def test_an_answer_that_stays_what_it_was_holds(self) -> None:
        story = self.late(" Or not.", call(0, "c1"), Reason("toolUse"), Terminator())
        holds(self.rule, story.keep("Done.").completes("Done.").history())
        holds(self.rule, self.late().fault("disconnect").completes("Done."))

    def test_a_late_call_that_starts_breaks(self) -> None:
        story = self.late(call(0, "c1")).start("c1").completes("Done.")
        assert "'c1'" in breaks(self.rule, story)

    def test_late_text_that_is_kept_or_answered_breaks(self) -> None:
        kept = self.late(" Or not.").keep("Done. Or not.").completes("Done.").history()
        assert "kept" in breaks(self.rule, kept)
        asked_with = self.late(ReasoningDelta("Hm.")).keep("Hm.").completes("Done.").prompt().request()
        assert "kept" in breaks(self.rule, asked_with)
        assert "the answer" in breaks(self.rule, self.late(" Or not.").completes("Done. Or not."))

    def test_a_late_reason_or_failure_that_changes_the_outcome_breaks(self) -> None:
        assert "failed" in breaks(self.rule, self.late(Reason("error"), Terminator()).fails())
        assert "failed" in breaks(self.rule, self.late().fault("disconnect").fails())

    def test_usage_before_or_after_the_terminator_is_nothing_late(self) -> None:
        story = asked().sent("Done.", Reason("stop"), Usage(1, 1), Terminator(), Usage(1, 1))
        silent(self.rule, story.completes("Done."))
        silent(self.rule, asked().reply("Done.").completes("Done."))

    def test_a_cancelled_run_is_no_changed_outcome(self) -> None:
        silent(self.rule, self.late(" Or not.").cancel().fails("cancelled"))


class TestClosedOnEveryExit:
    """The stream is closed by the loop after completion, failure and cancellation."""

    rule = "stream.closed-on-every-exit"

    def test_closing_holds_on_every_exit(self) -> None:
        holds(self.rule, asked().sent("Done.", *STOP).closed().completes("Done."))
        holds(self.rule, asked().sent("So").fault("error").closed().fails())
        holds(self.rule, asked().sent("So").cancel().fails("cancelled").closed())

    def test_a_stream_left_open_breaks(self) -> None:
        assert "still open" in breaks(
            self.rule, asked().sent("Done.", *STOP).completes("Done.").closed("bench")
        )
        breaks(self.rule, asked().sent("So").cancel().fails("cancelled").closed("bench"))

    def test_a_run_that_did_not_exit_a_broken_and_a_single_write_are_silent(self) -> None:
        silent(self.rule, asked().sent("Done.", *STOP).hangs().closed("bench"))
        silent(self.rule, asked().sent("So").fault("disconnect").fails().closed("bench"))
        story = Story(streaming=False).prompt().request(streaming=False).sent("Done.", *STOP)
        silent(self.rule, story.completes("Done.").closed("bench"))


class TestUnfinishedCallNotStarted:
    """A call whose end the wire marks, and that did not come, is never started."""

    rule = "stream.unfinished-call-not-started"

    @pytest.mark.parametrize("reason", ["stop", "toolUse", "length", "error"])
    def test_not_starting_holds_and_starting_breaks(self, reason: str) -> None:
        open_call = call(0, "c1", ended=False)
        holds(self.rule, asked().reply(open_call, reason=reason).fails())
        assert "never ended" in breaks(self.rule, asked().reply(open_call, reason=reason).start("c1").fails())

    def test_a_start_with_completed_arguments_breaks(self) -> None:
        story = asked().reply(call(0, "c1", '{"value": "c', ended=False)).start(None, "{}")
        breaks(self.rule, story.fails())

    def test_a_finished_sibling_may_be_behind_an_altered_start(self) -> None:
        story = asked().reply(call(0, "c1", ended=False), call(1, "c2")).start(None, '{"value": "x"}')
        holds(self.rule, story.fails())

    def test_a_call_cut_by_a_cancellation_is_not_started_either(self) -> None:
        breaks(self.rule, asked().sent(call(0, "c1", ended=False)).cancel().start("c1").fails())

    def test_a_wire_without_end_marks_hides_it(self) -> None:
        story = asked(can_express=()).reply(call(0, "c1", ended=False)).start("c1").completes()
        assert "does not mark" in hidden(self.rule, story)

    def test_calls_that_ended_are_silent(self) -> None:
        silent(self.rule, asked().reply(call(0, "c1")).tool("c1").completes())


class TestCutArgumentsNotRepaired:
    """Arguments that are not complete JSON never start a tool in a repaired form."""

    rule = "stream.cut-arguments-not-repaired"

    def test_not_starting_holds(self) -> None:
        holds(self.rule, asked().reply(call(0, "c1", '{"value": "c')).result("c1", True).fails())

    @pytest.mark.parametrize("repaired", ['{"value": "c"}', "{}"])
    def test_a_repaired_start_breaks(self, repaired: str) -> None:
        story = asked().reply(call(0, "c1", '{"value": "c')).start(None, repaired)
        assert "not complete JSON" in breaks(self.rule, story.fails())

    def test_the_text_as_it_came_is_no_repair(self) -> None:
        holds(self.rule, asked().reply(call(0, "c1", '{"value": "c')).start("c1", '{"value": "c').fails())

    def test_a_whole_sibling_with_altered_arguments_is_judged_elsewhere(self) -> None:
        story = asked().reply(call(0, "c1", '{"value": "c'), call(1, "c2")).start(None, "{}")
        holds(self.rule, story.fails())

    def test_whole_and_empty_arguments_are_silent(self) -> None:
        silent(self.rule, asked().reply(call(0, "c1")).tool("c1").completes())
        story = asked().reply(call(0, "c1", "", "probe_optional"))
        silent(self.rule, story.start(None, "{}", "probe_optional").completes())


INTERLEAVED = [
    CallStart(0, "c1", "probe"), CallStart(1, "c2", "probe"),
    ArgumentsDelta(0, '{"value": '), ArgumentsDelta(1, '{"value": '),
    ArgumentsDelta(0, '"c1"}'), ArgumentsDelta(1, '"c2"}'),
    CallEnd(0), CallEnd(1),
]  # fmt: skip


class TestInterleavedCalls:
    """Calls whose pieces interleave are put together by index."""

    rule = "stream.interleaved-calls"

    def test_each_call_with_its_own_arguments_holds(self) -> None:
        story = asked().reply(INTERLEAVED).tool("c1").tool("c2").request().reply("Done.")
        holds(self.rule, story.completes())

    def test_mixed_arguments_break(self) -> None:
        story = asked().reply(INTERLEAVED).start(None, '{"value": "c1"}"c2"}').fails()
        assert "their own" in breaks(self.rule, story)

    def test_a_call_that_never_starts_breaks(self) -> None:
        assert "'c2'" in breaks(self.rule, asked().reply(INTERLEAVED).tool("c1").completes())
        breaks(self.rule, asked().reply(INTERLEAVED).fails())

    def test_a_batch_that_something_else_ended_is_silent(self) -> None:
        silent(self.rule, asked().reply(INTERLEAVED).tool("c1").cancel().fails("cancelled"))
        silent(self.rule, asked().reply(INTERLEAVED).tool("c1", "raised").fails("tool"))
        silent(self.rule, asked().reply(INTERLEAVED).start("c1").hangs())

    def test_calls_one_after_the_other_are_silent(self) -> None:
        story = asked().reply(call(0, "c1"), call(1, "c2")).tool("c1").completes()
        silent(self.rule, story)


class TestChunkingInvariant:
    """Cutting the same reply anywhere gives the same message, calls and outcome."""

    rule = "stream.chunking-invariant"

    def member(self, name: str, *texts: str, streaming: bool = True) -> Story:
        header = {"family": self.rule, "member": name, "streaming": streaming}
        story = asked(**header).sent(*texts, call(0, "c1"), *STOP)
        story.keep("".join(texts), call(0, "c1")).tool("c1")
        return story.request()

    def test_the_same_of_every_cut_holds(self) -> None:
        one = self.member("one", "I look.").reply("Done.").completes("Done.")
        many = self.member("many", "I ", "look", ".").sent("Do", "ne.", *STOP).completes("Done.")
        holds(self.rule, one, many)

    def test_another_message_call_or_outcome_breaks(self) -> None:
        one = self.member("one", "I look.").reply("Done.").completes("Done.")
        lost = asked(family=self.rule, member="lost").sent("I ", "look.", call(0, "c1"), *STOP)
        lost.keep("look.", call(0, "c1")).tool("c1").request().reply("Done.").completes("Done.")
        assert "requests differ" in breaks(self.rule, one, lost)
        failed = self.member("failed", "I ", "look.").reply("Done.").fails()
        words = breaks(self.rule, one, failed)
        assert "outcomes differ" in words
        assert "'failed'" in words
        twice = self.member("twice", "I ", "look.").tool("c1", keep=False).reply("Done.")
        assert "tool starts differ" in breaks(self.rule, one, twice.completes("Done."))

    def test_prompts_and_block_cuts_do_not_matter(self) -> None:
        one = self.member("one", "I look.").reply("Done.").completes("Done.")
        blocks = asked(family=self.rule, member="blocks").sent("I ", "look.", call(0, "c1"), *STOP)
        blocks.keep("I ", "look.", call(0, "c1")).tool("c1").request().reply("Done.")
        holds(self.rule, one, blocks.completes("Done."))

    def test_a_variant_that_does_not_stream_hides_it(self) -> None:
        one = self.member("one", "I look.", streaming=False).reply("Done.").completes("Done.")
        assert "does not stream" in hidden(self.rule, one, one)

    def test_a_lone_member_and_other_families_are_silent(self) -> None:
        silent(self.rule, self.member("one", "I look."))
        other = asked(family="another", member="a").sent(TextDelta("x"), *STOP)
        silent(self.rule, other, other)
