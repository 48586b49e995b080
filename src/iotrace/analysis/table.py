"""Many structs of one type as columns: a row of integers each, which is made a struct when it is asked for.

A report of a long run reads columns; an object for each batch would take a hundred times as long.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np
import numpy.typing as npt

from iotrace.analysis.intervals import Times

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")
Index = slice | npt.NDArray[Any]
NONE = int(np.iinfo(np.int64).min)  # in a row: None
BLOCK = 4096


class Columns:
    """Rows of integers, each field one array; a field of some rows is gathered when it is first asked for.

    A report asks for few fields of most selections, and a row of 20 fields is 160 bytes.
    """

    __slots__ = ("_among", "_known", "_length", "_of")

    def __init__(
        self,
        length: int,
        known: Mapping[str, npt.ArrayLike],
        of: Sequence[Columns | npt.NDArray[np.void]] = (),
        among: Index | None = None,
    ) -> None:
        self._length, self._of, self._among = length, of, among
        self._known: dict[str, Times] = {}
        for field, values in known.items():
            self._known[field] = _held(np.broadcast_to(np.asarray(values, np.int64), length))

    @classmethod
    def joined(cls, parts: Sequence[Columns]) -> Columns:
        """Put rows one behind the other; at least one part."""
        held = [part for part in parts if len(part)] or parts[:1]
        return held[0] if len(held) == 1 else cls(sum(map(len, held)), {}, held)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, field: str) -> Times:
        found = self._known.get(field)
        if found is None:
            parts = [part[field] for part in self._of]
            found = _held(np.concatenate(parts) if self._among is None else parts[0][self._among])
            self._known[field] = found
        return found

    def taken(self, rows: Index) -> Columns:
        """Take some rows."""
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
            return self if own else self.taken(slice(int(rows[0]), int(rows[-1]) + 1))  # no copy
        return Columns(len(rows), {}, [self], rows)

    def changed(self, **columns: npt.ArrayLike) -> Columns:
        """Return the rows with other columns."""
        return Columns(self._length, columns, [self], slice(None))


def _held(column: Times) -> Times:
    """Keep one integer of a long column that says the same of each row, as most do."""
    if len(column) > BLOCK and column[0] == column[-1] and (column == column[0]).all():
        return np.broadcast_to(column[0].copy(), len(column))
    return np.ascontiguousarray(column)


class Table(Sequence[T]):
    """``table[field]`` is a column, ``table[3]`` a struct, ``table[rows]`` a table of some rows."""

    rows: Columns

    def _with(self, rows: Columns) -> Self:
        """Return a table of other rows."""
        raise NotImplementedError

    def _structs(self, rows: Columns) -> list[T]:
        """Make a struct of each row."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, key: int) -> T: ...
    @overload
    def __getitem__(self, key: str) -> Times: ...
    @overload
    def __getitem__(self, key: Index) -> Self: ...
    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return self.rows[key]
        if isinstance(key, int):
            return self._structs(self.rows.taken(np.array([key])))[0]
        return self._with(self.rows.taken(np.asarray(key) if isinstance(key, list) else key))

    def __iter__(self) -> Iterator[T]:
        for first in range(0, len(self.rows), BLOCK):
            yield from self._structs(self.rows.taken(slice(first, first + BLOCK)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def known(self, *fields: str) -> npt.NDArray[np.bool_]:
        """Mark the rows of which all these fields are known."""
        return np.asarray(np.logical_and.reduce([self.rows[field] != NONE for field in fields]), np.bool_)


def taken(rows: npt.NDArray[Any], key: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
    """Take the marked rows; as bytes, since numpy copies fields one by one otherwise."""
    return rows if key.all() else rows.view(f"V{rows.itemsize}")[key].view(rows.dtype)


def sums(values: npt.NDArray[Any], first: Times, behind: Times) -> npt.NDArray[Any]:
    """Sum up the integers `values` over each range ``[first[i], behind[i])``."""
    before = np.concatenate(([0], np.cumsum(values)))
    return np.asarray(before[np.maximum(behind, first)] - before[first])


def key_of(*columns: Times) -> Times:
    """Return one integer a row that is another one where any of the columns differs."""
    key = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        key = key * np.uint64(0x9E3779B97F4A7C15) + column.astype(np.int64).view(np.uint64)
    return key.view(np.int64)


def match(wanted: Times, known: Times) -> Times:
    """Find, per wanted key, the last row of `known` that has it; -1 where none does."""
    if not len(known):
        return np.full(len(wanted), -1, np.int64)
    order = np.argsort(known, kind="stable")
    at = np.searchsorted(known[order], wanted, side="right") - 1
    row = order[np.maximum(at, 0)]
    return np.where((at >= 0) & (known[row] == wanted), row, -1)
