"""What runs out at the rate at which it grows: told where it is true, silent where it only looks so."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from iotrace.analysis.host.forecasts import forecasts_of, slope_of
from iotrace.analysis.results import Forecast
from iotrace.launch.telemetry.procfs import memory_use, parse_rollup
from iotrace.sources.samples import MemoryRecord
from iotrace.sources.session import Session

GIB = 1 << 30
EVERY_S = 10
Sizes = tuple[float, float, float, float]  # anonymous, proportional, private and dirty, shared


def told(
    count: int,
    training: Callable[[int], Sizes] = lambda _: (GIB, GIB, GIB, 0),
    worker: Callable[[int], Sizes] = lambda _: (GIB, GIB, GIB, 0),
    group: Callable[[int], tuple[float, float]] | None = None,
    available: float = 10 * GIB,
    shm: Callable[[int], float] = lambda _: 0,
    opened: Callable[[int], float] = lambda _: 20,
    mapped: Callable[[int], float] = lambda _: 400,
    ended: int = 0,
    workers: tuple[int | None, ...] = (None, 0),
) -> list[Forecast]:
    """The forecasts after `count` samples of a training process and a worker; they ended before the last."""

    def row(number: int, sizes: Sizes, at: int) -> tuple[int, ...]:
        return (number, *(int(each) for each in sizes), int(opened(at)), 1024, int(mapped(at)))

    records = [
        MemoryRecord(
            mono_ns=at * EVERY_S * 10**9,
            group=None if group is None else cast(Any, tuple(int(each) for each in group(at))),
            available_bytes=int(available),
            most_mappings=65530,
            shm=(int(shm(at)), 4 * GIB),
            processes=cast(
                Any, [row(0, training(at), at), row(1, worker(at), at)] if at < count - ended else []
            ),
        )
        for at in range(count)
    ]
    processes = [SimpleNamespace(pid=10 + at, worker=worker) for at, worker in enumerate(workers)]
    telemetry = SimpleNamespace(
        memory=records,
        sampler=SimpleNamespace(host="node1", node="node1"),
        process_of=lambda process: SimpleNamespace(number=process.pid - 10),
    )
    session: Any = SimpleNamespace(telemetry=[telemetry], processes=processes, role_of=lambda _: "rank")
    return forecasts_of(cast(Session, session))


def grows(a_sample: float) -> Callable[[int], Sizes]:
    return lambda at: (GIB + a_sample * at, GIB + a_sample * at, GIB + a_sample * at, 0)


def test_a_leak_ends_when_what_is_free_is_used_up() -> None:
    (found,) = told(20, training=grows(GIB / 100))
    assert (found.what, found.kind, found.limit_of, found.host) == ("memory", "leak", "host", "node1")
    assert found.seconds == pytest.approx(1000 * EVERY_S, rel=0.01)
    assert found.per_hour == pytest.approx(3.6 * GIB, rel=0.01)
    assert found.grows == {"rank": pytest.approx(3.6 * GIB, rel=0.01)}
    assert found.text.startswith("out of memory in 2 h 4")
    assert found.text.endswith(" at this rate: rank grows by 3.6 GiB an hour")


def test_each_of_two_processes_with_one_name_is_told() -> None:
    (found,) = told(40, training=grows(GIB / 100), worker=grows(GIB / 50), workers=(0, 0))
    assert {name: round(amount / GIB, 1) for name, amount in found.grows.items()} == {
        "worker 0 (pid 10)": 3.6,
        "worker 0 (pid 11)": 7.2,
    }
    assert found.text.endswith("worker 0 (pid 11) grows by 7.2 GiB an hour")
    (found,) = told(40, training=grows(GIB / 100), worker=grows(GIB / 50), workers=())
    assert {name: round(amount / GIB, 1) for name, amount in found.grows.items()} == {"another process": 10.8}


def test_the_tightest_control_group_is_the_limit() -> None:
    (found,) = told(
        30, worker=grows(GIB / 100), group=lambda at: (2 * GIB + at * GIB / 100, 4 * GIB), available=100 * GIB
    )
    assert (found.limit_of, found.limit, found.kind) == ("cgroup", 4 * GIB, "leak")
    assert found.seconds == pytest.approx(171 * EVERY_S, rel=0.01)
    assert [*found.grows] == ["worker 0"]


def test_fewer_than_twenty_samples_tell_nothing() -> None:
    assert told(19, training=grows(GIB / 100)) == []


def test_what_ends_in_more_than_a_week_is_not_told() -> None:
    assert told(40, training=grows(4e6), available=1e15) == []


def test_memory_that_goes_up_and_down_tells_nothing() -> None:
    assert told(200, training=lambda at: grows(0)(0) if at % 7 else grows(GIB / 4)(1)) == []


def test_a_step_is_no_slope() -> None:
    assert told(64, training=lambda at: grows(GIB)(int(at > 50))) == []


@pytest.mark.parametrize("whole", [0.25, 0.5, 1.0])
def test_a_warm_up_that_flattens_tells_nothing(whole: float) -> None:
    """A cache that fills: its time constant is this share of the run."""
    count = 160

    def fills(at: int) -> Sizes:
        return grows(8 * GIB * (1 - math.exp(-at / (whole * count))))(1)

    assert told(count, training=fills, available=2 * GIB) == []


def copies(at: int) -> Sizes:
    """A worker that copies what it shares: its own memory stays, private grows as shared falls."""
    copied = min(3 * GIB, at * GIB / 100)
    return 3 * GIB, 1.5 * GIB + copied / 2, copied, 3 * GIB - copied


def test_copying_on_write_is_no_leak_and_has_an_end() -> None:
    (found,) = told(100, worker=copies)
    assert (found.kind, found.seconds, found.grows) == ("copy-on-write", None, {})
    assert found.text.startswith("memory grows by copying on write, by 2.0 GiB more at most")


def test_copying_on_write_ends_a_job_that_has_no_room_for_it() -> None:
    (found,) = told(100, worker=copies, available=GIB)
    assert found.kind == "copy-on-write"
    assert found.seconds == pytest.approx(200 * EVERY_S, rel=0.02)
    assert found.text.endswith("workers copy what they share with the training")


def test_a_worker_that_leaks_beside_shared_memory_is_a_leak() -> None:
    """Its private memory grows, but so does all of it: nothing that was shared became its own."""

    def leaks(at: int) -> Sizes:
        return 3 * GIB + at * GIB / 100, 1.5 * GIB + at * GIB / 100, at * GIB / 100, 3 * GIB

    (found,) = told(100, worker=leaks)
    assert found.kind == "leak"


def test_shared_memory_fills() -> None:
    memory, shm = sorted(
        told(40, training=lambda at: (GIB, GIB + at * GIB / 100, GIB, 0), shm=lambda at: at * GIB / 100),
        key=lambda each: each.what,
    )
    assert (memory.kind, shm.kind, shm.limit) == ("shared-memory", "shared-memory", 4 * GIB)
    assert shm.seconds == pytest.approx(361 * EVERY_S, rel=0.01)
    assert shm.text.startswith("/dev/shm is full in 1 h ")


@pytest.mark.parametrize("noise", [0, 1])
def test_descriptors_of_each_process_have_a_limit(noise: int) -> None:
    found = told(40, opened=lambda at: 20 + 2 * at + noise * (at % 2))
    assert [(each.what, each.role, each.limit) for each in found] == [
        ("descriptors", "rank", 1024),
        ("descriptors", "worker 0", 1024),
    ]
    assert found[0].pid == 10
    assert found[0].seconds == pytest.approx(463 * EVERY_S, rel=0.05)
    assert "no descriptors left in 1 h 17 min" in found[0].text


def test_what_grew_until_the_run_ended_is_told() -> None:
    found = told(41, opened=lambda at: 20 + 2 * at, ended=1)
    assert [each.role for each in found] == ["rank", "worker 0"]
    assert told(20, opened=lambda at: 20 + 2 * at, ended=1) == []


def test_files_that_are_opened_and_closed_tell_nothing() -> None:
    assert told(80, opened=lambda at: 20 + 30 * (at % 5), mapped=lambda at: 400 + 100 * (at % 3)) == []


def test_mappings_have_the_hosts_limit() -> None:
    found = told(40, mapped=lambda at: 400 + 100 * at)
    assert {(each.what, each.limit) for each in found} == {("mappings", 65530)}


def test_an_interval_holds_the_slope_of_a_noisy_leak() -> None:
    """Of 200 leaks under noise of two samples' growth, nine in ten are told, and their intervals hold it."""
    random = np.random.default_rng(1)
    times = np.array([10.0 * at for at in range(64)])
    slopes = [slope_of(times, 5.0 * times + random.normal(0, 100, 64)) for _ in range(200)]
    known = [slope for slope in slopes if slope is not None]
    assert len(known) >= 150
    assert np.mean([slope.low <= 5.0 <= slope.high for slope in known]) >= 0.95
    silent = [slope_of(times, random.normal(0, 100, 64)) for _ in range(200)]
    assert sum(slope is not None for slope in silent) <= 4


def test_the_kernels_sums_are_without_pages_of_files() -> None:
    text = (
        b"7f-80 ---p 00000000 00:00 0 [rollup]\nRss: 100 kB\nPss: 90 kB\nPss_Anon: 40 kB\nPss_File: 45 kB\n"
        b"Pss_Shmem: 5 kB\nShared_Clean: 3 kB\nShared_Dirty: 4 kB\nPrivate_Dirty: 30 kB\nAnonymous: 50 kB\n"
    )
    assert parse_rollup(text) == tuple(1024 * size for size in (50, 45, 30, 7))


@pytest.mark.parametrize(
    ("files", "use"),
    [
        ({"memory.current": "500", "memory.max": "900", "memory.stat": "file 200\nshmem 50\n"}, (350, 900)),
        ({"memory.current": "500", "memory.max": "max", "memory.stat": "file 1\nshmem 0\n"}, None),
        (
            {
                "memory.usage_in_bytes": "500",
                "memory.limit_in_bytes": "900",
                "memory.stat": "total_cache 100\ntotal_shmem 10\n",
            },
            (410, 900),
        ),
        ({"memory.current": "500", "memory.max": "900"}, (None, 900)),
        ({"memory.usage_in_bytes": "5", "memory.limit_in_bytes": "9223372036854771712"}, None),
        ({}, None),
    ],
)
def test_a_group_uses_what_the_kernel_cannot_take_back(tmp_path: Any, files: Any, use: Any) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert memory_use(str(tmp_path)) == use
