"""Rows of integers as columns: each field one array, which a report of a long run reads at once.

An object for each batch would take a hundred times as long, and rows of a struct's layout several times.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from typing_extensions import Self

Times = npt.NDArray[np.int64]
Index = slice | npt.NDArray[Any]
BLOCK = 4096
_BLOCK_BYTES = 1 << 20  # of rows that are turned at once: they stay in the CPU's cache


class Columns:
    """``columns[field]`` is one array, ``columns[3]`` a row, ``columns[rows]`` some rows.

    A field of some rows is gathered when it is first asked for: a report asks for few fields of most
    selections, and a row of 20 fields is 160 bytes. Columns are not written to: many rows may share them.
    """

    __slots__ = ("_among", "_known", "_length", "_of", "_packed")

    def __init__(
        self,
        length: int,
        known: Mapping[str, npt.ArrayLike],
        of: Sequence[Columns] = (),
        among: Index | None = None,
    ) -> None:
        self._length, self._of, self._among = length, of, among
        self._known: dict[str, Times] = {}
        self._packed: set[str] = set()  # columns that are held in fewer bits than they are read in
        for field, values in known.items():
            self._known[field] = held(np.broadcast_to(np.asarray(values, np.int64), length))

    @classmethod
    def of(cls, rows: npt.NDArray[np.void]) -> Self:
        """Turn rows of a struct's layout; integers stay as wide as they are."""
        columns = cls(len(rows), {})
        columns._known = {field: held(rows[field]) for field in rows.dtype.names or ()}
        return columns

    @classmethod
    def joined(cls, parts: Sequence[Columns]) -> Columns:
        """Put rows one after the other; at least one part."""
        held = [part for part in parts if len(part)] or parts[:1]
        return held[0] if len(held) == 1 else cls(sum(map(len, held)), {}, held)

    @property
    def fields(self) -> list[str]:
        """The names of the columns, in order."""
        return [*dict.fromkeys((*(self._of[0].fields if self._of else ()), *self._known))]

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, key: str) -> Times: ...
    @overload
    def __getitem__(self, key: int | np.integer[Any]) -> dict[str, int]: ...
    @overload
    def __getitem__(self, key: Index | list[int]) -> Columns: ...
    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return self._column(key)
        if isinstance(key, int | np.integer):
            return {field: int(self[field][key]) for field in self.fields}
        return self._taken(np.asarray(key) if isinstance(key, list) else key)

    def __setitem__(self, field: str, column: Times) -> None:
        """Replace a column, for all who hold these rows; before others were taken from them."""
        self._known[field] = held(column)
        self._packed.discard(field)

    def __iter__(self) -> Iterator[dict[str, int]]:
        for row in self.tolist():
            yield dict(zip(self.fields, row, strict=True))

    def tolist(self) -> list[tuple[int, ...]]:
        """Return each row's values, in the order of the fields."""
        return list(zip(*(self[field].tolist() for field in self.fields), strict=True))

    def changed(self, **columns: npt.ArrayLike) -> Columns:
        """Return the rows with other columns."""
        return Columns(self._length, columns, [self], slice(None))

    def whole(self) -> Columns:
        """Gather every field, and let go of the rows that these were taken from."""
        for field in self.fields:
            self._column(field)
        self._of = ()
        return self

    def pack(self, *fields: str) -> None:
        """Hold columns in half as many bits, where they fit; they are read as before."""
        for field in fields:
            column = self._column(field)
            if len(column) > BLOCK and column.strides != (0,):
                packed: npt.NDArray[Any] = column.astype(np.int32)
                if (packed == column).all():
                    self._known[field] = packed
                    self._packed.add(field)

    def _column(self, field: str) -> Times:
        values = self._held(field)
        if field not in self._packed:
            return values
        if len(values) and values.strides == (0,):
            return np.broadcast_to(values[0].astype(np.int64), len(values))
        return values.astype(np.int64)

    def _held(self, field: str) -> Times:
        values = self._known.get(field)
        if values is None:
            if not self._of:
                raise KeyError(field)
            parts = [part._held(field) for part in self._of]
            values = np.concatenate(parts) if self._among is None else parts[0][self._among]
            values = self._known[field] = values if isinstance(self._among, slice) else held(values)
            if any(field in part._packed for part in self._of):
                self._packed.add(field)
        return values

    def _taken(self, rows: Index) -> Columns:
        if isinstance(rows, slice):
            return Columns(len(range(self._length)[rows]), {}, [self], rows)
        if rows.dtype == np.bool_:
            rows = np.flatnonzero(rows)
        if (
            len(rows)
            and rows[0] >= 0
            and int(rows[-1] - rows[0]) == len(rows) - 1
            and (np.diff(rows) == 1).all()
        ):
            own = len(rows) == self._length
            return self if own else self[int(rows[0]) : int(rows[-1]) + 1]  # no copy
        return Columns(len(rows), {}, [self], rows)


class Gathering:
    """Rows as they are read, of a struct's layout, in pieces of any length: columns, some rows at a time.

    A column grows where it is, and takes no room as long as it says the same of each row.
    """

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._dtype, self._rest = dtype, bytearray()
        self._same: dict[str, Any] = {}
        self._grown: dict[str, bytearray] = {}
        self._length = 0

    def add(self, data: Any) -> None:
        """Add what follows the rows so far: anything that holds bytes."""
        self._rest += memoryview(data)
        if len(self._rest) >= _BLOCK_BYTES:
            self._turn()

    def columns(self, numbers: Container[str] = ()) -> tuple[Columns, bool]:
        """Return all rows; whether the last one was cut. Fields that only number things become narrow."""
        self._turn()
        columns = Columns(self._length, {})
        for field in self._dtype.names or ():
            data, dtype = self._grown.pop(field, None), self._dtype[field]
            same = np.asarray(self._same.get(field, 0), dtype)
            column = np.broadcast_to(same, self._length) if data is None else np.frombuffer(data, dtype)
            is_narrow = data is not None and field in numbers
            columns[field] = narrowed(column) if is_narrow else column
        return columns, len(self._rest) > 0

    def _turn(self) -> None:
        rows = np.frombuffer(self._rest, self._dtype, len(self._rest) // self._dtype.itemsize)
        for field in self._dtype.names or () if len(rows) else ():
            column = rows[field]
            if field not in self._grown:
                same = self._same.setdefault(field, column[0].copy())
                if (column == same).all():
                    continue
                self._grown[field] = bytearray(np.full(self._length, same).tobytes())
            self._grown[field] += np.ascontiguousarray(column).data
        self._length += len(rows)
        self._rest = self._rest[rows.nbytes :]


def narrowed(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Hold integers in as few bits as they need: for those that are compared alone, as a sum may not fit."""
    least, most = (int(column.min()), int(column.max())) if len(column) else (0, 0)
    return column.astype(np.result_type(np.min_scalar_type(-1 - most), np.min_scalar_type(min(least, -1))))


@lru_cache(maxsize=1)
def _numbers(bits: int) -> Times:
    """Return all numbers of so many bits, which columns of several tables share."""
    numbers = np.arange(1 << bits)
    numbers.setflags(write=False)
    return numbers


def held(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Keep one value of a long column that has no other; columns of consecutive numbers share one array."""
    if len(column) > BLOCK and column.strides != (0,):
        if column[0] == column[-1] and (column == column[0]).all():
            return np.broadcast_to(column[0].copy(), len(column))
        if column.dtype == np.int64 and 0 <= column[0] < BLOCK and column[-1] - column[0] == len(column) - 1:
            numbers = _numbers(int(column[-1]).bit_length())[column[0] : column[-1] + 1]
            return numbers if (column == numbers).all() else np.ascontiguousarray(column)
        return np.ascontiguousarray(column)
    return column if len(column) > BLOCK else np.ascontiguousarray(column)
