"""One look at a session that runs: its newest steps, their waits, its processes, hosts and devices."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from iotrace.analysis.host.file_groups import file_groups, used_files
from iotrace.analysis.host.system import devices_of
from iotrace.analysis.loop.deliveries import Step
from iotrace.analysis.loop.measured import summarise
from iotrace.analysis.results import DataWait, RankReport, System, unknown
from iotrace.analysis.results.top import (
    SCHEMA_VERSION,
    Top,
    TopGpu,
    TopHost,
    TopProcess,
    TopRank,
    TopVerdict,
)
from iotrace.analysis.verdict.verdict import BANNERS, of_worst
from iotrace.analysis.wait.data_wait import data_wait, verdict
from iotrace.analysis.window import HOLD_NS, LONGEST_NS, Window
from iotrace.session.identity import boot_id
from iotrace.session.liveness import RUNNING
from iotrace.sources.live.session import LiveSession
from iotrace.sources.processes import Process
from iotrace.sources.records import IteratorStart, OwnLog, Produced
from iotrace.sources.session import Rank, Session
from iotrace.sources.telemetry import SampledDevice, SampledProcess, Series, Telemetry
from iotrace.units import counted

DEFAULT_STEPS = 50
_MARGIN = 10  # steps before the window that are kept in memory
_IDLE_NS = 300_000_000_000  # of a rank without steps, what is older is given up
_LATE_NS = 5_000_000_000  # without a sample for so long, a process has gone
_SYSTEM = unknown(System, gpus=[], processes=[])


class Watch:
    """Looks at the session again and again; each look takes the newest `most` steps of each rank."""

    def __init__(self, live: LiveSession, most: int = DEFAULT_STEPS) -> None:
        self.live = live
        self._most = most
        self._first: dict[tuple[str, int], Step] = {}  # of the run, by host and pid
        self._boot = boot_id()

    def look(self) -> Top:
        """Read what the session's files grew by, and sum up."""
        session = self.live.poll()
        last = max((rank.incarnation for rank in session.ranks), default=0)
        ranks = [rank for rank in session.ranks if rank.incarnation == last]
        windows = [self._window(session, rank) for rank in ranks]
        worst = max(range(len(windows)), key=lambda number: _fraction(windows[number]), default=-1)
        if worst >= 0 and windows[worst].kept:
            # With spans and calls at hand the window may turn out to end earlier.
            since_ns = max(
                _needed_since(windows[worst], windows[worst].loop.steps),
                windows[worst].newest_ns - LONGEST_NS - HOLD_NS,
            )
            windows[worst] = self._window(*self.live.with_details(session, ranks[worst], since_ns))
        now_ns = self._now_ns(session)
        found = [self._rank(window, number == worst, now_ns) for number, window in enumerate(windows)]
        self.live.forget(session.clocks, [(window.rank, *self._old(window)) for window in windows])
        self.windows = windows
        return self._top(session, windows, found, now_ns)

    def _window(self, session: Session, rank: Rank) -> Window:
        key = rank.main.identity.node, rank.main.pid
        fresh = dict(self.live.fresh)
        window = Window(session, rank, most=self._most, first=self._first.get(key), fresh=fresh)
        if fresh[key].whole and window.loop.steps:
            self._first[key] = window.loop.steps[0]
        return window

    def _old(self, window: Window) -> tuple[int, int]:
        """Find before when records are needed no more: those of the training process, those of the others."""
        steps = window.loop.steps
        if not steps:
            return 0, window.newest_ns - _IDLE_NS
        needed = _with_earlier(window, _MARGIN)
        own_ns = 0 if len(needed) == len(steps) else needed[0].start_ns
        return own_ns, _needed_since(window, needed)

    def _now_ns(self, session: Session) -> int:
        """The session's time now: by CLOCK_MONOTONIC where that is the session's, else CLOCK_REALTIME."""
        here = next((each for each in session.processes if each.identity.boot_id == self._boot), None)
        return (
            time.time_ns()
            if here is None or not self._boot
            else here.clock.to_session_ns(time.monotonic_ns())
        )

    def _rank(self, window: Window, explained: bool, now_ns: int) -> TopRank:
        kept, rank, loop = window.kept, window.rank, window.loop
        own = window.fresh[rank.main.identity.node, rank.main.pid]
        length_ns = kept[-1].end_ns - kept[0].start_ns if kept else 0
        telemetry = window.session.telemetry_of(rank.main)
        steps = summarise(
            [step.duration_ns for step in kept],
            [step.samples for step in kept],
            window.measured[1],
            None,
            f"lately, {loop.unknown_why}" if loop.unknown_why and not own.whole else loop.unknown_why,
        )
        wait = data_wait(window, _SYSTEM) if explained else _wait(window)
        return TopRank(
            rank=rank.number,
            incarnation=rank.incarnation,
            host=rank.main.host,
            steps=steps,
            seconds=length_ns / 1e9 if kept else None,
            age_s=_seconds(now_ns - kept[-1].end_ns) if kept else None,
            idle_s=_seconds(now_ns - loop.steps[-1].end_ns) if loop.steps else None,
            since=_since_last_step(window),
            data_wait=wait,
            file_groups=file_groups(wait, None, used_files(window))[0] if explained else [],
            processes=_processes(window, telemetry),
            gpus=[_gpu(device) for device in devices_of(telemetry, rank)] if telemetry is not None else [],
        )

    def _top(self, session: Session, windows: list[Window], ranks: list[TopRank], now_ns: int) -> Top:
        manifest = self.live.manifest
        state = session.state
        newest_ns = max((fresh.records_until_ns for fresh in self.live.fresh.values()), default=None)
        news_s = None if newest_ns is None else _seconds(now_ns - newest_ns)
        awaited = None if any(rank.steps.count for rank in ranks) else _awaited(session, windows)
        if awaited is not None and state == RUNNING:
            state = "awaiting"
        return Top(
            schema_version=SCHEMA_VERSION,
            time_s=time.time(),
            path=str(self.live.path),
            argv=manifest.argv,
            state=state,
            exit_code=session.exit_code,
            running_s=_seconds(now_ns - manifest.started_ns),
            awaited=awaited,
            news_s=news_s,
            window_steps=self._most,
            verdict=_verdict(ranks),
            ranks=ranks,
            hosts=_hosts(session),
            notes=_notes(session),
        )


def _seconds(length_ns: int) -> float:
    """In seconds; a host whose clock is ahead of this one's has news from the future."""
    return max(0.0, length_ns / 1e9)


def _fraction(window: Window) -> float:
    """The share of the window that is data wait; below 0 where that is unknown."""
    total_ns = sum(step.duration_ns for step in window.kept)
    if not total_ns:
        return -2.0
    return -1.0 if window.loop.unknown_why else sum(step.wait_ns for step in window.kept) / total_ns


def _with_earlier(window: Window, count: int) -> Sequence[Step]:
    """All steps from `count` before the window on."""
    steps = window.loop.steps
    begin_ns = window.kept[0].start_ns if window.kept else steps[-1].start_ns
    at = next(number for number, step in enumerate(steps) if step.start_ns >= begin_ns)
    return steps[max(0, at - count) :]


def _needed_since(window: Window, steps: Sequence[Step]) -> int:
    """When the first batch that `steps` await was begun."""
    inner = window.loop.thread.inner if window.loop.thread is not None else {}
    since_ns = steps[0].start_ns
    for awaited in (awaited for step in steps for awaited in step.awaited):
        for each in (awaited, *inner.get((awaited.loader, awaited.number), ())):
            since_ns = min(since_ns, each.wait_start_ns if each.taken_ns is None else each.taken_ns)
    return since_ns


def _wait(window: Window) -> DataWait:
    """How long a rank waits, without the causes."""
    fraction = _fraction(window)
    known = fraction >= 0
    raw_ns = sum(step.wait_ns for step in window.kept)
    return unknown(
        DataWait,
        raw_ms=raw_ns / len(window.kept) / 1e6 if known else None,
        raw_wait_fraction=fraction if known else None,
        verdict=verdict(fraction) if known else None,
        causes_ms={},
        by_loader=[],
        files=[],
        worst_batches=[],
    )


def _verdict(ranks: Sequence[TopRank]) -> TopVerdict | None:
    if not any(rank.steps.count for rank in ranks):
        return None
    reports = [
        unknown(
            RankReport,
            rank=rank.rank,
            steps=rank.steps,
            data_wait=rank.data_wait,
            loaders=[],
            file_groups=rank.file_groups,
        )
        for rank in ranks
        if rank.steps.count
    ]
    found = of_worst(reports)
    return TopVerdict(
        text=f"{BANNERS[found.kind]} {found.text}",
        why=found.why,
        rank=None if found.rank is None else found.rank.rank,
    )


def _since_last_step(window: Window) -> str | None:
    """Say what the loop has been given since the last step ended: batches of an evaluation, say."""
    steps = window.loop.steps
    if not steps:
        return None
    parts = []
    for loader in window.loaders:
        count = sum(each.delivered_ns > steps[-1].end_ns for each in loader.deliveries)
        if count:
            parts.append(
                f"{counted(count, 'batch', 'batches')} of {loader.description.dataset} ({loader.kind})"
            )
    return ", ".join(parts) or None


def _processes(window: Window, telemetry: Telemetry | None) -> list[TopProcess]:
    """The rank's processes that live."""
    found = []
    for process in window.rank.processes:
        if window.fresh[process.identity.node, process.pid].ended:
            continue
        sampled = telemetry.process_of(process) if telemetry is not None else None
        lives = sampled is not None and telemetry is not None and _lives(sampled, telemetry)
        if sampled is not None and len(sampled.samples) and not lives:
            continue
        found.append(
            TopProcess(
                pid=process.pid,
                role="main" if process is window.rank.main else f"worker {process.worker}",
                cpu_pct=_growth(sampled, "cpu_ns", 1e-7),
                rss_bytes=_last(sampled.series("rss_bytes")) if sampled is not None else None,
                read_bytes_per_s=_growth(sampled, "rchar"),
                storage_read_bytes_per_s=_growth(sampled, "read_bytes"),
                busy_fraction=_busy(process, window.kept),
            )
        )
    return found


def _lives(sampled: SampledProcess, telemetry: Telemetry) -> bool:
    times = sampled.samples["time_ns"]
    return bool(len(times)) and int(times[-1]) > telemetry.last_ns - _LATE_NS


def _growth(sampled: SampledProcess | None, field: str, scale: float = 1.0) -> float | None:
    """The growth of a counter per second, over the samples at hand."""
    series = sampled.series(field) if sampled is not None else None
    if series is None or len(series.time_ns) < 2:
        return None
    length_s = float(series.time_ns[-1] - series.time_ns[0]) / 1e9
    return scale * float(series.value[-1] - series.value[0]) / length_s if length_s > 0 else None


def _last(series: Series | None) -> int | None:
    return int(series.value[-1]) if series is not None and len(series.value) else None


def _busy(process: Process, kept: Sequence[Step]) -> float | None:
    """The share of the window, up to the worker's last batch, in which it made batches."""
    if not kept or process.worker is None:
        return None
    real = process.clock.to_session_ns
    made = [(real(each.taken_ns), real(each.prepared_ns)) for each in process.of_type(Produced)]
    begin_ns = kept[0].start_ns
    end_ns = min(kept[-1].end_ns, max((prepared_ns for _, prepared_ns in made), default=0))
    if end_ns <= begin_ns:
        return None
    inside = sum(max(0, min(end_ns, prepared) - max(begin_ns, taken)) for taken, prepared in made)
    return inside / (end_ns - begin_ns)


def _gpu(device: SampledDevice) -> TopGpu:
    util = device.series.get("util_pct")
    return TopGpu(
        index=device.about.index,
        name=device.about.name,
        util_pct=None if util is None or not len(util.value) else float(util.value[-10:].mean()),
        memory_bytes=_last(device.series.get("memory_bytes")),
        memory_total_bytes=device.about.memory_total_bytes,
    )


def _hosts(session: Session) -> list[TopHost]:
    found = {}
    for telemetry in session.telemetry:
        busy = telemetry.host.busy
        found[telemetry.sampler.host or telemetry.sampler.node] = TopHost(
            host=telemetry.sampler.host or telemetry.sampler.node,
            cpu_busy_fraction=None if len(busy) < 2 or np.isnan(busy[-1]).any() else float(busy[-1].mean()),
            memory_available_bytes=_last(telemetry.host.figures.get("memory_available_bytes")),
        )
    return list(found.values())


def _awaited(session: Session, ranks: Sequence[Window]) -> str:
    """Say what is missing before a step can be measured."""
    if not session.processes:
        return "the program's first Python process"
    begun = next((window for window in ranks if window.loop.steps), None)
    if begun is not None:
        left_out = begun.measured[1]
        if len(begun.loop.steps) > left_out.first + left_out.warmup + left_out.profiled:
            return "what the workers have not written yet of the batches of these steps"
        if left_out.profiled:
            return "a step that torch.profiler does not record: such steps are slower"
        return "a second step: the first one, and those that start workers, give no figures"
    if any(loader.deliveries for window in ranks for loader in window.loaders):
        return "the end of the first step"
    starts = [start for process in session.processes for start in process.of_type(IteratorStart)]
    if starts:
        workers = f", {counted(starts[-1].workers, 'worker')}" if starts[-1].workers else ""
        return f"the first batch of {starts[-1].dataset}{workers}"
    seen = counted(len(session.processes), "Python process", "Python processes")
    return f"the first batch or training step ({seen} started; imports may still run)"


def _notes(session: Session) -> list[str]:
    """What a reader has to know of the figures."""
    notes = []
    if any(process.of_type(OwnLog) for process in session.processes):
        notes.append("the program traces itself with dftracer: causes are unknown until the report")
    elif not session.posix_on:
        notes.append("POSIX calls are not traced: reading in the dataset's own code counts as transform")
    if not session.telemetry:
        notes.append("no telemetry: memory, CPU and devices are unknown")
    return notes
