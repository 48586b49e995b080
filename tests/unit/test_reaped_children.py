"""What ended children add to their parent's account of I/O is taken out of it, once, when it was added."""

from __future__ import annotations

import numpy as np

from iotrace.sources.samples import SAMPLE_DTYPE, ProcessRecord
from iotrace.sources.telemetry import without_reaped

RECORDS = [
    ProcessRecord(number=0, pid=10, start_ns=0, ppid=1),
    ProcessRecord(number=1, pid=11, start_ns=5, ppid=10),
    ProcessRecord(number=2, pid=12, start_ns=6, ppid=10),
]
COUNTERS = ("rchar", "wchar", "read_calls", "write_calls", "read_bytes", "write_bytes")


def taken(rows: dict[int, list[tuple[int, int]]]) -> dict[int, list[int]]:
    """The counters of each process by number, which have one value; given as times and values."""
    samples = np.zeros(sum(map(len, rows.values())), SAMPLE_DTYPE)
    pairs = [(number, time_ns, value) for number, own in rows.items() for time_ns, value in own]
    for at, (number, time_ns, value) in enumerate(pairs):
        samples["process"][at], samples["time_ns"][at] = number, time_ns
        for name in COUNTERS:
            samples[name][at] = value
    found = without_reaped(RECORDS, samples)
    assert all((found[name] == found["rchar"]).all() for name in COUNTERS)
    return {number: found["rchar"][found["process"] == number].tolist() for number in rows}


def test_two_workers_that_were_waited_for_at_once() -> None:
    found = taken(
        {
            0: [(10, 1), (20, 2), (30, 3), (40, 310), (50, 312)],
            1: [(10, 50), (20, 100)],
            2: [(10, 10), (25, 200)],
        }
    )
    assert found == {0: [1, 2, 3, 10, 12], 1: [50, 100], 2: [10, 200]}


def test_a_child_that_lives_or_was_not_waited_for_takes_nothing() -> None:
    found = taken({0: [(10, 1), (20, 60), (30, 90)], 1: [(10, 50), (29, 100)]})
    assert found[0] == [1, 60, 90]


def test_what_is_not_known_stays() -> None:
    found = taken({0: [(10, -1), (20, -1)], 1: [(15, 100)]})
    assert found[0] == [-1, -1]
    assert taken({0: [(10, 1), (20, 200)], 1: [(15, -1)]})[0] == [1, 200]
