"""Faults while torch's profiler runs."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from iotrace.sources.records import TorchProgram, TorchProgramTrace
from tests.faults.rows import row
from tests.support.faults import AFTER, BEFORE, IN_WARMUP, IN_WINDOW, STEPS, assert_same, run_both
from tests.support.runs import Run, environment, report_of

ENDED = [("warmup", ""), ("active", ""), ("end", ""), ("exported", "")]
TAKEN = [("warmup", ""), ("active", ""), ("end", "program"), ("exported", "program")]


def _events(trace: Path) -> list[dict[str, Any]]:
    data = trace.read_bytes()
    document = json.loads(gzip.decompress(data) if trace.suffix == ".gz" else data)
    events: list[dict[str, Any]] = document if isinstance(document, list) else document["traceEvents"]
    return events


def test_the_window_names_steps_and_modules_and_its_steps_are_left_out(tmp_path: Path) -> None:
    both = run_both(tmp_path, "nothing", IN_WINDOW)
    assert both.window == ENDED
    (trace,) = both.traces()
    events = _events(trace)
    found = {event["name"] for event in events if event.get("name", "").startswith(("module:", "Profiler"))}
    modules = {"Model", "encoder", "encoder.0", "encoder.1", "decoder"}
    assert found == {f"module:{name}" for name in modules} | {f"ProfilerStep#{step}" for step in range(5, 9)}
    assert not list(trace.parent.glob(".torch*"))
    report = Run(both.traced.returncode, "", "", both.session).report()
    assert report["ranks"][0]["steps"]["excluded"] == {"first": 1, "warmup": 0, "profiled": 7}
    assert (report["ranks"][0]["steps"]["begun"], report["ranks"][0]["steps"]["count"]) == (12, 3)
    assert both.traced.stderr.count("profiler_start") == 0


# --- 1: nested profilers ---


@row(
    "the program starts torch.profiler itself: before, in or after iotrace's window, on any thread",
    kept="losses, its own trace, a copy of it",
    lost="the trace of iotrace's window from then on, reported",
    limit_s=250,
    default=True,
)
@pytest.mark.parametrize(
    ("at", "where", "window"),
    [
        pytest.param(BEFORE, "", [], marks=pytest.mark.fault),
        pytest.param(
            IN_WARMUP, "another thread", [("warmup", ""), ("end", "program")], marks=pytest.mark.slow
        ),
        (IN_WINDOW, "another thread", TAKEN),
        pytest.param(AFTER, "", ENDED, marks=pytest.mark.slow),
    ],
)
def test_a_profiler_of_the_program(
    tmp_path: Path, at: int, where: str, window: list[tuple[str, str]]
) -> None:
    both = run_both(tmp_path, "kineto", at, where)
    assert "their operators 2" in both.bare.stdout
    assert both.window == window
    told, *_ = both.main.of_type(TorchProgram)  # its making, then its starts
    assert told.what == "torch.profiler"
    (kept,) = both.main.of_type(TorchProgramTrace)
    (copy,) = both.traces("torch-program-*")
    assert copy.name == kept.path
    assert copy.read_bytes() == Path(kept.source).read_bytes()
    for trace in both.traces():
        assert any(event.get("name") == "aten::addmm" for event in _events(trace))


@row(
    "a schedule, a subclass, autograd's profilers, emit_itt or emit_nvtx of the program's",
    kept="losses, its own trace",
    lost="the trace of iotrace's window, reported",
    limit_s=250,
)
@pytest.mark.parametrize(
    ("fault", "at", "where"),
    [
        pytest.param("scheduled", IN_WINDOW, "", marks=pytest.mark.slow),
        ("scheduled", BEFORE, ""),  # ours is due while theirs waits, warms up and records
        pytest.param("subclass", IN_WINDOW, "", marks=pytest.mark.slow),
        pytest.param("kineto", IN_WINDOW, "inside forward", marks=pytest.mark.slow),
        pytest.param("all threads", IN_WINDOW, "inside forward", marks=pytest.mark.slow),
        ("legacy", IN_WINDOW, ""),
        pytest.param("oldest", IN_WINDOW, "another thread", marks=pytest.mark.slow),
        pytest.param("emit_itt", IN_WINDOW, "", marks=pytest.mark.slow),
        pytest.param("emit_nvtx", IN_WINDOW, "", marks=pytest.mark.slow),
    ],
)
def test_other_profilers_of_the_program(tmp_path: Path, fault: str, at: int, where: str) -> None:
    both = run_both(tmp_path, fault, at, where)
    if fault == "emit_nvtx" and "not emitted" in both.bare.stdout:  # it fails before it starts
        assert both.window == ENDED
        return
    assert both.window == (TAKEN if at == IN_WINDOW else [])
    assert len(both.main.of_type(TorchProgramTrace)) == (not fault.startswith("emit"))


# --- 2 to 10 ---


@row(
    "in the window: a worker killed or raising, SIGTERM, SIGINT, os._exit, sys.exit, a segfault, a fork",
    kept="losses, traceback, exit code or signal; the trace where Python ends in good order",
    lost="the trace where it does not, reported",
    limit_s=250,
)
@pytest.mark.parametrize(
    ("fault", "code", "window"),
    [
        ("worker killed", 1, [*ENDED[:2], ("end", "exit"), ("exported", "exit")]),
        pytest.param(
            "worker raises", 1, [*ENDED[:2], ("end", "epoch"), ("exported", "epoch")], marks=pytest.mark.slow
        ),
        pytest.param("terminated", -15, ENDED[:2], marks=pytest.mark.slow),
        ("interrupted", -2, [*ENDED[:2], ("end", "exit"), ("exported", "exit")]),
        pytest.param("left", 3, ENDED[:2], marks=pytest.mark.slow),  # as little runs as after a segfault
        pytest.param(
            "sys.exit", 4, [*ENDED[:2], ("end", "exit"), ("exported", "exit")], marks=pytest.mark.slow
        ),
        ("segfault", -11, ENDED[:2]),
        ("fork", 0, [*ENDED[:2], ("end", "fork"), ("exported", "fork")]),
        pytest.param("signal handler", 0, ENDED, marks=pytest.mark.slow),
    ],
)
def test_a_fault_in_the_window(tmp_path: Path, fault: str, code: int, window: list[tuple[str, str]]) -> None:
    both = run_both(tmp_path, fault, IN_WINDOW)
    assert both.bare.returncode == code
    lost = window == ENDED[:2]
    # What a death loses are the records of its last half second.
    assert both.window == (window[: len(both.window)] if lost else window)
    assert len(both.traces()) == (not lost)
    for trace in both.traces():
        assert any(event.get("name") == "aten::addmm" for event in _events(trace))
    # A traceback shows the program's frames and torch's, none of the agent's.
    assert "iotrace/agent" not in both.traced.stderr


@row(
    "the disk is full while the trace of iotrace's window is written",
    kept="losses, exit code",
    lost="the trace, reported",
    limit_s=250,
)
def test_a_disk_that_fills_up_midway(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(small)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    try:
        session = small / "session"
        both = run_both(tmp_path, "disk full", BEFORE, session=session, FULL=str(small))
        assert not both.traces()
        assert not list(session.glob("processes/*/.torch*"))
        report = report_of(session)
        (told,) = [each for each in report["not_captured"] if "torch" in each["why"]]
        assert told["why"].startswith(f"the disk of {session} has no room for a trace of torch.profiler: ")
        assert told["remedy"].startswith("free some space")
        assert not [each for each in report["not_captured"] if "own code failed" in each["why"]]
    finally:
        subprocess.run(["umount", str(small)], check=True)


@row("the session is deleted in iotrace's window", kept="losses, exit code", lost="the session", limit_s=250)
def test_a_session_that_is_deleted_midway(tmp_path: Path) -> None:
    both = run_both(tmp_path, "session deleted", IN_WINDOW)
    assert both.bare.returncode == 0
    assert not both.traces()


@row("a sitecustomize of the user's", kept="it runs; losses, iotrace's trace", lost="nothing", limit_s=250)
def test_a_sitecustomize_of_the_users(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import sys; sys.customised = True\n")
    path = os.pathsep.join(filter(None, [str(own), os.environ.get("PYTHONPATH", "")]))
    both = run_both(tmp_path, "nothing", IN_WINDOW, PYTHONPATH=path)
    assert both.bare.stdout.startswith("customised True\n")
    assert both.window == ENDED


@row("`python -I` with torch", kept="losses, iotrace's trace", lost="nothing", limit_s=250)
def test_an_isolated_interpreter(tmp_path: Path) -> None:
    both = run_both(tmp_path, "nothing", IN_WINDOW, python=["-I"])
    assert both.window == ENDED


# --- frameworks and ranks ---

LIGHTNING = """
import logging, sys, warnings
import torch
warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)
import {namespace} as pl
from torch.utils.data import DataLoader, TensorDataset

class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)
    def training_step(self, batch, index):
        loss = self.layer(batch[0]).square().mean()
        print(index, loss.item().hex(), flush=True)
        return loss
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

torch.manual_seed(0)
torch.set_num_threads(1)
loader = DataLoader(TensorDataset(torch.randn(24, 8)), 2)
{profiler}
trainer = pl.Trainer(
    max_epochs=1, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False, profiler=profiler,
)
trainer.fit(Module(), loader)
"""
BY_NAME = 'profiler = "pytorch"'
BY_CLASS = """
from {namespace}.profilers import PyTorchProfiler
profiler = PyTorchProfiler(dirpath="theirs", filename="fit")
"""


def _compare(tmp_path: Path, arguments: list[str]) -> tuple[subprocess.CompletedProcess[str], Path]:
    session = tmp_path / "session"
    launcher = [sys.executable, "-m", "iotrace", "run", "-o", str(session), "--torch-steps", STEPS, "--"]
    done = []
    for number, before in enumerate([[], launcher]):
        there = tmp_path / f"run-{number}"
        there.mkdir()
        line = [*before, sys.executable, *arguments]
        done.append(
            subprocess.run(
                line,
                cwd=there,
                capture_output=True,
                text=True,
                env=environment(OMP_NUM_THREADS="1"),
                timeout=200,
            )
        )
    assert done[0].returncode == 0, done[0].stderr
    assert_same(*done)
    return done[1], session


@row(
    "Lightning's PyTorchProfiler",
    kept="losses, its own trace",
    lost="the trace of iotrace's window, which never opens",
    limit_s=250,
)
@pytest.mark.parametrize(
    ("namespace", "how"),
    [
        ("pytorch_lightning", BY_CLASS),
        pytest.param("lightning.pytorch", BY_NAME, marks=pytest.mark.slow),
    ],
)
def test_lightning_that_profiles_itself_never_meets_ours(tmp_path: Path, namespace: str, how: str) -> None:
    pytest.importorskip(namespace)
    profiler = how.format(namespace=namespace)
    program = tmp_path / "program.py"
    program.write_text(LIGHTNING.format(namespace=namespace, profiler=profiler))
    _, session = _compare(tmp_path, [str(program)])
    report = Run(0, "", "", session).report()
    assert report["ranks"][0]["steps"]["excluded"]["profiled"] > 0  # those of the program's own profiler
    assert not list(session.glob("processes/*/torch-0*"))
    records = "".join(path.read_text() for path in session.glob("processes/*/records.jsonl"))
    assert "Lightning's PyTorchProfiler" in records
    assert '"torch_window"' not in records
    if how is BY_CLASS:
        (copy,) = session.glob("processes/*/torch-program-*")
        assert any(event.get("name") == "aten::linear" for event in _events(copy))


RANKS = """
import os, sys
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
loader = DataLoader(TensorDataset(torch.randn(24, 8) * (rank + 1)), 2, num_workers=1)
theirs = None
losses = []
for step, (batch,) in enumerate(loader):
    if step == 7 and rank == 1 and sys.argv[1] == "profiled":
        theirs = profile(activities=[ProfilerActivity.CPU])
        theirs.start()
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item().hex())
if theirs is not None:
    theirs.stop()
    theirs.export_chrome_trace("theirs.json")
with open(f"losses{rank}", "w") as file:
    file.write(" ".join(losses))
dist.barrier()
if rank == 0:
    print(open("losses0").read(), open("losses1").read())
dist.destroy_process_group()
"""


@row(
    "two ranks of torchrun (DistributedDataParallel, gloo); one profiles itself",
    kept="losses of both, both traces",
    lost="nothing",
    limit_s=250,
)
@pytest.mark.parametrize("profiled", ["profiled", pytest.param("plain", marks=pytest.mark.slow)])
def test_two_ranks_of_torchrun(tmp_path: Path, profiled: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(RANKS)
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2", str(program), profiled]
    _, session = _compare(tmp_path, torchrun)
    traces = sorted(session.glob("processes/*/torch-0.json.gz"))
    assert len(traces) == 2
    ranks = set()
    for trace in traces:
        document = json.loads(gzip.decompress(trace.read_bytes()))
        ranks.add((document["distributedInfo"]["rank"], document["distributedInfo"]["world_size"]))
        # DistributedDataParallel is a wrapper: the model it holds is the root.
        assert any(event.get("name") == "module:Linear" for event in document["traceEvents"])
    assert ranks == {(0, 2), (1, 2)}
    assert len(list(session.glob("processes/*/torch-program-*"))) == (profiled == "profiled")
