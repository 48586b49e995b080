"""The calls that make a sample, one in another."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from msgspec.structs import replace

from iotrace.analysis.wait.sample_calls import sample_calls
from iotrace.session.names import KIND_CALLBACK, KIND_ITEM, KIND_READ_PATH, KIND_REGION
from iotrace.sources.clocks.session_clock import Clock
from iotrace.sources.processes import SPAN_DTYPE, Process
from iotrace.sources.records import Identity
from iotrace.sources.session import Rank
from tests.unit.test_slow_loop_steps import TID, posix

NAMES = {0: "Data.__getitem__", 1: "read_index", 2: "h5py.Dataset.__getitem__", 3: "load", 4: "train"}
MS = 1_000_000


def told(*spans: tuple[int, int, float, float]) -> list[tuple[int, str, int, float, float]]:
    """Nest spans of (kind, name, start, end) in ms with two reads at 3 to 4 and 14 to 15 ms."""
    table = np.zeros(len(spans), dtype=SPAN_DTYPE)
    for row, (kind, name, start, end) in enumerate(spans):
        table["kind"][row], table["name"][row], table["tid"][row] = kind, name, TID
        table["start_ns"][row], table["duration_ns"][row] = start * MS, (end - start) * MS
    identity = Identity(format=1, pid=TID, ppid=1, role="main", clock=(0, 0, 1))
    main = Process(identity, Clock([[0, 0, 1]]), [], cast("Any", table), NAMES)
    calls = posix(
        [(name, at, at + 1, TID, 100) for name, at in (("pread64", 3), ("pread64", 14), ("read", 25))]
    )
    calls = replace(calls, calls=np.ones(3, np.int64))
    session: Any = SimpleNamespace(calls_of=lambda _: calls)
    found = sample_calls(session, Rank(0, None, 0, main, []))
    return [(each.depth, each.name, each.count, each.ms_each, each.own_ms_each) for each in found]


SAMPLES = [
    (KIND_READ_PATH, 2, 2, 6),
    (KIND_REGION, 1, 1, 8),
    (KIND_ITEM, 0, 0, 10),
    (KIND_REGION, 1, 11, 18),
    (KIND_ITEM, 0, 10, 20),
    (KIND_REGION, 4, 20, 30),  # the loop's own: what it reads is no sample's
]


def test_each_call_is_below_the_one_that_holds_it() -> None:
    assert told(*SAMPLES) == [
        (0, "Data.__getitem__", 2, 10, 3),
        (1, "read_index", 2, 7, 4.5),
        (2, "h5py.Dataset.__getitem__", 1, 4, 3),
        (3, "pread64", 1, 1, 1),
        (2, "pread64", 1, 1, 1),
    ]


def test_what_a_library_calls_makes_the_samples_that_the_loop_asks_for() -> None:
    called = [(KIND_CALLBACK if kind == KIND_ITEM else kind, name, *at) for kind, name, *at in SAMPLES]
    asked = [*called, (KIND_ITEM, 3, 20, 27)]
    assert told(*cast("Any", asked)) == told(*cast("Any", called))


def test_samples_of_which_nothing_else_is_known_are_no_table() -> None:
    assert told((KIND_ITEM, 0, 4.5, 10)) == []
