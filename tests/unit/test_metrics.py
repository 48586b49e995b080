"""Metrics of runs that go on: as Prometheus reads them, served and written by `iotrace run --metrics`."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import msgspec
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from iotrace.analysis.results import DataWait, Excluded, Steps
from iotrace.analysis.results.top import Top, TopGpu, TopProcess, TopRank
from iotrace.errors import LaunchError
from iotrace.export.metrics import CONTENT_TYPE, GAUGES, metrics_text
from iotrace.launch.metrics import Exporter
from tests.support.runs import PROJECT
from tests.support.served import session

STRANGE = 'a"b\n\\c'


def top(*ranks: TopRank) -> Top:
    return Top(
        schema_version=1, time_s=0.0, path="p", argv=[], state="running", window_steps=5, ranks=list(ranks),
        hosts=[], notes=[],
    )  # fmt: skip


def rank(number: int) -> TopRank:
    return TopRank(
        rank=number,
        incarnation=0,
        steps=Steps(count=5, excluded=Excluded(first=1, warmup=0, profiled=0), mean_ms=50.0, per_second=20.0),
        data_wait=msgspec.convert(
            {"raw_ms": 20.0, "raw_wait_fraction": 0.4, "causes_ms": {"decode": 15.0, "read": 5.0}}, DataWait
        ),
        file_groups=[],
        processes=[
            TopProcess(pid=1, role="main"),
            TopProcess(pid=2, role="worker 0", read_bytes_per_s=7.0),
        ],
        gpus=[TopGpu(index=0, name="A", util_pct=25.0)],
    )


def samples(text: str, read: object = read_openmetrics) -> dict[tuple[str, ...], float]:
    """What a client of Prometheus reads, by name and values of labels."""
    return {
        (each.name, *each.labels.values()): each.value
        for family in read(text)  # type: ignore[operator]
        for each in family.samples
    }


@pytest.mark.parametrize("read", [read_openmetrics, read_text])
def test_prometheus_reads_what_is_known(read: object) -> None:
    text = metrics_text([(STRANGE, top(rank(0), rank(1)), "hung"), ("calm", top(), "running")]).decode()
    found = samples(text, read)
    assert found["iotrace_hung", STRANGE] == 1.0
    assert found["iotrace_hung", "calm"] == 0.0
    assert found["iotrace_step_seconds", STRANGE, "0"] == 0.05
    assert found["iotrace_wait_cause_seconds", STRANGE, "1", "decode"] == 0.015
    assert found["iotrace_read_bytes_per_second", STRANGE, "0"] == 7.0
    assert found["iotrace_device_busy_ratio", STRANGE, "1", "0"] == 0.25
    assert {name for name, *_ in found} == set(GAUGES)
    assert not any(labels[:1] == ("calm",) for name, *labels in found if name != "iotrace_hung")


def test_every_query_of_the_dashboard_names_a_metric_that_exists() -> None:
    board = json.loads((PROJECT / "docs" / "grafana.json").read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    queries += [each["query"] for each in board["templating"]["list"] if each["type"] == "query"]
    used = set()
    for query in queries:
        named = re.findall(r"\biotrace_\w+", query)
        assert named, query
        used |= set(named)
        for labels in re.findall(r"by \(([^)]*)\)", query):
            known = {label for name in named for label in GAUGES[name].labels}
            assert set(re.split(r",\s*", labels)) <= known, query
    assert used == set(GAUGES)
    for panel in board["panels"]:
        labels = set(re.findall(r"{{(\w+)}}", panel["targets"][0]["legendFormat"]))
        (name,) = re.findall(r"\biotrace_\w+", panel["targets"][0]["expr"])
        assert labels <= set(GAUGES[name].labels)
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    documented = set(re.findall(r"^\| `(iotrace_\w+)`", (PROJECT / "docs" / "ui.md").read_text(), re.M))
    assert documented == set(GAUGES)


@pytest.mark.parametrize("target", ["", "host", "1:2:3", "70000", "http://x:1", "a b:1", "none/x.prom", "-1"])
def test_what_is_no_address_is_refused(target: str) -> None:
    with pytest.raises(LaunchError, match="--metrics"):
        Exporter(target)


def test_a_port_in_use_is_said_and_harms_nothing(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        exporter = Exporter(str(taken.getsockname()[1]))
        said = exporter.start(tmp_path)
        exporter.stop()
    assert said.startswith("no metrics at 127.0.0.1:")
    assert "in use" in said


def test_metrics_are_served_until_the_end(tmp_path: Path) -> None:
    run = session(tmp_path / "run", exit_code=None)
    exporter = Exporter("0")
    said = exporter.start(run)
    try:
        address = said.removeprefix("metrics at ")
        with urlopen(address, timeout=120) as answer:
            assert answer.headers["Content-Type"] == CONTENT_TYPE
            assert samples(answer.read().decode())["iotrace_hung", "run"] == 0.0
        for wrong, code in (
            (Request(f"{address}/x"), 404),
            (Request(address, headers={"Host": "evil"}), 403),
        ):
            with pytest.raises(HTTPError) as refused:
                urlopen(wrong, timeout=60)
            assert refused.value.code == code
    finally:
        exporter.stop()
    with pytest.raises(OSError, match="refused"):
        urlopen(address, timeout=60)


def test_a_file_is_there_while_the_run_goes_on(tmp_path: Path) -> None:
    run, file = session(tmp_path / "run", exit_code=None), tmp_path / "iotrace.prom"
    exporter = Exporter(str(file))
    assert exporter.start(run) == f"metrics in {file}"
    try:
        for _ in range(1200):
            if file.exists():
                break
            assert exporter._process is not None
            with pytest.raises(Exception, match="timed out"):
                exporter._process.wait(0.1)
        assert samples(file.read_text(), read_text)["iotrace_hung", "run"] == 0.0
        assert file.stat().st_mode & 0o777 == 0o644
        assert [each.name for each in tmp_path.glob("*.prom")] == ["iotrace.prom"]
    finally:
        exporter.stop()
    assert not file.exists()
