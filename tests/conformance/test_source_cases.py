"""The sources' own cases: what their loops were seen to do, and what the reference loop does.

Each case is a row of what is known of the loops behind the two source texts. The expectation in
``snapshots/sources/`` was written from that row alone, so it is an oracle of its own, beside the
rules and the machine. Where the specification asks for something else than the source's loop does,
the file says so in a ``source says`` line and names the entry of ``spec/decisions.md``; its sections
then state what the specification asks for.

Both sides are projected to what the source speaks of. A section that is left out is one on which
the source is silent; an event with ``?`` before it may be there or not. ``next`` is the prompt that
follows every case, and shows what was left behind. Ids that no provider sent are ``new-1``,
``new-2``, in the order in which they turn up. A tool that was entered with other arguments than a
call was sent with is shown with them.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from loopspec import library
from loopspec import trace as t
from loopspec.adapters.reference import ReferenceAdapter
from loopspec.bench.executor import Executor
from loopspec.rules import RULES
from loopspec.scenario import Scenario
from loopspec.vocabulary import (
    PROFILES,
    AssistantMessage,
    Call,
    CallStart,
    Event,
    Message,
    Reasoning,
    ToolResult,
)

ROOT = Path(__file__).parents[2]
EXPECTED = ROOT / "snapshots" / "sources"
FIRST_LINE = "loopspec source case, format 1"

DELTAS = ("text_delta", "reasoning_delta")
SPEAKS = {
    "rejecting": {"message_start", "message_end", "tool_start", "tool_end", *DELTAS},
    "durable-prefix": {
        "run_start", "run_end", "turn_start", "turn_end", "message_end", "tool_start", "stream_end",
        "attempt", *DELTAS,
    },
}  # fmt: skip
"""The events that each source has a word for."""


# --------------------------------------------------------------------------------------------
# The projector: a trace in the words of an expectation


@dataclass(frozen=True)
class Projector:
    """A trace, cut at the recovery prompt, in the words of an expectation."""

    trace: t.Trace
    speaks: set[str]

    @property
    def case(self) -> Sequence[t.Entry]:
        """What belongs to the case itself."""
        return self.trace.entries[: self._cut]

    @property
    def after(self) -> Sequence[t.Entry]:
        """What belongs to the prompt that follows."""
        return self.trace.entries[self._cut :]

    @property
    def _cut(self) -> int:
        for at, entry in enumerate(self.trace):
            if isinstance(entry, t.Prompted) and entry.recovery:
                return at
        return len(self.trace)

    def sections(self) -> dict[str, list[str]]:
        """Every section, each a list of lines."""
        made = {
            "events": self._events,
            "requests": self._requests,
            "streams closed by the loop": self._closed,
            "tools run": self._tools,
            "outcome": self._outcomes,
            "history": self._history,
        }
        return {name: list(lines()) or ["none"] for name, lines in made.items()}

    def _events(self) -> Iterator[str]:
        for entry in self.case:
            if isinstance(entry, t.Told) and entry.event.type in self.speaks:
                yield event_words(entry.event)

    def _requests(self) -> Iterator[str]:
        ids = self._ids()
        for part, alias in ((self.case, None), (self.after, "next")):
            for entry in part:
                if isinstance(entry, t.Requested):
                    carried = "; ".join(message_words(message, ids) for message in entry.messages)
                    yield f"{alias or entry.request}: {carried}"

    def _closed(self) -> Iterator[str]:
        for entry in self.case:
            if isinstance(entry, t.Closed) and entry.by == "target":
                yield str(entry.request)

    def _tools(self) -> Iterator[str]:
        starts = [entry for entry in self.trace if isinstance(entry, t.ToolStarted)]
        # Where the text was empty, it is the arguments that say how it was read.
        plain = [entry.call_id if entry.arguments != "{}" else None for entry in starts]
        shown = [f"{entry.tool}({entry.arguments})" for entry in starts]
        started = [call or words for call, words in zip(plain, shown, strict=True)]
        if started:
            yield ", ".join(started)

    def _outcomes(self) -> Iterator[str]:
        said = {}
        for entry in self.case:
            if isinstance(entry, t.Settled):
                said[entry.prompt] = f"{entry.prompt}: {settled_words(entry)}"
            elif isinstance(entry, t.Hung):
                said[entry.prompt] = f"{entry.prompt}: hangs"
        yield from (said[prompt] for prompt in sorted(said))
        for entry in self.after:
            if isinstance(entry, t.Settled):
                yield f"next: {settled_words(entry)}"

    def _history(self) -> Iterator[str]:
        read = [entry for entry in self.case if isinstance(entry, t.HistoryRead)]
        if read:
            ids = self._ids()
            yield from (message_words(message, ids, at_rest=True) for message in read[-1].messages)

    def _ids(self) -> Callable[[str], str]:
        sent = {e.piece.id for e in self.trace if isinstance(e, t.Sent) and isinstance(e.piece, CallStart)}
        new: dict[str, str] = {}
        return lambda given: given if given in sent else new.setdefault(given, f"new-{len(new) + 1}")


def marked(words: str, *marks: str | None) -> str:
    there = [mark for mark in marks if mark]
    return f"{words} [{', '.join(there)}]" if there else words


def event_words(event: Event) -> str:
    if event.type in DELTAS:
        return f"{event.type} {json.dumps(event.text)}"
    words = " ".join(part for part in (event.type, event.role, event.call_id) if part)
    if event.interrupted:
        return marked(words, "interrupted")
    told = event.reason if event.type in ("message_end", "run_end") else None
    error = event.is_error and event.type in ("message_end", "tool_end")
    return marked(words, told, "error" if error else None)


def message_words(message: Message, ids: Callable[[str], str], *, at_rest: bool = False) -> str:
    if isinstance(message, AssistantMessage):
        parts = []
        for block in message.blocks:
            if isinstance(block, Call):
                parts.append(f"call {ids(block.id)}")
            else:
                kind = "reasoning " if isinstance(block, Reasoning) else ""
                parts.append(kind + json.dumps(block.text))
        end = "interrupted" if message.interrupted else message.stop_reason
        return marked(f"assistant {' '.join(parts) or '(empty)'}", end if at_rest else None)
    if isinstance(message, ToolResult):
        return marked(f"result {ids(message.call_id)}", "error" if message.is_error else None, message.code)
    token = re.match(r"\[prompt (\d+)\]", message.text)
    return f"{message.role} {token[1] if token else json.dumps(message.text)}"


def settled_words(entry: t.Settled) -> str:
    answer = "" if entry.outcome != "completed" else f" {json.dumps(entry.answer)}"
    reason = f": {entry.reason}" if entry.reason else ""
    return f"{entry.outcome}{reason}, {entry.form}{answer}"


# --------------------------------------------------------------------------------------------
# Expectations


@dataclass(frozen=True)
class Expectation:
    """An expectation file: what stands at its head, and its sections."""

    head: dict[str, str]
    sections: dict[str, list[str]]


def read(text: str) -> Expectation:
    first, *lines = text.splitlines()
    assert first == FIRST_LINE, f"the first line is {first!r}"
    head: dict[str, str] = {}
    sections: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in lines:
        if not line:
            continue
        if line.startswith("  "):
            assert current is not None, f"a line before the first section: {line!r}"
            current.append(line[2:])
        elif line.endswith(":"):
            current = sections.setdefault(line[:-1], [])
        else:
            key, _, value = line.partition(": ")
            assert current is None, f"not a section's line, and not at the head: {line!r}"
            head[key] = value
    return Expectation(head, sections)


def settled_options(wanted: Sequence[str], done: Sequence[str]) -> list[str]:
    """The wanted lines, without those that may be missing and are."""
    out: list[str] = []
    for line in wanted:
        plain = line.removeprefix("? ")
        at = len(out)
        if plain == line or (at < len(done) and done[at] == plain):
            out.append(plain)
    return out


def differences(expected: Expectation, done: dict[str, list[str]]) -> str:
    """Where the trace differs from the expectation, section by section; empty: nowhere."""
    out: list[str] = []
    for name, wanted in expected.sections.items():
        assert name in done, f"no such section: {name!r}; sections are {', '.join(done)}"
        lines = settled_options(wanted, done[name])
        if lines != done[name]:
            diff = difflib.unified_diff(lines, done[name], "expected", "done", n=99, lineterm="")
            out += [f"{name}:", *("  " + line for line in list(diff)[3:])]
    return "\n".join(out)


# --------------------------------------------------------------------------------------------
# The cases


def cases() -> list[tuple[str, Scenario]]:
    found = []
    for scenario in library.examples():
        if scenario.name.startswith("sources."):
            found.append((scenario.name.split(".")[1], scenario))
    return found


def expectation_of(profile: str, scenario: Scenario) -> Expectation:
    name = scenario.name.removeprefix(f"sources.{profile}.")
    return read((EXPECTED / profile / f"{name}.txt").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def run_on_reference() -> Iterator[Callable[[str, Scenario], t.Trace]]:
    executors = {profile: Executor(ReferenceAdapter(claims)) for profile, claims in PROFILES.items()}
    for executor in executors.values():
        executor.__enter__()
    yield lambda profile, scenario: executors[profile].run(scenario)
    for executor in executors.values():
        executor.__exit__(None, None, None)


@pytest.mark.parametrize(("profile", "scenario"), cases(), ids=[s.name for _, s in cases()])
def test_the_reference_does_what_the_source_says(profile, scenario, run_on_reference):
    """The reference loop does in each case what its row says, or what a decision says instead."""
    done = Projector(run_on_reference(profile, scenario), SPEAKS[profile]).sections()
    expected = expectation_of(profile, scenario)
    wrong = differences(expected, done)
    assert not wrong, f"{scenario.name} ({expected.head['row']})\n{wrong}"


def test_every_case_has_its_expectation_and_the_other_way_round():
    """Scenarios and expectation files come in pairs."""
    named = {
        f"{profile}/{scenario.name.removeprefix(f'sources.{profile}.')}" for profile, scenario in cases()
    }
    written = {str(path.relative_to(EXPECTED).with_suffix("")) for path in EXPECTED.glob("*/*.txt")}
    assert named == written


def test_a_departure_from_a_source_names_its_decision():
    """Who departs from what a source says names an entry of the decisions, and only who does."""
    text = (ROOT / "spec" / "decisions.md").read_text(encoding="utf-8")
    decided = set(re.findall(r"^## (\d+)\. ", text, re.MULTILINE))
    for profile, scenario in cases():
        head = expectation_of(profile, scenario).head
        assert set(head) <= {"row", "source says", "decision"}, scenario.name
        assert head.get("decision", next(iter(decided))) in decided, scenario.name
        assert "source says" not in head or "decision" in head, scenario.name


def test_the_table_of_sources_names_rules_and_cases_that_exist():
    """``spec/sources.md`` names rules by ids that exist, and every case."""
    text = (ROOT / "spec" / "sources.md").read_text(encoding="utf-8")
    chapters = "|".join({rule.split(".")[0] for rule in RULES})
    rules = set(re.findall(rf"`((?:{chapters})\.[a-z-]+)`", text))
    assert rules <= set(RULES), sorted(rules - set(RULES))
    for profile, scenario in cases():
        name = scenario.name.removeprefix(f"sources.{profile}.")
        assert re.search(rf"`{re.escape(name)}`", text), f"{scenario.name} is in no table of sources.md"


@pytest.mark.parametrize(
    ("wanted", "done", "found"),
    [
        (["a", "b"], ["a", "b"], False),
        (["a", "? b", "c"], ["a", "c"], False),
        (["a", "? b", "c"], ["a", "b", "c"], False),
        (["a", "b"], ["b", "a"], True),
        (["a"], ["a", "b"], True),
        (["a", "b"], ["a"], True),
        (["none"], ["a"], True),
    ],
)
def test_a_difference_is_found(wanted, done, found):
    """An event too many, too few or out of order is a difference; one that may be missing is none."""
    assert bool(differences(Expectation({}, {"events": wanted}), {"events": done})) is found
