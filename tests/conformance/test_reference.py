"""The reference loop keeps its own standard: under each profile, in process and over stdio.

It fails no rule, and leaves none that it claims unexercised. What it does not tell (a loop without
run brackets has no terminal event) is named here, once, with the reason.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import loopspec
from loopspec.adapters.manifest import Variant
from loopspec.adapters.process import ProcessAdapter
from loopspec.adapters.reference import OBSERVES, ReferenceAdapter, reference_manifest
from loopspec.bench.executor import Executor
from loopspec.explore.campaign import Campaign
from loopspec.vocabulary import PROFILES, Grade, Level, Verdict

PACKAGE = Path(loopspec.__file__).parent

NO_RUN_END = {"events.one-terminal", "events.nothing-after-terminal"}
"""Rules about the terminal event of a run, which a loop without brackets does not tell."""


def in_process(claims: dict[str, str]) -> Any:
    """The reference in this process, on the native wire, at grade exact."""
    return ReferenceAdapter(claims)


def over_stdio(claims: dict[str, str]) -> Any:
    """The reference in a child process, speaking the protocol as a stranger's loop would."""
    variant = Variant(wire="native", grade=Grade.EVENT, observes=OBSERVES, options={"claims": claims})
    manifest = reference_manifest(claims).model_copy(update={"variants": {"stdio": variant}})
    command = [sys.executable, str(PACKAGE / "adapters" / "reference_child.py")]
    return ProcessAdapter(manifest, command)


@pytest.mark.parametrize("place", [in_process, over_stdio], ids=lambda place: place.__name__)
@pytest.mark.parametrize("profile", PROFILES)
def test_the_reference_keeps_every_rule(profile: str, place: Any) -> None:
    """It fails none, and every rule that binds it was exercised and held."""
    with Executor(place(PROFILES[profile])) as executor:
        result = Campaign(executor).run()
    broken = {
        name: f"{r.breaks[0].scenario}: {r.breaks[0].words} {r.breaks[0].at}"
        for name, r in result.results.items()
        if r.verdict in (Verdict.FAIL, Verdict.VARIES)
    }
    assert broken == {}
    assert result.errors == []
    open_rules = {
        name
        for name, r in result.results.items()
        if r.verdict in (Verdict.NOT_EXERCISED, Verdict.NOT_OBSERVABLE) and r.rule.level is not Level.OBSERVED
    }
    silent = NO_RUN_END if PROFILES[profile]["brackets"] == "none" else set()
    assert open_rules == silent


@pytest.mark.parametrize("profile", PROFILES)
def test_the_reference_covers_every_row_pair_and_await_point_that_it_can_reach(profile: str) -> None:
    """Counted from the recorded traces: each row of the table, each place where it can wait."""
    with Executor(in_process(PROFILES[profile])) as executor:
        coverage = Campaign(executor).run().coverage
    for what in ("transitions", "await_points"):
        assert coverage[what]["exercised"] == coverage[what]["all"], coverage[what]["missing"]
