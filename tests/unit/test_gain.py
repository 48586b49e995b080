"""The replay of recorded batches through the model of DataLoader, and when nothing is predicted."""

from __future__ import annotations

import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from iotrace.analysis.gain import gain as gains
from iotrace.analysis.gain.gain import Gain, gain_of, less
from iotrace.analysis.gain.pipeline import Epoch, Pipeline, replay
from iotrace.analysis.gain.recorded import Recorded, Withheld, as_it_was
from iotrace.analysis.results import GONE, HALVED, DataWait, FileCost, HostUse, LoaderWait, System
from iotrace.analysis.wait.production import PARTS
from tests.support.results import unknown
from tests.support.tables import waits_of
from tests.unit.test_gain_bound import Work, drawn, simulate

MS = 1e6


def pipeline(count: int = 40, **known: Any) -> Pipeline:
    """Batches alike: 20 ms asleep and 10 ms of computing with two workers; 5 ms idle, 5 ms of compute."""
    costs = {"blocked_ns": 20.0, "cpu_ns": 10.0, "latency_ns": 0.0, "service_ns": 0.0}
    costs |= {"idle_ns": 5.0, "compute_ns": 5.0}
    columns = {name: np.full(count, known.pop(name, value) * MS) for name, value in costs.items()}
    settings = {"workers": 2, "prefetch": 2, "in_order": True, "pinned": False, "cores": 8.0, "threads": 1.0}
    epochs = (Epoch(0, count, 0.0, 0.0),)
    return Pipeline(**{**settings, "epochs": epochs, **columns, **known})


def step_ms(pipe: Pipeline) -> float:
    """The time between deliveries once the queue has settled."""
    return float(np.diff(replay(pipe).delivered_ns)[10:-10].mean()) / MS


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({}, 15.0),  # two workers make a batch of 30 ms each
        ({"workers": 1}, 30.0),
        ({"workers": 4}, 10.0),  # the consumer's own time
        ({"workers": 0}, 40.0),  # made between two steps
        ({"workers": 4, "service_ns": 4.0}, 14.0),  # receiving is work of the consumer, not a delay
        ({"workers": 4, "latency_ns": 4.0}, 10.0),  # the way is none
        ({"workers": 4, "service_ns": 4.0, "pinned": True}, 10.0),  # a thread receives meanwhile
        ({"workers": 4, "service_ns": 12.0, "pinned": True}, 12.0),
        ({"cores": 1.0, "workers": 4, "blocked_ns": 0.0, "idle_ns": 0.0}, 15.0),  # 10 + 5 ms on a core
        ({"cores": 2.0, "workers": 4, "compute_ns": 10.0, "threads": 2.0, "idle_ns": 0.0}, 15.0),
    ],
)
def test_what_the_model_gives(known: dict[str, Any], expected: float) -> None:
    assert step_ms(pipeline(**known)) == pytest.approx(expected, rel=0.02)


def test_others_take_their_share_of_the_cores() -> None:
    busy = pipeline(cores=2.0, workers=1, blocked_ns=0.0, cpu_ns=10.0, compute_ns=0.0, idle_ns=0.0)
    assert step_ms(busy) == pytest.approx(10.0)
    assert step_ms(replace(busy, foreign=3.0)) == pytest.approx(20.0)  # one of four tasks on two cores


def test_one_slow_batch_holds_up_those_behind_it_in_order_only() -> None:
    blocked = np.full(40, 20 * MS)
    blocked[::8] = 300 * MS
    waits = {
        in_order: replay(replace(pipeline(in_order=in_order, workers=4), blocked_ns=blocked)).wait_ns.sum()
        for in_order in (True, False)
    }
    assert waits[False] < 0.8 * waits[True]


def test_each_pass_starts_workers_anew() -> None:
    epochs = tuple(Epoch(first, first + 10, 5 * MS, 50 * MS, 7 * MS) for first in range(0, 40, 10))
    found = replay(replace(pipeline(), epochs=epochs))
    assert found.asked_ns[0] == 5 * MS
    assert found.wait_ns[::10] == pytest.approx(75 * MS)
    assert found.asked_ns[10] - found.delivered_ns[9] == pytest.approx((10 + 7 + 5) * MS)


def test_against_a_simulated_loader() -> None:
    for seed in range(60):
        work = drawn(random.Random(seed), unpack=[0] * 40, epoch=1000, startup=0)
        count = len(work.parts)
        pipe = pipeline(
            count, workers=work.workers, prefetch=work.prefetch, compute_ns=0.0, cpu_ns=0.0, cores=1e6
        )
        pipe = replace(
            pipe,
            blocked_ns=np.array([sum(parts) for parts in work.parts], np.float64),
            latency_ns=np.array(work.transport, np.float64),
            idle_ns=np.array(work.compute, np.float64),
        )
        ordered = msgspec.structs.replace(work, unpack=[0] * count)
        expected = [each.delivered_ns for each in _in_order(ordered)]
        assert replay(pipe).delivered_ns == pytest.approx(expected), seed


def _in_order(work: Work) -> list[Any]:
    """Deliver in order of the indices: the oracle takes what comes first, which is that one."""
    return simulate(work)[0]


# ----------------------------------------------------------------------------- what may be told


def recorded(**known: Any) -> Recorded:
    """A run that the model reproduces: the transform sleeps 20 ms a batch, decoding computes 10 ms."""
    pipe = known.pop("pipeline", pipeline())
    count = len(pipe)
    parts = np.zeros((count, len(PARTS)))
    parts[:, PARTS.index("transform")] = pipe.blocked_ns
    parts[:, PARTS.index("decode")] = pipe.cpu_ns
    defaults = {
        "waits": waits_of([]),
        "measured": np.arange(count) >= 2,
        "wait_ns": replay(pipe).wait_ns,
        "made_ns": pipe.blocked_ns + pipe.cpu_ns,
        "parts_ns": parts,
        "delay_ns": np.zeros(count),
        "held_ns": np.zeros(count),
    }
    return Recorded(pipeline=pipe, **{**defaults, **known})


def told(
    monkeypatch: pytest.MonkeyPatch,
    found: Recorded,
    others: float | None = 0.0,
    storage: int = 0,
    batch_bytes: int = 1000,
    fraction: float = 0.4,
    world_size: int | None = None,
    in_turns: bool | None = None,
    by_loader: Sequence[LoaderWait] = (),
    files: Sequence[FileCost] = (),
) -> Gain:
    """What is told of a run with the steps that the model gives."""
    host = unknown(HostUse, others_cpu_fraction=others, pressure_fraction={}, cgroup_pressure_fraction={})
    uses = [SimpleNamespace(storage_read_bytes=storage)]
    system: Any = SimpleNamespace(cpus=int(found.pipeline.cores), host=host, processes=uses)
    wait = unknown(
        DataWait,
        causes_ms={"transform": 4.0, "decode": 2.0},
        files=list(files),
        by_loader=list(by_loader),
        worst_batches=[],
        raw_wait_fraction=fraction,
        raw_ms=6.0,
    )
    durations = np.diff(replay(found.pipeline).delivered_ns)

    class Kept(SimpleNamespace):
        def __len__(self) -> int:
            return len(durations)

    sizes = np.full(len(found.pipeline), batch_bytes)
    source = SimpleNamespace(deliveries=_Sizes(sizes))
    rank = SimpleNamespace(world_size=world_size)
    analysis: Any = SimpleNamespace(
        kept=Kept(duration_ns=durations), source=source, rank=rank, primary=SimpleNamespace(number=0)
    )
    monkeypatch.setattr(gains, "recorded", lambda *_: found)
    monkeypatch.setattr(gains, "take_turns", lambda *_: in_turns)
    return gain_of(analysis, system, wait)


class _Sizes:
    def __init__(self, sizes: Any) -> None:
        self.sizes = sizes

    def known(self, _: str) -> Any:
        return np.ones(len(self.sizes), np.bool_)

    def __getitem__(self, _: str) -> Any:
        return self.sizes


def row(found: Gain, name: str, change: str = GONE) -> Any:
    return next(
        each for each in found.rows if each.id == name and each.change in (change, name.split("=")[-1])
    )


def test_a_change_is_told_with_its_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    found = told(monkeypatch, recorded())
    assert found.withheld is None
    assert found.error_pct == pytest.approx(0.0)
    gone = row(found, "transform")
    assert gone.predicted_ms_per_step == pytest.approx(10.0, rel=0.05)
    assert gone.interval_ms[0] <= gone.predicted_ms_per_step <= gone.interval_ms[1]
    assert gone.speedup == pytest.approx(1.5, rel=0.05)
    assert row(found, "transform", HALVED).predicted_ms_per_step == pytest.approx(10.0, rel=0.05)
    assert row(found, "num_workers=4").predicted_ms_per_step == pytest.approx(10.0, rel=0.05)
    assert abs(row(found, "prefetch_factor=4").gain_ms_per_step) < 0.3


def test_many_files_that_cost_little_each_are_asked_about_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fix of all of them has the gain of that row: both screens say the same."""
    each = FileCost(path="a.tar", ms=0.1, read_ms=0.0, decode_ms=0.1, transform_ms=0.0)
    found = told(monkeypatch, recorded(), files=[each])
    together, decode = row(found, "files"), row(found, "decode")
    assert together.predicted_ms_per_step == pytest.approx(decode.predicted_ms_per_step)
    assert not any(each.id.startswith("files:") for each in found.rows)


def test_the_part_of_a_batch_that_goes_takes_its_sleep_or_its_computing() -> None:
    found = recorded()
    without = less(found, {"decode": found.parts_ns[:, PARTS.index("decode")]})
    assert without.cpu_ns == pytest.approx(0.0)
    assert without.blocked_ns == pytest.approx(found.pipeline.blocked_ns)
    half = less(found, {"transform": found.parts_ns[:, PARTS.index("transform")]}, 0.5)
    assert half.cpu_ns == pytest.approx(found.pipeline.cpu_ns)
    assert half.blocked_ns == pytest.approx(10 * MS)


def test_a_wait_for_the_interpreters_lock_ends_with_the_computing(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = pipeline(workers=1, blocked_ns=0.0, cpu_ns=30.0, latency_ns=6.0)
    found = recorded(pipeline=pipe, held_ns=pipe.latency_ns)
    assert (found.pipeline.latency_ns == 6 * MS).all()
    decode = found.parts_ns[:, PARTS.index("decode")]
    for share, latency_ms in ((0.0, 6.0), (0.5, 6.0), (0.9, 3.0), (1.0, 0.0)):
        without = less(found, {"decode": decode}, share)
        assert without.latency_ns == pytest.approx(latency_ms * MS)
    gone = row(told(monkeypatch, found), "decode")
    assert gone.predicted_ms_per_step == pytest.approx(10.0, rel=0.05)
    assert gone.interval_ms[1] > 16.0  # it may be the way after all


def test_silent_where_the_model_misses_the_run_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    own = recorded()
    found = told(monkeypatch, replace(own, wait_ns=1.2 * own.wait_ns))
    assert "the model misses the run itself" in (found.withheld or "")
    assert not found.rows
    assert told(monkeypatch, replace(own, wait_ns=1.05 * own.wait_ns)).withheld is None


def queued(delay_ms: float = 5.0) -> Recorded:
    """A run whose samples queued for a CPU while decoding."""
    own = recorded()
    delay_ns = np.full(len(own.pipeline), delay_ms * MS)
    parts = own.parts_ns.copy()
    parts[:, PARTS.index("decode")] += delay_ns
    found = replace(own, delay_ns=delay_ns, made_ns=own.made_ns + delay_ns, parts_ns=parts)
    return replace(found, wait_ns=replay(as_it_was(found).pipeline).wait_ns)


def test_beside_others_a_prediction_holds_with_and_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet, busy = told(monkeypatch, recorded()), told(monkeypatch, queued(), others=0.5)
    assert (busy.withheld, busy.error_pct) == (None, pytest.approx(0.0, abs=1e-6))
    for change in (GONE, HALVED):
        alone, both = row(quiet, "transform", change), row(busy, "transform", change)
        assert both.interval_ms[0] <= alone.predicted_ms_per_step <= both.interval_ms[1]
        assert both.interval_ms[0] <= both.predicted_ms_per_step <= both.interval_ms[1]
    # What more workers get of busy CPUs was not measured.
    assert row(quiet, "num_workers=4").withheld is None
    assert "other programs keep the CPUs busy" in row(busy, "num_workers=4").withheld


def test_nobody_knows_of_others_or_they_took_nothing_that_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(monkeypatch, recorded(), others=None).withheld is None
    asleep = recorded(pipeline=pipeline(cpu_ns=1.0))
    alone, beside = (row(told(monkeypatch, asleep, others=share), "transform") for share in (0.0, 0.2))
    assert beside.interval_ms == pytest.approx(alone.interval_ms, rel=0.05)


def test_silent_where_there_is_nothing_to_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    found = told(monkeypatch, recorded(), fraction=0.02)
    assert found.withheld == "2 % of a step waits for data: there is nothing to gain"


def test_silent_on_one_of_several_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "another one may hold up" in (told(monkeypatch, recorded(), world_size=2).withheld or "")


def test_silent_where_the_records_do_not_suffice(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Recorded:
        raise Withheld("another thread takes the batches")

    monkeypatch.setattr(gains, "recorded", refuse)
    kept = type("Kept", (), {"__len__": lambda _: 5})()
    wait = unknown(DataWait, causes_ms={}, files=[], by_loader=[], worst_batches=[], raw_wait_fraction=0.5)
    analysis: Any = SimpleNamespace(kept=kept, rank=SimpleNamespace(world_size=1), primary=None)
    assert gain_of(analysis, unknown(System, gpus=[], processes=[]), wait).withheld == (
        "another thread takes the batches"
    )


def test_silent_on_a_change_that_would_fill_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    own = recorded(pipeline=pipeline(cores=2.0, cpu_ns=15.0, blocked_ns=15.0))
    found = told(monkeypatch, own)
    assert "over 80 % of the CPUs" in row(found, "num_workers=4").withheld
    assert row(found, "decode").withheld is None


def test_silent_where_storage_or_memory_would_be_asked_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    found = told(monkeypatch, recorded(), storage=400 << 20)
    assert "storage" in row(found, "num_workers=4").withheld
    assert row(found, "prefetch_factor=4").withheld is None
    found = told(monkeypatch, recorded(), batch_bytes=30 << 20)
    assert "memory" in row(found, "num_workers=4").withheld


def test_silent_on_workers_where_there_was_none(monkeypatch: pytest.MonkeyPatch) -> None:
    found = told(monkeypatch, recorded(pipeline=pipeline(workers=0)))
    assert "no worker made a batch" in row(found, "num_workers=1").withheld
    assert row(found, "transform").predicted_ms_per_step == pytest.approx(20.0, rel=0.05)


def test_silent_on_workers_that_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    found = told(monkeypatch, recorded(), in_turns=True)
    assert "in turns" in row(found, "num_workers=4").withheld
    assert row(found, "transform").withheld is None
    computing = recorded(
        pipeline=pipeline(cores=16.0, cpu_ns=20.0, blocked_ns=10.0)
    )  # no lock: they take turns on a CPU
    assert row(told(monkeypatch, computing, in_turns=True), "num_workers=4").withheld is None


def test_silent_where_the_loop_waits_for_several_loaders(monkeypatch: pytest.MonkeyPatch) -> None:
    for other_ms, is_told in ((0.1, True), (3.0, False)):
        waits = [LoaderWait(loader=0, raw_ms=3.0), LoaderWait(loader=1, raw_ms=other_ms)]
        found = told(monkeypatch, recorded(), by_loader=waits)
        assert (found.withheld is None) is is_told
