"""Many structs of one type as columns: a row of integers each, which is made a struct when it is asked for.

A report of a long run reads columns; an object for each batch would take a hundred times as long.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np
import numpy.typing as npt

from iotrace.analysis.intervals import Times
from iotrace.sources.columns import BLOCK, Columns, Index

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")
NONE = int(np.iinfo(np.int64).min)  # in a row: None


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
            return self._structs(self.rows[np.array([key])])[0]
        return self._with(self.rows[key])

    def __iter__(self) -> Iterator[T]:
        for first in range(0, len(self.rows), BLOCK):
            yield from self._structs(self.rows[first : first + BLOCK])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def known(self, *fields: str) -> npt.NDArray[np.bool_]:
        """Mark the rows of which all these fields are known."""
        return np.asarray(np.logical_and.reduce([self.rows[field] != NONE for field in fields]), np.bool_)


def sums(values: npt.NDArray[Any], first: Times, behind: Times) -> npt.NDArray[Any]:
    """Sum up the integers `values` over each range ``[first[i], behind[i])``."""
    if (behind - first == 1).all():  # as most are
        return np.asarray(values[first], np.result_type(values, np.int64))
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
