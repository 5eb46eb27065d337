"""The table is the loop's control flow, not a log of it: without a row the loop stops there.

The walks in ``rows.py`` take every row of the run's table and every legal move of the call's. For
each row the table without it is given to the reference loop, the walk is run again, and the loop
must raise :class:`IllegalInput` at that very place: out of the settlement, or out of the call that
gave the input (a cancel, a prompt).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from loopspec.adapters.reference import ReferenceAdapter
from loopspec.bench.executor import Executor
from loopspec.loop import ReferenceLoop
from loopspec.machine import CALL_TABLE, TABLE, Choices, IllegalInput, Machine, row_ids
from loopspec.trace import Settled, Trace
from meta.rows import WALKS, Walk

ROWS = row_ids()
MOVES = [move for move, after in CALL_TABLE.items() if after is not None]
ILLEGAL = f"{IllegalInput.__module__}.{IllegalInput.__qualname__}"


class Spied(ReferenceLoop):
    """The reference loop; notes what its callers get to see of illegal inputs."""

    seen: list[IllegalInput]

    def cancel(self) -> None:
        try:
            super().cancel()
        except IllegalInput as error:
            self.seen.append(error)
            raise


def run(
    walk: Walk, machine: Callable[[Choices, int | None], Machine]
) -> tuple[ReferenceAdapter, Trace | None]:
    """Run a walk; the trace is ``None`` if the illegal input came out of the bench's own call."""
    adapter = ReferenceAdapter(walk.claims, make=Spied, machine=machine)
    with Executor(adapter) as executor:
        try:
            return adapter, executor.run(walk.scenario)
        except IllegalInput:
            return adapter, None


@functools.cache
def walked() -> tuple[dict[Any, Walk], dict[Any, Walk]]:
    """For each row, and for each move of a call, the first walk that takes it."""
    rows: dict[Any, Walk] = {}
    moves: dict[Any, Walk] = {}
    for walk in WALKS:
        adapter, trace = run(walk, Machine)
        assert trace is not None
        for machine in adapter.sessions[0].loop.machines:
            for row in machine.path:
                rows.setdefault(row, walk)
            for move in machine.call_path:
                moves.setdefault(move, walk)
    return rows, moves


def stops(
    walk: Walk, table: Mapping[Any, Any] | None, call_table: Mapping[Any, Any] | None
) -> list[IllegalInput]:
    """Run a walk on mutilated tables; the illegal inputs, each of which came out somewhere."""
    raised: list[IllegalInput] = []

    class Mutilated(Machine):
        def __init__(self, choices: Choices | None = None, max_turns: int | None = None) -> None:
            super().__init__(choices, max_turns, table, call_table)

        def feed(self, given: Any) -> Any:
            try:
                return super().feed(given)
            except IllegalInput as error:
                raised.append(error)
                raise

    Spied.seen = []
    _, trace = run(walk, Mutilated)
    told = [str(error) for error in Spied.seen]
    for entry in trace or ():
        if isinstance(entry, Settled):
            told += [link["message"] for link in entry.raw.get("raised", ()) if link["type"] == ILLEGAL]
    assert raised, "the row is missing and the loop went on"
    assert trace is None or any(str(error) in told for error in raised), "nobody was told"
    return raised


def test_the_walks_take_every_row_of_the_runs_table():
    """A row that no scenario can take has no place in the table."""
    rows, _ = walked()
    assert sorted(set(ROWS) - set(rows)) == []


def test_the_walks_take_every_legal_move_of_the_calls_table():
    """So it is with the moves of a call."""
    _, moves = walked()
    assert sorted(set(MOVES) - set(moves)) == []


def test_every_walk_is_needed_or_shows_another_claim():
    """No two walks are the same scenario under the same claims."""
    assert len({str(walk) for walk in WALKS}) == len(WALKS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: " / ".join(row))
def test_the_loop_stops_where_a_row_is_missing(row):
    """Deleting the row makes the loop raise in that state, at that input."""
    state, kind, guard = row
    table = {**TABLE, (state, kind): tuple(r for r in TABLE[state, kind] if r.guard != guard)}
    walk = walked()[0][row]
    raised = stops(walk, table, None)
    assert (raised[0].state, raised[0].input) == (state, kind)
    assert kind in raised[0].legal or not table[state, kind], "it is legal, if another guard holds"


@pytest.mark.parametrize("move", MOVES, ids=lambda move: " / ".join(move))
def test_the_loop_stops_where_a_calls_move_is_missing(move):
    """Deleting a move of the call's table makes the loop raise there."""
    state, given = move
    raised = stops(walked()[1][move], None, {**CALL_TABLE, move: None})
    assert (raised[0].state, raised[0].input) == (state, given)
