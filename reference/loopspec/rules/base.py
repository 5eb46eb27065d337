"""What a rule is: a sentence, its place in the standard, and one pure function.

A *trace rule* looks at the index of one trace and yields what it found. A *relation rule* looks at
the indices of all members of a scenario family. Both yield the same three things:

``Held(at...)``
    the rule's condition occurred here and what it asks for held;
``Broke("in words", at...)``
    it occurred and what it asks for did not hold; the words say what was expected and what came;
``Hidden("why")``
    it occurred, but this target's variant does not show what the rule would have to see.

A trace in which the condition did not occur yields nothing, and that is never a pass. ``at`` are
positions in the trace: the evidence. A rule never asks who the target is.

Rules import the vocabulary, the trace and its index, and nothing else of the project.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from loopspec.trace_index import TraceIndex
from loopspec.vocabulary import Level


@dataclass(frozen=True, slots=True)
class Held:
    """The rule was exercised and held; ``at`` is where."""

    at: tuple[int, ...]

    def __init__(self, *at: int) -> None:
        object.__setattr__(self, "at", at)


@dataclass(frozen=True, slots=True)
class Broke:
    """The rule was broken: ``words`` for a person, ``at`` the entries that show it.

    For a relation rule ``at`` are positions in the trace of ``member``.
    """

    words: str
    at: tuple[int, ...]
    member: str | None

    def __init__(self, words: str, *at: int, member: str | None = None) -> None:
        object.__setattr__(self, "words", words)
        object.__setattr__(self, "at", at)
        object.__setattr__(self, "member", member)


@dataclass(frozen=True, slots=True)
class Hidden:
    """The rule's condition occurred but its outcome cannot be seen here; ``why`` in words."""

    why: str


Finding = Held | Broke | Hidden


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of the standard.

    ``id`` is ``chapter.name`` and never changes its meaning. ``sentence`` has a MUST or SHOULD.
    ``reason`` says why. ``source``: A and B are the two source documents, D was decided here,
    other codes are public reports. ``claim``: the claim it belongs to, optionally with the values
    for which it holds. ``relation``: it judges a family of scenarios.
    """

    id: str
    level: Level
    sentence: str
    reason: str
    source: str
    check: Callable[[Any], Iterator[Finding]]
    claim: str | None = None
    values: tuple[str, ...] = ()
    also_needs: tuple[str, ...] = ()
    relation: bool = False

    @property
    def chapter(self) -> str:
        """The chapter of the standard that it stands in."""
        return self.id.partition(".")[0]

    def applies(self, claims: dict[str, str]) -> bool:
        """Whether a target with these claims is judged by the rule."""
        if self.claim is None:
            return True
        value = claims.get(self.claim)
        if value is None or (self.values and value not in self.values):
            return False
        return all(name in claims for name in self.also_needs)


RULES: dict[str, Rule] = {}
"""All rules by id, in the order of the chapters."""

TraceCheck = Callable[[TraceIndex], Iterator[Finding]]
FamilyCheck = Callable[[Sequence[TraceIndex]], Iterator[Finding]]


def rule(
    id: str,
    sentence: str,
    *,
    source: str,
    level: Level = Level.CORE,
    claim: str | None = None,
    values: Iterable[str] = (),
    also_needs: Iterable[str] = (),
    relation: bool = False,
) -> Callable[[Any], Any]:
    """Register the decorated function as the check of a rule; its docstring is the reason.

    A claim given makes the level ``claim``. Raises ``ValueError`` on an id used twice, a missing
    docstring, or a sentence without MUST or SHOULD (``observed`` rules say neither).
    """

    def register(check: Any) -> Any:
        actual = Level.CLAIM if claim is not None else level
        words = " ".join(sentence.split())
        if id in RULES:
            raise ValueError(f"rule {id} is registered twice")
        if not check.__doc__:
            raise ValueError(f"rule {id}: the check's docstring is the rule's reason; write one")
        if actual != Level.OBSERVED and "MUST" not in words and "SHOULD" not in words:
            raise ValueError(f"rule {id}: the sentence says neither MUST nor SHOULD")
        RULES[id] = Rule(
            id=id, level=actual, sentence=words, reason=" ".join(check.__doc__.split()),
            source=source, check=check, claim=claim, values=tuple(values),
            also_needs=tuple(also_needs), relation=relation,
        )  # fmt: skip
        return check

    return register
