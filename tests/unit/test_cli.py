"""The command line, as a person and as a CI job meet it: what it prints, and what it exits with."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner, Result

from loopspec.cli import main
from loopspec.report.model import Report
from loopspec.rules import RULES
from loopspec.vocabulary import PROFILES


def loopspec(*arguments: str) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(main, arguments)


SILENT = """
[project]
name = "somebody-elses"
"""


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has a working directory of its own, with no configuration in it."""
    monkeypatch.chdir(tmp_path)


# -- run ----------------------------------------------------------------------------------------


def test_a_run_in_which_nothing_fails_exits_with_0() -> None:
    """The reference fails no rule, and says so in the last line."""
    result = loopspec("run", "reference", "--rule", "limits")
    assert result.exit_code == 0, result.output
    assert "nothing failed" in result.output


@pytest.mark.parametrize("profile", PROFILES)
def test_the_reference_keeps_every_rule_of_a_chapter_under_each_profile(profile: str) -> None:
    """A profile is a set of claims; the same loop keeps the rules under each."""
    result = loopspec("run", "--profile", profile, "--rule", "pairing", "--json", "-")
    report = Report.model_validate_json(result.output)
    assert [rule.id for rule in report.rules if rule.verdict == "fail"] == []


def test_a_run_in_which_a_rule_fails_exits_with_1_and_names_it() -> None:
    """A loop whose claims are not kept fails by the rule that names it, with its evidence."""
    result = loopspec("run", "meta.faulty.lying:adapter", "--rule", "completion.length-outcome")
    assert result.exit_code == 1, result.output
    assert "completion.length-outcome" in result.output
    assert "FAILED" in result.output


def test_the_report_is_what_its_schema_says() -> None:
    """The JSON report validates against the schema that is generated from its model."""
    result = loopspec("run", "reference", "--rule", "stream", "--json", "-")
    data = json.loads(result.output)
    jsonschema.validate(data, Report.model_json_schema())
    for key in ("loopspec", "spec", "target", "seed", "budget", "rules", "coverage", "errors"):
        assert key in data
    for key in ("name", "version", "variant", "grade", "claims"):
        assert key in data["target"]
    for key in ("id", "level", "verdict", "scenarios", "evidence", "minimal_scenario"):
        assert key in data["rules"][0]
    for key in ("transitions", "pairs", "await_points"):
        assert {"exercised", "all"} <= set(data["coverage"][key])


def test_the_same_seed_gives_the_same_report_byte_for_byte() -> None:
    """Two runs with one seed cannot be told apart."""
    arguments = ("run", "reference", "--rule", "cancellation", "--seed", "7", "--json", "-")
    assert loopspec(*arguments).output == loopspec(*arguments).output


def test_junit_counts_what_is_no_pass_as_skipped(tmp_path: Path) -> None:
    """A rule that is not claimed, exercised or observable is skipped with its reason."""
    result = loopspec("run", "reference", "--rule", "prefix", "--junit", "out/junit.xml")
    assert result.exit_code == 0, result.output
    text = (tmp_path / "out" / "junit.xml").read_text(encoding="utf-8")
    assert 'name="prefix.kept"' in text
    assert 'skipped message="not claimed"' in text


def test_failures_are_saved_and_replayed(tmp_path: Path) -> None:
    """The smallest failing scenario is a file that replay reproduces, 20 times of 20."""
    loop = "meta.faulty.lying:adapter"
    loopspec("run", loop, "--rule", "completion.length-outcome", "--save-failures", "failures")
    saved = tmp_path / "failures" / "completion.length-outcome.yaml"
    assert saved.is_file()
    result = loopspec("replay", str(saved), loop, "--repeat", "20")
    assert result.exit_code == 1, result.output
    assert "completion.length-outcome: fail 20 of 20" in result.output
    assert loopspec("replay", str(saved), "reference").exit_code == 0


# -- known failures -----------------------------------------------------------------------------


def known(tmp_path: Path, evidence: str, rule: str = "completion.length-outcome") -> str:
    """A file of known failures with one entry."""
    path = tmp_path / "known.yaml"
    path.write_text(f'- {{rule: {rule}, evidence: "{evidence}", reason: "as documented"}}\n')
    return str(path)


def test_a_known_failure_with_the_expected_evidence_does_not_fail_the_run(tmp_path: Path) -> None:
    """It is shown, marked as known, and the run exits with 0."""
    result = loopspec(
        "run", "meta.faulty.lying:adapter", "--rule", "completion.length-outcome",
        "--known", known(tmp_path, "reason length"),
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "known: as documented" in result.output


def test_a_stale_entry_fails_the_run(tmp_path: Path) -> None:
    """An entry whose rule no longer fails has to go."""
    result = loopspec("run", "reference", "--rule", "completion", "--known", known(tmp_path, "x"))
    assert result.exit_code == 1
    assert "stale known failure: completion.length-outcome is now 'pass'" in result.output


def test_a_known_failure_that_fails_in_another_way_is_a_new_failure(tmp_path: Path) -> None:
    """The evidence has to be the expected one."""
    result = loopspec(
        "run", "meta.faulty.lying:adapter", "--rule", "completion.length-outcome",
        "--known", known(tmp_path, "something else"),
    )  # fmt: skip
    assert result.exit_code == 1
    assert "fails, but not with 'something else'" in result.output


# -- bad input: exit code 2, one clear error ------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "no-such-target"), "there is no target 'no-such-target' in the catalogue"),
        (("run", "no.such.module:Adapter"), "cannot be imported"),
        (("run", "nowhere.toml"), "cannot be read"),
        (("run", "--profile", "nobody"), "there is no profile 'nobody'; choose one of rejecting"),
        (("run", "--claim", "length=maybe"), "claim length has no value 'maybe'"),
        (("run", "--claim", "nothing=yes"), "there is no claim 'nothing'"),
        (("run", "--rule", "no.such"), "there is no rule or chapter 'no.such'"),
        (("run", "--variant", "other"), "has no variant 'other'; it has: default"),
        (("run", "--known", "nowhere.yaml"), "cannot be read"),
        (("explain", "stream.interleaved"), "did you mean stream.interleaved-calls"),
        (("show", "nothing"), "neither an example's name"),
        (("list", "rules", "--chapter", "none"), "there is no chapter 'none'"),
    ],
)
def test_bad_input_gets_one_clear_error_and_exit_code_2(arguments: tuple[str, ...], words: str) -> None:
    """What cannot be judged is no verdict; the error says what is wrong and what there is."""
    result = loopspec(*arguments)
    assert result.exit_code == 2, result.output
    assert words in result.output
    assert result.output.count("error:") == 1


def test_a_scenario_file_with_a_mistake_names_the_line_and_the_remedy(tmp_path: Path) -> None:
    """File, line, place, and what to write instead."""
    (tmp_path / "mine.yaml").write_text("name: mine\nprompts:\n  - replies:\n      - [txt: hello]\n")
    result = loopspec("replay", "mine.yaml")
    assert result.exit_code == 2
    assert "mine.yaml:4: prompts.0.replies.0.steps.0: not a step; write one of 'text: ...'" in result.output


def test_an_adapter_that_asks_the_bench_nothing_does_not_pass_the_smoke_run() -> None:
    """A wrong adapter is told from a wrong target: nothing is judged."""
    result = loopspec("run", "meta.faulty.lying:silent_adapter")
    assert result.exit_code == 2
    assert "did not pass the smoke run" in result.output


# -- configuration ------------------------------------------------------------------------------


def test_the_configuration_file_gives_defaults_and_arguments_win(tmp_path: Path) -> None:
    """loopspec.toml holds options of run by their names."""
    (tmp_path / "loopspec.toml").write_text('rules = ["limits"]\nseed = 3\nquiet = true\n')
    assert "0 rules failed" in loopspec("run").output
    report = json.loads(loopspec("run", "--json", "-").output)
    assert report["seed"] == 3
    assert {rule["id"].partition(".")[0] for rule in report["rules"]} == {"limits"}
    assert json.loads(loopspec("run", "--seed", "4", "--json", "-").output)["seed"] == 4


def test_a_wrong_option_in_the_configuration_file_is_named(tmp_path: Path) -> None:
    """A typing mistake there is not passed over."""
    (tmp_path / "loopspec.toml").write_text("sed = 3\n")
    result = loopspec("run")
    assert result.exit_code == 2
    assert "there is no option 'sed'" in result.output


def test_a_pyproject_of_somebody_else_is_no_configuration(tmp_path: Path) -> None:
    """Only [tool.loopspec] is ours."""
    (tmp_path / "pyproject.toml").write_text(SILENT)
    assert loopspec("run", "--rule", "limits", "--quiet").exit_code == 0


# -- the rest -----------------------------------------------------------------------------------


def test_every_rule_can_be_explained() -> None:
    """Sentence, reason, source and example of each."""
    for name, rule in RULES.items():
        result = loopspec("explain", name)
        assert result.exit_code == 0
        assert name in result.output
        assert f"Source: {rule.source}" in " ".join(result.output.split())


def test_show_draws_the_trace_of_a_scenario() -> None:
    """The four lifelines, and who said what to whom."""
    result = loopspec("show", "completion.calls-decide")
    assert result.exit_code == 0
    assert "client         loop           model          tools" in result.output
    assert "request 1" in result.output


def test_lists_say_what_there_is() -> None:
    """Targets with variants, rules with levels, scenarios with titles, profiles with claims."""
    assert "openai-agents" in loopspec("list", "targets").output
    assert "completion.calls-decide  [core]" in loopspec("list", "rules").output
    assert "completion.calls-decide" in loopspec("list", "scenarios").output
    assert "cancelled_prefix = finalize" in loopspec("list", "profiles").output


def test_help_is_quick_because_nothing_else_is_imported() -> None:
    """--help loads click, and no pydantic, rich, asyncio or rules."""
    code = (
        "import sys; from loopspec.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print('LOADED', [m for m in ('pydantic', 'rich', 'asyncio', 'loopspec.rules') if m in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Usage:" in shown.stdout
    assert "LOADED []" in shown.stdout


def test_completion_scripts_are_printed() -> None:
    """For the shells that click knows."""
    for shell in ("bash", "zsh", "fish"):
        assert "_LOOPSPEC_COMPLETE" in loopspec("completion", shell).output


def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    """NO_COLOR takes every escape away, in errors too."""
    monkeypatch.setenv("NO_COLOR", "1")
    result = CliRunner().invoke(main, ["run", "--profile", "nobody"], color=True)
    assert "\x1b[" not in result.output
