"""What a session does not hold, why, and what would help.

What the sidecar did not sample: gaps, processes, figures of host and devices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import PurePath

import numpy as np

from iotrace.analysis.completeness.data_loss import BUFFERED_CALLS, named, workers_left
from iotrace.analysis.loop.deliveries import ASK_OUTSIDE, ASKS_WITHIN, Deliveries
from iotrace.analysis.loop.measured import untrained
from iotrace.analysis.loop.steps import NO_LOADER
from iotrace.analysis.rank import RankAnalysis, SessionAnalysis
from iotrace.analysis.rules.facts.capture import missing
from iotrace.session import names
from iotrace.session.liveness import RUNNING, UNKNOWN
from iotrace.session.manifest import NotCaptured
from iotrace.sources.records import (
    CudaSnapshot,
    Framework,
    IteratorStart,
    OwnLog,
    TorchProgram,
    TorchProgramTrace,
    TorchWindow,
)
from iotrace.sources.session import Session
from iotrace.sources.telemetry import Telemetry
from iotrace.units import counted


def unsampled(session: Session) -> Iterator[NotCaptured]:
    """Find hosts that were not sampled, accelerators that no library reads, figures that fail."""
    for launch in session.launches:
        manifest = launch.manifest
        nodes = {process.identity.node for process in session.processes if process.host == manifest.host}
        there = [
            item
            for item in session.telemetry
            if item.sampler.host == manifest.host or item.sampler.node in nodes
        ]
        if manifest.telemetry_ms is None:
            yield from missing(telemetry_off=True)
        elif not there:
            yield from missing(whose=manifest.host, sampler_absent=True)
        elif manifest.accelerators and not any(item.devices or item.problems for item in there):
            why = "; ".join(dict.fromkeys(library.why for item in there for library in item.unavailable))
            yield from missing(whose=manifest.host, devices_unread=True, reason=why)
    for rank in session.ranks:
        sampled = session.telemetry_of(rank.main)
        if sampled is not None and all(sampled.process_of(process) is None for process in rank.processes):
            yield from missing(whose=str(rank.number), processes_unknown=True)
    for telemetry in session.telemetry:
        yield from _failed_figures(telemetry)
        yield from _gaps(telemetry)


def _gaps(telemetry: Telemetry) -> Iterator[NotCaptured]:
    """Find times in which the sampler did not run, as it was stopped or the host too busy."""
    of_processes = [item.samples["time_ns"] for item in telemetry.processes]
    apart_ns = np.diff(np.unique(np.concatenate([telemetry.host.time_ns, *of_processes])))
    gaps_s = apart_ns[apart_ns > 1_000_000_000] / 1e9
    yield from missing(whose=telemetry.sampler.node, gaps_s=gaps_s.tolist())


# What is known without a buffered figure.
_INSTEAD = {
    "utilisation samples": "util_pct",
    "memory utilisation samples": "memory_util_pct",
    "power samples": "power_w",
}


def _failed_figures(telemetry: Telemetry) -> Iterator[NotCaptured]:
    """List for each device the figures that failed, by what the driver says of them."""
    by_device: dict[str, dict[str, list[str]]] = {}
    devices = {device.about.device: device for device in telemetry.devices}
    for problem in telemetry.problems:
        device = devices.get(problem.device) if problem.device is not None else None
        what = "gpu"
        if device is not None:
            if _INSTEAD.get(problem.figure) in device.series:  # the driver only keeps no buffer of it
                continue
            instance = "" if device.about.instance is None else f" instance {device.about.instance}"
            what = f"gpu {device.about.index}{instance}"
        by_device.setdefault(what, {}).setdefault(problem.why, []).append(problem.figure)
    for what, reasons in by_device.items():
        yield from missing(whose=f"{what} on {telemetry.sampler.node}", failed_figures=reasons)


_SHORTEST = 3  # batches: one waited for, one to warm up, one recorded


def not_captured(analysis: SessionAnalysis) -> list[NotCaptured]:
    """List everything that a reader might expect and not find, losses included."""
    session = analysis.session
    refused = dict.fromkeys(item for launch in session.launches for item in launch.manifest.not_captured)
    found = [
        each for item in refused for each in missing(refused=item.what, reason=item.why, remedy=item.remedy)
    ]
    if session.state == RUNNING:  # what is not there may come
        return [*found, *_until_now(analysis), *_open_ends(session), *analysis.data_loss]
    if not session.processes:
        found += _no_process(session.manifest.argv, session.exit_code)
    found += _unseen_loops(analysis)
    if session.posix_on and not session.calls.pids and session.posix_by == names.DFTRACER:
        found += missing(posix_absent=names.DFTRACER)
    elif session.posix_on and not session.calls.pids and any(len(each.spans) for each in session.processes):
        found += missing(posix_absent=names.RECORDER)
    found += _after_own_logs(session)
    found += _without_dftracer(session)
    found += _unseen_workers(analysis)
    found += _untraced_compute(analysis)
    found += _unwritten_snapshots(analysis)
    traced = [trace for one in analysis.ranks for trace in one.rank.main.windows.traces]
    if traced and not any(len(trace.memory.bytes) for trace in traced):
        found += missing(no_memory_events=True)
    found += dict.fromkeys(unsampled(session))
    return [*found, *_open_ends(session), *_workers_left(session), *analysis.data_loss]


def _until_now(analysis: SessionAnalysis) -> Iterator[NotCaptured]:
    """Explain what is not there yet of a session whose command still runs."""
    session = analysis.session
    if not session.processes:
        yield from missing(nothing_yet="processes", path=str(session.path))
    elif not any(len(loader.deliveries) for one in analysis.ranks for loader in one.loaders):
        yield from missing(nothing_yet="batches", path=str(session.path))


def _open_ends(session: Session) -> Iterator[NotCaptured]:
    """Say of each launch without an outcome whether it runs, was killed, or may be either."""
    for launch in session.launches:
        manifest = launch.manifest
        yield from missing(
            whose=manifest.host,
            path=str(session.path),
            state=launch.state,
            task=str(manifest.task) if manifest.task else "",
            heard_seconds=launch.heard_seconds if launch.state == UNKNOWN else None,
        )


def _no_process(argv: list[str], exit_code: int | None) -> Iterator[NotCaptured]:
    """Explain a session without processes: the command's name says whether Python surely ran."""
    python = ("python", "pypy", "torchrun", "accelerate")
    named = bool(argv) and PurePath(argv[0]).name.startswith(python)
    yield from missing(no_process=True, python_named=named, exit_code=exit_code)


def _workers_left(session: Session) -> Iterator[NotCaptured]:
    """Name the workers that ended with their program, and what they did for nobody."""
    left = workers_left(session)
    buffers = session.posix_on and session.posix_by == names.DFTRACER
    yield from missing(
        left_pids=[process.pid for process in left],
        left_idle=all(process.idle for process in left),
        buffered_calls=BUFFERED_CALLS if buffers else 0,
    )


def _after_own_logs(session: Session) -> Iterator[NotCaptured]:
    """Find processes that used dftracer themselves, and ended it."""
    if session.posix_on and session.posix_by == names.DFTRACER:
        for process in session.processes:
            ended = any(log.ended for log in process.of_type(OwnLog))
            yield from missing(whose=named(process), own_log_ended=ended)


def _without_dftracer(session: Session) -> Iterator[NotCaptured]:
    """Say of how many processes dftracer stayed out: `launch/posix_guard.c` counts them in files."""
    left_out, without = _counted(session, "io-left-out"), _counted(session, "io-without-stdio")
    yield from missing(not_python=left_out, without_stdio=without)


def _counted(session: Session, name: str) -> int:
    """Return a count that is the length of a file beside dftracer's logs."""
    found = 0
    for launch in session.launches:
        with suppress(OSError):
            found += (launch.path / names.POSIX / name).stat(follow_symlinks=False).st_size
    return found


def _untraced_compute(analysis: SessionAnalysis) -> Iterator[NotCaptured]:
    """Find ranks without a trace of torch's profiler, and why; windows that were cut short or lost."""
    ranks = [one for one in analysis.ranks if _uses_torch(one)]
    if not ranks and analysis.ranks:
        return
    if analysis.session.manifest.torch.get(names.TORCH_STEPS, names.OFF) == names.OFF:
        yield from missing(profiler_off=True)
        return
    for one in ranks:
        windows, main = one.rank.main.of_type(TorchWindow), one.rank.main
        programs = main.of_type(TorchProgram)
        whose = str(one.rank.number)
        if any(window.event == names.SPARED for window in windows):
            yield from missing(whose=whose, device_spared=True)
        of_no_step = untrained(main)
        exported = any(window.event == "exported" and window.path not in of_no_step for window in windows)
        if exported or any(trace.path for trace in main.of_type(TorchProgramTrace)):
            continue
        errors = [window for window in windows if window.event == "error"]
        if programs:
            # Traces that were exported and not kept, and a daemon's, need something else.
            exports = not main.of_type(TorchProgramTrace) and "daemon" not in programs[0].what
            yield from missing(whose=whose, program_profiles=programs[0].what, program_exports=exports)
        elif errors:
            disk = str(analysis.session.path) if errors[0].full else ""
            yield from missing(whose=whose, profiler_error=errors[0].why, full_disk=disk)
        elif why := _missed(one, windows, bool(of_no_step)):
            yield from missing(whose=whose, profiler_missed=why, remedy="")
        elif one.loaders:
            why, remedy = _unopened(one, analysis.session.manifest.torch)
            yield from missing(whose=whose, profiler_missed=why, remedy=remedy)


def _missed(one: RankAnalysis, windows: Sequence[TorchWindow], of_no_step: bool) -> str:
    """Say why what torch's profiler recorded holds no step; empty where its window did not open."""
    if of_no_step:
        return "nothing trained between the batches or items that torch's profiler recorded"
    if any(window.event == "active" for window in windows):
        return "the program died while torch's profiler recorded"
    if one.loop.thread is not None and one.loop.thread.handing:
        return "its window opens at a batch that the training thread takes; another thread takes them"
    return ""


def _unwritten_snapshots(analysis: SessionAnalysis) -> Iterator[NotCaptured]:
    """Say of each rank why ``--cuda-snapshot`` wrote none, or less than was asked for."""
    asked = analysis.session.manifest.torch.get(names.CUDA_SNAPSHOT)
    for one in analysis.ranks if asked else ():
        by_event = {record.event: record for record in one.rank.main.of_type(CudaSnapshot)}
        why, remedy = None, ""
        if "error" in by_event:
            why = f"torch could not record it: {by_event['error'].why}"
        elif "program" in by_event:
            why = "the program records device memory itself; its own snapshots are listed"
        elif "written" in by_event:
            if by_event["written"].why:
                why = f"the program ended after {counted(by_event['written'].steps, 'step')} of it"
        elif "started" in by_event:
            why = "the program was ended while torch recorded it"
        else:
            needs = "it needs a program that trains on a CUDA or HIP device, for more steps than its warm-up"
            why, remedy = f"no such step was seen: {needs}", "--cuda-snapshot 1:1 is the least"
        yield from missing(whose=str(one.rank.number), snapshot=why, remedy=remedy)


def _unopened(one: RankAnalysis, settings: dict[str, str]) -> tuple[str, str]:
    """Say why the window of torch.profiler did not open, and how it would; empty where that is not known."""
    wait, warmup, *_ = map(int, settings.get(names.TORCH_STEPS, "0:0").split(":"))
    deliveries = Deliveries.joined(loader.deliveries for loader in one.loaders)
    trained = deliveries["grad"] != 0
    if not len(deliveries):
        return "its window opens at a batch, and the loop took none", ""
    if not trained.any():
        return "the loop ran without gradients, and its window opens in training alone", ""
    loaders = {start.iterator: start.loader for start in one.rank.main.of_type(IteratorStart)}
    iterators, counts = np.unique(deliveries["iterator"][trained], return_counts=True)
    by_loader: Counter[int | None] = Counter()
    for iterator, count in zip(iterators.tolist(), counts.tolist(), strict=True):
        by_loader[loaders.get(iterator)] += count
    longest = max(by_loader.values())
    if not deliveries["followed_by_backward"].any():
        sooner = "open it at the first batch: --torch-steps 0:1:3" if wait and longest >= _SHORTEST else ""
        return "no backward pass followed a batch, and its window waits for one", sooner
    if longest <= wait + warmup:
        why = f"its window opens after {wait + warmup} batches of one loader; {longest} was the most"
        return why, "begin it sooner: --torch-steps 1:1:3" if wait > 1 and longest >= _SHORTEST else ""
    return "its window did not open", ""


def _uses_torch(one: RankAnalysis) -> bool:
    """Say whether the rank imported torch; of a program without it nothing about torch is missing."""
    if one.rank.main.of_type(Framework):
        return True
    return any(not loader.description.wrapped for loader in one.loaders)  # of before there was that record


def _unseen_loops(analysis: SessionAnalysis) -> Iterator[NotCaptured]:
    """Find loops of which neither a DataLoader nor the program says enough."""
    session, loops = analysis.session, [one.loop for one in analysis.ranks]
    delivered = any(loop.marked or (loop.primary and len(loop.primary.deliveries)) for loop in loops)
    if loops and not delivered and session.exit_code:
        yield from missing(failed_before=True, exit_code=session.exit_code)
    elif loops and not any(loop.marked or loop.primary or len(loop.steps) for loop in loops):
        why = next((loop.unknown_why for loop in loops if loop.unknown_why), NO_LOADER)
        yield from missing(loop_unseen=True, reason=why)
    else:
        for one in analysis.ranks:
            yield from _unseen_loop(one, session)


def _unseen_loop(one: RankAnalysis, session: Session) -> Iterator[NotCaptured]:
    """Say why the wait of one rank is unknown; of a restarted one, which start is meant."""
    rank, whose = one.rank, f"rank {one.rank.number}"
    if any(each.number == rank.number and each.incarnation > rank.incarnation for each in session.ranks):
        whose += f" before restart {rank.incarnation + 1}"
    no_batch = bool(one.loaders) and one.loop.unknown_why == NO_LOADER
    within = any(run.description.library == ASKS_WITHIN for run in one.loaders)
    why, remedy = one.loop.unknown_why or None, ASK_OUTSIDE if within else ""
    yield from missing(whose=whose, no_batch=no_batch, wait_unknown=why, remedy=remedy)


def _unseen_workers(analysis: SessionAnalysis) -> Iterator[NotCaptured]:
    seen = {process.pid for process in analysis.session.processes}
    for one in analysis.ranks:
        makers = [np.unique(loader.deliveries.maker(0)).tolist() for loader in one.loaders]
        workers = {pid for own in makers for pid in own if pid}
        forked = all(loader.description.start_method in (None, "fork") for loader in one.loaders)
        unseen = sorted(workers - seen)
        yield from missing(whose=str(one.rank.number), unseen_pids=unseen, workers_forked=forked)
