"""A report goes to a real MLflow server and to W&B offline; both hold what the report says."""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.runs import SMALL_LOOP, run_traced
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(900)  # the server alone takes 15 s of CPU time to start


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A session of a small loop."""
    return run_traced(tmp_path_factory.mktemp("run"), [SMALL_LOOP, "40"], ["-q"]).session


@pytest.fixture
def session(recorded: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(recorded, tmp_path / "session"))


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an MLflow server with a database of its own."""
    import urllib.request

    directory, port = tmp_path_factory.mktemp("mlflow"), free_port()
    line = [
        sys.executable,
        "-m",
        "mlflow",
        "server",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--workers=1",
    ]
    line += [
        "--backend-store-uri",
        f"sqlite:///{directory}/mlflow.db",
        "--artifacts-destination",
        str(directory),
    ]
    with (directory / "server.log").open("wb") as output:
        process = subprocess.Popen(line, stdout=output, stderr=output, cwd=directory)
    address = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        assert process.poll() is None, (directory / "server.log").read_text()
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=5) as found:
                return bool(found.status == 200)
        except OSError:
            return False

    try:
        eventually(answers, 600)
        yield address
    finally:
        process.terminate()
        process.wait()


def report(session: Path, *log: str, **environment: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "iotrace", "report", str(session)]
    return subprocess.run(
        [*line, *(word for name in log for word in ("--log", name))],
        env={**os.environ, **environment},
        cwd=session,
        capture_output=True,
        text=True,
    )


def told(session: Path) -> dict[str, Any]:
    """What the report says as JSON, as it was logged."""
    found: dict[str, Any] = json.loads((session / "out" / "log" / "files" / "report.json").read_text())
    return found


def test_an_mlflow_server_holds_metrics_tables_files_and_rates(session: Path, server: str) -> None:
    import mlflow

    done = report(session, "mlflow", MLFLOW_TRACKING_URI=server, MLFLOW_EXPERIMENT_NAME="readers")
    assert done.returncode == 0
    assert f"iotrace: logged to mlflow: {server}/#/experiments/" in done.stderr
    mlflow.set_tracking_uri(server)
    (run,) = mlflow.search_runs(experiment_names=["readers"], output_format="list")
    assert (run.info.run_name, run.info.status) == ("session", "FINISHED")
    steps = told(session)["ranks"][0]["steps"]
    assert run.data.metrics["iotrace/steps.count"] == steps["count"]
    assert run.data.metrics["iotrace/steps.mean_ms"] == pytest.approx(steps["mean_ms"])
    assert run.data.tags["iotrace.verdict"] == told(session)["verdict"]["text"]
    rates = mlflow.MlflowClient().get_metric_history(run.info.run_id, "iotrace/over_time/steps_per_second")
    evolution = told(session)["ranks"][0]["speed"]["evolution"]
    assert [each.step for each in rates] == [each["first_step"] for each in evolution]
    mlflow.set_experiment("readers")  # where tables are looked for
    table = mlflow.load_table("iotrace/tables/files.json", run_ids=[run.info.run_id])
    assert set(table["path"]) == {each["path"] for each in told(session)["ranks"][0]["file_groups"]}
    kept = {file.path for file in mlflow.MlflowClient().list_artifacts(run.info.run_id, "iotrace")}
    assert {"iotrace/report.json", "iotrace/files.csv", "iotrace/speed.csv"} <= kept

    again = report(session, "mlflow", MLFLOW_TRACKING_URI=server, MLFLOW_RUN_ID=run.info.run_id)
    assert run.info.run_id in again.stderr
    assert len(mlflow.search_runs(experiment_names=["readers"], output_format="list")) == 1


def test_wandb_writes_a_run_that_can_be_sent_later(session: Path) -> None:
    done = report(session, "wandb", WANDB_MODE="offline")
    assert done.returncode == 0, done.stderr
    assert "iotrace: logged to wandb: offline; send it: wandb sync " in done.stderr, done.stderr
    directory = Path(done.stderr.split("wandb sync ")[1].split("\n")[0])
    (written,) = directory.glob("*.wandb")
    assert directory.is_relative_to(session)
    values = list(history(written))
    evolution = told(session)["ranks"][0]["speed"]["evolution"]
    assert [each["iotrace/step"] for each in values if "iotrace/step" in each] == [
        each["first_step"] for each in evolution
    ]
    (rows,) = (each["iotrace/tables/files/nrows"] for each in values if "iotrace/tables/files/nrows" in each)
    assert rows == len(told(session)["ranks"][0]["file_groups"])


def history(path: Path) -> Iterator[dict[str, Any]]:
    """What a file of W&B has of `run.log`."""
    from wandb.proto import wandb_internal_pb2

    for data in leveldb_records(path.read_bytes()):
        record = wandb_internal_pb2.Record.FromString(data)
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            yield {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def leveldb_records(data: bytes) -> Iterator[bytes]:
    """The records of a log of LevelDB, behind the seven bytes that W&B puts first."""
    at, record, block = 7, b"", 1 << 15
    while at + 7 <= len(data):
        if block - at % block < 7:  # a record's head does not fit
            at += block - at % block
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, last
            yield record
            record = b""


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_a_server_that_is_away_is_a_warning(session: Path, name: str) -> None:
    away = f"http://127.0.0.1:{free_port()}"
    environment = {"MLFLOW_TRACKING_URI": away, "WANDB_BASE_URL": away, "WANDB_API_KEY": 40 * "0"}
    done = report(session, name, **environment)
    assert done.returncode == 0
    assert f"iotrace: warning: {name} did not take the result: " in done.stderr
    assert told(session)["schema_version"] == 1
