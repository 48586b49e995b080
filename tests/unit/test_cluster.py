"""``--dask`` without Dask: what tasks return is what a report is made of. With Dask: tests/external."""

from __future__ import annotations

import pickle
from pathlib import Path

import msgspec
import pytest
from tools.benchmarks.big import write_session

from iotrace.analysis.rank import SessionAnalysis
from iotrace.analysis.report import analyse
from iotrace.analysis.tasks import figures_of_trace, part_of_rank
from iotrace.analysis.traces import analyse_traces, report_of_computed
from iotrace.sources.kineto.reader import read_kineto
from iotrace.sources.session import open_session
from tests.support.runs import in_process

TRACES = sorted((Path(__file__).parent.parent / "data").glob("gloo_rank?.json.gz"))


def test_parts_made_elsewhere_make_the_same_report(tmp_path: Path) -> None:
    write_session(tmp_path / "s", 40, loaders=1, workers=1, ranks=3, calls=1)
    session = open_session(tmp_path / "s")
    parts = [part_of_rank(tmp_path / "s", 30.0, "job", rank.name) for rank in session.ranks]
    moved = pickle.loads(pickle.dumps(parts))
    found = analyse(SessionAnalysis(session), moved)
    assert len(found.ranks) == 3
    bare = analyse(SessionAnalysis(open_session(tmp_path / "s")))
    assert msgspec.json.encode(found) == msgspec.json.encode(bare)


def test_traces_read_elsewhere_make_the_same_report() -> None:
    moved = pickle.loads(pickle.dumps([figures_of_trace(30.0, path) for path in TRACES]))
    bare = analyse_traces([read_kineto(path) for path in TRACES])
    assert bare.imbalance is not None
    assert msgspec.json.encode(report_of_computed(moved)) == msgspec.json.encode(bare)


def test_dask_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iotrace.cluster.find_spec", lambda name: None)
    done = in_process("merge", *map(str, TRACES), "--dask", "local")
    assert done.returncode == 2
    assert "pip install 'iotrace-agent[dask]'" in done.stderr


def test_a_ranks_trace_that_is_missing_is_named(tmp_path: Path) -> None:
    done = in_process("report", str(TRACES[0]), str(tmp_path / "rank1.json.gz"))
    assert done.returncode == 1
    assert "rank1.json.gz does not exist" in done.stderr
