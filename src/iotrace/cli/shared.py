"""What commands share: consoles, opening a session with progress, its timelines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from iotrace.analysis.idle import KERNEL_GAP_US
from iotrace.analysis.report import analyse
from iotrace.analysis.results import Report
from iotrace.analysis.traces import analyse_traces
from iotrace.session import names
from iotrace.sources.kineto import read_kineto
from iotrace.sources.session import Session, open_session
from iotrace.timeline.build import build
from iotrace.timeline.chrome import write_chrome


def make_console(stderr: bool) -> Console:
    """A console that obeys NO_COLOR and COLUMNS, and highlights nothing by itself."""
    return Console(stderr=stderr, highlight=False, soft_wrap=False)


def load(path: Path, console: Console, kernel_gap_us: float = KERNEL_GAP_US) -> tuple[Session, Report]:
    """Open and analyse the session at `path`, saying what takes time where a person watches."""
    with console.status("reading the session") as status:
        session = open_session(path, lambda what: status.update(what))
        status.update("finding the causes")
        return session, analyse(session, kernel_gap_us)


def load_traces(paths: Sequence[Path], console: Console, kernel_gap_us: float) -> Report:
    """Read and analyse bare traces of torch.profiler, one rank each."""
    traces = []
    with console.status("reading the traces") as status:
        for path in paths:
            status.update(f"reading {path}")
            traces.append(read_kineto(path))
        status.update("finding out what the accelerator did")
        return analyse_traces(traces, kernel_gap_us)


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
