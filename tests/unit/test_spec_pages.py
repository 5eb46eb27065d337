"""The standard's pages say what the code says, and the schemas accept what the code writes."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import jsonschema
import pytest

import loopspec
from loopspec import scenario as scenarios
from loopspec import spec_pages, spec_words
from loopspec.adapters.reference import ReferenceAdapter
from loopspec.bench.executor import Executor
from loopspec.json_schemas import all_schemas
from loopspec.library import examples, spec_folder
from loopspec.machine import CallState, State, row_ids
from loopspec.rules import CHAPTERS, RULES
from loopspec.spec_pages import RULES_BELOW, Example, PageError, examples_by_rule
from loopspec.trace import dumps
from loopspec.vocabulary import CLAIMS, PROFILES
from meta.rows import WALKS

SPEC = spec_folder()
SCHEMAS = all_schemas()


def checks(name: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(SCHEMAS[name])


# --------------------------------------------------------------------------------------------
# Drift


def test_no_generated_file_differs_from_the_code():
    """If this fails: ``python -m loopspec.spec_pages --write``."""
    assert [str(path) for path in spec_pages.differing(SPEC)] == []


def test_every_rule_has_exactly_one_example_file():
    """A rule that nobody can see at work is half a rule; two files would tell it twice."""
    assert set(examples_by_rule(spec_pages.read_examples(SPEC))) == set(RULES)


def test_every_rule_stands_in_its_chapter_once():
    """With its sentence, its reason, its source and its example."""
    for rule in RULES.values():
        page = (SPEC / f"{rule.chapter}.md").read_text(encoding="utf-8")
        assert page.count(f'<a id="{rule.id}"></a>') == 1
        for words in (rule.sentence, f"Why: {rule.reason}", f"From: {rule.source}."):
            assert words in page


def test_every_chapter_has_an_introduction_of_its_own():
    """Written by hand, for somebody who reads the standard from its start."""
    for chapter in CHAPTERS:
        introduction = (SPEC / f"{chapter}.md").read_text(encoding="utf-8").partition(RULES_BELOW)[0]
        assert introduction.startswith(f"# {chapter.capitalize()}")
        assert len(re.findall(r"[.?:](?:\s|$)", introduction)) >= 5


def test_every_row_stands_in_the_machines_page():
    """The table is the whole table."""
    page = (SPEC / "machine.md").read_text(encoding="utf-8")
    table = page.partition("<!-- generated: run table -->")[2].partition("<!-- end of run table -->")[0]
    assert len(table.strip().splitlines()) == len(row_ids()) + 2


def test_every_state_and_every_claim_is_told_in_words():
    """And nothing is told that there is not."""
    assert set(spec_words.STATES) == set(State)
    assert set(spec_words.CALL_STATES) == set(CallState)
    assert set(spec_words.CLAIMS) == set(CLAIMS)


def test_links_between_the_pages_lead_somewhere():
    """To files that exist, and to rules that stand in the page."""
    for page in SPEC.glob("*.md"):
        text = page.read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            path, _, anchor = target.partition("#")
            where = (page.parent / path) if path else page
            assert where.exists(), f"{page.name} links to {target}"
            if anchor in RULES:
                assert f'<a id="{anchor}"></a>' in where.read_text(encoding="utf-8")


def test_both_diagrams_draw_every_state():
    """None is left without a way in."""
    for state in State:
        assert f"run_{state} [label" in spec_pages.dot()
        assert f"--> {state}" in spec_pages.run_mermaid()
    for state in CallState:
        assert f"--> {state}" in spec_pages.call_mermaid()


# --------------------------------------------------------------------------------------------
# Writing


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the specification to spoil."""
    for path in SPEC.rglob("*"):
        if path.suffix in (".md", ".yaml", ".json", ".dot"):
            target = tmp_path / "spec" / path.relative_to(SPEC)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    return tmp_path / "spec"


def test_writing_mends_what_was_spoilt_and_keeps_what_was_written_by_hand(copy):
    """Generated parts are made anew; an introduction stays; a schema that nothing stands for goes."""
    spec_pages.write(copy)  # the copy has no golden traces beside it
    assert spec_pages.differing(copy) == []
    page = copy / "limits.md"
    whole = page.read_text(encoding="utf-8")
    page.write_text(whole.replace("MUST", "MAY").replace("# Limits", "# My limits"), encoding="utf-8")
    (copy / "schemas" / "old.json").write_text("{}", encoding="utf-8")
    (copy / "schemas" / "trace.json").unlink()
    names = [path.name for path in spec_pages.differing(copy)]
    assert names == ["limits.md", "old.json", "trace.json"]
    spec_pages.write(copy)
    assert spec_pages.differing(copy) == []
    assert page.read_text(encoding="utf-8") == whole.replace("# Limits", "# My limits")


def test_the_command_checks_writes_and_explains_itself(copy, monkeypatch, capsys):
    """0: nothing differs; 1: something does; 2: it cannot be said."""
    monkeypatch.setattr(spec_pages, "spec_folder", lambda: copy)
    spec_pages.main(["--write"])
    capsys.readouterr()
    assert spec_pages.main(["--check"]) == 0
    (copy / "machine.dot").write_text("", encoding="utf-8")
    assert spec_pages.main(["--check"]) == 1
    assert "spec/machine.dot: differs from the code" in capsys.readouterr().out
    assert spec_pages.main(["--write"]) == 0
    (copy / "run.md").write_text("# Run\n", encoding="utf-8")
    assert spec_pages.main(["--check"]) == 2
    assert "spec/run.md lacks its introduction and the line" in capsys.readouterr().err
    (copy / "run.md").unlink()
    assert spec_pages.main(["--write"]) == 2
    assert spec_pages.main([]) == 2


def test_a_missing_marker_is_named(copy):
    """So that it can be put back."""
    page = copy / "claims.md"
    page.write_text(page.read_text(encoding="utf-8").replace("<!-- end of claims -->", ""), encoding="utf-8")
    with pytest.raises(PageError, match="<!-- end of claims -->"):
        spec_pages.write(copy)
    page.unlink()
    with pytest.raises(PageError, match=r"claims\.md is missing"):
        spec_pages.write(copy)


def test_a_rule_without_an_example_or_with_two_is_named():
    """And so is an example of what is no rule."""
    files = spec_pages.read_examples(SPEC)
    first = next(iter(RULES))
    with pytest.raises(PageError, match=f"{first} has none"):
        examples_by_rule([item for item in files if not any(first in s.rules for s in item.scenarios)])
    with pytest.raises(PageError, match="has scenarios/"):
        examples_by_rule([*files, Example("scenarios/again.yaml", files[0].scenarios)])
    (stray,) = scenarios.parse("{name: a, rules: [no.such], prompts: [{}]}")
    with pytest.raises(PageError, match=r"names no\.such, which is no rule"):
        examples_by_rule([*files, Example("scenarios/stray.yaml", (stray,))])


def test_golden_traces_are_linked_where_there_are_any():
    """By profile, in the order of the file's scenarios."""
    rule = next(iter(RULES.values()))
    (scenario,) = scenarios.parse("{name: a, prompts: [{}]}")
    example = Example("scenarios/a.yaml", (scenario,))
    assert "Golden" not in spec_pages.rule_block(rule, example, frozenset())
    block = spec_pages.rule_block(rule, example, frozenset({"rejecting/a.txt"}))
    assert "Golden traces: rejecting [1](../snapshots/rejecting/a.txt)." in block


# --------------------------------------------------------------------------------------------
# Schemas


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_schema_is_a_schema(name):
    """Of the dialect that it names."""
    jsonschema.Draft202012Validator.check_schema(SCHEMAS[name])


def test_every_example_is_valid_as_it_is_written():
    """Short forms too: an editor that knows the schema complains of nothing."""
    check = checks("scenario")
    for path in (SPEC / "scenarios").rglob("*.yaml"):
        text = path.read_text(encoding="utf-8")
        for document in re.split(r"^---$", text, flags=re.MULTILINE):
            data = scenarios.yaml.load(document, Loader=scenarios._Loader)
            check.validate(json.loads(json.dumps(data)))


@pytest.mark.parametrize(
    "text",
    [
        "{name: a}",
        "{name: a, prompt: []}",
        "{name: a, prompts: [{replies: [[txt: a]]}]}",
        "{name: a, prompts: [{replies: [[cancle]]}]}",
        "{name: a, prompts: [{tools: {c1: okay}}]}",
    ],
)
def test_what_is_no_scenario_is_not_valid(text):
    """The schema says no where reading says no."""
    with pytest.raises(scenarios.ScenarioError):
        scenarios.parse(text)
    assert not checks("scenario").is_valid(scenarios.yaml.safe_load(text))


@pytest.mark.parametrize("profile", PROFILES)
def test_every_line_of_a_recorded_trace_is_valid(profile):
    """Of every example, and of the walks through every row."""
    whole = SCHEMAS["trace"]
    kinds = {
        d["properties"]["kind"]["const"]: name
        for name, d in whole["$defs"].items()
        if "kind" in d["properties"]
    }
    one = {  # by kind, because trying all of them for each line would take long
        kind: jsonschema.Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": whole["$defs"]})
        for kind, name in kinds.items()
    }
    lines: set[str] = set()
    with Executor(ReferenceAdapter(PROFILES[profile])) as executor:
        for scenario in [*examples(), *(walk.scenario for walk in WALKS)]:
            lines |= set(dumps(executor.run(scenario)).splitlines())
    seen = {json.loads(line)["kind"] for line in lines}
    assert {"requested", "sent", "told", "settled", "history", "hung", "faulted"} <= seen
    for line in lines:
        entry = json.loads(line)
        one[entry["kind"]].validate(entry)


@pytest.mark.parametrize(
    "entry",
    [
        {"kind": "opend", "request": 1},
        {"kind": "opened"},
        {"kind": "opened", "request": 1, "more": 2},
        {"kind": "requested", "request": 1, "prompt": 1, "messages": []},
        {"kind": "sent", "request": 1, "piece": {"text": "a"}},
        {"kind": "history", "prompt": 1, "messages": [{"role": "nobody", "text": "a"}]},
    ],
    ids=str,
)
def test_what_is_no_entry_is_not_valid(entry):
    """A kind that is none, a member too few or too many, a piece or message without its tag."""
    assert not checks("trace").is_valid(entry)


def test_every_manifest_of_the_catalogue_is_valid():
    """As it lies there."""
    found = list((Path(loopspec.__file__).parent / "adapters" / "catalogue").rglob("*.toml"))
    assert found
    for path in found:
        checks("manifest").validate(tomllib.loads(path.read_text(encoding="utf-8")))
