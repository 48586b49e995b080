"""Idle time by what ended it: the module; where none is known the operator; without one the kernel."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from iotrace.analysis.device.gaps import CLASSES, Gaps
from iotrace.analysis.device.kernels import Window
from iotrace.analysis.device.modules import PHASES
from iotrace.analysis.results import IdleByOrigin
from iotrace.sources.kineto.trace import Column

_MODULE, _OPERATOR, _KERNEL = range(3)
_KINDS = ("module", "operator", "kernel")
Origin = tuple[str, str, str]  # kind, name, phase


class IdleOrigins(dict[Origin, Column]):
    """Sums in ns by origin: how many gaps it ended, then their idle time by class."""

    def add(self, window: Window, gaps: Gaps, classes: Column) -> None:
        """Add the gaps of a trace; `classes` divides each."""
        for origin, sums in _sums(window, gaps, classes):
            self[origin] = self[origin] + sums if origin in self else sums

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


def _sums(window: Window, gaps: Gaps, classes: Column) -> Iterator[tuple[Origin, Column]]:
    trace, origins = window.activity.trace, window.origins
    after = gaps.ended_by
    module, operator = origins.module[after], window.tree.names(window.tree.launcher[after])
    kernel = trace.events.name[after].astype(np.int64)
    kind = np.where(module >= 0, _MODULE, np.where(operator >= 0, _OPERATOR, _KERNEL))
    number = np.choose(kind, (module, operator, kernel))
    size = max(len(trace.names), len(origins.modules)) + 1
    keys = (kind * size + number) * len(PHASES) + origins.phase[after]
    groups, index, counts = np.unique(keys, return_inverse=True, return_counts=True)
    sums = np.zeros((len(groups), 1 + len(CLASSES)), dtype=np.int64)
    sums[:, 0] = counts
    for at in range(len(CLASSES)):  # a float64 holds 104 days in ns
        sums[:, 1 + at] = np.bincount(index, weights=classes[:, at], minlength=len(groups))
    for key, row in zip(groups.tolist(), sums, strict=True):
        rest, phase = divmod(key, len(PHASES))
        which, at = divmod(rest, size)
        name = origins.modules[at] if which == _MODULE else trace.names[at]
        yield (_KINDS[which], name, PHASES[phase]), row
