"""A sweep's scheduling, model and advice, without any process: an executor that computes its answers."""

from __future__ import annotations

import json
import os
from io import StringIO
from pathlib import Path

import msgspec
import numpy as np
import pytest
from rich.console import Console

from iotrace.analysis.gain.pipeline import Epoch, Pipeline
from iotrace.errors import UsageError
from iotrace.report.sweep import print_sweep
from iotrace.sinks.content import Point, read as read_content, write_sweep
from iotrace.sweeps import cache
from iotrace.sweeps.execute import Request
from iotrace.sweeps.grid import (
    check_placeholders,
    fill,
    numbers,
    placeholder,
    points,
)
from iotrace.sweeps.model import Seen
from iotrace.sweeps.plan import SweepPlan, keep, kept
from iotrace.sweeps.results import SweepResult, SweepRun
from iotrace.sweeps.rows import Spread, find_spread, rate_interval
from iotrace.sweeps.schedule import NoStepsError, Sweep, open_sweep
from tests.support import pagecache

COMMAND = ["python", "train.py"]


def plan(**changes: object) -> SweepPlan:
    """A sweep over 1, 2, 4 and 7 workers."""
    asked: dict[str, object] = {
        "command": COMMAND,
        "axes": {"workers": ["1", "2", "4", "7"]},
        "repeats": 1,
        "steps": None,
        "cache": "asis",
        "ceiling": True,
    }
    return SweepPlan(**{**asked, **changes})  # type: ignore[arg-type]


class Machine:
    """Stands in for running the command: a loop that computes and waits, with contention of the workers."""

    def __init__(self, compute_ms: float = 30.0, make_ms: float = 100.0, contention: float = 0.0) -> None:
        self.asked: list[tuple[str, str, int]] = []
        self.compute_ms, self.make_ms, self.contention = compute_ms, make_ms, contention
        self.fail: dict[str, str] = {}
        self.stop_after: int | None = None
        self.cpu_percent = 50.0
        self.fetch_ms = 25.0

    def __call__(self, request: Request) -> SweepRun:
        if self.stop_after is not None and len(self.asked) >= self.stop_after:
            raise KeyboardInterrupt
        workers = int(request.params["workers"])
        self.asked.append((request.kind, request.params["workers"], request.repeat))
        run = SweepRun(
            params=request.params,
            kind=request.kind,
            repeat=request.repeat,
            session=str(request.directory / "session"),
            status=self.fail.get(request.params["workers"], "ok"),
            reason="out of memory" if request.params["workers"] in self.fail else "",
            seconds=1.0,
        )
        if not run.ok:
            return run
        compute_ms = self.compute_ms
        step_ms = compute_ms
        if request.kind != "ceiling":
            compute_ms *= 1 + self.contention * workers
            step_ms = max(compute_ms, self.make_ms / workers)
        if request.kind == "cold":
            step_ms += self.fetch_ms
        wait = (step_ms - compute_ms) / step_ms
        return msgspec.structs.replace(
            run,
            steps=40,
            step_ms=step_ms,
            step_ci95_ms=[0.995 * step_ms, 1.005 * step_ms],
            compute_ms=compute_ms,
            compute_ci95_ms=[0.995 * compute_ms, 1.005 * compute_ms],
            own_workers=2,
            production_ms=self.make_ms,
            workers=workers,
            raw_wait_fraction=wait,
            causes_ms={"decode": 0.8 * wait * step_ms, "read": 0.2 * wait * step_ms},
            costly_file="data/part2.h5",
            costly_file_ms=0.7 * wait * step_ms,
            cpu_pct_mean=self.cpu_percent,
            others_cpu_fraction=0.01,
        )

    def look(self, run: SweepRun) -> Seen | None:
        """Stands in for reading the session of a run: batches that sleep, and a loop that does."""
        assert run.workers
        assert run.step_ms is not None
        none, count = np.zeros(64), 64
        pipeline = Pipeline(
            workers=run.workers, prefetch=2, in_order=True, pinned=False, cores=8.0, threads=1.0,
            blocked_ns=np.full(count, self.make_ms * 1e6), cpu_ns=none, latency_ns=none, service_ns=none,
            idle_ns=np.full(count, self.compute_ms * 1e6), compute_ns=none,
            epochs=(Epoch(0, count, 0, 0, 0),),
        )  # fmt: skip
        return Seen(step_ms=run.step_ms, settings={"workers": str(run.workers)}, pipeline=pipeline)


def run_sweep(directory: Path, machine: Machine, asked: SweepPlan | None = None) -> Sweep:
    sweep = open_sweep(asked or plan(), directory, cores=8, look=machine.look)
    sweep.run(machine)
    return sweep


def test_repeats_are_interleaved_and_the_ceiling_comes_first(tmp_path: Path) -> None:
    machine = Machine()
    run_sweep(tmp_path / "s", machine, plan(repeats=2, axes={"workers": ["1", "4"]}))
    assert machine.asked == [
        ("ceiling", "1", 0),
        ("point", "1", 0),
        ("point", "4", 0),
        ("point", "1", 1),
        ("point", "4", 1),
    ]


def test_the_knee_is_advised_and_predicted(tmp_path: Path) -> None:
    result = run_sweep(tmp_path / "s", Machine(compute_ms=30, make_ms=100)).result()
    assert result.complete
    assert [row.per_second for row in result.points] == pytest.approx([10, 20, 1e3 / 30, 1e3 / 30])
    predicted = [row.predicted_per_second for row in result.points]
    assert predicted[0] is None  # the others are predicted from it
    assert predicted[1:] == pytest.approx([20, 1e3 / 30, 1e3 / 30], rel=0.05)
    assert [row.stopped_by for row in result.points] == ["workers", "workers", "compute", "compute"]
    assert result.ceiling is not None
    assert result.ceiling.per_second == pytest.approx(1e3 / 30)
    assert result.advice is not None
    assert (result.advice.workers, result.advice.limited_by) == (4, "compute")
    assert "100 % of the 33.3 that no loader can beat" in result.advice.text


def test_a_loader_that_is_too_slow_for_all_counts_asks_for_more(tmp_path: Path) -> None:
    result = run_sweep(tmp_path / "s", Machine(compute_ms=5, make_ms=100)).result()
    assert result.advice is not None
    assert (result.advice.workers, result.advice.limited_by) == (7, "decode")
    assert "try more than 7 workers" in result.advice.text


def test_busy_cores_are_why_more_workers_do_not_help(tmp_path: Path) -> None:
    machine = Machine(compute_ms=30, make_ms=400)
    machine.cpu_percent = 790.0
    result = run_sweep(tmp_path / "s", machine).result()
    assert result.advice is not None
    assert (result.advice.workers, result.points[-1].stopped_by) == (7, "cores")
    assert "all cores are busy" in result.advice.text
    assert "80 % is decode, mostly of data/part2.h5" in result.advice.text


def test_contention_is_told_apart(tmp_path: Path) -> None:
    result = run_sweep(tmp_path / "s", Machine(compute_ms=30, make_ms=70, contention=0.5)).result()
    assert result.advice is not None
    assert result.advice.workers == 2
    assert [row.contention_ms for row in result.points] == pytest.approx([15, 30, 60, 105])


def test_a_failed_point_is_a_row_and_the_others_count(tmp_path: Path) -> None:
    machine = Machine()
    machine.fail = {"7": "failed"}
    result = run_sweep(tmp_path / "s", machine).result()
    assert [row.status for row in result.points] == ["ok", "ok", "ok", "failed"]
    assert result.points[-1].reason == "out of memory"
    assert result.points[-1].per_second is None
    assert result.advice is not None
    assert result.advice.workers == 4
    assert not result.complete


def test_without_any_steps_the_sweep_ends_after_its_first_run(tmp_path: Path) -> None:
    machine = Machine()
    machine.fail = dict.fromkeys(("1", "2", "4", "7"), "no steps")
    sweep = open_sweep(plan(), tmp_path / "s", cores=8)
    with pytest.raises(NoStepsError):
        sweep.run(machine)
    assert len(machine.asked) == 1


class Inference(Machine):
    """A loop that trains nothing: the agent overrides its loader only once that is known."""

    def __call__(self, request: Request) -> SweepRun:
        run = msgspec.structs.replace(super().__call__(request), loaders=1, inference=True)
        return run if request.inference else msgspec.structs.replace(run, status="not applied")


def test_of_a_loop_that_trains_nothing_the_first_run_is_repeated(tmp_path: Path) -> None:
    machine = Inference()
    sweep = run_sweep(tmp_path / "s", machine)
    kinds = [(kind, workers) for kind, workers, _ in machine.asked]
    points = [("point", workers) for workers in ("1", "2", "4", "7")]
    assert kinds == [("ceiling", "1"), ("ceiling", "1"), *points]
    assert sweep.result().complete
    again = Inference()
    open_sweep(plan(repeats=2), tmp_path / "s", resume=True, cores=8).run(again)
    assert [(kind, workers) for kind, workers, _ in again.asked] == points


@pytest.mark.parametrize("status", ["no steps", "failed", "not applied"])
def test_a_ceiling_that_fails_does_not_end_the_sweep(tmp_path: Path, status: str) -> None:
    class NoCeiling(Machine):
        def __call__(self, request: Request) -> SweepRun:
            run = msgspec.structs.replace(super().__call__(request), loaders=1)
            if request.kind != "ceiling":
                return run
            return msgspec.structs.replace(run, status=status, reason="too short")

    result = run_sweep(tmp_path / "s", NoCeiling()).result()
    assert [row.status for row in result.points] == ["ok"] * 4
    assert result.ceiling is None
    assert f"no ceiling: {status}: too short" in result.warnings
    assert "IO913" in result.warning_codes
    assert result.advice is not None
    assert "no loader can beat" not in result.advice.text


def test_a_first_point_without_steps_ends_it_after_a_failed_ceiling(tmp_path: Path) -> None:
    class Short(Machine):
        def __call__(self, request: Request) -> SweepRun:
            return msgspec.structs.replace(super().__call__(request), loaders=1, status="no steps")

    machine = Short()
    sweep = open_sweep(plan(), tmp_path / "s", cores=8)
    with pytest.raises(NoStepsError):
        sweep.run(machine)
    assert [kind for kind, _, _ in machine.asked] == ["ceiling", "point"]


def test_what_was_interrupted_is_resumed(tmp_path: Path) -> None:
    machine = Machine()
    machine.stop_after = 3
    sweep = open_sweep(plan(), tmp_path / "s", cores=8)
    with pytest.raises(KeyboardInterrupt):
        sweep.run(machine)
    assert [row.status for row in sweep.result().points] == ["ok", "ok", "not run", "not run"]
    assert sweep.result().advice is not None
    again = Machine()
    resumed = open_sweep(plan(), tmp_path / "s", resume=True, cores=8)
    resumed.run(again)
    assert again.asked == [("point", "4", 0), ("point", "7", 0)]
    assert resumed.result().complete
    kept = json.loads((tmp_path / "s" / "sweep.json").read_text())
    assert len(kept["runs"]) == 5


def test_a_sweep_that_was_moved_names_its_sessions_where_they_are(tmp_path: Path) -> None:
    class Recording(Machine):
        def __call__(self, request: Request) -> SweepRun:
            session = request.directory / "session"
            session.mkdir(parents=True)
            return msgspec.structs.replace(super().__call__(request), session=str(session))

    sweep = run_sweep(tmp_path / "s", Recording())
    keep(sweep.result())
    moved = (tmp_path / "s").rename(tmp_path / "t")
    resumed = open_sweep(plan(), moved, resume=True, cores=8)
    found = kept(moved)
    assert isinstance(found, SweepResult)
    for rows in (resumed.result().points, found.points):
        assert all(Path(session).is_dir() for row in rows for session in row.sessions)


@pytest.mark.parametrize(
    ("changed", "said"),
    [({"command": ["python", "other.py"]}, "another command"), ({"steps": 7}, "another steps")],
)
def test_resuming_another_sweep_is_refused(tmp_path: Path, changed: dict[str, object], said: str) -> None:
    open_sweep(plan(), tmp_path / "s", cores=8)
    with pytest.raises(UsageError, match=said):
        open_sweep(plan(**changed), tmp_path / "s", resume=True, cores=8)


def test_a_directory_that_is_taken_is_refused(tmp_path: Path) -> None:
    open_sweep(plan(), tmp_path / "s", cores=8)
    with pytest.raises(UsageError, match="holds runs already"):
        open_sweep(plan(), tmp_path / "s", cores=8)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(UsageError, match="holds something else"):
        open_sweep(plan(), tmp_path / "other", cores=8)
    with pytest.raises(UsageError, match="no runs to resume"):
        open_sweep(plan(), tmp_path / "other", resume=True, cores=8)


@pytest.mark.parametrize("text", ["", "1,,2", "-1", "one", "1.5", "1,4,1"])
def test_bad_lists_of_workers_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        numbers("--workers", text)


def test_lists_and_placeholders() -> None:
    assert numbers("--workers", "0, 4,7") == ["0", "4", "7"]
    assert placeholder("lr=0.1,0.01") == ("lr", ["0.1", "0.01"])
    for text in ("lr", "lr=", "=1", "lr=1,1", "a b=1"):
        with pytest.raises(UsageError):
            placeholder(text)
    assert points({"workers": ["1", "2"], "lr": ["a"]}) == [
        {"workers": "1", "lr": "a"},
        {"workers": "2", "lr": "a"},
    ]
    assert fill(["x={workers}", "{other}"], {"workers": "4"}) == ["x=4", "{other}"]
    with pytest.raises(UsageError, match="does not hold"):
        check_placeholders(COMMAND, {"lr": ["1"]})
    check_placeholders(COMMAND, {"workers": ["1"]})


def _run(*, step_ms: float, ci95_ms: list[float] | None = None) -> SweepRun:
    known = {"params": {}, "kind": "point", "repeat": 0, "session": "", "status": "ok"}
    return SweepRun(**known, step_ms=step_ms, step_ci95_ms=ci95_ms)  # type: ignore[arg-type]


def test_a_runs_interval_is_that_of_its_steps_and_several_have_that_of_their_spread() -> None:
    assert rate_interval([_run(step_ms=100.0, ci95_ms=[80.0, 125.0])], None) == pytest.approx([8, 12.5])
    assert rate_interval([_run(step_ms=100.0)], None) is None
    runs = [_run(step_ms=time) for time in (99.0, 100.0, 101.0)]
    shared = Spread(0.02, 8)
    half = 2.306 * 0.02 * 100 / 3**0.5
    assert rate_interval(runs, shared) == pytest.approx([1e3 / (100 + half), 1e3 / (100 - half)])
    # Five runs have a spread of their own.
    runs = [_run(step_ms=time) for time in (98.0, 99.0, 100.0, 101.0, 102.0)]
    half = 2.776 * 2.5**0.5 / 5**0.5
    assert rate_interval(runs, shared) == pytest.approx([1e3 / (100 + half), 1e3 / (100 - half)])


def test_points_share_the_spread_of_their_runs() -> None:
    assert find_spread([[100.0], [50.0]]) is None
    found = find_spread([[99.0, 101.0], [49.5, 50.5], [10.0]])
    assert found == (pytest.approx(0.02**0.5 / 10), 2)


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """What the page cache holds of the sweep's data file after drop and after fill: 0 to 1."""
    data = tmp_path / "data.bin"
    data.write_bytes(bytes(4096))
    answers = {"drop": 0.0, "fill": 1.0}
    asked = {"drop": cache.drop, "fill": cache.fill}

    def answering(name: str, files: list[str]) -> list[str]:
        with monkeypatch.context() as context:
            context.setattr(cache, "_cached", lambda _: answers[name])
            return asked[name](files)

    monkeypatch.setattr(cache, "data_files", lambda _: [str(data)])
    monkeypatch.setattr(cache, "drop", lambda files: answering("drop", files))
    monkeypatch.setattr(cache, "fill", lambda files: answering("fill", files))
    return answers


COLD = {"cache": "cold", "axes": {"workers": ["1", "4"]}}


def test_a_cold_sweep_runs_each_point_cold_and_warm(tmp_path: Path, kernel: dict[str, float]) -> None:
    machine = Machine()
    result = run_sweep(tmp_path / "s", machine, plan(**COLD)).result()
    assert [kind for kind, _, _ in machine.asked] == ["scout", "ceiling", "cold", "point", "cold", "point"]
    assert [row.fetch_stall_ms for row in result.points] == pytest.approx([25, 25])
    assert [row.prep_stall_ms for row in result.points] == pytest.approx([70, 0])
    assert [row.reason for row in result.points] == ["", ""]
    assert result.warnings == []


def test_a_cold_point_that_was_not_cold_has_no_fetch_stall(tmp_path: Path, kernel: dict[str, float]) -> None:
    kernel["drop"] = 0.5
    sweep = run_sweep(tmp_path / "s", Machine(), plan(**COLD))
    result = sweep.result()
    assert {run.cache for run in sweep.runs if run.kind == "cold"} == {"cannot be cold"}
    assert [row.fetch_stall_ms for row in result.points] == [None, None]
    assert [row.prep_stall_ms for row in result.points] == pytest.approx([70, 0])
    assert all("stayed in the page cache" in row.reason for row in result.points)
    assert f"1 of 1 data files stay in the page cache, such as {tmp_path / 'data.bin'}" in result.warnings
    assert "workers=1: fetch_stall_ms is unknown: the data files stayed in the page cache" in result.warnings
    resumed = open_sweep(plan(**COLD), tmp_path / "s", resume=True, cores=8, look=Machine().look)
    assert resumed.result() == result


def test_a_warm_point_that_was_not_warm_has_no_stalls(tmp_path: Path, kernel: dict[str, float]) -> None:
    kernel["fill"] = 0.5
    result = run_sweep(tmp_path / "s", Machine(), plan(**COLD)).result()
    for row in result.points:
        assert (row.prep_stall_ms, row.fetch_stall_ms) == (None, None)
        assert "not in the page cache" in row.reason


def test_without_known_data_files_no_run_is_cold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "data_files", lambda _: [])
    result = run_sweep(tmp_path / "s", Machine(), plan(**COLD)).result()
    assert [row.fetch_stall_ms for row in result.points] == [None, None]
    assert any("the data files are unknown" in warning for warning in result.warnings)


def test_files_are_dropped_from_the_page_cache_and_read_into_it(tmp_path: Path) -> None:
    path = tmp_path / "data.bin"
    path.write_bytes(os.urandom(1 << 20))
    pagecache.drop(path)  # where it can be
    assert cache.fill([str(path)]) == []
    assert pagecache.resident_pages(path) == 256
    assert cache.drop([str(path)]) == []
    assert pagecache.resident_pages(path) <= 16  # those that were probed may still arrive
    assert cache.drop([str(tmp_path / "missing")]) == []


def swept(tmp_path: Path, machine: Machine, **changes: object) -> SweepResult:
    """A sweep over 1 and 2 workers, some figures of whose runs are others."""

    class Changed(Machine):
        def __call__(self, request: Request) -> SweepRun:
            return msgspec.structs.replace(machine(request), **changes)  # type: ignore[arg-type]

    return run_sweep(tmp_path / "s", Changed(), plan(axes={"workers": ["1", "2"]})).result()


def advised(tmp_path: Path, machine: Machine, **changes: object) -> str:
    """The advice of such a sweep."""
    found = swept(tmp_path, machine, **changes).advice
    assert found is not None
    return found.text


def test_more_workers_are_asked_for_where_they_are_what_is_missing(tmp_path: Path) -> None:
    assert "try more than 2 workers" in advised(tmp_path / "a", Machine())
    for number, unlike in enumerate(
        [{"cpu_pct_mean": None}, {"causes_ms": {"transport": 40.0, "read": 1.0}}]
    ):
        assert "try more" not in advised(tmp_path / str(number), Machine(), **unlike)


def test_a_tracker_gets_points_over_their_workers_and_the_files(tmp_path: Path) -> None:
    result = swept(tmp_path, Machine())
    write_sweep(result, tmp_path)
    found = read_content(tmp_path)
    assert found.labels["verdict"] == result.verdict.text
    assert found.series["points/per_second"] == [
        Point(row.workers or 0, None, row.per_second or 0.0) for row in result.points
    ]
    assert [
        dict(zip(found.tables["points"].columns, row, strict=True))["workers"]
        for row in found.tables["points"].rows
    ] == [1, 2]
    assert result.ceiling is not None
    assert found.metrics == {"ceiling.per_second": result.ceiling.per_second, "advice.workers": 2}
    files = tmp_path / "files"
    assert msgspec.json.decode((files / "sweep.json").read_bytes(), type=SweepResult) == result
    assert (files / "sweep.csv").read_text().startswith("workers,per_second")


def silent(result: SweepResult) -> str:
    """What is said instead of advice."""
    assert (result.advice, result.verdict.kind) == (None, "no-advice")
    assert result.verdict.text.startswith("NO ADVICE ")
    return result.verdict.text.removeprefix("NO ADVICE ")


def test_the_verdict_names_the_gain_over_the_programs_own_workers(tmp_path: Path) -> None:
    result = run_sweep(tmp_path / "s", Machine(compute_ms=30, make_ms=100)).result()
    assert [row.yours for row in result.points] == [False, True, False, False]
    assert result.verdict.kind == "best"
    assert result.verdict.text == "BEST 4 workers: 33.3 steps/s, 1.67x of your 2 (95 %: 1.65 to 1.68)"
    (fix,) = result.verdict.fixes
    assert (fix.text, fix.gain_ms_per_step) == ("DataLoader(num_workers=4)", pytest.approx(20))
    assert result.verdict.trust.reasons == ["1 run a point: how much runs differ is not known"]
    repeated = run_sweep(tmp_path / "r", Machine(), plan(repeats=2)).result()
    assert (repeated.verdict.trust.level, repeated.verdict.trust.reasons) == (
        "ok",
        ["2 runs a point", "spread 0.0 %", "no point above its ceiling of 33.3"],
    )


def test_what_the_program_has_needs_no_change(tmp_path: Path) -> None:
    result = run_sweep(tmp_path / "s", Machine(compute_ms=60, make_ms=100)).result()
    assert result.verdict.text.startswith("BEST 2 workers, as you have: 16.7 steps/s (95 %: ")
    assert result.verdict.fixes == []


def test_workers_of_the_program_that_no_point_has_are_named(tmp_path: Path) -> None:
    result = swept(tmp_path, Machine(), own_workers=0)
    assert result.verdict.text.endswith(" to 20.1); your 0 workers not measured")
    assert [fix.gain_ms_per_step for fix in result.verdict.fixes] == [None]


def test_a_placeholder_is_what_the_command_is_told(tmp_path: Path) -> None:
    asked = plan(command=["python", "train.py", "{workers}"])
    result = run_sweep(tmp_path / "s", Machine(), asked).result()
    assert [fix.text for fix in result.verdict.fixes] == ["workers=4 in the command"]


def test_on_a_busy_machine_points_that_differ_clearly_are_ranked_as_likely(tmp_path: Path) -> None:
    result = swept(tmp_path, Machine(), disturbed=True, others_cpu_fraction=0.4)
    assert result.verdict.text.startswith("LIKELY BEST 2 workers, as you have: 20 steps/s")
    assert (result.verdict.kind, result.verdict.likely) == ("best", True)
    assert "try more" not in (result.verdict.why or "")
    assert result.verdict.trust.level == "caution"
    assert result.verdict.trust.reasons[0] == "other programs took up to 40 % of the CPUs in 2 of 2 runs"
    assert result.verdict.trust.codes[0] == "IO901"


def test_on_a_busy_machine_more_workers_have_to_be_faster_for_certain(tmp_path: Path) -> None:
    busy = {"disturbed": True, "others_cpu_fraction": 0.4}
    machine = Machine(compute_ms=75.0, make_ms=100.0)  # 10 and 13.3 steps/s
    assert silent(swept(tmp_path / "a", machine, **busy)) == "which of 1 or 2 workers is faster is not clear"
    assert swept(tmp_path / "b", machine).verdict.text.startswith("BEST 2 workers")


def test_points_that_others_held_up_unlike_compare_by_what_each_may_do_alone(tmp_path: Path) -> None:
    class Uneven(Machine):
        """Others take CPUs at one worker alone, where the step alone takes `least` of what it took."""

        least = 1.0

        def __call__(self, request: Request) -> SweepRun:
            run = super().__call__(request)
            if request.params["workers"] != "1" or run.step_ms is None:
                return msgspec.structs.replace(run, others_cpu_fraction=0.0)
            held_up = {"others_cpu_fraction": 0.6, "disturbed": True}
            return msgspec.structs.replace(run, least_step_ms=self.least * run.step_ms, **held_up)

    asked = plan(axes={"workers": ["1", "4"]})  # 100 ms a step against 30
    clear = Uneven()
    clear.least = 0.5
    result = run_sweep(tmp_path / "a", clear, asked).result()
    assert result.verdict.text.startswith("LIKELY BEST 4 workers")
    low, high = result.points[0].ci95 or ()
    assert (low, high) == pytest.approx((10 / 1.28, 10 / 0.72), rel=0.01)  # one run beside others
    assert result.points[0].alone_ci95 == [low, 2 * high]
    vague = Uneven()
    vague.least = 0.2
    assert silent(run_sweep(tmp_path / "b", vague, asked).result()) == (
        "which of 1 or 4 workers is faster is not clear"
    )


def test_points_whose_intervals_overlap_much_are_not_ranked(tmp_path: Path) -> None:
    class Noisy(Machine):
        def __call__(self, request: Request) -> SweepRun:
            run = super().__call__(request)
            assert run.step_ms is not None
            return msgspec.structs.replace(run, step_ci95_ms=[0.85 * run.step_ms, 1.15 * run.step_ms])

    result = run_sweep(tmp_path / "s", Noisy(compute_ms=30, make_ms=100)).result()
    assert silent(result) == "which of 4 or 7 workers is faster is not clear"
    assert result.verdict.why == "33.3 (95 %: 29 to 39.2) against 33.3 (95 %: 29 to 39.2) steps/s"
    # Two that no interval can take for alike are told apart all the same.
    clear = run_sweep(tmp_path / "t", Noisy(), plan(axes={"workers": ["1", "4"]})).result()
    assert clear.verdict.text.startswith("BEST 4 workers")


def test_a_point_above_its_ceiling_was_measured_wrong(tmp_path: Path) -> None:
    assert "no loader can beat" in advised(tmp_path / "a", Machine())

    class Odd(Machine):
        def __call__(self, request: Request) -> SweepRun:
            run = super().__call__(request)
            slow = {"compute_ms": 90.0, "compute_ci95_ms": [89.0, 91.0]}
            return run if request.kind != "ceiling" else msgspec.structs.replace(run, **slow)

    result = run_sweep(tmp_path / "b", Odd()).result()
    assert silent(result) == "4 workers are faster than the ceiling, which no loader can beat"
    fast = "faster than batches from memory: 4 workers, 33.3 steps/s against 11.1"
    assert fast in result.verdict.trust.reasons


def test_a_ceiling_that_others_held_up_bounds_nothing_below_what_it_may_do_alone(tmp_path: Path) -> None:
    class Slowed(Machine):
        def __call__(self, request: Request) -> SweepRun:
            run = super().__call__(request)
            slow = {"compute_ms": 60.0, "compute_ci95_ms": [59.0, 61.0], "disturbed": True}
            alone = {"step_ms": 60.0, "least_step_ms": 20.0}
            return run if request.kind != "ceiling" else msgspec.structs.replace(run, **slow, **alone)

    result = run_sweep(tmp_path / "s", Slowed()).result()
    assert result.ceiling is not None
    assert result.ceiling.ci95 == pytest.approx([1e3 / 61, 3e3 / 59])
    assert result.verdict.kind == "best"  # 33 steps/s, above the 17 that were measured


def test_a_point_alone_and_points_of_few_steps_say_nothing(tmp_path: Path) -> None:
    alone = run_sweep(tmp_path / "a", Machine(), plan(axes={"workers": ["2"]})).result()
    assert silent(alone) == "2 workers alone gave figures: there is nothing to compare them with"
    assert silent(swept(tmp_path / "b", Machine(), step_ci95_ms=None)).endswith(
        "few steps for a 95 % interval"
    )
    machine = Machine()
    machine.fail = dict.fromkeys(("1", "2", "4", "7"), "failed")
    failed = run_sweep(tmp_path / "c", machine).result()
    assert silent(failed) == "no point gave figures"


def test_without_a_loader_the_fastest_point_is_advised(tmp_path: Path) -> None:
    unknown = {"production_ms": None, "compute_ms": None, "raw_wait_fraction": None, "causes_ms": {}}
    text = advised(tmp_path, Machine(), workers=None, own_workers=None, **unknown)
    assert text.startswith("use workers=2: ")
    assert "the best of all" in text
    assert "more workers" not in text.lower()


@pytest.mark.parametrize("width", [60, 80, 120, 200])
@pytest.mark.parametrize("verbose", [False, True])
def test_no_line_of_the_screen_is_wider_than_it_or_ends_in_a_space(
    tmp_path: Path, width: int, verbose: bool
) -> None:
    machine = Machine()
    machine.fail = {"7": "failed"}
    for name, repeats in (("a", 1), ("b", 2)):
        result = run_sweep(tmp_path / name, machine, plan(repeats=repeats)).result()
        console = Console(width=width, record=True, file=StringIO(), highlight=False)
        print_sweep(result, console, verbose)
        lines = console.export_text().splitlines()
        assert lines[0].startswith("BEST   4 workers: ")
        assert all(line == line.rstrip() for line in lines)
        # Paths are not cut: one would have to type them.
        assert all(len(line) <= width or tmp_path.name in line for line in lines)
        assert any("yours" in line and "2" in line for line in lines)
