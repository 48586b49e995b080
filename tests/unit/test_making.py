"""How batches are made: who shares the work, what first samples take, what collections of garbage take."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from iotrace.analysis.loop.deliveries import Delivery, LoaderRun
from iotrace.analysis.loop.hops import maker_key
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import RankReport
from iotrace.analysis.rules.facts.examples import fill
from iotrace.analysis.rules.facts.making import _draw_ms, _shared, making_of
from iotrace.analysis.storage.read_by_each import read_by_each
from iotrace.analysis.wait.file_costs import FileCosts, FileNames
from iotrace.analysis.wait.locks import Locked, spread
from iotrace.analysis.wait.production import PARTS
from iotrace.analysis.wait.turns import in_turns
from iotrace.analysis.wait.waits import CAUSES, Waits
from iotrace.session import names
from iotrace.session.names import KIND_ITEM
from iotrace.sources.records import IteratorStart
from iotrace.sources.session import open_session
from tests.support.growing import MS, SECOND, Growing
from tests.support.tables import deliveries_of

REPORT = fill(RankReport, {})
ABOUT = IteratorStart(iterator=0, loader=0, dataset="S", workers=4, epoch=0, generation=0, mono_ns=0)


def shared(*workers: int | None) -> tuple[int | None, float | None]:
    batches = [Delivery(0, number, 0, 0, number, 0, 1, worker=each) for number, each in enumerate(workers)]
    return _shared(LoaderRun(0, ABOUT, deliveries_of(batches)))


def test_workers_of_a_pool_have_no_part_of_the_data_each() -> None:
    about = SimpleNamespace(workers=2, iterable=True, wrapped=True)
    analysis: Any = SimpleNamespace(source=SimpleNamespace(description=about))
    assert read_by_each(analysis, None) is None


@pytest.mark.parametrize(
    ("looks_ms", "made_ms", "expected_ms"),
    [
        # Each look stands for the three items of its 50 ms: they wait for 50 of 60 ms.
        ([50, 0, 0, 50, 0, 0], [20] * 6, [16] * 6),
        # Waits that lie in the making of their items stay theirs.
        ([50, 0, 0, 50, 0, 0], [60] * 6, [50, 0, 0, 50, 0, 0]),
        # A long item has waits of its own, and takes none of the short ones'.
        ([900, 50, 0, 50, 0], [1000] + [25] * 4, [900] + [25] * 4),
        ([0, 0, 0], [20] * 3, [0] * 3),
    ],
)
def test_looks_at_threads_that_are_rarer_than_their_items_are_of_all_of_them(
    looks_ms: list[int], made_ms: list[int], expected_ms: list[int]
) -> None:
    found = spread(np.array(looks_ms) * 10**6, np.array(made_ms) * 10**6)
    assert (found // 10**6).tolist() == expected_ms


def test_how_many_workers_made_the_batches() -> None:
    assert shared(0, 1, 2, 3, 0, 1, 2, 3) == (4, 4.0)
    assert shared(0, 2, 0, 2) == (2, 2.0)
    assert shared(0, 0, 0, 1) == (2, pytest.approx(4 / 3))
    assert shared(None, None) == shared() == (None, None)


def judged(lengths_ms: Sequence[float], ends_ms: Sequence[float], workers: int = 3) -> bool | None:
    makers = np.arange(len(ends_ms)) % workers
    lengths, ends = (np.array(each) * MS for each in (lengths_ms, ends_ms))
    return in_turns(makers, lengths.astype(np.int64), ends.astype(np.int64))


def test_samples_that_never_end_soon_behind_one_of_another_worker_are_made_in_turns() -> None:
    ends = np.arange(120) * 12.0
    assert judged([12.0, 24.0, *[36.0] * 118], ends.tolist()) is True  # each holds the lock for 12 ms
    # Three that sleep for 36 ms each, begun when it came; and a third of that apart, as if they took turns.
    for phases, found in (((0.0, 5.0, 19.0), False), ((0.0, 0.1, 0.2), False), ((0.0, 12.0, 24.0), None)):
        apart = [36.0 * number + phase for number in range(40) for phase in phases]
        assert judged([36.0] * 120, apart) is found
    random = np.random.default_rng(0)
    lengths = random.lognormal(3.0, 0.6, 120)
    assert (
        judged(lengths.tolist(), np.concatenate([lengths[n::3].cumsum() for n in range(3)]).tolist())
        is not True
    )
    assert judged([1.0] * 120, (ends * 10).tolist()) is None  # they may hardly ever have been made at once
    assert judged([12.0] * 30, ends[:30].tolist()) is None  # too few
    assert judged([12.0] * 120, ends.tolist(), workers=1) is None


@pytest.mark.parametrize(
    ("apart_ms", "found"), [((0.0, 20.0), False), ((0.0, 75.0), None), ((0.0, 150.0), None)]
)
def test_of_few_samples_their_number_tells_that_they_are_made_at_once(
    apart_ms: tuple[float, float], found: bool | None
) -> None:
    round_ms = max(150.0, 2 * apart_ms[1])  # by two workers, each sample in 150 ms
    ends = [round_ms * number + phase for number in range(25) for phase in apart_ms]
    assert judged([150.0] * 50, ends, workers=2) is found


def made(
    tmp_path: Path, pauses: Sequence[tuple[int, int]] = (), looks: Sequence[dict[str, object]] = ()
) -> RankAnalysis:
    run = Growing(tmp_path)
    run.record(20)
    run.end()
    (records,) = tmp_path.glob(f"{names.PROCESSES}/{run._worker(0)}-*/{names.RECORDS}")
    with records.open("a") as file:
        for start_ns, end_ns in pauses:
            row = {"type": "pause", "pause": "collection", "tid": -1, "start_ns": start_ns, "end_ns": end_ns}
            file.write(json.dumps(row) + "\n")
        file.writelines(f"{json.dumps(look)}\n" for look in looks)
    session = open_session(tmp_path)
    return RankAnalysis(session, session.ranks[0])


def test_collections_in_the_making_of_batches_count_as_they_are_waited_for(
    tmp_path: Path,
) -> None:
    taken_ns = SECOND + 3 * 15 * MS
    pauses = [(taken_ns, taken_ns + 12 * MS), (taken_ns + 13 * MS, taken_ns + 14 * MS), (1, 20 * MS)]
    analysis = made(tmp_path, pauses)
    making = making_of(analysis, analysis.loaders[0], analysis.measured_waits, REPORT)
    # One lies before the first batch.
    assert (making.collections, making.collection_ms) == (2, 6.5)
    assert (making.full_share, making.objects) == (None, None)  # nobody looked at the collector
    waits = analysis.measured_waits
    own = waits[waits.deliveries["taken_ns"] == analysis.rank.main.clock.to_session_ns(taken_ns)]
    waited_ns = int(own.deliveries.wait_ns.sum()) - int(own.of_cause("transport").sum())
    assert making.collecting_ms == pytest.approx(waited_ns * 13 / 15 / len(analysis.kept) / 1e6)


@pytest.mark.parametrize(
    ("long_ms", "full", "share"),
    [
        # Lists that samples make: none is a full one, but perhaps one since the last look.
        (1, 0, 1 / 10),
        (8, 1, 9 / 17),  # objects that stay
        (1, 8, 9 / 10),
    ],
)
def test_no_more_than_the_longest_collections_were_full(
    tmp_path: Path, long_ms: int, full: int, share: float
) -> None:
    begun_ns = SECOND + 3 * 15 * MS
    lengths = [long_ms] + [1] * 9
    starts = [begun_ns + place * 15 * MS for place in range(10)]
    pauses = [(start, start + length * MS) for start, length in zip(starts, lengths, strict=True)]
    look = {"type": "collector", "enabled": True, "threshold": [700, 10, 10], "objects": 390_000, "frozen": 0}
    looks = [
        {**look, "mono_ns": begun_ns, "collections": [100, 10, 5]},
        {**look, "mono_ns": begun_ns + SECOND, "collections": [200, 20, 5 + full]},
    ]
    analysis = made(tmp_path, pauses, looks)
    making = making_of(analysis, analysis.loaders[0], analysis.measured_waits, REPORT)
    assert making.full_share == pytest.approx(share)
    assert (making.objects, making.frozen) == (390_000, 0)


def test_without_collections_and_later_passes_there_is_none(tmp_path: Path) -> None:
    analysis = made(tmp_path)
    making = making_of(analysis, analysis.loaders[0], analysis.measured_waits, REPORT)
    assert (making.collections, making.collection_ms, making.collecting_ms) == (0, None, 0.0)
    assert (making.first_item_ms, making.fill_ms, making.item_ms) == (None, 0.0, 15.0)
    assert (making.makers, making.sharing) == (1, 1.0)


def test_what_the_first_sample_of_a_later_pass_takes_longer_than_others(tmp_path: Path) -> None:
    analysis = made(tmp_path)
    worker = analysis.rank.workers[0]
    spans, lengths_ns = worker.spans, worker.spans["duration_ns"].copy()
    items = (spans["kind"] == KIND_ITEM).nonzero()[0]
    lengths_ns[items] = 1 * MS
    lengths_ns[items[10]] = 14 * MS
    spans = spans.changed(duration_ns=lengths_ns)
    rank = replace(analysis.rank, workers=[replace(worker, spans=spans)])
    analysis = RankAnalysis(analysis.session, rank)
    waits = analysis.measured_waits
    epochs = (waits.deliveries["index"] >= 10).astype("int64")  # from the tenth batch on a second pass
    waits = Waits(
        waits.deliveries.changed(epoch=epochs), waits.causes, waits.files, waits.made, waits.made_files
    )
    making = making_of(analysis, analysis.loaders[0], waits, REPORT)
    assert (making.first_item_ms, making.item_ms) == (14.0, 1.0)
    assert making.fill_ms > 0


def with_lengths(analysis: RankAnalysis, every_ms: int, long_ms: int, each: int) -> RankAnalysis:
    """The same, but its samples take `every_ms`, and of `each` one takes `long_ms`."""
    worker = analysis.rank.workers[0]
    items = worker.spans[worker.spans["kind"] == KIND_ITEM]
    lengths_ns = np.full(len(items), every_ms * MS)
    lengths_ns[::each] = long_ms * MS
    spans = items.changed(duration_ns=lengths_ns)
    return RankAnalysis(analysis.session, replace(analysis.rank, workers=[replace(worker, spans=spans)]))


def test_few_long_samples_are_told_from_the_others(tmp_path: Path) -> None:
    run = Growing(tmp_path)
    run.record(60)
    run.end()
    session = open_session(tmp_path)
    analysis = RankAnalysis(session, session.ranks[0])
    long = making_of(
        one := with_lengths(analysis, 1, 14, 10), one.loaders[0], one.measured_waits, REPORT
    ).long
    assert long is not None
    assert (long.long_ms, long.usual_ms) == (14.0, 1.0)
    assert long.count / long.of == pytest.approx(0.1, abs=0.02)
    assert long.of_batches == pytest.approx(long.count / long.of)  # one sample a batch
    assert long.wait_ms > 0
    for lengths in ((1, 4, 10), (1, 14, 3), (10, 60, 30)):  # not long, not few, not most of the time
        one = with_lengths(analysis, *lengths)
        assert making_of(one, one.loaders[0], one.measured_waits, REPORT).long is None


@pytest.mark.parametrize(
    ("sampling_ms", "draw_ms"),
    [
        ({0: 300, 10: 500}, 400.0),  # before the first batch of each pass
        ({0: 300, 10: 500, 4: 50}, 400.0),
        (dict.fromkeys(range(20), 20), None),  # before each batch
        ({0: 300, 10: 100, 4: 300}, None),
        ({}, None),
    ],
)
def test_samples_that_are_drawn_once_a_pass(sampling_ms: dict[int, int], draw_ms: float | None) -> None:
    batches = [Delivery(0, number, 0, number // 10, number % 10, number, 1) for number in range(20)]
    causes = np.zeros((20, len(CAUSES)), np.int64)
    for number, ms in sampling_ms.items():
        causes[number, CAUSES.index("sampling")] = ms * MS
    files = FileCosts.of(FileNames(), [])
    waits = Waits(deliveries_of(batches), causes, files, np.zeros((20, len(PARTS))), files)
    assert _draw_ms(waits) == draw_ms
    one_pass = replace_deliveries(waits, batches)
    assert _draw_ms(one_pass) is None


def replace_deliveries(waits: Waits, batches: Sequence[Delivery]) -> Waits:
    """The same waits, of one pass."""
    own = deliveries_of([replace(each, epoch=0, index=each.number) for each in batches])
    return Waits(own, waits.causes, waits.files, waits.made, waits.made_files)


def test_what_makers_wait_for_is_that_of_the_making_not_of_other_threads() -> None:
    """A thread sleeps at `monitor` for ever; the one that makes batches does at `pace`, and later elsewhere.

    Only what lies in the making counts.
    """
    batch = Delivery(0, 0, 0, 0, 0, 0, 100 * MS, inline_tid=7, taken_ns=0, prepared_ns=100 * MS)
    made = deliveries_of([batch, replace(batch, number=1, taken_ns=200 * MS, prepared_ns=300 * MS)])
    waits = [(1, 50, 900), (7, 50, 40), (7, 150, 500), (7, 250, 40)]
    maker, start_ns, waited_ns = (np.array(each, np.int64) for each in zip(*waits, strict=True))
    places = {"monitor": 900 * MS, "pace": 80 * MS, "later": 500 * MS}
    keys = maker_key(np.full(4, 1), maker)
    locked = Locked(keys, start_ns * MS, waited_ns * MS, 2, places, np.array([0, 1, 2, 1]))
    assert locked.where(made, 1) == {"pace": 80 * MS}
