"""What a measured run says of settings that were not run: its recorded batches, replayed with other ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from msgspec.structs import asdict, replace

from iotrace.analysis.gain.gain import persistent
from iotrace.analysis.gain.pipeline import Pipeline, replay
from iotrace.analysis.gain.recorded import Withheld, recorded
from iotrace.analysis.rank import SessionAnalysis
from iotrace.analysis.report import analyse
from iotrace.errors import IotraceError
from iotrace.sources.session import open_session
from iotrace.sweeps.grid import IN_ORDER, PERSISTENT, PREFETCH, WORKERS
from iotrace.sweeps.results import Origin, SweepRun

_FIRST = 2  # batches that start the queue, and are no measure


class Seen(Origin, frozen=True, kw_only=True):
    """What the session of a run says of the loop's loader; sizes in bytes, None where unknown.

    `pipeline` is None where its batches cannot be replayed, `why` then says it. `ranks` run on the host
    at the same time. `cv2_threads` belongs to a process that makes samples, `torch_threads` to the trainer.
    """

    step_ms: float
    pipeline: Pipeline | None = None
    why: str = ""
    epochs: int = 1
    iterable: bool | None = None
    accelerated: bool = False
    batch_bytes: float | None = None
    worker_bytes: int | None = None
    transport_share: float = 0.0
    ranks: int = 1
    cv2_threads: int = 0
    torch_threads: int | None = None


Look = Callable[[SweepRun], Seen | None]


def look(run: SweepRun) -> Seen | None:
    """Read the session of `run`; None where it has no loop over a loader."""
    try:
        analysis = SessionAnalysis(open_session(Path(run.session)))
    except IotraceError:
        return None
    report = analyse(analysis)
    pairs = [pair for pair in zip(analysis.ranks, report.ranks, strict=True) if pair[0].source is not None]
    if not pairs or run.step_ms is None:
        return None
    # Ranks run in step: the one that waits longest holds the others up.
    rank, rank_report = max(pairs, key=lambda pair: pair[1].data_wait.raw_ms or 0.0)
    source = rank.source
    assert source is not None
    about, pipeline, why = source.description, None, ""
    try:
        pipeline = recorded(rank, rank_report.system).pipeline
    except Withheld as reason:
        why = str(reason)
    sizes = source.deliveries["size_bytes"][source.deliveries.known("size_bytes")]
    makers = {process.pid for process in rank.rank.workers}
    rss = [
        use.rss_peak_bytes for use in rank_report.system.processes if use.pid in makers and use.rss_peak_bytes
    ]
    return Seen(
        step_ms=run.step_ms,
        **asdict(run.origin or Origin()),
        pipeline=pipeline,
        why=why,
        epochs=source.epochs,
        iterable=about.iterable,
        accelerated=rank_report.data_wait.exposed_source in ("cuda_events", "kernels"),
        batch_bytes=float(np.mean(sizes)) if len(sizes) else None,
        worker_bytes=max(rss, default=None),
        transport_share=(rank_report.data_wait.causes_ms.get("transport", 0.0)) / run.step_ms,
        ranks=sum(each.rank.main.identity.node == rank.rank.main.identity.node for each, _ in pairs),
        torch_threads=next((use.library_threads.get("torch") for use in rank_report.system.processes), None),
        cv2_threads=max(
            (use.library_threads.get("cv2", 0) for use in rank_report.system.processes), default=0
        ),
    )


def _cycle_ns(pipeline: Pipeline) -> float:
    delivered = replay(pipeline).delivered_ns
    return float(np.diff(delivered)[_FIRST:].mean()) if len(delivered) > _FIRST + 1 else math.nan


def with_settings(pipeline: Pipeline, params: Mapping[str, str]) -> Pipeline:
    """Return the pipeline as it would be with `params`; what is not modelled stays."""
    changed = pipeline
    if WORKERS in params:
        changed = replace(changed, workers=int(params[WORKERS]))
    if PREFETCH in params:
        changed = replace(changed, prefetch=int(params[PREFETCH]))
    if IN_ORDER in params:
        changed = replace(changed, in_order=params[IN_ORDER] == "True")
    return persistent(changed) if params.get(PERSISTENT) == "True" else changed


class Predictor:
    """Predicts from the measured run with the nearest number of workers, corrected by the other runs."""

    def __init__(self, seen: Sequence[Seen]) -> None:
        self._usable = [each for each in seen if each.pipeline is not None]

    @property
    def counts(self) -> set[int]:
        """The numbers of workers that were measured."""
        return {_workers(each.settings) for each in self._usable}

    def step_ms(self, params: Mapping[str, str]) -> float | None:
        """The step with `params`, ms; None where no run can be replayed."""
        if not self._usable:
            return None
        wanted = int(params.get(WORKERS, _workers(self._usable[0].settings)))
        base = min(self._usable, key=lambda each: (_apart(wanted, _workers(each.settings)), each.step_ms))
        return self._from(base, params) * self._correction(base, wanted)

    def _from(self, base: Seen, params: Mapping[str, str]) -> float:
        assert base.pipeline is not None
        changed = _cycle_ns(with_settings(base.pipeline, params))
        return base.step_ms * changed / _cycle_ns(base.pipeline)

    def _correction(self, base: Seen, wanted: int) -> float:
        """How much slower runs with other numbers of workers were than `base` predicts, up to `wanted`."""
        own = _workers(base.settings)
        if wanted == own:
            return 1.0
        corrections = []
        for other in self._usable:
            there = _workers(other.settings)
            if there == own or (there > own) != (wanted > own):
                continue
            missed = other.step_ms / self._from(base, other.settings)
            corrections.append((missed, min(2.0, _apart(wanted, own) / _apart(there, own))))
        if not corrections:  # what was learnt on the other side says how workers hold each other up
            return 1.0
        missed, reach = corrections[0]
        return float(missed**reach)


def _workers(settings: Mapping[str, str]) -> int:
    return int(settings.get(WORKERS, 0))


def _apart(workers: int, other: int) -> float:
    return abs(math.log((workers + 0.5) / (other + 0.5)))
