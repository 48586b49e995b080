"""What the first steps of a trace pay, and single slow ones: allocation, autotuning, compilation, by name."""

from __future__ import annotations

import re

import numpy as np

from iotrace.analysis.device.activity import Activity, Mask
from iotrace.analysis.device.gaps import break_down
from iotrace.analysis.device.modules import rows_around
from iotrace.analysis.device.operators import HostTree
from iotrace.analysis.intervals import holding
from iotrace.analysis.results import SlowStep
from iotrace.sources.kineto.kinds import Kind
from iotrace.sources.kineto.trace import Column

_SLOW = 1.5  # times the median of a step
_FEWEST_STEPS = 4
_MOST_ROWS = 20
_MOST_NAMES, _LEAST_SHARE = 3, 0.1
_ALLOCATES = re.compile(
    r"(?:cuda|hip)(?:Malloc|Free)(?:Host|Async|Managed)?$|(?:cuda|hip)Host(?:Alloc|Malloc|Register)$"
    r"|(?:cu|hip)Mem(?:Create|Map|AddressReserve|SetAccess)$"
)
_SYNCHRONISES = re.compile(r"(?:cuda|hip)EventSynchronize$")
_CONVOLUTION = re.compile(r"aten::(?:cudnn|miopen)_convolution|aten::convolution_backward")
# Ranges of torch.compile's own timers, and where stacks were recorded the function that compiles a frame.
_TUNES = re.compile(r".*benchmark_all_configs|CachingAutotuner\.(?:benchmark|coordinate)")
_COMPILES = re.compile(r".*\(dynamo_timed\)|torch/_dynamo/convert_frame\.py\(\d+\): _compile$")
_LOADS = re.compile(r"Runtime Triggered Module Loading|Lazy Function Loading")
_COMMUNICATES = re.compile(r"(?:c10d::|nccl:|rccl:)\w")


def slow_steps_of(activity: Activity) -> list[SlowStep]:
    """Find the steps that took 1.5 times the median or more, and what they did longer than the median step.

    A trace without steps gives a row of what all of it did, as far as only beginnings do so.
    """
    (starts, ends), numbers = activity.step_spans()
    parts = _parts(activity)
    if not numbers:
        starts, ends = activity.whole()
        if not len(starts):
            return []
        once = {name: mask for name, mask in parts.items() if name not in ("data_wait", "communicator")}
        row = _table(activity, once, starts, ends)[0] / 1e6
        named = {name: ms for name, ms in zip(once, row.tolist(), strict=False) if ms > 0}
        ms = float(ends[0] - starts[0]) / 1e6
        return [SlowStep(is_first=True, ms=ms, parts_ms=named, host_ms={})] if named else []
    if len(numbers) < _FEWEST_STEPS:
        return []
    lengths = (ends - starts) / 1e6
    settled = slice(len(lengths) // 2, None)
    usual_ms = float(np.median(lengths[settled]))
    table = _table(activity, parts, starts, ends) / 1e6
    over = np.maximum(table - np.median(table[settled], axis=0), 0)
    slow = np.flatnonzero(lengths >= _SLOW * usual_ms)
    found = []
    host = _host(activity, starts, ends, settled) if len(slow) else {}
    for at in slow.tolist():
        named = {name: ms for name, ms in zip(parts, over[at].tolist(), strict=False) if ms > 0}
        is_first = bool((lengths[: at + 1] >= _SLOW * usual_ms).all())
        over_ms = float(lengths[at]) - usual_ms
        # A function of C's, as run_backward, waits for what other names tell.
        named_host = [(own[at], name) for name, own in host.items() if not name.startswith("<built-in")]
        most = sorted(named_host, reverse=True)[:_MOST_NAMES]
        longest = {name: float(ms) for ms, name in most if ms >= _LEAST_SHARE * over_ms}
        found.append(
            SlowStep(
                step=numbers[at],
                is_first=is_first,
                ms=float(lengths[at]),
                over_ms=over_ms,
                parts_ms=named,
                unnamed_ms=max(0.0, over_ms - sum(named.values())),
                host_ms=longest,
            )
        )
    return sorted(found, key=lambda one: -(one.over_ms or 0.0))[:_MOST_ROWS]


def _host(activity: Activity, starts: Column, ends: Column, settled: slice) -> dict[str, Column]:
    """Find by name how much longer than usual each step spent in it, without what is inside, in ms."""
    tree = HostTree(activity)
    events = activity.trace.events
    step = holding(starts, ends, events.start_ns[tree.rows])
    inside = step >= 0
    names, number = np.unique(events.name[tree.rows[inside]], return_inverse=True)
    keys = number * len(starts) + step[inside]
    sums = np.bincount(keys, weights=tree.host_self[inside], minlength=len(names) * len(starts))
    table = sums.reshape(len(names), len(starts)) / 1e6
    over = np.maximum(table - np.median(table[:, settled], axis=1, keepdims=True), 0)
    return {activity.trace.names[name]: row for name, row in zip(names.tolist(), over, strict=True)}


def _table(activity: Activity, parts: dict[str, Mask], starts: Column, ends: Column) -> Column:
    """Divide each step among `parts` and the rest, in ns: an instant belongs to the first that covers it."""
    return break_down([activity.intervals(mask) for mask in parts.values()], starts, ends)[0]


def _parts(activity: Activity) -> dict[str, Mask]:
    """Find the events of each part, in the order in which they claim time."""
    trace, calls = activity.trace, activity.kinds == Kind.RUNTIME
    parts: dict[str, Mask] = {
        "data_wait": activity.data_waits,
        "module_loading": trace.matching(_LOADS),
        "autotune": _tunes(activity, calls) | (activity.ranges & trace.matching(_TUNES)),
        "compile": activity.ranges & trace.matching(_COMPILES),
        "allocation": calls & trace.matching(_ALLOCATES),
    }
    if activity.device.any():
        parts["communicator"] = activity.ranges & trace.matching(_COMMUNICATES)
    return parts


def _tunes(activity: Activity, calls: Mask) -> Mask:
    """Find the convolutions that try algorithms: no other one waits for events of the device."""
    convolutions = activity.operators & activity.trace.matching(_CONVOLUTION)
    waits = np.flatnonzero(calls & activity.trace.matching(_SYNCHRONISES))
    around = rows_around(activity, convolutions, waits)
    found = np.zeros(len(calls), dtype=np.bool_)
    found[around[around >= 0]] = True
    return found
