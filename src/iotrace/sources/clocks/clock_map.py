"""From one clock's times to another's: a shift, where it was seen a drift, and how sure that is."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.int64]
_GIGA = 1e9


class ClockMap(msgspec.Struct, frozen=True):
    """`shift_ns` is added at the time `at_ns`; it grows by `drift_ppb` ns a second from there on.

    Times stay integers, as a double holds no ns of 1970: only their distance from `at_ns` becomes one.
    The map never turns an order round.
    """

    shift_ns: int = 0
    drift_ppb: float = 0.0
    at_ns: int = 0

    def times(self, times_ns: Times) -> Times:
        """All of `times_ns`, of the other clock."""
        drifted = self._drifted(times_ns - self.at_ns) if self.drift_ppb else 0
        return np.asarray(times_ns + (self.shift_ns + drifted), np.int64)

    def durations(self, times_ns: Times, durations_ns: Times) -> Times:
        """How long what begins at `times_ns` lasts by the other clock: the same, but for a drift.

        Both ends go the same way, or slices that end together would no longer nest.
        """
        if not self.drift_ppb:
            return durations_ns
        since = times_ns - self.at_ns
        changed = durations_ns + (self._drifted(since + durations_ns) - self._drifted(since))
        return np.asarray(np.maximum(changed, 0), np.int64)

    def map_one(self, time_ns: int) -> int:
        """`times` for one time."""
        return time_ns + self.shift_at(time_ns)

    def shift_at(self, time_ns: int) -> int:
        """What is added to `time_ns`."""
        return self.shift_ns + (int(self._drifted(time_ns - self.at_ns)) if self.drift_ppb else 0)

    def moved_to(self, at_ns: int) -> ClockMap:
        """The same map, to within a rounded ns, given by its shift at another time."""
        return msgspec.structs.replace(self, shift_ns=self.shift_at(at_ns), at_ns=at_ns)

    def with_base(self, base_ns: int) -> ClockMap:
        """The map for stamps to which `base_ns` has to be added first."""
        return msgspec.structs.replace(self, shift_ns=self.shift_ns + base_ns, at_ns=self.at_ns - base_ns)

    def compose(self, other: ClockMap) -> ClockMap:
        """First this map, then `other`."""
        ours, others = self.drift_ppb / _GIGA, other.drift_ppb / _GIGA
        return ClockMap(
            self.shift_ns + other.shift_at(self.map_one(self.at_ns)),
            (ours + others + ours * others) * _GIGA,
            self.at_ns,
        )

    def _drifted(self, distance_ns: Any) -> Any:
        return np.rint(np.asarray(distance_ns, np.float64) * (self.drift_ppb / _GIGA)).astype(np.int64)
