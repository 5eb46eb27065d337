"""The set cover: few scenarios that go through everything that the enumeration goes through.

A target out of process costs some 25 ms a scenario, so not everything can be run on it. What is
run is chosen once, on the reference loop, and committed as ``spec/cover.yaml``. Goals are

* every pair of consecutive rows that is reachable under a profile's claims (and so every row), and
  every further pair that is reachable a single claim away from one;
* every await point with a cancellation, heeding and deaf, also one claim away where that matters;
* every rule three times, in different scenarios (each value of a claim for itself).

The choice is greedy: the candidate with the most open goals is next, the earlier one of equals.
Nothing is random, so writing the file again gives the same bytes.

    python -m loopspec.explore.cover            what is covered, and what cannot be, with the reason
    python -m loopspec.explore.cover --write    choose again and write the file
"""

from __future__ import annotations

import argparse
import heapq
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

from loopspec import scenario as scenarios
from loopspec.adapters.reference import ReferenceAdapter
from loopspec.bench.executor import Executor
from loopspec.explore import enumerate as enumeration
from loopspec.explore import reach
from loopspec.explore.alphabet import NARROW, Draft
from loopspec.explore.coverage import pair_words, pairs_of
from loopspec.explore.reach import Pair, reachable
from loopspec.explore.walk import walk
from loopspec.judge import Judge
from loopspec.library import spec_folder
from loopspec.machine import Choices
from loopspec.rules import RULES, Broke, Held
from loopspec.scenario import Scenario
from loopspec.trace import Trace
from loopspec.vocabulary import CLAIMS, PROFILES

AT_MOST = 500
"""More scenarios than this are no quick budget."""

TIMES = 3
"""In how many scenarios each rule is exercised, where there are so many."""

_SEEN_ENOUGH = 40
"""So many candidates of a rule are enough to choose from; the rest is not judged by it."""

_NO_NEWS = 1500
"""After so many candidates without anything new a step away from a profile is left."""

_MOVES_POINTS = ("tools", "cancelled_tool", "cancelled_prefix", "listener_failure")
"""The claims that change what goes on at an await point."""

Goal = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Variant:
    """A set of claims that the reference runs with: a profile, or one claim away from it."""

    name: str
    claims: Mapping[str, str]
    claim: str | None = None
    """The claim that differs from the profile's."""


def variants() -> list[Variant]:
    """The profiles, then every single-claim step away from each that makes the loop another."""
    found = [Variant(name, claims) for name, claims in PROFILES.items()]
    for name, claims in PROFILES.items():
        for claim, values in CLAIMS.items():
            for value in values:
                changed = {**claims, claim: value}
                if Choices.of(changed) != Choices.of(claims):
                    found.append(Variant(f"{name}, {claim}={value}", changed, claim))
    return found


# --------------------------------------------------------------------------------------------
# Candidates

_MATTERS: dict[str, tuple[str, ...]] = {
    "length": ("length",),
    "deferred": ("deferred", "pending"),
    "empty_stop": ("nothing.", "blank.", "reasoning.stop", "reasoning.tooluse", "usage."),
    "tools": ("call-call", "unknown-tool-call", "call-unknown", "interleaved"),
    "cancelled_tool": ("c1-cancel", "c2-cancel", "-on-tool", "-on-result", "slow"),
    "late_result": ("cancel-deaf", "cancel-ok", "c1-cancel", "slow"),
    "cancelled_prefix": ("cancel",),
    "failed_attempt": ("error", "fault", "no-reason", "cancel"),
    "unknown_tool": ("unknown-tool",),
    "invalid_arguments": ("wrong-type", "cut", "unfinished"),
    "tool_exception": ("raises",),
    "concurrent_prompt": ("prompt",),
    "listener_failure": ("raise",),
    "brackets": ("-on-turn", "-on-run"),
    "fork": ("fork",),
    "max_turns": ("limit",),
}  # fmt: skip
"""Of which candidates a claim can change anything: by words in their names."""


def candidates(variant: Variant) -> Iterator[Draft]:
    """What is tried under a variant.

    For a profile everything, in the enumeration's order. For a step away from it only what the step
    can matter to, and a few plain scenarios, all kinds mixed.
    """
    words = _MATTERS.get(variant.claim or "", ())
    chosen = []
    for draft in enumeration.drafts(NARROW):
        if draft.family is not None or any(variant.claims.get(k) != v for k, v in draft.claims.items()):
            continue
        plain = draft.name.count(".") == 1 and "-" not in draft.name.partition(".")[2]
        if variant.claim is None or plain or any(word in draft.name for word in words):
            chosen.append(draft)
    if variant.claim is not None:
        chosen.sort(key=lambda draft: zlib.crc32(draft.name.encode()))
    yield from chosen


# --------------------------------------------------------------------------------------------
# Goals


class Look:
    """Which goals a trace reaches, under one variant."""

    def __init__(self, variant: Variant) -> None:
        self.variant = variant
        self._rules: Counter[str] = Counter()
        self._judge = Judge(variant.claims)
        self._of_claim = {name: rule.claim for name, rule in RULES.items()}
        self._where = variant.name if variant.claim is None else ""
        own = variant.claim is None or variant.claim in _MOVES_POINTS
        self._points = variant.name if own else ""

    def at(self, trace: Trace) -> frozenset[Goal]:
        """The goals that this trace reaches."""
        walked = walk(trace)
        goals: set[Goal] = {("pair", self._where, pair_words(pair)) for pair in pairs_of(walked)}
        goals |= {("point", self._points, str(point)) for point in walked.points}
        for name, found in self._judge.add(trace).items():
            if any(isinstance(item, Held | Broke) for item in found):
                goals.add(self._rule(name))
                self._rules[name] += 1
                if self._rules[name] == _SEEN_ENOUGH:
                    kept = [rule for rule in RULES if self._rules[rule] < _SEEN_ENOUGH]
                    self._judge = Judge(self.variant.claims, kept)
        return frozenset(goals)

    def _rule(self, name: str) -> Goal:
        claim = self._of_claim[name]
        return ("rule", name, self.variant.claims.get(claim, "") if claim else "")


Reached = list[tuple[int, str, frozenset[Goal]]]
"""Candidates by their place and name, and the goals that each reaches."""


class _Needs:
    """What is still looked for under a variant; a profile is looked through to the end."""

    def __init__(self, variant: Variant) -> None:
        self._profile = variant.claim is None
        profiles = [reachable(Choices.of(claims)).pairs for claims in PROFILES.values()]
        novel = reachable(Choices.of(variant.claims)).pairs - frozenset().union(*profiles)
        self._open: Counter[Goal] = Counter({("pair", "", pair_words(pair)): 1 for pair in novel})
        own = reachable(Choices.of(variant.claims)).points if variant.claim in _MOVES_POINTS else ()
        self._open.update({("point", variant.name, str(point)): 1 for point in own})
        for rule in RULES.values():
            if rule.claim == variant.claim and rule.applies(dict(variant.claims)) and not rule.relation:
                value = variant.claims.get(rule.claim or "", "")
                self._open["rule", rule.id, value] = 2 * TIMES
        self._idle = 0

    def met(self, goals: frozenset[Goal]) -> bool:
        """Note what a candidate reached; whether enough is known."""
        news = [goal for goal in goals if self._open[goal] > 0]
        for goal in news:
            self._open[goal] -= 1
        self._idle = 0 if news else self._idle + 1
        done = not any(count > 0 for count in self._open.values())
        return not self._profile and (done or self._idle > _NO_NEWS)


def explore(variant: Variant) -> Reached:
    """Run the candidates of a variant, as long as they bring what is looked for."""
    look, needs = Look(variant), _Needs(variant)
    places = {draft.name: place for place, draft in enumerate(enumeration.drafts(NARROW))}
    reached: Reached = []
    with Executor(ReferenceAdapter(variant.claims)) as executor:
        for draft in candidates(variant):
            goals = look.at(executor.run(draft.scenario()))
            reached.append((places[draft.name], draft.name, goals))
            if needs.met(goals):
                break
    return reached


def wanted(found: Iterable[Reached]) -> dict[Goal, int]:
    """Every goal and how often it is wanted: what a profile reached already, a step need not."""
    reached: Counter[Goal] = Counter()
    for variant in found:
        for _, _, goals in variant:
            reached.update(goals)
    by_profile = {goal[2] for goal in reached if goal[0] == "pair" and goal[1]}
    return {
        goal: min(times, TIMES) if goal[0] == "rule" else 1
        for goal, times in reached.items()
        if goal[0] == "rule" or goal[1] or goal[2] not in by_profile
    }


def choose(found: list[Reached]) -> list[str]:
    """The names of a greedy cover, in the enumeration's order."""
    open_goals = wanted(found)
    goals_of: dict[int, set[Goal]] = {}
    names: dict[int, str] = {}
    for variant in found:
        for place, name, goals in variant:
            names[place] = name
            goals_of.setdefault(place, set()).update(goals & open_goals.keys())
    queue = [(-len(goals), place) for place, goals in goals_of.items() if goals]
    heapq.heapify(queue)
    chosen: list[int] = []
    while queue:
        _, place = heapq.heappop(queue)
        gain = sum(open_goals[goal] > 0 for goal in goals_of[place])
        if not gain:
            continue
        if queue and (-gain, place) > queue[0]:
            heapq.heappush(queue, (-gain, place))
            continue
        chosen.append(place)
        for goal in goals_of[place]:
            open_goals[goal] -= 1
    return [names[place] for place in sorted(chosen)]


# --------------------------------------------------------------------------------------------
# What cannot be covered


@dataclass(slots=True)
class Uncovered:
    """Pairs that fit by their states and are in no cover, by the reason why."""

    by_reason: dict[str, list[str]] = field(default_factory=dict)

    def add(self, why: str, pair: Pair) -> None:
        """Note a pair."""
        self.by_reason.setdefault(why, []).append(pair_words(pair))


NOT_SAID = "no scenario says it: an idle session is cancelled at most once before a prompt"


def unreachable() -> Uncovered:
    """Every pair that fits by its states but cannot occur, and why."""
    by_loop: set[Pair] = set()
    by_machine: set[Pair] = set()
    for variant in variants():
        choices = Choices.of(variant.claims)
        by_loop |= reachable(choices).pairs
        by_machine |= reach.search(choices, 2, shell=False)
    out = Uncovered()
    for pair in reach.fitting_pairs():
        if pair not in by_loop:
            out.add(reach.why_unreachable(pair, frozenset(by_machine)), pair)
        elif pair[0] == pair[1] and pair[0][0] == "idle":
            out.add(NOT_SAID, pair)
    return out


# --------------------------------------------------------------------------------------------
# The file


def generate(tell: Callable[[str], None] = lambda _: None) -> str:
    """The text of ``spec/cover.yaml``, chosen anew."""
    found: list[Reached] = []
    todo = variants()
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        for variant, reached in zip(todo, pool.map(explore, todo), strict=True):
            tell(f"{variant.name}: {len(reached)} scenarios")
            found.append(reached)
    chosen = set(choose(found))
    picked = [draft for draft in enumeration.drafts(NARROW) if draft.name in chosen]
    return dumps([draft.scenario() for draft in picked])


def dumps(picked: list[Scenario]) -> str:
    """The scenarios as the file has them: one a document, under a word on where they come from."""
    head = (
        "# The set cover: what every target is led through in the quick budget. Written by\n"
        "# python -m loopspec.explore.cover --write, which also says what is covered; do not edit.\n"
    )
    return head + "---\n".join(scenarios.dumps(item) for item in picked)


def covered(picked: Iterable[Scenario], variant: Variant) -> tuple[set[Pair], set[str]]:
    """The pairs and the await points that these scenarios go through under a variant."""
    pairs: set[Pair] = set()
    points: set[str] = set()
    with Executor(ReferenceAdapter(variant.claims)) as executor:
        for item in picked:
            if any(variant.claims.get(name) != value for name, value in item.claims.items()):
                continue
            walked = walk(executor.run(item))
            pairs |= pairs_of(walked)
            points |= {str(point) for point in walked.points}
    return pairs, points


def _tell_coverage(path: Path) -> None:
    picked = scenarios.load(path)
    print(f"{path.name}: {len(picked)} scenarios")  # noqa: T201 - a command
    for variant in variants()[: len(PROFILES)]:
        whole = reachable(Choices.of(variant.claims))
        pairs, points = covered(picked, variant)
        print(  # noqa: T201
            f"{variant.name}: {len(pairs & whole.pairs)} of {len(whole.pairs)} pairs, "
            f"{len(points)} of {len(whole.points)} await points"
        )
    for why, left in sorted(unreachable().by_reason.items()):
        print(f"\n{len(left)} pairs: {why}")  # noqa: T201
        for words in left:
            print(f"    {words}")  # noqa: T201


def main(arguments: list[str] | None = None) -> None:
    """The command; see the module's text."""
    parser = argparse.ArgumentParser(prog="python -m loopspec.explore.cover", description=__doc__)
    parser.add_argument("--write", action="store_true", help="choose again and write the file")
    given = parser.parse_args(arguments)
    path = spec_folder() / "cover.yaml"
    if given.write:
        path.write_text(generate(print), encoding="utf-8")
    _tell_coverage(path)


if __name__ == "__main__":
    main()
