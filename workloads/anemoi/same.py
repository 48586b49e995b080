"""Compare what `anemoi-training profile` wrote bare and traced: the files, their columns, their rows.

usage: same.py BARE TRACED BARE_EXIT_CODE TRACED_EXIT_CODE; ends with 0 where all is equal.

A table's rows are compared by their names where neither a rank nor a time chooses them: the memory table
holds the operators that took most memory, and its order, as that of the time tables, is one of figures.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from pathlib import Path

# The columns that name a row, and tables whose rows are the top of a ranking.
NAMES = ("name", "metric", "category", "")
RANKED = ("memory",)
_RUN = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")  # anemoi names a directory by its run


def name_of(path: Path, directory: Path) -> str:
    return _RUN.sub("RUN", str(path.relative_to(directory)))


def tables_of(directory: Path) -> dict[str, tuple[list[str], list[str]]]:
    """The columns of each CSV file below `directory`, and the names of its rows, sorted."""
    found = {}
    for path in sorted(directory.rglob("*.csv")):
        with path.open(newline="") as file:
            header, *rows = list(csv.reader(file))
        named = next((at for at, column in enumerate(header) if column.lower() in NAMES), 0)
        found[name_of(path, directory)] = header, sorted(row[named] for row in rows if row)
    return found


def main(bare: Path, traced: Path, codes: list[str]) -> int:
    problems = []
    if codes[0] != codes[1]:
        problems.append(f"exit codes {' and '.join(codes)}")
    files = [
        {name_of(path, top) for path in top.rglob("*") if path.is_file() and path.suffix != ".json"}
        for top in (bare, traced)
    ]
    if files[0] != files[1]:
        problems.append(f"files: {sorted(files[0] ^ files[1])}")
    tables, of_traced = tables_of(bare), tables_of(traced)
    if not tables:
        problems.append("no table was written")
    for name in sorted(tables.keys() & of_traced.keys()):
        (columns, rows), (other_columns, other_rows) = tables[name], of_traced[name]
        if columns != other_columns:
            problems.append(f"{name}: columns {columns} and {other_columns}")
        differing = sorted(set(rows) ^ set(other_rows))
        ranked = any(word in name for word in RANKED)
        if differing and not ranked:
            problems.append(f"{name}: rows {differing}")
        note = f", {len(differing)} of them in one alone: a ranking" if differing and ranked else ""
        print(f"  {name}: {len(columns)} columns, {len(rows)} and {len(other_rows)} rows{note}")
    # Its trace holds every frame of the main thread, ours among them: docs/anemoi.md says which.
    for path in traced.rglob("*.csv"):
        if b"iotrace" in path.read_bytes():
            problems.append(f"{name_of(path, traced)} speaks of iotrace")
    for trace in sorted(traced.rglob("*.pt.trace.json")):
        print(f"  {trace.name}: {len(json.loads(trace.read_text())['traceEvents'])} events")
    for problem in problems:
        print(f"  DIFFERS: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:5]))
