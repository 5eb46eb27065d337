"""The command line.

Exit codes: 0 judged and nothing failed; 1 something failed; 2 could not judge (bad input, or the
target or its adapter did not pass the smoke run); 3 a fault of loopspec itself.

Only click is imported here; everything else when a command needs it, so that ``--help`` and shell
completion are quick.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console

    from loopspec.scenario import Scenario
    from loopspec.trace import Trace

FAILED, UNUSABLE, FAULT = 1, 2, 3
CONFIG_FILES = ("loopspec.toml", "pyproject.toml")


class Unusable(click.ClickException):
    """Nothing could be judged: exit code 2."""

    exit_code = UNUSABLE

    def show(self, file: Any = None) -> None:
        """Print the one clear error."""
        click.echo(f"{click.style('error:', fg='red', bold=True)} {self.message}", err=True, color=_colour())


def _colour() -> bool | None:
    return False if os.environ.get("NO_COLOR") else None


def _config() -> dict[str, Any]:
    """Defaults for ``run`` from ``loopspec.toml`` or ``[tool.loopspec]`` in ``pyproject.toml``."""
    import tomllib

    for name in CONFIG_FILES:
        path = Path(name)
        if not path.is_file():
            continue
        try:
            data: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, tomllib.TOMLDecodeError) as error:
            if name == "pyproject.toml":
                continue  # not ours to complain about
            raise Unusable(f"{path}: {error}") from None
        if name == "pyproject.toml":
            data = data.get("tool", {}).get("loopspec", {})
        if data:
            known = {param.name for param in run.params}
            for key in data:
                if key.replace("-", "_") not in known:
                    raise Unusable(f"{path}: there is no option {key!r}; options are those of 'loopspec run'")
            return {key.replace("-", "_"): value for key, value in data.items()}
    return {}


def _console(stderr: bool = False) -> Console:
    from rich.console import Console

    # A pipe or a file has no width of its own; lines that tests and people grep stay whole.
    width = None if sys.stdout.isatty() else 110
    return Console(stderr=stderr, width=width, soft_wrap=False, highlight=False)


def _interrupt(*_: Any) -> None:
    """Being told to end is as good as Ctrl-C: let go of the target, say what is known."""
    raise KeyboardInterrupt


class _Group(click.Group):
    """Turns what is not the user's fault into exit code 3, with what to report."""

    def invoke(self, ctx: click.Context) -> Any:
        signal.signal(signal.SIGTERM, _interrupt)
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except KeyboardInterrupt:
            click.echo("interrupted: nothing was judged", err=True)
            ctx.exit(UNUSABLE)
        except BrokenPipeError:
            # The reader (head, less) has gone; that is no fault.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(0)
        except Exception:  # noqa: BLE001 - whatever it is, it is told and has an exit code
            import traceback

            traceback.print_exc()
            click.echo("\nThis is a fault of loopspec itself; please report the lines above.", err=True)
            ctx.exit(FAULT)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="loopspec", prog_name="loopspec")
def main() -> None:
    """Tell whether an LLM agent loop keeps the rules.

    Exit codes: 0 judged and nothing failed, 1 something failed, 2 could not judge, 3 a fault of
    loopspec itself.
    """


def _complete_targets(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    from loopspec.adapters import managed

    names = ["reference", *(manifest.name for manifest in managed.available())]
    return [name for name in names if name.startswith(incomplete)]


def _complete_rules(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    from loopspec.rules import RULES

    return [name for name in RULES if name.startswith(incomplete)]


def _resolve(target: str, profile: str, claims: tuple[str, ...], console: Console) -> Any:
    from loopspec import targets

    try:
        return targets.resolve(
            target, profile=profile, changes=claims,
            progress=lambda words: console.print(f"[dim]{words}[/]"),
        )  # fmt: skip
    except targets.TargetError as error:
        raise Unusable(str(error)) from None


def _executor(adapter: Any, variant: str | None) -> Any:
    from loopspec.bench.executor import Executor

    try:
        return Executor(adapter, variant)
    except ValueError as error:
        raise Unusable(str(error)) from None


_target_options = [
    click.option("--variant", help="Which variant of the target; its first one by default."),
    click.option(
        "--profile", default="rejecting", show_default=True, metavar="NAME",
        help="Whose claims the built-in reference runs with.",
    ),
    click.option(
        "--claim", "claims", multiple=True, metavar="NAME=VALUE",
        help="Change a claim for this run; an empty value takes it away. May be repeated.",
    ),
]  # fmt: skip


def _with_target_options(command: Any) -> Any:
    for option in reversed(_target_options):
        command = option(command)
    return command


@main.command()
@click.argument("target", default="reference", shell_complete=_complete_targets)
@_with_target_options
@click.option(
    "--rule", "rules", multiple=True, metavar="ID", shell_complete=_complete_rules,
    help="Judge by this rule (or chapter) only. May be repeated.",
)  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, help="Same seed, same verdicts.")
@click.option(
    "--budget", type=click.Choice(["quick", "full"]), default="quick", show_default=True,
    help="How much to explore.",
)  # fmt: skip
@click.option("--json", "json_path", metavar="FILE", help="Write the report as JSON ('-': to the terminal).")
@click.option("--junit", metavar="FILE", help="Write the report as JUnit XML.")
@click.option("--save-failures", metavar="DIR", help="Write the minimal scenario of each broken rule there.")
@click.option("--known", metavar="FILE", help="A file of known failures: rule, evidence, reason.")
@click.option("--quiet", "-q", is_flag=True, help="Only the last line.")
@click.pass_context
def run(
    ctx: click.Context,
    target: str,
    variant: str | None,
    profile: str,
    claims: tuple[str, ...],
    rules: tuple[str, ...],
    seed: int,
    budget: str,
    json_path: str | None,
    junit: str | None,
    save_failures: str | None,
    known: str | None,
    quiet: bool,
) -> None:
    """Judge TARGET by the rules (the built-in reference by default).

    TARGET is 'reference', NAME or NAME@VERSION of the catalogue (see 'loopspec list targets'), the
    path of your own manifest.toml, or MODULE:ATTRIBUTE for an adapter in Python.
    """
    from loopspec.report import build as reports
    from loopspec.report import junit as junits
    from loopspec.report import known as knowns
    from loopspec.report.terminal import print_report

    progress = _console(stderr=True)
    chosen = _chosen_rules(rules)
    expected = _known(known)
    adapter = _resolve(target, profile, claims, progress)
    with _executor(adapter, variant) as executor:
        result = _campaign(executor, chosen, seed, budget, progress)
        manifest, name = executor.manifest, executor.variant
    report = reports.build(result, manifest, name, seed, budget)
    stale = knowns.apply(report, expected)
    report.errors += stale
    again = _save(result, save_failures, target, variant)
    if json_path:
        _write(json_path, report.model_dump_json(indent=2) + "\n")
    if junit:
        _write(junit, junits.dumps(report))
    if json_path != "-" and junit != "-":
        console = _console()
        if quiet:
            failed = len(report.failed())
            console.print(f"{manifest.name} {manifest.version} ({name}): {failed} rules failed")
        else:
            print_report(report, console, again)
    if not report.complete:
        ctx.exit(UNUSABLE)
    if report.failed() or stale:
        ctx.exit(FAILED)
    ctx.exit(UNUSABLE if report.errors else 0)


def _chosen_rules(names: tuple[str, ...]) -> list[str] | None:
    from loopspec.rules import CHAPTERS, RULES

    if not names:
        return None
    chosen = []
    for name in names:
        found = [rule for rule in RULES if rule == name or rule.partition(".")[0] == name]
        if not found:
            raise Unusable(
                f"there is no rule or chapter {name!r}; chapters: {', '.join(CHAPTERS)}; "
                "see 'loopspec list rules'"
            )
        chosen += found
    return chosen


def _known(path: str | None) -> list[Any]:
    from loopspec.report import known as knowns

    if path is None:
        return []
    try:
        return list(knowns.load(Path(path)))
    except knowns.KnownError as error:
        raise Unusable(str(error)) from None


def _campaign(executor: Any, rules: list[str] | None, seed: int, budget: str, console: Console) -> Any:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from loopspec.explore.campaign import Campaign, SmokeFailed

    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    )  # fmt: skip
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("starting", total=None)

        def show(phase: str, done: int, total: int | None) -> None:
            bar.update(task, description=phase, completed=done, total=total)

        try:
            return Campaign(executor, rules=rules, seed=seed, budget=budget, progress=show).run()
        except SmokeFailed as error:
            raise Unusable(
                f"{executor.manifest.name} ({executor.variant}) did not pass the smoke run: {error}"
            ) from None


def _save(result: Any, folder: str | None, target: str, variant: str | None) -> dict[str, str]:
    """Write minimal scenarios; the replay command for each rule."""
    from loopspec import scenario as scenarios

    if folder is None:
        return {}
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    again = {}
    suffix = f" --variant {variant}" if variant else ""
    for rule, minimal in result.minimal.items():
        path = place / f"{rule}.yaml"
        path.write_text(scenarios.dumps_all(minimal), encoding="utf-8")
        again[rule] = f"loopspec replay {path} {target}{suffix}"
    return again


def _write(path: str, text: str) -> None:
    if path == "-":
        click.echo(text, nl=False)
        return
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise Unusable(f"{path}: cannot be written: {error}") from None


# --------------------------------------------------------------------------------------------


@main.group("list")
def list_() -> None:
    """Show what there is: targets, rules, scenarios, profiles."""


@list_.command("targets")
def list_targets() -> None:
    """The targets of the catalogue, with their variants."""
    from loopspec.adapters import managed

    click.echo("reference  the built-in reference loop (profiles: see 'loopspec list profiles')")
    for manifest in managed.available():
        click.echo(f"{manifest.name} {manifest.version}  {manifest.documentation}")
        for name, variant in manifest.variants.items():
            click.echo(f"    {name}: {variant.words or variant.wire}")


@list_.command("rules")
@click.option("--chapter", help="Only this chapter.")
def list_rules(chapter: str | None) -> None:
    """Every rule of the standard: id, level, sentence."""
    from loopspec.rules import CHAPTERS, RULES

    if chapter is not None and chapter not in CHAPTERS:
        raise Unusable(f"there is no chapter {chapter!r}; chapters: {', '.join(CHAPTERS)}")
    for rule in RULES.values():
        if chapter in (None, rule.chapter):
            level = f"claim {rule.claim}" if rule.claim else str(rule.level)
            click.echo(f"{rule.id}  [{level}]  {rule.sentence}")


@list_.command("scenarios")
def list_scenarios() -> None:
    """The example scenarios of the standard."""
    from loopspec.library import examples

    for scenario in examples():
        click.echo(f"{scenario.name}  {scenario.title}")


@list_.command("profiles")
def list_profiles() -> None:
    """The profiles and their claims."""
    from loopspec.vocabulary import PROFILES

    for name, claims in PROFILES.items():
        click.echo(name)
        for claim, value in claims.items():
            click.echo(f"    {claim} = {value}")


@main.command()
@click.argument("rule", shell_complete=_complete_rules)
def explain(rule: str) -> None:
    """Say what RULE asks for, why, and show its example."""
    from loopspec import scenario as scenarios
    from loopspec.library import examples_of
    from loopspec.rules import RULES

    if rule not in RULES:
        import difflib

        near = difflib.get_close_matches(rule, RULES, n=3, cutoff=0.4)
        hint = f"; did you mean {', '.join(near)}?" if near else "; see 'loopspec list rules'"
        raise Unusable(f"there is no rule {rule!r}{hint}")
    found = RULES[rule]
    level = f"claim {found.claim}" if found.claim else str(found.level)
    values = f" ({', '.join(found.values)})" if found.values else ""
    click.echo(f"{click.style(found.id, bold=True)}  [{level}{values}]\n", color=_colour())
    for words in (found.sentence, f"Why: {found.reason}", f"Source: {found.source}"):
        click.echo(f"{click.wrap_text(words, 96)}\n")
    for scenario in examples_of(rule):
        click.echo(f"Example {scenario.name}:\n\n{scenarios.dumps(scenario)}")


# --------------------------------------------------------------------------------------------


def _load(text: str) -> list[Scenario]:
    """A scenario by name, or those of a file."""
    from loopspec import scenario as scenarios
    from loopspec.library import by_name

    found = by_name(text)
    if found:
        return found
    if not Path(text).exists():
        raise Unusable(f"{text!r} is neither an example's name (see 'loopspec list scenarios') nor a file")
    try:
        return scenarios.load(text)
    except scenarios.ScenarioError as error:
        raise Unusable(str(error)) from None


def _play(executor: Any, found: list[Scenario]) -> list[Trace]:
    return [executor.run(scenario) for scenario in found]


@main.command()
@click.argument("scenario")
@click.option("--target", default="reference", shell_complete=_complete_targets, show_default=True)
@_with_target_options
@click.option("--trace", "as_trace", is_flag=True, help="Print the trace as NDJSON instead.")
def show(
    scenario: str, target: str, variant: str | None, profile: str, claims: tuple[str, ...], as_trace: bool
) -> None:
    """Run SCENARIO (a name or a file) and draw its trace as a sequence diagram."""
    from loopspec import trace as traces
    from loopspec.report.sequence import render

    found = _load(scenario)
    adapter = _resolve(target, profile, claims, _console(stderr=True))
    with _executor(adapter, variant) as executor:
        for trace in _play(executor, found):
            if as_trace:
                click.echo(traces.dumps(trace), nl=False)
            else:
                click.echo(f"{trace.header.scenario} ({trace.header.target}, {trace.header.variant})\n")
                click.echo(render(trace))


@main.command()
@click.argument("file")
@click.argument("target", default="reference", shell_complete=_complete_targets)
@_with_target_options
@click.option("--repeat", type=click.IntRange(1), default=1, show_default=True, help="How often.")
@click.option("--rule", "rules", multiple=True, metavar="ID", help="Judge by these rules only.")
@click.pass_context
def replay(
    ctx: click.Context,
    file: str,
    target: str,
    variant: str | None,
    profile: str,
    claims: tuple[str, ...],
    repeat: int,
    rules: tuple[str, ...],
) -> None:
    """Run a saved scenario FILE again on TARGET, draw it, and judge it.

    A file that 'run --save-failures' wrote names its rule; that rule alone decides, unless --rule
    says otherwise.
    """
    from loopspec.report.replay import replay_words

    found = _load(file)
    adapter = _resolve(target, profile, claims, _console(stderr=True))
    named = sorted({rule for scenario in found for rule in scenario.rules})
    chosen = _chosen_rules(rules or tuple(named))
    with _executor(adapter, variant) as executor:
        words, broken = replay_words(executor, found, chosen, repeat)
    click.echo(words)
    ctx.exit(FAILED if broken else 0)


@main.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of SHELL; add it to your shell's start-up file."""
    from click.shell_completion import get_completion_class

    cls = get_completion_class(shell)
    assert cls is not None
    click.echo(cls(main, {}, "loopspec", "_LOOPSPEC_COMPLETE").source())


# The configuration file gives defaults for ``run``; arguments win. It is read only when run is run.
_run_make_context = run.make_context


def _make_run_context(info_name: str | None, args: list[str], **extra: Any) -> click.Context:
    extra.setdefault("default_map", _config())
    return _run_make_context(info_name, args, **extra)


run.make_context = _make_run_context  # type: ignore[method-assign,assignment]
