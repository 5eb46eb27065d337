"""From a campaign's result to the report."""

from __future__ import annotations

from typing import Any

from loopspec import __version__, spec_version
from loopspec import scenario as scenarios
from loopspec.adapters.manifest import Manifest
from loopspec.judge import RuleResult
from loopspec.report.model import (
    ClaimReport,
    Counts,
    CoverageReport,
    Evidence,
    Report,
    RuleReport,
    TargetReport,
)
from loopspec.report.sequence import describe, render
from loopspec.vocabulary import PROFILES, Level, Verdict

EVIDENCE_AT_MOST = 5
"""Places shown for a broken rule; all of them are counted in ``scenarios``."""


def _target(manifest: Manifest, variant: str) -> TargetReport:
    settings = manifest.variants[variant]
    stated = {claim.name: claim for claim in manifest.claims}
    claims = {
        name: ClaimReport(
            value=value,
            source=stated[name].source if name in stated else f"variant {variant}",
            words=stated[name].words if name in stated else "",
        )
        for name, value in manifest.claims_for(variant).items()
    }
    return TargetReport(
        name=manifest.name, version=manifest.version, variant=variant, grade=settings.grade,
        wire=settings.wire, streaming=settings.streaming, claims=claims,
        observes=list(settings.observes),
        outcomes=[
            entry.model_dump(mode="json", exclude_defaults=True) for entry in manifest.outcomes
        ],
    )  # fmt: skip


def _rule(result: RuleResult, campaign: Any, hides: dict[str, str]) -> RuleReport:
    rule = result.rule
    minimal = campaign.minimal.get(rule.id, ())
    traces = campaign.minimal_traces.get(rule.id, ())
    evidence = []
    for item in result.breaks[:EVIDENCE_AT_MOST]:
        trace = campaign.evidence_traces.get(item.scenario)
        inside = [at for at in item.at if trace is not None and at < len(trace)]
        entries = [describe(trace, at) for at in inside] if trace is not None else []
        evidence.append(Evidence(scenario=item.scenario, words=item.words, at=list(item.at), entries=entries))
    verdict = result.verdict
    return RuleReport(
        id=rule.id, level=rule.level, verdict=verdict, scenarios=result.scenarios,
        sentence=rule.sentence, claim=rule.claim, evidence=evidence,
        minimal_scenario=scenarios.dumps_all(minimal) if minimal else None,
        minimal_trace="\n".join(render(trace) for trace in traces) or None,
        why=list(result.hidden) if verdict is Verdict.NOT_OBSERVABLE else [],
        hidden_by=hides.get(rule.id),
    )  # fmt: skip


def differences(claims: dict[str, str]) -> dict[str, list[str]]:
    """Where a target's claims differ from each profile's, in words."""
    out = {}
    for profile, wanted in PROFILES.items():
        out[profile] = [
            f"{name}: {claims.get(name, 'not claimed')} (profile: {value})"
            for name, value in wanted.items()
            if claims.get(name) != value
        ]
    return out


def build(campaign: Any, manifest: Manifest, variant: str, seed: int, budget: str) -> Report:
    """The report of a campaign.

    Parameters
    ----------
    campaign: a finished (or interrupted) :class:`loopspec.explore.campaign.CampaignResult`.
    """
    hides = {item.rule: f"{item.code}: {item.words}" for item in manifest.hides}
    coverage = campaign.coverage
    return Report(
        loopspec=__version__, spec=spec_version, target=_target(manifest, variant), seed=seed,
        budget=budget, complete=campaign.complete, scenarios_run=campaign.scenarios_run,
        scenarios_skipped=dict(sorted(campaign.skipped.items())),
        rules=[_rule(result, campaign, hides) for result in campaign.results.values()],
        coverage=CoverageReport(
            transitions=Counts(**coverage["transitions"]),
            pairs=Counts(**coverage["pairs"]),
            await_points=Counts(**coverage["await_points"]),
        ),
        profiles=differences(manifest.claims_for(variant)), errors=list(campaign.errors),
    )  # fmt: skip


def inconclusive_core(report: Report) -> list[RuleReport]:
    """Core rules without a pass or a fail: each is named in the report with its reason."""
    open_verdicts = (Verdict.NOT_EXERCISED, Verdict.NOT_OBSERVABLE)
    return [r for r in report.rules if r.level is Level.CORE and r.verdict in open_verdicts]
