"""Slices that two events give, a begin and an end: which end belongs to which begin."""

from __future__ import annotations

from collections.abc import Hashable, Sequence


def pair(
    tracks: Sequence[Hashable], times: Sequence[int], is_end: Sequence[bool]
) -> tuple[list[int], list[int | None]]:
    """Pair begins and ends of each track as calls nest: an end ends what began last.

    The arguments have an entry per event in the order of their file, which decides between equal times.

    Returns:
        The indices of all begins in order of time, and of their ends; None where a begin has no end. An end
        without a begin is in neither.
    """
    order = sorted(range(len(times)), key=times.__getitem__)
    open_begins: dict[Hashable, list[int]] = {}
    begins: list[int] = []
    ends: list[int | None] = []
    for event in order:
        stack = open_begins.setdefault(tracks[event], [])
        if not is_end[event]:
            stack.append(len(begins))
            begins.append(event)
            ends.append(None)
        elif stack:
            ends[stack.pop()] = event
    return begins, ends
