"""`iotrace try`: which fix is chosen, what pairs of runs prove, what a trial leaves behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import msgspec
import numpy as np
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from iotrace.analysis.results import Change, Fix, Report, SessionInfo, Trust, Verdict
from iotrace.cli import app
from iotrace.errors import IotraceError, UsageError
from iotrace.patching.patch import Patch
from iotrace.sweeps.ending import end
from iotrace.sweeps.execute import Request
from iotrace.sweeps.results import SweepRun
from iotrace.trying.copied import given, write_table
from iotrace.trying.copies import Job, place_for, put_in_place, with_targets, write_copies
from iotrace.trying.fixes import Choice, choose, find_fix, promised_gain
from iotrace.trying.options import Options
from iotrace.trying.program import Program, offline
from iotrace.trying.proof import judge, judge_unqueued, looks
from iotrace.trying.results import (
    FAILED,
    LOOP,
    NO_HELP,
    PROVEN,
    RESULT,
    RUN,
    SLOWER,
    STEP,
    UNCLEAR,
    Data,
    Gain,
    Told,
    Trial,
)
from iotrace.trying.summary import describe, describe_gain
from iotrace.trying.trial import Trying, in_place
from tests.support.results import unknown

_WORKERS = Fix(
    id="too-few-workers",
    text="DataLoader(num_workers=3)",
    code="IO204",
    gain_ms_per_step=50.0,
    speedup=2.0,
    change=Change(settings={"num_workers": "3"}),
)
_CODE = Fix(id="slow-collate", text="collate less", code="IO106")


def _report(*fixes: Fix) -> Report:
    trust = Trust(level="ok", reasons=[])
    verdict = Verdict(
        text="INPUT-BOUND", banner="INPUT-BOUND", kind="input-bound", fixes=[*fixes], trust=trust
    )
    session = unknown(SessionInfo, path="s")
    return unknown(Report, verdict=verdict, session=session, ranks=[])


# -- which fix


def test_the_first_fix_that_needs_no_edit_is_tried() -> None:
    chosen = choose(_report(_CODE, _WORKERS), [], "train.py:7")
    assert chosen.fixes == [_WORKERS]
    assert [(each.fix, each.where) for each in chosen.untried] == [("IO106", "train.py:7")]
    assert chosen.params == {"workers": "3", "iotrace try": "IO204"}


@pytest.mark.parametrize("name", ["2", "IO204", "io204", "too-few-workers"])
def test_a_fix_is_named_by_number_code_or_name(name: str) -> None:
    assert choose(_report(_CODE, _WORKERS), [name]).fixes == [_WORKERS]


@pytest.mark.parametrize("name", ["0", "3", "IO999"])
def test_a_fix_that_is_not_named_is_wrong_usage(name: str) -> None:
    with pytest.raises(UsageError, match=f"--fix {name}"):
        choose(_report(_CODE, _WORKERS), [name])


def test_what_needs_an_edit_is_said_with_its_lines() -> None:
    with pytest.raises(IotraceError, match="has to be edited") as error:
        choose(_report(_CODE), [], "train.py:7")
    assert error.value.remedy == "collate less (train.py:7)"
    with pytest.raises(IotraceError, match="has to be edited"):
        choose(_report(_CODE, _WORKERS), ["1"])
    with pytest.raises(IotraceError, match="names no fix"):
        choose(_report(), [])
    with pytest.raises(UsageError, match="--fix IO204: the report names no fix"):
        find_fix([], "IO204")
    with pytest.raises(UsageError, match="--fix 2: the report names no fix"):
        find_fix([], "2")


def test_fixes_that_exclude_each_other_are_refused() -> None:
    none = replace(_WORKERS, id="none", code="IO201", change=Change(settings={"num_workers": "0"}))
    with pytest.raises(UsageError, match="exclude each other: num_workers is 3"):
        choose(_report(_WORKERS, none), ["1", "2"])
    kept = replace(_WORKERS, id="kept", code="IO203", change=Change(settings={"persistent_workers": "True"}))
    with pytest.raises(UsageError, match="leaves no workers for"):
        choose(_report(kept, none), ["1", "2"])
    order = replace(_WORKERS, id="order", code="IO206", change=Change(settings={"in_order": "False"}))
    both = choose(_report(_WORKERS, order), ["1", "2"])
    assert both.params == {"workers": "3", "in_order": "False", "iotrace try": "IO204,IO206"}
    one = replace(_WORKERS, id="one", code="IO102", change=Change(stored="chunks", paths=["a.h5"]))
    other = replace(one, id="other", change=Change(stored="lighter", paths=["./a.h5"]))
    with pytest.raises(UsageError, match=r"exclude each other: a\.h5"):
        choose(_report(one, other), ["1", "2"])


def test_what_lies_between_steps_is_measured_where_the_fix_saves_it() -> None:
    assert Choice(fixes=[_WORKERS]).measured == STEP
    assert Choice(fixes=[replace(_WORKERS, code="IO203")]).measured == LOOP


def test_what_was_told_is_a_bound_or_an_interval() -> None:
    assert promised_gain([_WORKERS]) == Told(low=None, high=2.0)
    predicted = replace(_WORKERS, at_most=False, gain_interval_ms=[20.0, 60.0], most_ms_per_step=60.0)
    told = promised_gain([predicted])
    assert told is not None
    assert (told.low, told.high) == (pytest.approx(1.25), pytest.approx(2.5))
    assert describe_gain(told) == "1.2 to 2.5x"
    bound = promised_gain([replace(_WORKERS, most_ms_per_step=75.0)])
    assert bound == Told(low=2.0, high=pytest.approx(4.0), about=True)
    assert bound is not None
    assert describe_gain(bound) == "2.0x to 4.0x"
    near = promised_gain([replace(_WORKERS, most_ms_per_step=70.0)])
    assert near is not None
    assert describe_gain(near) == "about 2.0x, at most 3.3x"
    unbounded = promised_gain([replace(predicted, most_ms_per_step=None)])
    assert unbounded == Told(low=2.0, high=None, about=True)
    assert unbounded is not None
    assert describe_gain(unbounded) == "about 2.0x, perhaps more"
    assert promised_gain([_WORKERS, _WORKERS]) is None
    assert promised_gain([replace(_WORKERS, speedup=None)]) is None


# -- what pairs prove


def _runs(pairs: list[tuple[float, float]]) -> list[SweepRun]:
    found = []
    for repeat, pair in enumerate(pairs, 1):
        for params, step_ms in zip(({}, {"workers": "3"}), pair, strict=True):
            found.append(
                SweepRun(params=params, kind="point", repeat=repeat, session="", status="ok", step_ms=step_ms)
            )
    return found


@pytest.mark.parametrize(
    ("pairs", "kind"),
    [
        ([(100, 50), (104, 51), (98, 50)], PROVEN),
        ([(100, 50)] * 2, UNCLEAR),
        ([(100, 99), (101, 101), (99, 100)], NO_HELP),
        ([(100, 96), (101, 97), (99, 95.1)], NO_HELP),  # faster for sure, and hardly: 4 %
        ([(50, 100), (51, 104), (50, 98)], SLOWER),
        ([(100, 80), (100, 130), (100, 70)], UNCLEAR),
    ],
)
def test_pairs_prove_what_chance_does_not_explain(pairs: list[tuple[float, float]], kind: str) -> None:
    assert judge(_runs(pairs), {"workers": "3"}).kind == kind


def test_a_change_that_does_nothing_is_seldom_proven() -> None:
    """Five looks at up to seven pairs of noise: faster or slower in no more than one trial of twenty."""
    generator, wrong, trials = np.random.default_rng(0), 0, 400
    for _ in range(trials):
        pairs = [tuple(100 * np.exp(generator.normal(scale=0.1, size=2))) for _ in range(7)]
        kinds = [judge(_runs(pairs[:look]), {"workers": "3"}).kind for look in looks(7)]
        wrong += next((kind for kind in kinds if kind != UNCLEAR), UNCLEAR) in (PROVEN, SLOWER)
    assert wrong <= 0.05 * trials


def _beside(pairs: list[tuple[float, float]], left: list[tuple[float, float]]) -> list[SweepRun]:
    """Runs beside other programs; without queueing for CPUs `left` is left of steps."""
    known = [each for pair in left for each in pair]
    runs = zip(_runs(pairs), known, strict=True)
    return [replace(run, unqueued_step_ms=left_ms, disturbed=True) for run, left_ms in runs]


def test_beside_other_programs_what_is_left_without_queueing_may_prove_it() -> None:
    noisy = [(290.0, 56.0), (190.0, 210.0), (450.0, 55.0), (120.0, 97.0), (300.0, 80.0)]
    params = {"workers": "3"}

    def kind(pairs: list[tuple[float, float]], left: list[tuple[float, float]]) -> str:
        runs = _beside(pairs, left)
        return judge_unqueued(runs, params, judge(runs, params)).kind

    assert judge(_runs(noisy), params).kind == UNCLEAR
    assert kind(noisy, [(48.5, 13.3), (48, 13.5), (49.3, 13.9), (47.5, 13), (48, 13.2)]) == PROVEN
    assert kind(noisy, [(48.5, 48.3), (48, 48.5), (49.3, 47.9), (47.5, 48), (48, 48.2)]) == UNCLEAR
    assert kind(noisy, [(50, 49), (50, 48.9), (50, 49.1), (50, 49), (50, 49)]) == UNCLEAR  # 2 % is no help
    assert kind(noisy, [(48, 13), (13, 48), (49, 30), (20, 13), (48, 40)]) == UNCLEAR
    slower = [(other, own) for own, other in noisy]
    assert kind(slower, [(48.5, 13.3), (48, 13.5), (49.3, 13.9), (47.5, 13), (48, 13.2)]) == UNCLEAR
    # Nobody was beside it, or it is not known what is left: only the steps count.
    found = judge(_runs(noisy), params)
    assert judge_unqueued(_runs(noisy), params, found) is found
    proven = judge(_runs([(100, 50), (104, 51), (98, 50)]), params)
    both = judge_unqueued(_beside([(9, 8)] * 3, [(9, 8)] * 3), params, proven)
    assert both.kind == PROVEN
    assert both.gain == proven.gain
    assert both.gain_unqueued is not None


def test_runs_are_looked_at_five_times_at_most() -> None:
    assert looks(2) == []
    assert looks(3) == [3]
    assert looks(5) == [3, 4, 5]
    assert looks(7) == [3, 4, 5, 6, 7]
    assert len(looks(40)) == 5
    assert looks(40)[-1] == 40


def test_the_line_says_gain_and_what_was_told() -> None:
    trial = unknown(
        Trial, kind=PROVEN, gain=judge(_runs([(100, 53), (98, 51), (99, 52)]), {"workers": "3"}).gain
    )
    told = replace(trial, told=Told(low=None, high=2.0))
    assert describe(told) == "PROVEN 1.9x faster (1.9 to 1.9), the report said: at most 2.0x"
    whole = "PROVEN 1.9x faster (1.9 to 1.9), the whole command, the report said of a step: at most 2.0x"
    assert describe(replace(told, measured=RUN)) == whole
    none = replace(
        told, kind=NO_HELP, gain=judge(_runs([(100, 100), (98, 98), (99, 99)]), {"workers": "3"}).gain
    )
    assert describe(none) == "DOES NOT HELP 1.00 times as fast (1.00 to 1.00), the report said: at most 2.0x"
    assert describe(replace(none, kind=FAILED, why="it fails")) == "NOT TRIED it fails"
    alone = replace(told, gain_unqueued=Gain(median=3.5, low=3.3, high=3.8))
    beside = "3.5x (3.3 to 3.8) without queueing for CPUs"
    said = "the report said: at most 2.0x"
    assert describe(alone) == f"PROVEN faster: {beside}, 1.9x (1.9 to 1.9) as measured, {said}"
    nothing = replace(told, gain_unqueued=Gain(median=1.11, low=0.85, high=1.3))
    beside_nothing = "1.9x (1.9 to 1.9) as measured, 1.11x (0.85 to 1.3) without queueing for CPUs"
    assert describe(nothing) == f"PROVEN faster: {beside_nothing}, {said}"
    unclear = replace(alone, kind=UNCLEAR)
    assert describe(unclear) == f"NOT PROVEN 1.9 times as fast (1.9 to 1.9), {beside}, {said}"


def test_only_of_data_steps_without_queueing_are_looked_at() -> None:
    assert not Choice(fixes=[_WORKERS]).is_of_data_alone
    data = replace(_WORKERS, change=Change(stored="chunks", paths=["a.h5"]))
    assert Choice(fixes=[data]).is_of_data_alone
    assert not Choice(fixes=[data, _WORKERS]).is_of_data_alone


# -- a trial


class _Runner:
    """Stands for the running of programs: each run is what `made` says of its request."""

    def __init__(self, made: Callable[[Request], dict[str, Any]]) -> None:
        self.requests: list[Request] = []
        self._made = made

    def __call__(self, request: Request) -> SweepRun:
        self.requests.append(request)
        (request.directory).mkdir(parents=True)
        (request.directory / "output.log").write_text("Traceback\nValueError: no such thing\n")
        known = {"status": "ok", "step_ms": 100.0, "batches": 40, "seconds": 1.0, **self._made(request)}
        return SweepRun(
            params=request.params,
            kind=request.kind,
            repeat=request.repeat,
            session=str(request.directory / "session"),
            **known,
        )


def _trying(
    folder: Path,
    runner: _Runner,
    fix: Fix = _WORKERS,
    jobs: list[Job] | None = None,
    wrote: Sequence[str] = ("checkpoint.pt",),
    **options: Any,
) -> Trying:
    program = Program(
        command=["python", "train.py"],
        working_directory=str(folder),
        python=sys.executable,
        wrote=[*wrote],
        seconds=12.0,
        only=[],
    )
    asked = Options(directory=folder / "trial", **options)
    choice = Choice(fixes=[fix])
    return Trying(folder / "s", _report(fix), choice, program, jobs or [], asked, runner, Path(__file__))


def _faster(request: Request) -> dict[str, Any]:
    return {"step_ms": (50.0 if request.params else 100.0) + request.repeat}


def test_what_git_would_refuse_at_the_end_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Patch(diff="a", lines=[(str(tmp_path / "train.py"), 1)], root=str(tmp_path))
    monkeypatch.setattr("iotrace.trying.trial.patch_of_fix", lambda *_: made)
    runner = _Runner(_faster)
    with pytest.raises(IotraceError, match="is not in a git tree"):
        _trying(tmp_path, runner).check_apply()
    made = Patch(why_not="so")  # which is said behind the proof
    _trying(tmp_path, runner).check_apply()
    assert not runner.requests
    fix, jobs = _of_data(tmp_path)
    for words in (["init", "-q"], ["add", "a.h5"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    with pytest.raises(IotraceError, match=r"not committed .*a\.h5 stays as it is"):
        _trying(tmp_path, runner, fix, jobs).check_apply()


def test_a_setting_is_proven_in_turns(tmp_path: Path) -> None:
    runner = _Runner(_faster)
    found = _trying(tmp_path, runner).run(lambda _: None)
    assert found.kind == PROVEN
    assert found.proven
    assert [bool(request.params) for request in runner.requests] == [False, True] * 3
    assert all(request.working_directory == str(tmp_path) for request in runner.requests)
    assert runner.requests[1].params["workers"] == "3"
    assert dict(runner.requests[0].variables)["WANDB_MODE"] == "offline"
    kept = msgspec.json.decode((tmp_path / "trial" / RESULT).read_bytes(), type=Trial)
    assert kept == found
    assert kept.runs.before_ns == [101_000_000, 102_000_000, 103_000_000]
    assert [each.after for each in kept.settings] == ["3"]


def test_trackers_stay_online_where_that_is_asked(tmp_path: Path) -> None:
    runner = _Runner(_faster)
    _trying(tmp_path, runner, as_it_is=True).run(lambda _: None)
    assert runner.requests[0].variables == ()
    assert offline(tmp_path)["MLFLOW_TRACKING_URI"] == f"file://{tmp_path}/mlruns"


def test_what_runs_write_is_said_before(tmp_path: Path) -> None:
    said = "\n".join(_trying(tmp_path, _Runner(_faster), steps=20).intent)
    assert "python train.py" in said
    assert "checkpoint.pt" in said
    assert "20 steps" in said


def test_a_program_that_fails_as_it_is_leaves_nothing(tmp_path: Path) -> None:
    runner = _Runner(lambda _: {"status": "failed", "reason": "exit code 3", "exit_code": 3})
    with pytest.raises(IotraceError, match="fails as it is: exit code 3") as error:
        _trying(tmp_path, runner).run(lambda _: None)
    assert "no such thing" in error.value.output
    assert len(runner.requests) == 1
    assert not list(tmp_path.iterdir())


def test_a_program_that_fails_with_the_fix_is_said(tmp_path: Path) -> None:
    runner = _Runner(lambda asked: {"status": "failed", "reason": "exit code 1"} if asked.params else {})
    found = _trying(tmp_path, runner).run(lambda _: None)
    assert found.text == "NOT TRIED the program fails with it: exit code 1: ValueError: no such thing"
    assert not found.proven


def test_runs_of_other_lengths_are_no_proof(tmp_path: Path) -> None:
    runner = _Runner(lambda asked: {"batches": 80 if asked.params else 40, "step_ms": 50.0})
    found = _trying(tmp_path, runner).run(lambda _: None)
    assert (found.kind, found.why) == (FAILED, "the runs did not do the same work: 40 and 80 batches")
    longer = _Runner(lambda asked: {"batches": 102, "workers": 3} if asked.params else {"batches": 60})
    third = tmp_path / "third"
    third.mkdir()
    stopped = _trying(third, longer).run(lambda _: None)  # which --steps ended
    assert stopped.why == "the runs did not do the same work: 60 and 102 batches"
    ended = _Runner(
        lambda asked: {"batches": 22 if asked.params else 20, "workers": 3 if asked.params else 0}
    )
    other = tmp_path / "other"
    other.mkdir()
    assert _trying(other, ended, steps=18, runs=6).run(lambda _: None).kind == NO_HELP


def test_the_budget_ends_it(tmp_path: Path) -> None:
    noise = iter([100.0, 60.0, 90.0, 130.0, 100.0, 50.0, 100.0, 140.0, 90.0, 70.0, 1.0])
    runner = _Runner(lambda _: {"step_ms": next(noise)})
    found = _trying(tmp_path, runner, runs=10).run(lambda _: None)
    assert (found.kind, len(runner.requests)) == (UNCLEAR, 10)
    assert found.complete


def test_a_run_that_takes_too_long_did_not_fail(tmp_path: Path) -> None:
    runner = _Runner(lambda asked: {"status": "failed", "seconds": asked.most_s})
    with pytest.raises(IotraceError, match="takes longer than the") as error:
        _trying(tmp_path, runner, minutes=0.1).run(lambda _: None)
    assert "--minutes" in error.value.remedy
    assert not list(tmp_path.iterdir())


def test_too_little_is_refused_before_anything_runs(tmp_path: Path) -> None:
    runner = _Runner(_faster)
    for options, what in (({"runs": 4}, "--runs 4"), ({"bare": True}, "--bare")):
        with pytest.raises(UsageError, match=what):
            _trying(tmp_path, runner, **options)
    assert not runner.requests
    assert not list(tmp_path.iterdir())


# -- copies of data


def _volume(path: Path, **options: Any) -> None:
    with h5py.File(path, "w") as file:
        values = np.arange(16 * 16 * 4, dtype=np.float32).reshape(16, 16, 4)
        made = file.create_dataset("group/image", data=values, compression="gzip", **options)
        made.attrs["unit"] = "mm"
        file["label"] = np.arange(4)


_CHUNKS = {"group/image": [4, 4, 4]}


def test_chunks_are_others_and_values_the_same(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    _volume(path, chunks=(16, 16, 4))
    before, status = path.read_bytes(), path.stat()
    jobs = with_targets([Job(format="hdf5", how="chunks", source=str(path), arrays=_CHUNKS)], tmp_path / "to")
    (made,) = write_copies(jobs, sys.executable, lambda _: None)
    with h5py.File(path) as old, h5py.File(made.new_path) as new:
        assert new["group/image"].chunks == (4, 4, 4)
        assert new["group/image"].compression == "gzip"
        assert dict(new["group/image"].attrs) == {"unit": "mm"}
        assert (new["group/image"][()] == old["group/image"][()]).all()
        assert (new["label"][()] == old["label"][()]).all()
    assert path.read_bytes() == before
    assert os.stat(made.new_path).st_mtime_ns == status.st_mtime_ns


def _copied(job: Job, folder: Path) -> Path:
    (made,) = write_copies(with_targets([job], folder), sys.executable, lambda _: None)
    return Path(made.new_path)


def test_scales_of_dimensions_stay_attached(tmp_path: Path) -> None:
    path = tmp_path / "a.nc"
    with h5py.File(path, "w") as file:
        file["time"] = np.arange(16)
        file["time"].make_scale("time")
        file.create_dataset("t2m", data=np.ones((16, 4)), chunks=(16, 4), compression="gzip")
        file["t2m"].dims[0].attach_scale(file["time"])
    job = Job(format="hdf5", how="chunks", source=str(path), arrays={"t2m": [1, 4]})
    with h5py.File(_copied(job, tmp_path / "to")) as new:
        assert new["t2m"].chunks == (1, 4)
        assert (new["t2m"].dims[0][0][()] == np.arange(16)).all()
    others = Job(format="hdf5", how="chunks", source=str(path), arrays={"time": [4]})
    with pytest.raises(IotraceError, match="is referred to by others"):
        write_copies(with_targets([others], tmp_path / "other"), sys.executable, lambda _: None)


def test_compression_goes_and_values_stay(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    _volume(path, chunks=(16, 16, 4))
    with h5py.File(_copied(Job(format="hdf5", how="lighter", source=str(path)), tmp_path / "to")) as new:
        assert new["group/image"].compression is None
        assert new["group/image"][15, 15, 3] == 1023


@pytest.mark.parametrize("form", [2, 3])
def test_an_array_of_a_store_gets_other_chunks(tmp_path: Path, form: Any) -> None:
    import zarr

    path = tmp_path / "a.zarr"
    group = zarr.open_group(path, mode="w", zarr_format=form)
    for name in ("t", "u"):
        made = group.create_array(name, shape=(8, 4), chunks=(8, 4), dtype="f4")
        made[:] = np.arange(32).reshape(8, 4)
        made.attrs["unit"] = "K"
    zarr.consolidate_metadata(path)
    before = sorted(str(each) for each in path.rglob("*"))
    copy = zarr.open_group(
        _copied(Job(format="zarr", how="chunks", source=str(path), arrays={"t": [1, 4]}), tmp_path / "to"),
        mode="r",
        zarr_format=form,
    )
    for name, chunks in (("t", (1, 4)), ("u", (8, 4))):
        array = copy[name]
        assert isinstance(array, zarr.Array)
        assert (array.chunks, dict(array.attrs), array.metadata.zarr_format) == (chunks, {"unit": "K"}, form)
        assert (np.asarray(array[:]) == np.arange(32).reshape(8, 4)).all()
    assert sorted(str(each) for each in path.rglob("*")) == before


def test_row_groups_are_others(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "a.parquet"
    table = pa.table({"a": [*range(1000)], "b": ["x"] * 1000})
    pq.write_table(table, path, compression="zstd")
    copy = pq.ParquetFile(
        _copied(Job(format="parquet", how="row-groups", source=str(path), rows=100), tmp_path / "to")
    )
    assert copy.metadata.num_row_groups == 10
    assert copy.metadata.row_group(0).column(0).compression == "ZSTD"
    assert copy.read().equals(table)


def test_an_image_needs_no_decoding_unless_it_is_turned(tmp_path: Path) -> None:
    from PIL import Image

    image = Image.fromarray(np.arange(300, dtype=np.uint8).reshape(10, 10, 3))
    turned = image.getexif()
    turned[274] = 6
    image.save(tmp_path / "a.jpg")
    image.save(tmp_path / "b.jpg", exif=turned)
    jobs = [Job(format="image", how="unpacked", source=str(tmp_path / name)) for name in ("a.jpg", "b.jpg")]
    made = write_copies(with_targets(jobs, tmp_path / "to"), sys.executable, lambda _: None)
    assert [each.path for each in made] == [str(tmp_path / "a.jpg")]
    with Image.open(made[0].new_path) as copy, Image.open(tmp_path / "a.jpg") as original:
        assert copy.format == "BMP"
        assert copy.tobytes() == original.tobytes()


def test_what_cannot_be_copied_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    _volume(path, chunks=(16, 16, 4))
    wrong = Job(format="hdf5", how="chunks", source=str(path), arrays={"group/image": [4, 4]})
    with pytest.raises(IotraceError, match="cannot be copied so"):
        write_copies(with_targets([wrong], tmp_path / "to"), sys.executable, lambda _: None)
    assert not list((tmp_path / "to").iterdir())


def test_an_archive_of_arrays_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, image=np.zeros((64, 64)), label=np.ones(3))
    job = Job(format="npz", how="unpacked", source=str(path))
    (made,) = write_copies(with_targets([job], tmp_path / "to"), sys.executable, lambda _: None)
    assert all(not each.compress_type for each in zipfile.ZipFile(made.new_path).infolist())
    assert (np.load(made.new_path)["image"] == 0).all()
    assert made.new_bytes > made.bytes


def test_no_room_is_said_before_a_byte_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, image=np.zeros(4))
    head = "import shutil\nshutil.disk_usage = lambda _: type('u', (), {'free': 10})\n"
    script = tmp_path / "rewrite.py"
    original = Path(write_copies.__code__.co_filename).with_name("rewrite.py").read_text()
    script.write_text(original.replace("import shutil\n", head))
    monkeypatch.setattr("iotrace.trying.copies._SCRIPT", script)
    jobs = with_targets([Job(format="npz", how="unpacked", source=str(path))], tmp_path / "to")
    with pytest.raises(IotraceError, match=r"no room for the copy: it needs .*, 10 B are free"):
        write_copies(jobs, sys.executable, lambda _: None)
    assert not list((tmp_path / "to").iterdir())


def test_copies_lie_in_the_trial_and_apart(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.npz").write_bytes(b"")
    jobs = [Job(format="npz", how="unpacked", source=str(tmp_path / name / "x.npz")) for name in ("a", "b")]
    trial = tmp_path / "trial"
    trial.mkdir()
    place = place_for(jobs, trial)
    assert place == trial / "data"
    assert len({job.target for job in with_targets(jobs, place)}) == 2


def _of_data(folder: Path) -> tuple[Fix, list[Job]]:
    path = folder / "a.h5"
    _volume(path, chunks=(16, 16, 4))
    fix = replace(_WORKERS, id="decode-bound", code="IO102", change=Change(stored="chunks", paths=["a.h5"]))
    return fix, [Job(format="hdf5", how="chunks", source=str(path), arrays=_CHUNKS)]


def _opened(request: Request) -> None:
    """Count an opening in the table, as the recorder does."""
    table = Path(dict(request.variables)["IOTRACE_SERVED"])
    content = bytearray(table.read_bytes())
    content[64 + 6 * 8] += 5
    table.write_bytes(bytes(content))


def test_data_is_given_to_the_changed_runs_alone(tmp_path: Path) -> None:
    def made(request: Request) -> dict[str, Any]:
        assert ("IOTRACE_SERVED" in dict(request.variables)) == bool(request.params)
        if request.params:
            _opened(request)
        return _faster(request)

    fix, jobs = _of_data(tmp_path)
    before = (tmp_path / "a.h5").read_bytes()
    found = _trying(tmp_path, _Runner(made), fix, jobs).run(lambda _: None)
    assert found.kind == PROVEN
    assert found.data[0].opens == 5
    assert Path(found.data[0].new_path).exists()  # of what was proven the copy stays
    assert (tmp_path / "a.h5").read_bytes() == before


def test_a_copy_that_nobody_opened_proves_nothing(tmp_path: Path) -> None:
    fix, jobs = _of_data(tmp_path)
    found = _trying(tmp_path, _Runner(_faster), fix, jobs).run(lambda _: None)
    assert found.kind == FAILED
    assert "did not open" in found.why
    assert not Path(found.data[0].new_path).exists()


def test_an_interrupt_keeps_the_runs_and_no_copy(tmp_path: Path) -> None:
    def made(request: Request) -> dict[str, Any]:
        if request.params:
            raise KeyboardInterrupt
        return {}

    fix, jobs = _of_data(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        _trying(tmp_path, _Runner(made), fix, jobs).run(lambda _: None)
    kept = msgspec.json.decode((tmp_path / "trial" / RESULT).read_bytes(), type=Trial)
    assert (kept.complete, kept.proven) == (False, False)
    assert not (tmp_path / "trial" / "data").exists()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.h5", "trial"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_during_the_copy_leaves_none(tmp_path: Path, number: int) -> None:
    fix, jobs = _of_data(tmp_path)
    usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
    before = signal.signal(number, usual)  # what starts the tests may ignore it, as nohup does
    runner = _Runner(_faster)
    try:
        with pytest.raises(KeyboardInterrupt):
            _trying(tmp_path, runner, fix, jobs).run(lambda _: None, lambda _: os.kill(os.getpid(), number))
        assert signal.getsignal(number) == usual
    finally:
        signal.signal(number, before)
    assert not runner.requests
    assert not (tmp_path / "trial" / "data").exists()


def test_a_second_key_does_not_stop_the_cleaning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from iotrace.trying import copies

    def removing(paths: list[str]) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        remove(paths)

    def ended(request: Request) -> dict[str, Any]:
        os.kill(os.getpid(), signal.SIGTERM)
        return {}

    remove = copies.remove
    monkeypatch.setattr("iotrace.trying.copies.remove", removing)
    fix, jobs = _of_data(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        _trying(tmp_path, _Runner(ended), fix, jobs).run(lambda _: None)
    assert (tmp_path / "trial" / RESULT).exists()
    assert not (tmp_path / "trial" / "data").exists()


def test_what_ends_a_command_ends_all_that_it_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iotrace.sweeps.ending._PATIENCE_S", 0.2)
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True)"
    start = "import subprocess as s, sys; print(s.Popen([sys.executable, '-c', sys.argv[1]]).pid)"
    words = [sys.executable, "-c", f"{start}; {deaf}; time.sleep(60)", f"{deaf}; time.sleep(60)"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = {process.stdout.readline().strip() for _ in range(3)}
        (child,) = lines - {"up"}
        assert end(process) == -signal.SIGKILL
        assert process.stdout.read() == ""  # at its end: nobody holds it any more
    assert not Path(f"/proc/{child}/exe").exists()


def test_data_that_the_recorded_run_made_is_not_what_runs_write(tmp_path: Path) -> None:
    _, jobs = _of_data(tmp_path)
    trying = _trying(tmp_path, _Runner(_faster), jobs=jobs, wrote=["a.h5", "checkpoint.pt"])
    made, written = trying.intent[-2:]
    assert made == "the recorded run made its data, a.h5: a run that makes it anew ends the trial"
    assert written == "each run writes what the recorded one wrote: checkpoint.pt"


def test_a_table_says_what_was_given(tmp_path: Path) -> None:
    data = []
    for name in ("b", "a"):
        for folder in ("old", "new"):
            (tmp_path / folder).mkdir(exist_ok=True)
            (tmp_path / folder / name).write_bytes(b"x")
        paths = {"path": str(tmp_path / "old" / name), "new_path": str(tmp_path / "new" / name)}
        data.append(Data(how="unpacked", bytes=1, new_bytes=1, **paths))
    write_table(tmp_path / "table", data)
    opens, written = given(tmp_path / "table", data)
    assert opens == {each.path: 0 for each in data}
    assert written == []


# -- the command


def test_a_session_that_is_none_is_said(tmp_path: Path) -> None:
    from iotrace.errors import SessionError

    found = CliRunner().invoke(app, ["try", str(tmp_path), "--yes", "--", "python", "-c", "pass", "--help"])
    assert isinstance(found.exception, SessionError)


def test_the_schema_is_that_of_the_result() -> None:
    found = json.loads(CliRunner().invoke(app, ["schema", "try"]).stdout)
    assert {"gain", "proven", "runs", "data", "settings", "fix", "why"} <= found["$defs"]["Trial"][
        "properties"
    ].keys()


def test_csv_gets_a_copy_in_parquet(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pandas.DataFrame({"a": [1, 2], "b": [0.5, None], "c": ["x", "y"]})
    frame.to_csv(tmp_path / "a.csv", index=False)
    job = Job(format="csv", how="parquet", source=str(tmp_path / "a.csv"))
    (made,) = write_copies(with_targets([job], tmp_path / "to"), sys.executable, lambda _: None)
    assert pandas.read_parquet(made.new_path).equals(pandas.read_csv(tmp_path / "a.csv"))
    with pytest.raises(IotraceError, match="another format"):
        put_in_place([made])


def test_copies_take_the_place_of_originals_that_are_kept(tmp_path: Path) -> None:
    fix, jobs = _of_data(tmp_path)

    def made(request: Request) -> dict[str, Any]:
        if request.params:
            _opened(request)
        return _faster(request)

    before = (tmp_path / "a.h5").read_bytes()
    found = in_place(_trying(tmp_path, _Runner(made), fix, jobs).run(lambda _: None))
    (data,) = found.data
    assert data.original is not None
    assert Path(data.original).read_bytes() == before
    assert not Path(data.new_path).exists()
    assert (tmp_path / "a.h5").read_bytes() != before
    kept = msgspec.json.decode((tmp_path / "trial" / RESULT).read_bytes(), type=Trial)
    assert kept.data == found.data


def test_a_store_and_a_file_are_put_in_place_together_or_not_at_all(tmp_path: Path) -> None:
    for name in ("old/store", "new/store"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "c").write_text(name)
    for name in ("old/file", "new/file"):
        (tmp_path / name).write_text(name)
        os.utime(tmp_path / name, ns=(0, 0))
    data = [
        Data(
            path=f"{tmp_path}/old/{name}",
            new_path=f"{tmp_path}/new/{name}",
            how="chunks",
            bytes=1,
            new_bytes=1,
        )
        for name in ("store", "file")
    ]
    (tmp_path / "new" / "originals").mkdir()
    (tmp_path / "new" / "originals" / "file").write_text("somebody's")
    with pytest.raises(IotraceError, match="not put in place"):
        put_in_place(data)
    assert (tmp_path / "old/store/c").read_text() == "old/store"
    assert (tmp_path / "old/file").read_text() == "old/file"
    assert (tmp_path / "new/originals/file").read_text() == "somebody's"
    (tmp_path / "new" / "originals" / "file").unlink()
    made = put_in_place(data)
    assert (tmp_path / "old/store/c").read_text() == "new/store"
    assert (tmp_path / "old/file").read_text() == "new/file"
    assert [Path(each.original or "").name for each in made] == ["store", "file"]
    os.utime(tmp_path / "old/file", ns=(1, 1))


def test_data_that_git_tracks_is_replaced_in_a_clean_tree_only(tmp_path: Path) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    for name in ("file", "train.py", "copy"):
        (tmp_path / name).write_text(name)
        os.utime(tmp_path / name, ns=(0, 0))
    for words in (["init", "-q"], ["add", "file", "train.py"], ["commit", "-qm", "a"]):
        subprocess.run([*git, *words], check=True)
    (tmp_path / "train.py").write_text("changed")
    data = Data(path=f"{tmp_path}/file", new_path=f"{tmp_path}/copy", how="chunks", bytes=1, new_bytes=1)
    with pytest.raises(IotraceError, match="not committed"):
        put_in_place([data])
    assert (tmp_path / "file").read_text() == "file"


def test_threads_and_cpus_are_asked_of_workers() -> None:
    fix = replace(_WORKERS, id="threads", code="IO304", change=Change(threads={"cv2": "1"}, cpus=[0, 1]))
    params = Choice(fixes=[fix]).params
    assert (params["worker_threads"], params["cpus"]) == ("cv2=1", "0,1")
    with pytest.raises(UsageError, match="the threads of cv2, the CPUs"):
        Options(bare=True).check(fix.change or Change(), tables=False)
    opened = replace(_WORKERS, code="IO102", change=Change(kept_open=["data/a.tar"]))
    assert Choice(fixes=[opened]).params["kept_open"] == "a.tar"
    tables = replace(_WORKERS, code="IO102", change=Change(stored="parquet", paths=["a.csv"]))
    assert Choice(fixes=[tables]).params["tables"] == "parquet"
