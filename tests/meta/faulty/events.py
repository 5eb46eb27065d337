"""Loops whose events are not true: ends without starts, starts without ends, or another order."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

from loopspec.loop import ReferenceLoop
from loopspec.vocabulary import Event, EventType
from meta.faulty import claims, fault

Teller = Callable[[Event], Iterable[Event]]


def tells(make: Callable[[], Teller]) -> type[ReferenceLoop]:
    """A loop that tells other events than its machine says; ``make`` makes a teller for each run."""

    class Tells(ReferenceLoop):
        async def _drive(self, run: Any) -> None:
            tellers[id(run)] = make()
            await super()._drive(run)

        async def _emit(self, run: Any, event: Event) -> None:
            for told in tellers[id(run)](event):
                await super()._emit(run, told)

    tellers: dict[int, Teller] = {}
    return Tells


def always(change: Teller) -> type[ReferenceLoop]:
    """A loop that changes each event in the same way."""
    return tells(lambda: change)


def holding(held: EventType, until: EventType, *, role: str | None = None, first: bool = False) -> Any:
    """Makes tellers that hold events of one type back until one of another type was told.

    ``first``: they come directly before that, else directly after it.
    """

    def make() -> Teller:
        kept: list[Event] = []

        def teller(event: Event) -> Iterable[Event]:
            if event.type == held and role in (None, event.role):
                kept.append(event)
            elif event.type == until:
                before, after = (list(kept), []) if first else ([], list(kept))
                kept.clear()
                yield from (*before, event, *after)
            else:
                yield event

        return teller

    return make


DURABLE = claims("durable-prefix")
_END, _START = EventType.TOOL_END, EventType.TOOL_START

# --------------------------------------------------------------------------------------------
# Starts and ends

fault("events.one-end-each", "tells-no-end-of-a-tool-that-failed",
      "A tool that fails is told to start, and never to end.",
      loop=always(lambda e: () if e.type == _END and e.is_error else (e,)))  # fmt: skip
fault("events.one-end-each", "tells-the-end-of-a-message-twice",
      "Each answer is told to end once more.",
      loop=always(lambda e: (e, e) if e.type == EventType.MESSAGE_END and e.role == "assistant" else (e,)))  # fmt: skip


def _only_first_turns() -> Teller:
    turns: list[Event] = []

    def teller(event: Event) -> Iterable[Event]:
        if event.type == EventType.TURN_START:
            turns.append(event)
        elif event.type != EventType.TURN_END:
            return (event,)
        return () if len(turns) > 1 else (event,)

    return teller


fault("events.brackets", "tells-turns-only-for-the-first",
      "What follows the first turn of a run stands outside any turn.", DURABLE,
      loop=tells(_only_first_turns))  # fmt: skip
fault("events.brackets", "tells-the-run-to-start-after-its-first-turn-has",
      "The first turn begins outside the run.", DURABLE,
      loop=tells(holding(EventType.RUN_START, EventType.TURN_START)))  # fmt: skip

# --------------------------------------------------------------------------------------------
# The end of the run

fault("events.one-terminal", "tells-every-run-to-have-completed",
      "The end of a run that failed has the reason of one that did not.", DURABLE,
      loop=always(lambda e: (
          (dataclasses.replace(e, reason="completed"),) if e.type == EventType.RUN_END else (e,)
      )))  # fmt: skip
fault("events.one-terminal", "tells-the-end-of-the-run-twice",
      "A run is told to end once for its last turn, and once for itself.", DURABLE,
      loop=always(lambda e: (e, e) if e.type == EventType.RUN_END else (e,)))  # fmt: skip
fault("events.nothing-after-terminal", "tells-the-last-message-after-the-end-of-the-run",
      "The end of each answer comes when its run has been told to end.", DURABLE,
      loop=tells(holding(EventType.MESSAGE_END, EventType.RUN_END, role="assistant")))  # fmt: skip
fault("events.nothing-after-terminal", "tells-results-after-the-end-of-the-run",
      "The ends of tools come when the run has been told to end.", DURABLE,
      loop=tells(holding(EventType.TOOL_END, EventType.RUN_END)))  # fmt: skip

# --------------------------------------------------------------------------------------------
# Tools

fault("events.call-told-before-execution", "tells-a-tool-to-start-when-it-has-ended",
      "Start and end of a tool are told together, when its result is there.",
      loop=tells(holding(_START, _END, first=True)))  # fmt: skip


def _one_start_a_turn() -> Teller:
    started: list[Event] = []

    def teller(event: Event) -> Iterable[Event]:
        if event.type == EventType.TURN_START:
            started.clear()
        elif event.type == _START:
            started.append(event)
            return (event,) if len(started) == 1 else ()
        return (event,)

    return teller


fault("events.call-told-before-execution", "tells-only-the-first-tool-of-a-turn-to-start",
      "Of several calls in one reply, all but the first run untold.",
      loop=tells(_one_start_a_turn))  # fmt: skip
fault("events.tool-end-after-its-start", "tells-a-tool-to-end-before-it-starts",
      "The start of a tool comes behind its end.", loop=tells(holding(_START, _END)))  # fmt: skip
fault("events.tool-end-after-its-start", "tells-calls-that-never-ran-to-have-succeeded",
      "The end of a call without a tool is not marked as an error.",
      loop=always(lambda e: (dataclasses.replace(e, is_error=False),) if e.type == _END else (e,)))  # fmt: skip

# --------------------------------------------------------------------------------------------
# Deltas


def _late_by_one() -> Teller:
    """Shows each delta when the next one comes, and so never the last one."""
    kept: list[Event] = []

    def teller(event: Event) -> Iterable[Event]:
        if event.type != EventType.TEXT_DELTA:
            if event.type == EventType.MESSAGE_END:
                kept.clear()
            return (event,)
        kept.append(event)
        return (kept.pop(0),) if len(kept) > 1 else ()

    return teller


fault("events.shown-adds-up", "shows-each-piece-twice", "Every delta is told once more.",
      loop=always(lambda e: (e, e) if e.type == EventType.TEXT_DELTA else (e,)))  # fmt: skip
fault("events.shown-adds-up", "never-shows-the-last-piece",
      "A delta is told when the next one comes.", loop=tells(_late_by_one))  # fmt: skip
