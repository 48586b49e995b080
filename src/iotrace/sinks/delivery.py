"""Hand a result over to trackers, in bounded time: a process for each, ended where it takes too long."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from iotrace.analysis.results import Report
from iotrace.errors import writing
from iotrace.report.printing import echo
from iotrace.session import names
from iotrace.sinks.content import write_report, write_sweep
from iotrace.sweeps.results import SweepResult

DIRECTORY = "log"
LONGEST_SECONDS = 60.0
_CODE = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); from iotrace.sinks.send import main; main()"
)


def log_report(report: Report, sinks: tuple[str, ...], session: Path | None, quiet: bool = False) -> None:
    """Hand `report` over to the trackers `sinks`; it is of `session`, or of bare traces."""
    if sinks:
        directory = _directory(None if session is None else session / names.OUT)
        write_report(report, directory)
        again = "iotrace report " + ("TRACE..." if session is None else shlex.quote(str(session)))
        _deliver(sinks, directory, again, quiet)


def log_sweep(result: SweepResult, sinks: tuple[str, ...], sweep: Path) -> None:
    """Hand the result of a sweep over to the trackers `sinks`; its directory is `sweep`."""
    directory = _directory(sweep)
    write_sweep(result, directory)
    _deliver(
        sinks, directory, f"iotrace sweep --resume -o {shlex.quote(str(sweep))} (the same command)", False
    )


def _deliver(sinks: tuple[str, ...], directory: Path, again: str, quiet: bool) -> None:
    """Hand what lies in `directory` over; a tracker that does not take it is a warning, the files stay."""
    for name in dict.fromkeys(sinks):
        where, why = _send(name, directory)
        if why:
            retry = f"  its files are in {directory}; to try again: {again} --log {name}"
            echo(f"iotrace: warning: {name} did not take the result: {why}", retry, err=True)
        elif not quiet:
            echo(f"iotrace: logged to {name}: {where}", err=True)


def _directory(result: Path | None) -> Path:
    """Make a directory in `result`, else here."""
    if result is not None:
        directory = result / DIRECTORY
        with suppress(OSError):
            directory.mkdir(names.DIRECTORY_MODE, parents=True, exist_ok=True)
            # Never through a link that someone put into a session.
            is_link = result.is_symlink() or directory.is_symlink()
            if os.access(directory, os.W_OK) and not is_link:
                return directory
    directory = Path(f"iotrace-log-{datetime.now():%Y%m%d-%H%M%S}")
    with writing(directory, "run it in a directory that can be written"):
        directory.mkdir(names.DIRECTORY_MODE, exist_ok=True)
    return directory


def _send(name: str, directory: Path) -> tuple[str, str]:
    """Return where the tracker `name` has it now, or why it has not; its client's output goes to a file."""
    output = directory / f"{name}.log"
    output.unlink(missing_ok=True)
    with output.open("wb") as printed:
        output.chmod(names.FILE_MODE)
        process = subprocess.Popen(
            [sys.executable, "-c", _CODE, json.dumps(sys.path), name, str(directory.resolve())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=printed,
            umask=0o077,
            start_new_session=True,  # it may start processes: they end together
        )
        try:
            answer, _ = process.communicate(timeout=LONGEST_SECONDS)
        except subprocess.TimeoutExpired:
            return "", f"no answer within {LONGEST_SECONDS:.0f} s"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    try:
        outcome = json.loads(answer)
    except ValueError:
        return "", f"its client ended without an answer ({output} has what it printed)"
    return outcome.get("where", ""), outcome.get("why", "")
