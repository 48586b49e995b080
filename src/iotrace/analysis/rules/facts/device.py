"""What is known of an accelerator and of what it waited for: figures of the traced window."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from iotrace.analysis.device.activity import Activity
from iotrace.analysis.device.compute import Compute
from iotrace.analysis.device.gaps import CLASSES, classify, gaps_of
from iotrace.analysis.device.modules import program_lines, rows_around
from iotrace.analysis.intervals import Coverage, innermost, union
from iotrace.analysis.results import Accelerator
from iotrace.sources.kineto.kinds import Kind, is_data_wait
from iotrace.sources.kineto.trace import Column, KinetoTrace

_SYNCHRONISES = re.compile(r"(?:cuda|hip)(?:Stream|Device|Event|Ctx)Synchronize|cuCtxSynchronize")
_ALLOCATES = re.compile(r"(?:cuda|hip)(?:Malloc|Free)$")
_OVERLAPS = ("all_reduce", "reduce_scatter", "all_gather")
# Where the peaks are not known: an A100 does 312 TFLOP/s of bfloat16 and 19.5 of single precision.
_SAVED = 15 / 16
_WITHOUT_WORKERS = "_SingleProcessDataLoaderIter"  # torch's name of what delivers such batches


class Spent(msgspec.Struct, frozen=True):
    """What something took in us, and in how many calls."""

    us: float = 0.0
    calls: int = 0


class DeviceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """An accelerator over its traced window, times in us; `steps` is 1 where there are none.

    `pageable` and `pinned` are copies to the device while no kernel computed. `synchronising`: calls that
    waited for the device, by what it then idled; `at` is the operator around the costliest and its line.
    `late_us`: it idled before kernels that the host launched late for another reason. `exposed`:
    collectives that no computation hid, in a program that `trains`. `allocations` behind the first step, by
    what the device idled in them. `single_precision`: kernels without tensor cores on devices that have
    some, `single_saved` of their time is what the others would save. `wait_ms` is the loop's wait for a
    DataLoader whose batches it makes itself, `exposed_wait_ms` the device's idle time in it.
    """

    span_us: float = 0.0
    busy_us: float = 0.0
    steps: int = 1
    pageable: Spent = Spent()
    pinned: Spent = Spent()
    synchronising: Spent = Spent()
    at: str = ""
    late_us: float = 0.0
    kernels_per_step: float = 0.0
    kernel_median_us: float = 0.0
    exposed: Spent = Spent()
    trains: bool = False
    allocations: Spent = Spent()
    single_precision: Spent = Spent()
    single_saved: float = _SAVED
    wait_ms: float | None = None
    exposed_wait_ms: float | None = None

    def is_worth(self, spent_us: float, share: float) -> bool:
        """Whether that is this share of the traced window or more; never without a device."""
        return spent_us >= share * self.span_us > 0


def device_facts(compute: Compute) -> DeviceFacts | None:
    """Sum up what the windows of a rank's traces show; None without a device."""
    found = compute.accelerator
    if found is None:
        return None
    lengths = [each.trace.events.duration_ns[each.compute_kernels] for each in compute.activities]
    kernels = np.concatenate(lengths) if lengths else np.empty(0, np.int64)
    steps = compute.breakdown_steps or 1
    overlapped = [one for one in found.collectives if one.kind in _OVERLAPS]
    late = [
        _late(activity, Coverage(waits.starts_ns, waits.ends_ns), found)
        for activity, waits in zip(compute.activities, compute.waits, strict=True)
    ]
    costliest = max(late, key=lambda each: each.costs_us.sum(), default=None)
    peaks = found.peaks.tflop_per_s if found.peaks is not None else {}
    return DeviceFacts(
        span_us=found.span_us,
        busy_us=found.busy_us,
        steps=steps,
        pageable=_to_device(found, pinned=False),
        pinned=_to_device(found, pinned=True),
        synchronising=_sum(Spent(float(each.costs_us.sum()), len(each.calls)) for each in late),
        at="" if costliest is None else costliest.at,
        late_us=sum(each.other_us for each in late),
        kernels_per_step=len(kernels) / steps,
        kernel_median_us=float(np.median(kernels)) / 1e3 if len(kernels) else 0.0,
        exposed=Spent(sum(one.exposed_us for one in overlapped), sum(one.calls for one in overlapped)),
        trains=any(one.phase == "backward" for one in found.idle_by_module),
        allocations=_sum(map(_allocations, compute.activities)),
        single_precision=_single_precision(compute.activities, found),
        single_saved=1 - peaks["float32"] / peaks["bfloat16"] if "bfloat16" in peaks else _SAVED,
    )


def loads_itself(trace: KinetoTrace) -> bool:
    """Whether the trace shows a loop that waits for a DataLoader without workers, and for no other."""
    loaders = [name for name in trace.names if is_data_wait(name)]
    return bool(loaders) and all(_WITHOUT_WORKERS in name for name in loaders)


def _to_device(found: Accelerator, pinned: bool) -> Spent:
    own = [one for one in found.memory_operations if one.direction == "HtoD" and one.pinned is pinned]
    return Spent(sum(one.total_us - one.overlapped_us for one in own), sum(one.calls for one in own))


class _Late(msgspec.Struct, frozen=True):
    """Calls that waited for the device, what it idled behind each, and before other late launches."""

    calls: Column
    costs_us: npt.NDArray[np.float64]
    other_us: float
    at: str


def _late(activity: Activity, waits: Coverage, found: Accelerator) -> _Late:
    """Split the gaps before late launches: those after the host waited for the device, and the others."""
    trace, events = activity.trace, activity.trace.events
    gaps = gaps_of(activity, np.flatnonzero(activity.device))
    late = classify(activity, gaps, waits, round(1e3 * found.kernel_gap_us))[:, CLASSES.index("host_wait")]
    calls = np.flatnonzero((activity.kinds == Kind.RUNTIME) & trace.matching(_SYNCHRONISES))
    # Such a call began while the device worked, and returned when it was done.
    call = innermost(events.start_ns[calls], events.end_ns[calls], gaps.start_ns)
    after = call >= 0
    costs = np.bincount(call[after], weights=late[after], minlength=len(calls))
    costly = calls[costs > 0]
    at = _where(activity, costly, costs[costs > 0])
    return _Late(costly, costs[costs > 0] / 1e3, float(late[~after].sum()) / 1e3, at)


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
    return ", ".join(parts)


def _allocations(activity: Activity) -> Spent:
    """Allocations behind the first step: the caching allocator needs none where shapes stay the same."""
    (starts_ns, _), _ = activity.step_spans()
    if len(starts_ns) < 2:
        return Spent()
    events = activity.trace.events
    calls = (activity.kinds == Kind.RUNTIME) & activity.trace.matching(_ALLOCATES)
    later = np.flatnonzero(calls & (events.start_ns >= starts_ns[1]))
    spent = Coverage(*union(events.start_ns[later], events.end_ns[later]))
    idle = gaps_of(activity, np.flatnonzero(activity.device))
    return Spent(float(spent.within(idle.start_ns, idle.end_ns).sum()) / 1e3, len(later))


def _single_precision(activities: Sequence[Activity], found: Accelerator) -> Spent:
    """Matrix products in single precision by kernels without tensor cores, on devices that do TF32."""
    first_with_tf32 = 8  # major compute capability
    majors = [device.get("computeMajor") for each in activities for device in each.trace.devices]
    if not majors or not all(isinstance(major, int) and major >= first_with_tf32 for major in majors):
        return Spent()
    slow = [one for one in found.kernels if one.tensor_cores is False]
    return Spent(sum(one.total_us for one in slow), len(slow))


def _sum(parts: Iterable[Spent]) -> Spent:
    known = list(parts)
    return Spent(sum(part.us for part in known), sum(part.calls for part in known))
