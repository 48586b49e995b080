"""What will run out at the rate at which it grows: memory, descriptors, mappings, /dev/shm.

Definitions: docs/definitions.md, "forecasts[]". Advice that could be wrong stays silent: a growth that
flattens, or whose interval holds 0, is no forecast.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property

import msgspec
import numpy as np
import numpy.typing as npt

from iotrace.analysis.resampling import student_t
from iotrace.analysis.results import Forecast
from iotrace.analysis.rules.facts.forecast import ForecastFacts
from iotrace.analysis.rules.forecast import DAY_S, LONGEST_DAYS
from iotrace.analysis.rules.model import find_all
from iotrace.sources.samples import MemoryRecord
from iotrace.sources.session import Session
from iotrace.sources.telemetry import Telemetry

FEWEST_SAMPLES = 20
_BLOCKS, _LATER = 16, 8  # the rates of the later blocks make the forecast
_STEADY = 0.7  # of the earlier rate: what falls below flattens
_LEAST_BYTES = 16 << 20  # grown over the later blocks
_MOSTLY = 0.5
_FLAT = 0.1  # of what was copied: the anonymous memory of who copies on write stays as it is
_NUMBER, _ANONYMOUS, _PROPORTIONAL, _DIRTY, _SHARED, _OPEN, _MOST_OPEN, _MAPPED = range(8)

Floats = npt.NDArray[np.float64]


class Slope(msgspec.Struct, frozen=True):
    """How much a figure grows a second, and between which bounds (95 %); `since_s`: of which samples."""

    per_s: float
    low: float
    high: float
    since_s: float


def slope_of(times_s: Floats, values: Floats) -> Slope | None:
    """Find how fast a figure grows in the later half; None where it may not grow, flattens, or is too new."""
    if len(values) < FEWEST_SAMPLES:
        return None
    each = len(values) // _BLOCKS
    whole = slice(len(values) - each * _BLOCKS, None)
    at, level = (column[whole].reshape(_BLOCKS, each).mean(axis=1) for column in (times_s, values))
    gaps = np.diff(at)
    if (gaps <= 0).any():
        return None
    rates = np.diff(level) / gaps
    later = rates[-_LATER:]
    mean, spread = float(later.mean()), student_t(_LATER - 1) * float(later.std(ddof=1)) / _LATER**0.5
    earlier, last = float(rates[3:7].mean()), float(rates[-4:].mean())
    if mean - spread <= 0 or last < _STEADY * earlier:
        return None
    return Slope(mean, mean - spread, mean + spread, float(at[-_LATER - 1]))


def forecasts_of(session: Session) -> list[Forecast]:
    """Forecast for each host what runs out within a week, the soonest first."""
    found = [each for telemetry in session.telemetry for each in _of_host(session, telemetry)]
    return sorted(found, key=lambda one: one.seconds if one.seconds is not None else LONGEST_DAYS * DAY_S)


def _of_host(session: Session, telemetry: Telemetry) -> Iterator[Forecast]:
    records = telemetry.memory
    while records and not records[-1].processes:  # read when the job's last process had ended
        records = records[:-1]
    if len(records) < FEWEST_SAMPLES:
        return
    host = telemetry.sampler.host or telemetry.sampler.node
    named = {}
    for process in session.processes:
        if (sampled := telemetry.process_of(process)) is not None:
            role = session.role_of(process) if process.worker is None else f"worker {process.worker}"
            named[sampled.number] = process.pid, role
    yield from _memory(records, host, named)
    yield from _shm(records, host)
    yield from _counts(records, host, named)


class _Gauge(msgspec.Struct, frozen=True, dict=True):
    """A figure that may reach its limit, by samples; of which host, and of which of its processes."""

    what: str
    host: str
    times_s: Floats
    values: Floats
    limit: int
    limit_of: str
    pid: int | None = None
    role: str | None = None

    @property
    def used(self) -> float:
        """Its last value."""
        return float(self.values[-1])

    @cached_property
    def slope(self) -> Slope | None:
        """How fast it grows; None where it may not."""
        return slope_of(self.times_s, self.values)

    def forecast(
        self,
        kind: str,
        who: str = "",
        grows: dict[str, float] | None = None,
        left_bytes: float | None = None,
    ) -> Iterator[Forecast]:
        """Yield when its limit is reached, where a rule tells of it."""
        room, slope, grows = self.limit - self.used, self.slope, grows or {}
        if slope is None or room <= 0:
            return
        seconds, soonest_s, latest_s = (room / rate for rate in (slope.per_s, slope.high, slope.low))
        facts = ForecastFacts(
            what=self.what,
            kind=kind,
            used=self.used,
            limit=self.limit,
            seconds=seconds,
            soonest_s=soonest_s,
            latest_s=latest_s,
            who=who,
            who_per_hour=grows.get(who, 0.0),
            left_bytes=left_bytes,
        )
        for found in find_all("forecast", facts):
            yield Forecast(
                what=self.what,
                kind=kind,
                host=self.host,
                pid=self.pid,
                role=self.role,
                used=int(self.used),
                limit=self.limit,
                limit_of=self.limit_of,
                per_hour=3600 * slope.per_s,
                per_hour_ci95=[3600 * slope.low, 3600 * slope.high],
                seconds=None if facts.copies_fit else seconds,
                seconds_ci95=None if facts.copies_fit else [soonest_s, latest_s],
                grows=grows,
                text=found.text,
                code=found.rule,
            )


def _memory(
    records: Sequence[MemoryRecord], host: str, named: dict[int, tuple[int, str]]
) -> Iterator[Forecast]:
    """Forecast the end of memory, by the tightest control group, else by the sum of PSS and what is free."""
    groups = [record.group for record in records if record.group is not None]
    available_bytes = records[-1].available_bytes
    if len(groups) == len(records):
        values, limit, limit_of = [group[0] for group in groups], groups[-1][1], "cgroup"
    elif available_bytes is not None:
        values = [sum(row[_PROPORTIONAL] for row in record.processes) for record in records]
        limit, limit_of = values[-1] + available_bytes, "host"
    else:
        return
    times_s = np.array([record.mono_ns / 1e9 for record in records])
    gauge = _Gauge("memory", host, times_s, np.array(values, np.float64), limit, limit_of)
    slope = gauge.slope
    if slope is None or slope.per_s * (times_s[-1] - slope.since_s) < _LEAST_BYTES:
        return
    kind, grows, left = _grown(records, slope, named)
    who = max(grows, key=lambda name: grows[name], default="")
    yield from gauge.forecast(kind, who, grows, left if kind == "copy-on-write" else None)


def _grown(
    records: Sequence[MemoryRecord], slope: Slope, named: dict[int, tuple[int, str]]
) -> tuple[str, dict[str, float], float]:
    """Tell a leak from copying on write: the kind of growth, by which process, and what may yet be copied."""
    later = [record for record in records if record.mono_ns / 1e9 >= slope.since_s]
    first, last = ({row[_NUMBER]: row for row in record.processes} for record in (later[0], later[-1]))
    length_s = (later[-1].mono_ns - later[0].mono_ns) / 1e9
    both = [(first[number], row) for number, row in last.items() if number in first]
    own = {before[_NUMBER]: now[_ANONYMOUS] - before[_ANONYMOUS] for before, now in both}
    own |= {number: row[_ANONYMOUS] - row[_SHARED] for number, row in last.items() if number not in first}
    grown = slope.per_s * length_s
    roles = Counter(named[number][1] for number in own if number in named)
    grows: dict[str, float] = defaultdict(float)
    for number, bytes_ in sorted(own.items(), key=lambda pair: pair[1]):
        if bytes_ >= _LEAST_BYTES / 4:
            pid, role = named.get(number, (0, "another process"))
            grows[f"{role} (pid {pid})" if roles[role] > 1 else role] += 3600 * bytes_ / length_s
    copied = {
        before[_NUMBER]: min(now[_DIRTY] - before[_DIRTY], before[_SHARED] - now[_SHARED])
        for before, now in both
        if abs(own[before[_NUMBER]]) <= _FLAT * max(1, now[_DIRTY] - before[_DIRTY])
    }
    if sum(max(0, each) for each in own.values()) >= _MOSTLY * grown:
        return "leak", grows, 0.0
    if sum(max(0, each) for each in copied.values()) >= _MOSTLY * grown:
        left = sum(last[number][_SHARED] for number, each in copied.items() if each > 0)
        return "copy-on-write", grows, float(left)
    shm = [record.shm[0] for record in (later[0], later[-1]) if record.shm is not None]
    if len(shm) == 2 and shm[1] - shm[0] >= _MOSTLY * grown:
        return "shared-memory", grows, 0.0
    return "growth", grows, 0.0


def _shm(records: Sequence[MemoryRecord], host: str) -> Iterator[Forecast]:
    known = [(record.mono_ns / 1e9, *record.shm) for record in records if record.shm is not None]
    if not known or not known[-1][2]:
        return
    times_s, used, limits = np.array(known, np.float64).T
    gauge = _Gauge("shm", host, times_s, used, int(limits[-1]), "host")
    yield from gauge.forecast("shared-memory")


def _counts(
    records: Sequence[MemoryRecord], host: str, named: dict[int, tuple[int, str]]
) -> Iterator[Forecast]:
    """Forecast who runs out of descriptors or mappings."""
    rows_of: dict[int, list[tuple[float, ...]]] = defaultdict(list)
    for record in records:
        for row in record.processes:
            rows_of[row[_NUMBER]].append((record.mono_ns / 1e9, *row))
    for number in [row[_NUMBER] for row in records[-1].processes]:
        times_s, *columns = np.array(rows_of[number]).T
        opened, most_open, mapped = columns[_OPEN], columns[_MOST_OPEN], columns[_MAPPED]
        pid, role = named.get(number, (None, "a process"))
        for gauge in (
            _Gauge("descriptors", host, times_s, opened, int(most_open[-1]), "process", pid, role),
            _Gauge("mappings", host, times_s, mapped, records[-1].most_mappings, "host", pid, role),
        ):
            if gauge.limit > 0 and (gauge.values >= 0).all():
                yield from gauge.forecast("leak", role)
