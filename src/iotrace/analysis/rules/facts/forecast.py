"""What grows towards its limit: what a forecast rests on."""

from __future__ import annotations

import msgspec


class ForecastFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A figure that grows for certain: `what` it is, `used` now, and its `limit`, in bytes or a number.

    At this rate it is reached in `seconds`, between `soonest_s` and `latest_s` (95 %). `kind` is how it
    grows, `who` has most of the growth (`who_per_hour`). By copying on write `left_bytes` may yet be copied.
    """

    what: str
    kind: str
    used: float
    limit: float
    seconds: float
    soonest_s: float
    latest_s: float
    who: str = ""
    who_per_hour: float = 0.0
    left_bytes: float | None = None

    @property
    def copies_fit(self) -> bool:
        """Whether what may yet be copied fits in what is left."""
        return self.left_bytes is not None and self.left_bytes < self.limit - self.used
