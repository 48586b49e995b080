"""``iotrace schema``: the fields that others rely on are there, and required."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from iotrace.cli import app

RANK = (
    "rank host world_size steps data_wait loaders breakdown_ms accelerator io system regions overhead"
    " incarnation local_rank"
)
WAIT = (
    "raw_ms exposed_ms exposed_source raw_wait_fraction stall_fraction verdict causes_ms too_few_workers"
    " files worst_batches"
)
FILE = (
    "path opens reads read_bytes read_ms_total writes write_bytes metadata_ms_total sequential_fraction"
    " reread_fraction by_worker"
)
POINT = (
    "params workers repeats per_second ci95 raw_wait_fraction causes_ms cpu_pct_mean rss_peak_bytes"
    " predicted_per_second status sessions"
)


def schema_of(subject: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["schema", subject])
    assert result.exit_code == 0
    found: dict[str, Any] = json.loads(result.stdout)
    return found["$defs"]


@pytest.mark.parametrize(
    ("subject", "title", "fields"),
    [
        ("report", "Report", "schema_version session ranks imbalance recommendations not_captured clocks"),
        ("report", "RankReport", RANK),
        ("report", "DataWait", WAIT),
        ("report", "FileIo", FILE),
        ("report", "Steps", "count excluded mean_ms p50_ms p95_ms per_second samples_per_second"),
        ("report", "ClockInfo", "source host kind offset_ns bound_ns"),
        ("sweep", "SweepResult", "schema_version argv points ceiling advice"),
        ("sweep", "PointResult", POINT),
        ("sweep", "Advice", "workers text limited_by within_pct_of_best"),
        ("merge", "Summary", "schema_version outputs counts sources problems notes"),
        (
            "doctor",
            "Diagnosis",
            "schema_version argv interpreter captured not_captured unknown checks seconds",
        ),
    ],
)
def test_the_agreed_fields_are_always_there(subject: str, title: str, fields: str) -> None:
    assert set(fields.split()) <= set(schema_of(subject)[title]["required"])


def test_another_subject_is_refused() -> None:
    assert CliRunner().invoke(app, ["schema", "else"]).exit_code == 2
