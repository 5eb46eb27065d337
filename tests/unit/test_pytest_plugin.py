"""The suite as pytest: for a named target, as a class to subclass, and with golden traces."""

from __future__ import annotations

import pytest

# Imported here so that the runs inside this process share one copy of each module: pytester takes
# away what a run imported, and two copies of a class are two classes.
import loopspec.adapters.reference
import loopspec.conformance
import loopspec.snapshots  # noqa: F401

MINE = """
from loopspec.conformance import LoopConformance
from loopspec.adapters.reference import ReferenceAdapter
from loopspec.vocabulary import PROFILES
{extra}

class TestMine(LoopConformance):
    def make_adapter(self):
        return {adapter}
{body}
"""

GOOD = "ReferenceAdapter(PROFILES['rejecting'])"
LYING = "lying.adapter()"


def suite(
    pytester: pytest.Pytester, *, adapter: str = GOOD, body: str = "", extra: str = ""
) -> pytest.RunResult:
    """Run a test file with one subclass of the suite."""
    pytester.makepyfile(MINE.format(adapter=adapter, body=body, extra=extra))
    return pytester.runpytest("-p", "no:randomly", "-rA")


def test_a_target_on_the_command_line_needs_no_test_file(pytester: pytest.Pytester) -> None:
    """pytest --loopspec-target NAME collects one item a rule, and the reference passes."""
    result = pytester.runpytest("--loopspec-target", "reference", "-q", "-rA")
    outcomes = result.parseoutcomes()
    assert outcomes.get("failed", 0) == 0
    assert outcomes["passed"] > 80
    result.stdout.fnmatch_lines(["*PASSED*test_rule[[]completion.calls-decide[]]*"])


def test_one_method_makes_the_suite_run_on_ones_own_loop(pytester: pytest.Pytester) -> None:
    """A subclass with make_adapter is the whole suite."""
    outcomes = suite(pytester).parseoutcomes()
    assert outcomes.get("failed", 0) == 0
    assert outcomes["passed"] > 80


def test_what_is_no_verdict_is_skipped_with_its_reason(pytester: pytest.Pytester) -> None:
    """Only a rule that was exercised and held passes."""
    result = suite(pytester)
    result.stdout.fnmatch_lines(["SKIPPED*not claimed*"])


def test_a_broken_rule_fails_its_item_with_the_evidence(pytester: pytest.Pytester) -> None:
    """The item is the rule; the words are the verdict's."""
    result = suite(pytester, adapter=LYING, extra="from meta.faulty import lying")
    result.stdout.fnmatch_lines(["FAILED*test_rule[[]completion.length-outcome[]]*"])


def test_a_rule_known_to_fail_is_an_expected_failure(pytester: pytest.Pytester) -> None:
    """With its reason; everything else still counts."""
    body = "    known = {'completion.length-outcome': 'documented so'}"
    result = suite(pytester, adapter=LYING, body=body, extra="from meta.faulty import lying")
    result.stdout.fnmatch_lines(["XFAIL*test_rule[[]completion.length-outcome[]]*documented so*"])


def test_a_stale_known_failure_fails(pytester: pytest.Pytester) -> None:
    """A rule that no longer fails has to leave the list."""
    result = suite(pytester, body="    known = {'completion.length-outcome': 'documented so'}")
    result.stdout.fnmatch_lines(["*is known to fail (documented so), but is 'pass'*"])


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("    def test_rule(self, rule, verdicts): pass", "*overrides 'test_rule'*"),
        ("    test_rule = None", "*overrides 'test_rule'*"),
        ("    def verdicts(self): return {}", "*overrides 'verdicts'*"),
        ("    known = {'completion.no-such': 'x'}", "*'completion.no-such', which is no rule*"),
        ("    known = {'completion.length-outcome': ' '}", "*gives no reason*"),
    ],
)
def test_the_suite_refuses_to_be_weakened(pytester: pytest.Pytester, body: str, words: str) -> None:
    """A subclass that overrides a check, or excuses a rule without a reason, is an error."""
    result = suite(pytester, body=body)
    assert result.ret != 0
    assert result.parseoutcomes().get("passed", 0) == 0
    result.stdout.fnmatch_lines([words])


def test_a_check_that_is_replaced_later_fails(pytester: pytest.Pytester) -> None:
    """Replacing the check behind the class's back is noticed when it runs."""
    extra = "import pytest\ndef harmless(self, rule, verdicts): pass"
    pytester.makepyfile(
        MINE.format(adapter=GOOD, body="", extra=extra)
        + "\nharmless = pytest.mark.parametrize('rule', ['completion.calls-decide'])(harmless)"
        + "\nTestMine.test_rule = harmless\n"
    )
    result = pytester.runpytest()
    assert result.parseoutcomes().get("passed", 0) == 0
    result.stdout.fnmatch_lines(["*replaces 'test_rule', a check of the suite*"])


@pytest.mark.parametrize("mark", ["xfail", "skip"])
def test_a_mark_without_a_reason_excuses_nothing(pytester: pytest.Pytester, mark: str) -> None:
    """An expected failure needs a reason, and no check is skipped by a mark."""
    pytester.makepyfile(
        MINE.format(adapter=GOOD, body="", extra="import pytest")
        + f"\nTestMine = pytest.mark.{mark}(TestMine)\n"
    )
    result = pytester.runpytest("--tb=short")
    assert result.parseoutcomes().get("passed", 0) == 0
    assert result.parseoutcomes().get("skipped", 0) == 0 or mark == "xfail"


GOLDEN = """
from loopspec.adapters.reference import ReferenceAdapter
from loopspec.bench.executor import Executor
from loopspec.library import by_name
from loopspec.vocabulary import PROFILES

def test_golden(loopspec_snapshot):
    with Executor(ReferenceAdapter(PROFILES['rejecting'])) as executor:
        trace = executor.run(by_name('completion.calls-decide')[0])
    assert trace == loopspec_snapshot('mine/calls-decide')
    assert loopspec_snapshot.unused('mine') == []
"""


def test_anyone_can_keep_golden_traces_of_their_target(pytester: pytest.Pytester) -> None:
    """The same fixture: written by --snapshot-update, then compared; a change is shown; unused told."""
    pytester.makepyfile(GOLDEN)
    assert pytester.runpytest("--snapshot-update").ret == 0
    golden = pytester.path / "snapshots" / "mine" / "calls-decide.txt"
    text = golden.read_text(encoding="utf-8")
    assert text.startswith("loopspec golden trace, format 1\n")
    assert pytester.runpytest().ret == 0
    golden.write_text(text.replace("request 2", "request 3"), encoding="utf-8")
    assert pytester.runpytest().ret == 1
    golden.write_text(text, encoding="utf-8")
    (golden.parent / "left-over.txt").write_text("", encoding="utf-8")
    result = pytester.runpytest()
    result.stdout.fnmatch_lines(["*mine/left-over.txt*"])
