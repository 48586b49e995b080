"""The search of `iotrace tune`, without any process: the executor replays a pipeline of known costs."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace
from rich.console import Console

from iotrace.agent import sweep_override
from iotrace.analysis.gain.pipeline import Epoch, Pipeline, replay
from iotrace.analysis.results import LoaderResult
from iotrace.errors import IotraceError, UsageError
from iotrace.report.sweep import print_tune, write_points
from iotrace.sweeps import execute
from iotrace.sweeps.apply import changes
from iotrace.sweeps.execute import Request
from iotrace.sweeps.grid import IN_ORDER, PERSISTENT, PIN_MEMORY, PREFETCH, WORKERS, make_environment
from iotrace.sweeps.model import Predictor, Seen, with_settings
from iotrace.sweeps.results import Origin, SweepRun
from iotrace.sweeps.rows import paired_ratio
from iotrace.sweeps.tune.candidates import Place, refused
from iotrace.sweeps.tune.results import TuneResult
from iotrace.sweeps.tune.search import Search, open_search, parse_seconds
from iotrace.sweeps.tune.summary import sum_up
from tests.support.results import unknown

MS = 1e6
COMMAND = ["python", "train.py"]
ROOM = Place(cpus=8.0)


class Machine:
    """Stands in for running the command: batches of `make_ms`, and `step_ms` of the consumer's own.

    Each worker more slows all others by `slower`, as the model cannot know.
    """

    def __init__(
        self, make_ms: float = 40.0, step_ms: float = 15.0, workers: int = 1, slower: float = 0.0
    ) -> None:
        self.make_ms, self.step_ms, self.workers, self.slower = make_ms, step_ms, workers, slower
        self.asked: list[tuple[str, dict[str, str], int]] = []
        self.stop_after: int | None = None
        self.status = "ok"
        self.ignored: set[str] = set()
        self.most_workers = 64
        self.blind = False
        self.noise = 0.005
        self.ceiling_ms = step_ms
        self.uneven = 0.0  # of a step: by what the runs of a pair differ from the next one
        self.transport_share = 0.0
        self.slow_batch_ms = 0.0
        self.epochs = 1

    def pipeline(self, params: dict[str, str]) -> Pipeline:
        """The program with these settings."""
        count = 32
        workers = int(params.get(WORKERS, self.workers))
        blocked = np.full(count, self.make_ms * (1 + self.slower * (workers - 1)) * MS)
        if self.slow_batch_ms:
            blocked[::8] = self.slow_batch_ms * MS
        length = count // self.epochs
        epochs = tuple(
            Epoch(first, first + length, 5 * MS, 30 * MS, 5 * MS) for first in range(0, count, length)
        )
        none = np.zeros(count)
        own = Pipeline(
            workers=workers, prefetch=2, in_order=True, pinned=False, cores=8.0, threads=1.0,
            blocked_ns=blocked, cpu_ns=none, latency_ns=none, service_ns=none,
            idle_ns=np.full(count, self.step_ms * MS), compute_ns=none, epochs=epochs,
        )  # fmt: skip
        return with_settings(own, params)

    def __call__(self, request: Request) -> SweepRun:
        if self.stop_after is not None and len(self.asked) >= self.stop_after:
            raise KeyboardInterrupt
        self.asked.append((request.kind, request.params, request.repeat))
        run = SweepRun(
            params=request.params,
            kind=request.kind,
            repeat=request.repeat,
            session=str(request.directory / "session"),
            status="not applied" if self.ignored & request.params.keys() else self.status,
            reason="the loop's loader has other ones" if self.ignored & request.params.keys() else "",
            seconds=10.0,
            loaders=1,
        )
        if int(request.params.get(WORKERS, 0)) > self.most_workers:
            return replace(run, status="failed", reason="exit code 1")
        if not run.ok:
            return run
        step = self.step_ms
        compute = self.ceiling_ms if request.kind == "ceiling" else self.step_ms
        if request.kind != "ceiling":
            step = float(np.diff(replay(self.pipeline(request.params)).delivered_ns).mean()) / MS
            step *= 1 + self.uneven * (0, 1, -1)[request.repeat] * bool(request.params)
        return replace(
            run,
            steps=60,
            step_ms=step,
            step_ci95_ms=[(1 - self.noise) * step, (1 + self.noise) * step],
            compute_ms=compute,
            compute_ci95_ms=[0.99 * compute, 1.01 * compute],
            raw_wait_fraction=1 - self.step_ms / step,
            workers=int(request.params.get(WORKERS, self.workers)),
        )

    def look(self, run: SweepRun) -> Seen:
        """What its session would tell."""
        assert run.step_ms is not None
        settings = {WORKERS: str(self.workers), PREFETCH: "2", IN_ORDER: "True", PERSISTENT: "False"}
        return Seen(
            step_ms=run.step_ms,
            settings={**settings, **run.params},
            pipeline=None if self.blind else self.pipeline(run.params),
            why="another thread takes the batches" if self.blind else "",
            epochs=self.epochs,
            transport_share=self.transport_share,
        )


def searched(
    machine: Machine,
    directory: Path,
    place: Place = ROOM,
    budget_s: float | None = None,
    resume: bool = False,
    command: list[str] = COMMAND,
) -> Search:
    """A search, run to its end; its clock tells 10 s for each run."""
    clock: Callable[[], float] = lambda: 10.0 * len(machine.asked)  # noqa: E731
    search = open_search(command, machine.look, place, budget_s, 60, directory, resume, [])
    search.budget.clock = clock
    search.run(machine)
    return search


def tuned(machine: Machine, directory: Path, place: Place = ROOM) -> TuneResult:
    return sum_up(searched(machine, directory, place))


def shown(result: TuneResult) -> str:
    console = Console(file=StringIO(), width=80, highlight=False)
    print_tune(result, console)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_it_finds_the_workers_that_keep_up_in_few_runs(tmp_path: Path) -> None:
    machine = Machine()
    result = tuned(machine, tmp_path / "t")
    assert result.best is not None
    assert result.best.params == {WORKERS: "3"}
    assert result.best.ratio == pytest.approx(40 / 15, rel=0.1)
    assert result.at_ceiling
    assert result.complete
    kinds = [(kind, params.get(WORKERS), repeat) for kind, params, repeat in machine.asked]
    pairs = [("point", None, 1), ("point", "3", 1), ("point", None, 2), ("point", "3", 2)]
    assert kinds == [("point", None, 0), ("ceiling", None, 0), ("point", "3", 0), *pairs]


def test_beside_other_programs_the_best_is_likely_so(tmp_path: Path) -> None:
    class Busy(Machine):
        def __call__(self, request: Request) -> SweepRun:
            return replace(super().__call__(request), disturbed=True, others_cpu_fraction=0.5)

    result = tuned(Busy(), tmp_path / "t")
    assert result.verdict.likely
    assert result.verdict.text.startswith("LIKELY BEST workers=3: ")
    assert result.best is not None
    assert result.best.ratio_ci95 is not None
    assert result.best.ratio_ci95[0] > 2
    assert result.verdict.trust.codes[0] == "IO901"
    assert "LIKELY BEST   workers=3" in shown(result)


def test_a_ceiling_that_other_programs_held_up_is_none(tmp_path: Path) -> None:
    class Busy(Machine):
        def __call__(self, request: Request) -> SweepRun:
            run = super().__call__(request)
            if request.kind != "ceiling":
                return run
            return replace(run, disturbed=True, compute_ms=40.0, compute_ci95_ms=[12.0, 68.0])

    result = tuned(Busy(), tmp_path / "t")
    assert result.verdict.kind == "best"
    assert result.best is not None
    assert result.best.params == {WORKERS: "3"}
    assert result.best.predicted_per_second == pytest.approx(1e3 / 15, rel=0.1)


def test_at_its_ceiling_it_says_so_after_at_most_three_runs(tmp_path: Path) -> None:
    machine = Machine(make_ms=5.0)
    result = tuned(machine, tmp_path / "t")
    assert result.at_ceiling
    assert len(machine.asked) <= 3
    assert result.verdict.kind == "at-ceiling"
    assert "AT ITS CEILING" in shown(result)


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Machine, Search]:
    """A search where workers slow each other, as the model cannot know."""
    machine = Machine(make_ms=60.0, step_ms=10.0, slower=0.15)
    return machine, searched(machine, tmp_path_factory.mktemp("crowded") / "t")


def test_what_workers_cost_each_other_is_learnt(tmp_path: Path, crowded: tuple[Machine, Search]) -> None:
    machine, result = crowded[0], sum_up(crowded[1])
    asked = list(machine.asked)
    grid = {
        workers: machine(_request(tmp_path, {WORKERS: str(workers)})).step_ms or 0.0
        for workers in range(1, 17)
    }
    assert result.best is not None
    assert result.best.per_second is not None
    assert 1e3 / result.best.per_second <= 1.02 * min(grid.values())
    settings = {str(params) for kind, params, _ in asked if kind == "point"}
    assert len(settings) <= 3 * 15 / 3  # a third of the grid of workers and prefetching


def _request(directory: Path, params: dict[str, str]) -> Request:
    return Request(command=COMMAND, params=params, kind="point", repeat=0, directory=directory)


def test_what_the_model_chose_is_predicted_before_it_runs(crowded: tuple[Machine, Search]) -> None:
    search = crowded[1]
    assert search.predicted
    assert len(Predictor(list(search.seen.values())).counts) > 2
    second = search.measured[1].params
    assert WORKERS in second
    assert f"workers={second[WORKERS]}" in search.predicted
    best = sum_up(search).best
    assert best is not None
    assert best.params
    assert best.predicted_per_second is not None


def test_where_many_workers_fail_fewer_are_tried(tmp_path: Path) -> None:
    machine = Machine(make_ms=90.0, step_ms=15.0)
    machine.most_workers = 2
    result = tuned(machine, tmp_path / "t")
    asked = [int(params[WORKERS]) for kind, params, repeat in machine.asked if params and not repeat]
    failed = [count for count in asked if count > 2]
    assert failed == sorted(set(failed), reverse=True)  # none is asked for twice, or for more than failed
    assert all(later <= before // 2 for before, later in itertools.pairwise(failed))
    assert result.best is not None
    assert result.best.params[WORKERS] == "2"
    assert any("failed: exit code 1" in warning for warning in result.warnings)


def test_where_no_other_number_of_workers_runs_it_says_so(tmp_path: Path) -> None:
    machine = Machine(workers=0)
    machine.most_workers = 0
    result = tuned(machine, tmp_path / "t")
    assert result.verdict.text == "NO ADVICE no other setting was measured"
    assert result.stopped == "each run with other workers failed"


@pytest.mark.parametrize(("own", "best"), [(1, "4"), (0, "4"), (16, None)])
def test_without_a_model_workers_are_doubled_as_long_as_that_gains(
    tmp_path: Path, own: int, best: str | None
) -> None:
    machine = Machine(make_ms=50.0, workers=own)
    machine.blind = True
    result = tuned(machine, tmp_path / "t")
    assert result.best is not None
    assert result.best.params.get(WORKERS) == best
    assert (
        any("no setting was predicted: another thread" in warning for warning in result.warnings) or not best
    )
    assert all(run.predicted_per_second is None for run in result.runs)


def test_what_no_model_speaks_for_has_to_be_proven(tmp_path: Path) -> None:
    machine = Machine(make_ms=25.0, step_ms=5.0)
    machine.transport_share = 0.2  # so that the sharing strategy is tried, which does nothing here
    result = tuned(machine, tmp_path / "t", Place(cpus=0.5))
    assert result.best is not None
    assert "sharing" not in result.best.params
    assert "sharing=file_system" in [each.knob for each in result.no_effect if each.source == "measured"]


def test_what_slows_both_runs_of_a_pair_does_not_count() -> None:
    def run(params: dict[str, str], repeat: int, step_ms: float) -> SweepRun:
        return SweepRun(params=params, kind="point", repeat=repeat, session="", status="ok", step_ms=step_ms)

    changed = {WORKERS: "2"}
    steps = [(53.0, 28.8), (90.0, 58.0), (52.0, 26.8)]
    runs = [
        run(params, repeat, pair[which])
        for repeat, pair in enumerate(steps)
        for which, params in enumerate(({}, changed))
    ]
    found = paired_ratio(runs, changed)
    assert found is not None
    ratio, low, high = found
    logs = np.log([own / other for own, other in steps])
    half = 4.303 * logs.std(ddof=1) / np.sqrt(3)
    assert (ratio, low, high) == pytest.approx(np.exp(logs.mean() + np.array([0, -half, half])), rel=1e-3)
    assert low > 1
    assert paired_ratio(runs[:4], changed) is None


def test_what_is_hardly_faster_is_no_advice(tmp_path: Path) -> None:
    machine = Machine(make_ms=15.32, step_ms=15.0, workers=1)
    machine.uneven = 0.01
    result = tuned(machine, tmp_path / "t")
    assert result.verdict.text.startswith("BEST as you have it")
    assert result.best is not None
    assert (result.best.params, result.best.apply) == ({}, [])
    assert [each.source for each in result.no_effect][:1] == ["measured"]


def test_order_helps_where_one_batch_is_slow(tmp_path: Path) -> None:
    machine = Machine(make_ms=20.0, step_ms=15.0, workers=2)
    machine.slow_batch_ms = 200.0
    result = tuned(machine, tmp_path / "t", Place(cpus=0.5))  # no room for more than two workers
    assert result.best is not None
    assert any("in_order" in run.params for run in result.runs) or result.best.params
    assert [item.params for item in result.refused][:1] == [{WORKERS: "3"}]
    assert "3 workers on 0.5 CPUs" in shown(result)


def test_what_has_no_effect_is_told_with_evidence(crowded: tuple[Machine, Search]) -> None:
    result = sum_up(crowded[1])
    knobs = {item.knob: item for item in result.no_effect}
    assert any(knob.startswith(("prefetch", "in_order")) for knob in knobs)
    for item in knobs.values():
        assert item.source == "predicted"
        assert item.interval_pct[0] < item.interval_pct[1]


def test_ctrl_c_keeps_what_is_there_and_resume_goes_on(tmp_path: Path) -> None:
    machine = Machine()
    machine.stop_after = 3
    with pytest.raises(KeyboardInterrupt):
        searched(machine, tmp_path / "t")
    kept = json.loads((tmp_path / "t" / "sweep.json").read_text())
    assert len(kept["runs"]) == 3
    again = Machine()
    result = sum_up(searched(again, tmp_path / "t", resume=True))
    assert len(again.asked) == 4  # the pairs alone
    assert result.complete
    assert result.best is not None
    assert result.best.params == {WORKERS: "3"}


def test_no_run_begins_that_the_budget_has_no_room_for(tmp_path: Path) -> None:
    machine = Machine()
    result = sum_up(searched(machine, tmp_path / "t", budget_s=35.0))
    assert len(machine.asked) == 3
    assert not result.complete  # no pair is proof of what was found
    assert "no pair was run as proof" in shown(result)
    assert "--resume" in shown(result)
    few = Machine()
    result = sum_up(searched(few, tmp_path / "u", budget_s=15.0))
    assert len(few.asked) == 1
    assert result.stopped == "no room in the budget for one more run of about 10 s"


def test_a_pair_that_takes_longer_than_thought_is_ended(tmp_path: Path) -> None:
    machine = Machine()
    search = open_search(COMMAND, machine.look, ROOM, 55.0, 60, tmp_path / "t", False, [])
    # The first run of the pair takes 30 s: then there is no room for the other one.
    search.budget.clock = lambda: 10.0 * len(machine.asked) + 20.0 * (len(machine.asked) > 3)
    search.run(machine)
    assert [repeat for _, _, repeat in machine.asked] == [0, 0, 0, 1, 1]
    assert not search.complete


def test_a_further_setting_is_tried_where_there_is_room_for_its_proof(tmp_path: Path) -> None:
    machine = Machine(make_ms=60.0, step_ms=10.0, slower=0.15)
    result = sum_up(searched(machine, tmp_path / "t", budget_s=55.0))
    kinds = [(kind, repeat) for kind, _, repeat in machine.asked]
    assert kinds == [("point", 0), ("ceiling", 0), ("point", 0), ("point", 1), ("point", 1)]
    assert result.stopped.startswith("no room in the budget for one more setting and a pair as proof")


def test_a_search_cut_short_that_found_nothing_does_not_call_yours_the_best(tmp_path: Path) -> None:
    machine = Machine(make_ms=60.0, step_ms=10.0, slower=2.0)  # more workers are slower
    result = sum_up(searched(machine, tmp_path / "t", budget_s=35.0))
    assert not result.complete
    assert result.verdict.text.startswith("NO ADVICE nothing better was found")


def test_a_setting_that_the_program_overrides_is_not_applied(tmp_path: Path) -> None:
    machine = Machine()
    machine.ignored = {WORKERS}
    result = tuned(machine, tmp_path / "t")
    assert result.stopped == "num_workers could not be set: the loop's loader has other ones"
    assert result.verdict.text == "NO ADVICE no other setting was measured"
    assert len(machine.asked) == 3
    other = Machine(workers=3)
    other.ignored = {IN_ORDER, PREFETCH, PERSISTENT}
    other.slow_batch_ms = 300.0
    result = tuned(other, tmp_path / "u", Place(cpus=0.5))
    assert all(run.status == "not applied" for run in result.runs if other.ignored & run.params.keys())


def test_a_program_that_ends_before_it_can_be_measured(tmp_path: Path) -> None:
    machine = Machine()
    machine.status = "no steps"
    with pytest.raises(IotraceError, match="no measured steps"):
        searched(machine, tmp_path / "t")


def test_a_program_without_a_loader(tmp_path: Path) -> None:
    machine = Machine()
    machine.look = lambda run: None  # type: ignore[method-assign,assignment,return-value]
    with pytest.raises(IotraceError, match="no DataLoader that could be tuned"):
        searched(machine, tmp_path / "t")


@pytest.mark.parametrize(
    ("place", "seen", "params", "why"),
    [
        (Place(cpus=2.0), {}, {WORKERS: "9"}, "9 workers on 2 CPUs"),
        (
            Place(cpus=8.0, memory_bytes=2 << 30),
            {"worker_bytes": 1 << 30},
            {WORKERS: "4"},
            "3.0 GiB of memory",
        ),
        (Place(cpus=8.0, shm_bytes=64 << 20), {"batch_bytes": 8e6}, {WORKERS: "4"}, "of /dev/shm"),
        (Place(cpus=8.0, descriptors=100), {}, {WORKERS: "4"}, "the limit is 100"),
        (Place(cpus=8.0), {"worker_bytes": 1 << 40}, {WORKERS: "4"}, None),
        (Place(cpus=4.0), {"ranks": 4}, {WORKERS: "5"}, "5 workers for each of 4 ranks on 4 CPUs"),
        (
            Place(cpus=8.0, shm_bytes=128 << 20),
            {"batch_bytes": 8e6, "ranks": 2},
            {WORKERS: "4"},
            "of /dev/shm",
        ),
    ],
)
def test_what_there_is_no_room_for(
    place: Place, seen: dict[str, float], params: dict[str, str], why: str | None
) -> None:
    found = refused(params, Seen(step_ms=1.0, settings={WORKERS: "1", PREFETCH: "2"}, **seen), place)  # type: ignore[arg-type]
    assert found is None if why is None else found is not None and why in found.text


def _made_at(site: str | None, builder: str | None = None, workers: int = 2) -> Seen:
    """A run of a program whose loader is made there."""
    return Seen(step_ms=1.0, settings={WORKERS: str(workers)}, site=site, builder=builder)


def test_the_change_as_one_types_it(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text("x = 1\nloader = DataLoader(data, batch_size=4, num_workers=2)\n")
    found = changes({WORKERS: "4", PREFETCH: "8"}, COMMAND, _made_at(f"{program}:2"))
    assert found[0] == f"DataLoader(num_workers=4, prefetch_factor=8) at {program}:2"
    assert found[1:] == [
        "- loader = DataLoader(data, batch_size=4, num_workers=2)",
        "+ loader = DataLoader(data, batch_size=4, num_workers=4, prefetch_factor=8)",
    ]
    assert changes({"threads": "1"}, COMMAND, None) == ["OMP_NUM_THREADS=1 before the command"]
    assert changes({"cv2_threads": "1"}, COMMAND, None) == ["OPENCV_FOR_THREADS_NUM=1 before the command"]
    program.write_text("loader = DataLoader(data, **settings)\n")
    assert len(changes({WORKERS: "4"}, COMMAND, _made_at(f"{program}:1"))) == 1
    of_pool = Origin(pool="ThreadPoolExecutor")
    assert changes({WORKERS: "4"}, COMMAND, of_pool) == ["ThreadPoolExecutor(max_workers=4)"]
    of_stages = Origin(by_hand=["concurrency at train.py:9", "concurrency at train.py:10"])
    said = "set concurrency at train.py:9 and concurrency at train.py:10 to 4, by hand"
    assert changes({WORKERS: "4"}, COMMAND, of_stages) == [said]


@pytest.mark.parametrize(
    ("words", "typed"),
    [
        (["dataloader.num_workers.training=2"], "dataloader.num_workers.training=4"),
        (["--num-workers", "2"], "--num-workers 4"),
        (["--workers=2"], "--workers=4"),
        (["--data.init_args.num_workers=2"], "--data.init_args.num_workers=4"),
        (["dataloader.num_workers.validation=2"], None),
        (["--val-workers", "2"], None),
        (["--num-workers", "3"], None),  # it is not what the training loader had
        (["--networkers", "2"], None),
    ],
)
def test_words_of_the_command_with_the_new_value(words: list[str], typed: str | None) -> None:
    found = changes({WORKERS: "4"}, ["python", "train.py", *words], _made_at(None))
    assert found[1:] == ([] if typed is None else [f"by {typed} in the command"])


def test_a_setting_that_comes_from_the_command_is_typed_there(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "parser.add_argument('-j', '--workers', type=int, default=2)\n"
        "loader = DataLoader(data, num_workers=options.workers)\n"
    )
    seen = _made_at(f"{program}:2")
    assert changes({WORKERS: "4"}, COMMAND, seen)[1:] == ["by --workers 4 in the command"]
    assert changes({WORKERS: "4"}, [*COMMAND, "-j", "2"], seen)[1:] == ["by -j 4 in the command"]
    assert changes({WORKERS: "4", PREFETCH: "8"}, COMMAND, seen)[1:] == [
        "by --workers 4 in the command",
        "- loader = DataLoader(data, num_workers=options.workers)",
        "+ loader = DataLoader(data, num_workers=options.workers, prefetch_factor=8)",
    ]
    program.write_text(
        "@click.option('--workers', default=2)\ndef main(workers):\n"
        "    return DataLoader(data, num_workers=workers)\n"
    )
    assert changes({WORKERS: "4"}, COMMAND, _made_at(f"{program}:3"))[1:] == ["by --workers 4 in the command"]
    program.write_text(
        "@hydra.main(version_base=None)\ndef main(cfg):\n"
        "    a = DataLoader(data, num_workers=cfg.data.num_workers)\n"
        "    b = instantiate(cfg.data.loader, data)\n"
    )
    assert changes({WORKERS: "4"}, COMMAND, _made_at(f"{program}:3"))[1:] == [
        "by data.num_workers=4 in the command"
    ]
    assert changes({WORKERS: "4"}, COMMAND, _made_at(f"{program}:4", "hydra")) == [
        "DataLoader(num_workers=4)",
        "by ++data.loader.num_workers=4 in the command",
    ]


def test_the_trainer_has_arguments_of_its_own(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text("Trainer(model, args).train()\n")
    seen = _made_at(f"{program}:1", "transformers")
    assert changes({WORKERS: "4"}, COMMAND, seen) == ["TrainingArguments(dataloader_num_workers=4)"]
    assert not seen.can_set(IN_ORDER)
    program.write_text("parser = HfArgumentParser(TrainingArguments)\n")
    assert changes({WORKERS: "4"}, COMMAND, seen)[1:] == ["by --dataloader_num_workers 4 in the command"]


@pytest.mark.parametrize(
    ("call", "changed"),
    [
        (
            "Timed(Prefetch(DataLoader(I(), 8, num_workers=2, pin_memory=(True))))",
            "Timed(Prefetch(DataLoader(I(), 8, num_workers=4, pin_memory=(True), prefetch_factor=8)))",
        ),
        (
            "x = list(DataLoader(f('(é'), num_workers=0,), (1))",
            "x = list(DataLoader(f('(é'), num_workers=4, prefetch_factor=8,), (1))",
        ),
        ("data.DataLoader()", "data.DataLoader(num_workers=4, prefetch_factor=8)"),
        ("DataLoader(data, (8))", "DataLoader(data, (8), num_workers=4, prefetch_factor=8)"),
    ],
)
def test_the_diff_changes_the_loaders_own_call(tmp_path: Path, call: str, changed: str) -> None:
    program = tmp_path / "train.py"
    program.write_text(call + "\n")
    found = changes({WORKERS: "4", PREFETCH: "8"}, COMMAND, _made_at(f"{program}:1"))
    assert found[-2:] == [f"- {call}", f"+ {changed}"]


def test_each_loader_of_the_loop_is_changed(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text("quick = DataLoader(a)\nslow = DataLoader(b, num_workers=1)\n")
    origin = replace(_made_at(f"{program}:1"), others=[f"{program}:2"])
    found = changes({WORKERS: "4"}, COMMAND, origin)
    assert found == [
        f"DataLoader(num_workers=4) at {program}:1 and {program}:2",
        "- quick = DataLoader(a)",
        "+ quick = DataLoader(a, num_workers=4)",
        "- slow = DataLoader(b, num_workers=1)",
        "+ slow = DataLoader(b, num_workers=4)",
    ]


def test_of_a_long_line_the_call_alone_is_shown(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text("for é in f(DataLoader(data, num_workers=2)): " + "work(é); " * 10 + "\n")
    found = changes({WORKERS: "4"}, COMMAND, _made_at(f"{program}:1"))
    assert found[1:] == ["- DataLoader(data, num_workers=2)", "+ DataLoader(data, num_workers=4)"]


def test_the_diff_of_a_call_of_several_lines(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text("loader = DataLoader(\n    data,\n    num_workers=2,\n    shuffle=True,\n)\n")
    found = changes({WORKERS: "4", PREFETCH: "8"}, COMMAND, _made_at(f"{program}:1"))
    assert found[1:] == [
        "- num_workers=2,",
        "+ num_workers=4,",
        "+ prefetch_factor=8,",
    ]


def test_threads_are_set_by_the_environment() -> None:
    assert make_environment(COMMAND, {"threads": "1"})["OMP_NUM_THREADS"] == "1"
    assert make_environment(["python", "train.py", "{threads}"], {"threads": "1"}) == {}
    assert make_environment(COMMAND, {WORKERS: "2"}) == {}


def test_screen_and_csv(tmp_path: Path) -> None:
    result = tuned(Machine(), tmp_path / "t")
    text = shown(result)
    assert text.startswith("BEST   workers=3: ")
    assert "DataLoader(num_workers=3)" in text
    assert all(len(line) <= 80 and line == line.rstrip() for line in text.splitlines())
    write_points(result.runs, tmp_path / "t.csv")
    heading, *lines = (tmp_path / "t.csv").read_text().splitlines()
    assert heading.startswith("workers,per_second")
    assert len(lines) == len(result.runs)


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90.0), ("10m", 600.0), ("1h", 3600.0), ("5", 5.0)])
def test_a_budget_is_a_time(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["soon", "0m", "-3m", "", "10 d"])
def test_a_budget_that_is_none(text: str) -> None:
    with pytest.raises(UsageError, match="is no time"):
        parse_seconds(text)


def test_wrong_commands(tmp_path: Path) -> None:
    for command, why in (
        ([], "no command"),
        (["python", "t.py", "--w={workers}"], "has a place for a value"),
    ):
        with pytest.raises(UsageError, match=why):
            open_search(command, Machine().look, ROOM, None, 60, tmp_path / "t", False, [])


class Loader:
    """Refuses to change persistent_workers, as torch's does."""

    def __init__(self) -> None:
        self.__dict__.update(
            num_workers=2, prefetch_factor=2, in_order=True, persistent_workers=False, pin_memory=False
        )
        self.__dict__.update(dataset=[1], worker_init_fn=None, timeout=0)

    def __setattr__(self, name: str, value: object) -> None:
        if name == "persistent_workers":
            raise ValueError(name)
        super().__setattr__(name, value)


def test_the_agent_sets_what_the_search_asks_for() -> None:
    recorder: Any = SimpleNamespace(records=[])
    asked = {"prefetch": "4", "in_order": "False", "persistent_workers": "True", "pin_memory": "False"}
    loader: Any = Loader()
    sweep_override._apply(loader, sweep_override.Override(asked), recorder)
    assert (loader.prefetch_factor, loader.in_order, loader.persistent_workers) == (4, False, True)
    inline: Any = Loader()
    sweep_override._apply(inline, sweep_override.Override({**asked, "workers": "0"}), recorder)
    assert (inline.num_workers, inline.prefetch_factor, inline.persistent_workers) == (0, None, False)
    pinned: Any = Loader()  # without workers the training thread pins
    sweep_override._apply(pinned, sweep_override.Override({"workers": "0", "pin_memory": "True"}), recorder)
    assert (pinned.num_workers, pinned.pin_memory) == (0, True)


def test_a_setting_that_did_not_come_to_be_is_told() -> None:
    run = SweepRun(
        params={PREFETCH: "4", PERSISTENT: "True"}, kind="point", repeat=0, session="", status="ok"
    )
    loader = unknown(
        LoaderResult, workers=2, prefetch_factor=4, persistent_workers=False, failures=[], phases={}
    )
    assert execute._other_setting(run, loader) == "the loop's loader has persistent_workers=False, not True"
    assert execute._other_setting(run, msgspec.structs.replace(loader, persistent_workers=True)) == ""
    pins = SweepRun(params={PIN_MEMORY: "True"}, kind="point", repeat=0, session="", status="ok")
    inline = msgspec.structs.replace(loader, workers=0, pin_memory=False)
    assert execute._other_setting(pins, inline) == "the loop's loader has pin_memory=False, not True"
    assert execute._other_setting(run, inline) == ""


def test_a_setting_that_is_faster_than_batches_from_memory_casts_a_doubt(tmp_path: Path) -> None:
    machine = Machine()
    machine.ceiling_ms = 1.6 * machine.step_ms
    result = tuned(machine, tmp_path / "t")
    assert result.best is not None
    assert result.verdict.trust.level == "caution"
    assert any("faster than batches from memory" in reason for reason in result.verdict.trust.reasons)
    machine = Machine(make_ms=5.0)
    machine.ceiling_ms = 1.6 * machine.step_ms
    assert "on batches from memory" not in tuned(machine, tmp_path / "own").verdict.text
