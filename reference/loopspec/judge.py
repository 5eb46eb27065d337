"""The judge: traces in, one verdict a rule out.

A rule's findings from many traces become one verdict. One break is a fail. Otherwise one place
where it held is a pass. A rule whose condition occurred, but whose outcome the variant does not
show, is *not observable*; one whose condition never occurred is *not exercised*; one whose claim
the target does not make is *not claimed*. None of these three is a pass. A rule that differs
between repeats of the same scenario *varies*.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from loopspec.rules import RULES, Broke, Finding, Held, Hidden, Rule
from loopspec.trace import Trace
from loopspec.trace_index import TraceIndex
from loopspec.vocabulary import Level, Verdict


@dataclass(frozen=True, slots=True)
class Break:
    """One place where a rule was broken: in which scenario, in words, and which entries show it."""

    scenario: str
    words: str
    at: tuple[int, ...]
    member: str | None = None


@dataclass(slots=True)
class RuleResult:
    """What was found of one rule over all traces."""

    rule: Rule
    claimed: bool
    held: int = 0
    held_in: list[str] = field(default_factory=list)
    breaks: list[Break] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)
    varies: bool = False

    @property
    def verdict(self) -> Verdict:
        """The verdict; see the module's text."""
        if not self.claimed:
            return Verdict.NOT_CLAIMED
        if self.rule.level is Level.OBSERVED:
            seen = self.held or self.breaks
            return Verdict.OBSERVED if seen else Verdict.NOT_EXERCISED
        if self.varies:
            return Verdict.VARIES
        if self.breaks:
            return Verdict.FAIL
        if self.held:
            return Verdict.PASS
        return Verdict.NOT_OBSERVABLE if self.hidden else Verdict.NOT_EXERCISED

    @property
    def scenarios(self) -> int:
        """How many scenarios exercised the rule."""
        return self.held + len({item.scenario for item in self.breaks})


class Judge:
    """Collects findings, trace by trace.

    Parameters
    ----------
    claims: the target's claims.
    rules: the ids to judge by; ``None``: all.
    """

    def __init__(self, claims: Mapping[str, str], rules: Iterable[str] | None = None) -> None:
        wanted = set(RULES) if rules is None else set(rules)
        self.results = {
            name: RuleResult(rule, rule.applies(dict(claims)))
            for name, rule in RULES.items()
            if name in wanted
        }
        self._trace_rules = [
            (name, result.rule)
            for name, result in self.results.items()
            if result.claimed and not result.rule.relation
        ]
        self._families: dict[str, dict[str, TraceIndex]] = {}

    def add(self, trace: Trace) -> dict[str, list[Finding]]:
        """Judge one trace by all trace rules; returns what each found in it."""
        return self.add_index(TraceIndex(trace))

    def add_index(self, index: TraceIndex) -> dict[str, list[Finding]]:
        """As :meth:`add`, for a trace that is indexed already."""
        header = index.header
        if header.family is not None and header.member is not None:
            self._families.setdefault(header.family, {})[header.member] = index
        out: dict[str, list[Finding]] = {}
        for name, rule in self._trace_rules:
            found = list(rule.check(index))
            if found:
                out[name] = found
                self._note(self.results[name], header.scenario, found)
        return out

    def finish(self) -> dict[str, RuleResult]:
        """Judge the relation rules over the families seen, and return all results."""
        for name in self.results:
            self.finish_families(name)
        return self.results

    def finish_families(self, name: str) -> None:
        """Judge one relation rule over the families seen so far (nothing for a trace rule)."""
        result = self.results[name]
        if not result.claimed or not result.rule.relation:
            return
        result.held, result.held_in, result.breaks, result.hidden = 0, [], [], []
        for family, members in sorted(self._families.items()):
            if family == name or family.startswith(name + "/"):
                self._note(result, family, list(result.rule.check(list(members.values()))))

    @staticmethod
    def _note(result: RuleResult, scenario: str, found: Sequence[Finding]) -> None:
        if all(isinstance(item, Held) for item in found):
            if found:
                result.held += 1
                if len(result.held_in) < 5:
                    result.held_in.append(scenario)
            return
        broken = [item for item in found if isinstance(item, Broke)]
        result.breaks += [Break(scenario, item.words, item.at, item.member) for item in broken]
        if not broken and any(isinstance(item, Held) for item in found):
            result.held += 1
            if len(result.held_in) < 5:
                result.held_in.append(scenario)
        for item in found:
            if isinstance(item, Hidden) and item.why not in result.hidden:
                result.hidden.append(item.why)
