"""A session that holds a trace of torch.profiler: joined with the agent's records on one clock."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import pytest

from iotrace.analysis.loop.join import loaders_of
from iotrace.analysis.rank import RankAnalysis
from iotrace.sources.session import Session, open_session
from iotrace.timeline.build import build
from tests.support.chrome_timeline import write_chrome
from tests.support.perfetto import ERRORS, query
from tests.support.runs import Run, run_script

PROGRAM = """
import time
import torch
from torch.profiler import profile, ProfilerActivity
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 24
    def __getitem__(self, index):
        time.sleep(0.01)
        return torch.ones(64)

net = torch.nn.Linear(64, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
with profile(activities=[ProfilerActivity.CPU]) as profiler:
    for number, batch in enumerate(DataLoader(Slow(), batch_size=2)):
        net(batch).sum().backward()
        optimizer.step()
        profiler.step()
profiler.export_chrome_trace("mine.json.gz")
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run whose program profiled itself; the trace lies where the agent puts it."""
    directory = tmp_path_factory.mktemp("torch")
    run = run_script(directory, PROGRAM)
    assert run.code == 0, run.stderr
    main = open_session(run.session).ranks[0].main
    (place,) = run.session.glob(f"**/processes/{main.pid}-*")
    shutil.copy(directory / "mine.json.gz", place / "torch-program-0.json.gz")
    return run


@pytest.fixture(scope="module")
def session(run: Run) -> Session:
    return open_session(run.session)


def test_the_report_has_the_breakdown(run: Run, session: Session) -> None:
    (rank,) = run.report()["ranks"]
    breakdown = rank["breakdown_ms"]
    # A profiler without a schedule records no steps: the agent's are taken.
    assert rank["breakdown_steps"] == 11  # the last of twelve has no end
    # Two samples of at least 10 ms each, made inline.
    assert breakdown["dataloader"] >= 20
    # torch's ranges, which lie in the agent's waits for the same eleven batches: steps end with them.
    (torch_rank,) = session.ranks
    (trace,) = torch_rank.main.windows.traces
    fetches = trace.named(lambda name: name.startswith("enumerate(DataLoader)"))
    fetches_ns = sorted(
        zip(trace.events.start_ns[fetches].tolist(), trace.events.end_ns[fetches].tolist(), strict=True)
    )
    fetch_ns = sum(end_ns - start_ns for start_ns, end_ns in fetches_ns[1:12])
    (loader,) = loaders_of(torch_rank)
    wait_ns = sum(delivery.wait_ns for delivery in loader.deliveries[1:])
    assert breakdown["dataloader"] * 11e6 == pytest.approx(fetch_ns, rel=0.001)
    assert breakdown["dataloader"] * 11e6 <= wait_ns + 11 * 50_000
    assert breakdown["kernel"] == 0
    assert rank["accelerator"] is None


def test_the_clocks_of_both_agree(session: Session) -> None:
    (rank,) = session.ranks
    (trace,) = rank.main.windows.traces
    ranges = trace.events.start_ns[trace.named(lambda name: name.startswith("enumerate(DataLoader)"))]
    ends = trace.events.end_ns[trace.named(lambda name: name.startswith("enumerate(DataLoader)"))]
    (loader,) = loaders_of(rank)
    inside = 0
    for delivery in loader.deliveries:
        # The agent's hook is around torch's range: both clocks say so, within some us.
        inside += any(
            delivery.wait_start_ns - 50_000 <= start and end <= delivery.delivered_ns + 50_000
            for start, end in zip(ranges.tolist(), ends.tolist(), strict=True)
        )
    assert inside == len(loader.deliveries) == 12


def test_the_timeline_has_the_operators(session: Session, tmp_path: Path) -> None:
    path = tmp_path / "rank0.json.gz"
    timeline = build(RankAnalysis(session, session.ranks[0]), [])
    count = sum(len(track.slices) for process in timeline.processes for track in process.tracks)
    write_chrome(timeline, path)
    errors, slices, tracks = query(
        path,
        ERRORS,
        "select count(*) from slice",
        """select distinct t.name from slice s join thread_track k on k.id = s.track_id
           join thread t using (utid) where s.category = 'operator'""",
    )
    assert errors == []
    assert slices == [[count]]
    assert ["torch"] in tracks


def test_a_damaged_trace_is_told_and_costs_nothing_else(run: Run, session: Session) -> None:
    (place,) = run.session.glob(f"**/processes/{session.ranks[0].main.pid}-*")
    whole = gzip.decompress((place / "torch-program-0.json.gz").read_bytes())
    (place / "torch-program-0.json.gz").write_bytes(gzip.compress(whole[: len(whole) // 2]))
    (place / "torch-1.json").write_bytes(b"no trace")
    report = run.report()
    (rank,) = report["ranks"]
    assert rank["steps"]["count"] > 0
    assert rank["breakdown_ms"]["dataloader"] > 15
    told = [item["why"] for item in report["not_captured"] if "torch.profiler traces" in item["what"]]
    assert any("breaks off before its end" in why for why in told)
    assert any("no trace in Chrome's JSON format" in why for why in told)
    assert report["session"]["complete"] is False
