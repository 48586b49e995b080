"""Count how often a program reads the row groups of a Parquet file (pyarrow): each is decoded whole."""

from __future__ import annotations

from _operator import index

from iotrace.agent.readpaths.sums import Sums
from iotrace.session.guard import ours

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from iotrace.agent.recording.recorder import Recorder

    Arguments = tuple[Any, ...]
    Keywords = dict[str, Any]

_MOST_FILES = 64  # of a process; of more, nothing is known
_MOST_GROUPS = 4096  # of a process: those that were read
_MORE = 1.5  # a list is written anew where so many times as many reads are known
# Where each call has its columns; those of a dataset have a filter behind them.
_COLUMNS = {
    "read": 1,
    "read_row_group": 2,
    "read_row_groups": 2,
    "iter_batches": 3,
    "to_table": 1,
    "to_batches": 1,
}
_OF_DATASET = frozenset({"to_table", "to_batches"})
_BY_GROUP = {"read_row_group": "i", "read_row_groups": "row_groups"}  # the parameter that names them


class _File:
    """A Parquet file with the columns that were read of it: by row group the reads, its rows and bytes.

    Of calls that give whole files or batches: by row group the rows that they gave, its rows, and the bytes
    that they gave. What was given of all row groups is in `rows` and `size_bytes` instead.
    """

    __slots__ = ("about", "count", "given", "read", "rows", "size_bytes", "told")

    def __init__(self, about: dict[str, Any], given: bool) -> None:
        self.about, self.given = about, given
        self.count = self.told = self.rows = self.size_bytes = 0
        self.read: dict[int, list[int]] = {}

    def as_read(self) -> list[list[int]]:
        """List number, reads, rows and bytes; what was left before its end counts with its part."""
        found = list(self.read.items())
        if not self.given:
            return [[number, *own] for number, own in found]
        all_rows = max(1, sum(own[1] for _, own in found))
        listed = []
        for number, (given, rows, size_bytes) in found:
            given += self.rows * rows // all_rows
            size_bytes += self.size_bytes * rows // all_rows
            if given >= rows > 0:
                listed.append([number, given // rows, rows, size_bytes * rows // given])
        return listed


class RowGroupReads(Sums):
    """The row groups that one call of pyarrow's ``ParquetFile`` or ``Dataset`` read in a process."""

    def __init__(self, recorder: Recorder, call: str) -> None:
        super().__init__(recorder, "telling reads of row groups", _MORE)
        self._call, self._columns = call, _COLUMNS[call]

    def note(self, result: Any, path: str, args: Arguments, kwargs: Keywords, size_bytes: int) -> int:
        """Add a call, or a batch, that gave `size_bytes` of a file; return what it decoded, or -1."""
        first = self._columns
        columns = args[first] if len(args) > first else kwargs.get("columns")
        if self._call in _OF_DATASET:
            chosen = args[first + 1] if len(args) > first + 1 else kwargs.get("filter")
            of_one = len(getattr(args[0], "files", ())) == 1
            if chosen is not None or isinstance(columns, dict):
                if path and of_one:
                    self._note_filter(path, None if columns is None else tuple(columns), args[0])
                return -1  # more was decoded than it gives
            if kwargs.get("cache_metadata") is False or not of_one:
                return size_bytes
        if path and size_bytes >= 0:
            self._note(result, path, columns, args, kwargs, size_bytes)
        return size_bytes

    def _note_filter(self, path: str, columns: tuple[Any, ...] | None, file: Any) -> None:
        """Note that a call chose rows of a file: which row groups it decoded, nobody knows."""
        if self._directory is not self._recorder.directory:
            self._begin()
        key = path, columns, None
        if key not in self._known:
            if len(self._known) >= _MOST_GROUPS:
                return
            self._known[key] = self._describe(file, path, columns)
            if self._known[key] is not None:
                self._known[key].about["call"] = f"{self._call}(filter)"
        if self._known[key] is not None:
            self._known[key].count += 1

    def _note(
        self, result: Any, path: str, columns: Any, args: Arguments, kwargs: Keywords, size_bytes: int
    ) -> None:
        if self._directory is not self._recorder.directory:
            self._begin()
        call, groups = self._call, None
        if call == "iter_batches":
            groups = args[2] if len(args) > 2 else kwargs.get("row_groups")
        key = path, None if columns is None else tuple(columns), groups is None
        try:
            known = self._known[key]
        except ours(KeyError):
            if len(self._known) >= _MOST_FILES:
                return
            known = self._known[key] = self._describe(args[0], path, columns)
            if known is not None and known.given and groups is None:
                self._learn(known, key, args[0], range(known.about["groups"]))
            elif known is not None and known.given:
                known.about["call"] = f"{call}(row_groups)"
        if known is None:
            return
        if call in _BY_GROUP:
            asked = args[1] if len(args) > 1 else kwargs[_BY_GROUP[call]]
            numbers = [index(each) for each in ((asked,) if call == "read_row_group" else asked)]
            self._add(known, key, args[0], numbers, size_bytes)
            known.count += len(numbers)
        else:
            known.count += result.num_rows
            if groups is None:
                known.rows += result.num_rows
                known.size_bytes += size_bytes
            else:
                self._add(known, key, args[0], [index(each) for each in groups], size_bytes, result.num_rows)

    def _learn(self, known: _File, key: Any, file: Any, numbers: Iterable[int]) -> None:
        """Note the rows of row groups that are new."""
        new = [number for number in dict.fromkeys(numbers) if number not in known.read]
        others = sum(len(each.read) for each in list(self._known.values()) if each) if new else 0
        if others + len(new) > _MOST_GROUPS:
            self._known[key] = None  # what is known of a part of it would be told for the whole
            return
        for number in new:
            known.read[number] = [0, int(_metadata(file).row_group(number).num_rows), 0]

    def _add(
        self, known: _File, key: Any, file: Any, numbers: list[int], size_bytes: int, given: int = 0
    ) -> None:
        """Add a read of row groups, or a batch of them with `given` rows: to each its share by its rows."""
        self._learn(known, key, file, numbers)
        if not numbers:  # of an iterator, which pyarrow has used up
            self._known[key] = None
        if self._known[key] is None:
            return
        all_rows = sum(known.read[number][1] for number in numbers) or 1
        for number in numbers:
            found = known.read[number]
            share_bytes = size_bytes * found[1] // all_rows
            if known.given:
                found[0] += given * found[1] // all_rows
                found[2] += share_bytes
            else:
                found[0] += 1
                found[2] = found[2] or share_bytes

    def _describe(self, file: Any, path: str, columns: Any) -> _File | None:
        metadata = _metadata(file)
        if metadata is None:
            return None
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
            },
            self._call not in _BY_GROUP,
        )

    def record(self, _: Any, known: _File) -> dict[str, Any]:
        """Tell the row groups of a file."""
        return {**known.about, "read": known.as_read()}


def _metadata(file: Any) -> Any:
    """Return a file's footer as pyarrow holds it, of a dataset's only file too; None of another format."""
    if hasattr(file, "get_fragments"):
        file = next(file.get_fragments(), None)
    return getattr(file, "metadata", None)
