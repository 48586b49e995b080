"""From a point's session to its figures."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from iotrace.analysis.loop.deliveries import Step
from iotrace.analysis.rank import SessionAnalysis
from iotrace.analysis.report import analyse
from iotrace.analysis.results import LoaderResult, RankReport
from iotrace.errors import IotraceError
from iotrace.sources.records import Ended
from iotrace.sources.session import open_session
from iotrace.sweeps.results import SweepRun

_BLOCKS = 10


def measure(run: SweepRun) -> SweepRun:
    """`run` with the figures of its session, or with the reason why there are none."""
    if run.exit_code:
        return msgspec.structs.replace(run, status="failed", reason=f"exit code {run.exit_code}")
    try:
        session = open_session(Path(run.session))
    except IotraceError as error:
        return msgspec.structs.replace(run, status="failed", reason=str(error))
    analysis = SessionAnalysis(session)
    report = analyse(analysis)
    trained = [
        (rank, found)
        for rank, found in zip(analysis.ranks, report.ranks, strict=True)
        if found.steps.count and _primary(found) is not None
    ]
    if not trained:
        return msgspec.structs.replace(
            run, status="no steps", reason="no DataLoader gave measured steps: train longer, or more --steps"
        )
    # Ranks run in step with each other: the one that waits longest for its data tells why.
    rank, slowest = max(trained, key=lambda pair: pair[1].data_wait.raw_wait_fraction or 0.0)
    wait, loader = slowest.data_wait, _primary(slowest)
    assert loader is not None
    steps = rank.kept
    status, reason = "ok", ""
    asked = run.params.get("workers")
    if run.kind != "ceiling" and asked is not None and loader.workers != int(asked):
        status = "not applied"
        reason = f"the training loader has {loader.workers} workers: use {{workers}} in the command"
    ended = any(process.of_type(Ended) for process in session.processes)
    costly = wait.files[0] if wait.files else None
    rss = [found.system.rss_peak_bytes for _, found in trained]
    cpu = [found.system.cpu_pct_mean for _, found in trained]
    samples = [found.steps.samples_per_second for _, found in trained]
    return msgspec.structs.replace(
        run,
        status=status,
        reason=reason,
        ended=ended,
        steps=slowest.steps.count,
        step_ms=slowest.steps.mean_ms,
        block_ms=_blocks(steps),
        samples_per_second=_sum(samples),
        compute_ms=sum(step.duration_ns - step.wait_ns for step in steps) / len(steps) / 1e6,
        production_ms=loader.production_ms,
        workers=loader.workers,
        raw_wait_fraction=wait.raw_wait_fraction,
        causes_ms=wait.causes_ms,
        costly_file=costly.path if costly else "",
        costly_file_ms=costly.ms if costly else None,
        cpu_pct_mean=_sum(cpu),
        rss_peak_bytes=None if None in rss else sum(value or 0 for value in rss),
    )


def _primary(rank: RankReport) -> LoaderResult | None:
    return next((loader for loader in rank.loaders if loader.primary and loader.kind == "training"), None)


def _sum(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _blocks(steps: list[Step]) -> list[float]:
    """The mean step time of ten blocks of consecutive steps: neighbours depend on each other, blocks less."""
    durations_ms = np.array([step.duration_ns for step in steps]) / 1e6
    return [float(block.mean()) for block in np.array_split(durations_ms, min(_BLOCKS, len(durations_ms)))]
