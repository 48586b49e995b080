"""``iotrace.load``: the report of a session, or of traces of torch.profiler, as typed results."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from iotrace.analysis.results import Report
from iotrace.errors import UsageError
from iotrace.session import names
from iotrace.session.listing import session_of_timeline


class LoadedReport(Report, frozen=True, kw_only=True):
    """What ``iotrace report --json`` prints, as attributes; a notebook shows its first screen."""

    def __str__(self) -> str:
        """Give the first screen of ``iotrace report``."""
        from io import StringIO

        from iotrace.report.console import make_console
        from iotrace.report.terminal import print_report

        timeline = Path(self.session.path, names.OUT, names.TIMELINE)
        screen = StringIO()
        console = make_console(False, file=screen, width=80, color_system=None, force_jupyter=False)
        print_report(self, console, timeline=timeline if timeline.exists() else None)
        return screen.getvalue().rstrip("\n")

    def __repr__(self) -> str:
        """Name the session and its verdict: all the figures would be pages."""
        from iotrace.report.printing import visible

        return visible(f"<iotrace report of {self.session.path}: {self.verdict.text}>")

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def _repr_html_(self) -> str:
        from iotrace.report.page.report import report_html

        return report_html(self)


def load(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], *, kernel_gap_us: float = 30.0
) -> LoadedReport:
    """Return the report of the session at `path`, or of traces of torch.profiler: a path for each rank.

    Raises:
        IotraceError: there is neither that this version reads; its `remedy` says what to do.
    """
    given = [path] if isinstance(path, str | os.PathLike) else list(path)
    paths = [Path(each) for each in given]
    paths = list(dict.fromkeys(session_of_timeline(each) or each for each in paths))
    if not paths:
        raise UsageError("there is nothing to load", 'iotrace.load("SESSION")')
    traces = all(each.is_file() for each in paths)
    if len(paths) > 1 and not traces:
        raise UsageError("a report is of one session, or of traces of torch.profiler", "load each by itself")
    found = _of_traces(paths, kernel_gap_us) if traces else _of_session(paths[0], kernel_gap_us)
    return LoadedReport(**{field: getattr(found, field) for field in found.__struct_fields__})


def _of_session(path: Path, kernel_gap_us: float) -> Report:
    from iotrace.analysis.rank import SessionAnalysis
    from iotrace.analysis.report import analyse
    from iotrace.sources.session import open_session

    return analyse(SessionAnalysis(open_session(path), kernel_gap_us))


def _of_traces(paths: Sequence[Path], kernel_gap_us: float) -> Report:
    from iotrace.analysis.traces import analyse_traces
    from iotrace.sources.kineto.reader import read_kineto

    return analyse_traces(map(read_kineto, paths), kernel_gap_us)
