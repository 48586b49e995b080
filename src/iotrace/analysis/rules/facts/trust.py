"""What the rules on trust look at: a rank's report, and what holds for the whole run."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from iotrace.analysis.results import ClockInfo, RankReport, SessionInfo
from iotrace.session.manifest import NotCaptured


class TrustFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's report; `waits_longest`: of all ranks it does, and decides the class of the verdict."""

    report: RankReport
    waits_longest: bool = True


class RunFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for all ranks: the session, what was lost of it, its clocks, the shortest mean step.

    `untrained` is a process without a measured step, of a job where others have some. `withheld` says why no
    rank is named as late.
    """

    session: SessionInfo
    losses: Sequence[NotCaptured] = ()
    clocks: Sequence[ClockInfo] = ()
    step_ms: float | None = None
    untrained: str | None = None
    withheld: str | None = None
