"""The wires: one encoder and decoder for each provider API.

``WIRES`` has them by name. A new wire is a module with a :class:`~loopspec.bench.wires.base.Wire`
value and a line here.
"""

from __future__ import annotations

from loopspec.bench.wires.base import Body, Encoder, Objection, Wire
from loopspec.bench.wires.chat import CHAT

WIRES: dict[str, Wire] = {wire.name: wire for wire in (CHAT,)}
"""Every wire, by name."""

__all__ = ["CHAT", "WIRES", "Body", "Encoder", "Objection", "Wire"]
