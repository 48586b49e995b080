"""Regions, marks, wrapped sources and profiled blocks, as programs use them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.perfetto import ERRORS, query
from tests.support.runs import PROJECT, Run, run_bare, run_script, run_traced


def checked(run: Run) -> dict[str, Any]:
    assert run.code == 0, run.stderr
    logs = list(run.session.glob("processes/*/agent.log"))
    assert not logs, logs[0].read_text()
    return run.report()


def missing(report: dict[str, Any]) -> dict[str, dict[str, str]]:
    return {entry["what"]: entry for entry in report["not_captured"]}


PROGRAM = """
import sys, time
import torch, iotrace
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 24
    @iotrace.region("item")
    def __getitem__(self, index):
        with iotrace.region("load"):
            time.sleep(0.012)
        with iotrace.region("augment"):
            time.sleep(0.006)
        return torch.ones(3)

weight = torch.ones(3, requires_grad=True)

def train(loader, fail=False):
    for number, batch in enumerate(loader):
        with iotrace.region("compute"):
            (batch * weight).sum().backward()
        if fail and number == 5:
            raise ValueError("the program's own")

def loader(workers, **options):
    return DataLoader(Slow(), batch_size=1, num_workers=workers, **options)
"""


@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_regions_of_workers_and_trainer(tmp_path: Path, workers: int) -> None:
    run = run_script(tmp_path, f"{PROGRAM}\ntrain(loader({workers}))\n")
    (rank,) = checked(run)["ranks"]
    regions = {region["name"]: region for region in rank["regions"]}
    assert {name: region["count"] for name, region in regions.items()} == dict.fromkeys(
        ["item", "load", "augment", "compute"], 24
    )
    wait_ms = rank["data_wait"]["causes_ms"]["transform"]
    # Three views of the same intervals: the dataset's span, the region around it, the two inside.
    assert regions["item"]["wait_ms"] == pytest.approx(wait_ms, rel=0.1)
    for figure in ("wait_ms", "ms_total"):
        both_ms = regions["load"][figure] + regions["augment"][figure]
        assert 0 < both_ms <= regions["item"][figure]
    assert 0 <= regions["load"]["cpu_ms_total"] <= regions["load"]["ms_total"]
    assert regions["compute"]["wait_ms"] is None
    assert "Regions" in run.details()
    timeline = run.timeline()
    inner = "select count(*) from slice s join slice p on s.parent_id = p.id"
    counts, errors = query(
        timeline,
        f"{inner} where s.category = 'region' and s.name = 'load' and p.name = 'item'",
        ERRORS,
    )
    assert counts == [[24]]
    assert errors == []


MARKED = """
import sys, time
import iotrace

def waited_for_a_core():
    try:
        with open("/proc/thread-self/schedstat") as file:
            return int(file.read().split()[1])
    except OSError:
        return 0

def source():
    for _ in range(12):
        begin, before = time.monotonic_ns(), waited_for_a_core()
        time.sleep(0.02)
        slept, delayed = time.monotonic_ns(), waited_for_a_core() - before
        cpu_ns, before = time.thread_time_ns(), waited_for_a_core()
        while time.thread_time_ns() < cpu_ns + 10_000_000:
            pass
        end, cpu_ns = time.monotonic_ns(), time.thread_time_ns() - cpu_ns
        held_up = max(0, end - slept - cpu_ns - (waited_for_a_core() - before))
        print(slept - begin - delayed, end - begin, held_up, end=" ")
        yield 1

wrapped = sys.argv[1] == "wrapped"
items = iter(iotrace.batches(source()) if wrapped else source())
while True:
    begin = time.monotonic_ns()
    if next(items, None) is None:
        break
    print(time.monotonic_ns() - begin)
    iotrace.step()
    time.sleep(0.005)
"""


def test_marked_steps_with_an_unknown_source(tmp_path: Path) -> None:
    report = checked(run_script(tmp_path, MARKED, "bare"))
    (rank,) = report["ranks"]
    assert rank["steps"]["count"] == 10  # of eleven between twelve marks, the first left out
    assert rank["data_wait"]["raw_ms"] is None
    assert rank["data_wait"]["verdict"] is None
    entry = missing(report)["data wait of rank 0"]
    assert "iotrace.batches" in entry["remedy"]
    assert report["session"]["complete"] is True


def test_marked_steps_with_a_wrapped_source(tmp_path: Path) -> None:
    run = run_script(tmp_path, MARKED, "wrapped")
    report = checked(run)
    (rank,) = report["ranks"]
    (loader,) = rank["loaders"]
    assert (loader["wrapped"], loader["primary"], loader["batches"]) == (True, True, 12)
    assert rank["steps"]["count"] == 10
    wait = rank["data_wait"]
    assert sum(wait["causes_ms"].values()) == pytest.approx(wait["raw_ms"], abs=1e-6)
    # It slept, nobody knows why, and it computed: as its own clock says of the ten steps' items. What held
    # the computing up (a virtual machine without a CPU) may look like sleep.
    stamps = [tuple(map(int, line.split())) for line in run.stdout.splitlines()][2:]
    slept_ms, made_ms, held_up_ms, asked_ms = (sum(column) / 10 / 1e6 for column in zip(*stamps, strict=True))
    assert made_ms <= wait["raw_ms"] <= asked_ms
    causes, slack_ms = wait["causes_ms"], 0.1 * made_ms + held_up_ms
    assert causes["unknown"] + causes["transform"] == pytest.approx(wait["raw_ms"], abs=0.1 * made_ms)
    assert causes["unknown"] == pytest.approx(slept_ms, abs=slack_ms)
    assert causes["transform"] == pytest.approx(wait["raw_ms"] - slept_ms, abs=slack_ms)
    assert wait["too_few_workers"] is None
    assert not [what for what in missing(report) if "data wait" in what]
    timeline = run.timeline()
    steps, errors = query(timeline, "select count(*) from slice where category = 'step'", ERRORS)
    assert steps == [[11]]
    assert errors == []


WRAPPED = """
import numpy as np, torch, iotrace
np.save("data.npy", np.zeros(1 << 20))
weight = torch.ones(1, requires_grad=True)

def source():
    for _ in range(10):
        yield float(np.load("data.npy").sum())

for epoch in range(2):
    for value in iotrace.batches(source()):
        (value * weight).sum().backward()
"""


def test_a_wrapped_source_that_trains_gives_steps_and_files(tmp_path: Path) -> None:
    (rank,) = checked(run_script(tmp_path, WRAPPED))["ranks"]
    (loader,) = rank["loaders"]
    assert (loader["kind"], loader["batches"], loader["epochs"]) == ("training", 20, 2)
    assert loader["dataset"] == "source"
    assert (rank["steps"]["begun"], rank["steps"]["count"]) == (20, 18)
    (file,) = rank["data_wait"]["files"]
    assert file["path"] == "data.npy"
    assert 0 < file["ms"] <= rank["data_wait"]["raw_ms"]


def test_marks_beside_a_training_loader_are_not_the_steps(tmp_path: Path) -> None:
    script = f"""{PROGRAM}
for batch in iotrace.batches(loader(0)):
    for _ in range(2):
        iotrace.step()
    (batch * weight).sum().backward()
"""
    (rank,) = checked(run_script(tmp_path, script))["ranks"]
    (loader,) = rank["loaders"]  # a DataLoader is recorded once, wrapped or not
    assert (loader["wrapped"], loader["batches"]) == (False, 24)
    assert (rank["steps"]["begun"], rank["steps"]["count"]) == (24, 22)


UNTOUCHED = """
def untouched():
    import os, torch.utils.data.dataloader as dataloader, torch.autograd, numpy
    patched = [dataloader._BaseDataLoaderIter.__next__, dataloader._utils.worker._worker_loop,
               torch.autograd.backward, numpy.load, os.close]
    assert not any(hasattr(function, "__iotrace_original__") for function in patched)
    assert not any("iotrace" in type(finder).__module__ for finder in sys.meta_path)
    assert "IOTRACE_AGENT" not in os.environ and "shim" not in os.environ.get("PYTHONPATH", "")
"""

CONTEXTS = [
    (0, None),
    (1, "fork"),
    pytest.param(1, "spawn", marks=pytest.mark.slow),
    pytest.param(1, "forkserver", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("workers", "context"), CONTEXTS)
def test_a_profiled_block(tmp_path: Path, workers: int, context: str | None) -> None:
    script = f"""{PROGRAM}{UNTOUCHED}
if __name__ == "__main__":
    with iotrace.profile(output="session") as profile:
        train(loader({workers}, multiprocessing_context={context!r}))
    untouched()
    train(loader(0))
    print(profile.session)
"""
    run = run_bare(tmp_path, script)
    report = checked(run)
    assert run.stdout == "session\n"
    assert "\nINPUT-BOUND   " in run.stderr
    assert "iotrace report session -v" in run.stderr
    (rank,) = report["ranks"]
    (loader,) = rank["loaders"]
    assert (loader["batches"], loader["kind"], loader["start_method"]) == (24, "training", context)
    assert {region["name"]: region["count"] for region in rank["regions"]}["load"] == 24
    causes = rank["data_wait"]["causes_ms"]
    assert max(causes, key=causes.__getitem__) == "transform"
    assert report["session"]["complete"] is True
    assert report["session"]["exit_code"] is None
    assert missing(report)["posix"]["remedy"] == "iotrace run -- CMD"
    assert "the exit code" not in missing(report)


def test_the_report_leaves_the_program_its_output_and_finds_the_session(tmp_path: Path) -> None:
    script = """
import os, iotrace
os.mkdir("elsewhere")
with iotrace.profile(output="session"), iotrace.region("moving"):
    os.chdir("elsewhere")
read_end, write_end = os.pipe()
os.dup2(write_end, 2)
os.close(read_end)
with iotrace.profile(output="session"):  # nobody reads standard error
    pass
print("still read", flush=True)
"""
    run = run_bare(tmp_path, script)
    assert (run.code, run.stdout) == (0, "still read\n")
    again = run.stderr.rpartition("iotrace report ")[2].partition("-v")[0]
    assert (run.session.parent / "elsewhere" / again.strip()).resolve() == run.session
    assert (run.session / "out" / "timeline.pftrace").exists()


def test_a_block_awaits_no_other_rank_and_passes_on_what_ends_the_program(tmp_path: Path) -> None:
    script = """
import os, iotrace.postrun
iotrace.postrun.await_others = None
def load(*args, **kwargs):
    raise KeyboardInterrupt
iotrace.postrun.open_session = load
os.environ.update(RANK="0", WORLD_SIZE="2")
try:
    with iotrace.profile(output="session"):
        pass
except KeyboardInterrupt:
    print("ended")
"""
    run = run_bare(tmp_path, script)
    assert (run.code, run.stdout) == (0, "ended\n")
    assert "iotrace: interrupted; the session is kept: iotrace report session-rank0" in run.stderr


COMPILED = """
import iotrace, torch
weight = torch.ones(1, requires_grad=True)
@iotrace.region("forward")
def forward(x):
    return x * weight
compiled = torch.compile(forward, backend="eager", fullgraph=True)
print(compiled(torch.ones(2)).sum().item())
forward(torch.ones(2))
"""


def test_a_decorated_function_is_compiled_whole(tmp_path: Path) -> None:
    run = run_script(tmp_path, COMPILED)
    assert (run.code, run.stdout) == (0, "2.0\n"), run.stderr
    (region,) = run.report()["ranks"][0]["regions"]
    assert (region["name"], region["count"]) == ("forward", 1)


def test_an_exception_in_the_block_is_untouched_and_the_session_is_whole(tmp_path: Path) -> None:
    script = f"""{PROGRAM}{UNTOUCHED}
try:
    with iotrace.profile(output="session", report=False):
        train(loader(2), fail=True)
except ValueError as error:
    import traceback
    frames = traceback.extract_tb(error.__traceback__)
    print(error, [frame.name for frame in frames])
    untouched()
"""
    run = run_bare(tmp_path, script)
    report = checked(run)
    assert run.stdout == "the program's own ['<module>', 'train']\n"
    assert run.stderr == ""
    # Its workers are alive when the session ends: the traceback holds their loader.
    assert report["session"]["complete"] is True
    assert report["ranks"][0]["loaders"][0]["batches"] == 6


def test_a_decorated_function_makes_a_session_a_call(tmp_path: Path) -> None:
    script = f"""{PROGRAM}{UNTOUCHED}
kept = loader(1, persistent_workers=True)
@iotrace.profile(output="session", report=False)
def epoch():
    train(kept)
epoch()
epoch()
untouched()
train(kept)
"""
    run = run_bare(tmp_path, script)
    assert checked(run)["ranks"][0]["loaders"][0]["batches"] == 24
    second = Run(0, "", "", tmp_path / "session-2").report()
    (rank,) = second["ranks"]
    assert (rank["loaders"][0]["batches"], rank["loaders"][0]["epochs"]) == (24, 1)
    # Its workers recorded into the first session, which is over: their part of the second is unknown.
    assert any(what.startswith("loader workers of rank 0") for what in missing(second))
    causes = rank["data_wait"]["causes_ms"]
    assert causes["unknown"] + causes["sampling"] == pytest.approx(rank["data_wait"]["raw_ms"])


def test_profiles_inside_a_profile_are_regions(tmp_path: Path) -> None:
    script = f"""{PROGRAM}
import threading, warnings
@iotrace.profile
def inner():
    time.sleep(0.01)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    with iotrace.profile(output="session", report=False) as outer:
        inner()
        thread = threading.Thread(target=inner)
        thread.start()
        thread.join()
        train(loader(1))
print(len(caught), caught[0].message, caught[0].filename == __file__)
"""
    run = run_bare(tmp_path, script)
    (rank,) = checked(run)["ranks"]
    assert run.stdout.startswith("2 iotrace.profile: another profile of this process is running")
    assert {region["name"]: region["count"] for region in rank["regions"]}["inner"] == 2
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["session"]


def test_a_profile_under_the_launcher_and_in_a_worker_is_a_region(tmp_path: Path) -> None:
    program = PROGRAM.replace('@iotrace.region("item")', "@iotrace.profile")
    script = f"""{program}
import os
with iotrace.profile(output="other"):
    train(loader(1))
assert not os.path.exists("other")
"""
    run = run_script(tmp_path, script)
    (rank,) = checked(run)["ranks"]
    counts = {region["name"]: region["count"] for region in rank["regions"]}
    assert counts["profile"] == 1
    assert counts["Slow.__getitem__"] == 24
    # Without a run around it, a worker makes no session either.
    (tmp_path / "bare").mkdir()
    bare = run_bare(tmp_path / "bare", script.replace('with iotrace.profile(output="other"):', "if True:"))
    assert bare.code == 0, bare.stderr
    assert [path.name for path in (tmp_path / "bare").iterdir()] == ["program.py"]


def test_a_fork_that_leaves_the_block_leaves_the_session(tmp_path: Path) -> None:
    script = f"""{PROGRAM}
import os
with iotrace.profile(output="session", report=False):
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        assert not os.path.exists("session/outcome.json")
        train(loader(0))
"""
    report = checked(run_bare(tmp_path, script))
    assert report["session"]["complete"] is True
    assert report["ranks"][0]["loaders"][0]["batches"] == 24
    assert len(list((tmp_path / "session" / "processes").iterdir())) == 2


def test_an_output_that_holds_something_is_refused_before_the_block(tmp_path: Path) -> None:
    (tmp_path / "session").mkdir()
    (tmp_path / "session" / "precious").touch()
    script = """
import iotrace
from iotrace.errors import LaunchError
try:
    with iotrace.profile("session"):
        print("ran")
except LaunchError as error:
    print(error, "-", error.remedy)
with iotrace.profile("other", report=False) as profile:
    print("ran")
"""
    run = run_bare(tmp_path, script)
    assert run.stdout == "session exists and is not a session - choose another directory with -o DIR\nran\n"
    assert json.loads((tmp_path / "other" / "outcome.json").read_text())["exit_code"] is None


def test_a_timer_in_scikit_learn_names_regions_of_the_report(tmp_path: Path) -> None:
    program = str(PROJECT / "workloads" / "sklearn_timer.py")
    run = run_traced(tmp_path, [program, "--epochs", "2", "--batches", "5"], ["--quiet"])
    (rank,) = checked(run)["ranks"]
    counts = {region["name"]: region["count"] for region in rank["regions"]}
    assert counts == {"Epoch": 2, "Batch": 10, "Forward": 10, "IO": 10}
    told = dict(line.split(" calls, ")[0].split(": ") for line in run.stdout.splitlines())
    assert {key: int(calls) for key, calls in told.items()} == counts
    assert rank["steps"]["begun"] == 10
