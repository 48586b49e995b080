"""What intervals are made from: the measured steps in blocks, and what the stages of a sample cost."""

from __future__ import annotations

import msgspec

from iotrace.analysis.results.base import ReportPart


class StepBlocks(ReportPart, frozen=True, kw_only=True):
    """Means of blocks of `steps` consecutive measured steps, in ms a step, in order of time.

    There are 64 at most, however long the run. `causes_ms` and `files_ms` (the costliest files) are parts
    of the wait; empty where it is unknown, and so is `wait_ms`. `phases_ms` has the phases that are known.
    """

    steps: int
    step_ms: list[float]
    wait_ms: list[float]
    causes_ms: dict[str, list[float]]
    files_ms: dict[str, list[float]]
    phases_ms: dict[str, list[float]] = msgspec.field(default_factory=dict)


class StageCost(ReportPart, frozen=True, kw_only=True):
    """What one stage costs in one file (None: in all others) each time that a sample needs it.

    `clock` is ``cpu`` or ``wall``. `quartile_ms` is the lower quartile over all `count` times, `blocks_ms`
    that of consecutive blocks of them, 40 at most: other programs only add to a cost, and seldom to all of
    it. Where `quiet`, times are those of seconds in which others took few of the CPUs; None: nobody knows.
    `per_sample` is how often a sample needs it.
    """

    stage: str
    path: str | None
    clock: str
    quiet: bool | None
    count: int
    per_sample: float
    mean_ms: float
    quartile_ms: float
    blocks_ms: list[float]
