"""A finished session shown to people: consoles, opening it with progress, its timelines, the report."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from iotrace.analysis.device.accelerator import KERNEL_GAP_US
from iotrace.analysis.rank import SessionAnalysis
from iotrace.analysis.report import analyse
from iotrace.analysis.results import Report
from iotrace.analysis.traces import analyse_traces
from iotrace.errors import IotraceError
from iotrace.launch.calibrate import Calibration
from iotrace.launch.job import tasks_of
from iotrace.launch.session_directory import await_others
from iotrace.report.terminal import print_next, print_report
from iotrace.session import names
from iotrace.session.costs import write_costs
from iotrace.session.manifest import read_manifest
from iotrace.sources.kineto.reader import read_kineto
from iotrace.sources.session import open_session
from iotrace.timeline.build import build
from iotrace.timeline.writers.chrome import write_chrome

# Tasks of one start end together, or the scheduler ends them.
_OTHERS_SECONDS = 15.0


class _Console(Console):
    """Standard output, or standard error, possibly of a program that goes on."""

    def on_broken_pipe(self) -> None:
        """Nobody reads it. rich would make standard output, maybe the program's, /dev/null, and leave."""
        self.quiet = True
        raise


def make_console(stderr: bool) -> Console:
    """A console that obeys NO_COLOR and COLUMNS, and highlights nothing by itself."""
    return _Console(stderr=stderr, highlight=False, soft_wrap=False)


def start_calibration(path: Path) -> Calibration | None:
    """Begin to measure what tracing costs here; None where that cannot be done, which is no error."""
    try:
        return Calibration(read_manifest(path).posix.on)
    except (OSError, IotraceError):
        return None


def load(
    path: Path,
    console: Console,
    kernel_gap_us: float = KERNEL_GAP_US,
    calibration: Calibration | None = None,
) -> tuple[SessionAnalysis, Report]:
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
        analysis = SessionAnalysis(session, kernel_gap_us)
        return analysis, analyse(analysis)


def load_traces(paths: Sequence[Path], console: Console, kernel_gap_us: float) -> Report:
    """Read and analyse bare traces of torch.profiler, one rank each."""
    traces = []
    with console.status("reading the traces") as status:
        for path in paths:
            status.update(f"reading {path}")
            traces.append(read_kineto(path))
        status.update("finding out what the accelerator did")
        return analyse_traces(traces, kernel_gap_us)


def write_timelines(analysis: SessionAnalysis, console: Console) -> list[Path]:
    """Write ``out/rankN.json.gz`` for every rank; returns the paths."""
    written = []
    for rank in analysis.ranks:
        path = analysis.session.path / names.OUT / f"{rank.rank.name}.json.gz"
        with console.status(f"writing {path}"):
            path.parent.mkdir(exist_ok=True)
            write_chrome(build(rank), path)
        written.append(path)
    return written


def tell(directory: Path, in_program: bool = False) -> None:
    """Write the timelines and print the report on standard error, after a run.

    Whatever happens here, the program has had its run, and its own end counts. Told inside the program, what
    ends that is passed on.
    """
    again = f"the session is kept: iotrace report {directory}"
    try:
        _print_all(directory)
    except Exception as error:  # a defect of ours, too
        what = str(error) if isinstance(error, IotraceError | OSError) else repr(error)
        _try_to_say(f"iotrace: no report: {what}; {again}")
    except (KeyboardInterrupt, SystemExit):
        _try_to_say(f"iotrace: interrupted; {again}")
        if in_program:
            raise


def _try_to_say(message: str) -> None:
    try:
        print(message, file=sys.stderr)
    except (OSError, ValueError):  # standard error is full, closed, or nobody reads it
        pass


def _print_all(directory: Path) -> None:
    console = make_console(stderr=True)
    console.print()
    calibration = start_calibration(directory)
    running = 0
    # A session of no job is not shared, however many tasks the environment tells of.
    if read_manifest(directory).job:
        with console.status("waiting for the other launchers of the job"):
            running = await_others(directory, tasks_of(os.environ), _OTHERS_SECONDS)
    if running:
        _try_to_say(f"iotrace: {running} more launchers of the job have not begun, or not ended; so far:")
    analysis, result = load(directory, console, calibration=calibration)
    timelines = write_timelines(analysis, console)
    print_report(result, console)
    print_next(result, timelines, console)
