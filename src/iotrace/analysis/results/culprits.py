"""What is to blame for a wait beside its cause: the CPUs that the makers did not get."""

from __future__ import annotations

from iotrace.analysis.results.base import ReportPart


class Culprit(ReportPart, frozen=True, kw_only=True):
    """Who holds a stage up from outside: `text` is the sentence, `evidence` the figures that it rests on.

    `wait_ms` is what it has of the data wait per measured step; `leads`: a verdict names it before the cause.
    """

    id: str
    text: str
    evidence: dict[str, float | str | list[int]]
    wait_ms: float
    leads: bool
    remedy: str = ""
    gain_ms_per_step: float | None = None
