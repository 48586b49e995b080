"""The reports of sessions, the last few kept: an assistant asks several things of one."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from iotrace.analysis.rank import SessionAnalysis
from iotrace.analysis.report import analyse
from iotrace.analysis.results import RankReport, Report
from iotrace.errors import SessionError
from iotrace.patching.loader import MadeLoader, made_loader
from iotrace.session import names
from iotrace.sources.session import open_session

_KEPT = 4


class _Known(NamedTuple):
    report: Report
    loader: MadeLoader | None


def _read(session: Path) -> _Known:
    analysis = SessionAnalysis(open_session(session))
    return _Known(analyse(analysis), made_loader(analysis))


class Reports:
    """Makes each report once, as long as its session is as it was; one at a time."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[Path, int], _Known] = OrderedDict()
        self._lock = Lock()

    def of(self, session: Path) -> Report:
        """Return the report of a session.

        Raises:
            IotraceError: it cannot be read.
        """
        return self._get(session).report

    def loader(self, session: Path) -> MadeLoader | None:
        """Return where the loader of a session's training loop is made.

        Raises:
            IotraceError: it cannot be read.
        """
        return self._get(session).loader

    def _get(self, session: Path) -> _Known:
        with self._lock:
            try:
                ended_ns = (session / names.OUTCOME).stat().st_mtime_ns
            except OSError:
                return _read(session)  # it may go on
            key = session, ended_ns
            if key not in self._known:
                self._known[key] = _read(session)
                while len(self._known) > _KEPT:
                    self._known.popitem(last=False)
            self._known.move_to_end(key)
            return self._known[key]

    def rank(self, session: Path, number: int | None = None) -> RankReport:
        """Return the rank that the verdict is about, or another one.

        Raises:
            SessionError: there is none.
        """
        report = self.of(session)
        if number is None:
            chosen = report.main_rank or next(iter(report.ranks), None)
        else:
            chosen = next((rank for rank in report.ranks if rank.rank == number), None)
        if chosen is None:
            raise SessionError(
                "the session has no such rank" if number is not None else "the session has no rank"
            )
        return chosen
