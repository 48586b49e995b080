"""A finished session shown to people: consoles, opening it with progress, its timelines, the report."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console

from iotrace.analysis.report import analyse
from iotrace.analysis.results import Report
from iotrace.errors import IotraceError
from iotrace.report.terminal import print_next, print_report
from iotrace.session import names
from iotrace.sources.session import Session, open_session
from iotrace.timeline.build import build
from iotrace.timeline.chrome import write_chrome


def make_console(stderr: bool) -> Console:
    """A console that obeys NO_COLOR and COLUMNS, and highlights nothing by itself."""
    return Console(stderr=stderr, highlight=False, soft_wrap=False)


def load(path: Path, console: Console) -> tuple[Session, Report]:
    """Open and analyse the session at `path`, saying what takes time where a person watches."""
    with console.status("reading the session") as status:
        session = open_session(path, lambda what: status.update(what))
        status.update("finding the causes")
        return session, analyse(session)


def write_timelines(session: Session, console: Console) -> list[Path]:
    """Write ``out/rankN.json.gz`` for every rank; returns the paths."""
    written = []
    for rank in session.ranks:
        path = session.path / names.OUT / f"rank{rank.number}.json.gz"
        with console.status(f"writing {path}"):
            path.parent.mkdir(exist_ok=True)
            write_chrome(build(session, rank), path)
        written.append(path)
    return written


def tell(directory: Path) -> None:
    """Write the timelines and print the report on standard error, after a run.

    Whatever happens here, the program has had its run, and its own end counts.
    """
    again = f"the session is kept: iotrace report {directory}"
    try:
        _print_all(directory)
    except Exception as error:  # a defect of ours, too
        what = str(error) if isinstance(error, IotraceError | OSError) else repr(error)
        _try_to_say(f"iotrace: no report: {what}; {again}")
    except SystemExit:  # rich's way of saying that nobody reads standard error
        pass
    except KeyboardInterrupt:
        _try_to_say(f"iotrace: interrupted; {again}")


def _try_to_say(message: str) -> None:
    try:
        print(message, file=sys.stderr)
    except (OSError, ValueError):  # standard error is full, closed, or nobody reads it
        pass


def _print_all(directory: Path) -> None:
    console = make_console(stderr=True)
    console.print()
    session, result = load(directory, console)
    timelines = write_timelines(session, console)
    print_report(result, console)
    print_next(result, timelines, console)
