"""The campaign: everything that a run of the suite does to one variant of one target.

A **smoke run** comes first: a plain answer must complete, and a provider that fails must not. If
either does not hold, the adapter or its manifest is wrong and nothing of the target is judged.

Then the scenarios: the standard's examples and the committed set cover, and for the full budget a
seeded sample of the enumeration beyond them, and drawn scenarios past its bound. Those that the variant cannot play are counted by
cause. Every trace is judged and counted at once and then let go, so memory does not grow with the
number of scenarios.

Then each broken rule gets its smallest scenario, run again several times: a rule that does not come
out the same each time **varies**, which is a verdict of its own, with both traces.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from loopspec.bench.executor import Executor
from loopspec.bench.wires import WIRES
from loopspec.explore.coverage import Count, Coverage
from loopspec.explore.minimise import minimise, size
from loopspec.judge import Judge, RuleResult
from loopspec.library import cover, examples
from loopspec.rules import Broke
from loopspec.scenario import Scenario, parse
from loopspec.trace import TargetLost, Trace
from loopspec.trace_index import TraceIndex
from loopspec.vocabulary import Outcome

REPEATS = 3
"""How often a minimal scenario is run again."""

AT_MOST_TRIED = 5
"""Of so many scenarios that break a rule one is looked for that breaks it each time."""

FULL_SAMPLE = 1500
"""Scenarios of the enumeration beyond the set cover that the full budget adds."""

FULL_DRAWN = 300
"""Drawn scenarios, past the bound of the enumeration, that the full budget adds."""

Progress = Callable[[str, int, int | None], None]

SMOKE = parse(
    """
name: smoke.answer
title: A plain answer
prompts:
  - replies:
      - [text: "All is well.", reason: stop]
recovery: false
---
name: smoke.failure
title: A provider that fails
prompts:
  - replies:
      - [status: 500]
recovery: false
"""
)


class SmokeFailed(Exception):
    """The adapter (or its manifest) is wrong: nothing of the target can be judged."""


@dataclass
class CampaignResult:
    """What a campaign found.

    ``minimal`` has the smallest scenarios that break a rule (the family's members for a relation
    rule), ``minimal_traces`` what they showed (two traces where the rule varies).
    """

    results: dict[str, RuleResult]
    coverage: dict[str, Count]
    minimal: dict[str, list[Scenario]] = field(default_factory=dict)
    minimal_traces: dict[str, list[Trace]] = field(default_factory=dict)
    evidence_traces: dict[str, Trace] = field(default_factory=dict)
    scenarios_run: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    complete: bool = True


def cannot_play(scenario: Scenario, executor: Executor) -> str | None:
    """Why a variant cannot play a scenario, in words that group; ``None`` if it can."""
    settings = executor.settings
    claims = executor.manifest.claims_for(executor.variant)
    for name, value in scenario.claims.items():
        if claims.get(name) != value:
            return f"the target does not claim {name}={value}"
    wire = WIRES.get(settings.wire)
    for prompt in scenario.prompts:
        for reply in prompt.replies:
            missing = sorted(wire.lacks(reply)) if wire is not None else []
            if missing:
                return f"the wire {settings.wire} cannot say {missing[0]}"
        if prompt.on and "events" not in settings.observes:
            return "the target tells no events"
        if any(on.do == "raise" for on in prompt.on) and "listeners" not in settings.observes:
            return "the target calls no listener inside its run"
        if executor.in_child and any(on.do == "prompt" for on in prompt.on):
            return "a prompt from inside a listener cannot be placed exactly in a child process"
        if prompt.fork and claims.get("fork") != "yes":
            return "the target does not claim fork"
    if scenario.settings.max_turns is not None and "limit" not in settings.observes:
        return "the target has no turn limit"
    return None


class Campaign:
    """One run of the suite; see the module's text.

    Parameters
    ----------
    executor: an entered executor of the target's variant.
    rules: the ids to judge by; ``None``: all.
    seed: chooses the full budget's sample. Same seed, same verdicts.
    budget: ``quick`` or ``full``.
    progress: called with the phase, how much of it is done, and of how much (if known).
    """

    def __init__(
        self,
        executor: Executor,
        rules: Iterable[str] | None = None,
        seed: int = 0,
        budget: str = "quick",
        progress: Progress = lambda *_: None,
    ) -> None:
        self.executor = executor
        self.seed = seed
        self.budget = budget
        self.progress = progress
        self.claims = executor.manifest.claims_for(executor.variant)
        self.judge = Judge(self.claims, rules)
        self.coverage = Coverage(self.claims)
        self._broken_by: dict[str, list[Scenario]] = {}
        self._families: dict[str, dict[str, tuple[Scenario, Trace]]] = {}
        self.result = CampaignResult(self.judge.results, self.coverage.report())

    def run(self) -> CampaignResult:
        """Run it all. An interruption leaves a result that says that it is not complete.

        Raises :class:`SmokeFailed`.
        """
        result = self.result
        try:
            self.smoke()
            self._play_all()
            self._minimise_all()
        except KeyboardInterrupt:
            result.complete = False
        result.results = self.judge.finish()
        result.coverage = self.coverage.report()
        return result

    # -- the smoke run -------------------------------------------------------------------------

    def smoke(self) -> None:
        """A plain answer completes, a failing provider does not; raises :class:`SmokeFailed`."""
        answer, failure = SMOKE
        self.progress("smoke run", 0, 2)
        index = TraceIndex(self._trace(answer))
        self._not_lost(index)
        run = index.runs[0]
        if run.refused and run.settled is not None:
            raise SmokeFailed(
                f"it refused to be opened, or its first prompt: {_ending(index)}; the adapter's open() "
                "and prompt() must work with the bench's tools and no further settings"
            )
        if not run.exchanges:
            raise SmokeFailed("the target asked the fake provider nothing; is it given bench.base_url(...)?")
        if not run.completed:
            raise SmokeFailed(
                f"a plain answer did not complete: {_ending(index)}; see 'loopspec show' with it, and "
                "map the settlement in the manifest's [[outcomes]]"
            )
        self.progress("smoke run", 1, 2)
        index = TraceIndex(self._trace(failure))
        self._not_lost(index)
        if index.runs[0].completed:
            raise SmokeFailed(
                "a provider that fails (HTTP 500) was reported as completed; the adapter must let "
                "exceptions pass, and the manifest map what is returned instead"
            )

    @staticmethod
    def _not_lost(index: TraceIndex) -> None:
        for entry in index.trace:
            if isinstance(entry, TargetLost):
                raise SmokeFailed(f"the target was lost: {entry.what}")

    # -- the scenarios -------------------------------------------------------------------------

    def scenarios(self) -> Iterator[Scenario]:
        """The scenarios of the budget, in order."""
        yield from examples()
        yield from cover()
        if self.budget == "full":
            from loopspec.explore.enumerate import scenarios

            beyond = list(scenarios())
            random.Random(self.seed).shuffle(beyond)
            yield from beyond[:FULL_SAMPLE]
            yield from self._drawn()

    def _drawn(self) -> list[Scenario]:
        """Scenarios past the bound of the enumeration, of what this variant's wire can say."""
        from loopspec.explore.strategies import sample

        wire = WIRES.get(self.executor.settings.wire)
        says: dict[str, Any] = {} if wire is None else {"can_express": wire.can_express}
        observes = self.executor.settings.observes
        return sample(FULL_DRAWN, self.seed, claims=self.claims, observes=observes, **says)

    def _playable(self) -> list[Scenario]:
        chosen: list[Scenario] = []
        seen: set[tuple[str, str | None]] = set()
        for scenario in self.scenarios():
            key = (scenario.name, scenario.family.member if scenario.family else None)
            if key in seen:
                continue
            seen.add(key)
            why = cannot_play(scenario, self.executor)
            if why is None:
                chosen.append(scenario)
            else:
                self.result.skipped[why] += 1
                self._hide(scenario, why)
        return chosen

    def _hide(self, scenario: Scenario, why: str) -> None:
        """A rule whose example the variant cannot play is hidden there, not merely unexercised."""
        if "does not claim" in why:
            return
        for rule in scenario.rules:
            result = self.judge.results.get(rule)
            if result is not None and why not in result.hidden:
                result.hidden.append(why)

    def _play_all(self) -> None:
        chosen = self._playable()
        for done, scenario in enumerate(chosen):
            self.progress("scenarios", done, len(chosen))
            self._play(scenario)
        self.progress("scenarios", len(chosen), len(chosen))

    def _play(self, scenario: Scenario) -> None:
        trace = self._trace(scenario)
        self.result.scenarios_run += 1
        self.result.errors += [
            f"{scenario.name}: the target was lost: {entry.what}"
            for entry in trace
            if isinstance(entry, TargetLost)
        ]
        self.coverage.add(trace)
        for rule, found in self.judge.add(trace).items():
            if any(isinstance(item, Broke) for item in found):
                self._note(rule, scenario, trace)
        if scenario.family is not None:
            family = self._families.setdefault(scenario.family.name, {})
            family[scenario.family.member] = (scenario, trace)

    def _note(self, rule: str, scenario: Scenario, trace: Trace) -> None:
        found = self._broken_by.setdefault(rule, [])
        found.append(scenario.model_copy(update={"family": None}))
        found.sort(key=size)  # stable: of equals the earlier one
        del found[AT_MOST_TRIED:]
        if len(self.judge.results[rule].breaks) <= 6:
            self.result.evidence_traces[scenario.name] = trace

    def _trace(self, scenario: Scenario) -> Trace:
        return self.executor.run(scenario)

    # -- minimal scenarios ---------------------------------------------------------------------

    def _minimise_all(self) -> None:
        for name in self.judge.results:
            self.judge.finish_families(name)
        broken = [name for name, result in self.judge.results.items() if result.breaks]
        for done, name in enumerate(broken):
            self.progress("smallest scenarios", done, len(broken))
            if self.judge.results[name].rule.relation:
                self._repeat_family(name)
            else:
                self._minimise(name)
        self.progress("smallest scenarios", len(broken), len(broken))

    def _breaks(self, rule: str, trace: Trace) -> bool:
        check = self.judge.results[rule].rule.check
        return any(isinstance(item, Broke) for item in check(TraceIndex(trace)))

    def _minimise(self, rule: str) -> None:
        found = self._broken_by[rule]
        # What breaks the rule each time is the evidence to keep; a race is one only if all are.
        plain = next((item for item in found if self._breaks_each_time(rule, item)), found[0])
        minimal = minimise(plain, lambda candidate: self._breaks_each_time(rule, candidate, 2))
        traces = [self._trace(minimal) for _ in range(REPEATS)]
        if minimal != plain and not all(self._breaks(rule, trace) for trace in traces):
            # What varies is the smaller one; the rule varies only if the one that was found does.
            minimal = plain
            traces = [self._trace(minimal) for _ in range(REPEATS)]
        named = {"name": f"minimal.{rule}", "rules": (rule,), "title": f"The smallest that breaks {rule}"}
        minimal = minimal.model_copy(update=named)
        broken = [trace for trace in traces if self._breaks(rule, trace)]
        self.result.minimal[rule] = [minimal]
        self.result.minimal_traces[rule] = [broken[0] if broken else traces[0]]
        if len(broken) != len(traces):
            self.judge.results[rule].varies = True
            held = next(trace for trace in traces if trace not in broken)
            self.result.minimal_traces[rule].append(held)

    def _breaks_each_time(self, rule: str, scenario: Scenario, times: int = REPEATS) -> bool:
        return all(self._breaks(rule, self._trace(scenario)) for _ in range(times))

    def _repeat_family(self, rule: str) -> None:
        """The first family that breaks a relation rule, run again."""
        found = self.judge.results[rule]
        name = found.breaks[0].scenario
        members = self._families[name]
        self.result.minimal[rule] = [
            scenario.model_copy(update={"rules": (rule,)}) for scenario, _ in members.values()
        ]
        self.result.minimal_traces[rule] = [trace for _, trace in members.values()]
        for _ in range(REPEATS - 1):
            again = [TraceIndex(self._trace(scenario)) for scenario, _ in members.values()]
            if not any(isinstance(item, Broke) for item in found.rule.check(again)):
                found.varies = True
        broken_in = {item.member for item in found.breaks}
        for scenario, trace in members.values():
            assert scenario.family is not None
            if scenario.family.member in broken_in:
                self.result.evidence_traces[name] = trace


def _ending(index: TraceIndex) -> str:
    run = index.runs[0]
    if run.settled is None:
        return "it never settled"
    settled = run.settled
    if settled.outcome == Outcome.COMPLETED:
        return "completed"
    types = [item.get("type") for item in settled.raw.get("raised", ())]
    return f"{settled.outcome} ({settled.form} {', '.join(map(str, types))}): {settled.message}"
