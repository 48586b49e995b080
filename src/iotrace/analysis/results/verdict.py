"""The first thing that a report says: what it found, why, who is to blame, what to change, how sure it is."""

from __future__ import annotations

import msgspec

from iotrace.analysis.results.base import ReportPart


class Fix(ReportPart, frozen=True, kw_only=True):
    """A change to make; its gain is an upper bound, or where `gain_interval_ms` is known a prediction.

    Gains of several do not add up.
    """

    id: str
    text: str
    gain_ms_per_step: float | None
    speedup: float | None
    at_most: bool = True
    gain_interval_ms: list[float] | None = None


class Trust(ReportPart, frozen=True, kw_only=True):
    """How far the figures can be relied on: ``ok``, ``caution`` or ``bad``, and what that rests on."""

    level: str
    reasons: list[str]


class Verdict(ReportPart, frozen=True, kw_only=True):
    """What holds for the whole job; `rank` is the one that it is about, `text` begins with its `banner`.

    `until` is what held until the job failed; None where it did not. `culprit`: the id of the rank's culprit
    that `why` names before the cause.
    """

    text: str
    banner: str
    kind: str = msgspec.field(name="class")
    why: str | None
    file: str | None
    cause: str | None
    rank: int | None
    until: str | None
    fixes: list[Fix]
    trust: Trust
    culprit: str | None = None


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
