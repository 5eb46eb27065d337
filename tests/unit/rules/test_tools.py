"""The chapter tools, told in traces."""

import pytest
from build_pairing import Tale, batch, breaks, call, hidden, holds, result, silent

from loopspec.rules import RULES
from loopspec.rules.batches import PROBES, objection
from loopspec.scenario import PROBE_TOOLS
from loopspec.trace import ToolSettled
from loopspec.vocabulary import Reason, ToolResult


def one(arguments: str, tool: str = "probe", claims: dict[str, str] | None = None, **header: object) -> Tale:
    """A prompt whose reply has one call, c1, with these arguments."""
    tale = Tale(claims, **header).prompt().request()
    return tale.reply(call(0, "c1", arguments, tool), reason="toolUse")


def test_the_rules_know_the_probes_as_targets_are_given_them() -> None:
    """The few facts that rules hold about the probe tools are those of their schemas."""
    given = {
        name: {key: (part["type"], key in schema["required"]) for key, part in schema["properties"].items()}
        for name, schema in PROBE_TOOLS.items()
    }
    assert given == PROBES


@pytest.mark.parametrize(
    ("tool", "arguments", "fits"),
    [
        ("probe", '{"value": "a"}', True),
        ("probe", '{"value": "a", "more": 1}', True),
        ("probe", '{"value": 1}', False),
        ("probe", "{}", False),
        ("probe", '{"value": "a', False),
        ("probe", '"a"', False),
        ("probe_number", '{"amount": 3}', True),
        ("probe_number", '{"amount": 3.0}', True),
        ("probe_number", '{"amount": 3.5}', False),
        ("probe_number", '{"amount": true}', False),
        ("probe_number", '{"amount": Infinity}', False),
        ("probe_optional", "{}", True),
        ("probe_optional", '{"note": null}', True),
        ("probe_optional", "null", False),
    ],
)
def test_what_fits_a_probe(tool: str, arguments: str, fits: bool) -> None:
    """An object with the required properties of the declared types fits."""
    assert (objection(tool, arguments) is None) is fits


class TestExecutedOnce:
    """Each call of an accepted reply starts at most once, and exactly once if nothing ended it."""

    rule = "tools.executed-once"

    def test_each_call_once_holds(self) -> None:
        holds(self.rule, batch("c1", "c2").tool("c1").tool("c2").done())

    def test_twice_breaks(self) -> None:
        assert "2 times" in breaks(self.rule, batch("c1").runs("c1").tool("c1").done())

    def test_again_after_the_next_request_breaks(self) -> None:
        tale = batch("c1").tool("c1").request().runs("c1").reply("Done.").completes("Done.")
        assert "2 times" in breaks(self.rule, tale)

    def test_never_breaks(self) -> None:
        words = breaks(self.rule, batch("c1").answers("c1").done())
        assert "'c1'" in words
        assert "never started" in words

    def test_a_batch_that_was_left_out_breaks(self) -> None:
        breaks(self.rule, batch("c1").completes(""))

    def test_other_arguments_break(self) -> None:
        words = breaks(self.rule, batch("c1").strays('{"value": "x"}').answers("c1").done())
        assert '{"value": "x"}' in words
        assert '{"value": "c1"}' in words

    def test_a_start_that_no_call_asks_for_breaks(self) -> None:
        words = breaks(self.rule, batch("c1").tool("c1").strays("{}", "probe_optional").done())
        assert "no call" in words

    def test_twins_of_one_id_each_start_once(self) -> None:
        tale = Tale().prompt().request()
        tale.reply(call(0, "same", '{"value": "a"}'), call(1, "same", '{"value": "b"}'))
        tale.runs("same", arguments='{"value": "a"}').runs("same", arguments='{"value": "b"}')
        holds(self.rule, tale.fails())

    def test_a_conversion_of_the_arguments_is_the_call(self) -> None:
        tale = one('{"note": "n", "more": 1}', "probe_optional")
        holds(self.rule, tale.strays('{"note": "n"}', "probe_optional").answers("c1").done())

    @pytest.mark.parametrize("reason", ["error", "length", "refusal"])
    def test_replies_that_were_not_accepted_are_silent(self, reason: str) -> None:
        tale = Tale().prompt().request().reply(call(0, "c1"), reason=reason)
        silent(self.rule, tale.fails())

    def test_a_reply_with_two_reasons_that_differ_is_silent(self) -> None:
        tale = Tale().prompt().request().sent(Reason("error")).reply(call(0, "c1"))
        silent(self.rule, tale.fails())

    def test_a_batch_that_was_ended_is_silent_about_the_rest(self) -> None:
        holds(self.rule, batch("c1", "c2").starts_tool("c1").cancel().settles_tool("c1", "cancelled")
              .aborts("c1", "c2").fails("cancelled"))  # fmt: skip
        silent(self.rule, batch("c1").listener_raises().fails("listener"))
        silent(self.rule, batch("c1").fails("limit"))

    def test_after_a_claimed_raise_siblings_may_stay_unstarted(self) -> None:
        holds(self.rule, batch("c1", "c2", claims={"tool_exception": "raises"}).tool("c1", "raised")
              .fails("tool"))  # fmt: skip

    def test_after_a_failure_that_is_answered_they_may_not(self) -> None:
        claims = {"tool_exception": "answers"}
        breaks(self.rule, batch("c1", "c2", claims=claims).tool("c1", "raised").fails("tool"))

    def test_a_call_without_its_end_need_not_start(self) -> None:
        tale = Tale().prompt().request().reply(call(0, "c1", ended=False), call(1, "c2"))
        silent(self.rule, tale.fails())


class TestFailingCalls:
    """A call that fails gets an error result while its siblings run, or fails the run, as claimed."""

    cases = pytest.mark.parametrize(
        ("rule", "claim", "arguments", "tool"),
        [
            ("tools.unknown-tool", "unknown_tool", "{}", "no_such_tool"),
            ("tools.invalid-arguments", "invalid_arguments", '{"value": 1}', "probe"),
            ("tools.invalid-arguments", "invalid_arguments", '{"value": "cut', "probe"),
            ("tools.exception", "tool_exception", '{"value": "c1"}', "probe"),
        ],
    )

    def tale(self, claims: dict[str, str], arguments: str, tool: str) -> Tale:
        tale = Tale(claims).prompt().request()
        tale.reply(call(0, "c1", arguments, tool), call(1, "c2"), reason="toolUse")
        return tale.runs("c1", "raised") if arguments == '{"value": "c1"}' else tale

    @cases
    def test_an_error_result_a_sibling_and_a_request_hold(
        self, rule: str, claim: str, arguments: str, tool: str
    ) -> None:
        tale = self.tale({claim: "answers"}, arguments, tool)
        holds(rule, tale.answers("c1", text="no", is_error=True).tool("c2").done())

    @cases
    def test_no_result_breaks(self, rule: str, claim: str, arguments: str, tool: str) -> None:
        words = breaks(rule, self.tale({claim: "answers"}, arguments, tool).tool("c2").done())
        assert "no result for 'c1'" in words

    @cases
    def test_a_sibling_that_never_ran_breaks(self, rule: str, claim: str, arguments: str, tool: str) -> None:
        tale = self.tale({claim: "answers"}, arguments, tool).aborts("c1", "c2").done()
        assert "without running 'c2'" in breaks(rule, tale)

    @cases
    def test_a_run_that_ends_breaks(self, rule: str, claim: str, arguments: str, tool: str) -> None:
        tale = self.tale({claim: "answers"}, arguments, tool).aborts("c1").tool("c2").fails("tool")
        assert "no further request" in breaks(rule, tale)

    @cases
    def test_where_it_is_claimed_the_run_fails(
        self, rule: str, claim: str, arguments: str, tool: str
    ) -> None:
        holds(rule, self.tale({claim: "raises"}, arguments, tool).aborts("c1", "c2").fails("tool"))

    @cases
    def test_then_going_on_breaks(self, rule: str, claim: str, arguments: str, tool: str) -> None:
        tale = self.tale({claim: "raises"}, arguments, tool).aborts("c1").tool("c2")
        assert "request 2 followed" in breaks(rule, tale.done())

    @cases
    def test_then_completing_breaks(self, rule: str, claim: str, arguments: str, tool: str) -> None:
        tale = self.tale({claim: "raises"}, arguments, tool).aborts("c1", "c2")
        assert "completed" in breaks(rule, tale.completes(""))

    @cases
    def test_a_cancelled_batch_is_silent(self, rule: str, claim: str, arguments: str, tool: str) -> None:
        tale = self.tale({claim: "answers"}, arguments, tool)
        silent(rule, tale.runs("c2").cancel().aborts("c1", "c2").fails("cancelled"))

    @cases
    def test_good_calls_are_silent(self, rule: str, claim: str, arguments: str, tool: str) -> None:
        silent(rule, batch("c1", claims={claim: "answers"}).tool("c1").done())

    def test_a_tool_that_the_target_offers_is_not_unknown(self) -> None:
        tale = one("{}", "probe_optional", {"unknown_tool": "answers"})
        silent("tools.unknown-tool", tale.answers("c1").done())

    def test_no_arguments_for_a_tool_that_needs_none_is_silent(self) -> None:
        tale = one("", "probe_optional", {"invalid_arguments": "answers"})
        silent("tools.invalid-arguments", tale.fails("tool"))

    @pytest.mark.parametrize("claimed", ["answers", "raises"])
    def test_members_that_the_schema_does_not_name_are_silent(self, claimed: str) -> None:
        claims = {"invalid_arguments": claimed}
        for told in (
            one('{"value": "a", "more": 1}', claims=claims).aborts("c1").done(),
            one('{"value": "a", "more": 1}', claims=claims).fails("tool"),
        ):
            silent("tools.invalid-arguments", told)
            silent("tools.executed-once", told)

    def test_a_converted_argument_is_silent(self) -> None:
        tale = one('{"amount": "12"}', "probe_number", {"invalid_arguments": "answers"})
        silent("tools.invalid-arguments", tale.strays('{"amount": 12}', "probe_number").fails("tool"))


class TestFailureLeavesHistoryPaired:
    """Whichever is claimed, no call is left without a result, and no sibling's result is lost."""

    rule = "tools.failure-leaves-history-paired"

    def test_both_results_hold(self) -> None:
        holds(self.rule, batch("c1", "c2").tool("c1").tool("c2", "raised").done())

    def test_a_call_without_a_result_breaks(self) -> None:
        tale = batch("c1", "c2").tool("c1").tool("c2", "raised", keep=False).fails("tool").again()
        assert "lacks the result of 'c2'" in breaks(self.rule, tale)

    def test_a_sibling_s_lost_result_breaks(self) -> None:
        tale = batch("c1", "c2").runs("c1").runs("c2", "raised").aborts("c1", "c2")
        assert "'c1'" in breaks(self.rule, tale.fails("tool").again())

    def test_a_batch_that_was_thrown_away_breaks_if_a_sibling_had_returned(self) -> None:
        tale = batch("c1", "c2").runs("c1").runs("c2", "raised").fails("tool")
        breaks(self.rule, tale.spoils(lambda kept: kept[:1]).again())

    def test_a_batch_that_was_thrown_away_before_anything_ran_is_silent(self) -> None:
        tale = one("{}", "no_such_tool").fails("tool")
        silent(self.rule, tale.spoils(lambda kept: kept[:1]).again())

    def test_a_sibling_that_returned_after_the_failure_may_be_replaced(self) -> None:
        tale = batch("c1", "c2").starts_tool("c1").runs("c2", "raised").settles_tool("c1")
        holds(self.rule, tale.aborts("c1", "c2").fails("tool").again())

    def ended(self) -> Tale:
        return batch("c1", "c2").tool("c1").tool("c2", "raised").fails("tool")

    def test_without_a_later_request_history_shows_it(self) -> None:
        holds(self.rule, self.ended().history())

    @pytest.mark.parametrize("lacking", ["c1", "c2"])
    def test_what_history_lacks_the_next_request_may_have(self, lacking: str) -> None:
        silent(self.rule, self.ended().history(lacking))
        holds(self.rule, self.ended().history(lacking).again())

    def test_a_real_result_that_the_next_request_replaces_breaks(self) -> None:
        tale = self.ended().history("c1").drops(lambda item: result(item, "c1"))
        assert "'c1'" in breaks(self.rule, tale.aborts("c1").again())

    def test_a_real_result_that_history_replaces_breaks(self) -> None:
        tale = self.ended().drops(lambda item: result(item, "c1")).aborts("c1")
        assert "history" in breaks(self.rule, tale.history())

    def test_a_call_without_its_end_may_be_left_out(self) -> None:
        tale = Tale().prompt().request()
        tale.reply(call(0, "c1"), call(1, "c2", ended=False), reason="toolUse")
        holds(self.rule, tale.tool("c1", "raised").done())

    def test_a_batch_without_failure_is_silent(self) -> None:
        silent(self.rule, batch("c1").runs("c1").done())


class TestArgumentsValidated:
    """Arguments that break the declared schema do not reach the tool."""

    rule = "tools.arguments-validated"

    def test_a_call_that_was_not_run_holds(self) -> None:
        holds(self.rule, one('{"value": 1}').aborts("c1").done())

    def test_a_call_that_was_run_breaks(self) -> None:
        tale = one('{"value": 1}').runs("c1", arguments='{"value": 1}').answers("c1").done()
        assert "'value' is not a string" in breaks(self.rule, tale)

    def test_a_start_that_no_call_explains_breaks_by_what_it_got(self) -> None:
        breaks(self.rule, one("{}").strays('{"value": null}').answers("c1").done())

    @pytest.mark.parametrize(
        ("tool", "sent", "got"),
        [("probe_optional", "null", "{}"), ("probe", '{"value": "ha', '{"value": "ha"}')],
    )
    def test_arguments_that_were_made_to_fit_are_silent(self, tool: str, sent: str, got: str) -> None:
        silent(self.rule, one(sent, tool).strays(got, tool).answers("c1").done())

    def test_a_repaired_call_is_not_taken_for_its_sibling(self) -> None:
        tale = Tale().prompt().request()
        tale.reply(call(0, "c1", "{}"), call(1, "c2", '{"value": "ha'), reason="toolUse")
        silent(self.rule, tale.aborts("c1").strays('{"value": "ha"}').answers("c2").done())

    @pytest.mark.parametrize(("sent", "got"), [('"12"', "12"), ("12.0", "12")])
    def test_a_conversion_is_silent(self, sent: str, got: str) -> None:
        tale = one(f'{{"amount": {sent}}}', "probe_number")
        silent(self.rule, tale.strays(f'{{"amount": {got}}}', "probe_number").answers("c1").done())

    def test_a_sibling_s_altered_arguments_are_not_taken_for_these(self) -> None:
        tale = Tale().prompt().request()
        tale.reply(call(0, "c1", '{"value": 1}'), call(1, "c2"), reason="toolUse")
        silent(self.rule, tale.strays('{"value": "x"}').aborts("c1").answers("c2").done())

    def test_good_and_empty_arguments_are_silent(self) -> None:
        silent(self.rule, batch("c1").tool("c1").done())
        tale = one("", "probe_optional")
        silent(self.rule, tale.runs("c1", arguments="", tool="probe_optional").answers("c1").done())


class TestErrorMarked:
    """Where history or wire has an error mark, an error result bears it."""

    rule = "tools.error-marked"

    def test_the_mark_holds(self) -> None:
        holds(self.rule, batch("c1").tool("c1", "raised").done())

    @pytest.mark.parametrize("how", ["raised", "cancelled"])
    def test_no_mark_breaks(self, how: str) -> None:
        words = breaks(self.rule, batch("c1").runs("c1", how).answers("c1").done())
        assert "not marked" in words

    def test_a_skipped_call_has_an_error_result(self) -> None:
        tale = batch("c1", "c2").tool("c1").cancel().answers("c2", text="skipped").fails("cancelled")
        breaks(self.rule, tale.again())

    def test_the_calls_of_a_cut_reply_too(self) -> None:
        tale = Tale().prompt().request().reply(call(0, "c1"), reason="length")
        breaks(self.rule, tale.answers("c1").done())

    def test_an_unknown_tool_too(self) -> None:
        breaks(self.rule, one("{}", "no_such_tool").answers("c1").done())

    def test_a_wire_without_a_mark_hides_it(self) -> None:
        tale = batch("c1", observes=()).runs("c1", "raised").answers("c1", is_error=None).done()
        hidden(self.rule, tale)

    def test_one_place_without_a_mark_does_not_break(self) -> None:
        tale = batch("c1").runs("c1", "raised").answers("c1", is_error=None).request().reply("Done.")
        tale.completes("Done.").spoils(lambda kept: [
            ToolResult("c1", "probe", "failed", True) if result(item) else item for item in kept
        ])  # fmt: skip
        holds(self.rule, tale.history())

    def test_results_that_a_tool_returned_are_silent(self) -> None:
        silent(self.rule, batch("c1").tool("c1").done())

    def test_a_result_that_came_only_after_the_end_was_an_error_before(self) -> None:
        tale = batch("c1").starts_tool("c1").cancel().aborts("c1").fails("cancelled")
        holds(self.rule, tale.settles_tool("c1").again())


class TestResultUnaltered:
    """What the tool returned is what is sent back."""

    rule = "tools.result-unaltered"

    def test_the_same_text_holds(self) -> None:
        text = '  two "lines"\n'
        holds(self.rule, batch("c1").runs("c1", text=text).answers("c1", text=text).done())

    @pytest.mark.parametrize("altered", ['two "lines"', '"  two lines\\n"', "", "other"])
    def test_another_text_breaks(self, altered: str) -> None:
        tale = batch("c1").runs("c1", text="  two lines\n").answers("c1", text=altered).done()
        assert repr(altered) in breaks(self.rule, tale)

    def test_the_results_of_two_calls_swapped_break(self) -> None:
        tale = batch("c1", "c2").runs("c1").runs("c2")
        tale.answers("c1", text="result of c2").answers("c2", text="result of c1")
        breaks(self.rule, tale.done())

    def test_a_word_for_an_empty_result_is_silent(self) -> None:
        silent(self.rule, batch("c1").runs("c1", text="").answers("c1", text="(none)").done())

    def test_a_cancelled_batch_is_silent(self) -> None:
        tale = batch("c1").starts_tool("c1").cancel().settles_tool("c1").aborts("c1")
        silent(self.rule, tale.fails("cancelled").again())

    def test_a_missing_result_is_silent(self) -> None:
        silent(self.rule, batch("c1").runs("c1").done())


class TestEmptyResultAnswers:
    """An empty result still answers its call."""

    rule = "tools.empty-result-answers"

    @pytest.mark.parametrize("said", ["", "(no output)"])
    def test_a_result_holds(self, said: str) -> None:
        holds(self.rule, batch("c1").runs("c1", text="").answers("c1", text=said).done())

    def test_no_result_breaks(self) -> None:
        breaks(self.rule, batch("c1").runs("c1", text="").done())

    def test_a_full_result_is_silent(self) -> None:
        silent(self.rule, batch("c1").runs("c1").done())


class TestOrder:
    """Sequential or parallel, and results in the order, as claimed."""

    rule = "tools.order"

    def test_one_after_the_other_holds(self) -> None:
        tale = batch("c1", "c2", claims={"tools": "sequential"}).tool("c1").tool("c2").done()
        holds(self.rule, tale)

    def test_an_overlap_breaks_sequential(self) -> None:
        tale = batch("c1", "c2", claims={"tools": "sequential"}).starts_tool("c1").starts_tool("c2")
        tale.settles_tool("c1").settles_tool("c2").fails("tool")
        assert "before the end of call 'c1'" in breaks(self.rule, tale)

    def test_another_order_breaks_sequential(self) -> None:
        tale = batch("c1", "c2", claims={"tools": "sequential"}).runs("c2").runs("c1").fails("tool")
        assert "'c1' started after call 'c2'" in breaks(self.rule, tale)

    @pytest.mark.parametrize(
        ("claimed", "order"),
        [("parallel-source-order", ("c1", "c2")), ("parallel-completion-order", ("c2", "c1"))],
    )
    def test_side_by_side_holds_with_the_claimed_order_of_results(
        self, claimed: str, order: tuple[str, str]
    ) -> None:
        def tale(*ids: str) -> Tale:
            told = batch("c1", "c2", claims={"tools": claimed}).starts_tool("c1").starts_tool("c2")
            return told.settles_tool("c2").settles_tool("c1").answers(*ids).done()

        holds(self.rule, tale(*order))
        found = [type(item).__name__ for item in _found(self.rule, tale(*reversed(order)))]
        assert found == ["Held", "Broke"]

    def test_a_run_that_stands_still_on_one_tool_breaks_parallel(self) -> None:
        claims = {"tools": "parallel-source-order"}
        assert "'c2'" in breaks(self.rule, batch("c1", "c2", claims=claims).starts_tool("c1").hangs())

    def test_tools_that_end_at_once_need_not_overlap(self) -> None:
        claims = {"tools": "parallel-source-order"}
        holds(self.rule, batch("c1", "c2", claims=claims).tool("c1").tool("c2").done())

    def test_the_results_of_a_cancelled_batch_are_silent(self) -> None:
        claims = {"tools": "parallel-source-order"}
        tale = batch("c1", "c2", claims=claims).runs("c2").cancel().answers("c2").aborts("c1")
        silent(self.rule, tale.fails("cancelled").again())

    def test_one_call_is_silent(self) -> None:
        silent(self.rule, batch("c1", claims={"tools": "sequential"}).tool("c1").done())


def _found(rule: str, tale: Tale) -> list[object]:
    return list(RULES[rule].check(tale.index()))


class TestLateResult:
    """A result that arrives after the cancellation is kept, or replaced, as claimed."""

    rule = "tools.late-result"

    def tale(self, value: str, **header: object) -> Tale:
        tale = batch("c1", claims={"late_result": value, "cancelled_tool": "waits"}, **header)
        return tale.starts_tool("c1").cancel().settles_tool("c1")

    def test_kept_as_claimed_holds(self) -> None:
        holds(self.rule, self.tale("kept").answers("c1").fails("cancelled").again())

    def test_replaced_as_claimed_holds(self) -> None:
        holds(self.rule, self.tale("replaced").aborts("c1").fails("cancelled").again())

    def test_replaced_against_the_claim_breaks(self) -> None:
        words = breaks(self.rule, self.tale("kept").aborts("c1").fails("cancelled").again())
        assert "to be kept" in words

    def test_kept_against_the_claim_breaks(self) -> None:
        words = breaks(self.rule, self.tale("replaced").answers("c1").fails("cancelled").again())
        assert "replaced" in words

    def test_a_replacement_without_an_error_mark_breaks(self) -> None:
        tale = self.tale("replaced").answers("c1", text="aborted", is_error=False)
        breaks(self.rule, tale.fails("cancelled").again())

    def test_a_result_before_the_cancellation_or_after_the_end_is_silent(self) -> None:
        claims = {"late_result": "kept"}
        early = batch("c1", claims=claims).runs("c1").cancel().aborts("c1").fails("cancelled")
        silent(self.rule, early.again())
        late = batch("c1", claims=claims).starts_tool("c1").cancel().aborts("c1").fails("cancelled")
        silent(self.rule, late.add(ToolSettled(1, "returned", "late", "c1")).again())

    def test_a_lost_race_is_silent(self) -> None:
        claims = {"late_result": "kept", "cancelled_tool": "races"}
        tale = batch("c1", claims=claims).starts_tool("c1").cancel().settles_tool("c1").aborts("c1")
        silent(self.rule, tale.fails("cancelled").again())

    def test_a_result_during_the_cancel_call_is_silent_unless_its_place_is_exact(self) -> None:
        claims = {"late_result": "kept"}

        def tale(grade: str) -> Tale:
            told = batch("c1", claims=claims, grade=grade).starts_tool("c1").cancel_sent()
            return told.settles_tool("c1").cancel_returned().aborts("c1").fails("cancelled").again()

        silent(self.rule, tale("event"))
        breaks(self.rule, tale("exact"))
