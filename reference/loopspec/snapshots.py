"""Golden traces: one readable file a trace, kept by syrupy.

The extension stores each trace as the text of :func:`loopspec.pytest_plugin.golden_text` under
``snapshots/NAME.txt`` at the root of the test run. The name that the test gives is the file's name,
folders included, so the tree of golden files can be read as a table of contents.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from syrupy.data import Snapshot, SnapshotCollection
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode

from loopspec.pytest_plugin import golden_text
from loopspec.trace import Trace

FOLDER = "snapshots"

if TYPE_CHECKING:
    from syrupy.location import PyTestLocation
    from syrupy.types import PropertyFilter, PropertyMatcher, SerializableData, SerializedData, SnapshotIndex


class GoldenTraces(SingleFileSnapshotExtension):
    """One text file a golden trace."""

    _write_mode = WriteMode.TEXT
    file_extension = "txt"

    def serialize(
        self,
        data: SerializableData,
        *,
        exclude: PropertyFilter | None = None,
        include: PropertyFilter | None = None,
        matcher: PropertyMatcher | None = None,
    ) -> SerializedData:
        """The golden text of a trace; texts stay as they are."""
        return golden_text(data) if isinstance(data, Trace) else str(data)

    @classmethod
    def dirname(cls, *, test_location: PyTestLocation) -> str:
        """The folder of golden files: ``snapshots`` at the root of the run."""
        return str(test_location.item.config.rootpath / FOLDER)

    @classmethod
    def get_file_basename(
        cls,
        *,
        test_location: PyTestLocation,  # noqa: ARG003 - what syrupy calls it with
        index: SnapshotIndex,
    ) -> str:
        """The name that the test gave, as it is."""
        return str(index)

    @classmethod
    def get_snapshot_name(
        cls,
        *,
        test_location: PyTestLocation,  # noqa: ARG003 - what syrupy calls it with
        index: SnapshotIndex = 0,
    ) -> str:
        """The name that the test gave, as it is."""
        return str(index)

    def read_snapshot_collection(self, *, snapshot_location: str) -> SnapshotCollection:
        """The one golden trace of a file, under the name that the test gives it."""
        parts = Path(snapshot_location).with_suffix("").parts
        top = len(parts) - 1 - parts[::-1].index(FOLDER)
        collection = SnapshotCollection(location=snapshot_location)
        collection.add(Snapshot(name="/".join(parts[top + 1 :])))
        return collection

    @classmethod
    def write_snapshot(cls, **given: Any) -> None:
        """Write as syrupy does, without its advice to put the test's name into the file's.

        A golden trace is named by its test on purpose: the tree of files is reading matter.
        """
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r"\s*Can not relate snapshot")
            super().write_snapshot(**given)

    @classmethod
    def matches_test_location(cls, *, test_location: PyTestLocation, snapshot_location: str) -> bool:
        """Whether a file belongs to a test: its first folder is the test's name or parameter.

        Only such files are reported as unused, or removed by an update, when that test ran: a
        run of one test never costs another its golden traces.
        """
        folder = Path(cls.dirname(test_location=test_location))
        try:
            first = Path(snapshot_location).relative_to(folder).parts[0]
        except ValueError:
            return False
        item = test_location.item
        callspec = getattr(item, "callspec", None)
        return first in {item.name, getattr(item, "originalname", None), callspec and callspec.id}
