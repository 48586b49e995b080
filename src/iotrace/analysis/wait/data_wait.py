"""A rank's data wait: how long, why, for which files, which batches, and whether workers are too few."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from iotrace.analysis.device.compute import exposed_by_kernels
from iotrace.analysis.intervals import Times, grouped
from iotrace.analysis.loop.loaders import delay_ms, production_ms, ready_batches
from iotrace.analysis.loop.step_table import StepTable
from iotrace.analysis.resampling import interval_of, resampled_means
from iotrace.analysis.results import (
    DataWait,
    FileCost,
    LoaderWait,
    ProcessUse,
    System,
    WorstBatch,
)
from iotrace.analysis.table import NONE

if TYPE_CHECKING:  # a report of bare traces has no ranks
    from iotrace.analysis.rank import RankAnalysis
    from iotrace.analysis.wait.file_costs import FileCosts
    from iotrace.analysis.wait.waits import Waits

# XProf's bounds of the share of a step that waits for input.
MODERATELY_PERCENT, HIGHLY_PERCENT = 5.0, 20.0
HIGHLY = "highly input-bound"  # the worst of the three verdicts over a wait
KEPT_UP_PERCENT = 10.0
_MOSTLY = 0.5  # of a wait
_WORST_BATCHES = 5
_MOST_OF_WAIT = 0.9
# Of the wait: with less of it for batches that were not made yet, workers are not what is missing.
UNMADE = 0.25
_BUSY = 0.9  # of the cores: what is left is no core for another process
_HELD_BACK = 0.1  # of the CPU quota's periods: below, bursts alone use it up


def data_wait(analysis: RankAnalysis, system: System) -> DataWait:
    """Sum up the data wait of the measured steps; all None or empty without any."""
    from iotrace.analysis.wait.waits import behind_ready_ns

    source, kept = analysis.source, analysis.kept
    total_ns = int(kept.duration_ns.sum())
    if source is None or not total_ns or analysis.loop.unknown_why:
        return DataWait()
    waits = analysis.measured_waits
    raw_ns = int(kept.wait_ns.sum())
    by_kernels = exposed_by_kernels(analysis.compute, analysis.loop.steps)
    exposed = exposed_wait(kept, bool(analysis.session.accelerators), by_kernels)
    judged = raw_ns / total_ns if exposed.fraction is None else exposed.fraction
    causes_ms = means_ms(waits, len(kept))
    long_waits = _long_waits(kept)
    handing_over = causes_ms["transport"] / (raw_ns / len(kept) / 1e6) if raw_ns else 0.0
    return DataWait(
        raw_ms=raw_ns / len(kept) / 1e6,
        exposed_ms=exposed.ms,
        exposed_source=exposed.source,
        exposed_steps=exposed.steps,
        raw_wait_fraction=raw_ns / total_ns,
        raw_wait_fraction_ci95=_fraction_ci95(_timed(kept.wait_ns, kept)),
        stall_fraction=exposed.fraction,
        stall_fraction_ci95=_fraction_ci95(exposed.timed),
        verdict=verdict(judged, ready_batches(source).in_turn, handing_over),
        causes_ms=causes_ms,
        by_loader=_by_loader(waits, len(kept)),
        too_few_workers=_too_few_workers(analysis, judged, system),
        behind_ready_ms=behind_ready_ns(source.deliveries, analysis.source_waits) / len(kept) / 1e6,
        files=file_costs(waits.files, len(kept)),
        worst_batches=_worst(waits),
        long_wait_steps=long_waits[0],
        long_wait_first=long_waits[1],
        sending_locked_ms=_sending_locked_ms(analysis),
    )


def _sending_locked_ms(analysis: RankAnalysis) -> float | None:
    from iotrace.analysis.wait.sending import locked_ns
    from iotrace.analysis.wait.waits import split_waits

    own = analysis.measured_waits.deliveries
    found = locked_ns(own, split_waits(own)[3], analysis.rank.workers)
    return None if found is None else found / len(analysis.kept) / 1e6


def bound_fraction(wait: DataWait) -> float | None:
    """Return the share of a step that a verdict judges; None where no wait was seen.

    It is the accelerator's wait where that is known: a loop may wait for data while the device works off
    what it launched before, and then no loader makes it faster.
    """
    return wait.raw_wait_fraction if wait.stall_fraction is None else wait.stall_fraction


def is_of_the_loader(
    wait_percent: float, handing_over: float, ready: float | None, *, others_may_make_it: bool
) -> bool:
    """Whether a wait, of so much of a step, is worth a word, where so many batches lie ready.

    To take one that is ready takes a moment, too: where the loop finds one each time, a wait below 10 % is
    no loader's fault. Nor is the part for `handing_over` (a share), up to 20 % of a step: the loop takes what
    lies ready. Where others took CPUs and may have made it, a wait up to 20 % that is mostly handing over is
    none, and of another one that part: the loop may have waited for a CPU.
    """
    if (ready or 0.0) < 1:
        return wait_percent >= MODERATELY_PERCENT
    is_long = wait_percent > HIGHLY_PERCENT
    if is_long and not others_may_make_it:
        return True
    if others_may_make_it and not is_long and handing_over >= _MOSTLY:
        return False
    return (1 - handing_over) * wait_percent >= KEPT_UP_PERCENT


# What is left may be quicker by so much once others compute less: CPUs share caches, memory and clocks, and
# perhaps a core each two.
QUICKER, QUICKER_ON_SHARED_CORES = 0.25, 0.5


def quicker_by(shared_cores: bool | None) -> float:
    """Return by what share computing may get quicker at most once other CPUs have less to do."""
    return QUICKER if shared_cores is False else QUICKER_ON_SHARED_CORES


def device_waits(wait: DataWait) -> bool:
    """Whether `bound_fraction` is the accelerator's, not the loop's."""
    return wait.stall_fraction is not None and wait.exposed_source != "cpu"


def means_ms(waits: Waits, steps: int) -> dict[str, float]:
    """Return what the causes of these waits cost a step."""
    from iotrace.analysis.wait.waits import CAUSES

    return {
        cause: int(whole) / steps / 1e6 for cause, whole in zip(CAUSES, waits.causes.sum(axis=0), strict=True)
    }


def _timed(waits_ns: Times, steps: StepTable) -> Times:
    return np.stack((waits_ns, steps.duration_ns), axis=1)


def _fraction_ci95(timed: Times) -> list[float] | None:
    """Return the 95 % interval of the waits' share: waits and lengths of steps are drawn together."""
    if not len(timed):
        return None
    means = resampled_means(timed.astype(np.float64))
    if means is None or means[:, 1].min() <= 0:
        return None
    return list(interval_of(np.clip(means[:, 0] / means[:, 1], 0.0, 1.0)))


def _by_loader(waits: Waits, steps: int) -> list[LoaderWait]:
    loaders, _, of = grouped(waits.deliveries["loader"])
    totals_ns = np.zeros(len(loaders), np.int64)
    np.add.at(totals_ns, of, waits.deliveries.wait_ns)
    return [
        LoaderWait(loader=loader, raw_ms=total_ns / steps / 1e6)
        for loader, total_ns in zip(loaders.tolist(), totals_ns.tolist(), strict=True)
    ]


_IS_WORK = 0.05  # of handing over: what it takes at the least tells that it is that


def taking_is_work_of(handing_ms: float, least_ms: float | None) -> bool:
    """Whether the loop works as it takes batches, for `least_ms` at the least: no want of a CPU."""
    return least_ms is not None and 0 < _IS_WORK * handing_ms <= least_ms


def taking_is_work(wait: DataWait) -> bool:
    """Whether that is how the loop takes what lies ready."""
    return taking_is_work_of(wait.causes_ms.get("transport", 0.0), wait.taking_least_ms)


def handed_over(wait: DataWait) -> float:
    """The share of a wait in which the loop takes what lies ready; none of it where it makes that anew."""
    if not wait.raw_ms or taking_is_work(wait):
        return 0.0
    return wait.causes_ms.get("transport", 0.0) / wait.raw_ms


def verdict(
    wait_fraction: float,
    ready: float | None = None,
    handing_over: float = 0.0,
    *,
    others_may_make_it: bool = False,
) -> str:
    """Name, in XProf's words, the share of the step that waits for input: below 5 %, to 20 %, above.

    Where a batch or more lay `ready`, the first bound is that of `is_of_the_loader`.
    """
    percent = 100 * wait_fraction
    if not is_of_the_loader(percent, handing_over, ready, others_may_make_it=others_may_make_it):
        return "not input-bound"
    return "moderately input-bound" if percent <= HIGHLY_PERCENT else HIGHLY


NO_STEPS = np.empty((0, 2), np.int64)


class ExposedWait(msgspec.Struct, frozen=True):
    """Mean per step in ms, share of the step, how it is known, of how many steps; None: unknown.

    `timed` has a row of exposed wait and length for each of those steps.
    """

    ms: float | None = None
    fraction: float | None = None
    source: str | None = None
    steps: int | None = None
    timed: Times = NO_STEPS


def exposed_wait(
    kept: StepTable, accelerated: bool, by_kernels: Sequence[tuple[int, int]] = ()
) -> ExposedWait:
    """Find the part of the data wait in which the accelerator had nothing to do; all of it without one.

    With an accelerator it is known by the events of every step, else by the gaps between kernels:
    `by_kernels` has (exposed wait, length) of the steps inside a trace, which `kept` leaves out.
    """
    if not accelerated:
        return _mean(_timed(kept.wait_ns, kept), "cpu")
    # An epoch's last step awaits nothing: on its own it says nothing of the device.
    exposed_ns = kept.exposed_ns
    known = exposed_ns != NONE
    if (known & (kept["first"] < kept["behind"])).any():
        return _mean(_timed(exposed_ns, kept)[known], "cuda_events")
    return _mean(np.array(by_kernels, np.int64), "kernels") if by_kernels else ExposedWait()


def _mean(timed: Times, source: str) -> ExposedWait:
    exposed_ns, duration_ns = timed.sum(axis=0).tolist()
    return ExposedWait(exposed_ns / len(timed) / 1e6, exposed_ns / duration_ns, source, len(timed), timed)


def _too_few_workers(analysis: RankAnalysis, fraction: float, system: System) -> bool | None:
    """Find more production than workers manage within the compute time, waited for, and a spare core."""
    source, kept = analysis.source, analysis.kept
    if source is None or source.description.wrapped:
        return None  # who makes its batches, and with how many hands, is not known
    core_is_free = core_free(analysis, system)
    if 100 * fraction < MODERATELY_PERCENT:
        return False
    if unmade_fraction(analysis.measured_waits) < UNMADE or core_is_free is False:
        return False
    made_in_ms = production_ms(source.deliveries)
    if made_in_ms is None or core_is_free is None:
        return None
    compute_ms = (1 - fraction) * int(kept.duration_ns.sum()) / len(kept) / 1e6
    workers = source.description.workers
    return workers == 0 or made_in_ms / workers > compute_ms


def bound_together(processes: list[ProcessUse]) -> tuple[list[int], list[ProcessUse]] | None:
    """Find the CPUs that more processes share than there are CPUs, and these processes.

    The set that most workers are bound to; the training process is counted where it may use the same alone.
    """
    workers = [each for each in processes if each.cpus and each.role != "main"]
    if not workers:
        return None
    cpus, _ = Counter(tuple(each.cpus or ()) for each in workers).most_common(1)[0]
    sharing = [each for each in processes if each.cpus and tuple(each.cpus) == cpus]
    return ([*cpus], sharing) if len(sharing) > len(cpus) else None


def core_free(analysis: RankAnalysis, system: System) -> bool | None:
    """Say whether the cores were not all busy while the job ran; None where that is not known.

    Workers that sleep in reads need none: their number says nothing of it. Where they share fewer CPUs than
    the job has, how busy all of these were says nothing, either.
    """
    bound = bound_together(system.processes)
    if bound is not None and set(system.cpus_usable or []) > set(bound[0]):
        return None
    host = system.host
    busy = host.cpu_busy_fraction if host is not None else None
    if busy is None and system.cpu_pct_mean is not None:
        busy = system.cpu_pct_mean / 100 / analysis.session.manifest.cpus
    return has_core(busy, host.cpu_throttled_fraction if host is not None else None)


def has_core(busy_fraction: float | None, throttled_fraction: float | None) -> bool | None:
    """Judge by how busy the cores were, and in how many of its periods the CPU quota held the job back."""
    if throttled_fraction is not None and throttled_fraction >= _HELD_BACK:
        return False
    return None if busy_fraction is None else busy_fraction < _BUSY


def unmade_fraction(waits: Waits) -> float:
    """Find the share of the waits that more workers shorten: batches were not made, workers were up."""
    total_ns = int(waits.deliveries.wait_ns.sum())
    other_ns = int(sum(waits.of_cause(cause).sum() for cause in ("startup", "sampling", "transport")))
    return 1 - other_ns / total_ns if total_ns else 0.0


def file_costs(files: FileCosts, steps: int) -> list[FileCost]:
    """What files cost a step, costliest first."""
    costs = [
        FileCost(
            path=path,
            ms=(read + decode) / steps / 1e6,
            read_ms=read / steps / 1e6,
            decode_ms=decode / steps / 1e6,
            transform_ms=transform / steps / 1e6,
        )
        for path, (read, decode, transform) in files.totals().items()
        if read + decode + transform > 0
    ]
    return sorted(costs, key=lambda cost: -cost.ms)


def _long_waits(kept: StepTable) -> tuple[int | None, int | None]:
    """Count the fewest steps that hold most of the wait, and those of them that begin a pass."""
    wait_ns, total_ns = kept.wait_ns, int(kept.wait_ns.sum())
    if not total_ns:
        return None, None
    longest = np.argsort(-wait_ns, kind="stable")
    count = int(np.searchsorted(np.cumsum(wait_ns[longest]), _MOST_OF_WAIT * total_ns)) + 1
    first = kept.summed(kept.awaited["index"] == 0)[longest[:count]]
    return count, int((first > 0).sum())


def _worst(waits: Waits) -> list[WorstBatch]:
    worst = waits[np.argsort(-waits.deliveries.wait_ns, kind="stable")[:_WORST_BATCHES]]
    return [
        WorstBatch(
            batch=item.delivery.index,
            epoch=item.delivery.epoch,
            wait_ms=item.delivery.wait_ns / 1e6,
            delay_ms=delay_ms(item.delivery),
            worker=item.delivery.worker,
            pid=item.delivery.pid,
            cause=item.cause,
            files=[path for path, _ in sorted(item.files.items(), key=lambda pair: -sum(pair[1]))[:3]],
        )
        for item in worst
    ]
