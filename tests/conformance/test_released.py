"""The main job: released loops are run as a stranger would run them, and what was found of them stays.

Each target is run twice at once by the command line, in its own managed environment; the first of
these runs installs it where it is not cached. ``spec/field-notes.md`` says what each failing rule
is about.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from loopspec.report.build import inconclusive_core
from loopspec.report.model import Report

pytestmark = [pytest.mark.released, pytest.mark.timeout(600)]

UNTOLD_ENDS = """
    completion.length-executes-nothing completion.refusal-executes-nothing
    completion.refusal-is-told completion.unknown-reason-fails completion.failure-is-told
    stream.missing-reason-fails history.failed-reply-not-sent history.sendable
    events.one-end-each run.recovers
"""
"""What all three have in common: on this wire a reply's end is hardly looked at."""

FAILING = {
    "openai-agents": UNTOLD_ENDS
    + """
        completion.calls-decide tools.executed-once pairing.adjacent
        pairing.none-for-failed-reply history.completed-messages-stay
        cancellation.unstarted-call run.concurrent-prompts-do-not-corrupt
    """,
    "pydantic-ai": UNTOLD_ENDS
    + """
        tools.late-result pairing.repeated-ids pairing.same-order-everywhere
        pairing.none-for-failed-reply history.only-messages-reach-the-model
        history.failures-do-not-pile-up prefix.blocks prefix.blank-writes-no-message
        prefix.only-by-cancellation
    """,
    "langchain": UNTOLD_ENDS
    + """
        stream.cut-arguments-not-repaired tools.failure-leaves-history-paired
        pairing.every-call-answered-once pairing.repeated-ids
        pairing.interrupted-batch-completed pairing.skipped-never-run
        history.completed-messages-stay history.arguments-unaltered
        cancellation.no-tool-after cancellation.unstarted-call events.one-terminal
        run.concurrent-prompts-do-not-corrupt run.listener-failure-contained
    """,
}
"""The rules that each target's default variant breaks."""

REPRODUCED = "completion.length-executes-nothing"
"""Its saved scenario is replayed."""


@dataclass(frozen=True, slots=True)
class Ran:
    """What two runs of one target left: both reports as text, and the folder of saved scenarios."""

    target: str
    codes: tuple[int, ...]
    texts: tuple[str, ...]
    said: str
    saved: Path

    @property
    def report(self) -> Report:
        """The first report."""
        return Report.model_validate_json(self.texts[0])


def loopspec(*words: str) -> list[str]:
    """The command line of this very environment."""
    return [sys.executable, "-m", "loopspec", *words]


@pytest.fixture(scope="module", params=sorted(FAILING))
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """One target, run twice with the same seed, side by side."""
    target, place = request.param, tmp_path_factory.mktemp(request.param)
    running = []
    for number in (1, 2):
        options = ["--json", str(place / f"{number}.json"), "--save-failures", str(place / f"saved-{number}")]
        command = loopspec("run", target, "--quiet", *options)
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    try:
        said = [run.communicate()[0] for run in running]
    finally:
        for run in running:
            run.kill()
            run.wait()
    files = [place / f"{number}.json" for number in (1, 2)]
    texts = tuple(file.read_text(encoding="utf-8") if file.exists() else "" for file in files)
    return Ran(target, tuple(run.returncode for run in running), texts, "\n".join(said), place / "saved-1")


def test_the_run_finishes(ran: Ran) -> None:
    """Both runs judge the whole target: nothing was lost, and the exit code says what was found."""
    assert ran.codes == (1, 1), ran.said
    assert ran.report.complete
    assert ran.report.errors == []
    assert ran.report.scenarios_run > 200


def test_the_failing_rules_are_those_that_are_known(ran: Ran) -> None:
    """Neither a new failure nor a lost one goes unnoticed."""
    assert sorted(rule.id for rule in ran.report.failed()) == sorted(FAILING[ran.target].split())


def test_the_same_seed_gives_the_same_verdicts(ran: Ran) -> None:
    """Byte for byte, although both runs share the machine.

    Where in a trace something stands may differ: a target in a child process speaks by two
    channels, and where two things happen at once, such as a tool's result and a cancellation that
    cross, either may be ahead. No verdict may hang on that.
    """
    first, second = (verdicts(text) for text in ran.texts)
    assert first == second


def verdicts(text: str) -> str:
    """A report's verdicts, a line a rule."""
    rules: list[dict[str, Any]] = json.loads(text)["rules"]
    return "\n".join(f"{rule['id']} {rule['level']} {rule['verdict']}" for rule in rules)


def test_every_core_rule_is_conclusive_or_says_what_hides_it(ran: Ran) -> None:
    """An inconclusive core rule names the library's code, or the wire, that hides it."""
    assert [rule.id for rule in inconclusive_core(ran.report) if not rule.hidden_by] == []


def test_a_saved_scenario_reproduces(ran: Ran) -> None:
    """The file that the run saved breaks its rule each time that it is replayed."""
    file = ran.saved / f"{REPRODUCED}.yaml"
    done = subprocess.run(
        loopspec("replay", str(file), ran.target, "--repeat", "5"),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"{REPRODUCED}: fail 5 of 5" in done.stdout
