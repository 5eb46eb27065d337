"""How much of the machine a target was led through, counted from its recorded traces.

Three things are counted: rows of the table, pairs of consecutive rows of one run, and await points
at which a cancellation came, with an environment that heeded it and with a deaf one. The whole is
what a loop with the target's claims can go through (:mod:`loopspec.explore.reach`); the part is
what its traces went through (:mod:`loopspec.explore.walk`). Who drew a scenario, and what for, is
never asked.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import pairwise
from typing import TypedDict

from loopspec.explore.reach import Pair, reachable
from loopspec.explore.walk import Point, Walked, walk
from loopspec.machine import Choices, RowId
from loopspec.trace import Trace


class Count(TypedDict):
    """Of ``all``, how many were exercised, and which were not."""

    exercised: int
    all: int
    missing: list[str]


def row_words(row: RowId) -> str:
    """A row for people: ``streaming + cancel [prefix kept]``."""
    state, kind, guard = row
    return f"{state} + {kind} [{guard}]"


def pair_words(pair: Pair) -> str:
    """Two rows in a row."""
    return " -> ".join(map(row_words, pair))


def pairs_of(walked: Walked) -> set[Pair]:
    """The pairs of consecutive rows in what one trace went through."""
    return {pair for path in walked.paths for pair in pairwise(path)}


class Coverage:
    """Counts; feed it traces.

    Parameters
    ----------
    claims: the target's claims, which say what the whole is.
    """

    def __init__(self, claims: Mapping[str, str]) -> None:
        self.whole = reachable(Choices.of(claims))
        self.rows: set[RowId] = set()
        self.pairs: set[Pair] = set()
        self.points: set[Point] = set()

    def add(self, trace: Trace) -> None:
        """Count what this trace went through."""
        walked = walk(trace)
        for path in walked.paths:
            self.rows.update(path)
        self.pairs |= pairs_of(walked)
        self.points |= walked.points

    def report(self) -> dict[str, Count]:
        """``transitions``, ``pairs`` and ``await_points``: exercised, all, and the missing ones."""
        rows, pairs, points = self.whole.rows, self.whole.pairs, self.whole.points
        return {
            "transitions": _count(self.rows & rows, rows, [row_words(r) for r in rows - self.rows]),
            "pairs": _count(self.pairs & pairs, pairs, [pair_words(p) for p in pairs - self.pairs]),
            "await_points": _count(self.points & points, points, [str(p) for p in points - self.points]),
        }


def _count(part: Collection[object], whole: Collection[object], missing: list[str]) -> Count:
    return {"exercised": len(part), "all": len(whole), "missing": sorted(missing)}
