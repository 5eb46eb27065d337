"""The chapter pairing, told in traces."""

import pytest
from build_pairing import Tale, assistant, batch, breaks, call, hidden, holds, result, silent, turn

from loopspec.rules import RULES, Broke
from loopspec.vocabulary import AssistantMessage, Call, Message, ToolResult, UserMessage


def has_calls(message: Message) -> bool:
    """Whether a message is a reply with calls."""
    return isinstance(message, AssistantMessage) and bool(message.calls)


def renamed(old: str, new: str, *, calls: bool = True, results: bool = True) -> Tale:
    """A batch with c1 and c2 whose target keeps one of them under another id."""

    def change(message: Message) -> Message:
        if isinstance(message, AssistantMessage) and calls:
            blocks = tuple(
                Call(new, block.name, block.arguments)
                if isinstance(block, Call) and block.id == old
                else block
                for block in message.blocks
            )
            return AssistantMessage(blocks)
        if isinstance(message, ToolResult) and results and message.call_id == old:
            return ToolResult(new, message.name, message.text, message.is_error)
        return message

    tale = batch("c1", "c2").tool("c1").tool("c2")
    return tale.spoils(lambda kept: [change(message) for message in kept]).done()


class TestEveryCallAnsweredOnce:
    """In every request each call has exactly one result."""

    rule = "pairing.every-call-answered-once"

    def test_one_result_each_holds(self) -> None:
        holds(self.rule, batch("c1", "c2").tool("c1").tool("c2").done())

    def test_no_result_breaks(self) -> None:
        words = breaks(self.rule, batch("c1").runs("c1").cancel().fails("cancelled").again())
        assert "request 2 has no results for call 'c1'" in words

    def test_two_results_break(self) -> None:
        assert "2 results" in breaks(self.rule, batch("c1").tool("c1").answers("c1").done())

    def test_a_result_before_its_call_is_none(self) -> None:
        tale = batch("c1").tool("c1").spoils(lambda kept: [kept[0], kept[2], kept[1]])
        breaks(self.rule, tale.done())

    def test_an_id_used_again_in_a_later_turn_is_another_call(self) -> None:
        tale = turn(batch("c1").tool("c1"), "c1")
        holds(self.rule, tale.tool("c1").done())

    def test_repeated_ids_and_requests_without_calls_are_silent(self) -> None:
        tale = Tale().prompt().request().reply(call(0, "x"), call(1, "x", '{"value": "y"}'))
        silent(self.rule, tale.answers("x", "x").done())
        silent(self.rule, Tale().prompt().done())


class TestNoOrphanResult:
    """No result without its call."""

    rule = "pairing.no-orphan-result"

    def test_a_result_after_its_call_holds(self) -> None:
        holds(self.rule, batch("c1").tool("c1").done())

    def test_a_result_without_its_call_breaks(self) -> None:
        assert "'c1'" in breaks(self.rule, batch("c1").tool("c1").drops(has_calls).done())

    def test_in_history_too(self) -> None:
        tale = batch("c1").tool("c1").fails("tool").drops(has_calls)
        assert "history" in breaks(self.rule, tale.history())

    def test_a_history_that_shows_no_ids_is_silent(self) -> None:
        silent(self.rule, batch("c1").answers("").fails("tool").history())

    def test_no_results_are_silent(self) -> None:
        silent(self.rule, Tale().prompt().done())


class TestAdjacent:
    """Results follow their reply at once, as one group."""

    rule = "pairing.adjacent"

    def test_a_group_holds(self) -> None:
        holds(self.rule, batch("c1", "c2").tool("c1").tool("c2").done())

    @pytest.mark.parametrize("between", [UserMessage("wait"), assistant("well")])
    def test_a_message_between_call_and_result_breaks(self, between: Message) -> None:
        tale = batch("c1").tool("c1").spoils(lambda kept: [*kept[:-1], between, kept[-1]])
        assert "'c1'" in breaks(self.rule, tale.done())

    def test_a_message_between_results_breaks(self) -> None:
        tale = batch("c1", "c2").tool("c1").tool("c2")
        tale.spoils(lambda kept: [*kept[:-1], UserMessage("wait"), kept[-1]])
        assert "'c2'" in breaks(self.rule, tale.done())

    def test_missing_results_are_for_another_rule(self) -> None:
        silent(self.rule, batch("c1").done())

    def test_an_id_used_again_has_its_result_after_its_own_reply(self) -> None:
        holds(self.rule, turn(batch("c1").tool("c1"), "c1").tool("c1").done())


class TestIdsKept:
    """Ids are the provider's."""

    rule = "pairing.ids-kept"

    def test_the_same_ids_hold(self) -> None:
        holds(self.rule, batch("c1", "c2").tool("c1").tool("c2").done())

    def test_another_id_breaks(self) -> None:
        words = breaks(self.rule, renamed("c2", "call_1"))
        assert "'call_1'" in words
        assert "'c2'" in words

    def test_another_id_in_a_result_breaks(self) -> None:
        assert "results" in breaks(self.rule, renamed("c2", "call_1", calls=False))

    def test_another_id_in_history_breaks(self) -> None:
        tale = batch("c1").tool("c1").done()
        tale.spoils(lambda kept: [
            assistant(("x", '{"value": "c1"}')) if has_calls(item) else item for item in kept
        ])  # fmt: skip
        assert "history" in " ".join(_broken(self.rule, tale.history()))

    def test_ids_that_no_api_takes_may_be_changed(self) -> None:
        tale = Tale().prompt().request().reply(call(0, "a b", '{"value": "c1"}'))
        tale.spoils(lambda kept: [kept[0], assistant(("a_b", '{"value": "c1"}'))])
        silent(self.rule, tale.answers("a_b").done())

    def test_a_reply_that_is_gone_is_silent(self) -> None:
        silent(self.rule, batch("c1").drops(has_calls).fails("tool").again())


def _broken(rule: str, tale: Tale) -> list[str]:
    return [item.words for item in RULES[rule].check(tale.index()) if isinstance(item, Broke)]


class TestNamesKept:
    """A result's tool name, where there is one, is its call's."""

    rule = "pairing.names-kept"

    def test_the_name_of_the_call_holds(self) -> None:
        holds(self.rule, batch("c1").tool("c1").done())

    def test_another_name_breaks(self) -> None:
        tale = batch("c1").result("c1", name="probe_number").done()
        words = breaks(self.rule, tale)
        assert "'probe_number'" in words
        assert "'probe'" in words

    def test_results_without_names_are_silent(self) -> None:
        tale = batch("c1").spoils(lambda kept: [*kept, ToolResult("c1", None, "r")])
        silent(self.rule, tale.done())


class TestSameOrderEverywhere:
    """Events, history and the next request agree on the order of results."""

    rule = "pairing.same-order-everywhere"

    def told(self, tale: Tale, *ids: str) -> Tale:
        for name in ids:
            tale.told("message_end", role="tool", call_id=name)
        return tale

    def test_one_order_everywhere_holds(self) -> None:
        tale = self.told(batch("c1", "c2").tool("c2").tool("c1"), "c2", "c1")
        holds(self.rule, tale.done().history())

    def test_another_order_in_the_events_breaks(self) -> None:
        tale = self.told(batch("c1", "c2").tool("c1").tool("c2"), "c2", "c1").done()
        assert "the events" in breaks(self.rule, tale)

    def test_another_order_in_history_breaks(self) -> None:
        tale = batch("c1", "c2").tool("c1").tool("c2").done()
        tale.spoils(lambda kept: [*kept[:2], kept[3], kept[2], *kept[4:]])
        assert "history" in breaks(self.rule, tale.history())

    def test_the_ends_of_tools_may_come_in_another_order(self) -> None:
        tale = batch("c1", "c2").runs("c2").told("tool_end", call_id="c2")
        tale.runs("c1").told("tool_end", call_id="c1").answers("c1", "c2").done()
        holds(self.rule, tale.history())

    def test_a_request_alone_hides_it(self) -> None:
        hidden(self.rule, batch("c1", "c2", observes=()).tool("c1").tool("c2").done())

    def test_one_result_is_silent(self) -> None:
        silent(self.rule, batch("c1").tool("c1").done().history())


class TestNoneForFailedReply:
    """No result is made up for a call of a reply that failed."""

    rule = "pairing.none-for-failed-reply"

    def tale(self, reason: str = "error") -> Tale:
        return Tale().prompt().request().reply(call(0, "c1"), reason=reason)

    @pytest.mark.parametrize("reason", ["error", "aborted"])
    def test_a_reply_kept_for_display_without_results_holds(self, reason: str) -> None:
        tale = self.tale(reason).fails().history()
        holds(self.rule, tale.drops(has_calls).again())

    def test_a_result_in_a_request_breaks(self) -> None:
        assert "'c1'" in breaks(self.rule, self.tale().aborts("c1").fails().again())

    def test_a_result_in_history_breaks(self) -> None:
        assert "history" in breaks(self.rule, self.tale().aborts("c1").fails().history())

    def test_a_broken_stream_failed_too(self) -> None:
        tale = Tale().prompt().request().sent(call(0, "c1")).fault("disconnect").keep(call(0, "c1"))
        breaks(self.rule, tale.aborts("c1").fails().again())

    def test_the_result_of_a_call_that_was_asked_again_is_silent(self) -> None:
        tale = self.tale().drops(has_calls)
        silent(self.rule, turn(tale, "c1").tool("c1").done())

    def test_a_cancelled_reply_is_silent(self) -> None:
        tale = Tale().prompt().request().sent(call(0, "c1")).cancel().fault("error")
        silent(self.rule, tale.keep(call(0, "c1")).aborts("c1").fails("cancelled").again())

    def test_a_good_reply_is_silent(self) -> None:
        silent(self.rule, batch("c1").tool("c1").done())


class TestInterruptedBatchCompleted:
    """Whatever ends a batch early, each call without a result gets an error result, by its id."""

    rule = "pairing.interrupted-batch-completed"

    def cancelled(self) -> Tale:
        tale = batch("c1", "c2", "c3").tool("c1").starts_tool("c2").cancel()
        return tale.settles_tool("c2", "cancelled")

    def listener(self) -> Tale:
        return batch("c1", "c2", "c3").tool("c1").listener_raises()

    def raised(self) -> Tale:
        return batch("c1", "c2", "c3").tool("c1").tool("c2", "raised", keep=False)

    causes = pytest.mark.parametrize("cause", ["cancelled", "listener", "raised"])

    @causes
    def test_error_results_for_the_rest_hold(self, cause: str) -> None:
        tale: Tale = getattr(self, cause)().aborts("c2", "c3").fails(cause)
        holds(self.rule, tale.history().again())

    @causes
    def test_no_result_for_one_of_them_breaks(self, cause: str) -> None:
        tale: Tale = getattr(self, cause)().aborts("c2").fails(cause)
        assert "no result for 'c3'" in breaks(self.rule, tale.again())

    @causes
    def test_a_result_that_is_no_error_breaks(self, cause: str) -> None:
        tale: Tale = getattr(self, cause)().aborts("c2").answers("c3").fails(cause)
        assert "not an error result" in breaks(self.rule, tale.again())

    def test_a_result_under_another_id_breaks(self) -> None:
        breaks(self.rule, self.cancelled().aborts("c2", "x3").fails("cancelled").again())

    @causes
    def test_what_history_lacks_the_next_request_may_have(self, cause: str) -> None:
        tale: Tale = getattr(self, cause)().aborts("c2", "c3").fails(cause).history("c3")
        silent(self.rule, tale)
        holds(self.rule, tale.again())

    @causes
    def test_without_a_later_request_history_shows_it(self, cause: str) -> None:
        holds(self.rule, getattr(self, cause)().aborts("c2", "c3").fails(cause).history())

    @causes
    def test_the_next_request_decides(self, cause: str) -> None:
        tale: Tale = getattr(self, cause)().aborts("c2", "c3").fails(cause).history()
        breaks(self.rule, tale.drops(lambda item: result(item, "c3")).again())

    def test_the_only_call_too(self) -> None:
        tale = batch("c1").starts_tool("c1").cancel().settles_tool("c1", "cancelled")
        breaks(self.rule, tale.fails("cancelled").again())

    def test_a_reply_that_was_told_and_then_cancelled_too(self) -> None:
        tale = batch("c1").told("message_end", role="assistant", reason="toolUse").cancel()
        breaks(self.rule, tale.fails("cancelled").again())

    def test_a_wire_without_marks_holds(self) -> None:
        tale = self.cancelled().answers("c2", "c3", text="aborted", is_error=None)
        holds(self.rule, tale.fails("cancelled").again())

    def test_a_reply_that_was_erased_is_for_another_rule(self) -> None:
        tale = self.cancelled().drops(lambda item: has_calls(item) or result(item))
        silent(self.rule, tale.fails("cancelled").again())

    def test_a_cancellation_that_met_the_end_of_the_reply_is_silent(self) -> None:
        silent(self.rule, batch("c1").cancel().fails("cancelled").again())

    def test_a_batch_that_went_on_or_was_whole_is_silent(self) -> None:
        silent(self.rule, batch("c1").tool("c1").done())
        silent(self.rule, batch("c1").tool("c1").cancel().fails("cancelled").again())
        silent(self.rule, batch("c1").tool("c1").fails("limit").again())

    def test_a_run_that_hangs_has_not_ended_its_batch(self) -> None:
        silent(self.rule, batch("c1").starts_tool("c1").cancel().hangs().history())


class TestSkippedNeverRun:
    """Such a call is not run then or later, and no request follows in that run."""

    rule = "pairing.skipped-never-run"

    def cancelled(self, **header: object) -> Tale:
        return batch("c1", "c2", **header).starts_tool("c1").cancel().settles_tool("c1")

    def test_nothing_more_holds(self) -> None:
        holds(self.rule, self.cancelled().aborts("c1", "c2").fails("cancelled").again())

    def test_the_next_tool_after_the_cancellation_breaks(self) -> None:
        tale = self.cancelled().answers("c1").tool("c2").fails("cancelled")
        words = breaks(self.rule, tale)
        assert "a cancellation" in words
        assert '{"value": "c2"}' in words

    def test_the_call_in_a_later_run_breaks(self) -> None:
        tale = self.cancelled().aborts("c1", "c2").fails("cancelled").prompt().request()
        breaks(self.rule, tale.runs("c2").reply("Done.").completes("Done."))

    def test_a_request_after_the_cancellation_breaks(self) -> None:
        assert "request 2 followed" in breaks(self.rule, self.cancelled().aborts("c1", "c2").done())

    def test_what_began_before_the_cancel_call_returned_holds(self) -> None:
        tale = batch("c1", "c2").starts_tool("c1").cancel_sent().starts_tool("c2").cancel_returned()
        holds(self.rule, tale.aborts("c1", "c2").fails("cancelled"))

    def test_a_racing_cancellation_counts_from_the_settlement(self) -> None:
        tale = self.cancelled(grade="racing").answers("c1").tool("c2").fails("cancelled")
        silent(self.rule, tale.again())
        late = self.cancelled(grade="racing").aborts("c1", "c2").fails("cancelled").runs("c2")
        breaks(self.rule, late)

    def test_a_tool_after_a_failing_listener_breaks(self) -> None:
        claims = {"listener_failure": "fails", "tools": "sequential"}
        tale = batch("c1", "c2", claims=claims).tool("c1").listener_raises().tool("c2")
        assert "listener" in breaks(self.rule, tale.fails("listener"))

    def test_tools_that_were_dispatched_together_may_have_begun(self) -> None:
        claims = {"listener_failure": "fails", "tools": "parallel-source-order"}
        tale = batch("c1", "c2", claims=claims).starts_tool("c1").listener_raises()
        silent(self.rule, tale.runs("c2").settles_tool("c1").fails("listener"))

    def test_a_listener_that_is_ignored_ends_nothing(self) -> None:
        claims = {"listener_failure": "ignored", "tools": "sequential"}
        tale = batch("c1", "c2", claims=claims).tool("c1").listener_raises().tool("c2")
        silent(self.rule, tale.done())

    def test_a_tool_after_the_failure_of_the_run_breaks(self) -> None:
        tale = batch("c1", "c2").tool("c1", "raised").fails("tool").runs("c2")
        breaks(self.rule, tale)

    def test_a_whole_batch_is_silent(self) -> None:
        silent(self.rule, batch("c1").tool("c1").cancel().fails("cancelled").again())
        silent(self.rule, batch("c1").tool("c1").done())


class TestSettledResultStays:
    """A result that its tool had delivered before the cancellation is never replaced."""

    rule = "pairing.settled-result-stays"

    def tale(self, at: str = "in tool c2", **header: object) -> Tale:
        tale = batch("c1", "c2", **header).starts_tool("c1").starts_tool("c2").settles_tool("c1")
        return tale.cancel_sent(at).cancel_returned().settles_tool("c2", "cancelled")

    def test_the_real_result_holds(self) -> None:
        holds(self.rule, self.tale().answers("c1").aborts("c2").fails("cancelled").again())

    def test_an_aborted_one_breaks(self) -> None:
        words = breaks(self.rule, self.tale().aborts("c1", "c2").fails("cancelled").again())
        assert "result of c1" in words
        assert "aborted" in words

    def test_an_error_mark_on_it_breaks(self) -> None:
        tale = self.tale().answers("c1", is_error=True).aborts("c2").fails("cancelled")
        breaks(self.rule, tale.again())

    def test_a_batch_that_was_over_before_the_cancellation_counts(self) -> None:
        tale = batch("c1").runs("c1").answers("c1").request().cancel().fails("cancelled")
        breaks(self.rule, tale.spoils(lambda kept: kept[:-1]).aborts("c1").again())

    def test_where_the_target_s_knowledge_is_unknown_it_is_hidden(self) -> None:
        hidden(self.rule, self.tale(grade="racing").aborts("c1", "c2").fails("cancelled").again())
        hidden(self.rule, self.tale("listener of x").aborts("c1", "c2").fails("cancelled").again())

    def test_unless_the_target_told_the_result(self) -> None:
        tale = batch("c1", "c2", grade="racing").runs("c1").told("tool_end", call_id="c1").cancel()
        breaks(self.rule, tale.aborts("c1", "c2").fails("cancelled").again())

    def test_later_results_errors_and_lost_replies_are_silent(self) -> None:
        late = batch("c1").starts_tool("c1").cancel().settles_tool("c1").aborts("c1")
        silent(self.rule, late.fails("cancelled").again())
        error = batch("c1", "c2").runs("c1", "raised").cancel().aborts("c1", "c2")
        silent(self.rule, error.fails("cancelled").again())
        lost = self.tale().drops(has_calls)
        silent(self.rule, lost.fails("cancelled").again())

    def test_without_a_cancellation_it_is_silent(self) -> None:
        silent(self.rule, batch("c1").runs("c1").aborts("c1").done())


class TestRepeatedIds:
    """Empty or repeated ids never make a request with two calls or results of one id."""

    rule = "pairing.repeated-ids"

    def tale(self, id: str = "same") -> Tale:
        tale = Tale().prompt().request()
        return tale.reply(call(0, id, '{"value": "a"}'), call(1, id, '{"value": "b"}'))

    @pytest.mark.parametrize("id", ["same", ""])
    def test_sending_them_as_they_came_breaks(self, id: str) -> None:
        words = breaks(self.rule, self.tale(id).answers(id, id).done())
        assert "2 calls" in words

    def test_two_results_of_one_id_break(self) -> None:
        tale = self.tale().spoils(lambda kept: [*kept[:-1], assistant(("same", '{"value": "a"}'))])
        assert "2 results" in breaks(self.rule, tale.answers("same", "same").done())

    def test_making_them_unique_holds(self) -> None:
        unique = assistant(("same", '{"value": "a"}'), ("same-2", '{"value": "b"}'))
        tale = self.tale().spoils(lambda kept: [*kept[:-1], unique])
        holds(self.rule, tale.answers("same", "same-2").done())

    def test_refusing_the_reply_holds(self) -> None:
        holds(self.rule, self.tale().drops(has_calls).fails().again())

    def test_the_id_may_come_again_in_a_later_turn(self) -> None:
        tale = self.tale().drops(has_calls).fails().prompt()
        holds(self.rule, turn(tale, "same").tool("same").done())

    def test_ids_used_again_in_later_turns_are_silent(self) -> None:
        silent(self.rule, turn(batch("c1").tool("c1"), "c1").tool("c1").done())
