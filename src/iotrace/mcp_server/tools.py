"""The tools that read reports: each takes a struct, and answers one of `results`."""

from __future__ import annotations

import shlex
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec

from iotrace.analysis.compare.basis import basis_of
from iotrace.analysis.compare.comparison import compare
from iotrace.analysis.results import Fix, Trust as FoundTrust
from iotrace.analysis.results.base import figures_of
from iotrace.analysis.rules.catalogue import explained, named, near
from iotrace.doctor.diagnose import diagnose
from iotrace.errors import SessionError, UsageError
from iotrace.mcp_server import results as r
from iotrace.mcp_server.answers import (
    AT_MOST,
    MEASURED,
    PREDICTED,
    make_number,
    maybe,
    paged,
    parse_cursor,
    recorded,
    short,
)
from iotrace.mcp_server.places import Places
from iotrace.mcp_server.reports import Reports
from iotrace.mcp_server.results import Tool
from iotrace.mcp_server.source_tools import Sources
from iotrace.report.blocks import Table
from iotrace.report.views import VIEWS, tables_of
from iotrace.session.listing import list_sessions

_MOST_ITEMS = 8
_PREDICTED_VIEWS = ("gain",)  # views whose rows are a model's


class Reading:
    """The tools that read what lies in a directory."""

    def __init__(self, root: Path) -> None:
        self.places, self.reports = Places(root), Reports()

    def tools(self) -> list[Tool]:
        """List the tools, in the order in which they are of use."""
        return [
            Tool(
                "list_sessions",
                "List the recorded training runs (sessions), the newest first.",
                r.AskedSessions,
                r.Sessions,
                self.list_sessions,
            ),
            Tool(
                "verdict",
                "Say why the accelerator waited in a session: causes, fixes with their gains, trust.",
                r.AskedSession,
                r.VerdictAnswer,
                self.verdict,
            ),
            *Views(self.places, self.reports).tools(),
            Tool(
                "explain",
                "Explain a rule by its code: what it means, how sure it is, what to do.",
                r.AskedRule,
                r.Rule,
                self.explain,
            ),
            Tool(
                "worst_batches",
                "List the batches that the loop waited for longest, with cause, worker and files.",
                r.AskedRank,
                r.Batches,
                self.worst_batches,
            ),
            Tool(
                "file",
                "Show what files cost: data wait charged to them, reads, bytes.",
                r.AskedFile,
                r.Files,
                self.file,
            ),
            Tool(
                "compare",
                "Compare two sessions: what changed of the step, by how much, how sure that is.",
                r.AskedCompare,
                r.Compared,
                self.compare,
            ),
            *Sources(self.places, self.reports).tools(),
            Tool(
                "doctor",
                "Check what a run would record on this machine, and what not.",
                r.AskedRows,
                r.Doctor,
                self.doctor,
            ),
        ]

    def list_sessions(self, asked: r.AskedSessions) -> r.Sessions:
        """List the sessions in a directory; those to which a link leads are left out."""
        directory = self.places.path(asked.directory)
        if not directory.is_dir():
            raise SessionError("there is no such directory")
        rows = []
        for each in list_sessions(directory).sessions:
            path = Path(each.path)
            if not self.places.holds(path.resolve()):
                continue
            started = (
                None
                if each.started_ns is None
                else datetime.fromtimestamp(each.started_ns / 1e9, timezone.utc)
            )
            row = r.SessionRow(
                session=self.places.relative_name(path),
                started_utc=None if started is None else f"{started:%Y-%m-%d %H:%M:%S}",
                seconds=None if each.seconds is None else round(each.seconds, 1),
                state=each.state,
                exit_code=each.exit_code,
                verdict=maybe(each.verdict, 120),
                command=maybe(shlex.join(each.argv), 120),
                problem=maybe(each.problem, 120),
            )
            rows.append(row)
        return paged(
            lambda chosen: r.Sessions(sessions=chosen), rows, asked.cursor, asked.most_bytes, asked.most_rows
        )

    def verdict(self, asked: r.AskedSession) -> r.VerdictAnswer:
        """Say what holds for the whole run."""
        path = self.places.session(asked.session)
        report, rank = self.reports.of(path), self.reports.rank(path)
        verdict, steps, wait = report.verdict, rank.steps, rank.data_wait
        made = self.reports.loader(path)
        return r.VerdictAnswer(
            session=asked.session,
            kind=verdict.kind,
            text=recorded(verdict.text),
            why=maybe(verdict.why),
            trust=_trust(verdict.trust),
            step=make_number(steps.mean_ms, "ms", interval=steps.mean_ci95_ms),
            steps=steps.count,
            data_wait=make_number(wait.raw_ms, "ms per step"),
            wait_fraction=make_number(wait.raw_wait_fraction, "0 to 1", interval=wait.raw_wait_fraction_ci95),
            causes={cause: round(ms, 3) for cause, ms in wait.causes_ms.items() if ms},
            fixes=[_fix(number, fix) for number, fix in enumerate(verdict.fixes[:5], 1)],
            fixes_total=len(verdict.fixes),
            loader=maybe(None if made is None else made.site),
            not_captured=[recorded(f"{each.what}: {each.why}", 120) for each in report.not_captured[:5]],
        )

    def explain(self, asked: r.AskedRule) -> r.Rule:
        """Explain a rule; its texts are iotrace's own."""
        known = named(asked.rule)
        if known is None:
            raise UsageError("there is no such rule", f"near to it: {', '.join(near(asked.rule)) or 'none'}")
        about = explained(known)
        texts = [*about.meaning, *(f"Bound: {each}" for each in about.bounds), f"Remedy: {about.remedy}"]
        if about.example:
            texts.append(f"Example, of made-up figures: {about.example}")

        def make(chosen: list[Any]) -> r.Rule:
            return r.Rule(code=about.code, name=about.name, about=about.about, texts=chosen)

        return paged(make, texts, asked.cursor, asked.most_bytes, asked.most_rows)

    def worst_batches(self, asked: r.AskedRank) -> r.Batches:
        """List the longest waits."""
        rank = self.reports.rank(self.places.session(asked.session), asked.rank)
        rows = [
            r.BatchRow(
                batch=each.batch,
                epoch=each.epoch,
                wait_ms=round(each.wait_ms, 3),
                delay_ms=None if each.delay_ms is None else round(each.delay_ms, 3),
                worker=each.worker,
                cause=each.cause,
                files=[recorded(file, 160) for file in each.files],
            )
            for each in rank.data_wait.worst_batches
        ]

        def make(chosen: list[Any]) -> r.Batches:
            return r.Batches(session=asked.session, rank=rank.rank, batches=chosen)

        return paged(make, rows, asked.cursor, asked.most_bytes, asked.most_rows)

    def file(self, asked: r.AskedFile) -> r.Files:
        """Show files whose path holds what was asked for."""
        rank = self.reports.rank(self.places.session(asked.session), asked.rank)
        waits = {each.path: each for each in rank.data_wait.files}
        calls = {} if rank.io is None else {each.path: each for each in rank.io.files}
        rows = []
        for path in dict.fromkeys((*waits, *calls)):
            if asked.path not in path:
                continue
            wait, io = waits.get(path), calls.get(path)
            row = r.FileRow(
                path=recorded(path),
                wait_ms=None if wait is None else round(wait.ms, 3),
                read_ms=None if wait is None else round(wait.read_ms, 3),
                decode_ms=None if wait is None else round(wait.decode_ms, 3),
                opens=None if io is None else io.opens,
                reads=None if io is None else io.reads,
                read_bytes=None if io is None else io.read_bytes,
                reread_fraction=None if io is None else io.reread_fraction,
            )
            rows.append(row)

        def make(chosen: list[Any]) -> r.Files:
            return r.Files(session=asked.session, rank=rank.rank, files=chosen)

        return paged(make, rows, asked.cursor, asked.most_bytes, asked.most_rows)

    def compare(self, asked: r.AskedCompare) -> r.Compared:
        """Compare two sessions."""
        paths = [self.places.session(name) for name in (asked.before, asked.after)]
        if paths[0] == paths[1]:
            raise UsageError("both are one session", "give the session before a change, and the one after it")
        reports = [msgspec.to_builtins(self.reports.of(path)) for path in paths]
        comparison = compare(*(basis_of(report, path) for report, path in zip(reports, paths, strict=True)))
        before_ms, after_ms = comparison.step_ms
        return r.Compared(
            before=asked.before,
            after=asked.after,
            comparable=comparison.comparable,
            differs=[recorded(each, 160) for each in comparison.differs[:5]],
            verdict=comparison.verdict,
            text=recorded(comparison.text),
            step_before=make_number(before_ms, "ms"),
            step_after=make_number(after_ms, "ms"),
            change=make_number(comparison.change_pct, "%", interval=comparison.ci95_pct),
            parts=[
                r.ChangedPart(
                    what=recorded(each.what, 120),
                    by=make_number(each.by_ms, "ms per step", interval=each.ci95_ms),
                )
                for each in comparison.changed[:6]
            ],
            trust=[_trust(side.trust) for side in comparison.sessions],
        )

    def doctor(self, asked: r.AskedRows) -> r.Doctor:
        """Check this machine; torch has 30 s to be imported."""
        diagnosis = diagnose([], None, None, 30.0)
        rows = [
            r.CheckRow(
                check=each.id,
                status=each.status,
                what=recorded(each.what, 160),
                why=maybe(each.why, 160),
                remedy=maybe(each.remedy, 160),
            )
            for each in sorted(diagnosis.checks, key=lambda each: each.status == "ok")
        ]

        def make(chosen: list[Any]) -> r.Doctor:
            return r.Doctor(captured=diagnosis.captured, not_captured=diagnosis.not_captured, checks=chosen)

        return paged(make, rows, asked.cursor, asked.most_bytes, asked.most_rows)


def _trust(trust: FoundTrust) -> r.Trust:
    return r.Trust(level=trust.level, reasons=[recorded(each, 160) for each in trust.reasons[:5]])


def _fix(number: int, fix: Fix) -> r.FixRow:
    kind, gain_ms, speedup = PREDICTED, fix.gain_ms_per_step, fix.speedup
    if fix.at_most:
        kind, gain_ms, speedup = AT_MOST, fix.bound_ms, fix.most_speedup
    return r.FixRow(
        number=number,
        rule=fix.code,
        text=recorded(fix.text, 160),
        gain=make_number(gain_ms, "ms per step", kind, fix.gain_interval_ms),
        speedup=make_number(speedup, "times as fast", kind),
        command=maybe(fix.command),
        settings=fix.change.settings if fix.change is not None else {},
    )


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
        start = min(parse_cursor(asked.cursor), max(len(rows) - 1, 0))
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
                kind=PREDICTED if asked.view in _PREDICTED_VIEWS else MEASURED,
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
    columns = []
    for field in table.fields:
        figure = known.get(field.name.partition(".")[0])
        columns.append(
            r.Column(
                name=field.name,
                unit="" if figure is None else figure.unit,
                meaning="" if figure is None else figure.meaning[:80],
            )
        )
    return columns
