"""What is known of an accelerator and of what it waited for: figures of the traced window."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from iotrace.analysis.device.activity import Activity
from iotrace.analysis.device.compute import Compute
from iotrace.analysis.device.gaps import gaps_of
from iotrace.analysis.device.idle_time import EDGES
from iotrace.analysis.intervals import Coverage, union
from iotrace.analysis.results import Accelerator, CollectiveKind, IdlePart
from iotrace.sources.kineto.kinds import Kind, is_data_wait
from iotrace.sources.kineto.trace import KinetoTrace

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
    """An accelerator over the span of its account of idle time, in us; `steps` is 1 where there are none.

    `parts` are the idle time by cause; `has_stacks`: frames may name where. `pageable` and `pinned` are
    copies to the device while no kernel computed. `exposed`: collectives that no computation hid, in a
    program that `trains`; `exposed_others` those that training does not overlap by itself. `allocations`
    behind the first step, by what the device idled in them. `single_precision`: kernels without tensor cores
    on devices that have some, `single_saved` of their time is what the others would save. `elementwise_us`
    is what elementwise kernels took. `wait_ms` is the loop's wait for a DataLoader whose batches it makes
    itself, `exposed_wait_ms` the device's idle time in it. Without steps (not `stepped`) no gain is told: of
    what would it be?
    """

    span_us: float = 0.0
    busy_us: float = 0.0
    steps: int = 1
    stepped: bool = True
    has_stacks: bool = False
    parts: Sequence[IdlePart] = ()
    pageable: Spent = Spent()
    pinned: Spent = Spent()
    kernels_per_step: float = 0.0
    kernel_median_us: float = 0.0
    exposed: Spent = Spent()
    exposed_others: Spent = Spent()
    trains: bool = False
    elementwise_us: float = 0.0
    allocations: Spent = Spent()
    single_precision: Spent = Spent()
    single_saved: float = _SAVED
    wait_ms: float | None = None
    exposed_wait_ms: float | None = None

    def idle(self, cause: str) -> IdlePart:
        """Return the idle time of a cause, an empty part where there is none."""
        none = IdlePart(cause=cause, us=0.0, gaps=0)
        return next((part for part in self.parts if part.cause == cause), none)

    def is_worth(self, spent_us: float, share: float) -> bool:
        """Whether that is this share of the span or more; never without a device."""
        return spent_us >= share * self.span_us > 0


def device_facts(compute: Compute, whole: bool = False) -> DeviceFacts | None:
    """Sum up what the windows of a rank's traces show; None without a device.

    The ends of a session's window are the profiler's. Those of a trace are the program's: it is `whole`.
    """
    found = compute.accelerator
    if found is None:
        return None
    lengths = [each.trace.events.duration_ns[each.compute_kernels] for each in compute.activities]
    kernels = np.concatenate(lengths) if lengths else np.empty(0, np.int64)
    steps = compute.breakdown_steps or 1
    overlapped = [one for one in found.collectives if one.kind in _OVERLAPS]
    others = [one for one in found.collectives if one.kind not in _OVERLAPS]
    account = found.idle_time
    peaks = found.peaks.tflop_per_s if found.peaks is not None else {}
    return DeviceFacts(
        span_us=found.span_us if account is None else account.span_us,
        busy_us=found.busy_us,
        steps=steps,
        stepped=any(activity.step_spans()[1] for activity in compute.activities),
        has_stacks=any(bool((activity.kinds == Kind.PYTHON).any()) for activity in compute.activities),
        parts=[] if account is None else [part for part in account.parts if whole or part.cause not in EDGES],
        pageable=_to_device(found, pinned=False),
        pinned=_to_device(found, pinned=True),
        kernels_per_step=len(kernels) / steps,
        kernel_median_us=float(np.median(kernels)) / 1e3 if len(kernels) else 0.0,
        exposed=_exposed(overlapped),
        exposed_others=_exposed(others),
        trains=any(one.phase == "backward" for one in found.idle_by_module),
        allocations=_sum(map(_allocations, compute.activities)),
        single_precision=_single_precision(compute.activities, found),
        elementwise_us=sum(one.total_us for one in found.categories if one.category == "elementwise"),
        single_saved=1 - peaks["float32"] / peaks["bfloat16"] if "bfloat16" in peaks else _SAVED,
    )


def loads_itself(trace: KinetoTrace) -> bool:
    """Whether the trace shows a loop that waits for a DataLoader without workers, and for no other."""
    loaders = [name for name in trace.names if is_data_wait(name)]
    return bool(loaders) and all(_WITHOUT_WORKERS in name for name in loaders)


def _exposed(collectives: Sequence[CollectiveKind]) -> Spent:
    return Spent(sum(one.exposed_us for one in collectives), sum(one.calls for one in collectives))


def _to_device(found: Accelerator, pinned: bool) -> Spent:
    own = [one for one in found.memory_operations if one.direction == "HtoD" and one.pinned is pinned]
    return Spent(sum(one.total_us - one.overlapped_us for one in own), sum(one.calls for one in own))


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
