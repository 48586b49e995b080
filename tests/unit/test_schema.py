"""``iotrace schema``: what `--json` prints is what others rely on; no field comes or goes unnoticed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from iotrace.cli import app

SNAPSHOTS = Path(__file__).parent.parent / "data" / "schemas"


def shape_of(schema: dict[str, Any]) -> Any:
    """The schema with each reference replaced by what it names, without prose and names of classes."""
    definitions = schema["$defs"]

    def shape(node: Any) -> Any:
        if isinstance(node, list):
            return [shape(item) for item in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            return shape(definitions[node["$ref"].rpartition("/")[2]])
        if "properties" in node:
            properties = {name: shape(node["properties"][name]) for name in sorted(node["properties"])}
            return {"properties": properties, "required": sorted(node["required"])}
        return {key: shape(value) for key, value in node.items() if key not in ("title", "description")}

    return shape({key: value for key, value in schema.items() if key not in ("$defs", "$id", "$schema")})


@pytest.mark.parametrize(
    "subject",
    [
        "report",
        "top",
        "compare",
        "compare-traces",
        "check",
        "sweep",
        "tune",
        "try",
        "merge",
        "ls",
        "doctor",
        "doctor-storage",
        "rules",
    ],
)
def test_the_fields_are_those_of_the_snapshot(subject: str) -> None:
    """Where a change is meant: make it here, tell it in the change log and in docs/definitions.md.

    A new field leaves `schema_version` as it is. A field that goes, or means something else, raises it:
    `iotrace check` then refuses every baseline that users keep.
    """
    result = CliRunner().invoke(app, ["schema", subject])
    assert result.exit_code == 0
    found = json.dumps(shape_of(json.loads(result.stdout)), indent=1)
    snapshot = SNAPSHOTS / f"{subject}.json"
    assert found == snapshot.read_text().rstrip(), f"the fields of `--json` differ from {snapshot}"


def test_another_subject_is_refused() -> None:
    assert CliRunner().invoke(app, ["schema", "else"]).exit_code == 2
