"""The process that analyses: one task, then it ends. What it makes is in a directory of the server's.

It has a bound of memory: a session that needs more blocks nobody else.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from iotrace.errors import IotraceError, SessionError
from iotrace.session.reading import read_whole
from iotrace.ui.tasks import (
    CHECK,
    COMPARISON,
    DONE,
    HISTORY,
    PAGE,
    REPORT,
    REPORT_JSON,
    SWEEP,
    TIMELINE,
    TRACE,
    Done,
    Shown,
    Task,
    decoded,
    encoded,
)

if TYPE_CHECKING:
    from iotrace.analysis.results import Report
    from iotrace.report.blocks import Table
    from iotrace.viewer.view import View

_THREADS = "OPENBLAS_NUM_THREADS"
_MOST_ROWS = 1000  # of a tab's table; CSV and JSON have all


def main() -> None:
    """Do the task on the command line, within the bound of memory; its result is written at last."""
    task = decoded(sys.argv[1].encode(), Task)
    directory, most_bytes = Path(sys.argv[2]), int(sys.argv[3])
    os.environ[_THREADS] = "1"
    resource.setrlimit(resource.RLIMIT_DATA, (most_bytes, most_bytes))
    try:
        done = _MAKERS[task.kind](task, directory)
    except MemoryError:
        done = Done(problem=f"it needs more than {most_bytes >> 20} MiB of memory: use iotrace report")
    except OSError as error:
        done = Done(problem=f"{error.filename or 'the result'}: {error.strerror}")
    except IotraceError as error:
        done = Done(problem=". ".join(filter(None, [str(error), error.remedy])))
    (directory / DONE).write_bytes(encoded(done))


def _report(task: Task, directory: Path) -> Done:
    from iotrace.analysis.page import columns_of
    from iotrace.analysis.verdict.headline import headline_of
    from iotrace.report.page.report import report_page
    from iotrace.report.printing import encode_json
    from iotrace.report.views import filled, tables_of

    if task.traces:
        report, columns = _report_of_traces(task.paths), None
    elif task.baselines:
        report, columns = _kept_report(Path(task.baselines[0])), None
    else:
        from iotrace.analysis.rank import SessionAnalysis
        from iotrace.analysis.report import analyse
        from iotrace.sources.session import open_session

        analysis = SessionAnalysis(open_session(Path(task.paths[0])))
        report = analyse(analysis)
        columns = columns_of(analysis, report)
    page = report_page(report, columns, *task.timelines)
    (directory / PAGE).write_bytes(page.encode(errors="replace"))
    (directory / REPORT_JSON).write_bytes(encode_json(report))
    views = filled(report)
    for name in views:
        _write_view(directory, name, tables_of(name, report))
    return Done(verdict=report.verdict.text, headline=headline_of(report), views=views)


def _write_view(directory: Path, name: str, tables: Sequence[Table]) -> None:
    from iotrace.report.blocks import as_json, whose, write_csv
    from iotrace.report.printing import encode_json

    shown = [_shown(table, of) for table, of in zip(tables, whose(tables), strict=True)]
    (directory / f"{name}.shown").write_bytes(encoded(shown))
    (directory / f"{name}.json").write_bytes(encode_json(as_json(name, tables)))
    write_csv(tables, directory / f"{name}.csv")


def _shown(table: Table, of: str) -> Shown:
    """The first text comes first: a phone shows the left."""
    from iotrace.report.blocks import cells_of

    first = next((field for field in table.fields if field.is_text), None)
    fields = sorted(table.fields, key=lambda field: field is not first)
    cells = cells_of(msgspec.structs.replace(table, fields=fields, rows=table.rows[:_MOST_ROWS]))
    return Shown(
        title=f"{of}{table.title}",
        headings=[field.heading for field in fields],
        texts=[field.is_text for field in fields],
        rows=cells,
        more=max(0, len(table.rows) - _MOST_ROWS),
        unknown="" if table.rows else table.unknown_text,
        notes=list(table.notes),
        looks=[command.rsplit(maxsplit=2)[1:] for command in table.commands],
        meanings=_meanings(table),
    )


def _meanings(table: Table) -> list[tuple[str, str]]:
    """Say of each column what is declared of its figure."""
    from iotrace.analysis.results.base import figures_of

    declared = {} if not table.rows else {one.name: one for one in figures_of(type(table.rows[0]))}
    named = [(field.heading, declared.get(field.name.partition(".")[0])) for field in table.fields]
    return [(heading, one.meaning) for heading, one in named if one is not None]


def _report_of_traces(paths: Sequence[str]) -> Report:
    from iotrace.analysis.traces import report_of_parts, trace_part
    from iotrace.sources.kineto.reader import read_kineto

    return report_of_parts([trace_part(read_kineto(Path(path)), 30.0) for path in paths])


def _kept_report(path: Path) -> Report:
    from iotrace.analysis.compare.basis import parse_report
    from iotrace.analysis.results import Report

    try:
        return msgspec.convert(parse_report(read_whole(path), path), Report)
    except msgspec.ValidationError as error:
        raise SessionError(f"{path} is of another iotrace: {error}", "make it again") from error


def _comparison(task: Task, directory: Path) -> Done:
    if task.traces:
        from iotrace.analysis.compare.traces import compare_traces
        from iotrace.report.page.results import trace_comparison_page

        before, after = (_report_of_traces([path]) for path in task.paths)
        page = trace_comparison_page(compare_traces(before, after))
    else:
        from iotrace.analysis.compare.basis import basis_of
        from iotrace.analysis.compare.comparison import compare
        from iotrace.analysis.page.sides import side_steps
        from iotrace.analysis.rank import SessionAnalysis
        from iotrace.analysis.report import analyse
        from iotrace.report.page.results import comparison_page
        from iotrace.sources.session import open_session

        analyses = [SessionAnalysis(open_session(path)) for path in map(Path, task.paths)]
        both = [
            basis_of(msgspec.to_builtins(analyse(each)), path)
            for each, path in zip(analyses, map(Path, task.paths), strict=True)
        ]
        result = compare(both[0], both[1])
        sides = [side_steps(each, result.rank) for each in analyses]
        page = comparison_page(result, sides, task.timelines)
    (directory / PAGE).write_bytes(page.encode(errors="replace"))
    return Done()


def _sweep(task: Task, directory: Path) -> Done:
    from iotrace.analysis.page import columns_of_runs
    from iotrace.report.page.results import sweep_page, tune_page
    from iotrace.report.printing import encode_json
    from iotrace.sweeps.plan import kept
    from iotrace.sweeps.results import SweepResult

    path = Path(task.paths[0])
    result = kept(path)
    if result is None:
        return Done(problem=f"{path} holds no result of a sweep")
    rows = result.points if isinstance(result, SweepResult) else result.runs
    inside = (row.sessions[-1] for row in rows if row.status == "ok")
    # What a result names elsewhere is not served: it may be anything.
    seen = columns_of_runs(one for one in inside if Path(one).resolve().is_relative_to(path.resolve()))
    page = sweep_page(result, seen) if isinstance(result, SweepResult) else tune_page(result, seen)
    (directory / PAGE).write_bytes(page.encode(errors="replace"))
    (directory / REPORT_JSON).write_bytes(encode_json(result))
    return Done(verdict=result.verdict.text)


def _history(task: Task, directory: Path) -> Done:
    from iotrace.ui.judging import history

    return history(task, directory)


def _check(task: Task, directory: Path) -> Done:
    from iotrace.ui.judging import check_against

    return check_against(task, directory)


def _timeline(task: Task, directory: Path) -> Done:
    path, at_s = Path(task.paths[0]), task.at.get("at")
    if task.traces:
        view = _timeline_of_trace(path, directory / TRACE, None if at_s is None else float(at_s))
    else:
        from iotrace.analysis.rank import SessionAnalysis
        from iotrace.merge.run import write_timeline
        from iotrace.sources.session import open_session
        from iotrace.viewer.view import of_interest, view_at, view_of_part, view_of_session

        analysis = SessionAnalysis(open_session(path))
        if not analysis.ranks:
            return Done(problem="it holds no process: it has no timeline")
        batch = task.at.get("batch")
        rank, file = task.at.get("rank"), task.at.get("file")
        if at_s is not None:
            view = view_at(analysis, float(at_s))
        elif rank is not None or file is not None:
            view = view_of_part(analysis, None if rank is None else int(rank), file)
        else:
            around = task.at.get("around") or of_interest(analysis)
            view = view_of_session(analysis, around, None if batch is None else int(batch))
        write_timeline(analysis, directory / TRACE)
    return Done(view=view)


def _timeline_of_trace(path: Path, made: Path, at_s: float | None) -> View:
    from iotrace.analysis.device.activity import Activity
    from iotrace.merge.plan import Options
    from iotrace.merge.run import merge
    from iotrace.sources.kineto.reader import read_kineto
    from iotrace.viewer.view import view_of_trace

    activity = Activity(read_kineto(path))
    merge([str(path)], made, Options(processes=1, device_tracks=bool(activity.device.any())))
    return view_of_trace(activity, at_s)


_MAKERS: dict[str, Callable[[Task, Path], Done]] = {
    REPORT: _report,
    COMPARISON: _comparison,
    SWEEP: _sweep,
    TIMELINE: _timeline,
    HISTORY: _history,
    CHECK: _check,
}


if __name__ == "__main__":
    main()
