"""Who kept CPUs from the workers: told where it is true, silent where it only looks so."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from iotrace.analysis.loop.deliveries import Delivery
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import (
    Culprit,
    DataWait,
    HostUse,
    ProcessUse,
    RankReport,
    Steps,
    System,
)
from iotrace.analysis.rules.advice import culprits_of
from iotrace.analysis.rules.facts.rank import RankFacts
from iotrace.analysis.rules.model import find_all
from iotrace.analysis.wait import cpus
from iotrace.analysis.wait.cpus import cpu_causes_ns, cpu_waits
from iotrace.analysis.wait.waits import CAUSES, Explained
from iotrace.session.names import KIND_ITEM, KIND_READ_PATH
from iotrace.sources.samples import parse_cpus
from iotrace.sources.session import Rank
from iotrace.sources.stolen_time import run_delays
from tests.support.results import unknown
from tests.support.rules import blamed_by
from tests.support.tables import waits_of
from tests.unit.test_production import spans


def worker(number: int, cpus: list[int], **known: Any) -> ProcessUse:
    return unknown(ProcessUse, pid=number + 1, role=f"worker {number}", cpus=cpus, **known)


def blamed(
    processes: list[ProcessUse],
    without_cpu_ms: float = 40.0,
    usable: int = 8,
    online: int = 8,
    variables: dict[str, str] | None = None,
    **host: float,
) -> list[Culprit]:
    """The culprits of a rank that waits 60 ms of steps of 100 for decoding."""
    main = unknown(ProcessUse, pid=0, role="main", cpus=[*range(usable)])
    if not any(each.role == "main" for each in processes):
        processes = [main, *processes]
    system = unknown(
        System,
        gpus=[],
        processes=processes,
        cpus_usable=[*range(usable)],
        cpus_online=online,
        host=unknown(HostUse, pressure_fraction={}, cgroup_pressure_fraction={}, **host),
    )
    wait = unknown(
        DataWait,
        raw_ms=60.0,
        files=[],
        causes_ms={"read": 6.0, "decode": 54.0},
        without_cpu_ms={"read": 0.0, "decode": without_cpu_ms},
    )
    report = unknown(
        RankReport, data_wait=wait, system=system, steps=unknown(Steps, mean_ms=100.0), file_groups=[]
    )
    facts = RankFacts(report=report, variables=variables or {})
    return culprits_of(find_all("rank", facts))


def test_workers_that_share_a_cpu_are_named_before_the_cause() -> None:
    (found,) = blamed([worker(number, [0]) for number in range(4)])
    assert (found.id, found.leads, found.wait_ms) == ("cpu-binding", True, 40.0)
    assert found.text == "4 workers share CPU 0: 40.0 of 54.0 ms decoding was queueing for a busy CPU"
    assert found.evidence["affinity"] == [0]
    assert found.remedy == "do not bind workers (os.sched_setaffinity): 8 CPUs are allowed"
    assert found.code == "IO302"


@pytest.mark.parametrize(
    ("processes", "ms"),
    [
        ([worker(0, [0]), worker(1, [1])], 40.0),  # each has a CPU of its own
        ([worker(number, [0]) for number in range(4)], 14.9),  # they sleep: slow storage
        ([worker(number, [*range(8)]) for number in range(4)], 40.0),  # not bound
    ],
)
def test_what_only_looks_like_a_binding_is_not_named(processes: list[ProcessUse], ms: float) -> None:
    assert blamed(processes, ms) == []


def test_the_remedy_is_of_who_bound_them() -> None:
    bound = [worker(number, [0]) for number in range(2)]
    main = unknown(ProcessUse, pid=0, role="main", cpus=[0])
    (found,) = blamed([main, *bound], variables={"OMP_PROC_BIND": "true"})
    assert found.text.startswith("2 workers and the training share CPU 0")
    assert found.remedy == "start the training unbound (unset OMP_PROC_BIND=true): it may use 8 CPUs"
    (found,) = blamed([main, *bound], usable=1, variables={"SLURM_CPUS_PER_TASK": "1"})
    assert found.remedy == "give the job 3 CPUs, it has 1: sbatch --cpus-per-task=3"


def test_what_nobody_can_change_is_told_without_a_remedy() -> None:
    free = [worker(number, [*range(8)]) for number in range(4)]
    (found,) = blamed(free, others_cpu_fraction=0.6, cpu_busy_fraction=0.99, cpu_saturated_fraction=0.9)
    assert (found.id, found.remedy) == ("neighbours", "")
    assert found.text.startswith("other programs took 60 % of the CPUs: 40.0 of 54.0 ms decoding")
    assert blamed(free, others_cpu_fraction=0.6, cpu_busy_fraction=0.7) == []
    (found,) = blamed(free, cpu_throttled_fraction=0.4, cpu_busy_fraction=0.1)
    assert found.id == "cpu-quota"
    (found,) = blamed([worker(number, [0, 1]) for number in range(4)], usable=2, online=2)
    assert (found.id, found.remedy) == ("too-few-cpus", "")


def test_threads_count_where_they_were_started() -> None:
    def with_threads(started: int) -> list[ProcessUse]:
        opened = {"library_threads": {"cv2": 8}, "threads_peak": started, "pool_busy_pct_mean": 60.0}
        return [worker(number, [*range(8)], **opened) for number in range(4)]

    (found,) = blamed(with_threads(11))
    assert found.text.startswith("4 workers started 32 threads of cv2 for 8 CPUs")
    assert found.remedy == "try cv2.setNumThreads(0) (worker_init_fn)"  # they sleep: fewer may gain nothing
    assert found.gain_ms_per_step is None
    assert blamed(with_threads(2)) == []


def test_lists_of_cpus() -> None:
    assert parse_cpus("0-2,8") == {0, 1, 2, 8}
    assert parse_cpus("") == parse_cpus("0-x") == parse_cpus("0-99999999999") == frozenset()


@pytest.mark.parametrize("delay_ns", [50, 80])  # the kernel's clocks may disagree: 30 of 80 ns it computed
def test_waits_for_a_cpu_are_charged_to_the_causes_as_the_wait_is(delay_ns: int) -> None:
    """Half of 100 ns is waited for: 80 in a read path (50 of them without a CPU), 20 behind it (10)."""
    table = spans(
        {"start_ns": 0, "duration_ns": 100, "cpu_ns": 40, "kind": KIND_ITEM, "run_delay_ns": delay_ns + 10},
        {
            "start_ns": 0,
            "duration_ns": 80,
            "kind": KIND_READ_PATH,
            "run_delay_ns": delay_ns,
            "cpu_ns": 30,
        },
    )
    delivery = Delivery(0, 7, 0, 0, 7, 50, 100, pid=7, taken_ns=0, prepared_ns=100)
    causes = {**dict.fromkeys(CAUSES, 0), "decode": 40, "transform": 10}
    waits = waits_of([Explained(delivery, causes, {}, ([0.0, 80.0, 20.0, 0.0, 0.0], {}))])
    process = SimpleNamespace(pid=7, spans=table, texts={}, outermost={})
    rank = cast(Rank, SimpleNamespace(main=process, processes=[process]))
    found = cpu_causes_ns(waits, cpu_waits(rank, waits))
    assert found == {"read": 0.0, "decode": 25.0, "transform": 5.0, "collate": 0.0}
    # A wait that holds what stages before made, too: its own thread waited no longer than it did.
    longer = waits_of(
        [Explained(delivery, {**causes, "transform": 900}, {}, ([0.0, 80.0, 20.0, 0.0, 0.0], {}))]
    )
    assert (cpu_causes_ns(longer, cpu_waits(rank, longer)) or {})["transform"] <= 10.0
    # Its own code computes for 16 of its 20 ns: it can have waited for the other 4, of which half count.
    table["cpu_ns"][0] = 30 + 16
    assert (cpu_causes_ns(waits, cpu_waits(rank, waits)) or {})["transform"] == 2.0
    table["run_delay_ns"] = -1
    assert cpu_causes_ns(waits, cpu_waits(rank, waits)) is None


def test_a_call_in_memory_on_threads_waits_for_nothing_but_a_cpu() -> None:
    table = spans(
        {"start_ns": 0, "duration_ns": 100, "cpu_ns": 40, "kind": KIND_ITEM, "run_delay_ns": 10},
        {
            "start_ns": 0,
            "duration_ns": 80,
            "cpu_ns": 30,
            "kind": KIND_READ_PATH,
            "run_delay_ns": -1,
            "name": 3,
        },
    )
    known: Any = SimpleNamespace(texts={3: "blosc2.decompress2"})
    assert run_delays(known, table).tolist() == [10, 50]
    delivery = Delivery(0, 7, 0, 0, 7, 50, 100, pid=7, taken_ns=0, prepared_ns=100)
    causes = {**dict.fromkeys(CAUSES, 0), "decode": 40, "transform": 10}
    waits = waits_of([Explained(delivery, causes, {}, ([0.0, 80.0, 20.0, 0.0, 0.0], {}))])
    process = SimpleNamespace(pid=7, spans=table, texts=known.texts, outermost={})
    rank = cast(Rank, SimpleNamespace(main=process, processes=[process]))
    found = cpu_causes_ns(waits, cpu_waits(rank, waits))
    assert found == {"read": 0.0, "decode": 25.0, "transform": 5.0, "collate": 0.0}
    table["major_faults"] = 1  # pages of what it inflates may come from storage
    assert run_delays(known, table).tolist() == [10, -1]
    other: Any = SimpleNamespace(texts={3: "duckdb.execute"})
    table["major_faults"] = 0
    assert run_delays(other, table).tolist() == [10, -1]


POOLED = {"threads_peak": 6, "library_threads": {"openblas": 4}}


def pooled(busy_pct: float | None) -> list[ProcessUse]:
    return [worker(number, [*range(8)], **POOLED, pool_busy_pct_mean=busy_pct) for number in range(4)]


def test_a_library_that_is_imported_alone_started_no_threads() -> None:
    assert [each.id for each in blamed(pooled(80.0))] == ["threads"]
    assert blamed(pooled(2.0)) == []
    assert blamed(pooled(None)) == []  # whether they worked was not sampled
    some = [*pooled(2.0)[:3], *pooled(None)[3:]]  # of a worker that hardly lived it is not known
    assert blamed(some) == []
    # Threads that fetch files for pyarrow do less than the worker itself, whatever BLAS may use.
    fetching = [replace(each, cpu_pct_mean=29.0, pool_delay_pct_mean=12.0) for each in pooled(20.5)]
    assert blamed(fetching) == []
    assert [each.id for each in blamed([replace(each, cpu_pct_mean=16.0) for each in fetching])] == [
        "threads"
    ]
    # On a busy host a thread of the agent queues for long, and hardly runs.
    assert blamed([replace(each, pool_delay_pct_mean=23.5) for each in pooled(24.3)]) == []
    assert [
        each.id for each in blamed([replace(each, pool_delay_pct_mean=68.0) for each in pooled(79.0)])
    ] == ["threads"]


@pytest.mark.parametrize(
    ("asleep", "delayed_pct", "busy_pct", "told"),
    [
        (0.8, 60.0, 70.0, True),
        (0.8, 20.0, 70.0, False),  # they have CPUs
        (0.8, 20.0, 22.0, False),  # it sleeps for something else: slow storage
        (0.3, 60.0, 70.0, False),
        (0.8, None, None, False),
    ],
)
def test_a_sample_that_sleeps_for_a_librarys_threads_waits_for_no_storage(
    monkeypatch: pytest.MonkeyPatch,
    asleep: float,
    delayed_pct: float | None,
    busy_pct: float | None,
    told: bool,
) -> None:
    processes = [
        worker(number, [*range(8)], **POOLED, pool_busy_pct_mean=busy_pct, pool_delay_pct_mean=delayed_pct)
        for number in range(4)
    ]
    system = unknown(System, gpus=[], processes=processes, cpus_usable=[*range(8)], cpus_online=8, host=None)
    wait = unknown(DataWait, raw_ms=60.0, causes_ms={"transform": 50.0})
    report = unknown(
        RankReport, data_wait=wait, system=system, steps=unknown(Steps, mean_ms=100.0), culprits=[]
    )
    monkeypatch.setattr(cpus, "samples_made", lambda *_: (asleep, 0.1, 0.0, 0.0))
    monkeypatch.setattr(cpus, "_making", lambda _: 1.0)
    analysis = cast(RankAnalysis, SimpleNamespace(source=object(), primary=None, kept=[1]))
    facts = {
        "undecoded": cpus.decoding_without_cpu(analysis, report),
        "asleep_for_pool": cpus.asleep_for_pool(analysis, report),
    }
    found = blamed_by("IO301", report, **facts)
    assert [each.id for each in found] == (["threads"] if told else [])
    if told:
        assert found[0].text == (
            "4 workers started 16 threads of openblas for 8 CPUs: "
            "transform 50.0 ms, 40.0 of it asleep for these"
        )
        assert found[0].leads


@pytest.mark.parametrize(
    ("library", "threaded", "delayed_pct", "busy_pct", "told"),
    [
        ("zarr", 0.9, 25.0, 30.0, True),
        ("zarr", 0.9, 10.0, 30.0, False),  # they have CPUs
        ("zarr", 0.9, 8.0, 10.0, False),  # they hardly work: slow storage
        ("zarr", 0.2, 25.0, 30.0, False),
        ("openblas", 0.9, 25.0, 30.0, False),  # whose threads work is not known
    ],
)
def test_zarrs_threads_that_find_no_cpu_decode_slowly(
    monkeypatch: pytest.MonkeyPatch,
    library: str,
    threaded: float,
    delayed_pct: float,
    busy_pct: float,
    told: bool,
) -> None:
    opened = {"threads_peak": 9, "library_threads": {library: 6}}
    processes = [
        worker(number, [0, 1], **opened, pool_busy_pct_mean=busy_pct, pool_delay_pct_mean=delayed_pct)
        for number in range(4)
    ]
    system = unknown(System, gpus=[], processes=processes, cpus_usable=[0, 1], cpus_online=2, host=None)
    wait = unknown(DataWait, raw_ms=60.0, causes_ms={"decode": 54.0, "transform": 0.0})
    report = unknown(
        RankReport, data_wait=wait, system=system, steps=unknown(Steps, mean_ms=100.0), culprits=[]
    )
    monkeypatch.setattr(cpus, "samples_made", lambda *_: (0.05, 0.05, threaded, 0.5))
    monkeypatch.setattr(cpus, "_making", lambda _: 1.0)
    analysis = cast(RankAnalysis, SimpleNamespace(source=object(), primary=None, kept=[1]))
    facts = {
        "undecoded": cpus.decoding_without_cpu(analysis, report),
        "asleep_for_pool": cpus.asleep_for_pool(analysis, report),
    }
    found = blamed_by("IO301", report, **facts)
    assert [each.id for each in found] == (["threads"] if told else [])
    if told:
        assert found[0].text == (
            "4 workers started 24 threads of zarr for 2 CPUs: "
            "decode 54.0 ms, 45.0 of it queueing for a busy CPU"
        )
        assert (found[0].leads, found[0].remedy) == (
            True,
            'try zarr.config.set({"async.concurrency": 1}) (worker_init_fn)',
        )
