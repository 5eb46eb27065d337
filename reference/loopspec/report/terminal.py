"""The report as a person reads it in a terminal.

Core verdicts first, then claims, then advice, then what stayed open and why. A broken rule comes
with its sentence, the evidence in words, and the command that shows it again.
"""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.text import Text

from loopspec.report.build import inconclusive_core
from loopspec.report.model import Report, RuleReport
from loopspec.vocabulary import Level, Verdict

STYLE = {
    Verdict.PASS: "green",
    Verdict.FAIL: "bold red",
    Verdict.VARIES: "bold magenta",
    Verdict.NOT_EXERCISED: "yellow",
    Verdict.NOT_OBSERVABLE: "yellow",
    Verdict.NOT_CLAIMED: "dim",
    Verdict.OBSERVED: "cyan",
}
MARK = {
    Verdict.PASS: "✓",
    Verdict.FAIL: "✗",
    Verdict.VARIES: "≈",
    Verdict.NOT_EXERCISED: "○",
    Verdict.NOT_OBSERVABLE: "◌",
    Verdict.NOT_CLAIMED: "·",
    Verdict.OBSERVED: "i",
}


def _broken(console: Console, rule: RuleReport, replay: str | None) -> None:
    known = f"  (known: {escape(rule.known)})" if rule.known else ""
    style = "dim" if rule.known else STYLE[rule.verdict]
    mark = MARK[rule.verdict]
    console.print(f"[{style}]{mark} {rule.id}[/]  [dim]{rule.level}, {rule.verdict}[/]{known}")
    console.print(Padding(Text(rule.sentence, style="italic"), (0, 0, 0, 4)))
    for item in rule.evidence[:2]:
        console.print(Padding(Text(f"{item.scenario}: {item.words}"), (0, 0, 0, 4)))
        for entry in item.entries:
            console.print(Padding(Text(entry, style="dim"), (0, 0, 0, 8)))
    more = rule.scenarios - 2
    if len(rule.evidence) > 2 and more > 0:
        console.print(f"    [dim]and {len(rule.evidence) - 2} more places shown in --json[/]")
    if replay:
        console.print(f"    [dim]again:[/] {escape(replay)}", soft_wrap=True)


def _section(console: Console, title: str, rules: Iterable[RuleReport], replay: dict[str, str]) -> None:
    rules = list(rules)
    passed = sum(rule.verdict is Verdict.PASS for rule in rules)
    broken = [rule for rule in rules if rule.verdict in (Verdict.FAIL, Verdict.VARIES)]
    console.print(f"\n[bold]{title}[/]: {passed} held, {len(broken)} broken")
    for rule in broken:
        _broken(console, rule, replay.get(rule.id))


def print_report(report: Report, console: Console, replay: dict[str, str] | None = None) -> None:
    """Print the report; ``replay`` are the commands that replay a rule's minimal scenario."""
    replay = replay or {}
    target = report.target
    console.print(
        f"\n[bold]{escape(target.name)} {escape(target.version)}[/], variant {target.variant} "
        f"({target.wire}{', streaming' if target.streaming else ''}, grade {target.grade}); "
        f"loopspec {report.loopspec}, spec {report.spec}, seed {report.seed}, budget {report.budget}",
        highlight=False,
    )
    levels = {
        Level.CORE: "Core rules",
        Level.CLAIM: "Claims",
        Level.ADVISORY: "Advice (does not fail a run)",
    }
    for level, title in levels.items():
        rules = [r for r in report.rules if r.level is level]
        if level is Level.CLAIM:
            rules = [r for r in rules if r.verdict is not Verdict.NOT_CLAIMED]
        _section(console, title, rules, replay)
    _open(console, report)
    _profiles(console, report)
    _footer(console, report)


def _open(console: Console, report: Report) -> None:
    rules = inconclusive_core(report)
    if rules:
        console.print("\n[bold]Core rules without a verdict[/] (not a pass):")
    for rule in rules:
        why = rule.hidden_by or "; ".join(rule.why) or "no scenario of this run could exercise it here"
        style = STYLE[rule.verdict]
        console.print(f"[{style}]{MARK[rule.verdict]} {rule.id}[/]  [dim]{rule.verdict}:[/] {escape(why)}")


def _profiles(console: Console, report: Report) -> None:
    if report.target.name == "reference":
        return
    console.print("\n[bold]Where its claims differ from the profiles[/]")
    for profile, lines in report.profiles.items():
        shown = "; ".join(lines) or "nowhere"
        console.print(Padding(Text.assemble((f"{profile}: ", "bold"), shown), (0, 0, 0, 2)))


def _footer(console: Console, report: Report) -> None:
    cover = report.coverage
    console.print(
        f"\n{report.scenarios_run} scenarios; machine rows {cover.transitions.exercised} of "
        f"{cover.transitions.all}, pairs {cover.pairs.exercised} of {cover.pairs.all}, await points "
        f"{cover.await_points.exercised} of {cover.await_points.all}",
        highlight=False,
    )
    for why, count in report.scenarios_skipped.items():
        console.print(f"[dim]{count} scenarios not run: {escape(why)}[/]")
    for error in report.errors:
        console.print(f"[bold red]error:[/] {escape(error)}")
    if not report.complete:
        console.print("[bold yellow]interrupted: the verdicts are of what had run by then[/]")
    failed = report.failed()
    counts = ", ".join(f"{report.count(verdict)} {verdict}" for verdict in Verdict if report.count(verdict))
    word = "[bold red]FAILED[/]" if failed else "[bold green]nothing failed[/]"
    console.print(f"{word}: {counts}", highlight=False)
