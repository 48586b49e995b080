"""How long a device was busy for each phase of a step, how long with nothing but communication.

And how long it was idle, by phase and what ended that: the module, without one the operator or kernel.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from iotrace.analysis.device.activity import summed_by
from iotrace.analysis.device.breakdown import break_down
from iotrace.analysis.device.gaps import CLASSES, Gaps
from iotrace.analysis.device.kernels import Window
from iotrace.analysis.device.modules import PHASES, rows_around
from iotrace.analysis.intervals import length, union
from iotrace.analysis.results import DevicePhase, IdleByOrigin
from iotrace.sources.kineto.trace import Column

NAMES = (*PHASES[:-1], "loader", "elsewhere")
_MODULE, _OPERATOR, _KERNEL = range(3)
_KINDS = ("module", "operator", "kernel")
Origin = tuple[str, str, str]  # kind, name, phase
_LOADER, _ELSEWHERE = NAMES.index("loader"), NAMES.index("elsewhere")


class PhaseTimes(msgspec.Struct):
    """Sums over windows, in ns, by phase; `seen`: whether a range told of that phase.

    Each instant that the device is busy belongs to one phase: that of the kernel that computes, else that of
    the communication, else that of the copy; of several at once the first of `NAMES` counts.
    """

    seen: set[str] = msgspec.field(default_factory=set)
    busy: Column = msgspec.field(default_factory=lambda: np.zeros(len(NAMES), np.int64))
    communication: Column = msgspec.field(default_factory=lambda: np.zeros(len(NAMES), np.int64))
    alone: Column = msgspec.field(default_factory=lambda: np.zeros(len(NAMES), np.int64))

    def add(self, window: Window) -> None:
        """Add one trace."""
        activity, phases = window.activity, _phases(window)
        events = activity.trace.events
        self.seen |= window.origins.seen
        if activity.data_waits.any():
            self.seen.add("loader")
        kinds = (activity.compute_kernels, activity.collective_kernels, activity.memory_operations)
        roles = [
            activity.intervals(mask & (phases == phase)) for mask in kinds for phase in range(len(NAMES))
        ]
        rows = np.flatnonzero(activity.device)
        span = events.start_ns[rows].min(keepdims=True), events.end_ns[rows].max(keepdims=True)
        own = break_down(roles, *span)[0][0, : len(roles)].reshape(len(kinds), len(NAMES))
        self.busy += own.sum(axis=0)
        self.alone += own[1]
        self.communication += [length(union(*each)) for each in roles[len(NAMES) : 2 * len(NAMES)]]

    def rows(self) -> list[DevicePhase] | None:
        """All phases in order, whose times sum to the busy time; None where no launch lies in a known one."""
        if not (self.busy + self.communication)[: len(PHASES) - 1].any():
            return None
        self.seen.add("elsewhere")
        table = (np.stack((self.busy, self.communication, self.alone), axis=1) / 1e3).tolist()
        return [
            DevicePhase(phase=name, busy_us=busy_us, comm_us=comm_us, comm_alone_us=alone_us)
            if name in self.seen
            else DevicePhase(phase=name)
            for name, (busy_us, comm_us, alone_us) in zip(NAMES, table, strict=True)
        ]


def _phases(window: Window) -> npt.NDArray[np.signedinteger]:
    """Find each device event's phase (index of `NAMES`); what a loader's range launched is the loader's."""
    activity = window.activity
    phases: npt.NDArray[np.signedinteger] = window.origins.phase.copy()
    phases[phases == PHASES.index("other")] = _ELSEWHERE
    if activity.data_waits.any():
        rows = np.flatnonzero(activity.device & (activity.launch >= 0))
        inside = rows_around(activity, activity.data_waits, activity.launch[rows]) >= 0
        phases[rows[inside]] = _LOADER
    return phases


class IdleOrigins(dict[Origin, Column]):
    """Sums in ns by origin: how many gaps it ended, then their idle time by class."""

    def add(self, window: Window, gaps: Gaps, classes: Column) -> None:
        """Add the gaps of a trace; `classes` divides each."""
        trace, origins = window.activity.trace, window.origins
        after = gaps.ended_by
        module, operator = origins.module[after], window.tree.names(window.tree.launcher[after])
        kernel = trace.events.name[after].astype(np.int64)
        kind = np.where(module >= 0, _MODULE, np.where(operator >= 0, _OPERATOR, _KERNEL))
        number = np.choose(kind, (module, operator, kernel))
        size = max(len(trace.names), len(origins.modules)) + 1
        keys = (kind * size + number) * len(PHASES) + origins.phase[after]
        for key, row in summed_by(keys, np.ones(len(keys)), *classes.T):
            rest, phase = divmod(key, len(PHASES))
            which, at = divmod(rest, size)
            name = origins.modules[at] if which == _MODULE else trace.names[at]
            origin = _KINDS[which], name, PHASES[phase]
            self[origin] = self[origin] + row if origin in self else row

    def rows(self) -> list[IdleByOrigin]:
        """Make the rows, the longest idle time first."""
        found = [
            IdleByOrigin(
                kind=kind,
                name=name,
                phase=phase,
                gaps=int(sums[0]),
                idle_us=float(sums[1:].sum()) / 1e3,
                idle_by_class_us=dict(zip(CLASSES, (sums[1:] / 1e3).tolist(), strict=True)),
            )
            for (kind, name, phase), sums in self.items()
        ]
        return sorted(found, key=lambda one: (-one.idle_us, one.name))
