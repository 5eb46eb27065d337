"""The cancellation signal: set once, seen by whoever looks or asked to be told.

Each run has its own, so that a signal never leaks into the next run.
"""

from __future__ import annotations

from collections.abc import Callable


class Signal:
    """A cancellation signal that a provider, a tool or a loop can look at."""

    __slots__ = ("_callbacks", "aborted")

    def __init__(self) -> None:
        self.aborted = False
        self._callbacks: list[Callable[[], None]] = []

    def set(self) -> None:
        """Signal; a second time changes nothing."""
        if not self.aborted:
            self.aborted = True
            callbacks, self._callbacks = self._callbacks, []
            for callback in callbacks:
                callback()

    def on_abort(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once the signal is set (at once if it is)."""
        if self.aborted:
            callback()
        else:
            self._callbacks.append(callback)
