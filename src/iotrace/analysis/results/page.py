"""What only a page shows: steps, batches and samples one by one, as columns. None is unknown, never 0."""

from __future__ import annotations

from iotrace.analysis.results.base import ReportPart


class StepColumns(ReportPart, frozen=True, kw_only=True):
    """The loop's steps in order of time: an entry is `bin` consecutive steps, of which it has the mean.

    `first` is the number of its first step, from 0; `longest` that of its longest one, whose length is
    `longest_ms`. `wait_ms` is None where the data wait is unknown; then `causes_ms` is empty.
    """

    steps: int
    bin: int
    first: list[int]
    measured: list[bool]
    step_ms: list[float]
    wait_ms: list[float] | None = None
    causes_ms: dict[str, list[float]]
    longest: list[int]
    longest_ms: list[float]
    longest_wait_ms: list[float] | None = None


class BatchWindow(ReportPart, frozen=True, kw_only=True):
    """Consecutive steps around the longest wait, and the batches made or awaited in them.

    Times are ms since the window's start. A batch was made from `taken_ms` to `prepared_ms`, mostly by
    `made_of`, and awaited from `asked_ms` to `delivered_ms`, mostly for `cause`; `computed_ms` is when the
    loop asked again. `ready` batches lay prepared and not yet delivered from each of `ready_at_ms` on.
    """

    first_step: int
    steps: int
    length_ms: float
    step_starts_ms: list[float]
    batch: list[int]
    epoch: list[int]
    worker: list[int | None]
    taken_ms: list[float | None]
    prepared_ms: list[float | None]
    asked_ms: list[float]
    delivered_ms: list[float]
    computed_ms: list[float | None]
    cause: list[str]
    made_of: list[str | None]
    file: list[str | None]
    worst: int | None = None
    ready_at_ms: list[float]
    ready: list[int]


class SampledSeries(ReportPart, frozen=True, kw_only=True):
    """A figure over time, `time_s` since the command's launch, means of bins; `peak` is of all samples.

    `most` is the largest value that it can have.
    """

    name: str
    unit: str
    time_s: list[float]
    value: list[float]
    peak: float
    most: float | None = None


class RankColumns(ReportPart, frozen=True, kw_only=True):
    """One rank, step by step."""

    rank: int
    incarnation: int
    steps: StepColumns | None = None
    window: BatchWindow | None = None
    series: list[SampledSeries]
