"""Tables as CSV and JSON: all their rows, and all fields of these, whatever a screen shows."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from iotrace.analysis.results import SCHEMA_VERSION
from iotrace.errors import writing
from iotrace.report.blocks import Table
from iotrace.report.printing import encode_json


def as_json(name: str, tables: Sequence[Table]) -> dict[str, Any]:
    """Make what ``--view NAME --json`` prints: all fields of the rows, null where unknown."""
    return {
        "schema_version": SCHEMA_VERSION,
        "view": name,
        "tables": [
            {
                "title": table.title,
                "rank": table.rank,
                "rows": table.rows,
                "unknown": None if table.rows else table.unknown,
            }
            for table in tables
        ],
    }


def write_csv(tables: Sequence[Table], path: Path) -> None:
    """Write all rows, behind their rank and title; an empty line before rows with other fields.

    Raises:
        IotraceError: the file cannot be written.
    """
    with (
        writing(path, "choose another --csv FILE"),
        path.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file,
    ):
        writer = csv.writer(file)
        before: tuple[str, ...] = ()
        for table in tables:
            for row in table.rows:
                if row.__struct_fields__ != before:
                    if before:
                        writer.writerow(())
                    before = row.__struct_fields__
                    own = ("rank",) if "rank" not in before else ()
                    writer.writerow([*own, "table", *row.__struct_encode_fields__])
                of_rank = () if "rank" in before else (table.rank,)
                values = [plain_value(getattr(row, each)) for each in before]
                writer.writerow([*of_rank, table.title, *values])


def plain_value(value: Any) -> Any:
    """Return a value as it is where a table's cell holds it, several values as JSON."""
    if value is None or isinstance(value, str | int | float):
        return value
    return encode_json(value).decode()
