"""MLflow: metrics, tags, tables and files of a run; a new one, or the one that MLFLOW_RUN_ID names."""

from __future__ import annotations

import json
import os
import time
from itertools import islice
from pathlib import Path
from typing import Any

from iotrace.sinks.content import FILES, PREFIX, Content

_LONGEST_TAG = 5000  # characters that every server takes
_BATCH = 1000  # metrics in a request
# Where a server is away: less patience than a training has. What the user set counts.
_PATIENCE = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "15",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


def send(content: Content, directory: Path) -> str:
    """Log `content` and the files in `directory`; returns the run's address."""
    if "MLFLOW_TRACKING_URI" not in os.environ:
        raise LookupError("MLFLOW_TRACKING_URI names no server: http://HOST:5000, or a directory")
    for name, value in _PATIENCE.items():
        os.environ.setdefault(name, value)
    import mlflow
    from mlflow.entities import Metric, RunTag

    client = mlflow.MlflowClient()
    now_ms = int(time.time() * 1e3)
    given = os.environ.get("MLFLOW_RUN_ID")
    run = client.get_run(given) if given else client.create_run(_experiment(client), run_name=content.name)
    run_id = run.info.run_id
    began_ms = now_ms if content.started_ns is None else content.started_ns // 1_000_000
    metrics = [Metric(f"{PREFIX}/{name}", value, now_ms, 0) for name, value in content.metrics.items()]
    for name, points in content.series.items():
        for point in points:
            at_ms = began_ms + int(1e3 * (point.seconds or 0))
            metrics.append(Metric(f"{PREFIX}/{name}", point.value, at_ms, point.step))
    tags = [RunTag(f"{PREFIX}.{name}", text[:_LONGEST_TAG]) for name, text in content.labels.items()]
    tables = [f"{PREFIX}/tables/{name}.json" for name in content.tables]
    listed = json.loads(run.data.tags.get("mlflow.loggedArtifacts", "[]"))
    before = {each["path"] for each in listed}
    listed += [{"path": path, "type": "table"} for path in tables if path not in before]
    tags.append(RunTag("mlflow.loggedArtifacts", json.dumps(listed)))  # so its pages show them as tables
    left = iter(metrics)
    while part := list(islice(left, _BATCH)):
        client.log_batch(run_id, metrics=part)
    client.log_batch(run_id, tags=tags)
    for path, grid in zip(tables, content.tables.values(), strict=True):
        client.log_dict(run_id, {"columns": grid.columns, "data": grid.rows}, path)
    client.log_artifacts(run_id, str(directory / FILES), PREFIX)
    if not given:
        client.set_terminated(run_id)
    server = mlflow.get_tracking_uri().rstrip("/")
    if not server.startswith("http"):
        return f"{server}, run {run_id}"
    return f"{server}/#/experiments/{run.info.experiment_id}/runs/{run_id}"


def _experiment(client: Any) -> str:
    """Return the experiment that the environment names, made where it is not there; else the default one."""
    if experiment_id := os.environ.get("MLFLOW_EXPERIMENT_ID"):
        return experiment_id
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "Default")
    known = client.get_experiment_by_name(name)
    return str(client.create_experiment(name) if known is None else known.experiment_id)
