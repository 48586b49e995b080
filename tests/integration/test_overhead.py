"""What tracing costs: measured by the launcher, estimated by the report, kept out of the program's way."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.support.runs import Run, report_of, run_script

# Reads so small and many that tracing them is felt.
PROGRAM = """
import os, sys, torch
from torch.utils.data import DataLoader, Dataset
open("small.bin", "wb").write(bytes(65536))
class Small(Dataset):
    def __len__(self):
        return 100
    def __getitem__(self, index):
        descriptor = os.open("small.bin", os.O_RDONLY)
        for place in range(100):
            os.pread(descriptor, 64, 64 * place)
        os.close(descriptor)
        return torch.ones(1)
model = torch.nn.Linear(1, 1)
for batch in DataLoader(Small(), batch_size=2, num_workers=int(sys.argv[1])):
    model(batch).sum().backward()
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = run_script(tmp_path_factory.mktemp("overhead"), PROGRAM, "0")
    assert run.code == 0, run.stderr
    return run


def test_the_estimate_is_counts_times_measured_costs(run: Run) -> None:
    rank = run.report()["ranks"][0]
    overhead = rank["overhead"]
    costs = json.loads((run.session / "costs.json").read_text())
    assert overhead["posix_call_us"] == pytest.approx(costs["posix_call_ns"] / 1e3)
    assert overhead["measured_on"] == costs["host"]
    assert (overhead["posix_calls"], overhead["processes"]) == (rank["io"]["calls"], 1)
    assert 0.5 < overhead["posix_call_us"] < 200
    assert 0.2 < overhead["span_us"] < 50
    assert 1 < overhead["process_start_ms"] < 500
    # 102 calls a sample, two samples a step, and two spans for the samples and one for their collation. All
    # calls but a sample's first follow another at once, unless the machine is busy.
    step_us = 1e3 * rank["steps"]["mean_ms"]
    spans_us = 3 * overhead["span_us"]
    first, following = overhead["posix_call_us"], overhead["next_posix_call_us"]
    assert 0.5 < following < 200
    most = 100 * (204 * first + spans_us) / step_us
    least = 100 * (204 * min(first, following) + spans_us) / step_us
    assert overhead["consumer_pct_of_step"] == pytest.approx(min(100, most), rel=0.05)
    assert 0.95 * min(100, least) <= overhead["least_pct_of_step"] <= overhead["consumer_pct_of_step"]
    assert overhead["workers_pct_of_production"] is None
    assert overhead["estimated_pct_of_step"] == overhead["consumer_pct_of_step"]
    assert "tracing " in run.stderr


def test_workers_cost_at_most_the_wait(tmp_path: Path) -> None:
    run = run_script(tmp_path, PROGRAM, "1")
    rank = run.report()["ranks"][0]
    overhead, fraction = rank["overhead"], rank["data_wait"]["raw_wait_fraction"]
    assert overhead["consumer_pct_of_step"] < overhead["workers_pct_of_production"]
    assert overhead["estimated_pct_of_step"] == pytest.approx(
        overhead["consumer_pct_of_step"] + min(overhead["workers_pct_of_production"], 100 * fraction)
    )


@pytest.mark.parametrize("damage", ["", "{", '{"posix_call_ns": 3}'])
def test_without_measured_costs_the_estimate_is_unknown(run: Run, tmp_path: Path, damage: str) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run.session, copy)
    (copy / "costs.json").unlink()
    if damage:
        (copy / "costs.json").write_text(damage)
    overhead = report_of(copy)["ranks"][0]["overhead"]
    assert overhead["posix_calls"] > 0
    assert overhead["spans"] > 0
    assert overhead["measured_on"] is None
    assert overhead["estimated_pct_of_step"] is None
