"""What a session does not hold, why, and what would help.

What the sidecar did not sample: gaps, processes, figures of host and devices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import PurePath

import numpy as np

from iotrace.analysis.completeness.data_loss import BUFFERED_CALLS, named, workers_left
from iotrace.analysis.loop.deliveries import Deliveries
from iotrace.analysis.loop.measured import untrained
from iotrace.analysis.loop.steps import NO_LOADER
from iotrace.analysis.rank import RankAnalysis, SessionAnalysis
from iotrace.analysis.results import MEMORY_BY_OPERATOR
from iotrace.session import names
from iotrace.session.liveness import KILLED, RUNNING, UNKNOWN
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
from iotrace.units import counted, time_span

_GAP_NS = 2_000_000_000


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
            yield NotCaptured("telemetry", "it was switched off", "leave out --no-telemetry")
        elif not there:
            yield NotCaptured(f"telemetry of {manifest.host}", "its sampler did not start")
        elif manifest.accelerators and not any(item.devices or item.problems for item in there):
            why = "; ".join(dict.fromkeys(library.why for item in there for library in item.unavailable))
            if why:  # else it was still being looked for when the run ended
                remedy = "see what iotrace doctor says of it on that host"
                yield NotCaptured(f"gpu on {manifest.host}", why, remedy)
    for rank in session.ranks:
        sampled = session.telemetry_of(rank.main)
        if sampled is not None and all(sampled.process_of(process) is None for process in rank.processes):
            why = "none of its processes is known among those that were sampled"
            yield NotCaptured(f"telemetry of the processes of rank {rank.number}", why)
    for telemetry in session.telemetry:
        yield from _failed_figures(telemetry)
        yield from _gaps(telemetry)


def _gaps(telemetry: Telemetry) -> list[NotCaptured]:
    """Find times in which the sampler did not run, as it was stopped or the host too busy."""
    of_processes = [item.samples["time_ns"] for item in telemetry.processes]
    apart_ns = np.diff(np.unique(np.concatenate([telemetry.host.time_ns, *of_processes])))
    longest = apart_ns[apart_ns > _GAP_NS]
    if not len(longest):
        return []
    what = f"{len(longest)} gaps, the longest of" if len(longest) > 1 else "a gap of"
    why = f"{what} {longest.max() / 1e9:.1f} s: its sampler was stopped, or the host too busy for it"
    return [NotCaptured(f"part of the telemetry of {telemetry.sampler.node}", why)]


# What is known without a buffered figure.
_INSTEAD = {
    "utilisation samples": "util_pct",
    "memory utilisation samples": "memory_util_pct",
    "power samples": "power_w",
}


def _failed_figures(telemetry: Telemetry) -> list[NotCaptured]:
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
    return [
        NotCaptured(
            f"part of {what} on {telemetry.sampler.node}",
            "; ".join(f"{', '.join(figures)}: {why}" for why, figures in reasons.items()),
        )
        for what, reasons in by_device.items()
    ]


_SHORTEST = 3  # batches: one waited for, one to warm up, one recorded


def not_captured(analysis: SessionAnalysis) -> list[NotCaptured]:
    """List everything that a reader might expect and not find, losses included."""
    session = analysis.session
    found = list(dict.fromkeys(item for launch in session.launches for item in launch.manifest.not_captured))
    if session.state == RUNNING:  # what is not there may come
        return [*found, *_until_now(analysis), *_open_ends(session), *analysis.data_loss]
    if not session.processes:
        found.append(_no_process(session.manifest.argv, session.exit_code))
    found += _unseen_loops(analysis)
    if session.posix_on and not session.calls.pids and session.posix_by == names.DFTRACER:
        found.append(NotCaptured("posix", "no process of the command left a file of dftracer's"))
    elif session.posix_on and not session.calls.pids and any(len(each.spans) for each in session.processes):
        why = "no process recorded a call on a file, though they read data: the recorder was not loaded"
        found.append(NotCaptured("posix", why, "let the command keep LD_PRELOAD in its environment"))
    found += _after_own_logs(session)
    found += _without_dftracer(session)
    found += _unseen_workers(analysis)
    found += _untraced_compute(analysis)
    found += _unwritten_snapshots(analysis)
    traced = [trace for one in analysis.ranks for trace in one.rank.main.windows.traces]
    if traced and not any(len(trace.memory.bytes) for trace in traced):
        found.append(
            NotCaptured(MEMORY_BY_OPERATOR, "torch.profiler recorded without it", "--torch-options memory")
        )
    found += dict.fromkeys(unsampled(session))
    return [*found, *_open_ends(session), *_workers_left(session), *analysis.data_loss]


def _until_now(analysis: SessionAnalysis) -> Iterator[NotCaptured]:
    """Explain what is not there yet of a session whose command still runs."""
    session = analysis.session
    again = f"look again in a moment: iotrace report {session.path}"
    if not session.processes:
        yield NotCaptured("the program's processes", "none has begun to record yet", again)
    elif not any(len(loader.deliveries) for one in analysis.ranks for loader in one.loaders):
        yield NotCaptured("steps and data wait", "no batch was delivered yet", again)


def _open_ends(session: Session) -> Iterator[NotCaptured]:
    """Say of each launch without an outcome whether it runs, was killed, or may be either."""
    for launch in session.launches:
        manifest = launch.manifest
        whose = f" of task {manifest.task} on {manifest.host}" if manifest.task else ""
        if launch.state == RUNNING:
            yield NotCaptured(f"the exit code{whose}", "the command still runs: these are its figures so far")
        elif launch.state == KILLED:
            why = "the launcher was killed before it saw the end of the command"
            yield NotCaptured(f"the exit code{whose}", why)
        elif launch.state == UNKNOWN:
            heard = launch.heard_seconds
            since = "" if heard is None else f", last heard of {time_span(heard)} ago"
            why = f"whether it still runs is seen on {manifest.host} alone{since}"
            yield NotCaptured(f"the exit code{whose}", why, f"ask there: iotrace report {session.path}")


def _no_process(argv: list[str], exit_code: int | None) -> NotCaptured:
    """Explain a session without processes: the command's name says whether Python surely ran."""
    what, none = "the program's processes", "no Python process was started, or none that loads the agent"
    remedy = "run it by a Python >= 3.10 started without -S and without env -i"
    if argv and PurePath(argv[0]).name.startswith(("python", "pypy", "torchrun", "accelerate")):
        return NotCaptured(what, "no Python process of the command could load the agent", remedy)
    if exit_code:
        return NotCaptured(what, f"{none}, before the command failed (exit code {exit_code})")
    return NotCaptured(what, none, f"else {remedy}")


def _workers_left(session: Session) -> Iterator[NotCaptured]:
    """Name the workers that ended with their program, and what they did for nobody."""
    left = workers_left(session)
    lost = [] if all(process.idle for process in left) else ["what they did for batches that nobody took"]
    buffers = session.posix_on and session.posix_by == names.DFTRACER
    lost += [f"at most about {BUFFERED_CALLS} POSIX calls of each"] if left and buffers else []
    if lost:
        what = f"the last work of {counted(len(left), 'worker')}"
        pids = ", ".join(str(process.pid) for process in left)
        early = f"the program ended before they did (pid {pids}), as with persistent workers"
        yield NotCaptured(what, f"{early}; missing are {' and '.join(lost)}")


def _after_own_logs(session: Session) -> list[NotCaptured]:
    """Find processes that used dftracer themselves, and ended it: it traces no call after that."""
    return [
        NotCaptured(
            f"POSIX calls of {named(process)} after it ended its own dftracer log",
            "dftracer traces nothing more in a process that has called finalize()",
            "call finalize() at the end of the program",
        )
        for process in session.processes
        if session.posix_on
        and session.posix_by == names.DFTRACER
        and any(log.ended for log in process.of_type(OwnLog))
    ]


def _without_dftracer(session: Session) -> Iterator[NotCaptured]:
    """Say of how many processes dftracer stayed out: `launch/posix_guard.c` counts them in files."""
    count = _counted(session, "io-left-out")
    if count:
        what = f"POSIX calls of programs that are not Python ({counted(count, 'start')})"
        yield NotCaptured(what, "dftracer stays out of them", "leave --io-by dftracer out")
    count = _counted(session, "io-without-stdio")
    if count:
        what = f"calls of C's stdio in {counted(count, 'forked process', 'forked processes')}"
        why = "other threads ran at the fork, and dftracer's table of streams has no lock"
        yield NotCaptured(what, why, "leave --io-by dftracer out")


def _counted(session: Session, name: str) -> int:
    """Return a count that is the length of a file beside dftracer's logs."""
    found = 0
    for launch in session.launches:
        with suppress(OSError):
            found += (launch.path / names.POSIX / name).stat(follow_symlinks=False).st_size
    return found


_SPARED = (
    "torch's profiler recorded the host alone: with Intel's devices and ranks on several nodes it is known "
    "to hang in collectives (PTI before oneAPI 2025.1.3)"
)


def _untraced_compute(analysis: SessionAnalysis) -> Iterator[NotCaptured]:
    """Find ranks without a trace of torch's profiler, and why; windows that were cut short or lost."""
    ranks = [one for one in analysis.ranks if _uses_torch(one)]
    if not ranks and analysis.ranks:
        return
    if analysis.session.manifest.torch.get(names.TORCH_STEPS, names.OFF) == names.OFF:
        yield NotCaptured("compute", "torch.profiler was switched off", "run it without --torch-steps off")
        return
    for one in ranks:
        windows, main = one.rank.main.of_type(TorchWindow), one.rank.main
        programs = main.of_type(TorchProgram)
        what = f"compute of rank {one.rank.number}"
        if any(window.event == names.SPARED for window in windows):
            yield NotCaptured(f"device of rank {one.rank.number}", _SPARED, "--torch-activities all")
        of_no_step = untrained(main)
        exported = any(window.event == "exported" and window.path not in of_no_step for window in windows)
        if exported or any(trace.path for trace in main.of_type(TorchProgramTrace)):
            continue
        errors = [window.why for window in windows if window.event == "error"]
        if programs:
            why = f"the program profiles itself ({programs[0].what}) and exported no trace that could be kept"
            # Traces that were exported and not kept, and a daemon's, need something else.
            exports = not main.of_type(TorchProgramTrace) and "daemon" not in programs[0].what
            yield NotCaptured(what, why, "have it call export_chrome_trace" if exports else "")
        elif errors:
            yield NotCaptured(what, f"torch's profiler failed: {errors[0]}")
        elif of_no_step:
            yield NotCaptured(what, "torch's profiler recorded a pass in which nothing trained")
        elif any(window.event == "active" for window in windows):
            yield NotCaptured(what, "the program died while torch's profiler recorded")
        elif one.loop.thread is not None and one.loop.thread.handing:
            why = "its window opens at a batch that the training thread takes; another thread takes them"
            yield NotCaptured(what, why)
        elif one.loaders:
            yield NotCaptured(what, *_unopened(one, analysis.session.manifest.torch))


def _unwritten_snapshots(analysis: SessionAnalysis) -> Iterator[NotCaptured]:
    """Say of each rank why ``--cuda-snapshot`` wrote none, or less than was asked for."""
    asked = analysis.session.manifest.torch.get(names.CUDA_SNAPSHOT)
    for one in analysis.ranks if asked else ():
        by_event = {record.event: record for record in one.rank.main.of_type(CudaSnapshot)}
        what = f"the snapshot of device memory of rank {one.rank.number}"
        if "error" in by_event:
            yield NotCaptured(what, f"torch could not record it: {by_event['error'].why}")
        elif "program" in by_event:
            yield NotCaptured(what, "the program records device memory itself; its own snapshots are listed")
        elif "written" in by_event:
            steps = by_event["written"].steps
            if by_event["written"].why:
                yield NotCaptured(what, f"the program ended after {counted(steps, 'step')} of it")
        elif "started" in by_event:
            yield NotCaptured(what, "the program was ended while torch recorded it")
        else:
            needs = "it needs a program that trains on a CUDA or HIP device, for more steps than its warm-up"
            yield NotCaptured(what, f"no such step was seen: {needs}", "--cuda-snapshot 1:1 is the least")


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


_WRAP = "for batch in iotrace.batches(source)"


def _unseen_loops(analysis: SessionAnalysis) -> list[NotCaptured]:
    """Find loops of which neither a DataLoader nor the program says enough."""
    session, loops = analysis.session, [one.loop for one in analysis.ranks]
    delivered = any(loop.marked or (loop.primary and len(loop.primary.deliveries)) for loop in loops)
    if loops and not delivered and session.exit_code:
        why = f"the command failed (exit code {session.exit_code}) before a batch was delivered"
        return [NotCaptured("steps and data wait", why)]
    if loops and not any(loop.marked or loop.primary or len(loop.steps) for loop in loops):
        return [
            NotCaptured("steps and data wait", NO_LOADER, f"where there is a loop, wrap its source: {_WRAP}")
        ]
    return [_unseen_loop(one, session) for one in analysis.ranks if one.loop.unknown_why]


def _unseen_loop(one: RankAnalysis, session: Session) -> NotCaptured:
    """Say why the wait of one rank is unknown; of a restarted one, which start is meant."""
    rank, name = one.rank, f"data wait of rank {one.rank.number}"
    if any(each.number == rank.number and each.incarnation > rank.incarnation for each in session.ranks):
        name += f" before restart {rank.incarnation + 1}"
    if one.loaders and one.loop.unknown_why == NO_LOADER:
        return NotCaptured(name, "its loader delivered no batch")
    return NotCaptured(name, one.loop.unknown_why or "", f"wrap the loop's source: {_WRAP}")


def _unseen_workers(analysis: SessionAnalysis) -> Iterator[NotCaptured]:
    seen = {process.pid for process in analysis.session.processes}
    for one in analysis.ranks:
        makers = [np.unique(loader.deliveries.maker(0)).tolist() for loader in one.loaders]
        workers = {pid for own in makers for pid in own if pid}
        if pids := ", ".join(map(str, sorted(workers - seen))):
            what = f"loader workers of rank {one.rank.number} (pid {pids})"
            if all(loader.description.start_method in (None, "fork") for loader in one.loaders):
                # They had the agent of the process that they were forked from, if it had one then.
                yield NotCaptured(what, "they were there before the recording began, or died at once")
                continue
            why = "their processes could not load the agent, or were there before the recording began"
            remedy = "where they run another interpreter, install iotrace-agent into that one"
            yield NotCaptured(what, why, remedy)
