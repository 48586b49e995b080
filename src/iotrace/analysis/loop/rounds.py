"""When each thread trained: its backward passes and optimizer steps."""

from __future__ import annotations

import msgspec
import numpy as np

from iotrace.analysis.intervals import Coverage, Times, distinct
from iotrace.analysis.loop.deliveries import Deliveries
from iotrace.session import names
from iotrace.sources.processes import Process
from iotrace.sources.records import IteratorEnd

# So many steps at most warm up what is replayed later: torch's recipe for a CUDA graph makes 12.
_WARM_UP = 20


class Rounds(msgspec.Struct, frozen=True):
    """The backward passes and optimizer steps of a thread: times in ns, sorted, by what made them.

    `series` has the backward passes, all optimizer steps, and those of each optimizer.
    """

    times_ns: Times
    series: list[Times]

    @property
    def steps_ns(self) -> Times:
        """One time a step: the steps of the busiest optimizer, without one the backward passes."""
        by_optimizer = self.series[2:]
        return max(by_optimizer, key=len) if by_optimizer else self.times_ns

    def steps_to_an_update(self, starts_ns: Times, end_ns: int) -> float | None:
        """Return how many of the steps that begin at `starts_ns` one of the busiest optimizer's stands for.

        From the first of its steps to the last before `end_ns`; None where there are not two.
        """
        times_ns = max(self.series[2:], key=len, default=self.times_ns[:0])
        begun = np.searchsorted(starts_ns, times_ns[times_ns <= end_ns], side="right")
        begun = begun[begun > 0]
        return float(begun[-1] - begun[0]) / (len(begun) - 1) if len(begun) > 1 else None

    def until(self, times_ns: Times) -> Times:
        """Count the rounds up to each time."""
        return np.searchsorted(self.times_ns, times_ns, side="right")

    def between(self, start_ns: int, end_ns: int) -> bool:
        """Tell whether one lies in ``(start_ns, end_ns]``."""
        first, last = self.until(np.array([start_ns, end_ns])).tolist()
        return bool(first < last)


def is_warm_up(rounds: Rounds, asked: Deliveries) -> bool:
    """Tell whether the rounds only warm up what the loop replays (a CUDA graph): few, before it asks."""
    trained_on = asked[asked.may_train]
    if not len(trained_on) or not len(rounds.times_ns):
        return False
    count = len(rounds.steps_ns)
    is_before = rounds.times_ns[-1] <= trained_on["wait_start_ns"].min()
    return bool(is_before and count <= _WARM_UP and count < len(trained_on))


def rounds_by_thread(main: Process) -> dict[int, Rounds]:
    """Find the rounds of each thread of `main` that trained."""
    rows = main.rows(names.ROUND_ROW)
    times = main.clock.times_to_session_ns(rows["mono_ns"])
    steps, tids = rows["what"] == names.ROUNDS.index("optimizer"), rows["tid"]
    if not len(rows):
        times, tids = _rounds_by_count(main)
        steps = np.zeros(len(times), np.bool_)
    found = {}
    for tid in distinct(tids).tolist():
        own = tids == tid
        numbers = rows["number"][own & steps] if len(rows) else steps[:0]
        by_optimizer = [
            np.sort(times[own & steps & (rows["number"] == number)])
            for number in dict.fromkeys(numbers.tolist())
        ]
        series = [np.sort(times[own & ~steps]), np.sort(times[own & steps]), *by_optimizer]
        found[tid] = Rounds(np.sort(times[own]), series)
    return found


def _rounds_by_count(main: Process) -> tuple[Times, Times]:
    """Read backward passes from the counts that deliveries carry: sessions of older agents have no more."""
    rows, ends = main.rows(names.BATCH_ROW), main.of_type(IteratorEnd)
    at = np.concatenate((rows["delivered_ns"], np.array([each.mono_ns for each in ends], np.int64)))
    count = np.concatenate(
        (rows["backward_count"], np.array([each.backward_count for each in ends], np.int64))
    )
    order = np.argsort(at, kind="stable")
    more = np.diff(count[order], prepend=0)
    last = np.maximum.accumulate(np.where(order < len(rows), order, -1))  # the batch before each ask, or it
    before = np.append(-1, last[:-1])[: len(order)]
    more = np.where(before >= 0, np.maximum(more, 0), 0)
    row = np.repeat(before, more)
    return main.clock.times_to_session_ns(rows["delivered_ns"][row] + 1), rows["tid"][row]


def off_cpu_fraction(main: Process, tid: int, waits: Times) -> float | None:
    """Find the share of the time between the first and the last round of `tid` that it slept, waits aside.

    Time that it was ready to run and had no CPU is no sleep. None where fewer than two rounds say.
    """
    rounds = main.rows(names.ROUND_ROW)
    own = np.flatnonzero(rounds["tid"] == tid)
    if len(own) < 2:
        return None
    fields = ("mono_ns", "cpu_ns", "run_delay_ns")
    (first_ns, first_cpu_ns, first_delay_ns), (last_ns, last_cpu_ns, last_delay_ns) = (
        [int(rounds[field][row]) for field in fields] for row in (own[0], own[-1])
    )
    length_ns = last_ns - first_ns
    delay_ns = max(0, last_delay_ns - max(0, first_delay_ns))
    off_cpu_ns = length_ns - (last_cpu_ns - first_cpu_ns) - delay_ns
    within = main.clock.times_to_session_ns([[first_ns], [last_ns]])
    waited_ns = int(Coverage(waits[:, 0], waits[:, 1]).within(*within)[0])
    return max(0, off_cpu_ns - waited_ns) / length_ns if length_ns else None


def first_at(times: Times, time_ns: int) -> int | None:
    """Return the first of the sorted `times` that is not before `time_ns`; None without one."""
    index = int(np.searchsorted(times, time_ns))
    return int(times[index]) if index < len(times) else None
