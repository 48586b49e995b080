"""What tracing costs: measured by the launcher, estimated by the report, kept out of the program's way."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from iotrace.launch import tracing_costs
from iotrace.launch.traced_run import describe
from iotrace.session import names
from iotrace.session.manifest import Costs, PosixState, claim, read_document, write_document
from tests.support import counting
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


COSTS = Costs(
    host="here",
    posix_call_ns=3_000,
    next_posix_call_ns=2_000,  # of a call that follows another
    span_ns=1_500,
    process_start_ns=12_000_000,
)

# Counts the agent's own instructions in the consumer's call for a batch, with 0 workers and with 1: those of
# the library vary with what its threads wait for.
COUNTED = (
    Path(counting.__file__).read_text()
    + """
import json
from torch.utils.data import DataLoader, Dataset
class Numbers(Dataset):
    def __len__(self):
        return 200
    def __getitem__(self, index):
        return index
def least(workers):
    batches = iter(DataLoader(Numbers(), batch_size=1, collate_fn=list, num_workers=workers))
    return min(instructions(lambda: next(batches), "iotrace/agent/") for _ in range(150))
print(json.dumps([least(0), least(1)]))
"""
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return with_costs(run_script(tmp_path_factory.mktemp("overhead"), PROGRAM, "0"))


def with_costs(run: Run) -> Run:
    """The run, with costs that no busy machine changes."""
    assert run.code == 0, run.stderr
    write_document(run.session / names.COSTS, COSTS)
    return run


def test_what_tracing_costs_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing_costs, "_SECONDS", 250)
    monkeypatch.setenv(names.HOST_VARIABLE, "here")
    claim(tmp_path, describe(["python"], PosixState(on=True), [], {}))
    costs = tracing_costs.CostMeasurement(tmp_path).finish()
    assert costs is not None
    assert costs == read_document(tmp_path / names.COSTS, Costs)
    assert costs.host == "here"
    calls = (costs.posix_call_ns, costs.next_posix_call_ns, costs.span_ns, costs.next_span_ns)
    measured = (*calls, costs.process_start_ns)
    assert all(cost is not None and cost >= 0 for cost in measured)
    assert any(measured)


def test_a_batch_costs_few_instructions_more(tmp_path: Path) -> None:
    traced = run_script(tmp_path, COUNTED)
    assert traced.code == 0, traced.stderr
    added = json.loads(traced.stdout)
    print(f"instructions added to a batch, with 0 workers and with 1: {added}")
    assert 0 < added[0] <= 530  # two spans, the fetch, the batch
    assert 0 < added[1] <= 430  # an index sent, a batch received and delivered


def test_the_estimate_is_counts_times_measured_costs(run: Run) -> None:
    rank = run.report()["ranks"][0]
    overhead = rank["overhead"]
    assert overhead["measured_on"] == "here"
    assert (overhead["posix_calls"], overhead["processes"]) == (rank["io"]["calls"], 1)
    assert (overhead["posix_call_us"], overhead["next_posix_call_us"]) == (3, 2)
    assert (overhead["span_us"], overhead["process_start_ms"]) == (1.5, 12)
    # 102 calls a sample, two samples a step, and two spans for the samples and one for their collation. All
    # calls but a sample's first follow another at once, unless the machine is busy.
    step_us = 1e3 * rank["steps"]["mean_ms"]
    most = 100 * (204 * 3 + 3 * 1.5) / step_us
    least = 100 * (204 * 2 + 3 * 1.5) / step_us
    assert overhead["consumer_pct_of_step"] == pytest.approx(min(100, most), rel=0.05)
    assert 0.95 * min(100, least) <= overhead["least_pct_of_step"] <= overhead["consumer_pct_of_step"]
    assert overhead["workers_pct_of_production"] is None
    assert overhead["estimated_pct_of_step"] == overhead["consumer_pct_of_step"]


def test_workers_cost_at_most_the_wait(tmp_path: Path) -> None:
    run = with_costs(run_script(tmp_path, PROGRAM, "1"))
    rank = run.report()["ranks"][0]
    overhead, fraction = rank["overhead"], rank["data_wait"]["raw_wait_fraction"]
    assert overhead["consumer_pct_of_step"] < overhead["workers_pct_of_production"]
    most = overhead["consumer_pct_of_step"] + min(overhead["workers_pct_of_production"], 100 * fraction)
    assert overhead["consumer_pct_of_step"] <= overhead["least_pct_of_step"]
    assert overhead["least_pct_of_step"] <= overhead["estimated_pct_of_step"] <= most * (1 + 1e-9)
    assert overhead["estimated_pct_of_step"] > overhead["consumer_pct_of_step"]


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
