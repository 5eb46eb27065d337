"""Adapters for the tests of the command line: one that breaks a claim, one that does nothing."""

from __future__ import annotations

from typing import Any

from loopspec.adapters.protocol import Returned
from loopspec.adapters.reference import ReferenceAdapter, reference_manifest
from loopspec.loop import ReferenceLoop
from loopspec.machine import Choices
from loopspec.vocabulary import PROFILES


class AnswersAfterLength(ReferenceLoop):
    """Goes on after a cut reply, although it claims to fail."""

    def __init__(self, model: Any, tools: Any, choices: Choices, *args: Any, **kwargs: Any) -> None:
        import dataclasses

        changed = dataclasses.replace(choices, length="answers")
        super().__init__(model, tools, changed, *args, **kwargs)


def adapter() -> ReferenceAdapter:
    """A loop that claims that a length fails the run, and goes on."""
    return ReferenceAdapter(PROFILES["rejecting"], make=AnswersAfterLength, name="lying")


class _Silent:
    async def prompt(self, text: str) -> Returned:
        return Returned({"text": "I did not ask anybody."})

    def cancel(self) -> None: ...

    def history(self) -> list[Any]:
        return []

    async def close(self) -> None: ...


class _SilentAdapter:
    manifest = reference_manifest({}, "silent")

    async def open(self, bench: Any, settings: Any) -> _Silent:
        return _Silent()


def silent_adapter() -> _SilentAdapter:
    """An adapter that never asks the bench's provider."""
    return _SilentAdapter()
