"""One run of the command at one point: from ``iotrace run``, in a process of its own, to the figures."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

import iotrace_command
from iotrace.analysis.host.disturbance import alone, is_disturbed, unqueued_step_ms
from iotrace.analysis.intervals import Times
from iotrace.analysis.loop.step_table import StepTable
from iotrace.analysis.rank import RankAnalysis, SessionAnalysis
from iotrace.analysis.report import analyse
from iotrace.analysis.resampling import mean_ci
from iotrace.analysis.results import LoaderResult, PipelineStage, RankReport, total
from iotrace.analysis.table import NONE
from iotrace.analysis.wait.data_wait import bound_fraction
from iotrace.errors import IotraceError
from iotrace.patching.loader import find_loader
from iotrace.session import names
from iotrace.sources.records import Ended, KeptOpen, Override, Replayed, Threads
from iotrace.sources.session import open_session
from iotrace.sweeps.ending import TerminatedError, end, terminated_by_signals
from iotrace.sweeps.grid import (
    CPUS,
    CV2_THREADS,
    KEPT_OPEN,
    LIBRARY_ARGUMENTS,
    LOADER_ARGUMENTS,
    PIN_MEMORY,
    POOL_ARGUMENTS,
    PREFETCH,
    THREADS,
    WORKER_THREADS,
    WORKERS,
    asked_of_agent,
    fill,
    make_environment,
)
from iotrace.sweeps.results import Origin, SweepRun
from iotrace.units import digits


def measure(run: SweepRun, by_agent: bool = True) -> SweepRun:
    """`run` with the figures of its session, or with the reason why there are none.

    `by_agent`: the agent was to set the workers, as the command holds no place for them.
    """
    if run.exit_code:
        return msgspec.structs.replace(run, status="failed", reason=f"exit code {run.exit_code}")
    try:
        session = open_session(Path(run.session))
    except IotraceError as error:
        return msgspec.structs.replace(run, status="failed", reason=str(error))
    analysis = SessionAnalysis(session)
    report = analyse(analysis)
    run = msgspec.structs.replace(run, loaders=sum(len(rank.loaders) for rank in report.ranks))
    looped = [
        (rank, rank_report)
        for rank, rank_report in zip(analysis.ranks, report.ranks, strict=True)
        if rank_report.steps.count
    ]
    if not looped:
        reason = "it has no loader that iotrace knows, and no training"
        if run.loaders:
            reason = "its loop over a loader is too short: run longer, or more --steps"
        return msgspec.structs.replace(run, status="no steps", reason=reason)
    # Ranks run in step with each other: the one that waits longest for its data tells why.
    rank, slowest = max(looped, key=lambda pair: bound_fraction(pair[1].data_wait) or 0.0)
    wait, loader = slowest.data_wait, slowest.primary
    computed_ms = (rank.kept.duration_ns - _bound_ns(rank.kept)) / 1e6
    reason = _not_applied(run, rank, slowest, by_agent)
    ended = any(process.of_type(Ended) for process in session.processes)
    costly = wait.files[0] if wait.files else None
    return msgspec.structs.replace(
        run,
        status="not applied" if reason else "ok",
        reason=reason,
        inference=loader is not None and loader.kind != "training",
        ended=ended,
        steps=slowest.steps.count,
        batches=total(
            rank_report.primary.batches if rank_report.primary else None for _, rank_report in looped
        ),
        loop_ms=None if slowest.account is None else slowest.account.step_ms,
        step_ms=slowest.steps.mean_ms,
        step_ci95_ms=slowest.steps.mean_ci95_ms,
        samples_per_second=total(rank_report.steps.samples_per_second for _, rank_report in looped),
        compute_ms=None if wait.raw_ms is None else float(computed_ms.mean()),
        compute_ci95_ms=None if wait.raw_ms is None else mean_ci(computed_ms),
        production_ms=loader.production_ms if loader else None,
        workers=loader.workers if loader and not _hidden(rank, loader) else _stages_have(slowest.pipeline),
        own_workers=_own_workers(run, rank, loader, by_agent),
        raw_wait_fraction=wait.raw_wait_fraction,
        stall_fraction=wait.stall_fraction,
        causes_ms=wait.causes_ms,
        costly_file=costly.path if costly else "",
        costly_file_ms=costly.ms if costly else None,
        others_cpu_fraction=None if slowest.system.host is None else slowest.system.host.others_cpu_fraction,
        disturbed=any(is_disturbed(rank_report.system.host) for _, rank_report in looped),
        least_step_ms=alone(slowest).least_step_ms if slowest.steps.mean_ms else None,
        unqueued_step_ms=unqueued_step_ms(slowest) if slowest.steps.mean_ms else None,
        tracing_pct=None if slowest.overhead is None else slowest.overhead.estimated_pct_of_step,
        cpu_pct_mean=total(rank_report.system.cpu_pct_mean for _, rank_report in looped),
        rss_peak_bytes=total(rank_report.system.rss_peak_bytes for _, rank_report in looped),
        origin=_origin(rank, slowest),
    )


def _origin(rank: RankAnalysis, report: RankReport) -> Origin | None:
    """Where the loop's loader comes from; None where it is none that iotrace can set."""
    made = find_loader(rank)
    if made is None:
        if by_hand := settings_by_hand(report.pipeline):
            own = _stages_have(report.pipeline)
            return Origin(by_hand=by_hand, settings={} if own is None else {WORKERS: str(own)})
        pools = [each.description.pool for each in (*rank.loaders, *rank.inputs.pools)]
        pool = next((each for each in pools if each in POOL_ARGUMENTS), "")
        return Origin(pool=pool) if pool else None
    had = made.settings
    known = {name: had[argument] for name, argument in LOADER_ARGUMENTS.items() if argument in had}
    return Origin(site=made.site, builder=made.builder, settings=known, others=made.others)


def settings_by_hand(pipeline: Sequence[PipelineStage]) -> list[str]:
    """Name what says how many workers a library's stages have: with its line, where that is known."""
    settings = []
    for stage in pipeline:
        if stage.set_at and stage.setting in LIBRARY_ARGUMENTS.values():
            settings.append(f"{stage.setting} at {stage.set_at}")
        elif stage.puts in LIBRARY_ARGUMENTS:
            settings.append(f"{LIBRARY_ARGUMENTS[stage.puts]} of {stage.puts}")
    return list(dict.fromkeys(settings))


def _stages_have(pipeline: Sequence[PipelineStage]) -> int | None:
    """Return how many workers each stage of a library was given; None where they differ or are unknown."""
    given = {stage.setting_value for stage in pipeline if stage.setting in LIBRARY_ARGUMENTS.values()}
    return given.pop() if len(given) == 1 else None


def _bound_ns(steps: StepTable) -> Times:
    """The wait of each step in which the accelerator had nothing to do; all of it where that is not known."""
    return np.where(steps.exposed_ns == NONE, steps.wait_ns, steps.exposed_ns)


def _hidden(rank: RankAnalysis, loader: LoaderResult) -> bool:
    """Whether nobody knows by how many workers its batches are made."""
    return (rank.source is None or rank.source.description.wrapped) and not loader.workers


def _not_applied(run: SweepRun, rank: RankAnalysis, report: RankReport, by_agent: bool) -> str:
    """Say why the run is not what was asked for; empty where it is."""
    loader = report.primary
    if run.kind == "ceiling":
        replayed = any(process.of_type(Replayed) for process in rank.session.processes)
        needed = loader is None or loader.wrapped or loader.kind != "training"
        return "" if replayed or not needed else "the loop's batches did not come from memory"
    if other := _other_threads(run, rank) or _other_start(run, rank):
        return other
    kept = [each for process in rank.session.processes for each in process.of_type(KeptOpen)]
    if KEPT_OPEN in run.params and not kept:
        return f"it opens {run.params[KEPT_OPEN]} by another call than tarfile.open"
    asked = run.params.get(WORKERS)
    others = [name for name in LOADER_ARGUMENTS if name != WORKERS and name in run.params]
    if others and by_agent and _stages_have(report.pipeline) is not None:
        return f"the loop's loader has no {LOADER_ARGUMENTS[others[0]]}"
    if loader is not None and (other := _other_setting(run, loader)):
        return other
    if asked is None:
        return ""
    if loader is None or _hidden(rank, loader):
        if not by_agent or _stages_have(report.pipeline) == int(asked):
            return ""
        known = f", as measured: {digits(report.steps.per_second)} steps/s" if report.steps.per_second else ""
        own = next((each for each in report.pipeline if each.slowest and each.setting and each.set_at), None)
        set_by = [f"{own.setting} at {own.set_at}"] if own else settings_by_hand(report.pipeline)
        by_hand = f"; change {' or '.join(set_by)} by hand, and compare two runs" if set_by else ""
        return f"the loop takes its batches from no DataLoader whose workers could be set{known}{by_hand}"
    if loader.workers == int(asked):
        return ""
    return f"the loop's loader has {loader.workers} workers" + ("" if by_agent else f", not {asked}")


def _other_setting(run: SweepRun, loader: LoaderResult) -> str:
    """Name a known setting of the loop's loader, other than its workers, that is not as asked; else empty."""
    for name, field in LOADER_ARGUMENTS.items():
        if name == WORKERS:
            continue
        asked, had = run.params.get(name), getattr(loader, field)
        felt = loader.workers or name == PIN_MEMORY  # the others belong to workers alone
        if asked is not None and had is not None and felt and str(had) != asked:
            return f"the loop's loader has {field}={had}, not {asked}"
    return ""


_LIBRARIES = {THREADS: "torch", CV2_THREADS: "cv2"}


def _other_threads(run: SweepRun, rank: RankAnalysis) -> str:
    """Name a library that has not the number of threads that the environment asked for; empty without one."""
    records = rank.rank.main.of_type(Threads)
    for name, library in _LIBRARIES.items():
        asked, had = run.params.get(name), records[-1].threads.get(library) if records else None
        if asked is not None and had is not None and str(had) != asked:
            return f"{library} has {had} threads, not {asked}: the program sets them itself"
    return ""


def _other_start(run: SweepRun, rank: RankAnalysis) -> str:
    """Name what workers have that differs from what a trial set; empty where all is as asked."""
    asked = dict(each.split("=") for each in run.params.get(WORKER_THREADS, "").split(",") if each)
    cpus = [int(each) for each in run.params.get(CPUS, "").split(",") if each]
    known = [records[-1] for each in rank.rank.workers if (records := each.of_type(Threads))]
    if (asked or cpus) and not known:
        return "no worker that iotrace knows started"
    for record in known:
        for library, count in asked.items():
            had = record.threads.get(library)
            if had is not None and had != int(count):
                return f"{library} has {had} threads in a worker, not {count}: the program sets them itself"
        if cpus and record.affinity and record.affinity != cpus:
            return "the system, or the program, keeps workers on other CPUs"
    return ""


def _own_workers(
    run: SweepRun, rank: RankAnalysis, loader: LoaderResult | None, by_agent: bool
) -> int | None:
    """Find how many workers the program asks for by itself; None where its command set them."""
    if not by_agent or loader is None or loader.wrapped:
        return None
    for override in rank.rank.main.of_type(Override):
        if override.dataset == loader.dataset:
            own: int | None = override.before[0]
            return own
    return loader.workers if run.params.get(WORKERS) == str(loader.workers) else None


OUTPUT = "output.log"
_REPLAYED = 4  # batches kept in memory for the ceiling


@dataclass(frozen=True)
class Request:
    """What to run: a point of the grid, the kind of run, and where it goes.

    A `bare` run is not traced: its one step is the whole command. It is ended after `most_s`.
    """

    command: list[str]
    params: dict[str, str]
    kind: str
    repeat: int
    directory: Path
    steps: int | None = None
    inference: bool = False
    options: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    working_directory: str | None = None
    bare: bool = False
    most_s: float | None = None


Executor = Callable[[Request], SweepRun]


def execute(request: Request) -> SweepRun:
    """Run the request's command traced to its end and measure it.

    KeyboardInterrupt passes, once the command, which the key reached too, has ended. SIGTERM and SIGHUP,
    which reach this process alone, are handed on and become a KeyboardInterrupt.
    """
    request.directory.parent.mkdir(names.DIRECTORY_MODE, exist_ok=True)
    request.directory.mkdir(names.DIRECTORY_MODE, exist_ok=True)
    session = request.directory / "session"
    line = fill(request.command, request.params)
    if not request.bare:
        # Steps inside a window of torch.profiler are no measure of a loader.
        run_traced = [sys.executable, iotrace_command.__file__, "run", "--quiet", "--torch-steps", "off"]
        line = [*run_traced, "-o", str(session), *request.options, "--", *line]
    started = time.monotonic()
    (request.directory / OUTPUT).touch(names.FILE_MODE)
    with (request.directory / OUTPUT).open("wb") as output:
        process = subprocess.Popen(
            line,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **_variables(request)},
            cwd=request.working_directory,
        )
        try:
            with terminated_by_signals():
                exit_code = process.wait(request.most_s)
        except subprocess.TimeoutExpired:
            exit_code = end(process)
        except BaseException as error:
            end(process, at_once=isinstance(error, TerminatedError))
            raise
    run = SweepRun(
        params=request.params,
        kind=request.kind,
        repeat=request.repeat,
        session=str(session),
        status="ok",
        exit_code=128 - exit_code if exit_code < 0 else exit_code,
        seconds=time.monotonic() - started,
    )
    if request.most_s is not None and run.seconds >= request.most_s:
        return msgspec.structs.replace(run, status="failed", reason=f"ended after {request.most_s:.0f} s")
    if request.bare:
        failed = f"exit code {run.exit_code}" if run.exit_code else ""
        known = {"status": "failed", "reason": failed} if failed else {"step_ms": 1e3 * run.seconds}
        return msgspec.structs.replace(run, **known)
    return measure(run, WORKERS in asked_of_agent(request.command, request.params))


def _variables(request: Request) -> dict[str, str]:
    settings = asked_of_agent(request.command, request.params)
    if request.steps is not None:
        settings["steps"] = str(request.steps)
    if request.kind == "ceiling":
        # Batches from memory need no worker, which would only disturb the training.
        settings.update(replay=str(_REPLAYED), workers="0")
        settings.pop(PREFETCH, None)
    if settings and request.inference:
        settings["inference"] = "yes"
    variables = {**dict(request.variables), **make_environment(request.command, request.params)}
    return {**variables, names.OVERRIDE_VARIABLE: names.encode_settings(settings)} if settings else variables


def tail(run: SweepRun, lines: int = 5) -> str:
    """The last lines that the run's command printed."""
    try:
        text = (Path(run.session).parent / OUTPUT).read_text(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])
