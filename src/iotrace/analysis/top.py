"""One look at a session that runs: its newest steps, their waits, its processes, hosts and devices.

What a rank's processes, its hosts and its devices do now: the newest samples.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from iotrace.analysis.host.forecasts import forecasts_of
from iotrace.analysis.host.system import devices_of
from iotrace.analysis.loop.measured import summarise
from iotrace.analysis.loop.step_table import Step, StepTable
from iotrace.analysis.pulse import Pulse, Pulses
from iotrace.analysis.results import DataWait, RankReport, System
from iotrace.analysis.results.top import (
    SCHEMA_VERSION,
    Top,
    TopGpu,
    TopHost,
    TopProcess,
    TopRank,
    TopVerdict,
)
from iotrace.analysis.storage.file_groups import file_groups, used_files
from iotrace.analysis.verdict.verdict import BANNERS
from iotrace.analysis.verdict.worst_rank import of_worst
from iotrace.analysis.wait.data_wait import data_wait, verdict
from iotrace.analysis.window import HOLD_NS, LONGEST_NS, Window
from iotrace.session import names
from iotrace.session.identity import boot_id
from iotrace.session.liveness import ENDED, KILLED, RUNNING
from iotrace.sources.live.session import LiveSession
from iotrace.sources.processes import Process
from iotrace.sources.records import IteratorStart, OwnLog
from iotrace.sources.session import Rank, Session
from iotrace.sources.telemetry import SampledDevice, SampledProcess, Series
from iotrace.units import counted

_LATE_NS = 5_000_000_000  # without a sample for so long, a process has gone


def processes_now(window: Window) -> list[TopProcess]:
    """The rank's processes that live."""
    telemetry = window.telemetry
    found = []
    for process in window.rank.processes:
        sampled = telemetry.process_of(process) if telemetry is not None else None
        gone = False
        if telemetry is not None and sampled is not None and len(sampled.samples):
            gone = int(sampled.samples["time_ns"][-1]) <= telemetry.last_ns - _LATE_NS
        if gone or window.fresh[process.identity.node, process.pid].ended:
            continue
        found.append(
            TopProcess(
                pid=process.pid,
                role="main" if process is window.rank.main else process.role,
                cpu_pct=_growth(sampled, "cpu_ns", 1e-7),
                rss_bytes=_last(sampled.series("rss_bytes")) if sampled is not None else None,
                read_bytes_per_s=_growth(sampled, "rchar"),
                storage_read_bytes_per_s=_growth(sampled, "read_bytes"),
                busy_fraction=_busy(process, window.kept),
            )
        )
    return found


def _growth(sampled: SampledProcess | None, field: str, scale: float = 1.0) -> float | None:
    """The growth of a counter per second, over the samples at hand."""
    series = sampled.series(field) if sampled is not None else None
    if series is None or len(series.time_ns) < 2:
        return None
    length_s = float(series.time_ns[-1] - series.time_ns[0]) / 1e9
    return scale * float(series.value[-1] - series.value[0]) / length_s if length_s > 0 else None


def _last(series: Series | None) -> int | None:
    return int(series.value[-1]) if series is not None and len(series.value) else None


def _busy(process: Process, kept: StepTable) -> float | None:
    """The share of the window, up to the worker's last batch, in which it made batches."""
    if not len(kept) or process.worker is None:
        return None
    made = process.rows(names.PRODUCED_ROW)
    taken, prepared = (process.clock.times_to_session_ns(made[at]) for at in ("taken_ns", "prepared_ns"))
    begin_ns = kept[0].start_ns
    end_ns = min(kept[-1].end_ns, int(prepared.max(initial=0)))
    if end_ns <= begin_ns:
        return None
    inside = np.maximum(np.minimum(end_ns, prepared) - np.maximum(begin_ns, taken), 0)
    return int(inside.sum()) / (end_ns - begin_ns)


def gpus_now(window: Window) -> list[TopGpu]:
    """The devices that the rank uses."""
    telemetry = window.telemetry
    return [_gpu(device) for device in devices_of(telemetry, window.rank)] if telemetry is not None else []


def _gpu(device: SampledDevice) -> TopGpu:
    util = device.series.get("util_pct")
    return TopGpu(
        index=device.about.index,
        name=device.about.name,
        util_pct=None if util is None or not len(util.value) else float(util.value[-10:].mean()),
        memory_bytes=_last(device.series.get("memory_bytes")),
        memory_total_bytes=device.about.memory_total_bytes,
    )


def hosts_now(session: Session) -> list[TopHost]:
    found = {}
    for telemetry in session.telemetry:
        busy = telemetry.host.busy
        found[telemetry.sampler.host or telemetry.sampler.node] = TopHost(
            host=telemetry.sampler.host or telemetry.sampler.node,
            cpu_busy_fraction=None if len(busy) < 2 or np.isnan(busy[-1]).any() else float(busy[-1].mean()),
            memory_available_bytes=_last(telemetry.host.figures.get("memory_available_bytes")),
        )
    return list(found.values())


DEFAULT_STEPS = 50
_MARGIN = 10  # steps before the window that are kept in memory
_IDLE_NS = 300_000_000_000  # of a rank without steps, what is older is given up
_SYSTEM = System()


class Watch:
    """Looks at the session again and again; each look takes the newest `most` steps of each rank."""

    def __init__(self, live: LiveSession, most: int = DEFAULT_STEPS) -> None:
        self.live = live
        self._most = most
        # By host and pid of a rank: the first step of the run; since when its workers' records are needed.
        self._first: dict[tuple[str, int], Step] = {}
        self._since_ns: dict[tuple[str, int], int] = {}
        self._boot = boot_id()
        self._pulses = Pulses(live, self._boot)
        self._session: Session | None = None
        self.windows: list[Window] = []
        self._ended = False

    def pulse(self) -> Pulse:
        """Say what the ranks of the last look did since, second by second; costs a tenth of a look."""
        now_ns = time.time_ns() if self._session is None else self._now_ns(self._session)
        return self._pulses.pulse(self.windows, now_ns)

    def may_have_ended(self) -> bool:
        """Whether the launcher has written an end since this was asked last."""
        before, self._ended = self._ended, (self.live.path / names.OUTCOME).exists()
        return self._ended and not before

    def look(self) -> Top:
        """Read what the session's files grew by, and sum up."""
        session = self.live.poll()
        last = max((rank.incarnation for rank in session.ranks), default=0)
        ranks = [rank for rank in session.ranks if rank.incarnation == last]
        windows = [self._window(session, rank) for rank in ranks]
        worst = max(range(len(windows)), key=lambda number: _fraction(windows[number])) if ranks[1:] else 0
        if ranks:
            own = windows[worst]
            # Of a rank that hangs the newest step is old, its newest record is not.
            newest_ns = own.loop.steps[-1].end_ns if len(own.loop.steps) else own.newest_ns
            since_ns = max(self._since_ns.get(own.key, 0), newest_ns - LONGEST_NS - HOLD_NS)
            windows[worst] = self._window(*self.live.with_details(session, ranks[worst], since_ns))
        now_ns = self._now_ns(session)
        found = [self._rank(window, number == worst, now_ns) for number, window in enumerate(windows)]
        self._forget(session, windows)
        self.windows, self._session = windows, session
        return self._top(session, windows, found, now_ns)

    def _window(self, session: Session, rank: Rank) -> Window:
        key = rank.main.identity.node, rank.main.pid
        return Window(session, rank, most=self._most, first=self._first.get(key), fresh=dict(self.live.fresh))

    def _forget(self, session: Session, windows: list[Window]) -> None:
        old = []
        for window in windows:
            if window.main_fresh.whole and len(window.loop.steps):
                self._first[window.key] = window.loop.steps[0]
            own_ns, self._since_ns[window.key] = self._old(window)
            old.append((window.rank, own_ns, self._since_ns[window.key]))
        self.live.forget(session.clocks, old)

    def _old(self, window: Window) -> tuple[int, int]:
        """Find before when records are needed no more: those of the training process, those of the others."""
        steps = window.loop.steps
        if not len(steps):
            return 0, window.newest_ns - _IDLE_NS
        needed = _with_earlier(window, _MARGIN)
        own_ns = 0 if len(needed) == len(steps) else needed[0].start_ns
        return own_ns, _needed_since(window, needed)

    def _now_ns(self, session: Session) -> int:
        """The session's time now: by CLOCK_MONOTONIC where that is the session's, else CLOCK_REALTIME."""
        here = next((each for each in session.processes if each.identity.boot_id == self._boot), None)
        if here is None or not self._boot:
            return time.time_ns()
        return here.clock.to_session_ns(time.monotonic_ns())

    def _rank(self, window: Window, explained: bool, now_ns: int) -> TopRank:
        kept, rank, loop = window.kept, window.rank, window.loop
        length_ns = kept[-1].end_ns - kept[0].start_ns if len(kept) else 0
        steps = summarise(
            kept.duration_ns,
            kept["samples"],
            window.measured[1],
            None,
            _why_unknown(window),
        )
        wait = data_wait(window, _SYSTEM) if explained else _wait(window)
        return TopRank(
            rank=rank.number,
            incarnation=rank.incarnation,
            host=rank.main.host,
            steps=steps,
            seconds=length_ns / 1e9 if len(kept) else None,
            age_s=_seconds(now_ns - kept[-1].end_ns) if len(kept) else None,
            idle_s=_seconds(now_ns - loop.steps[-1].end_ns) if len(loop.steps) else None,
            since=_since_last_step(window),
            data_wait=wait,
            file_groups=file_groups(wait, None, used_files(window))[0] if explained else [],
            processes=processes_now(window),
            gpus=gpus_now(window),
            last_steps_ms=_each_ms(kept.duration_ns) if explained else [],
            last_waits_ms=_each_ms(kept.wait_ns) if explained and not loop.unknown_why else [],
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
            hosts=hosts_now(session),
            notes=_notes(session, self.live.calls_elsewhere),
            forecasts=[] if state in (ENDED, KILLED) else forecasts_of(session),
        )


def _each_ms(lengths_ns: npt.NDArray[np.int64]) -> list[float]:
    return [round(length_ns / 1e6, 3) for length_ns in lengths_ns.tolist()]


def _why_unknown(window: Window) -> str:
    why = window.loop.unknown_why  # may hold counts: of what is kept, not of the run
    return why if window.main_fresh.whole or not why else f"lately, {why}"


def _seconds(length_ns: int) -> float:
    """In seconds; a host whose clock is ahead of this one's has news from the future."""
    return max(0.0, length_ns / 1e9)


def _fraction(window: Window) -> float:
    """The share of the window that is data wait; below 0 where that is unknown."""
    total_ns = int(window.kept.duration_ns.sum())
    if not total_ns:
        return -2.0
    return -1.0 if window.loop.unknown_why else int(window.kept.wait_ns.sum()) / total_ns


def _with_earlier(window: Window, count: int) -> StepTable:
    """All steps from `count` before the window on."""
    steps = window.loop.steps
    begin_ns = window.kept[0].start_ns if len(window.kept) else steps[-1].start_ns
    at = int(np.searchsorted(steps["start_ns"], begin_ns))
    return steps[max(0, at - count) :]


def _needed_since(window: Window, steps: StepTable) -> int:
    """When the first batch that `steps` await was begun."""
    batches = window.with_inner(steps.awaited)
    begun = np.where(batches.known("taken_ns"), batches["taken_ns"], batches["wait_start_ns"])
    return int(begun.min(initial=steps[0].start_ns))


def _wait(window: Window) -> DataWait:
    """How long a rank waits, without the causes."""
    fraction = _fraction(window)
    known = fraction >= 0
    raw_ns = int(window.kept.wait_ns.sum())
    return DataWait(
        raw_ms=raw_ns / len(window.kept) / 1e6 if known else None,
        raw_wait_fraction=fraction if known else None,
        verdict=verdict(fraction) if known else None,
    )


def _verdict(ranks: Sequence[TopRank]) -> TopVerdict | None:
    if not any(rank.steps.count for rank in ranks):
        return None
    reports = [
        RankReport(rank=rank.rank, steps=rank.steps, data_wait=rank.data_wait, file_groups=rank.file_groups)
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
    if not len(steps):
        return None
    parts = [
        f"{counted(count, 'batch', 'batches')} of {loader.description.named} ({loader.kind})"
        for loader in window.loaders
        if (count := int((loader.deliveries["delivered_ns"] > steps[-1].end_ns).sum()))
    ]
    return ", ".join(parts) or None


def _awaited(session: Session, ranks: Sequence[Window]) -> str:
    """Say what is missing before a step can be measured."""
    if not session.processes:
        return "the program's first Python process"
    begun = next((window for window in ranks if len(window.loop.steps)), None)
    if begun is not None:
        left_out = begun.measured[1]
        if len(begun.loop.steps) > left_out.first + left_out.warmup + left_out.profiled:
            return "what the workers have not written yet of the batches of these steps"
        if left_out.profiled:
            return "a step that torch.profiler does not record: such steps are slower"
        return "a second step: the first one, and those that start workers, give no figures"
    if any(len(loader.deliveries) for window in ranks for loader in window.loaders):
        return "the end of the first step"
    starts = [start for process in session.processes for start in process.of_type(IteratorStart)]
    if starts:
        workers = f", {counted(starts[-1].workers, 'worker')}" if starts[-1].workers else ""
        return f"the first batch of {starts[-1].named}{workers}"
    seen = counted(len(session.processes), "Python process", "Python processes")
    return f"the first batch or training step ({seen} started; imports may still run)"


def _notes(session: Session, calls_elsewhere: bool) -> list[str]:
    """What a reader has to know of the figures."""
    notes = []
    if session.posix_by == names.DFTRACER and any(process.of_type(OwnLog) for process in session.processes):
        notes.append("the program traces itself with dftracer: causes are unknown until the report")
    elif calls_elsewhere:
        notes.append("POSIX calls are on a disk of the command's host: causes are unknown here until it ends")
    elif not session.posix_on:
        notes.append("POSIX calls are not traced: reading in the dataset's own code counts as transform")
    if not session.telemetry:
        notes.append("no telemetry: memory, CPU and devices are unknown")
    return notes
