"""Replaying a saved scenario: the diagram with the evidence marked, and how often it came out so."""

from __future__ import annotations

from collections import Counter
from typing import Any

from loopspec.judge import Judge
from loopspec.report.sequence import render
from loopspec.scenario import Scenario
from loopspec.trace import Trace
from loopspec.vocabulary import Verdict


def _judge(traces: list[Trace], claims: dict[str, str], rules: list[str] | None) -> dict[str, Any]:
    judge = Judge(claims, rules)
    for trace in traces:
        judge.add(trace)
    return judge.finish()


def replay_words(
    executor: Any, found: list[Scenario], rules: list[str] | None, repeat: int
) -> tuple[str, bool]:
    """Run the scenarios ``repeat`` times; the words to print, and whether a rule was broken."""
    claims = executor.manifest.claims_for(executor.variant)
    counts: Counter[tuple[str, str]] = Counter()
    first: dict[str, Any] = {}
    traces: list[Trace] = []
    for number in range(repeat):
        played = [executor.run(scenario) for scenario in found]
        results = _judge(played, claims, rules)
        if number == 0:
            first, traces = results, played
        for name, result in results.items():
            counts[name, str(result.verdict)] += 1
    broken = {name: r for name, r in first.items() if r.verdict is Verdict.FAIL}
    lines = []
    for trace in traces:
        name = trace.header.scenario
        marked = {
            at
            for result in broken.values()
            for item in result.breaks
            if item.scenario == name or item.member == trace.header.member
            for at in item.at
        }
        lines += [f"{name} ({trace.header.target}, {trace.header.variant})", "", render(trace, marked)]
    for name, result in broken.items():
        lines += [f"✗ {name}: {result.rule.sentence}"]
        lines += [f"    {item.words} (entries {', '.join(map(str, item.at))})" for item in result.breaks]
    shown = {name for name, verdict in counts if verdict in ("pass", "fail", "varies") or rules}
    for (name, verdict), count in sorted(counts.items()):
        if name in shown and (rules or verdict == "fail"):
            lines.append(f"{name}: {verdict} {count} of {repeat}")
    if not broken:
        lines.append("no rule was broken")
    ever = any(verdict == "fail" for _, verdict in counts)
    return "\n".join(lines), ever
