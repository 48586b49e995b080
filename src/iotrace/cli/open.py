"""``iotrace open``: a timeline in Perfetto, at what matters."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from iotrace.cli.interruption import ended_by_signals
from iotrace.cli.parameters import PATH, import_numpy
from iotrace.errors import SessionError, UsageError
from iotrace.report.printing import echo, watched
from iotrace.session import names
from iotrace.session.listing import newest_session, session_of_timeline

if TYPE_CHECKING:
    from iotrace.analysis.rank import SessionAnalysis

_HELP = "see: iotrace open --help"


@click.command("open")
@click.argument("source", metavar="[SESSION|FILE]", type=PATH, required=False)
@click.option("--batch", metavar="N", type=click.IntRange(min=0), help="Look at batch N of its epoch.")
@click.option(
    "--around",
    metavar="WHAT",
    help="Look at the worst wait (worst, the default), the time before the failure (failure) or a step (N).",
)
@click.option(
    "--offline", is_flag=True, help="Perfetto's own pages, of the extra [viewer]: needs no network."
)
@click.option("--port", metavar="N", type=click.IntRange(0, 65535), default=0, help="Use this port.")
def open_(source: Path | None, batch: int | None, around: str | None, offline: bool, port: int) -> int:
    """Show a timeline in Perfetto: that of a session, or of FILE.

    Without an argument it is that of the newest session here.

    iotrace serves a small page on this machine alone. Its button opens https://ui.perfetto.dev and hands the
    trace over, from tab to tab: nothing is uploaded. The groups that matter are open, the waits are pinned.

    The page lives until Ctrl-C, or ten minutes without a request.

    Exit codes: 0 served until Ctrl-C or ten idle minutes, 1 nothing to open, 2 wrong usage.
    """
    if batch is not None and around is not None:
        raise UsageError("--batch and --around exclude each other", _HELP)
    from iotrace.viewer.server import Viewer, perfetto_ui

    ui = perfetto_ui() if offline else None
    if source is None:
        source = newest_session(Path())
        echo(f"iotrace: the newest session here is {source}", err=True)
    session = _session_of(source)
    if session is None and (batch is not None or around is not None):
        raise UsageError("--batch and --around need a session: a file alone holds no causes", _HELP)
    with ended_by_signals(), tempfile.TemporaryDirectory(prefix="iotrace-open-") as directory:
        if session is None:
            from iotrace.viewer.view import view_of_file

            trace, title, view = source, source.name, view_of_file(source)
        else:
            from iotrace.viewer.view import WORST, view_of_session

            analysis = _analysis(session)
            view = view_of_session(analysis, around or WORST, batch)
            trace = _timeline(analysis, Path(directory)) if source.is_dir() else source
            title = session.absolute().name
        with Viewer(trace, title, view, ui, port) as viewer, _until_interrupted():
            _tell(viewer.address, viewer.server_address[1], f"{title}: {view.what}")
            viewer.serve()
    return 0


def _session_of(source: Path) -> Path | None:
    """The session that is meant; None for a file that is no session's timeline."""
    if (source / names.MANIFEST).is_file():
        return source
    if source.is_dir():
        raise SessionError(f"{source} is no session", f"iotrace ls {source} lists the sessions in it")
    if not source.exists():
        raise SessionError(f"{source} does not exist", "name a session, or a file that holds a timeline")
    if not source.is_file():
        raise SessionError(f"{source} is no regular file", "name a session, or a file that holds a timeline")
    return session_of_timeline(source)


def _analysis(session: Path) -> SessionAnalysis:
    import_numpy()
    from iotrace.analysis.rank import SessionAnalysis
    from iotrace.sources.session import open_session

    with watched() as progress:
        found = SessionAnalysis(open_session(session, progress))
    if not found.ranks:
        raise SessionError(f"{session} holds no process: it has no timeline", f"iotrace report {session}")
    return found


def _timeline(analysis: SessionAnalysis, directory: Path) -> Path:
    """The timeline that the run wrote; a new one where there is none, or where the session still grows."""
    written = analysis.session.path / names.OUT / names.TIMELINE
    if written.is_file() and all(launch.outcome is not None for launch in analysis.session.launches):
        return written
    from iotrace.merge.run import write_timeline

    made = directory / f"{analysis.session.path.absolute().name}.pftrace"
    write_timeline(analysis, made)
    return made


def _tell(address: str, port: int, what: str) -> None:
    echo(what, f"open    {address}")
    if os.environ.get("SSH_CONNECTION"):
        echo(f"first   ssh -L {port}:127.0.0.1:{port} {platform.node()}     where the browser is")
    elif sys.stdout.isatty() and (sys.platform == "darwin" or os.environ.get("DISPLAY")):
        webbrowser.open(address)
    echo("until   Ctrl-C, or ten minutes without a request")


@contextmanager
def _until_interrupted() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        echo("")
