"""The recorder: the one place where entries get their order.

Everything that the bench does, sees or is told is appended here at the moment when it knows it,
from one event loop, so that the list's order is the order of the bench's knowledge.
"""

from __future__ import annotations

from collections.abc import Callable

from loopspec.trace import Entry, Header, Trace


class Recorder:
    """Collects the entries of one scenario."""

    def __init__(self, header: Header) -> None:
        self._entries: list[Entry] = [header]
        self._watchers: list[Callable[[Entry], None]] = []
        self.sealed = False
        self._late: list[Entry] = []

    def add(self, entry: Entry) -> None:
        """Append an entry; after :meth:`trace` nothing is taken any more."""
        if self.sealed:
            return
        self._entries.append(entry)
        for watcher in self._watchers:
            watcher(entry)

    def later(self, entry: Entry) -> None:
        """Append an entry at the next :meth:`flush`: its place before that is not known."""
        self._late.append(entry)

    def flush(self) -> None:
        """All is quiet: append what was kept for this moment, in an order that does not vary."""
        late, self._late = self._late, []
        for entry in sorted(late, key=repr):
            self.add(entry)

    def watch(self, watcher: Callable[[Entry], None]) -> None:
        """Call ``watcher`` with every entry to come."""
        self._watchers.append(watcher)

    def entries(self) -> list[Entry]:
        """The entries so far."""
        return self._entries

    def seal(self) -> None:
        """Take nothing more: what comes now is not of this scenario."""
        self.flush()
        self.sealed = True

    def __len__(self) -> int:
        return len(self._entries)

    def trace(self) -> Trace:
        """The trace so far; the recorder is sealed by this."""
        self.sealed = True
        return Trace(tuple(self._entries))
