"""Which range of a thread an instant lies in, where ranges nest as calls do."""

from __future__ import annotations

import numpy as np

from iotrace.analysis.intervals import Times

_NO_RANGE = -1


def innermost(starts: Times, ends: Times, times: Times) -> Times:
    """Per time the index of the innermost range ``[start, end)`` that holds it, -1 where none does.

    Of ranges that overlap without nesting the later one counts, to its end.
    """
    if not len(starts):
        return np.full(len(times), _NO_RANGE, dtype=np.int64)
    order = np.lexsort((-ends, starts)).tolist()
    begun, over = starts.tolist(), ends.tolist()
    changes: list[int] = []
    owners: list[int] = []
    stack: list[int] = []

    def close_until(time: int | None) -> None:
        while stack and (time is None or over[stack[-1]] <= time):
            end = over[stack.pop()]
            while stack and over[stack[-1]] <= end:
                stack.pop()
            changes.append(end)
            owners.append(stack[-1] if stack else _NO_RANGE)

    for index in order:
        if over[index] <= begun[index]:
            continue
        close_until(begun[index])
        stack.append(index)
        changes.append(begun[index])
        owners.append(index)
    close_until(None)
    place = np.searchsorted(np.array(changes, dtype=np.int64), times, side="right") - 1
    found = np.array(owners or [_NO_RANGE], dtype=np.int64)
    return np.where(place >= 0, found[np.maximum(place, 0)], _NO_RANGE)
