"""What a timeline shows in detail: all, or, of more than a browser draws, the steps around the worst wait."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from iotrace.analysis.intervals import Times
from iotrace.analysis.loop.deliveries import Deliveries
from iotrace.analysis.loop.step_table import StepTable
from iotrace.analysis.rank import RankAnalysis
from iotrace.timeline.model import Args, Slice, Track

MOST_SLICES = 1_000_000  # of a rank
_MOST_BLOCKS = 2_000  # that stand for the steps without details
_OF_A_BATCH = 5  # slices: its wait and arrival, its making, ready, its step


class Detail(msgspec.Struct, frozen=True):
    """The interval ``[start_ns, end_ns)`` that is shown in detail, with the steps that it holds."""

    start_ns: int
    end_ns: int
    first_step: int
    behind_step: int

    def holds(self, start_ns: int, end_ns: int) -> bool:
        """Whether something touches the interval."""
        return start_ns < self.end_ns and end_ns > self.start_ns

    def holds_all(self, starts_ns: Times, ends_ns: Times) -> npt.NDArray[np.bool_]:
        """Mark what touches the interval."""
        return np.asarray((starts_ns < self.end_ns) & (ends_ns > self.start_ns))

    def holds_batches(self, deliveries: Deliveries) -> npt.NDArray[np.bool_]:
        """Mark the batches that were made or waited for in the interval."""
        asked = deliveries["wait_start_ns"]
        begun = np.where(deliveries.known("taken_ns"), deliveries["taken_ns"], asked)
        return self.holds_all(np.minimum(begun, asked), deliveries["delivered_ns"])


def detail_of(analysis: RankAnalysis, most: int = MOST_SLICES) -> Detail | None:
    """Choose what is shown in detail; None: all of it, or there are no steps to choose from."""
    steps, rank = analysis.loop.steps, analysis.rank
    count = _OF_A_BATCH * sum(len(loader.deliveries) for loader in analysis.loaders)
    for process in rank.processes:
        count += len(process.spans) + len(analysis.session.calls_of(process))
    if count <= most or not len(steps):
        return None
    shown = max(1, len(steps) * most // count)
    # Of the measured steps, as the report's worst batches are: the first one waits for workers to start.
    measured = np.isin(steps["start_ns"], analysis.kept["start_ns"])
    worst = int(np.argmax(np.where(measured, steps.wait_ns, -1) if measured.any() else steps.wait_ns))
    first = max(0, min(worst - shown // 2, len(steps) - shown))
    return Detail(steps[first].start_ns, steps[first + shown - 1].end_ns, first, first + shown)


def note(detail: Detail, steps: StepTable) -> Track:
    """Say in the timeline where there are no details, and what stands there."""
    size = block_size(detail, steps)
    shown = f"{detail.behind_step - detail.first_step:,} of {len(steps):,} steps are shown in detail"
    text = f"{shown}; here blocks of {size:,} steps stand for them"
    parts = ((steps[0].start_ns, detail.start_ns), (detail.end_ns, steps[-1].end_ns))
    return Track("not in detail", [Slice(*part, text, "note") for part in parts if part[0] < part[1]])


def block_size(detail: Detail, steps: StepTable) -> int:
    """How many steps a block stands for."""
    return -(-(len(steps) - detail.behind_step + detail.first_step) // _MOST_BLOCKS) or 1


def blocks(detail: Detail, steps: StepTable) -> list[Slice]:
    """Sum up the steps that are not shown in detail."""
    size = block_size(detail, steps)
    found = []
    for part in (range(detail.first_step), range(detail.behind_step, len(steps))):
        for first in part[::size]:
            own = steps[first : min(first + size, part.stop)]
            name = f"{len(own):,} steps from {first:,} on"
            args: Args = {
                "steps": len(own),
                "step_ms": int(own.duration_ns.sum()) / len(own) / 1e6,
                "wait_ms": int(own.wait_ns.sum()) / len(own) / 1e6,
                "longest_ms": int(own.duration_ns.max()) / 1e6,
            }
            found.append(Slice(own[0].start_ns, own[-1].end_ns, name, "steps", args))
    return found
