"""When a sampler chooses an epoch's first samples, as an iterator is made: records made up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from iotrace.analysis.loop.deliveries import Delivery, LoaderRun, Pass
from iotrace.analysis.loop.iterations import Iteration, Iterations
from iotrace.analysis.results import LoopCode, SamplerWork
from iotrace.analysis.wait import sampler_time
from iotrace.analysis.wait.data_builders import with_builders
from iotrace.analysis.wait.hot_lines import Frame, Stack, StackSamples
from iotrace.analysis.wait.loop_code import CodeSamples
from iotrace.analysis.wait.sampler_time import drawn, samplers_of
from iotrace.sources.records import IteratorMade, IteratorStart, LoopStacks, WorkerUp
from tests.support.tables import deliveries_of

MS, TID = 1_000_000, 7
TORCH = "/v/lib/python3.11/site-packages/torch/utils/data/dataloader.py"
SAMPLER = "/p/train.py"
PATHS: Any = SimpleNamespace(shown=lambda path: path.rpartition("/")[2])
ASKS = [(0, 0), (1, 0), (2, 70), (3, 40)]  # `iter(loader)`, `_next_index`, the sampler's `__iter__`, length
WAITS = [(0, 0), (4, 0)]  # `iter(loader)`, for the workers' answers
FUNCTIONS = [
    (TORCH, "DataLoader.__iter__", 1),
    (TORCH, "_BaseDataLoaderIter._next_index", 2),
    (SAMPLER, "Buckets.__iter__", 60),
    (SAMPLER, "length", 38),
    (TORCH, "_MultiProcessingDataLoaderIter._try_get_data", 3),
]
EPOCH_MS, MADE_MS, SENT_MS, UP_MS = 1000, 310, 300, 50


def run_of(
    asks: int, *, persistent: bool = True, up_ms: int = UP_MS, files: int = 0, epochs: int = 3
) -> tuple[Any, Iterations]:
    """Epochs of 1 s, the iterator made for 310 ms, its index sent at 300; the stack is sampled ten times.

    `asks` of these ask the sampler.
    """
    about: dict[str, Any] = {"loader": 0, "dataset": "Rows", "workers": 2, "persistent_workers": persistent}
    records: list[Any] = []
    deliveries, passes = [], []
    times: list[int] = []
    for epoch in range(epochs):
        begin, iterator = EPOCH_MS * epoch, 0 if persistent else epoch
        generation = epoch if persistent else 0
        start = IteratorStart(
            iterator=iterator,
            epoch=epoch,
            generation=generation,
            mono_ns=(begin + 1) * MS,
            pids=[1, 2],
            **about,
        )
        records.append(start)
        records.append(
            IteratorMade(iterator=iterator, tid=TID, start_ns=begin * MS, duration_ns=MADE_MS * MS)
        )
        deliveries.append(
            Delivery(
                0,
                epoch,
                iterator,
                epoch,
                0,
                (begin + MADE_MS) * MS,
                (begin + 350) * MS,
                TID,
                sent_ns=(begin + SENT_MS) * MS,
            )
        )
        passes.append(Pass((begin + 1) * MS, (begin + MADE_MS) * MS, (begin + 900) * MS, 1, None))
        times += [] if not epoch else [begin + 15 + 28 * at for at in range(10)]
    own = deliveries_of(deliveries)
    loader = LoaderRun(0, records[0], own)
    iterations = Iterations(
        [
            Iteration(loader, each.iterator, one, each, number > 0)
            for number, (each, one) in enumerate(zip(deliveries, passes, strict=True))
        ],
        np.zeros(epochs, np.bool_),
        np.empty((0, 5), np.int64),
    )
    records.append(
        LoopStacks(
            tid=TID,
            times_ns=[at * MS for at in times],
            numbers=[0 if number % 10 < asks else 1 for number in range(len(times))],
            path=[],
            stacks=[ASKS[::-1], WAITS[::-1]],
            functions=FUNCTIONS,
            asked=True,
        )
    )
    clock = SimpleNamespace(to_session_ns=int, times_to_session_ns=np.asarray)
    reads = [(EPOCH_MS * epoch + 20) * MS for epoch in range(epochs) for _ in range(files)]
    calls: Any = SimpleNamespace(
        names=["pread64"],
        name=np.zeros(len(reads), np.int64),
        tid=np.full(len(reads), TID),
        file=np.arange(len(reads)),
        start_ns=np.array(reads, np.int64),
    )
    calls.where = lambda keep: SimpleNamespace(file=calls.file[keep], start_ns=calls.start_ns[keep])
    workers = [
        SimpleNamespace(
            pid=pid,
            clock=clock,
            of_type=lambda kind: [WorkerUp(mono_ns=up_ms * MS)] if kind is WorkerUp else [],
        )
        for pid in (1, 2)
    ]
    main = SimpleNamespace(
        clock=clock, of_type=lambda kind: [each for each in records if isinstance(each, kind)]
    )
    analysis = SimpleNamespace(
        rank=SimpleNamespace(main=main, workers=workers),
        loop=SimpleNamespace(steps=[0], thread=SimpleNamespace(tid=TID)),
        session=SimpleNamespace(posix_on=True, calls_of=lambda _: calls, paths=PATHS),
        loaders=[loader],
    )
    return analysis, iterations


@pytest.mark.parametrize(("asks", "share"), [(10, 1.0), (5, 0.5), (0, 0.0)])
def test_of_kept_workers_the_share_of_the_samples_is_the_samplers(asks: int, share: float) -> None:
    analysis, iterations = run_of(asks)
    times = drawn(analysis, iterations)
    later = times[times[:, 2] > 0]
    assert (later[:, 1] - later[:, 0]).tolist() == [share * SENT_MS * MS] * (2 if share else 0)
    # The first epoch begins when its workers have asked for work.
    assert times[times[:, 2] == 0].tolist() == [[UP_MS * MS, SENT_MS * MS, 0, 0]]


def test_while_new_workers_are_not_up_they_may_be_what_takes_the_time() -> None:
    analysis, iterations = run_of(0, persistent=False, up_ms=SENT_MS, epochs=1)
    assert not len(drawn(analysis, iterations))


def work_of(monkeypatch: pytest.MonkeyPatch, asks: int, **more: Any) -> SamplerWork | None:
    analysis, iterations = run_of(asks, **more)
    monkeypatch.setattr(sampler_time, "iterations_of", lambda _: iterations)
    return samplers_of(analysis)[0].get(0)


@pytest.mark.parametrize(("files", "said"), [(80, ": it reads 80 files in the main process"), (1, "")])
def test_what_a_sampler_does_is_said_with_its_functions_and_files(
    monkeypatch: pytest.MonkeyPatch, files: int, said: str
) -> None:
    work = work_of(monkeypatch, 10, files=files)
    assert work is not None
    assert (work.passes, work.ms, work.files) == (2, float(SENT_MS), float(files))
    takes = (
        "Buckets.__iter__ (train.py:60) takes 300 ms before each epoch, most of it in length (train.py:38)"
    )
    assert work.said == takes + said


def test_what_waits_for_workers_or_makes_its_first_iterator_is_no_sampler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert work_of(monkeypatch, 0, files=80) is None
    assert work_of(monkeypatch, 10, files=80, epochs=1) is None


def test_of_later_new_workers_samples_tell_what_the_sampler_did_while_they_started() -> None:
    analysis, iterations = run_of(10, persistent=False, up_ms=SENT_MS)
    times = drawn(analysis, iterations)
    assert times[:, 2].tolist() == [1, 2]
    assert (times[:, 1] - times[:, 0]).tolist() == [(SENT_MS - 1) * MS] * 2


@pytest.mark.parametrize(
    ("function", "called", "builds"),
    [
        ("rebuilt (train.py:9)", "Rows.__init__", "Rows"),
        ("Birds.train_dataloader (train.py:9)", "scan", ""),
        ("plot (train.py:9)", "Rows.__getitem__", None),  # it only looks at samples
        ("validate (train.py:9)", "Other.__init__", None),
    ],
)
def test_what_builds_a_loaders_dataset_is_known(function: str, called: str, builds: str | None) -> None:
    analysis, _ = run_of(10)
    stack = Stack(None, (Frame(SAMPLER, function.partition(" (")[0], 9, 12), Frame(SAMPLER, called, 20, 22)))
    times = np.arange(20) * MS
    numbers = np.zeros(20, np.int64)
    samples = CodeSamples(times, [function], numbers, StackSamples(times, [stack], numbers))
    known: dict[str, Any] = {
        "function": function,
        "seconds": 2.0,
        "samples": 20,
        "ms_per_step": 9.0,
        "loop_fraction": 0.3,
    }
    codes = [LoopCode(count=4, **known), LoopCode(**known)]
    assert [each.builds for each in with_builders(analysis, samples, codes)] == [builds, None]
