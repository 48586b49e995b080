"""Code of the loop by samples of its stack: what is named, what recurs; evaluations that no loader feeds."""

from __future__ import annotations

import gc
import queue
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from iotrace.agent.dataloader.worker import _watch_number
from iotrace.agent.pools import callers
from iotrace.agent.recording.loop_stacks import LoopStacks
from iotrace.analysis.intervals import Times, union
from iotrace.analysis.loop.cuts import Cuts, Rounds, explains
from iotrace.analysis.loop.deliveries import Deliveries, LoaderRun
from iotrace.analysis.loop.unfed import Called, unfed_evaluations
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import HotLine, LoopCode
from iotrace.analysis.rules.own_code import _faster
from iotrace.analysis.wait import loop_code as loop_code_module
from iotrace.analysis.wait.feeding import feeding_of
from iotrace.analysis.wait.loop_code import CodeSamples, code_of_loop, code_samples, joined, loop_code
from iotrace.analysis.wait.loop_events import Events
from iotrace.session.names import (
    BACKWARD,
    FORWARD,
    FORWARD_NO_GRAD,
    KIND_READ_PATH,
    LOCKED_ROW,
    PEER_AT,
    SLEEP_AT,
)
from iotrace.sources.processes import SPAN_DTYPE
from iotrace.sources.records import LoopStacks as Recorded, TorchWindow
from iotrace.sources.rows import DTYPES
from tests.support.results import unknown
from tests.support.tables import deliveries_of

MS = 1_000_000
TID = 7
NOTHING = union(np.empty(0, np.int64), np.empty(0, np.int64))
STEPS = np.arange(0, 5001 * MS, 100 * MS)  # 50 steps of 100 ms


def samples(names: dict[str, list[int]]) -> CodeSamples:
    """Samples at some ms, by name."""
    rows = sorted((at, number) for number, times in enumerate(names.values()) for at in times)
    times, numbers = np.array(rows, np.int64).reshape(-1, 2).T
    return CodeSamples(times * MS, [*names], numbers)


def divided(*args: Any, **more: Any) -> list[LoopCode]:
    return loop_code(*args, **more).code


def test_code_of_each_step_has_its_share_of_the_samples() -> None:
    found = divided(samples({"a": [*range(10, 5000, 50)], "b": [*range(20, 5000, 200)]}), NOTHING, STEPS)
    assert [each.function for each in found] == ["a", "b"]
    assert found[0].seconds == pytest.approx(4.0)
    assert found[0].ms_per_step == pytest.approx(80.0)
    assert [each.count for each in found] == [None, None]


def test_time_that_has_another_name_is_not_divided() -> None:
    busy = union(np.array([0]), np.array([2500 * MS]))
    (found,) = divided(samples({"a": [*range(10, 5000, 50)]}), busy, STEPS)
    assert found.seconds == pytest.approx(2.5)
    assert found.samples == 50


def test_what_is_called_now_and_then_recurs_and_goes_on_behind_the_last_step() -> None:
    now_and_then = [at for start in (1000, 3000, 5001) for at in range(start, start + 90, 10)]
    own = samples({"a": [*range(5, 5000, 50)], "log": now_and_then})
    log = next(each for each in divided(own, NOTHING, STEPS) if each.function == "log")
    assert (log.count, log.every_steps, log.recurs, log.samples) == (3, 20.0, True, 27)
    assert "3 times, every 20 steps" in log.said
    assert loop_code(own, NOTHING, STEPS).recurring.tolist() == [1000 * MS, 3000 * MS]


def test_samples_that_end_early_stand_for_no_later_steps() -> None:
    """As where sampling failed: what is found is the least that there may be."""
    own = samples(
        {
            "a": [*range(5, 2000, 50)],
            "mine": [at for start in (100, 1100) for at in range(start, start + 90, 10)],
        }
    )
    mine = next(each for each in divided(own, NOTHING, STEPS) if each.function == "mine")
    assert (mine.count, mine.every_steps, mine.least) == (2, 10.0, True)
    assert mine.seconds < 2.0 * 18 / 40
    assert "took at least" in mine.said
    assert "at least 2 times" in mine.said
    whole = samples({"a": [*range(5, 5000, 50)], "mine": [*range(100, 190, 10), *range(1100, 1190, 10)]})
    assert not any(each.least for each in divided(whole, NOTHING, STEPS))


def test_a_first_call_that_takes_nearly_all_does_not_recur() -> None:
    compiled = [*range(101, 199), *range(301, 304), 650, 4050]
    own = samples({"a": [*range(5, 5000, 50)], "train_step": compiled})
    step = next(each for each in divided(own, NOTHING, STEPS) if each.function == "train_step")
    assert (step.count, step.every_steps, step.recurs) == (1, None, False)
    own = samples({"a": [*range(5, 5000, 50)], "save": [*range(101, 150), *range(3101, 3130)]})
    assert next(each for each in divided(own, NOTHING, STEPS) if each.function == "save").recurs


def test_what_comes_again_in_the_next_step_does_not_recur() -> None:
    """A line of each step, which single samples miss where a step is short."""
    long = [
        at
        for step in (10, 11, 12, 30, 31, 32, 33, 60, 61, 62)
        for at in range(step * 100, step * 100 + 90, 10)
    ]
    own = samples({"a": [*range(5, 10000, 50)], "main": long})
    steps = np.arange(101) * 100 * MS
    main = next(each for each in divided(own, NOTHING, steps) if each.function == "main")
    assert (main.count, main.every_steps, main.recurs) == (None, None, False)


def test_single_samples_of_many_steps_are_chance() -> None:
    own = samples({"a": [*range(5, 5000, 50)], "b": [*range(20, 1600, 100)]})
    assert not any(each.recurs for each in divided(own, NOTHING, STEPS))


def test_a_library_that_is_called_within_a_pass_is_told_beside_the_rest() -> None:
    """It has the share of all samples; the rest of the pass has none of its own."""
    every = samples({"a": [*range(10, 5000, 50)]})
    busy = union(np.array([0]), np.array([5000 * MS]))
    within = samples({"torchmetrics (train.py:30)": [*range(10, 5000, 200)]})
    (found,) = divided(every, busy, STEPS, within=within)
    assert (found.function, found.within, found.hot) == ("torchmetrics (train.py:30)", True, None)
    assert found.ms_per_step == pytest.approx(25.0)


def test_what_lies_between_a_batch_and_its_forward_pass_is_known() -> None:
    """Where a pass of another model, or none, comes first it prepares no batch."""
    delivered, forward = STEPS[:-1] + 10 * MS, STEPS[:-1] + 50 * MS
    before = loop_code_module._before_forward(delivered, forward, forward)
    own = samples({"sample": [*range(20, 5000, 50)][::2], "log": [*range(90, 5000, 100)]})
    found = {each.function: each.before_fraction for each in divided(own, NOTHING, STEPS, before=before)}
    assert found == {"sample": 1.0, "log": 0.0}
    backward = np.sort(np.concatenate([forward, STEPS[:-1] + 15 * MS]))
    assert len(loop_code_module._before_forward(delivered, forward, backward)[0]) == 0
    assert loop_code_module._before_forward(delivered[:0], forward, forward) is None
    assert divided(own, NOTHING, STEPS)[0].before_fraction is None


def test_few_samples_name_nothing() -> None:
    assert divided(samples({"a": [1, 2, 3]}), NOTHING, STEPS) == []


FUNCTIONS = [("/p/train.py", "<module>", 1), ("/p/train.py", "main", 20), ("/l/torch.py", "backward", 5)]
FUNCTIONS += [("/p/data.py", "Images.__getitem__", 9), ("/p/data.py", "load", 4)]


def analysed(stacks: list[list[tuple[int, int]]], **more: Any) -> RankAnalysis:
    """A rank whose thread was sampled once a ms, in each of `stacks` in turn."""
    record = Recorded(
        tid=TID,
        times_ns=[at * MS for at in range(len(stacks))],
        numbers=[*range(len(stacks))],
        path=[(2, 0), (1, 30), (0, 80)],
        stacks=stacks,
        functions=FUNCTIONS,
        asked=True,
    )
    main = SimpleNamespace(
        of_type=lambda kind: [record] if kind is Recorded else [],
        clock=SimpleNamespace(times_to_session_ns=lambda times: times),
        **{"rows": lambda kind: np.zeros(0, DTYPES[kind]), **more.pop("main", {})},
    )
    thread = SimpleNamespace(tid=TID, **more.pop("thread", {}))
    paths = SimpleNamespace(shown=lambda path: path.removeprefix("/p/"))
    known = {"session": SimpleNamespace(paths=paths), "rank": SimpleNamespace(main=main)}
    loop = SimpleNamespace(thread=thread, **more.pop("loop", {}))
    inputs = SimpleNamespace(asleep={})
    return cast(RankAnalysis, SimpleNamespace(loop=loop, inputs=inputs, **known, **more))


@pytest.mark.parametrize(
    ("stack", "name"),
    [
        ([(4, 6), (3, 11), (1, 25), (0, 80)], "Images.__getitem__ (data.py:9)"),
        ([(2, 0), (1, 31), (0, 80)], "main (train.py:31)"),
        ([(0, 81)], "train.py:81"),
        ([(2, 0)], None),
    ],
)
def test_a_stack_is_named_where_it_leaves_the_path(stack: list[tuple[int, int]], name: str | None) -> None:
    found = code_samples(analysed([stack]))
    assert [*found.names] == ([] if name is None else [name])
    assert found.numbers.tolist() == [-1 if name is None else 0]


def test_waits_in_collectives_and_iotraces_own_profiler_are_no_code_of_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A line in which the thread waits for another rank's evaluation; and the same, where it works there."""
    made = SimpleNamespace(spans=np.zeros((0, 2), np.int64))
    monkeypatch.setattr(loop_code_module, "iterations_of", lambda _: made)
    monkeypatch.setattr(loop_code_module, "_awaiting", lambda _: NOTHING)
    steps = {"start_ns": np.arange(0, 1000, 10) * MS, "end_ns": np.arange(10, 1010, 10) * MS}

    def code(*collectives_ms: tuple[int, int], windows: Sequence[TorchWindow] = ()) -> list[str]:
        starts, ends = np.array(collectives_ms, np.int64).reshape(-1, 2).T * MS
        analysis = analysed(
            [[(1, 31), (0, 80)]] * 1000,
            main={"texts": {}},
            thread={"asked": Deliveries.joined([]), "handed": Deliveries.joined([])},
            loop={"steps": steps},
            phase_spans=np.zeros(0, SPAN_DTYPE),
            collectives=(starts, ends),
            primary=None,
        )
        of_type = analysis.rank.main.of_type
        analysis.rank.main.of_type = lambda kind: [*windows] if kind is TorchWindow else of_type(kind)
        return [each.function for each in code_of_loop(analysis, code_samples(analysis), []).code]

    assert code() == code((0, 400)) == ["main (train.py:31)"]
    assert code((0, 400), (404, 1000)) == []
    window = TorchWindow(window=0, event="ready", mono_ns=0, duration_ns=400 * MS)
    later = TorchWindow(window=0, event="written", mono_ns=404 * MS, duration_ns=600 * MS)
    assert code(windows=[window]) == ["main (train.py:31)"]
    assert code(windows=[window, later]) == []  # iotrace's own torch.profiler: the program did nothing then


@pytest.mark.parametrize(
    ("function", "advice"),
    [
        ("main (train.py:31)", "do less often what the loop does at train.py:31"),
        ("train.py:31", "do less often what the loop does at train.py:31"),
        ("log (train.py:30)", "call log (train.py:30) less often"),
    ],
)
def test_a_line_of_the_loop_is_not_called(function: str, advice: str) -> None:
    hot = unknown(HotLine, line="train.py:31")
    code = unknown(LoopCode, function=function, hot=hot)
    assert code.advice("less often") == advice


@pytest.mark.parametrize(
    ("function", "hot", "before", "remedy"),
    [
        ("sample (t.py:9)", None, 0.9,
         "make sample (t.py:9) faster, or call it in the loader's workers (collate_fn)"),
        ("Sampler.run (t.py:9)", ("Sampler.pick", None), 0.9,
         "make Sampler.pick (t.py:31) faster, or call Sampler.run in the loader's workers (collate_fn)"),
        ("main (t.py:31)", ("main", None), 0.9,
         "make t.py:31 faster, or do it in the loader's workers (collate_fn)"),
        # Behind the passes: as an exchange of weights.
        ("sample (t.py:9)", None, 0.1, "make sample (t.py:9) faster"),
        ("sample (t.py:9)", None, None, "make sample (t.py:9) faster"),
        ("EpochMetrics.update (t.py:9)", None, 0.1,
         "call EpochMetrics.update (t.py:9) every N steps, or make it faster"),
        ("main (t.py:31)", ("main", "Logger.info"), 0.1, "do it every N steps, or make t.py:31 faster"),
        # Names that only look so: a logarithm, logits, a file.
        ("log_mel (t.py:9)", None, 0.1, "make log_mel (t.py:9) faster"),
        ("Logits.run (t.py:9)", None, 0.1, "make Logits.run (t.py:9) faster"),
        ("mix (logs/metrics.py:9)", None, 0.1, "make mix (logs/metrics.py:9) faster"),
    ],
)  # fmt: skip
def test_what_each_step_needs_is_not_to_be_left_out(
    function: str, hot: tuple[str, str | None] | None, before: float | None, remedy: str
) -> None:
    line = (
        None if hot is None else unknown(HotLine, line="t.py:31", function=hot[0], calls=hot[1], fraction=1.0)
    )
    assert _faster(unknown(LoopCode, function=function, hot=line, before_fraction=before)) == remedy


def test_a_function_that_mostly_logs_has_one_fix() -> None:
    hot = unknown(HotLine, line="t.py:31", calls="SummaryWriter.add_histogram", library="torch", fraction=0.9)
    logs = unknown(LoopCode, function="log_weights (t.py:9)", hot=hot)
    assert _faster(logs) == "log less often: SummaryWriter.add_histogram at t.py:31"
    mixed = unknown(LoopCode, function="log_weights (t.py:9)", hot=replace(hot, fraction=0.4))
    assert _faster(mixed) == "call log_weights every N steps, or make t.py:31 faster"


def test_lines_of_the_loop_that_call_the_same_are_named_together() -> None:
    """As two calls of a logger: a fix of the one leaves the other."""

    def line(number: int, calls: str | None = "add_histogram", **known: Any) -> LoopCode:
        hot = unknown(
            HotLine, line=f"train.py:{number}", calls=calls, library="torch", fraction=1.0, samples=9
        )
        known = {"function": f"main (train.py:{number})", "samples": 9, "ms_per_step": 10.0, **known}
        return unknown(LoopCode, **known, hot=hot, seconds=40.0 - number, loop_fraction=0.2)

    (both,) = joined([line(30), line(31)])
    assert (both.function, both.ms_per_step, both.samples) == ("main (train.py:30 and 31)", 20.0, 18)
    assert both.advice("less often") == "do less often what the loop does at train.py:30 and 31"
    others = [
        line(31, "add_scalar"),
        line(32, None),
        line(33, count=3),
        line(34, function="train.py:34"),
        line(35, function="log (train.py:1)"),
    ]
    assert joined([line(30), *others]) == [line(30), *others]


def fed_by_itself(first_ms: int, second: int = 4, **thread: Any) -> RankAnalysis:
    """Ten steps of 100 ms, whose forward passes begin so many ms behind their begins.

    At 70 ms comes a backward pass (4), or another forward pass (3).
    """
    starts: Times = np.arange(10) * 100 * MS
    columns = {"start_ns": starts, "end_ns": starts + 100 * MS}
    kept = type("Kept", (dict,), {"__len__": lambda _: len(starts)})(columns)
    spans = np.zeros(20, [("start_ns", "<i8"), ("duration_ns", "<i8"), ("name", "<i8")])
    spans["start_ns"][:10], spans["start_ns"][10:] = starts + first_ms * MS, starts + 70 * MS
    spans["duration_ns"], spans["name"] = 10 * MS, 3
    spans["name"][10:] = second
    none = deliveries_of([])
    known = {"asked": none, "handed": none, "handing": set(), "unhanded": set(), **thread}
    return analysed(
        [[(3, 11), (1, 25), (0, 80)]] * 1000,
        main={"texts": {3: FORWARD, 4: BACKWARD}, "spans": np.zeros(0, SPAN_DTYPE)},
        thread=known,
        loop={"unknown_why": "no loader", "marked": False},
        kept=kept,
        phase_spans=spans,
    )


def test_a_loop_without_a_loader_is_looked_at_before_its_forward_passes() -> None:
    analysis = fed_by_itself(40)
    found = feeding_of(analysis, code_samples(analysis))
    assert found is not None
    assert (found.before_ms, found.before_fraction) == (pytest.approx(40.0), pytest.approx(0.4))
    assert found.function == "Images.__getitem__ (data.py:9)"
    assert found.function_ms == pytest.approx(40.0)


@pytest.mark.parametrize(
    ("looks", "waits"),
    [
        ([(TID, 200 * MS, f"{PEER_AT}pipe:/p/data.py:11")], "pipe at data.py:11"),
        ([(TID, 250 * MS, f"{SLEEP_AT}:/p/data.py:11")], "sleep at data.py:11"),
        ([(TID, 150 * MS, f"{PEER_AT}pipe:/p/data.py:11")], None),
        ([(TID + 1, 250 * MS, f"{PEER_AT}pipe:/p/data.py:11")], None),
    ],
)
def test_a_line_that_only_waits_says_for_what(looks: list[Any], waits: str | None) -> None:
    analysis = fed_by_itself(40)
    analysis.rank.main.texts.update({at: text for at, (*_, text) in enumerate(looks, 20)})
    rows = [(tid, 10 * MS, 10 * MS, ns, at) for at, (tid, ns, _) in enumerate(looks, 20)]
    analysis.rank.main.rows = lambda kind: np.array(  # type: ignore[method-assign, assignment]
        rows if kind == LOCKED_ROW else [], DTYPES[kind]
    )
    found = feeding_of(analysis, code_samples(analysis))
    assert found is not None
    assert found.waits == waits


@pytest.mark.parametrize(
    ("tids", "beside"),
    [
        ([TID + 1], ("PIL.Image.load", pytest.approx(0.5))),
        ([TID], (None, None)),  # the loop's own
        ([TID + 1, TID + 2], (None, None)),  # several work at once
    ],
)
def test_what_one_other_thread_reads_meanwhile_is_told(tids: list[int], beside: tuple[Any, Any]) -> None:
    analysis = fed_by_itself(40)
    starts = np.tile(np.arange(10) * 100 * MS, len(tids))
    spans = np.zeros(len(starts), SPAN_DTYPE)
    spans["start_ns"], spans["duration_ns"], spans["name"] = starts, 20 * MS, 30
    spans["kind"], spans["tid"] = KIND_READ_PATH, np.repeat(tids, 10)
    analysis.rank.main.spans = spans  # type: ignore[misc, assignment]
    analysis.rank.main.texts[30] = "PIL.Image.load"
    found = feeding_of(analysis, code_samples(analysis))
    assert found is not None
    assert (found.beside, found.beside_fraction) == beside


def test_calls_of_models_without_gradients_make_no_batches() -> None:
    analysis = fed_by_itself(40)
    targets = analysis.phase_spans.copy()
    targets["start_ns"] -= 25 * MS  # 10 ms each, from 15 ms on, and others behind the forward pass
    targets["name"] = 5
    analysis.phase_spans = np.concatenate((analysis.phase_spans, targets))  # type: ignore[misc, assignment]
    analysis.rank.main.texts[5] = FORWARD_NO_GRAD
    found = feeding_of(analysis, code_samples(analysis))
    assert found is not None
    assert found.before_ms == pytest.approx(30.0)
    assert found.hot is not None
    assert found.hot.line == "data.py:11"


def test_checkpoints_and_evaluations_before_a_forward_pass_make_no_batches() -> None:
    analysis = fed_by_itself(40)
    ten: Times = np.arange(10)
    begins = ten * 100 * MS + 5 * MS
    found = [
        feeding_of(analysis, code_samples(analysis), [Events(kind, begins, begins + 20 * MS, ten)])
        for kind in ("checkpoint", "evaluation", "writing")  # of the last it is not known what for
    ]
    assert [each.before_ms for each in found if each] == [pytest.approx(ms) for ms in (20.0, 20.0, 40.0)]


def test_each_of_several_forward_passes_may_have_waited() -> None:
    analysis = fed_by_itself(10, second=3)
    found = feeding_of(analysis, code_samples(analysis))
    assert found is not None
    assert found.before_ms == pytest.approx(10 + 50)


def test_a_loop_that_a_thread_feeds_is_not() -> None:
    analysis = fed_by_itself(40, handing={8})
    assert feeding_of(analysis, code_samples(analysis)) is None


CUTS = np.arange(0, 2000 * MS, 100 * MS)  # 20 steps, each trains once, 10 ms behind its begin
ROUNDS: Times = CUTS + 10 * MS


def calls(steps: list[int], count: int, after_ms: int = 20) -> Times:
    starts = [CUTS[step] + (after_ms + 5 * at) * MS for step in steps for at in range(count)]
    return np.array([(start, start + 2 * MS) for start in starts], np.int64).reshape(-1, 2)


def test_calls_without_gradients_behind_the_training_of_few_steps_are_an_evaluation() -> None:
    found = unfed_evaluations(CUTS, ROUNDS, calls([9, 19], 10), [], [])
    assert (found // MS).tolist() == [[910, 967], [1910, 1967]]


@pytest.mark.parametrize(
    ("seen", "ends_ms"),
    [
        ([0] * 9, 995),  # what it makes of the results, until its function returns
        ([0] * 5 + [-1] * 4, 967),  # in the loop itself since
        ([0] * 7 + [1] * 2, 975),  # then in another function
        ([1] * 2 + [2] * 2 + [0] * 5, 967),  # no function has most of the calls
        ([-1] * 9, 967),  # the loop itself calls the model
    ],
)
def test_what_an_evaluation_makes_of_its_results_is_a_part_of_it(seen: list[int], ends_ms: int) -> None:
    times = np.arange(915, 1000, 10) * MS
    called = Called(times, np.array(seen, np.int64))
    found = unfed_evaluations(CUTS, ROUNDS, calls([9, 19], 10), [], [], called)
    assert (found // MS).tolist() == [[910, ends_ms], [1910, 1967]]


@pytest.mark.parametrize(
    "own",
    [
        calls([*range(20)], 10),  # in each step: an average of the weights
        calls([9, 19], 10, after_ms=0)[:2],  # before it trains: a teacher
        calls([9, 19], 1),  # one call
        calls([9], 10),  # once
    ],
)
def test_other_calls_without_gradients_are_none(own: Times) -> None:
    assert len(unfed_evaluations(CUTS, ROUNDS, own, [], [])) == 0


def test_it_begins_behind_the_pass_that_ended_and_what_a_loader_feeds_is_none() -> None:
    ended = SimpleNamespace(passes={0: SimpleNamespace(exhausted_ns=(912 * MS, 915 * MS))})
    own = calls([9, 19], 10)
    found = unfed_evaluations(CUTS, ROUNDS, own, [], [cast(LoaderRun, ended)])
    assert (found[:, 0] // MS).tolist() == [915, 1910]
    fed = [(int(CUTS[9]), int(CUTS[10]))]
    assert len(unfed_evaluations(CUTS, ROUNDS, own, fed, [])) == 0


def test_many_rounds_on_each_batch_need_not_be_as_many() -> None:
    counts = np.array([40, 60, 55, 30, 70, 48, 62, 52])
    starts = np.arange(len(counts)) * 1000
    rounds = np.concatenate(
        [start + 1 + np.arange(count) for start, count in zip(starts, counts, strict=True)]
    )
    cuts = Cuts(starts, np.arange(len(counts)), deliveries_of([]))
    assert explains(cuts, Rounds(rounds, np.full(len(rounds), -1)))
    few = np.concatenate(
        [start + 1 + np.arange(count % 7) for start, count in zip(starts, counts, strict=True)]
    )
    assert not explains(cuts, Rounds(few, np.full(len(few), -1)))


class Records:
    def __init__(self) -> None:
        self.records: list[Any] = []
        self.before_flush: list[Any] = []


def test_the_thread_that_trains_is_sampled_with_its_lines() -> None:
    stop, recorder, made = threading.Event(), Records(), []

    def trains() -> None:
        made.append(LoopStacks(recorder, most_samples=3))
        while not stop.is_set():
            time.sleep(0.001)

    thread = threading.Thread(target=trains)
    thread.start()
    while not made:
        time.sleep(0.001)
    for _ in range(3):
        made[0].sample()
    recorder.before_flush[0]()
    made[0].sample()
    stop.set()
    thread.join()
    made[0].sample()  # it has ended
    made[0].drain(recorder, 1)
    first, last = (msgspec.convert({**each, "type": "loop_stacks"}, Recorded) for each in recorder.records)
    assert (len(first.times_ns), len(last.times_ns)) == (3, 1)
    number, line = first.stacks[0][0]
    file, name, begin = first.functions[number]
    assert (file, name.rpartition(".")[2]) == (__file__, "trains")
    assert line > begin
    assert first.functions[first.path[0][0]][1].endswith("trains")
    assert made[0].interval_s >= 0.02


def test_threads_that_make_items_are_sampled_beside_it_as_long_as_they_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("iotrace.agent.recording.lock_waits._LEAST_NS", 0)
    stop, ready, recorder = threading.Event(), threading.Event(), Records()
    stacks = LoopStacks(cast(Any, recorder))

    def resize() -> None:
        ready.set()
        stop.wait()

    def makes() -> None:
        stacks.beside(sys._getframe())
        resize()

    thread = threading.Thread(target=makes)
    thread.start()
    ready.wait()
    stacks.beside(sys._getframe())  # the loop's own thread is sampled anyway
    for _ in range(3):
        stacks.sample()
    stop.set()
    thread.join()
    stacks.sample()
    tids = [each["tid"] for each in recorder.records if each["type"] == "loop_stacks"]
    assert tids == [thread.native_id]
    (made,) = (msgspec.convert(each, Recorded) for each in recorder.records if "stacks" in each)
    own = [made.functions[number][1].rpartition(".")[2] for number, line in made.stacks[0] if line]
    assert own[:2] == ["resize", "makes"]
    assert len(made.times_ns) == 3
    assert made.functions[made.path[0][0]][1].endswith("makes")


class Info:
    def __init__(self, number: int) -> None:
        self.id = number


class Slotted:
    __slots__ = ("id",)

    def __init__(self, number: int) -> None:
        self.id = number


@pytest.mark.parametrize("kind", [Info, Slotted])
def test_the_first_look_at_a_workers_number_is_recorded(kind: type[Any]) -> None:
    recorder, module = Records(), SimpleNamespace(WorkerInfo=kind)
    assert _watch_number(module, cast(Any, recorder))
    info = module.WorkerInfo(3)
    assert recorder.records == []
    assert (info.id, info.id) == (3, 3)
    assert [each["type"] for each in recorder.records] == ["asked_number"]


def test_a_sample_leaves_no_frame_behind() -> None:
    """Else what the program's functions hold lives on, and ends wherever garbage is collected."""
    stop, made = threading.Event(), queue.SimpleQueue[Any]()

    class Item(set[int]):
        pass

    def trains(item: Item) -> None:
        made.put(LoopStacks(cast(Any, Records())))
        stop.wait()

    item = Item({1})
    seen = weakref.ref(item)
    gc.disable()
    try:
        thread = threading.Thread(target=trains, args=(item,))
        del item
        thread.start()
        stacks = made.get()
        for _ in range(3):
            stacks.sample()
        stop.set()
        thread.join()
        assert seen() is None
    finally:
        gc.enable()


def test_a_sample_never_hashes_code() -> None:
    recorder: Any = SimpleNamespace(before_flush=[], records=[])
    stacks = LoopStacks(recorder)
    stacks.sample()
    assert all(type(number) is int for stack, _, _ in stacks._stacks for number, _ in stack)
    stacks.drain(recorder, 1)
    assert any(name.startswith("test_a_sample") for _, name, _ in recorder.records[0]["functions"])


@pytest.mark.parametrize("program", ["train.py", None])
def test_code_that_a_library_made_as_text_has_no_line(
    monkeypatch: pytest.MonkeyPatch, program: str | None
) -> None:
    """A manager's proxies are made so; the main module of ``python -c`` is the program, and has no file."""
    main: Any = SimpleNamespace() if program is None else SimpleNamespace(__file__=program)
    monkeypatch.setitem(sys.modules, "__main__", main)
    stacks, made = LoopStacks(cast(Any, Records())), dict[str, Any]()
    exec("def get(call):\n    call()", made)
    made["get"](stacks.sample)
    functions = {number: code.co_filename for number, (code, _) in stacks._known.items()}
    ((stack, _, _),) = stacks._stacks
    lines = [(functions[number], line) for number, line in stack if line]
    assert (("<string>", 2) in lines) == (program is None)
    assert any(file == __file__ for file, _ in lines)


@pytest.mark.parametrize("program", ["train.py", None])
def test_code_made_as_text_is_the_programs_where_its_main_module_has_no_file(
    monkeypatch: pytest.MonkeyPatch, program: str | None
) -> None:
    main: Any = SimpleNamespace() if program is None else SimpleNamespace(__file__=program)
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert callers._whose("<string>") == (callers.PROGRAMS if program is None else callers.BETWEEN)
    assert callers._whose("<frozen os>") == callers.OTHERS
