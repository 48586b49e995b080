"""The tool that shows rows of one part of a report."""

from __future__ import annotations

from typing import Any

import msgspec

from iotrace.analysis.results.base import figures_of
from iotrace.errors import SessionError, UsageError
from iotrace.mcp_server import results as r
from iotrace.mcp_server.answers import MEASURED, PREDICTED, paged, recorded, short, start_of
from iotrace.mcp_server.places import Places
from iotrace.mcp_server.reports import Reports
from iotrace.mcp_server.tool import Tool
from iotrace.report.blocks import Table
from iotrace.report.views import VIEWS, tables_of

_MOST_ITEMS = 8
_PREDICTED = ("gain",)  # views whose rows are a model's


class Views:
    """The views of ``iotrace report --view``."""

    def __init__(self, places: Places, reports: Reports) -> None:
        self.places, self.reports = places, reports

    def tools(self) -> list[Tool]:
        """List the tool."""
        says = f"Show rows of one part of a report. Views: {', '.join(VIEWS)}."
        return [Tool("view", says, r.AskedView, r.View, self.view)]

    def view(self, asked: r.AskedView) -> r.View:
        """Show rows of a view."""
        if asked.view not in VIEWS:
            raise UsageError("there is no such view", f"there are {', '.join(VIEWS)}")
        report = self.reports.of(self.places.session(asked.session))
        tables = [each for each in tables_of(asked.view, report) if asked.rank in (None, each.rank)]
        rows = [(table, row) for table in tables for row in (table.rows or (None,))]
        start = min(start_of(asked.cursor), max(len(rows) - 1, 0))
        if not rows:
            raise SessionError("the view shows nothing of that rank")
        table = rows[start][0]
        cells: list[Any] = [
            None if each is not table or row is None else _cells(table, row) for each, row in rows
        ]
        own = [at for at, (each, _) in enumerate(rows) if each is table]

        def make(chosen: list[Any]) -> r.View:
            return r.View(
                session=asked.session,
                view=asked.view,
                kind=PREDICTED if asked.view in _PREDICTED else MEASURED,
                table=recorded(table.title),
                rank=table.rank,
                columns=_columns(table),
                rows=[row for row in chosen if row is not None],
                unknown=None if table.rows else recorded(table.unknown_text),
            )

        at_once = min(asked.most_rows, own[-1] + 1 - start)
        return paged(make, cells, str(start), asked.most_bytes, at_once)


def _cells(table: Table, row: msgspec.Struct) -> list[Any]:
    values = []
    for field in table.fields:
        name, _, entry = field.name.partition(".")
        value = getattr(row, name)
        if entry and value is not None:
            value = value.get(entry)
        values.append(_cell(value))
    return values


def _cell(value: Any) -> Any:
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return short(value)
    if isinstance(value, list):
        return [_cell(each) for each in value[:_MOST_ITEMS]]
    if isinstance(value, str):
        return recorded(value, 120)
    return recorded(str(msgspec.to_builtins(value)), 120)


def _columns(table: Table) -> list[r.Column]:
    known = {} if not table.rows else {each.attribute: each for each in figures_of(type(table.rows[0]))}
    found = []
    for field in table.fields:
        figure = known.get(field.name.partition(".")[0])
        found.append(
            r.Column(
                name=field.name,
                unit="" if figure is None else figure.unit,
                meaning="" if figure is None else figure.meaning[:80],
            )
        )
    return found
