"""``iotrace open``: a timeline in Perfetto, at what matters."""

from __future__ import annotations

import codecs
import os
import platform
import shlex
import sys
import tempfile
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from iotrace.cli.parameters import SOURCE, ended_by_signals, import_numpy
from iotrace.errors import SessionError, TraceError, UsageError
from iotrace.report.printing import echo
from iotrace.report.progress import watched
from iotrace.session import names
from iotrace.session.listing import newest_session, session_of_timeline, session_title
from iotrace.units import size

if TYPE_CHECKING:
    from iotrace.analysis.rank import SessionAnalysis
    from iotrace.viewer.view import View

_HELP = "see: iotrace open --help"
_HEAD_BYTES = 1 << 14
_LARGE_BYTES = 64 << 20  # what takes a browser 10 s of CPU and more


@click.command("open")
@click.argument("source", metavar="[SESSION|FILE]", type=SOURCE, required=False)
@click.option("--batch", metavar="N", type=click.IntRange(min=0), help="Show batch N of its epoch.")
@click.option(
    "--at",
    metavar="SECONDS",
    type=click.FloatRange(min=0.0),
    help="Show this time since the session or the trace began, and the device's idle time there.",
)
@click.option(
    "--around",
    metavar="WHAT",
    help="Show the worst wait (worst), the time before the failure (failure) or a step (N). Default: the "
    "failure of a session that failed, else the worst wait.",
)
@click.option(
    "--offline", is_flag=True, help="Use Perfetto's pages from the extra [viewer], without a network."
)
@click.option("--port", metavar="N", type=click.IntRange(0, 65535), default=0, help="Use this port.")
def open_(
    source: Path | None,
    batch: int | None,
    at: float | None,
    around: str | None,
    offline: bool,
    port: int,
) -> int:
    """Show the timeline of a session, or of FILE, in Perfetto.

    The default is the newest session in this directory.

    iotrace serves a small page to this machine only. Its button opens https://ui.perfetto.dev and passes the
    trace from tab to tab: nothing is uploaded. The waits are pinned, and the groups that matter are open.

    For a trace of torch.profiler, iotrace adds tracks of the devices' idle times, modules and launch queues.

    iotrace serves the page until Ctrl-C, or until ten minutes have passed without a request.

    Exit codes: 0 served until Ctrl-C or ten idle minutes, 1 nothing to open, 2 wrong usage.
    """
    if sum(option is not None for option in (batch, at, around)) > 1:
        raise UsageError("--batch, --at and --around exclude each other", _HELP)
    from iotrace.viewer.server import Viewer, perfetto_ui

    ui = perfetto_ui() if offline else None
    if source is None:
        source = newest_session(Path())
        echo(f"iotrace: the newest session here is {source}", err=True)
    session = _find_session(source)
    if session is None and (batch is not None or around is not None):
        raise UsageError("--batch and --around need a session: a file alone holds no causes", _HELP)
    with ended_by_signals(), tempfile.TemporaryDirectory(prefix="iotrace-open-") as directory:
        if session is None:
            trace, view = _bare(source, at, Path(directory))
            title = source.name
        else:
            from msgspec.structs import replace

            from iotrace.viewer.view import of_interest, of_rows, view_at, view_of_session

            analysis = _analysis(session)
            around = around or of_interest(analysis)
            view = view_of_session(analysis, around, batch) if at is None else view_at(analysis, at)
            if not view.query:
                view = replace(view, query=of_rows(_verdict(analysis)))
            trace = _timeline(analysis, Path(directory)) if source.is_dir() else source
            title = session_title(session)
        with Viewer(trace, title, view, ui, port) as viewer, _until_interrupted():
            _tell(viewer.address, viewer.server_address[1], f"{title}: {view.what}")
            note = _size_note(trace.stat().st_size, session, around or "")
            if note:
                echo(note)
            viewer.serve()
    return 0


def _find_session(source: Path) -> Path | None:
    """The session that is meant; None for a file that is no session's timeline."""
    if (source / names.MANIFEST).is_file():
        return source
    if source.is_dir():
        if any(source.glob("*.json*")):
            hint = f"of traces in it: iotrace merge {source} -o merged.pftrace, then open that"
            raise SessionError(f"{source} is no session", hint)
        raise SessionError(f"{source} is no session", f"iotrace ls {source} lists the sessions in it")
    if not source.exists():
        raise SessionError(f"{source} does not exist", "name a session, or a file that holds a timeline")
    if not source.is_file():
        raise SessionError(f"{source} is no regular file", "name a session, or a file that holds a timeline")
    return session_of_timeline(source)


def _bare(source: Path, at: float | None, directory: Path) -> tuple[Path, View]:
    """The timeline of a file without a session, with tracks derived for its devices, if any."""
    import_numpy()
    from iotrace.analysis.device.activity import Activity
    from iotrace.sources.kineto.reader import read_kineto
    from iotrace.viewer.view import view_of_file, view_of_trace

    try:
        with watched() as progress:
            progress(f"reading {source}")
            trace = read_kineto(source)
    except TraceError:
        trace = None
        if _is_plain_text(source):
            raise TraceError(
                f"{source} is no trace that iotrace knows",
                "Perfetto's other formats open at https://ui.perfetto.dev",
            ) from None
    # A merge of ours has its tracks.
    if trace is None or not Activity(trace).device.any() or "iotrace_merge" in trace.document:
        if at is not None:
            what = f"--at needs a session or a trace of torch.profiler with a device; {source} is neither"
            raise UsageError(what, _HELP)
        return source, view_of_file(source)
    from iotrace.merge.plan import Options
    from iotrace.merge.run import merge

    made = directory / f"{source.name}.pftrace"
    merge([str(source)], made, Options(processes=1, device_tracks=True))
    return made, view_of_trace(Activity(trace), at)


def _is_plain_text(path: Path) -> bool:
    """Whether a file is text that begins as no trace does: as JSON, as HTML, or as ftrace begins."""
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    try:
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(head).strip()
    except UnicodeDecodeError:
        return False
    return text[:1] not in ("", *"{[<#") and all(each.isprintable() or each.isspace() for each in text)


def _analysis(session: Path) -> SessionAnalysis:
    import_numpy()
    from iotrace.analysis.rank import SessionAnalysis
    from iotrace.sources.session import open_session

    with watched() as progress:
        analysis = SessionAnalysis(open_session(session, progress))
    if not analysis.ranks:
        raise SessionError(f"{session} holds no process: it has no timeline", f"iotrace report {session}")
    return analysis


def _verdict(analysis: SessionAnalysis) -> list[tuple[str, str]]:
    """What the report says first: verdict, why, fixes with their gains, how far to trust it."""
    from iotrace.analysis.report import analyse
    from iotrace.report.blocks import beside
    from iotrace.report.screen import head_of

    with watched() as progress:
        progress("finding why it waits")
        head = head_of(analyse(analysis), "iotrace report -v has loader, system and I/O")
    rows = [
        (row.label, f"{row.text} ({row.side})" if row.side else row.text) for row in map(beside, head.lines)
    ]
    return [(head.label, head.text), *rows, ("Trust", f"{head.level}: {head.trust}")]


def _timeline(analysis: SessionAnalysis, directory: Path) -> Path:
    """The timeline that the run wrote; a new one where there is none, or where the session still grows."""
    written = analysis.session.path / names.OUT / names.TIMELINE
    if written.is_file() and all(launch.outcome is not None for launch in analysis.session.launches):
        return written
    from iotrace.merge.run import write_timeline

    made = directory / f"{analysis.session.path.absolute().name}.pftrace"
    write_timeline(analysis, made)
    return made


def _size_note(size_bytes: int, session: Path | None, around: str) -> str:
    """Say how to get a part of a timeline that is large; empty of others."""
    if size_bytes < _LARGE_BYTES:
        return ""
    large = f"note    {size(size_bytes)} may take a browser minutes; a part opens sooner:"
    if session is None:
        return f"{large} merge its inputs with --time A:B"
    return f"{large} iotrace merge {shlex.quote(str(session))} --around {around} -o part.pftrace"


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
