"""The chapter history, told in traces."""

import pytest
from build_pairing import Tale, assistant, batch, breaks, call, hidden, holds, result, silent, turn

from loopspec.rules import RULES
from loopspec.trace import Finding
from loopspec.vocabulary import (
    AssistantMessage,
    Message,
    OtherMessage,
    Piece,
    Reason,
    Reasoning,
    ReasoningDelta,
    SystemMessage,
    UserMessage,
)


def is_reply(message: Message) -> bool:
    """Whether a message is the model's."""
    return isinstance(message, AssistantMessage)


def failed(*pieces: str | list[Piece], **header: object) -> Tale:
    """A prompt whose reply ends with ``error`` after these pieces; the target keeps it."""
    return Tale(**header).prompt().request().reply(*pieces, reason="error", error="overloaded")


class TestCompletedMessagesStay:
    """What completed before a failure is still there."""

    rule = "history.completed-messages-stay"

    def tale(self) -> Tale:
        """An answer, then a batch that was answered, then a failure."""
        tale = Tale().prompt().request().reply("The first.").completes("The first.").prompt()
        return turn(tale, "c1").tool("c1").request().fault("disconnect")

    def test_everything_holds(self) -> None:
        holds(self.rule, self.tale().fails().history().again())

    def test_a_lost_answer_of_an_earlier_run_breaks(self) -> None:
        tale = self.tale().spoils(lambda kept: [kept[0], *kept[2:]]).fails().again()
        assert "the reply to request 1" in breaks(self.rule, tale)

    def test_a_lost_batch_breaks(self) -> None:
        tale = self.tale().spoils(lambda kept: kept[:3]).fails().again()
        assert "the reply to request 2" in breaks(self.rule, tale)

    def test_a_lost_result_breaks(self) -> None:
        tale = self.tale().drops(result).fails().again()
        assert "the result of 'c1'" in breaks(self.rule, tale)

    def test_in_history_too(self) -> None:
        tale = self.tale().spoils(lambda kept: kept[:3]).fails()
        assert "history" in breaks(self.rule, tale.history())

    def test_a_batch_that_a_cancellation_interrupted_stays(self) -> None:
        tale = batch("c1", "c2").runs("c1").cancel()
        tale.drops(lambda item: not isinstance(item, UserMessage)).fails("cancelled")
        breaks(self.rule, tale.again())

    def test_a_batch_that_was_told_stays(self) -> None:
        told = {"role": "assistant", "reason": "toolUse"}
        tale = batch("c1").told("message_end", **told).listener_raises().drops(is_reply)
        breaks(self.rule, tale.fails("listener").again())

    def test_a_batch_with_an_unknown_tool_stays(self) -> None:
        tale = Tale().prompt().request().reply(call(0, "c1", "{}", "no_such_tool"))
        breaks(self.rule, tale.drops(is_reply).fails("tool").again())

    def test_a_reply_that_the_target_may_refuse_is_silent(self) -> None:
        cut = Tale().prompt().request().reply(call(0, "c1", '{"value": "cut'))
        silent(self.rule, cut.drops(is_reply).fails("tool").again())
        twins = Tale().prompt().request().reply(call(0, "x"), call(1, "x"))
        silent(self.rule, twins.drops(is_reply).fails("tool").again())

    def test_a_cancellation_on_the_end_of_an_answer_is_silent(self) -> None:
        tale = Tale().prompt().request().reply("The answer.").told("message_end", role="assistant")
        silent(self.rule, tale.cancel().drops(is_reply).fails("cancelled").again())

    def test_a_reply_that_may_not_have_been_seen_is_silent(self) -> None:
        silent(self.rule, batch("c1").cancel().drops(is_reply).fails("cancelled").again())

    def test_without_a_failure_it_is_silent(self) -> None:
        silent(self.rule, batch("c1").tool("c1").drops(is_reply).done().again())


class TestTextWithCallsKept:
    """Text beside calls is sent back with them."""

    rule = "history.text-with-calls-kept"

    def tale(self) -> Tale:
        return Tale().prompt().request().reply("I will ", "look. ", call(0, "c1")).runs("c1")

    def kept(self, *messages: Message) -> Tale:
        return self.tale().spoils(lambda had: [had[0], *messages]).answers("c1").done()

    def test_the_text_holds(self) -> None:
        holds(self.rule, self.tale().answers("c1").done())

    def test_a_trimmed_text_holds(self) -> None:
        holds(self.rule, self.kept(assistant("I will look.", ("c1", "{}"))))

    def test_a_text_in_a_message_next_to_it_holds(self) -> None:
        holds(self.rule, self.kept(assistant("I will look. "), assistant(("c1", "{}"))))

    @pytest.mark.parametrize("text", ["", "look. "])
    def test_a_lost_text_breaks(self, text: str) -> None:
        words = breaks(self.rule, self.kept(assistant(text, ("c1", "{}"))))
        assert "'I will look. '" in words

    def test_calls_without_text_are_silent(self) -> None:
        silent(self.rule, batch("c1").tool("c1").done())


class TestNoDrafts:
    """No delta or draft is a message of its own."""

    rule = "history.no-drafts"

    def tale(self, *extra: str) -> Tale:
        tale = Tale().prompt().request().reply("One, ", "two, ", "three.").completes("One, two, three.")
        drafts = [assistant(text) for text in extra]
        return tale.spoils(lambda kept: [kept[0], *drafts, *kept[1:]])

    def test_one_message_holds(self) -> None:
        holds(self.rule, self.tale().history().again())

    @pytest.mark.parametrize("draft", ["One, ", "One, two,", "two, ", "two, three."])
    def test_a_draft_in_a_request_breaks(self, draft: str) -> None:
        assert draft.strip() in breaks(self.rule, self.tale(draft).again())

    def test_a_draft_in_history_breaks(self) -> None:
        assert "history" in breaks(self.rule, self.tale("One, ").history())

    def test_the_deltas_of_a_failed_reply_break(self) -> None:
        tale = Tale().prompt().request().sent("One, ", "two.").fault("disconnect")
        tale.spoils(lambda kept: [*kept, assistant("One, "), assistant("two.")])
        breaks(self.rule, tale.fails().history())

    def test_one_prefix_of_a_cancelled_reply_holds(self) -> None:
        tale = Tale().prompt().request().sent("One, ", "two, ").cancel().sent("three.")
        tale.spoils(lambda kept: [*kept, assistant("One, two, ", interrupted=True)])
        holds(self.rule, tale.fails("cancelled").again())

    def test_two_failed_replies_with_the_same_words_may_be_displayed_both(self) -> None:
        tale = Tale().prompt()
        for _ in range(2):
            tale.request().reply("One, ", "two.", reason="error")
        holds(self.rule, tale.fails().history())

    def test_a_block_before_a_call_may_stand_alone(self) -> None:
        tale = Tale().prompt().request().reply("I will look.", call(0, "c1"), "Wait.").tool("c1")
        tale.spoils(lambda kept: [kept[0], assistant("I will look."), *kept[1:]])
        holds(self.rule, tale.done())

    def test_a_word_that_another_reply_said_is_no_draft(self) -> None:
        tale = Tale().prompt().request().reply("One, ").completes("One, ").prompt()
        holds(self.rule, tale.request().reply("One, ", "two.").completes("One, two.").again())

    def test_replies_in_one_piece_are_silent(self) -> None:
        silent(self.rule, Tale().prompt().done().again())


class TestPromptOnce:
    """Each accepted prompt is in every later request exactly once."""

    rule = "history.prompt-once"

    def lost(self, message: Message) -> bool:
        return isinstance(message, UserMessage) and "[prompt 1]" in message.text

    def test_a_prompt_that_was_answered_holds(self) -> None:
        holds(self.rule, Tale().prompt().done().again())

    def test_adjacent_prompts_may_be_merged(self) -> None:
        tale = Tale().prompt().request().fault("status").fails().prompt()
        tale.spoils(lambda kept: [UserMessage("[prompt 1]\n\n[prompt 2]")])
        holds(self.rule, tale.done())

    @pytest.mark.parametrize("reason", ["provider", "cancelled"])
    def test_a_prompt_that_is_gone_after_its_run_ended_badly_breaks(self, reason: str) -> None:
        tale = Tale().prompt().request().sent("A").fault("disconnect")
        tale = tale if reason == "provider" else Tale().prompt().request().sent("A").cancel()
        words = breaks(self.rule, tale.drops(self.lost).fails(reason).again())
        assert "0 times" in words

    def test_a_prompt_that_is_there_twice_breaks(self) -> None:
        tale = Tale().prompt().request().fault("status")
        tale.spoils(lambda kept: [*kept, *kept]).request().reply("Done.").completes("Done.")
        assert "2 times" in breaks(self.rule, tale)

    def test_a_refusal_may_drop_its_prompt_where_that_is_claimed(self) -> None:
        def tale(claims: dict[str, str]) -> Tale:
            told = Tale(claims).prompt().request().reply(reason="refusal")
            return told.drops(self.lost).fails("refusal").again()

        breaks(self.rule, tale({}))
        holds(self.rule, tale({"refused_prompt": "dropped"}))

    def test_a_prompt_that_was_never_taken_up_is_silent(self) -> None:
        busy = Tale().prompt().drops(self.lost).fails("busy", outcome="refused")
        silent(self.rule, busy.again())
        early = Tale().prompt().cancel().drops(self.lost).fails("cancelled")
        silent(self.rule, early.again())

    def test_a_run_apart_need_not_be_known(self) -> None:
        tale = Tale({"concurrent_prompt": "apart"}).prompt().request().prompt(running=True)
        tale.spoils(lambda kept: kept[1:]).request().reply("B").completes("B")
        tale.spoils(lambda kept: [UserMessage("[prompt 1]")])
        tale.completes("A", prompt=1)
        holds(self.rule, tale.again())


class TestFailedReplyNotSent:
    """Content of a reply that failed without a cancellation is in no later request."""

    rule = "history.failed-reply-not-sent"

    def test_a_request_without_it_holds(self) -> None:
        holds(self.rule, failed("It must be ").drops(is_reply).fails().again())

    def test_its_text_breaks(self) -> None:
        assert "It must be" in breaks(self.rule, failed("It must be ").fails().again())

    def test_a_part_of_its_text_breaks(self) -> None:
        tale = failed("It must ", "be ").spoils(lambda kept: [kept[0], assistant("It must")])
        breaks(self.rule, tale.fails().again())

    def test_its_text_in_another_s_mouth_breaks(self) -> None:
        tale = failed("It must be ").spoils(lambda kept: [UserMessage(f"{kept[0].text} It must be")])
        breaks(self.rule, tale.fails().again())

    def test_its_call_breaks(self) -> None:
        assert "call 'c1'" in breaks(self.rule, failed(call(0, "c1")).fails().again())

    def test_its_reasoning_breaks(self) -> None:
        tale = Tale().prompt().request().sent(ReasoningDelta("Hm, which?")).fault("disconnect")
        tale.spoils(lambda kept: [*kept, AssistantMessage((Reasoning("Hm, which?"),))])
        breaks(self.rule, tale.fails().again())

    def test_an_empty_message_in_its_place_breaks(self) -> None:
        tale = Tale().prompt().request().fault("status", "500: overloaded").keep()
        assert "without content" in breaks(self.rule, tale.fails().again())

    def test_a_retry_that_says_the_same_holds(self) -> None:
        tale = failed("The answer ").drops(is_reply).request().reply("The answer is 3.")
        holds(self.rule, tale.completes("The answer is 3.").again())

    def test_a_retry_s_request_is_looked_at_too(self) -> None:
        tale = failed("It must be ").request().reply("No.").drops(lambda m: m == assistant("It must be "))
        breaks(self.rule, tale.completes("No."))

    def test_a_reply_that_was_cancelled_is_silent(self) -> None:
        tale = Tale().prompt().request().sent("It must be ").cancel().fault("error").keep("It must be ")
        silent(self.rule, tale.fails("cancelled").again())

    def test_a_reply_that_had_been_accepted_before_it_failed_is_silent(self) -> None:
        tale = Tale().prompt().request().sent("It is 3.", Reason("stop")).fault("error").keep("It is 3.")
        silent(self.rule, tale.completes("It is 3.").again())

    def test_good_replies_are_silent(self) -> None:
        silent(self.rule, Tale().prompt().done().again())


class TestFailedReplyDisplay:
    """A failed reply is absent, or kept for display, or recorded as an attempt, as claimed."""

    rule = "history.failed-reply-display"

    def tale(self, value: str, **header: object) -> Tale:
        return failed("It must be ", claims={"failed_attempt": value}, **header)

    def test_kept_as_claimed_holds(self) -> None:
        holds(self.rule, self.tale("display").fails().history())

    def test_not_kept_against_the_claim_breaks(self) -> None:
        words = breaks(self.rule, self.tale("display").drops(is_reply).fails().history())
        assert "is not in" in words

    def test_absent_as_claimed_holds(self) -> None:
        holds(self.rule, self.tale("absent").drops(is_reply).fails().history())

    def test_kept_against_the_claim_breaks(self) -> None:
        assert "absent" in breaks(self.rule, self.tale("absent").fails().history())

    def test_an_attempt_as_claimed_holds(self) -> None:
        holds(self.rule, self.tale("attempt").told("attempt").fails())

    def test_no_attempt_against_the_claim_breaks(self) -> None:
        breaks(self.rule, self.tale("attempt").fails())

    def test_an_attempt_told_only_after_the_retry_began_breaks(self) -> None:
        tale = self.tale("attempt").drops(is_reply).request().told("attempt").reply("Done.")
        breaks(self.rule, tale.completes("Done."))

    def test_a_target_that_shows_neither_hides_it(self) -> None:
        hidden(self.rule, self.tale("absent", observes=("events",)).fails())
        hidden(self.rule, self.tale("display", observes=("events",)).fails())
        hidden(self.rule, self.tale("attempt", observes=("history",)).fails())

    def test_a_broken_stream_need_not_be_displayed(self) -> None:
        tale = Tale({"failed_attempt": "display"}).prompt().request().sent("It ").fault("disconnect")
        silent(self.rule, tale.fails().history())

    def test_failures_without_content_and_cancelled_replies_are_silent(self) -> None:
        bare = Tale({"failed_attempt": "absent"}).prompt().request().fault("status")
        silent(self.rule, bare.fails().history())
        cut = Tale({"failed_attempt": "absent"}).prompt().request().sent("It ").cancel()
        silent(self.rule, cut.keep("It ").fails("cancelled").history())


class TestSendable:
    """Every request would be accepted by the API it is sent to."""

    rule = "history.sendable"

    def test_a_history_without_findings_holds(self) -> None:
        holds(self.rule, batch("c1").tool("c1").done())

    def test_a_finding_breaks_and_is_quoted(self) -> None:
        finding = Finding("C1", "the calls c1 have no results")
        words = breaks(self.rule, batch("c1").request(findings=(finding,)).fails())
        assert "C1: the calls c1 have no results" in words

    def test_a_first_request_is_silent(self) -> None:
        silent(self.rule, Tale().prompt().done())

    def test_auxiliary_requests_are_not_there(self) -> None:
        finding = Finding("C1", "no")
        silent(self.rule, Tale().prompt().request(serves="auxiliary", findings=(finding,)).done())


class TestOnlyMessagesReachTheModel:
    """Nothing but messages, results and the system prompt is sent."""

    rule = "history.only-messages-reach-the-model"

    def test_messages_hold(self) -> None:
        tale = Tale().prompt().spoils(lambda kept: [SystemMessage("You are a loop."), *kept])
        holds(self.rule, turn(tale, "c1").tool("c1").done())

    def test_anything_else_breaks(self) -> None:
        tale = Tale().prompt().spoils(lambda kept: [*kept, OtherMessage("interrupted")])
        assert "'interrupted'" in breaks(self.rule, tale.done())

    def test_a_system_message_in_the_middle_breaks(self) -> None:
        tale = Tale().prompt().spoils(lambda kept: [*kept, SystemMessage("(interrupted)")])
        assert "in the middle" in breaks(self.rule, tale.done())

    def test_no_request_is_silent(self) -> None:
        silent(self.rule, Tale().prompt().cancel().fails("cancelled"))


class TestFailuresDoNotPileUp:
    """k failures in a row leave the next request as one would, but for their prompts."""

    rule = "history.failures-do-not-pile-up"

    def member(self, failures: int, *each: Message) -> Tale:
        tale = Tale(family=self.rule, member=str(failures)).prompt().done()
        for _ in range(failures):
            tale.prompt().request().fault("disconnect").fails()
            tale.spoils(lambda kept: [*kept, *each])
        return tale.again()

    def test_the_same_but_for_prompts_holds(self) -> None:
        holds(self.rule, self.member(1), self.member(2), self.member(3))

    @pytest.mark.parametrize("left", [AssistantMessage(()), UserMessage("(it failed)")])
    def test_something_for_each_failure_breaks(self, left: Message) -> None:
        words = breaks(self.rule, *(self.member(n, left) for n in (1, 2)))
        assert "after 2 failures" in words

    def test_the_break_names_the_member(self) -> None:
        family = [self.member(n, AssistantMessage(())).index() for n in (2, 1)]
        assert [item.member for item in RULES[self.rule].check(family)] == ["2"]

    def test_merged_prompts_are_prompts(self) -> None:
        merged = Tale(family=self.rule, member="2").prompt().done()
        for _ in range(2):
            merged.prompt().request().fault("disconnect").fails()
        merged.prompt().spoils(
            lambda kept: [*kept[:2], UserMessage("\n".join(item.text for item in kept[2:]))]
        )
        holds(self.rule, self.member(1), merged.done())

    def test_runs_that_did_not_fail_are_silent(self) -> None:
        retried = Tale(family=self.rule, member="2").prompt().request().fault("disconnect").done()
        silent(self.rule, self.member(1), retried.again())
        silent(self.rule, self.member(1))


class TestArgumentsUnaltered:
    """Arguments are sent back as they came; malformed ones in a form that means nothing else."""

    rule = "history.arguments-unaltered"

    def tale(self, sent: str, back: str, tool: str = "probe") -> Tale:
        tale = Tale().prompt().request().reply(call(0, "c1", sent, tool), reason="toolUse")
        return tale.spoils(lambda kept: [kept[0], assistant(("c1", back))]).aborts("c1").done()

    @pytest.mark.parametrize(
        ("sent", "back"),
        [
            ('{"value": "a", "n": 1.0}', '{"n":1,"value":"a"}'),
            ('{"value": "é"}', '{"value": "\\u00e9"}'),
            ('{"value": "cut', "{}"),
            ('{"value": "cut', '{"value": "cut'),
            ('{"value": "cut', '{"raw": "{\\"value\\": \\"cut"}'),
            ('{"value": "cut', '"{\\"value\\": \\"cut"'),
            ("null", "{}"),
            ("[1]", "[1]"),
            ("", "{}"),
            ("", ""),
        ],
    )
    def test_the_same_value_or_nothing_holds(self, sent: str, back: str) -> None:
        holds(self.rule, self.tale(sent, back))

    @pytest.mark.parametrize(
        ("sent", "back"),
        [
            ('{"value": "a"}', '{"value": "b"}'),
            ('{"value": 1}', '{"value": "1"}'),
            ('{"value": 1}', '{"value": true}'),
            ('{"value": "a"}', "{}"),
            ('{"value": "cut', '{"value": "cut"}'),
            ('{"value": "cut', '{"value": "cu'),
            ("", '{"value": ""}'),
            ("[1]", "[2]"),
        ],
    )
    def test_another_meaning_breaks(self, sent: str, back: str) -> None:
        assert "'c1'" in breaks(self.rule, self.tale(sent, back))

    def test_failed_and_lost_replies_are_silent(self) -> None:
        silent(self.rule, failed(call(0, "c1")).fails().again())
        silent(self.rule, batch("c1").drops(is_reply).fails("tool").again())

    def test_replies_without_calls_are_silent(self) -> None:
        silent(self.rule, Tale().prompt().done().again())
