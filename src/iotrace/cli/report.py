"""``iotrace report``: a session's causes, or what bare traces of torch.profiler hold."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import click

from iotrace.cli.parameters import (
    SOURCE,
    TARGET,
    dask_cluster,
    dask_option,
    form_options,
    html_option,
    import_numpy,
    log_option,
    print_json,
    print_result,
    ranks_option,
    save_page,
    save_tables,
)
from iotrace.errors import SessionError, UsageError
from iotrace.report.printing import echo
from iotrace.report.progress import watched
from iotrace.report.views import VIEWS
from iotrace.session import names
from iotrace.session.listing import newest_session, session_of_timeline, sessions_in
from iotrace.units import counted

if TYPE_CHECKING:
    from iotrace.analysis.rank import SessionAnalysis
    from iotrace.analysis.results import Report
    from iotrace.cluster import Cluster
    from iotrace.sweeps.results import SweepResult
    from iotrace.sweeps.tune.results import TuneResult

_ONE = "iotrace report SESSION, or iotrace report TRACE..."
_RANKS = "choose ranks with --ranks 0,2-3"
_TRACES = "iotrace report --compat tb TRACE..."
_VIEWS = "; ".join(f"{name} ({view.shows})" for name, view in VIEWS.items())


@click.command()
@click.argument("sources", metavar="[SESSION | TRACE...]", type=SOURCE, nargs=-1)
@form_options("the figures")
@html_option("the report")
@click.option(
    "-v", "--verbose", is_flag=True, help="Print everything: each rank, its loaders, system, I/O, advice."
)
@click.option("--view", metavar="NAME", type=click.Choice(list(VIEWS)), help=f"Print one view: {_VIEWS}.")
@click.option("--ranks", metavar="LIST", default="", help="Show only these ranks: 0,2-3.")
@click.option(
    "--csv", metavar="FILE", type=TARGET, help="Also write the view's tables as CSV, with all fields."
)
@click.option(
    "--kernel-gap-us",
    metavar="US",
    type=click.FloatRange(min=0.0),
    default=30.0,
    show_default=True,
    help="Count an idle gap shorter than this as kernel_wait if the host was in time.",
)
@click.option(
    "--compat",
    type=click.Choice(["tb", "hta"]),
    help="Print the figures of torch-tb-profiler 0.4.3 (tb) or HolisticTraceAnalysis 0.5.0 (hta).",
)
@log_option
@dask_option("ranks")
def report(
    sources: tuple[Path, ...],
    form: str,
    html: Path | None,
    verbose: bool,
    view: str | None,
    ranks: str,
    csv: Path | None,
    kernel_gap_us: float,
    compat: str | None,
    log: tuple[str, ...],
    dask: str | None,
) -> int:
    """Show why a run waited for data, or what a trace contains.

    SESSION is a directory made by iotrace run; default: the newest one in this directory. TRACE is a trace
    of torch.profiler (.json or .json.gz) or a profile of JAX or TensorFlow (.xplane.pb); give one for each
    rank. For the directory of a sweep or a tune, iotrace prints the result of the sweep or the tune.

    Exit codes: 0 printed, 1 SESSION or TRACE cannot be read or Dask failed, 2 wrong usage.
    """
    chosen = ranks_option(ranks)
    if csv is not None and view is None:
        raise UsageError("--csv writes the tables of a view", "add --view NAME")
    if view is not None and compat is not None:
        raise UsageError("--view and --compat exclude each other", "give one of them")
    if compat is not None and (log or dask is not None):
        other = "--log" if log else "--dask"
        raise UsageError(f"{other} and --compat exclude each other", f"leave {other} out")
    if chosen is not None and (compat is not None or html is not None):
        raise UsageError("--ranks is for the text and for --json", "leave --html and --compat out")
    import_numpy()
    sources = _meant(sources)
    if len(sources) == 1 and (settings := _kept(sources[0])) is not None:
        from iotrace.cli.sweep import show

        if compat is not None or view is not None or log or chosen is not None:
            lists = f"iotrace ls {sources[0]} lists its sessions"
            raise UsageError("a sweep has no --view, --compat, --ranks and --log", lists)
        show(settings, form, html, None, verbose)
        return 0
    if dask is not None:  # workers have directories of their own
        sources = tuple(path.absolute() for path in sources)
    bare = _are_traces(sources, compat)
    if compat is not None:
        _compat(sources, compat, form == "json")
        return 0
    analysis: SessionAnalysis | None = None
    with dask_cluster(dask) as cluster:
        if bare:
            result = report_of_traces(sources, kernel_gap_us, cluster)
        else:
            analysis, result = analysed(sources[0], kernel_gap_us, cluster)
    if html is not None:
        _save_page(result, analysis, html)
    if chosen is not None:
        result = _of_ranks(result, chosen)
    if view is not None:
        _print_view(result, view, form, csv)
    else:
        timeline = sources[0] / names.OUT / names.TIMELINE
        shown = timeline if not bare and timeline.exists() else None
        _print(result, form, verbose, shown)
    if log:
        from iotrace.sinks.delivery import log_report

        log_report(result, log, None if bare else sources[0])
    return 0


def _are_traces(sources: tuple[Path, ...], compat: str | None) -> bool:
    """Tell traces from a session; refuse several where one is no trace, and a session with `compat`."""
    bare = all(path.is_file() for path in sources)
    if len(sources) > 1 and (missing := next((path for path in sources if not path.exists()), None)):
        raise SessionError(f"{missing} does not exist", "name the traces that are there, one for each rank")
    if not bare and len(sources) > 1:
        raise UsageError("a report is of one session, or of traces of torch.profiler", _ONE)
    if not bare and compat is not None:
        raise UsageError("--compat takes traces of torch.profiler, not a session", _TRACES)
    return bare


def _print(result: Report, form: str, verbose: bool, timeline: Path | None) -> None:
    """Print a report as JSON, Markdown or text."""
    if form == "json":
        print_json(result)
        return
    from iotrace.report.terminal import print_report

    in_text = partial(print_report, verbose=verbose, timeline=timeline)
    print_result(result, form, "report_markdown", in_text)


def _of_ranks(report: Report, chosen: frozenset[int]) -> Report:
    """Leave out all ranks but `chosen`; the verdict stays that of the whole job."""
    from msgspec.structs import replace

    kept = [rank for rank in report.ranks if rank.rank in chosen]
    if not kept:
        numbers = [rank.rank for rank in report.ranks]
        if len(numbers) == 1:
            raise UsageError(f"it has rank {numbers[0]} alone", "leave --ranks out")
        raise UsageError(f"none of its ranks was chosen: it has {min(numbers)} to {max(numbers)}", _RANKS)
    return replace(report, ranks=kept)


def _print_view(result: Report, name: str, form: str, csv: Path | None) -> None:
    """Print the view `name` of a report as JSON, Markdown or text, and write it to `csv`."""
    from iotrace.report.blocks import as_json
    from iotrace.report.layout import print_tables
    from iotrace.report.views import tables_of

    tables = tables_of(name, result)
    if csv is not None:
        save_tables(tables, csv)
    if form == "json":
        print_json(as_json(name, tables))
    else:
        print_result(tables, form, "tables_markdown", print_tables)


def _kept(path: Path) -> SweepResult | TuneResult | None:
    """Read the result of the sweep or the search at `path`, where that is one."""
    if not any((path / name).exists() for name in (names.SWEEP_RESULT, names.TUNE_RESULT)):
        return None
    from iotrace.sweeps.plan import kept

    return kept(path)


def _meant(sources: tuple[Path, ...]) -> tuple[Path, ...]:
    """Return the newest session here where nothing is named, and the session of each timeline of ours."""
    if not sources:
        newest = newest_session(Path())
        echo(f"iotrace: the newest session here is {newest}", err=True)
        return (newest,)
    paths: dict[Path, None] = {}
    for path in sources:
        inside = [] if (path / names.MANIFEST).exists() else sessions_in(path)
        if inside and _kept(path) is None:
            holds = f"{path} is no session, but holds {counted(len(inside), 'session')}"
            raise SessionError(holds, f"iotrace ls {path} lists them")
        session = session_of_timeline(path)
        if session is not None and session not in paths:
            echo(f"iotrace: {path} is a timeline of the session {session}; its report:", err=True)
        paths[session or path] = None
    return tuple(paths)


def _save_page(result: Report, analysis: SessionAnalysis | None, html: Path) -> None:
    """Write the page of a report; that of a session shows its steps, too."""
    from iotrace.report.page.report import report_page

    columns = None
    if analysis is not None:
        from iotrace.analysis.page import columns_of

        columns = columns_of(analysis, result)
    save_page(report_page(result, columns), html)


def analysed(
    path: Path, kernel_gap_us: float = 30.0, cluster: Cluster | None = None
) -> tuple[SessionAnalysis, Report]:
    """Read and analyse the session at `path`; returns its analysis and its report."""
    from iotrace.analysis.rank import SessionAnalysis
    from iotrace.analysis.report import RankPart, analyse
    from iotrace.analysis.tasks import part_of_rank
    from iotrace.session.liveness import RUNNING
    from iotrace.sources.session import open_session

    with watched() as progress:
        session = open_session(path, progress)
        progress("finding the causes")
        analysis = SessionAnalysis(session, kernel_gap_us)
        parts: list[RankPart] = []
        if cluster is not None and session.state != RUNNING:  # then each would see another part of it
            cluster.check_sees([path])
            do = partial(part_of_rank, path, kernel_gap_us, uuid4().hex)
            parts = cluster.map(do, [rank.name for rank in session.ranks])
        return analysis, analyse(analysis, parts)


def report_of_traces(
    paths: tuple[Path, ...],
    kernel_gap_us: float = 30.0,
    cluster: Cluster | None = None,
    of_steps: bool = False,
) -> Report:
    """Read and analyse traces, one for each rank; `of_steps`: kernels and operators of the steps alone."""
    from iotrace import compiled
    from iotrace.analysis.traces import report_of_parts, trace_part
    from iotrace.sources.kineto.reader import read_kineto

    with watched() as progress:
        if cluster is not None:
            from iotrace.analysis.tasks import part_of_trace

            cluster.check_sees(paths)
            return report_of_parts(cluster.map(partial(part_of_trace, kernel_gap_us), paths))
        parts = []
        for path in paths:
            progress(f"reading {path}")
            parts.append(trace_part(read_kineto(path), kernel_gap_us, of_steps))
        if not compiled.available():
            note = compiled.missing("reading traces gives the same result ten to twenty times slower")
            echo(f"iotrace: {note}", err=True)
        progress("comparing the ranks")
        return report_of_parts(parts)


def _compat(paths: tuple[Path, ...], tool: str, as_json: bool) -> None:
    from msgspec.structs import asdict

    from iotrace.analysis.compat.hta import holistic
    from iotrace.analysis.compat.tb import tensorboard
    from iotrace.sources.kineto.reader import read_kineto

    results = {path: (tensorboard if tool == "tb" else holistic)(read_kineto(path)) for path in paths}
    documents = {str(path): None if result is None else asdict(result) for path, result in results.items()}
    if as_json:
        print_json(documents)
    else:
        from iotrace.report.listing import print_compat

        print_compat(documents)
