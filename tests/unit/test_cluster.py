"""``--dask`` without Dask: what tasks return is what a report is made of. With Dask: tests/external."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path

import msgspec
import pytest
from tools.benchmarks.big import write_session

from iotrace.analysis.page import columns_of
from iotrace.analysis.rank import SessionAnalysis
from iotrace.analysis.report import analyse
from iotrace.analysis.tasks import part_of_rank, part_of_trace
from iotrace.analysis.traces import analyse_traces, report_of_parts
from iotrace.report.page.report import report_page
from iotrace.sources.kineto.reader import read_kineto
from iotrace.sources.session import open_session
from tests.support.runs import in_process

TRACES = sorted((Path(__file__).parent.parent / "data").glob("gloo_rank?.json.gz"))


def test_parts_made_elsewhere_make_the_same_report(tmp_path: Path) -> None:
    write_session(tmp_path / "s", 40, loaders=1, workers=1, ranks=2, calls=1)
    for rank, trace in enumerate(TRACES):
        (main,) = (tmp_path / "s" / "processes").glob(f"{1000 + 1000 * rank}-*")
        (main / "torch-0.json.gz").write_bytes(trace.read_bytes())
    session = open_session(tmp_path / "s")
    parts = [part_of_rank(tmp_path / "s", 30.0, "job", rank.name) for rank in session.ranks]
    beside_figures = pickle.dumps([(part.trace, part.windows) for part in parts])
    assert len(beside_figures) < len(pickle.dumps([rank.main.windows for rank in session.ranks])) / 4
    analyses = [SessionAnalysis(open_session(tmp_path / "s")) for _ in range(2)]
    found, bare = analyse(analyses[0], pickle.loads(pickle.dumps(parts))), analyse(analyses[1])
    assert found.imbalance is not None
    assert found.imbalance.stragglers[0].rank == 1
    assert msgspec.json.encode(found) == msgspec.json.encode(bare)
    pages = [report_page(found, columns_of(analysis, found)) for analysis in analyses]
    assert pages[0] == pages[1]


def test_traces_read_elsewhere_make_the_same_report() -> None:
    moved = pickle.loads(pickle.dumps([part_of_trace(30.0, path) for path in TRACES]))
    bare = analyse_traces([read_kineto(path) for path in TRACES])
    assert bare.imbalance is not None
    assert msgspec.json.encode(report_of_parts(moved)) == msgspec.json.encode(bare)


def test_a_ranks_trace_that_is_cut_makes_the_same_report_and_says_so(tmp_path: Path) -> None:
    whole = [gzip.decompress(path.read_bytes()) for path in TRACES]
    paths = [tmp_path / path.name.removesuffix(".gz") for path in TRACES]
    for path, content in zip(paths, (whole[0], whole[1][: len(whole[1]) // 2]), strict=True):
        path.write_bytes(content)
    moved = pickle.loads(pickle.dumps([part_of_trace(30.0, path) for path in paths]))
    found, bare = report_of_parts(moved), analyse_traces([read_kineto(path) for path in paths])
    assert msgspec.json.encode(found) == msgspec.json.encode(bare)
    assert not found.session.complete
    assert any("gloo_rank1.json" in f"{item.what} {item.why}" for item in found.not_captured)


def test_dask_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iotrace.cluster.find_spec", lambda name: None)
    done = in_process("merge", *map(str, TRACES), "--dask", "local")
    assert done.returncode == 2
    assert "pip install 'iotrace-agent[dask]'" in done.stderr


def test_a_ranks_trace_that_is_missing_is_named(tmp_path: Path) -> None:
    done = in_process("report", str(TRACES[0]), str(tmp_path / "rank1.json.gz"))
    assert done.returncode == 1
    assert "rank1.json.gz does not exist" in done.stderr
