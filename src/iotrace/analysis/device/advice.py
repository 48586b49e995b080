"""What to change so that the device waits less, from a trace alone. A rule that may be wrong stays silent."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec
import numpy as np

from iotrace.analysis.device.activity import Activity
from iotrace.analysis.device.gaps import CLASSES, classify, gaps_of
from iotrace.analysis.device.modules import program_lines, rows_around
from iotrace.analysis.intervals import Coverage, innermost, union
from iotrace.analysis.results import Accelerator, DataWait, Recommendation
from iotrace.analysis.wait.data_wait import MODERATELY_PERCENT, bound_fraction
from iotrace.sources.kineto.kinds import Kind, is_data_wait
from iotrace.sources.kineto.trace import Column, KinetoTrace
from iotrace.units import counted, percent

# Shares of the device's time from which a rule speaks (docs/definitions.md has the reasons).
_COPIES, _SYNCHRONISED, _LATE, _EXPOSED, _ALLOCATED, _SINGLE = 0.05, 0.05, 0.2, 0.1, 0.05, 0.2
_SHORT_US = 20.0  # a kernel that takes no longer than to launch a few
_MANY = 50  # kernels a step
_SYNCHRONISES = re.compile(r"(?:cuda|hip)(?:Stream|Device|Event|Ctx)Synchronize|cuCtxSynchronize")
_ALLOCATES = re.compile(r"(?:cuda|hip)(?:Malloc|Free)$")
_OVERLAPS = ("all_reduce", "reduce_scatter", "all_gather")
# Where the peaks are not known: an A100 does 312 TFLOP/s of bfloat16 and 19.5 of single precision.
_SAVED = 15 / 16
_FIRST_WITH_TF32 = 8  # major compute capability
_WITHOUT_WORKERS = "_SingleProcessDataLoaderIter"  # torch's name of what delivers such batches
_HIGH, _MEDIUM = "high", "medium"


class Facts(msgspec.Struct, frozen=True):
    """A trace of `rank`, what its device did, its steps, and when the loop waited for data."""

    rank: int
    activity: Activity
    found: Accelerator
    starts_ns: Column
    ends_ns: Column
    waits: Coverage

    @property
    def steps(self) -> int:
        return max(1, len(self.starts_ns))


def workers_advice(trace: KinetoTrace, wait: DataWait) -> list[Recommendation]:
    """Advise workers where the trace shows that the loop waits for a DataLoader without any."""
    if wait.raw_ms is None or 100 * (bound_fraction(wait) or 0.0) < MODERATELY_PERCENT:
        return []
    loaders = [name for name in trace.names if is_data_wait(name)]
    if not loaders or not all(_WITHOUT_WORKERS in name for name in loaders):
        return []
    return [
        Recommendation(
            id="no-workers",
            severity="high",
            text=f"the loop waits {wait.raw_ms:.1f} ms a step for a DataLoader without workers: give it some",
            evidence={"raw_ms": wait.raw_ms},
            gain_ms_per_step=wait.raw_ms if wait.exposed_ms is None else wait.exposed_ms,
            remedy="DataLoader(num_workers=2) or more: it has none",
            fix="no-workers",
            rank=0,
        )
    ]


def device_advice(facts: Facts) -> list[Recommendation]:
    """Advise on what costs the device time, what saves most first."""
    rules = (_pageable, _copies, _synchronises, _exposed, _allocates, _tensor_cores)
    found = [item for rule in rules for item in rule(facts)]
    return sorted(found, key=lambda item: -(item.gain_ms_per_step or 0.0))


def _item(
    facts: Facts, name: str, text: str, remedy: str, cost_us: float, **evidence: float
) -> Recommendation:
    gain_ms = cost_us / 1e3 / facts.steps
    return Recommendation(
        id=name,
        severity=_HIGH if cost_us >= 0.2 * facts.found.span_us else _MEDIUM,
        text=f"{text}: {remedy}",
        evidence={"ms_per_step": gain_ms, **evidence},
        gain_ms_per_step=gain_ms,
        remedy=remedy,
        fix=name,
        rank=facts.rank,
    )


def _to_device(facts: Facts, pinned: bool) -> tuple[float, int]:
    """Sum what copies to the device took while no kernel computed, in us, and count them."""
    own = [one for one in facts.found.memory_operations if one.direction == "HtoD" and one.pinned is pinned]
    return sum(one.total_us - one.overlapped_us for one in own), sum(one.calls for one in own)


def _pageable(facts: Facts) -> Iterator[Recommendation]:
    cost_us, calls = _to_device(facts, pinned=False)
    if cost_us >= _COPIES * facts.found.span_us:
        text = f"{counted(calls, 'copy', 'copies')} to the device from pageable memory stop it from computing"
        remedy = "DataLoader(pin_memory=True) with .to(device, non_blocking=True)"
        yield _item(facts, "pageable-copies", text, remedy, cost_us, copies=calls)


def _copies(facts: Facts) -> Iterator[Recommendation]:
    cost_us, calls = _to_device(facts, pinned=True)
    if cost_us >= _COPIES * facts.found.span_us:
        text = f"during {counted(calls, 'copy', 'copies')} to the device no kernel computes"
        remedy = "copy the next batch on a stream of its own while this one computes"
        yield _item(facts, "copies-not-overlapped", text, remedy, cost_us, copies=calls)


def _synchronises(facts: Facts) -> Iterator[Recommendation]:
    """Split the gaps before late launches: those after the host waited for the device, and the others."""
    activity, trace, events = facts.activity, facts.activity.trace, facts.activity.trace.events
    gaps = gaps_of(activity, np.flatnonzero(activity.device))
    kernel_gap_ns = round(1e3 * facts.found.kernel_gap_us)
    late = classify(activity, gaps, facts.waits, kernel_gap_ns)[:, CLASSES.index("host_wait")]
    calls = np.flatnonzero((activity.kinds == Kind.RUNTIME) & trace.matching(_SYNCHRONISES))
    # Such a call began while the device worked, and returned when it was done.
    call = innermost(events.start_ns[calls], events.end_ns[calls], gaps.start_ns)
    after = call >= 0
    cost_us = float(late[after].sum()) / 1e3
    if cost_us >= _SYNCHRONISED * facts.found.span_us:
        costs = np.bincount(call[after], weights=late[after], minlength=len(calls))
        costly = calls[costs > 0]
        where = _where(activity, costly, costs[costs > 0])
        text = f"{counted(len(costly), 'call')} wait for the device, which then idles{where}"
        remedy = "keep .item(), .cpu(), synchronize() and prints of the loss out of most steps"
        yield _item(facts, "synchronising-calls", text, remedy, cost_us, calls=len(costly))
    yield from _launch_bound(facts, float(late[~after].sum()) / 1e3)


def _where(activity: Activity, calls: Column, costs: Column) -> str:
    """Name the operator around the costliest of `calls`, and the line of Python where there are stacks."""
    trace = activity.trace
    around = rows_around(activity, activity.operators, calls)
    frames = program_lines(activity, calls)
    parts = []
    for rows in (around, frames):
        known = rows >= 0
        if costs[known].sum() > costs.sum() / 2:
            sums = np.bincount(trace.events.name[rows[known]], weights=costs[known])
            parts.append(trace.names[int(sums.argmax())])
    return f" (in {', '.join(parts)})" if parts else ""


def _launch_bound(facts: Facts, late_us: float) -> Iterator[Recommendation]:
    """Kernels shorter than their launches leave the device idle, however fast the host is otherwise."""
    activity = facts.activity
    lengths = activity.trace.events.duration_ns[activity.compute_kernels]
    a_step = len(lengths) / facts.steps
    if late_us < _LATE * facts.found.span_us or a_step < _MANY:
        return
    median_us = float(np.median(lengths)) / 1e3
    if median_us <= _SHORT_US:
        text = (
            f"the host launches {a_step:.0f} kernels a step too late, most of them short ({median_us:.0f} us)"
        )
        remedy = 'torch.compile(mode="reduce-overhead") or CUDA graphs launch them at once'
        yield _item(
            facts, "launch-bound", text, remedy, late_us, kernels_per_step=a_step, median_us=median_us
        )


def _exposed(facts: Facts) -> Iterator[Recommendation]:
    """Training by data or shards of a model overlaps these kinds; of others nothing is known here."""
    own = [one for one in facts.found.collectives if one.kind in _OVERLAPS]
    trains = any(one.phase == "backward" for one in facts.found.idle_by_module)
    cost_us = sum(one.exposed_us for one in own)
    if trains and cost_us >= _EXPOSED * facts.found.span_us:
        share = percent(cost_us / facts.found.span_us)
        text = f"communication that no computation hides, waits for late ranks included, takes {share}"
        remedy = "overlap it with the backward pass (DDP's bucket_cap_mb, FSDP's prefetch)"
        yield _item(
            facts, "exposed-communication", text, remedy, cost_us, calls=sum(one.calls for one in own)
        )


def _allocates(facts: Facts) -> Iterator[Recommendation]:
    """Allocations behind the first step: the caching allocator needs none where shapes stay the same."""
    if len(facts.starts_ns) < 2:
        return
    activity, events = facts.activity, facts.activity.trace.events
    calls = (activity.kinds == Kind.RUNTIME) & activity.trace.matching(_ALLOCATES)
    later = np.flatnonzero(calls & (events.start_ns >= facts.starts_ns[1]))
    spent = Coverage(*union(events.start_ns[later], events.end_ns[later]))
    idle = gaps_of(activity, np.flatnonzero(activity.device))
    cost_us = float(spent.within(idle.start_ns, idle.end_ns).sum()) / 1e3
    if cost_us >= _ALLOCATED * facts.found.span_us:
        text = (
            f"{counted(len(later), 'call')} of cudaMalloc and cudaFree behind the first step idle the device"
        )
        remedy = "equal shapes, or PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
        yield _item(facts, "allocations", text, remedy, cost_us, calls=len(later))


def _tensor_cores(facts: Facts) -> Iterator[Recommendation]:
    """Matrix products in single precision by kernels without tensor cores, on devices that do TF32."""
    majors = [device.get("computeMajor") for device in facts.activity.trace.devices]
    if not majors or not all(isinstance(major, int) and major >= _FIRST_WITH_TF32 for major in majors):
        return
    slow = [one for one in facts.found.kernels if one.tensor_cores is False]
    cost_us = sum(one.total_us for one in slow)
    if cost_us >= _SINGLE * facts.found.busy_us:
        share = percent(cost_us / facts.found.busy_us)
        text = f"kernels in single precision without tensor cores take {share} of the device's work"
        remedy = 'torch.set_float32_matmul_precision("high") or autocast'
        peaks = facts.found.peaks.tflop_per_s if facts.found.peaks is not None else {}
        saved = 1 - peaks["float32"] / peaks["bfloat16"] if "bfloat16" in peaks else _SAVED
        yield _item(facts, "no-tensor-cores", text, remedy, cost_us * saved, kernels=len(slow))
