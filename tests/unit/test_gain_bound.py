"""No fix wins more than its bound: held against a simulated loader, without what the fix is about."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from msgspec.structs import replace

from iotrace.analysis.intervals import split_exactly
from iotrace.analysis.loop.deliveries import Delivery
from iotrace.analysis.rules.facts.loader import LoaderFacts
from iotrace.analysis.wait.data_wait import QUICKER
from iotrace.analysis.wait.gain_bound import FILES, RESIZED, Replayed, saved_ns
from iotrace.analysis.wait.production import PARTS
from iotrace.analysis.wait.waits import CAUSES, Explained, Waits
from iotrace.sources.records import IteratorStart
from tests.support.rules import recommend
from tests.support.tables import deliveries_of, split_wait, waits_of

MS = 1_000_000


class Work(msgspec.Struct, frozen=True):
    """Batches to be made by `workers`: times in ns, one of each for a batch; `parts` as `PARTS` has them."""

    parts: list[list[int]]
    transport: list[int]
    unpack: list[int]  # what the consumer itself does with a batch, inside its ask
    compute: list[int]
    workers: int = 2
    prefetch: int = 2
    epoch: int = 10
    startup: int = 0
    restart: int = 0  # at the end of an epoch
    in_order: bool = True


def simulate(work: Work) -> tuple[list[Delivery], int]:
    """The deliveries of a loader in these circumstances, and when all is done."""
    now, deliveries = 0, []
    free: dict[int, int] = {}
    batches = range(len(work.parts))
    for epoch, begin in enumerate(range(0, len(batches), work.epoch)):
        own = batches[begin : begin + work.epoch]
        if epoch:
            now += work.restart
        up = now + work.startup
        waiting: dict[int, Delivery] = {}
        pending = list(own)

        def send(
            number: int, worker: int, at: int, up: int, epoch: int, waiting: dict[int, Delivery]
        ) -> None:
            key = worker + 100 * epoch
            taken = max(at, free.get(key, 0), up)
            free[key] = taken + sum(work.parts[number])
            waiting[number] = Delivery(
                loader=0, number=number, iterator=epoch, epoch=epoch, index=number, wait_start_ns=0,
                delivered_ns=0, worker=worker, pid=1 + key, sent_ns=at, up_ns=up, taken_ns=taken,
                prepared_ns=free[key],
            )  # fmt: skip

        for place in range(min(work.workers * work.prefetch, len(own))):
            send(pending.pop(0), place % work.workers, now, up, epoch, waiting)
        for _ in own:
            arrivals = {n: (each.prepared_ns or 0) + work.transport[n] for n, each in waiting.items()}
            number = min(arrivals) if work.in_order else min(arrivals, key=lambda n: (arrivals[n], n))
            asked, now = now, max(now + work.unpack[number], arrivals[number])
            batch = waiting.pop(number)
            if pending:
                send(pending.pop(0), batch.worker or 0, now, up, epoch, waiting)
            deliveries.append(replace(batch, number=len(deliveries), wait_start_ns=asked, delivered_ns=now))
            now += work.compute[number]
    return deliveries, now


def explained(work: Work, deliveries: list[Delivery]) -> Waits:
    """The waits by cause, as the analysis splits them, and what each batch was made of."""
    found = []
    for each in deliveries:
        parts = [float(part) for part in work.parts[each.index]]
        startup, queued, making, transport = split_wait(each)
        causes = dict.fromkeys(CAUSES, 0) | {"startup": startup, "queued": queued, "transport": transport}
        split = split_exactly(np.array([making]), np.array([parts]))[0].tolist()
        for name, part in zip(PARTS, split, strict=True):
            causes[name] += part
        by_file = {f"{each.index % 3}.h5": [parts[0], parts[1], 0.0]}
        found.append(Explained(each, causes, {}, (parts, by_file)))
    return waits_of(found)


def drawn(draw: random.Random, **known: Any) -> Work:
    """Work of stages that vary in most ways; one batch in some is much slower."""
    number = draw.choice([12, 40])
    typical = [draw.choice([0, 1, 5, 30]) * MS for _ in range(4)]
    rare = draw.choice([0, 0, 200 * MS])

    def time(mean: int) -> int:
        return int(mean * draw.choice([0.5, 1.0, 1.5]) + draw.randrange(MS // 100))

    return Work(
        **{
            "parts": [
                [*map(time, typical), time(MS)] if draw.random() > 0.1 else [time(MS), rare, 0, 0, time(MS)]
                for _ in range(number)
            ],
            "transport": [time(draw.choice([0, 2 * MS])) for _ in range(number)],
            "unpack": [time(draw.choice([0, MS // 10])) for _ in range(number)],
            "compute": [time(draw.choice([0, 5, 25]) * MS) for _ in range(number)],
            "workers": draw.choice([1, 2, 3, 5]),
            "prefetch": draw.choice([1, 2, 4]),
            "epoch": draw.choice([6, 40]),
            "startup": draw.choice([0, 50 * MS]),
            "restart": draw.choice([0, 20 * MS]),
            **known,
        }
    )


SEEDS = range(200)


def replayed(waits: Waits, delays_ns: npt.NDArray[np.float64] | None = None, makers: int = 1) -> Replayed:
    """All batches are measured, each in a step of its own."""
    known_ns = np.zeros(len(waits)) if delays_ns is None else delays_ns
    return Replayed(waits, np.arange(len(waits)), len(waits), known_ns, makers=makers)


@pytest.mark.parametrize("cause", ["read", "decode", "transform", "collate", "transport", "queued"])
def test_no_stage_that_is_gone_saves_more_than_its_bound(cause: str) -> None:
    won_something = exact = 0
    for seed in SEEDS:
        work = drawn(random.Random(seed))
        deliveries, end = simulate(work)
        waits = explained(work, deliveries)
        without: dict[str, Any] = {"prefetch": 10_000} if cause == "queued" else {}
        if cause == "transport":
            without = {"transport": [0] * len(deliveries)}
        elif cause in PARTS:
            part = PARTS.index(cause)
            without = {"parts": [[*own[:part], 0, *own[part + 1 :]] for own in work.parts]}
        won_ms = (end - simulate(replace(work, **without))[1]) / len(deliveries) / MS
        bound_ms = replayed(waits).gain_ms(cause)
        assert won_ms <= bound_ms + 1e-6, seed
        assert bound_ms <= sum(wait.delivery.wait_ns for wait in waits) / len(waits) / MS + 1e-6
        won_something += won_ms > 0.1
        exact += bound_ms - won_ms <= 0.1 + 0.05 * won_ms
    assert won_something > len(SEEDS) / 10
    assert exact > len(SEEDS) / 2  # a bound, and no idle one


def test_no_file_that_costs_nothing_saves_more_than_its_bound() -> None:
    for seed in SEEDS:
        work = drawn(random.Random(seed))
        deliveries, end = simulate(work)
        gone = [[*(own[:2] if index % 3 else (0, 0)), *own[2:]] for index, own in enumerate(work.parts)]
        won_ms = (end - simulate(replace(work, parts=gone))[1]) / len(deliveries) / MS
        waits = explained(work, deliveries)
        of_file = replayed(waits).gain_ms("files:0.h5")
        assert won_ms <= of_file + 1e-6, seed
        assert of_file <= replayed(waits).gain_ms(FILES) + 1e-6


@pytest.mark.parametrize("gone", ["decode", "transform", FILES, RESIZED])
def test_no_loader_whose_rest_gets_quicker_saves_more_than_the_most(gone: str) -> None:
    parts = {FILES: ("read", "decode"), RESIZED: ("read", "decode", "transform")}.get(gone, (gone,))
    spared = {PARTS.index(part) for part in parts}
    for seed in SEEDS:
        draw = random.Random(seed)
        work = drawn(draw)
        deliveries, end = simulate(work)
        queued = draw.choice([0.0, 0.3, 0.9])  # of each part: a wait for a CPU
        whole = sum(map(sum, work.parts))
        share = sum(own[number] for own in work.parts for number in spared) / whole
        # Each other worker let it wait as long as it ran, and a quarter more: so much is spared, or less.
        behind = min(queued, (1 + QUICKER) * share * (work.workers - 1) * (1 - queued))
        ran = (1 - queued) * (1 - draw.choice([0.0, QUICKER]) * share)
        quicker = ran + queued - draw.choice([0.0, 1.0]) * behind
        left = [
            [0 if number in spared else int(part * quicker) + 1 for number, part in enumerate(own)]
            for own in work.parts
        ]
        sooner = [int(draw.random() * each) for each in work.transport]  # the interpreter's lock is free
        won_ms = (end - simulate(replace(work, parts=left, transport=sooner))[1]) / len(deliveries) / MS
        whole_ns = np.array([float(sum(own)) for own in work.parts])
        found = replayed(explained(work, deliveries), queued * whole_ns, work.workers)
        most_ms = found.most_ms(gone)
        assert most_ms is not None
        assert won_ms <= most_ms + 1e-6, seed
        assert most_ms >= found.gain_ms(gone) - 1e-6


def test_a_stage_that_is_little_of_the_making_ends_little_of_its_waits() -> None:
    """A worker that is never idle makes 88 of 100 ms as before, however long it queues behind others."""
    making = Work(
        parts=[[0, 12 * MS, 88 * MS, 0, 0]] * 40,
        transport=[0] * 40,
        unpack=[0] * 40,
        compute=[MS] * 40,
        workers=1,
        epoch=40,
    )
    waits = explained(making, simulate(making)[0])
    found = replayed(waits, np.full(len(waits), 50.0 * MS))
    most_ms = found.most_ms("decode")
    assert found.spared(found.less_ns("decode")) == pytest.approx(0.12)
    assert most_ms is not None
    assert 12 * 0.99 <= most_ms <= 12 + QUICKER * 0.12 * 50 + 1e-6
    # Of two, each queued behind the other, which decodes no longer either.
    other_ms = replayed(waits, np.full(len(waits), 50.0 * MS), makers=2).most_ms("decode")
    assert other_ms is not None
    assert most_ms < other_ms <= most_ms + (1 + QUICKER) * 0.12 * 50 + 1e-6


def test_nothing_is_bounded_where_nobody_counted_the_waits_for_a_cpu() -> None:
    work = drawn(random.Random(1))
    waits = explained(work, simulate(work)[0])
    assert replayed(waits, np.full(len(waits), np.nan)).most_ms("decode") is None
    assert replayed(waits, np.zeros(len(waits))).most_ms("decode") is not None


def test_what_is_left_as_it_was_saves_nothing() -> None:
    for seed in SEEDS:
        deliveries, _ = simulate(drawn(random.Random(seed)))
        assert not saved_ns(deliveries_of(deliveries)).any()
        # Sessions recorded before indices were, and batches that nobody saw being made.
        unsent = deliveries_of(replace(each, sent_ns=None) for each in deliveries)
        assert not saved_ns(unsent).any()
    unknown = [replace(each, taken_ns=None) for each in deliveries]
    assert saved_ns(deliveries_of(unknown)).tolist() == [each.wait_ns for each in deliveries]


def test_a_loader_without_workers_loses_just_the_stage() -> None:
    work = drawn(random.Random(1), workers=1)
    inline, now = [], 0
    for number, parts in enumerate(work.parts):
        end = now + sum(parts)
        inline.append(Delivery(0, number, 0, 0, number, now, end, taken_ns=now, prepared_ns=end))
        now = end + work.compute[number]
    decode = [float(parts[1]) for parts in work.parts]
    assert saved_ns(deliveries_of(inline), np.array(decode)).tolist() == decode


def advised_ms(work: Work, **known: Any) -> dict[str, float]:
    """The gain of each advice on a loader whose figures are those of the simulated one."""
    deliveries, end = simulate(work)
    waits = explained(work, deliveries)
    steps = len(waits)
    made_ms = sum(map(sum, work.parts)) / steps / MS
    about = IteratorStart(
        iterator=0,
        loader=0,
        dataset="",
        workers=work.workers,
        epoch=0,
        generation=0,
        mono_ns=0,
        persistent_workers=False,
        in_order=True,
    )
    facts = LoaderFacts(
        about=about,
        step_ms=end / steps / MS,
        wait_ms=sum(wait.delivery.wait_ns for wait in waits) / steps / MS,
        causes_ms={cause: sum(wait.causes[cause] for wait in waits) / steps / MS for cause in CAUSES},
        epochs=-(-steps // work.epoch),
        production_ms=made_ms,
        made_ms=made_ms,
        restart_ms=work.restart * (-(-steps // work.epoch) - 1) / steps / MS,
        unmade_fraction=1.0,
        behind_ready_ms=end / steps / MS,
        core_free=True,
        cpus=8,
        batches=steps,
        **known,
    )
    return {item.id: item.gain_ms_per_step or 0.0 for item in recommend([facts])}


def test_no_other_setting_wins_more_than_its_bound() -> None:
    fired: Counter[str] = Counter()
    for seed in range(200):
        work = drawn(random.Random(seed))
        changes: dict[str, dict[str, Any]] = {
            "waiting-in-order": {"in_order": False},
            "startup-bound": {"startup": 0, "restart": 0},
            "too-few-workers": {"workers": 7},
        }
        gains = advised_ms(work, on_cpu=0.0, asleep=0.0)
        end = simulate(work)[1]
        for name, change in changes.items():
            if name not in gains:
                continue
            won = end - simulate(replace(work, **change))[1]
            assert won / len(work.parts) / MS <= gains[name] + 1e-6, (seed, name)
            fired[name] += won > 0
    assert set(fired) == {"waiting-in-order", "startup-bound", "too-few-workers"}
