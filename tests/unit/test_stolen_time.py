"""Time that a hypervisor gave to others is no sleep of the thread that lost it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iotrace.launch.telemetry.procfs import ProcFile
from iotrace.launch.telemetry.system import System
from iotrace.session import names
from iotrace.session.names import KIND_ITEM
from iotrace.sources.clocks.session_clock import Clock
from iotrace.sources.processes import SPAN_DTYPE, Process
from iotrace.sources.records import Identity
from iotrace.sources.samples import read_sidecars
from iotrace.sources.stolen_time import add_stolen_time
from iotrace.sources.telemetry import Host, read_telemetry

MS, SECOND = 1_000_000, 1_000_000_000


def host(tmp_path: Path, *seconds: tuple[int, int | None]) -> Host:
    """What is read of a sidecar that recorded these busy and stolen ticks, one pair a second from 0 on."""
    directory = tmp_path / names.TELEMETRY / "n-1"
    directory.mkdir(parents=True)
    records: list[dict[str, Any]] = [
        {"type": "sampler", "pid": 1, "node": "n", "clock": [0, 0, 5], "interval_ns": 1}
    ]
    for second, (busy, stolen) in enumerate(seconds):
        ticks = {"0": [busy, 0, 0]} if busy else {}
        record = {"type": "system", "sampler_cpu_ns": 0, "clock": [second * SECOND, second * SECOND, 5]}
        records.append({**record, "cpus": ticks, **({} if stolen is None else {"stolen_ticks": stolen})})
    (directory / names.RECORDS).write_text("".join(json.dumps(record) + "\n" for record in records))
    (found,) = read_telemetry(read_sidecars(tmp_path))
    return found.host


def process(*rows: tuple[int, int, int, int]) -> Process:
    """Rows of start, duration, CPU time and run delay, in ms; a run delay of -1 is unknown."""
    spans = np.zeros(len(rows), dtype=SPAN_DTYPE)
    for index, (start, duration, cpu, delay) in enumerate(rows):
        known_ns = delay * MS if delay >= 0 else -1
        for name, value in zip(
            ("start_ns", "duration_ns", "cpu_ns", "run_delay_ns", "kind"),
            (start * MS, duration * MS, cpu * MS, known_ns, KIND_ITEM),
            strict=True,
        ):
            spans[name][index] = value
    identity = Identity(format=1, pid=7, ppid=1, role="main", clock=(0, 0, 1))
    return Process(identity, Clock([[0, 0, 1]]), [], spans, {})


def delays_ms(found: Process) -> list[float]:
    return [delay / MS if delay >= 0 else -1 for delay in found.spans["run_delay_ns"].tolist()]


def test_a_thread_lost_as_much_of_its_time_as_the_cpus_did(tmp_path: Path) -> None:
    # Of the second second a quarter was stolen (a third of the CPU time), of the third a half.
    found = process(
        (100, 100, 30, 5),  # before anything was stolen
        (1100, 100, 30, 5),
        (2100, 100, 30, 5),
        (1900, 200, 60, 0),  # of both
        (2100, 100, 80, 15),  # no more than it was without a CPU
        (2100, 100, 30, -1),
        (3100, 100, 30, 5),  # after the last record
    )
    add_stolen_time(found, host(tmp_path, (0, None), (100, 0), (100, 25), (100, 50)))
    assert delays_ms(found) == pytest.approx([5, 15, 35, 40, 20, -1, 5], abs=1e-5)


@pytest.mark.parametrize("stolen", [None, 0])
def test_without_stolen_time_nothing_changes(tmp_path: Path, stolen: int | None) -> None:
    found = process((100, 100, 30, 5), (1100, 100, 30, 5))
    add_stolen_time(found, host(tmp_path, (0, None), (100, stolen), (100, stolen)))
    assert delays_ms(found) == [5, 5]


def test_the_sidecar_records_what_was_stolen_since_the_record_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 2})
    told = iter(
        [
            b"cpu0 10 0 0 80 5 0 0 3 0 0\ncpu1 10 0 0 80 5 0 0 40 0 0\ncpu2 0 0 0 9 0 0 0 1 0 0\n",
            b"cpu0 11 0 0 80 5 0 0 9 0 0\ncpu1 10 0 0 80 5 0 0 90 0 0\ncpu2 3 0 0 9 0 0 0 2 0 0\n",
        ]
    )
    monkeypatch.setattr(ProcFile, "read_all", lambda _: next(told))
    system = System()
    figures = [(name, read) for name, read in system._figures if name in ("cpus", "stolen_ticks")]
    assert [read() for _, read in figures] == [{}, None]
    assert [read() for _, read in figures] == [{0: (7, 0, 0), 2: (4, 0, 0)}, 7]
