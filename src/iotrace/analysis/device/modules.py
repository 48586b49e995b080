"""Which module and phase each kernel belongs to: by where on the host it was launched."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from iotrace.analysis.device.activity import Activity, Mask
from iotrace.analysis.intervals import innermost
from iotrace.sources.kineto.kinds import Kind, module_of
from iotrace.sources.kineto.trace import Column

PHASES = ("forward", "backward", "optimizer", "other")
_FORWARD, _BACKWARD, _OPTIMIZER, _OTHER = range(4)

_BACKWARD_NAME = re.compile(r"autograd::engine::|torch::autograd::AccumulateGrad|\w+Backward\d*$")
# Ranges that torch itself puts around the forward pass.
_FORWARD_RANGE = re.compile(r"(?:\w+::)?\w*DataParallel\.forward$")
_UNKNOWN = -1


class Origins(msgspec.Struct, frozen=True):
    """Per event of the device its module (index of `modules`, -1 unknown) and phase (index of `PHASES`).

    The phase is `other` where the launch is unknown or in none of the three. Entries of other events have no
    meaning. `seen` has the phases of which the trace holds a range, whatever they launched.
    """

    modules: list[str]
    module: npt.NDArray[np.signedinteger]
    phase: npt.NDArray[np.signedinteger]
    seen: frozenset[str]


class ModuleRange(msgspec.Struct):
    """When a module ran on a thread (index of the trace's threads) or a device; ns of the session's time."""

    thread: int
    start_ns: int
    end_ns: int
    name: str


def origins_of(activity: Activity) -> Origins:
    """Find the module and phase of every event of the device: those of its launch."""
    count = len(activity.trace.events)
    module, phase = np.full(count, _UNKNOWN, dtype=np.int32), np.full(count, _OTHER, dtype=np.int8)
    device = np.flatnonzero(activity.device & (activity.launch >= 0))
    found = origins_at(activity, activity.launch[device])
    module[device], phase[device] = found.module, found.phase
    return Origins(found.modules, module, phase, found.seen)


def origins_at(activity: Activity, calls: Column) -> Origins:
    """Find the module and phase of each row of `calls`, which are events of the host.

    A backward operator belongs to the module of the forward operator with its sequence number; what an
    operator of the backward pass launches is `backward`, what is launched in a range ``Optimizer.step#…`` is
    `optimizer`, in a module's or DataParallel's range or an operator that autograd counts, `forward`.
    """
    trace, events = activity.trace, activity.trace.events
    phase = np.full(len(calls), _OTHER, dtype=np.int64)
    optimizers = activity.ranges & trace.named(lambda name: name.startswith("Optimizer."))
    backward = activity.operators & ((events.forward_thread > 0) | trace.matching(_BACKWARD_NAME))
    counted = activity.operators & ~backward & (events.sequence >= 0)
    forwards = counted | activity.modules | (activity.ranges & trace.matching(_FORWARD_RANGE))
    masks = {_FORWARD: forwards, _OPTIMIZER: optimizers, _BACKWARD: backward}
    for number, mask in masks.items():  # of several around a call the last one counts
        phase[rows_around(activity, mask, calls) >= 0] = number

    in_backward = rows_around(activity, backward & (events.sequence >= 0), calls)
    from_forward = _modules_of_forward(activity, in_backward, counted)
    is_known = (phase == _BACKWARD) & (from_forward >= 0)
    around = np.where(is_known, from_forward, rows_around(activity, activity.modules, calls))
    names: dict[str, int] = {}
    paths = [module_of(name) for name in trace.names]
    numbers = np.array(
        [_UNKNOWN if path is None else names.setdefault(path, len(names)) for path in paths] or [_UNKNOWN],
        dtype=np.int64,
    )
    module = np.where(around >= 0, numbers[events.name[np.maximum(around, 0)]], _UNKNOWN)
    seen = frozenset(PHASES[number] for number, mask in masks.items() if mask.any())
    return Origins(list(names), module, phase, seen)


def backward_ranges(activity: Activity) -> list[ModuleRange]:
    """Find when the backward pass of each module ran, those of its children inside; in order of time.

    Neighbouring operators of one module make one range. What joins them to a module is their sequence number:
    no hook is on the graph.
    """
    trace, events = activity.trace, activity.trace.events
    operators = activity.operators
    linked = np.flatnonzero(operators & (events.forward_thread > 0) & (events.sequence >= 0))
    counted = operators & (events.forward_thread <= 0) & (events.sequence >= 0)
    module = _modules_of_forward(activity, linked, counted)
    known = module >= 0
    linked, module = linked[known], module[known]
    order = np.lexsort((-events.end_ns[linked], events.start_ns[linked], events.thread[linked]))
    linked, module = linked[order], module[order]
    return nested_ranges(
        zip(
            events.thread[linked].tolist(),
            events.start_ns[linked].tolist(),
            events.end_ns[linked].tolist(),
            (_names(trace.names[name]) for name in events.name[module].tolist()),
            strict=True,
        )
    )


def _names(name: str) -> list[str]:
    """List the modules around one, itself at last."""
    path = (module_of(name) or "?").split(".")
    return [".".join(path[: depth + 1]) for depth in range(len(path))]


def nested_ranges(items: Iterable[tuple[int, int, int, Sequence[str]]]) -> list[ModuleRange]:
    """Join neighbours that lie in the same modules; each item is (thread, start, end, names from outside in).

    Items come in order of time, thread by thread; the ranges are in order of time.
    """
    found: list[ModuleRange] = []
    open_ranges: list[ModuleRange] = []
    for thread, start_ns, end_ns, names in items:
        same = 0
        while (
            same < min(len(names), len(open_ranges))
            and open_ranges[same].name == names[same]
            and open_ranges[same].thread == thread
        ):
            same += 1
        del open_ranges[same:]
        for name in names[same:]:
            opened = ModuleRange(thread, start_ns, end_ns, name)
            open_ranges.append(opened)
            found.append(opened)
        for opened in open_ranges:
            opened.end_ns = max(opened.end_ns, end_ns)
    return sorted(found, key=lambda one: one.start_ns)


def rows_around(activity: Activity, mask: Mask, inner: Column) -> Column:
    """Find per row of `inner` the innermost event of `mask` around its start, on its thread; -1: none."""
    events, rows = activity.trace.events, np.flatnonzero(mask)
    found, threads = np.full(len(inner), _UNKNOWN, dtype=np.int64), events.thread[rows]
    for thread in np.unique(events.thread[inner]).tolist():
        outer = rows[threads == thread]
        if len(outer):
            own = np.flatnonzero(events.thread[inner] == thread)
            index = innermost(events.start_ns[outer], events.end_ns[outer], events.start_ns[inner[own]])
            found[own] = np.where(index >= 0, outer[np.maximum(index, 0)], _UNKNOWN)
    return found


def program_lines(activity: Activity, calls: Column) -> Column:
    """Find per row of `calls` the innermost Python frame around it that is the program's or a library's.

    Frames of torch and of Python itself do not count; -1 where stacks were not recorded, or none is there.
    """
    frames = (activity.kinds == Kind.PYTHON) & activity.trace.named(is_line_of_program)
    return rows_around(activity, frames, calls)


def short_frame(name: str) -> str:
    """Name a frame ``a/b/train.py(41): step`` by its file, without folders; an operator stays as it is."""
    path, found, rest = name.partition("(")
    return f"{path.rpartition('/')[2]}{found}{rest}" if "): " in name else name


def is_line_of_program(name: str) -> bool:
    """Whether a frame ``train.py(41): step`` is neither torch's nor Python's own."""
    path, _, _ = name.partition("(")
    first = path.removesuffix(".py").partition("/")[0]
    known = first in sys.stdlib_module_names or first == "torch" or "/torch/" in path
    return "): " in name and not known and not path.startswith("<")


def _modules_of_forward(activity: Activity, backward: Column, counted: Mask) -> Column:
    """Find per backward operator (row, -1: none) the module's row that its forward operator lies in."""
    forward = _forward_operators(activity, backward, counted)
    module = rows_around(activity, activity.modules, np.maximum(forward, 0))
    return np.where(forward >= 0, module, _UNKNOWN)


def _forward_operators(activity: Activity, backward: Column, counted: Mask) -> Column:
    """Find per backward operator (row, -1: none) the row of its forward operator, -1 if not recorded.

    Sequence numbers are counted per thread, and the trace names forward threads by numbers of torch's own:
    each is taken for the thread with most of its sequence numbers. Of nested operators with one sequence
    number the innermost made the node of the graph.
    """
    events = activity.trace.events
    found = np.full(len(backward), _UNKNOWN, dtype=np.int64)
    known = np.flatnonzero(backward >= 0)
    candidates = np.flatnonzero(counted)
    if not len(known) or not len(candidates):
        return found
    candidates = candidates[np.lexsort((events.start_ns[candidates], events.sequence[candidates]))]
    for number in np.unique(events.forward_thread[backward[known]]).tolist():
        own = known[events.forward_thread[backward[known]] == number]
        wanted = events.sequence[backward[own]]
        threads, matches = np.unique(
            events.thread[candidates[np.isin(events.sequence[candidates], wanted)]], return_counts=True
        )
        if not len(threads):
            continue
        forward = candidates[events.thread[candidates] == threads[matches.argmax()]]
        sequences = events.sequence[forward]
        last = np.searchsorted(sequences, wanted, side="right") - 1
        hit = (last >= 0) & (sequences[np.maximum(last, 0)] == wanted)
        found[own[hit]] = forward[last[hit]]
    return found
