"""Count which row groups of a Parquet file a program reads (pyarrow), and how often: each is decoded whole.

Sums for each process, file and columns, in a record that replaces the one before.
"""

from __future__ import annotations

from _operator import index

from iotrace.session.guard import ours

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from iotrace.agent.recording.recorder import Recorder

_MOST_FILES = 64  # of a process; of more, nothing is known
_MOST_GROUPS = 4096  # of a process: those that were read
_MORE = 1.5  # a list is written anew where so many times as many reads are known


class _File:
    """A Parquet file with the columns that were read of it: by row group the reads, its rows and bytes."""

    __slots__ = ("about", "read", "reads", "told")

    def __init__(self, about: dict[str, Any]) -> None:
        self.about = about
        self.reads = self.told = 0
        self.read: dict[int, list[int]] = {}


class RowGroupReads:
    """The row groups that one call (``read``, ``read_row_group``, ``read_row_groups``) read in a process."""

    def __init__(self, recorder: Recorder, call: str) -> None:
        self._recorder, self._call = recorder, call
        self._directory = ""
        self._files: dict[tuple[str, Any], _File | None] = {}
        self._groups = 0

    def note(self, path: str, args: tuple[Any, ...], kwargs: dict[str, Any], size_bytes: int) -> None:
        """Add a call that gave `size_bytes` of the file `path`."""
        if self._directory is not self._recorder.directory:  # a forked child starts anew
            self._directory = self._recorder.directory
            self._files, self._groups = {}, 0
            self._recorder.before_flush.append(self._tell)
        first = 1 if self._call == "read" else 2
        columns = args[first] if len(args) > first else kwargs.get("columns")
        key = path, None if columns is None else tuple(columns)
        try:
            known = self._files[key]
        except ours(KeyError):
            known = None if len(self._files) >= _MOST_FILES else self._describe(args[0], path, columns)
            self._files[key] = known
        if known is None or size_bytes < 0:
            return
        if self._call == "read_row_group":
            number = index(args[1] if len(args) > 1 else kwargs["i"])
            found = known.read.get(number)
            if found is not None:  # as most calls are
                found[0] += 1
                known.reads += 1
                return
            numbers = [number]
        elif self._call == "read_row_groups":
            numbers = [index(each) for each in (args[1] if len(args) > 1 else kwargs["row_groups"])]
        else:
            numbers = list(range(known.about["groups"]))
        self._add(known, key, args[0].metadata.row_group, numbers, size_bytes)

    def _add(
        self, known: _File, key: tuple[str, Any], about: Callable[[int], Any], numbers: list[int], size: int
    ) -> None:
        new = [number for number in dict.fromkeys(numbers) if number not in known.read]
        if self._groups + len(new) > _MOST_GROUPS:
            self._files[key] = None  # what is known of a part of it would be told for the whole
            return
        self._groups += len(new)
        rows = {number: int(about(number).num_rows) for number in new}
        rows.update({number: known.read[number][1] for number in numbers if number not in rows})
        all_rows = sum(rows[number] for number in numbers) or 1
        for number in numbers:
            found = known.read.setdefault(number, [0, rows[number], size * rows[number] // all_rows])
            found[0] += 1
        known.reads += len(numbers)

    def _describe(self, file: Any, path: str, columns: Any) -> _File:
        metadata = file.metadata
        packed = metadata.row_group(0).column(0).compression if metadata.num_row_groups else ""
        return _File(
            {
                "type": "row_groups",
                "path": path,
                "call": self._call,
                "columns": None if columns is None else [str(name) for name in columns][:_MOST_FILES],
                "of_columns": int(metadata.num_columns),
                "rows": int(metadata.num_rows),
                "groups": int(metadata.num_row_groups),
                "compression": str(packed),
            }
        )

    def _tell(self) -> None:
        try:
            for known in list(self._files.values()):
                more = 1.0 if self._recorder.closed else _MORE
                if known is not None and known.reads > known.told * more:
                    known.told = known.reads
                    read = [[number, *found] for number, found in list(known.read.items())]
                    self._recorder.records.append({**known.about, "read": read})
        except ours(Exception) as error:
            self._recorder.absorb(error, "telling reads of row groups")
