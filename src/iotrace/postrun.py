"""What follows a run: the costs of tracing are measured, the timelines written, the report printed."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from iotrace.analysis.rank import SessionAnalysis
from iotrace.analysis.report import analyse
from iotrace.analysis.verdict.headline import headline_of
from iotrace.errors import IotraceError, what_failed
from iotrace.export.dftracer import write_posix_logs
from iotrace.launch.session_directory import await_others
from iotrace.launch.tracing_costs import CostMeasurement
from iotrace.merge.run import write_timeline
from iotrace.report.console import make_console
from iotrace.report.printing import echo
from iotrace.report.progress import Progress, watched
from iotrace.report.terminal import print_report
from iotrace.session import names
from iotrace.session.identity import ranks
from iotrace.session.listing import store_verdict
from iotrace.session.manifest import read_manifest
from iotrace.sinks.delivery import log_report
from iotrace.sources.session import Session, open_session
from iotrace.version import __version__

# Tasks of one start end together, or the scheduler ends them.
_OTHERS_SECONDS = 15.0


def finish(directory: Path, in_program: bool = False, log: tuple[str, ...] = (), quiet: bool = False) -> None:
    """Write the timelines and print the report on standard error, after a run; log it to the trackers `log`.

    `quiet`: log it alone, and say only what fails.

    Whatever happens here, the program has had its run, and its exit code counts. Inside the program
    (`in_program`) KeyboardInterrupt and SystemExit pass.
    """
    kept = f"the session is kept: iotrace report {directory}"
    if not directory.exists():
        _say(f"iotrace: no report: the program deleted its session {directory}")
        return
    try:
        _report(directory, log, quiet)
    except OSError as error:
        _say(f"iotrace: no report: {what_failed(error)}; {kept}")
    except Exception as error:  # a defect of ours, too
        what = str(error) if isinstance(error, IotraceError) else repr(error)
        _say(f"iotrace: no report: {what}; {kept}")
    except (KeyboardInterrupt, SystemExit):
        _say(f"iotrace: interrupted; {kept}")
        if in_program:
            raise


def _report(directory: Path, log: tuple[str, ...], quiet: bool) -> None:
    if quiet:
        log_report(analyse(SessionAnalysis(open_session(directory, lambda _: None))), log, directory, quiet)
        return
    console = make_console(stderr=True)
    console.print()
    measurement = None
    with suppress(OSError, IotraceError):  # what cannot be measured is no error
        measurement = CostMeasurement(directory)
    with watched() as progress:
        running = _await_job(directory, progress)
    if running:
        _say(f"iotrace: {running} more launchers of the job have not begun, or not ended; so far:")
    with watched() as progress:
        session = _open(directory, measurement, progress)
        progress("finding the causes")
        analysis = SessionAnalysis(session)
        report = analyse(analysis)
        timeline = _write_timeline(analysis, progress)
        with suppress(OSError):  # the disk is full, say: the session has all of it
            write_posix_logs(session)
    store_verdict(directory, report.verdict.text, __version__, headline_of(report))
    print_report(report, console, timeline=timeline)
    log_report(report, log, directory)


def _await_job(directory: Path, progress: Progress) -> int:
    """Wait for the other launchers of the job; returns how many have not ended."""
    # A session of no job is not shared, however many tasks the environment names.
    if not read_manifest(directory).job:
        return 0
    progress("waiting for the other launchers of the job")
    return await_others(directory, ranks(os.environ)["world_size"], _OTHERS_SECONDS)


def _open(directory: Path, measurement: CostMeasurement | None, progress: Progress) -> Session:
    """Open the session, with what `measurement` measured meanwhile."""
    session = open_session(directory, progress)
    costs = measurement.finish() if measurement is not None else None
    return session if costs is None else replace(session, costs=costs)


def _write_timeline(analysis: SessionAnalysis, progress: Progress) -> Path | None:
    """Write the timeline of all ranks; returns its path, None where no process was recorded."""
    if not analysis.ranks:
        return None
    path = analysis.session.path / names.OUT / names.TIMELINE
    progress(f"writing {path}")
    path.parent.mkdir(names.DIRECTORY_MODE, exist_ok=True)
    try:
        write_timeline(analysis, path)
    except IotraceError as error:  # nothing to draw, or no room: the report needs none of it
        _say(f"iotrace: no timeline: {error}")
        return None
    path.chmod(names.FILE_MODE)
    return path


def _say(message: str) -> None:
    with suppress(OSError, ValueError):  # standard error is full, closed, or nobody reads it
        echo(message, err=True)
