"""The generated parts of the standard: written from the code, and checked against it.

``python -m loopspec.spec_pages --check`` says which files differ from what the code says;
``--write`` writes them. Everything before that is pure: texts in, texts out.

A page is written by hand and by the code together, and who owns what is marked in it. A chapter has
its introduction above :data:`RULES_BELOW` and its rules below. In other pages the code owns what
stands between ``<!-- generated: NAME -->`` and ``<!-- end of NAME -->``. Files under ``schemas/``
and the diagram ``machine.dot`` belong to the code alone.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from loopspec import scenario as scenarios
from loopspec import spec_words
from loopspec.json_schemas import schema_files
from loopspec.library import spec_folder
from loopspec.machine import CALL_TABLE, TABLE, CallState, Kind, State
from loopspec.rules import CHAPTERS, RULES, Rule
from loopspec.scenario import Scenario
from loopspec.vocabulary import CLAIMS, PROFILES, Level

RULES_BELOW = "<!-- rules: generated from the code below this line -->"

_LEVELS = {
    Level.CORE: "core",
    Level.ADVISORY: "advisory",
    Level.OBSERVED: "observed",
}
_SETTLED = (State.COMPLETED, State.FAILED)


class PageError(Exception):
    """A page cannot be written; the message names the file and the remedy."""


@dataclass(frozen=True, slots=True)
class Example:
    """An example file: its path below ``spec/`` and its scenarios."""

    path: str
    scenarios: tuple[Scenario, ...]


# --------------------------------------------------------------------------------------------
# Tables


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def run_states() -> str:
    """The states of a run and what it waits for there."""
    return _table(["state", "meaning"], [[f"`{state}`", words] for state, words in spec_words.STATES.items()])


def run_table() -> str:
    """The run's table, a row a line."""
    rows = [
        [f"`{state}`", kind, "" if row.guard == "always" else row.guard, row.action, f"`{row.next}`"]
        for (state, kind), entries in TABLE.items()
        for row in entries
    ]
    return _table(["in", "on", "if", "do", "then"], rows)


def illegal_inputs() -> str:
    """What has no row, by state."""
    rows = [[f"`{state}`", ", ".join(kind for kind in Kind if not TABLE[state, kind])] for state in State]
    return _table(["in", "illegal"], rows)


def call_table() -> str:
    """The call's states and its table."""
    states = [[f"`{state}`", words] for state, words in spec_words.CALL_STATES.items()]
    inputs = list(dict.fromkeys(given for _, given in CALL_TABLE))
    moves = []
    for state in CallState:
        after = [CALL_TABLE[state, given] for given in inputs]
        moves.append([f"`{state}`", *(f"`{item}`" if item else "illegal" for item in after)])
    return _table(["state", "meaning"], states) + "\n\n" + _table(["in", *inputs], moves)


# --------------------------------------------------------------------------------------------
# Diagrams


Edges = Mapping[tuple[str, str], Sequence[str]]


def _edges() -> Edges:
    """What leads from one state to another; what changes no state is left to the table.

    A condition is named where an input may lead to several states.
    """
    edges: dict[tuple[str, str], dict[str, list[str]]] = {}
    for (state, kind), rows in TABLE.items():
        several = len({row.next for row in rows}) > 1
        for row in rows:
            if row.next is not state:
                guards = edges.setdefault((state, row.next), {}).setdefault(str(kind), [])
                guards += [row.guard] if several else []
    return {
        ends: [f"{kind} ({' / '.join(guards)})" if guards else kind for kind, guards in inputs.items()]
        for ends, inputs in edges.items()
    }


def _call_edges() -> Edges:
    edges: dict[tuple[str, str], list[str]] = {}
    for (state, given), after in CALL_TABLE.items():
        if after is not None:
            edges.setdefault((state, after), []).append(str(given))
    return edges


def run_mermaid() -> str:
    """The run's table as a Mermaid state diagram."""
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {State.IDLE}"]
    lines += [f"    {one} --> {two} : {', '.join(labels)}" for (one, two), labels in _edges().items()]
    lines += [f"    {state} --> [*]" for state in _SETTLED]
    return "\n".join([*lines, "```"])


def call_mermaid() -> str:
    """The call's table as a Mermaid state diagram."""
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {CallState.ANNOUNCED}"]
    lines += [f"    {one} --> {two} : {', '.join(labels)}" for (one, two), labels in _call_edges().items()]
    lines += [f"    {state} --> [*]" for state in (CallState.ANSWERED, CallState.SKIPPED)]
    return "\n".join([*lines, "```"])


def dot() -> str:
    """Both tables as Graphviz text."""
    lines = ["// Generated from the tables in machine.py.", "digraph machine {", "  rankdir=TB;"]
    lines.append('  node [shape=box, style=rounded, fontname="sans-serif"];')
    lines.append('  edge [fontname="sans-serif", fontsize=10];')
    for name, states, edges, final in (
        ("run", list(State), _edges(), _SETTLED),
        ("call", list(CallState), _call_edges(), (CallState.ANSWERED, CallState.SKIPPED)),
    ):
        lines += [f"  subgraph cluster_{name} {{", f'    label="{name}";']
        for state in states:
            border = ", peripheries=2" if state in final else ""
            lines.append(f'    {name}_{state} [label="{state}"{border}];')
        for (one, two), labels in edges.items():
            label = "\\n".join(labels)
            lines.append(f'    {name}_{one} -> {name}_{two} [label="{label}"];')
        lines.append("  }")
    return "\n".join([*lines, "}", ""])


# --------------------------------------------------------------------------------------------
# Rules and claims


def _level(rule: Rule) -> str:
    if rule.claim is None:
        return _LEVELS[rule.level]
    values = f" = {' or '.join(rule.values)}" if rule.values else ""
    also = "".join(f" and `{name}`" for name in rule.also_needs)
    return f"claim `{rule.claim}{values}`{also}"


def _golden(example: Example, golden: frozenset[str]) -> str:
    """Links to the golden traces of an example's scenarios, where there are any."""
    by_profile = []
    for profile in PROFILES:
        links: list[str] = []
        for scenario in example.scenarios:
            member = f".{scenario.family.member}" if scenario.family else ""
            name = f"{profile}/{scenario.name}{member}.txt"
            if name in golden:
                links.append(f"[{len(links) + 1}](../snapshots/{name})")
        if links:
            by_profile.append(f"{profile} {' '.join(links)}")
    return f" Golden traces: {', '.join(by_profile)}." if by_profile else ""


def rule_block(rule: Rule, example: Example, golden: frozenset[str]) -> str:
    """One rule of a chapter."""
    kind = " It compares the runs of a family of scenarios." if rule.relation else ""
    return "\n\n".join(
        [
            f'<a id="{rule.id}"></a>\n### {rule.id}',
            f"*{_level(rule)}*",
            rule.sentence + kind,
            f"Why: {rule.reason}",
            f"From: {rule.source}. Example: [{Path(example.path).name}]({example.path})."
            + _golden(example, golden),
        ]
    )


def chapter_rules(chapter: str, examples: Mapping[str, Example], golden: frozenset[str]) -> str:
    """The generated part of a chapter: an overview and a block for each rule."""
    rules = [rule for rule in RULES.values() if rule.chapter == chapter]
    overview = [[f"[{rule.id}](#{rule.id})", _level(rule)] for rule in rules]
    blocks = [rule_block(rule, examples[rule.id], golden) for rule in rules]
    return "\n\n".join(["## Rules", _table(["rule", "level"], overview), *blocks])


def claims_table() -> str:
    """Every claim: what it chooses between, its values, and the profiles."""
    head = ["claim", "what it says", "values", *(f"`{name}`" for name in PROFILES)]
    rows = []
    for name, values in CLAIMS.items():
        chosen = [profile.get(name, "not claimed") for profile in PROFILES.values()]
        rows.append([f"`{name}`", spec_words.CLAIMS[name], ", ".join(values), *chosen])
    return _table(head, rows)


def claims_rules() -> str:
    """Which rules a claim binds a target to."""
    rows = []
    for name in CLAIMS:
        rules = [rule for rule in RULES.values() if rule.claim == name or name in rule.also_needs]
        links = ", ".join(f"[{rule.id}]({rule.chapter}.md#{rule.id})" for rule in rules)
        rows.append([f"`{name}`", links or "none of its own; it decides how others are met"])
    return _table(["claim", "rules"], rows)


# --------------------------------------------------------------------------------------------
# Pages


def _parts() -> dict[str, dict[str, str]]:
    return {
        "machine.md": {
            "states": run_states(),
            "run diagram": run_mermaid(),
            "run table": run_table(),
            "illegal inputs": illegal_inputs(),
            "call diagram": call_mermaid(),
            "call table": call_table(),
        },
        "claims.md": {"claims": claims_table(), "rules by claim": claims_rules()},
    }


def _filled(path: str, text: str, parts: Mapping[str, str]) -> str:
    for name, part in parts.items():
        first, last = f"<!-- generated: {name} -->", f"<!-- end of {name} -->"
        before, found, rest = text.partition(first)
        _, ended, after = rest.partition(last)
        if not (found and ended):
            raise PageError(f"spec/{path} lacks {first} or {last}; put both where the part belongs")
        text = f"{before}{first}\n\n{part}\n\n{last}{after}"
    return text


def pages(
    texts: Mapping[str, str], examples: Mapping[str, Example], golden: frozenset[str] = frozenset()
) -> dict[str, str]:
    """All generated files by their path below ``spec/``.

    Parameters
    ----------
    texts: the pages as they are, for what was written by hand in them.
    examples: the example of each rule.
    golden: the golden traces that exist, by their path below ``snapshots/``.

    Raises :class:`PageError` where a page or a marker is missing.
    """
    out: dict[str, str] = {"machine.dot": dot(), **schema_files()}
    for path, parts in _parts().items():
        if path not in texts:
            raise PageError(f"spec/{path} is missing; write it with its markers")
        out[path] = _filled(path, texts[path], parts)
    for chapter in CHAPTERS:
        path = f"{chapter}.md"
        introduction, found, _ = texts.get(path, "").partition(RULES_BELOW)
        if not found:
            raise PageError(f"spec/{path} lacks its introduction and the line {RULES_BELOW}")
        out[path] = f"{introduction}{RULES_BELOW}\n\n{chapter_rules(chapter, examples, golden)}\n"
    return out


def examples_by_rule(files: Iterable[Example]) -> dict[str, Example]:
    """The example of each rule; raises :class:`PageError` unless each rule has exactly one file."""
    found: dict[str, list[Example]] = {name: [] for name in RULES}
    for example in files:
        for name in dict.fromkeys(name for item in example.scenarios for name in item.rules):
            if name not in found:
                raise PageError(f"spec/{example.path} names {name}, which is no rule")
            found[name].append(example)
    wrong = [
        f"{name} has {', '.join(item.path for item in its) or 'none'}"
        for name, its in found.items()
        if len(its) != 1
    ]
    if wrong:
        raise PageError("each rule has one example file that names it, but " + "; ".join(wrong))
    return {name: its[0] for name, its in found.items()}


# --------------------------------------------------------------------------------------------
# Files


def read_examples(spec: Path) -> list[Example]:
    """All example files of a specification folder."""
    paths = sorted((spec / "scenarios").glob("*/*.yaml"))
    return [Example(path.relative_to(spec).as_posix(), tuple(scenarios.load(path))) for path in paths]


def generated(spec: Path) -> dict[Path, str]:
    """What the generated files of ``spec`` should be."""
    texts = {path.name: path.read_text(encoding="utf-8") for path in spec.glob("*.md")}
    snapshots = spec.parent / "snapshots"
    golden = frozenset(path.relative_to(snapshots).as_posix() for path in snapshots.glob("*/*.txt"))
    found = pages(texts, examples_by_rule(read_examples(spec)), golden)
    return {spec / path: text for path, text in found.items()}


def differing(spec: Path) -> list[Path]:
    """The files that are not as the code says, and schema files that no code stands for."""
    wanted = generated(spec)
    wrong = [path for path, text in wanted.items() if not _is(path, text)]
    wrong += [path for path in (spec / "schemas").rglob("*.json") if path not in wanted]
    return sorted(wrong)


def _is(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text


def write(spec: Path) -> list[Path]:
    """Write what differs; returns it."""
    wanted = generated(spec)
    changed = differing(spec)
    for path in changed:
        if path in wanted:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted[path], encoding="utf-8")
        else:
            path.unlink()
    return changed


def main(arguments: Sequence[str]) -> int:
    """``--check`` or ``--write``; returns the exit code."""
    spec = spec_folder()
    if list(arguments) not in (["--check"], ["--write"]):
        sys.stderr.write("usage: python -m loopspec.spec_pages --check | --write\n")
        return 2
    try:
        changed = write(spec) if arguments[0] == "--write" else differing(spec)
    except (PageError, scenarios.ScenarioError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    said = "written" if arguments[0] == "--write" else "differs from the code; run --write"
    for path in changed:
        sys.stdout.write(f"{path.relative_to(spec.parent)}: {said}\n")
    return 1 if changed and arguments[0] == "--check" else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
