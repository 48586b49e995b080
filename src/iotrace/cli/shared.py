"""What commands share: consoles, opening a session with progress, its timelines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rich.console import Console

from iotrace.analysis.report import analyse
from iotrace.analysis.results import Report
from iotrace.errors import IotraceError
from iotrace.launch.calibrate import Calibration
from iotrace.session import names
from iotrace.session.costs import write_costs
from iotrace.session.manifest import read_manifest
from iotrace.sources.session import Session, open_session
from iotrace.timeline.build import build
from iotrace.timeline.chrome import write_chrome


def make_console(stderr: bool) -> Console:
    """A console that obeys NO_COLOR and COLUMNS, and highlights nothing by itself."""
    return Console(stderr=stderr, highlight=False, soft_wrap=False)


def start_calibration(path: Path) -> Calibration | None:
    """Begin to measure what tracing costs here; None where that cannot be done, which is no error."""
    try:
        return Calibration(read_manifest(path).posix.on)
    except (OSError, IotraceError):
        return None


def load(path: Path, console: Console, calibration: Calibration | None = None) -> tuple[Session, Report]:
    """Open and analyse the session at `path`, saying what takes time where a person watches.

    What `calibration` measured meanwhile is kept in the session.
    """
    with console.status("reading the session") as status:
        session = open_session(path, lambda what: status.update(what))
        costs = calibration.finish(session.manifest.host) if calibration is not None else None
        if costs is not None:
            write_costs(path, costs)
            session = replace(session, costs=costs)
        status.update("finding the causes")
        return session, analyse(session)


def write_timelines(session: Session, console: Console) -> list[Path]:
    """Write ``out/rankN.json.gz`` for every rank; returns the paths."""
    written = []
    for rank in session.ranks:
        path = session.path / names.OUT / f"{rank.name}.json.gz"
        with console.status(f"writing {path}"):
            path.parent.mkdir(exist_ok=True)
            write_chrome(build(session, rank), path)
        written.append(path)
    return written
