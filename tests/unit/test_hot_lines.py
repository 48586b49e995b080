"""The line that most of some time is spent in, by samples of stacks: where one is, and where none is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from msgspec.structs import replace

from iotrace.analysis.loop.deliveries import Delivery
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import HotLine, LoaderResult
from iotrace.analysis.rules.facts.examples import fill
from iotrace.analysis.wait.hot_lines import Frame, Stack, hot_line, stack_samples
from iotrace.analysis.wait.loader_lines import with_hot_lines
from iotrace.session.names import KIND_ITEM
from iotrace.sources.paths import Paths
from iotrace.sources.processes import SPAN_DTYPE, Process
from iotrace.sources.records import LoopStacks, WorkerUp
from tests.support.tables import deliveries_of

MS = 1_000_000
PATHS = cast(Paths, SimpleNamespace(shown=lambda path: path.removeprefix("/p/")))
LOOP = Frame("/p/train.py", "main", 1, 20)
PANDAS = Frame("/v/lib/python3.11/site-packages/pandas/core/indexing.py", "_iLocIndexer.__getitem__", 5, 0)
RANDOM = Frame("/usr/lib/python3.11/random.py", "Random.sample", 9, 0)
FETCH = Frame("/v/lib/python3.11/site-packages/torch/utils/data/_utils/fetch.py", "fetch", 9, 0)
MODULE = Frame("/v/lib/python3.11/site-packages/torch/nn/modules/module.py", "Module._call_impl", 9, 0)


def item(line: int, *called: Frame) -> tuple[Frame, ...]:
    return FETCH, Frame("/p/data.py", "Rows.__getitem__", 8, line), *called


def helper(line: int, *called: Frame) -> tuple[Frame, ...]:
    return Frame("/p/data.py", "sampled", 30, line), *called


def found(*stacks: tuple[int, tuple[Frame, ...]], of_called: bool = True) -> HotLine | None:
    every = [Stack(LOOP, called) for count, called in stacks for _ in range(count)]
    return hot_line(every, PATHS, of_called=of_called)


@pytest.mark.parametrize(
    ("stacks", "said", "fraction"),
    [
        ([(9, item(10, PANDAS)), (1, item(11))], "data.py:10, in pandas's _iLocIndexer.__getitem__", 0.9),
        ([(9, item(10, RANDOM))], "data.py:10, in random's Random.sample", 1.0),
        ([(9, item(10)), (3, item(10, PANDAS))], "data.py:10", 1.0),  # mostly the line itself
        # One line of a function that the item calls, or that function where its lines share the time.
        ([(9, item(10, *helper(31)))], "data.py:31", 1.0),
        (
            [(5, item(10, *helper(31))), (5, item(10, *helper(32))), (5, item(10, *helper(33)))],
            "data.py:30",
            1.0,
        ),
        ([(9, item(10, MODULE))], "data.py:10", 1.0),  # a name that tells nothing
        (
            [(9, item(10, Frame("/p/data.py", "f.<locals>.<listcomp>", 10, 0)))],
            "data.py:10",
            1.0,
        ),
    ],
)
def test_the_innermost_line_that_holds_most(stacks: Any, said: str, fraction: float) -> None:
    hot = found(*stacks)
    assert hot is not None
    assert (hot.said, hot.fraction) == (said, pytest.approx(fraction))


def test_no_line_is_named_of_few_samples_or_where_none_holds_most() -> None:
    assert found((7, item(10))) is None
    assert found(*((3, item(line)) for line in range(10, 14))) is None
    assert found((9, (FETCH,))) is None  # an item that a library makes
    assert found() is None


def test_of_a_loop_its_own_line_counts() -> None:
    hot = found((9, (RANDOM,)), of_called=False)
    assert hot is not None
    assert hot.said == "train.py:20, in random's Random.sample"
    assert hot.beside("main (train.py:20)") == ", in random's Random.sample"
    assert hot.beside("train.py:20") == ", in random's Random.sample"  # the loop's own line, named already
    assert hot.beside("main (train.py:1)") == ", most of it at train.py:20, in random's Random.sample"


@pytest.mark.parametrize(
    ("called", "function", "said"),
    [
        (helper(31), "sampled", ", most of it in sampled (data.py:31)"),
        ((), "Rows.__getitem__", ", most of it at data.py:10"),  # which is named already
        # A function inside another one goes by its own name, a comprehension by that of the one that has it.
        (
            (Frame("/p/data.py", "Rows.__getitem__.<locals>.cut", 9, 12),),
            "cut",
            ", most of it in cut (data.py:12)",
        ),
        (
            (Frame("/p/data.py", "sampled.<locals>.<listcomp>", 9, 12),),
            "sampled",
            ", most of it in sampled (data.py:12)",
        ),
        ((Frame("/p/data.py", "<lambda>", 9, 12),), None, ", most of it at data.py:12"),
    ],
)
def test_the_function_that_holds_the_line_is_named_where_another_one_calls_it(
    called: tuple[Frame, ...], function: str | None, said: str
) -> None:
    hot = found((9, item(10, *called)))
    assert hot is not None
    assert (hot.function, hot.beside("Rows.__getitem__ (data.py:8)")) == (function, said)


def test_lines_of_a_function_that_shares_its_time_name_that_function() -> None:
    hot = found(*((4, item(10, *helper(line))) for line in (31, 32, 33)))
    assert hot is not None
    assert (hot.calls, hot.library) == (None, None)
    same = Frame("/p/data.py", "sampled", 30, 31)
    assert found((9, item(10, same, PANDAS)), (4, item(10))) == HotLine(
        line="data.py:31",
        function="sampled",
        calls=PANDAS.function,
        library="pandas",
        fraction=9 / 13,
        samples=13,
        calls_fraction=9 / 13,
    )


def test_other_lines_of_the_function_that_are_in_the_same_call_are_named() -> None:
    images = Frame("/v/lib/python3.11/site-packages/torch/w.py", "SummaryWriter.add_images", 9, 0)
    others = Frame(images.file, "SummaryWriter.add_histogram", 40, 0)
    hot = found((10, item(22, images)), (6, item(23, images)), (3, item(24, others)), (1, item(25, images)))
    assert hot is not None
    assert (hot.line, hot.also, hot.lines) == ("data.py:22", ["data.py:23"], "data.py:22 and 23")
    assert (hot.fraction, hot.calls_fraction) == (0.5, 0.8)
    alone = found((16, item(22, images)), (4, item(24, others)))
    assert alone is not None
    assert (alone.also, alone.lines, alone.calls_fraction) == ([], "data.py:22", 0.8)


def worker(
    pid: int,
    stack: list[tuple[int, int]],
    spans_ms: list[tuple[int, int]],
    asked: bool = True,
    up_ms: int | None = None,
) -> Process:
    """A process whose thread was sampled each ms for 40 ms in one stack, and made items at these times.

    It asked for its first index at `up_ms`.
    """
    up = [] if up_ms is None else [WorkerUp(mono_ns=up_ms * MS)]
    record = LoopStacks(
        tid=pid,
        times_ns=[at * MS for at in range(40)],
        numbers=[0] * 40,
        path=[(0, 0), (1, 20)],
        stacks=[stack],
        functions=[
            ("/v/lib/python3.11/multiprocessing/process.py", "run", 1),
            ("/p/train.py", "main", 1),
            ("/p/data.py", "Rows.__getitem__", 8),
        ],
        asked=asked,
    )
    spans = np.full(len(spans_ms), -1, SPAN_DTYPE)
    for row, (begin, end) in zip(spans, spans_ms, strict=True):
        row["start_ns"], row["duration_ns"], row["kind"], row["tid"] = (
            begin * MS,
            (end - begin) * MS,
            KIND_ITEM,
            pid,
        )
    return cast(
        Process,
        SimpleNamespace(
            pid=pid,
            spans=spans,
            outermost={},
            of_type=lambda kind: {LoopStacks: [record], WorkerUp: up}.get(kind, []),
            clock=SimpleNamespace(times_to_session_ns=np.asarray, to_session_ns=int),
        ),
    )


def test_samples_of_workers_count_while_they_make_items_of_that_loader() -> None:
    own = worker(5, [(2, 10), (0, 0), (1, 20)], [(0, 15), (20, 35)])
    other = worker(6, [(2, 12), (0, 0), (1, 20)], [(0, 40)])
    batches = [
        Delivery(0, at, 0, 0, at, 0, 1, pid=5, taken_ns=at * 20 * MS, prepared_ns=(at * 20 + 20) * MS)
        for at in range(2)
    ]
    run: Any = SimpleNamespace(deliveries=deliveries_of(batches))
    analysis: Any = SimpleNamespace(
        primary=run,
        source=None,
        rank=SimpleNamespace(main=SimpleNamespace(pid=1), processes=[own, other], workers=[own, other]),
        session=SimpleNamespace(paths=PATHS),
    )
    loader = with_hot_lines(cast(RankAnalysis, analysis), run, fill(LoaderResult, {}))
    assert loader.item_hot == HotLine(
        line="data.py:10",
        function="Rows.__getitem__",
        fraction=1.0,
        samples=30,
        held_fraction=1.0,
        passes_fraction=1.0,
    )
    assert loader.collate_hot is None
    assert len(stack_samples(own, 6).times) == 0  # of another thread
    # Samples that could not be taken at any time show no line.
    unasked = worker(5, [(2, 10), (0, 0), (1, 20)], [(0, 15), (20, 35)], asked=False)
    analysis.rank.processes = [unasked]
    assert with_hot_lines(cast(RankAnalysis, analysis), run, fill(LoaderResult, {})).item_hot is None
    # A pool's threads make them: what the sampled thread makes meanwhile is something else.
    analysis.rank.processes = [own, other]
    for maker, known in ((5, True), (7, False)):
        made_by = run.deliveries.changed(maker_tid=np.full(len(batches), maker))
        by_threads: Any = SimpleNamespace(deliveries=made_by)
        analysis.primary = by_threads
        hot = with_hot_lines(cast(RankAnalysis, analysis), by_threads, fill(LoaderResult, {})).item_hot
        assert (hot is not None) == known


@pytest.mark.parametrize(
    ("stack", "startup_ms", "told"),
    [
        ([(2, 10), (0, 0), (1, 20)], 24.0, ("Rows.__getitem__ (data.py:8)", 20.0)),
        ([(2, 10), (0, 0), (1, 20)], 60.0, (None, None)),  # most of the start passes before: imports
        ([(2, 10), (0, 0), (1, 20)], 0.0, (None, None)),
        ([(0, 0), (1, 20)], 24.0, (None, None)),  # in no function of the program
    ],
)
def test_what_workers_do_before_they_ask_for_an_index(
    stack: list[tuple[int, int]], startup_ms: float, told: tuple[str | None, float | None]
) -> None:
    own = [worker(pid, stack, [], up_ms=20) for pid in (5, 6)]
    batches = [Delivery(0, at, 0, 0, at, 0, 1, pid=5 + at, taken_ns=0, prepared_ns=MS) for at in range(2)]
    run: Any = SimpleNamespace(deliveries=deliveries_of(batches))
    waits = SimpleNamespace(of_cause=lambda _: np.array([0.0, startup_ms * MS]))
    analysis: Any = SimpleNamespace(
        primary=run,
        source=None,
        rank=SimpleNamespace(main=SimpleNamespace(pid=1), processes=own, workers=own),
        session=SimpleNamespace(paths=PATHS),
        explained=lambda _: waits,
    )
    loader = with_hot_lines(cast(RankAnalysis, analysis), run, fill(LoaderResult, {}))
    assert (loader.start_code, loader.start_code_ms) == told


def test_the_line_of_a_sampler_is_looked_for_while_the_loop_waits() -> None:
    record = LoopStacks(
        tid=7,
        times_ns=[at * MS for at in range(40)],
        numbers=[0] * 20 + [1] * 20,
        path=[(0, 20)],
        stacks=[[(2, 10), (1, 0), (0, 20)], [(2, 12), (0, 20)]],
        functions=[
            ("/p/train.py", "main", 1),
            ("/v/lib/python3.11/site-packages/torch/utils/data/dataloader.py", "_Iter._next_index", 1),
            ("/p/data.py", "Negatives.__iter__", 8),
        ],
        asked=True,
    )
    main = SimpleNamespace(
        pid=1,
        of_type=lambda kind: [record] if kind is LoopStacks else [],
        clock=SimpleNamespace(times_to_session_ns=np.asarray),
    )
    analysis: Any = SimpleNamespace(
        primary=None,
        loop=SimpleNamespace(thread=SimpleNamespace(tid=7)),
        rank=SimpleNamespace(main=main, processes=[], workers=[]),
        session=SimpleNamespace(paths=PATHS),
    )
    batch = Delivery(0, 0, 0, 0, 0, 0, 40 * MS, sampled_ns=20 * MS)
    for sampled_ns, line in ((20 * MS, "data.py:10"), (None, None)):
        own = deliveries_of([replace(batch, sampled_ns=sampled_ns)])
        loader = with_hot_lines(analysis, cast(Any, SimpleNamespace(deliveries=own)), fill(LoaderResult, {}))
        assert (loader.sampling_hot and loader.sampling_hot.line) == line
        assert loader.sampling_hot is None or loader.sampling_hot.samples == 20


@pytest.mark.parametrize(
    ("first_ms", "later", "told"),
    [
        (40, 1, ("table.cube", 35.0)),
        (40, 0, (None, None)),  # every sample reads it
        (4, 1, (None, None)),  # the first sample takes no longer than others
    ],
)
def test_the_file_that_first_samples_alone_work_with(
    first_ms: int, later: int, told: tuple[str | None, float | None]
) -> None:
    """As a table that each new worker parses: it reads it, line by line, and then its own photo."""
    calls = SimpleNamespace(
        files=["/p/table.cube", "/p/photo.jpg"],
        file=np.array([0, 0, 1, later, 1]),
        start_ns=np.array([2, 20, 37, first_ms + 1, first_ms + 6]) * MS,
    )
    starts = [(0, first_ms), *((first_ms + at, first_ms + at + 4) for at in range(0, 40, 5))]
    own = worker(5, [(0, 0)], starts)
    batches = [Delivery(0, 0, 0, 0, 0, 0, 1, pid=5, taken_ns=0, prepared_ns=99 * MS)]
    run: Any = SimpleNamespace(deliveries=deliveries_of(batches))
    analysis: Any = SimpleNamespace(
        primary=run,
        source=None,
        rank=SimpleNamespace(main=SimpleNamespace(pid=1), processes=[own], workers=[own]),
        session=SimpleNamespace(paths=PATHS, calls_of=lambda _: calls),
    )
    loader = with_hot_lines(analysis, run, fill(LoaderResult, {}))
    assert (loader.first_file, loader.first_file_ms) == told
    assert ("in its first sample, in no other" in loader.start_said) == (told[0] is not None)


def test_a_comprehension_is_no_function_that_the_loop_calls() -> None:
    comprehension = Frame("/p/train.py", "main.<locals>.<genexpr>", 20, 20)
    edit = Frame("/p/wer.py", "edit", 22, 27)
    assert Stack(LOOP, (comprehension, edit)).own == edit
    assert Stack(LOOP, (comprehension,)).own is None
    hot = found((9, (comprehension, edit)))
    assert hot is not None
    assert hot.line == "wer.py:27"


def test_what_a_line_calls_of_a_library_that_does_not_train() -> None:
    step = Frame("/p/train.py", "Lit.training_step", 20, 30)
    metric = Frame("/v/lib/python3.11/site-packages/torchmetrics/metric.py", "M.<locals>.wrapped_func", 9, 0)
    matching = Frame("/v/lib/python3.11/site-packages/scipy/optimize/_lsap.py", "linear_sum_assignment", 9, 0)
    named = [Stack(None, (step, called)).library_at(PATHS) for called in (metric, matching, MODULE)]
    assert named == ["torchmetrics (train.py:30)", "scipy's linear_sum_assignment (train.py:30)", ""]
    compute = metric._replace(function="Metric._wrap_compute.<locals>.wrapped_func")
    assert Stack(None, (step, compute)).library_at(PATHS) == "torchmetrics's Metric.compute (train.py:30)"
    assert Stack(None, (metric, step)).library_at(PATHS) == ""  # the program computes
    assert Stack(LOOP, (matching,)).library_at(PATHS) == "scipy's linear_sum_assignment (train.py:20)"


def test_lines_that_samples_cannot_tell_apart_are_named_together() -> None:
    def late(since: int, line: int) -> tuple[Frame, ...]:
        return FETCH, Frame("/p/data.py", "Rows.__getitem__", 8, line, since)

    def lines(*stacks: tuple[int, tuple[Frame, ...]]) -> tuple[str, float] | None:
        hot = found(*stacks)
        return None if hot is None else (hot.line, hot.fraction)

    assert lines((6, late(10, 11)), (3, item(11, PANDAS)), (1, item(13))) == ("data.py:10-11", 0.9)
    assert lines((4, late(10, 11)), (4, late(11, 13)), (2, item(15))) == ("data.py:10-13", 0.8)
    # One such sample among many on time tells nothing of the others.
    assert lines((1, late(10, 11)), (19, item(11))) == ("data.py:11", 1.0)


def test_what_a_late_sample_had_just_called_took_no_time() -> None:
    record = LoopStacks(
        tid=5,
        times_ns=[MS],
        numbers=[0],
        path=[],
        stacks=[[(1, 0), (0, 11)]],
        functions=[("/p/data.py", "get", 8), (RANDOM.file, "Random.sample", 9)],
        since=[10],
        asked=True,
    )
    process: Any = SimpleNamespace(
        of_type=lambda kind: [record], clock=SimpleNamespace(times_to_session_ns=np.asarray)
    )
    assert stack_samples(process, 5).stacks[0].called == (Frame("/p/data.py", "get", 8, 11, 10),)


def test_what_stands_in_for_a_librarys_function_is_not_named() -> None:
    pil = "/v/lib/python3.11/site-packages/PIL/Image.py"
    functions = [("/p/data.py", "load", 1), (pil, "_timed.<locals>.timed_call", 9), (pil, "open", 5)]
    record = LoopStacks(
        tid=7,
        times_ns=[*range(9)],
        numbers=[0] * 9,
        path=[],
        stacks=[[(2, 0), (1, 0), (0, 12)]],
        functions=functions,
        asked=True,
    )
    clock = SimpleNamespace(times_to_session_ns=lambda times: times)
    process = cast(Process, SimpleNamespace(of_type=lambda _: [record], clock=clock))
    hot = hot_line(stack_samples(process, 7).each, PATHS, of_called=True)
    assert hot is not None
    assert hot.said == "data.py:12, in PIL's open"


def test_a_comprehension_of_a_library_goes_by_the_function_that_has_it() -> None:
    pool = "/v/lib/python3.11/multiprocessing/pool.py"
    chunks = Frame(pool, "Pool.imap.<locals>.<genexpr>", 423, 0)
    hot = hot_line([Stack(LOOP, (chunks,))] * 9, PATHS, of_called=False)
    assert hot is not None
    assert (hot.calls, hot.library) == ("Pool.imap", "multiprocessing")
    other = Stack(LOOP, (Frame(pool, "<genexpr>", 423, 0),))
    nameless = hot_line([other] * 9, PATHS, of_called=False)
    assert nameless is not None
    assert (nameless.calls, nameless.library) == (None, None)


def test_a_function_whose_lines_share_the_time_is_named_by_its_first_line() -> None:
    """Where a line of the item calls it: the item's own function is known, and tells nothing."""
    spread = [(4, item(10, *helper(line))) for line in (31, 32, 33)]
    hot = found(*spread)
    assert hot is not None
    assert (hot.placed("Rows.__getitem__"), hot.fraction) == ("sampled (data.py:30)", 1.0)
    own = [(4, item(line)) for line in (10, 11, 12)]
    assert found(*own) is None
    assert found(*spread[:1], *((4, item(line)) for line in (11, 12, 13))) is None  # it has a quarter
    stage = [Stack(LOOP, helper(line)) for line in (31, 32, 33) for _ in range(4)]
    assert hot_line(stage, PATHS, of_called=True) is None
    of_stage = hot_line(stage, PATHS, of_called=True, is_known=False)
    assert of_stage is not None
    assert of_stage.placed("main") == "sampled (data.py:30)"
