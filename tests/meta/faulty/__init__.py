"""Loops that are wrong on purpose, one small change each, and legal variants that are not wrong.

A :class:`Fault` is named for what the loop does wrong and says which rule names that. It is built
from the reference loop by one change: a row, an action or a guard of the machine, a method of the
loop, a session or an adapter round it. Each runs end to end through an adapter; no trace is ever
doctored. A :class:`Control` differs from the reference in a way that the standard allows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from loopspec.adapters.reference import ReferenceAdapter
from loopspec.loop import ReferenceLoop
from loopspec.machine import ACTIONS, GUARDS, TABLE, Kind, Machine, Row, State
from loopspec.vocabulary import PROFILES

FAULTS: dict[str, Fault] = {}
CONTROLS: dict[str, Control] = {}


@dataclass(frozen=True)
class Fault:
    """A loop that breaks ``rule``. ``words`` say what it does wrong."""

    name: str
    rule: str
    words: str
    adapter: Callable[[], Any]

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Control:
    """A loop that is unusual and right."""

    name: str
    words: str
    adapter: Callable[[], Any]

    def __str__(self) -> str:
        return self.name


def claims(profile: str = "rejecting", **changes: str) -> dict[str, str]:
    """A profile's claims with changes; an empty value takes a claim away."""
    merged = {**PROFILES[profile], **changes}
    return {name: value for name, value in merged.items() if value}


def reference(
    name: str,
    with_claims: Mapping[str, str] | None = None,
    *,
    loop: type[ReferenceLoop] = ReferenceLoop,
    machine: type[Machine] = Machine,
    adapter: type[ReferenceAdapter] = ReferenceAdapter,
) -> Callable[[], ReferenceAdapter]:
    """A maker of an adapter round the reference loop with one part replaced."""
    return lambda: adapter(with_claims or claims(), make=loop, name=name, machine=machine)


def fault(
    rule: str, name: str, words: str, with_claims: Mapping[str, str] | None = None, **parts: Any
) -> None:
    """Register a fault; ``parts`` as for :func:`reference`."""
    assert name not in FAULTS, f"{name} is registered twice"
    FAULTS[name] = Fault(name, rule, words, reference(name, with_claims, **parts))


def control(name: str, words: str, with_claims: Mapping[str, str] | None = None, **parts: Any) -> None:
    """Register a control; ``parts`` as for :func:`reference`."""
    assert name not in CONTROLS, f"{name} is registered twice"
    CONTROLS[name] = Control(name, words, reference(name, with_claims, **parts))


def machine_with(
    *,
    rows: Mapping[tuple[State, Kind], tuple[Row, ...]] | None = None,
    actions: Mapping[str, Any] | None = None,
    guards: Mapping[str, Any] | None = None,
    assembles: Any = None,
) -> type[Machine]:
    """A machine class whose table, actions, guards or assembler differ in what is given."""
    changed = {**TABLE, **(rows or {})}

    class Changed(Machine):
        def __init__(
            self, choices: Any = None, max_turns: Any = None, table: Any = None, call_table: Any = None
        ):
            super().__init__(choices, max_turns, changed, call_table)

    Changed.actions = {**ACTIONS, **(actions or {})}
    Changed.guards = {**GUARDS, **(guards or {})}
    if assembles is not None:
        Changed.assembles = assembles
    return Changed


__all__ = [
    "CONTROLS", "FAULTS", "Control", "Fault", "claims", "control", "fault", "field", "machine_with",
    "reference",
]  # fmt: skip
