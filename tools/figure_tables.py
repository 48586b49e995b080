"""Write the tables of docs/definitions.md and docs/session-format.md: what fields of structs declare.

A marker names the struct.

tools/docs figures
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_type_hints

from iotrace.analysis import results
from iotrace.analysis.results.base import figures_of
from iotrace.sources import samples

PAGES = [Path(__file__).parents[1] / "docs" / name for name in ("definitions.md", "session-format.md")]
# `<!-- figures: Steps, excluded.Excluded -->`: a struct, and one whose fields follow behind a dot.
_RECORDED = re.compile(r"(<!-- recorded: (?P<struct>\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_TABLE = re.compile(r"(<!-- figures: (?P<structs>[\w.,\[\] ]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def page(text: str) -> str:
    """Return `text` with each table between markers as the structs declare it now."""
    text = _RECORDED.sub(lambda found: f"{found[1]}\n{_recorded(found['struct'])}\n{found[3]}", text)
    return _TABLE.sub(lambda found: f"{found[1]}\n{_table(found['structs'])}\n{found[3]}", text)


def _recorded(struct: str) -> str:
    """What each field of a record means; fields of which the same is declared share a row."""
    names: dict[str, list[str]] = {}
    for name, hint in get_type_hints(getattr(samples, struct), include_extras=True).items():
        names.setdefault(hint.__metadata__[-1].description, []).append(f"`{name}`")
    rows = (f"| {', '.join(own)} | {meaning} |\n" for meaning, own in names.items())
    return "".join(["| Field | Meaning |\n|---|---|\n", *rows])


def _table(structs: str) -> str:
    rows: list[list[str]] = []
    for row in (row for named in structs.split(", ") for row in _rows(*named.rpartition(".")[::2])):
        if rows and rows[-1][1:] == row[1:]:
            rows[-1][0] += f", {row[0]}"  # of which the same is declared
        else:
            rows.append(row)
    columns = ["Field", "Unit", "Meaning", "Null"]
    for at in (3, 1):  # a column in which nothing stands is none
        if all(row[at] in ("", "never") for row in rows):
            columns.pop(at)
            rows = [row[:at] + row[at + 1 :] for row in rows]
    lines = [f"| {' | '.join(line)} |\n".replace("|  |", "| |") for line in (columns, *rows)]
    return "".join([lines[0], "|---" * len(columns), "|\n", *lines[1:]])


def _rows(before: str, struct: str) -> Iterator[list[str]]:
    for one in figures_of(getattr(results, struct)):
        name = f"`{before}.{one.name}`" if before else f"`{one.name}`"
        yield [name, one.unit, one.meaning, one.null or ("" if one.may_be_null else "never")]


def main() -> None:
    """Write the pages, with the tables as declared."""
    for path in PAGES:
        path.write_text(page(path.read_text()))


if __name__ == "__main__":
    main()
