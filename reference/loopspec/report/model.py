"""The report: what a run found, as data with a schema of its own.

The JSON report is written by this model and nothing else, so its schema
(``spec/schemas/report.json``) is always the true one. Terminal and JUnit views are made from it.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from loopspec.vocabulary import Level, Verdict


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ClaimReport(_Model):
    """A claim of the target and the place in its documentation that says so."""

    value: str
    source: str = ""
    words: str = ""


class TargetReport(_Model):
    """What was judged."""

    name: str
    version: str
    variant: str
    grade: str
    wire: str
    streaming: bool
    claims: dict[str, ClaimReport]
    observes: list[str]
    outcomes: list[dict[str, Any]] = Field(default_factory=list)


class Evidence(_Model):
    """One place where a rule was broken: the entries of that scenario's trace that show it."""

    scenario: str
    words: str
    at: list[int]
    entries: list[str] = Field(default_factory=list)


class RuleReport(_Model):
    """The verdict of one rule. ``scenarios`` counts those that exercised it."""

    id: str
    level: Level
    verdict: Verdict
    scenarios: int
    sentence: str
    claim: str | None = None
    evidence: list[Evidence] = Field(default_factory=list)
    minimal_scenario: str | None = None
    minimal_trace: str | None = None
    why: list[str] = Field(default_factory=list)
    hidden_by: str | None = None
    known: str | None = None


class Counts(_Model):
    """How much of something was exercised."""

    exercised: int
    all: int
    missing: list[str] = Field(default_factory=list)


class CoverageReport(_Model):
    """What the recorded traces walked of the machine."""

    transitions: Counts
    pairs: Counts
    await_points: Counts


class Report(_Model):
    """A whole run."""

    schema_version: Literal[1] = 1
    loopspec: str
    spec: str
    target: TargetReport
    seed: int
    budget: str
    complete: bool = True
    scenarios_run: int = 0
    scenarios_skipped: dict[str, int] = Field(default_factory=dict)
    rules: list[RuleReport]
    coverage: CoverageReport
    profiles: dict[str, list[str]] = Field(default_factory=dict)
    errors: list[str] = Field(default_factory=list)

    def failed(self) -> list[RuleReport]:
        """Rules that fail the run: broken (or varying) core and claimed rules, but known ones.

        An advisory rule is a SHOULD: it is reported, and does not fail a run.
        """
        return [
            rule
            for rule in self.rules
            if rule.verdict in (Verdict.FAIL, Verdict.VARIES)
            and rule.level in (Level.CORE, Level.CLAIM)
            and rule.known is None
        ]

    def count(self, verdict: Verdict) -> int:
        """How many rules have this verdict."""
        return sum(rule.verdict is verdict for rule in self.rules)
