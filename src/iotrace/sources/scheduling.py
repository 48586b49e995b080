"""What a sidecar says of processes' main threads once a second: switches, run delay, swap, CPUs."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from iotrace.sources.clocks.session_clock import Clock
from iotrace.sources.samples import Series, SystemRecord

_MOST_CPUS = 1 << 14


def by_process(records: list[SystemRecord], name: str, clock: Clock) -> dict[int, list[Series]]:
    """The figures of one list of `names.SCHEDULING` over time, by number of the process."""
    rows_of: dict[int, list[tuple[int, ...]]] = defaultdict(list)
    for record in records:
        for number, *values in getattr(record, name):
            rows_of[number].append((record.clock[0], *values))
    found = {}
    for number, rows in rows_of.items():
        mono_ns, *columns = np.array(rows, dtype=np.int64).T
        times = clock.times_to_session_ns(mono_ns)
        found[number] = [Series(times, column.astype(np.float64)) for column in columns]
    return found


Lists = dict[int, list[tuple[int, frozenset[int]]]]


def listed(records: list[SystemRecord], name: str, clock: Clock) -> Lists:
    """Since when each process may use what one of `names.LISTED` lists, by its number."""
    found: dict[int, list[tuple[int, frozenset[int]]]] = defaultdict(list)
    for record in records:
        for number, text in getattr(record, name):
            cpus = parse_cpus(text)
            if cpus:
                found[number].append((clock.to_session_ns(record.clock[0]), cpus))
    return found


def parse_cpus(text: str) -> frozenset[int]:
    """Parse a list of CPUs as the kernel writes it (``0-3,8``); empty where it is none."""
    found: set[int] = set()
    for piece in text.split(","):
        first, _, last = piece.strip().partition("-")
        if not (first.isdecimal() and (last or first).isdecimal() and int(last or first) < _MOST_CPUS):
            return frozenset()
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)
