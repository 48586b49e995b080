"""Lightning's phases without a Callback, and the Callback for programs without the launcher."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.perfetto import ERRORS, query
from tests.support.runs import Run, run_bare, run_script

# One namespace for each test, the other by --slow: both are the same library.
OLD, NEW = "pytorch_lightning", "lightning.pytorch"
OLD_FIRST = [OLD, pytest.param(NEW, marks=pytest.mark.slow)]
NEW_FIRST = [NEW, pytest.param(OLD, marks=pytest.mark.slow)]
OVERLAPS = """select count(*) from slice s join slice p on p.ts < s.ts + s.dur and s.ts < p.ts + p.dur
    where s.category = 'step' and p.category = 'phase' and p.name = 'validation'"""

PROGRAM = """
import json, logging, sys, time, warnings
warnings.filterwarnings("ignore")
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset
import NAMESPACE as pl
logging.getLogger(pl.__name__).setLevel(logging.ERROR)

seen, training_ms = {}, []
def count(phase):
    seen[phase] = seen.get(phase, 0) + 1

class Map(Dataset):
    def __init__(self, size):
        self.size = size
    def __len__(self):
        return self.size
    def __getitem__(self, index):
        return torch.ones(4) * index

class Stream(IterableDataset):
    def __iter__(self):
        return iter([torch.ones(4)] * 16)

class Model(pl.LightningModule):
    fail = False
    def __init__(self, manual=False):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.automatic_optimization = not manual
    def training_step(self, batch, index):
        count("training")
        begin = time.monotonic()
        time.sleep(0.005)
        training_ms.append(1e3 * (time.monotonic() - begin))
        if self.fail:
            raise ValueError("the program's own")
        return self.layer(batch).sum() if self.automatic_optimization else None
    def validation_step(self, batch, index, dataloader_idx=0):
        count("sanity check" if self.trainer.sanity_checking else "validation")
        time.sleep(0.03)
    def test_step(self, batch, index):
        count("test")
    def predict_step(self, batch, index):
        count("predict")
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 1e-3)

def trainer(**options):
    silent = ["logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"]
    return pl.Trainer(accelerator="cpu", devices=1, **dict.fromkeys(silent, False), **options)

def loader(size, workers=0):
    return DataLoader(Map(size), batch_size=2, num_workers=workers)
"""


def program(namespace: str, body: str) -> str:
    return PROGRAM.replace("NAMESPACE", namespace) + body + "\nprint(json.dumps(seen))\n"


def checked(run: Run) -> tuple[dict[str, Any], dict[str, int]]:
    """The only rank's report, and how many batches each of the program's methods saw."""
    assert run.code == 0, run.stderr
    logs = list(run.session.glob("processes/*/agent.log"))
    assert not logs, logs[0].read_text()
    (rank,) = run.report()["ranks"]
    return rank, json.loads(run.stdout.splitlines()[-1])


def delivered(rank: dict[str, Any]) -> dict[str, int]:
    """Batches by phase, over all loaders."""
    found: dict[str, int] = {}
    for loader in rank["loaders"]:
        for phase, batches in loader["phases"].items():
            found[phase] = found.get(phase, 0) + batches
    return found


EVERYTHING = """
model, tests, some = Model(), loader(8), loader(6)
checks = [loader(6), loader(6)]
for _ in range(2):
    used = trainer(max_epochs=2)
    used.fit(model, loader(16, workers=1), checks)
used.validate(model, checks, verbose=False)
used.test(model, tests, verbose=False)
used.predict(model, some)
"""


@pytest.mark.parametrize("namespace", NEW_FIRST)
def test_phases_are_told_apart(tmp_path: Path, namespace: str) -> None:
    run = run_script(tmp_path, program(namespace, EVERYTHING))
    rank, seen = checked(run)
    assert delivered(rank) == seen
    assert seen == {"sanity check": 8, "training": 32, "validation": 30, "test": 4, "predict": 3}
    kinds = [loader["kind"] for loader in rank["loaders"]]
    # The two fits' loaders are made by one line, one after the other: they are one loader.
    assert sorted(kinds) == ["predict", "test", "training", "validation", "validation"]
    checks = [loader for loader in rank["loaders"] if loader["kind"] == "validation"]
    assert all(loader["phases"] == {"validation": 15, "sanity check": 4} for loader in checks)
    (primary,) = [loader for loader in rank["loaders"] if loader["primary"]]
    assert (primary["kind"], primary["batches"]) == ("training", 32)
    # Two fits of two epochs of eight: the first step is not measured, the last one has no known end.
    assert (rank["steps"]["begun"], rank["steps"]["count"]) == (32, 30)
    parts = rank["phases_ms"]
    assert (rank["phases_source"], rank["phases_unknown_why"]) == ("host", None)
    assert sum(parts.values()) + rank["data_wait"]["raw_ms"] == pytest.approx(rank["steps"]["mean_ms"])
    assert min(parts["forward"], parts["backward"], parts["optimizer"]) > 0  # in a closure of the last
    assert parts["forward"] >= 5  # the training step sleeps as long: it is none of the optimizer's
    ranges = {(row["kind"], row["hook"]): row["calls"] for row in rank["trainer"]["ranges"]}
    assert ranges["strategy", "training_step"] == ranges["loop", "run_training_batch"] == 32
    assert ranges["strategy", "validation_step"] == 8 + 30  # the sanity checks are of the same hook
    assert ranges["module", "configure_optimizers"] == 2
    (layer,) = rank["models"]
    assert (layer["root"], layer["parameters"], layer["multiply_adds"]) == ("Linear", 5, 8)
    assert layer["layers"][0]["input_shapes"] == [[2, 4]]
    speeds = {row["phase"]: row["batches"] for row in rank["speed"]["phases"]}
    assert speeds == seen
    phases, calls, steps, overlaps, errors = query(
        run.timeline(),
        "select name from slice where category = 'phase' order by ts",
        "select name, count(*) from slice where category = 'step phase' group by name order by name",
        "select count(*), sum(p.name = 'training') from slice s join slice p "
        "where s.category = 'step' and p.category = 'phase' and s.ts >= p.ts and s.ts < p.ts + p.dur",
        OVERLAPS,
        ERRORS,
    )
    assert overlaps == [[0]]
    assert calls == [[name, 32] for name in ("backward", "closure", "forward", "optimizer")]
    one_fit = ["sanity check", *["training", "validation"] * 2]
    assert [name for (name,) in phases] == [*one_fit, *one_fit, "validation", "test", "predict"]
    # Three epochs begin after an evaluation, inside the step that ends with their first batch.
    assert steps == [[31 + 3, 31 + 3]]
    assert errors == []


MID_EPOCH = """
trainer(max_epochs=1, val_check_interval=0.25).fit(Model(manual=True), loader(16), loader(4))
"""


@pytest.mark.parametrize("namespace", OLD_FIRST)
def test_validation_inside_an_epoch_is_no_compute_of_a_step(tmp_path: Path, namespace: str) -> None:
    run = run_script(tmp_path, program(namespace, MID_EPOCH))
    rank, seen = checked(run)
    assert delivered(rank) == seen == {"sanity check": 2, "training": 8, "validation": 8}
    # Optimisation is manual and nothing is ever differentiated: Lightning's word makes it training.
    training, _ = sorted(rank["loaders"], key=lambda loader: loader["kind"])
    assert (training["kind"], training["primary"]) == ("training", True)
    assert (rank["steps"]["begun"], rank["steps"]["count"]) == (8, 6)
    # A validation follows every second step, and is no part of it.
    overlaps, errors = query(run.timeline(), OVERLAPS, ERRORS)
    assert (overlaps, errors) == ([[0]], [])


STREAM = """
trainer(max_epochs=2).fit(Model(), DataLoader(Stream(), batch_size=2, num_workers=WORKERS), loader(4))
"""


@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_batches_taken_in_advance_are_those_trained_on(tmp_path: Path, workers: int) -> None:
    body = STREAM.replace("WORKERS", str(workers))
    run = run_script(tmp_path, program(NEW, f"{body}\nprint(json.dumps(training_ms))"))
    rank, seen = checked(run)
    assert delivered(rank) == seen == {"sanity check": 2, "training": 16, "validation": 4}
    # Every step holds its training_step, also an epoch's first and last.
    assert (rank["steps"]["begun"], rank["steps"]["count"]) == (16, 14)
    assert rank["steps"]["p50_ms"] >= min(json.loads(run.stdout.splitlines()[0]))


CALLBACK = """
from iotrace.lightning import IotraceCallback

callback = IotraceCallback(output="session", report=False)
assert isinstance(callback, pl.Callback) and isinstance(callback, IotraceCallback)
used = trainer(max_epochs=1, callbacks=[callback])
used.fit(Model(), loader(16, workers=1), loader(4))
counted = dict(seen)
used.test(Model(), loader(8), verbose=False)
Model.fail = True
try:
    trainer(max_epochs=1, callbacks=[callback]).fit(Model(), loader(16, workers=1))
except ValueError as error:
    assert str(error) == "the program's own"
seen = counted
"""


@pytest.mark.parametrize("namespace", NEW_FIRST)
def test_the_callback_profiles_without_the_launcher(tmp_path: Path, namespace: str) -> None:
    # Sorted imports bring iotrace.lightning before Lightning.
    run = run_bare(tmp_path, "import iotrace.lightning\n" + program(namespace, CALLBACK))
    rank, seen = checked(run)
    assert delivered(rank) == seen == {"sanity check": 2, "training": 8, "validation": 2}
    assert [loader["primary"] for loader in rank["loaders"] if loader["kind"] == "training"] == [True]
    second = Run(0, "", "", tmp_path / "session-2").report()
    assert delivered(second["ranks"][0]) == {"test": 4}
    third = Run(0, "", "", tmp_path / "session-3").report()
    assert third["session"]["complete"] is True
    assert delivered(third["ranks"][0]) == {"training": 1}


def test_the_callback_does_nothing_under_the_launcher(tmp_path: Path) -> None:
    body = "from iotrace.lightning import IotraceCallback\n" + (
        "trainer(max_epochs=1, callbacks=[IotraceCallback('other')]).fit(Model(), loader(16))"
    )
    rank, seen = checked(run_script(tmp_path, program("pytorch_lightning", body)))
    assert delivered(rank) == seen == {"training": 8}
    assert not (tmp_path / "other").exists()


def test_the_callback_of_both_namespaces_and_of_none(tmp_path: Path) -> None:
    script = """
import pickle
from iotrace.lightning import IotraceCallback
try:
    IotraceCallback()
except ImportError as error:
    print(error)
import lightning.pytorch, pytorch_lightning
both = IotraceCallback("here")
assert isinstance(both, lightning.pytorch.Callback) and isinstance(both, pytorch_lightning.Callback)
assert pickle.loads(pickle.dumps(both))._output == "here"
"""
    run = run_bare(tmp_path, script)
    assert run.code == 0, run.stderr
    assert run.stdout.startswith("IotraceCallback needs the Lightning of its program, and none is imported")
