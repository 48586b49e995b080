"""What will run out at the rate at which it grows: memory, descriptors, mappings, /dev/shm.

Definitions: docs/definitions.md, "forecasts[]". Advice that could be wrong stays silent: a growth that
flattens, or whose interval holds 0, is no forecast.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from iotrace.analysis.results import Forecast
from iotrace.sources.samples import MemoryRecord
from iotrace.sources.session import Session
from iotrace.sources.telemetry import Telemetry
from iotrace.units import size, time_span

FEWEST_SAMPLES = 20
_BLOCKS, _LATER = 16, 8  # the rates of the later blocks make the forecast
_T95 = 2.365  # Student's t of seven degrees of freedom
_STEADY = 0.7  # of the earlier rate: what falls below flattens
_LONGEST_S = 7 * 86_400.0  # what comes later is not told
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
    mean, spread = float(later.mean()), _T95 * float(later.std(ddof=1)) / _LATER**0.5
    earlier, last = float(rates[3:7].mean()), float(rates[-4:].mean())
    if mean - spread <= 0 or last < _STEADY * earlier:
        return None
    return Slope(mean, mean - spread, mean + spread, float(at[-_LATER - 1]))


def forecasts_of(session: Session) -> list[Forecast]:
    """Forecast for each host what runs out within a week, the soonest first."""
    found = [each for telemetry in session.telemetry for each in _of_host(session, telemetry)]
    return sorted(found, key=lambda one: one.seconds if one.seconds is not None else _LONGEST_S)


def _of_host(session: Session, telemetry: Telemetry) -> list[Forecast]:
    records = telemetry.memory
    while records and not records[-1].processes:  # read when the job's last process had ended
        records = records[:-1]
    if len(records) < FEWEST_SAMPLES:
        return []
    host = telemetry.sampler.host or telemetry.sampler.node
    named = {}
    for process in session.processes:
        if (sampled := telemetry.process_of(process)) is not None:
            role = session.role_of(process) if process.worker is None else f"worker {process.worker}"
            named[sampled.number] = process.pid, role
    return [
        each
        for each in (_memory(records, host, named), _shm(records, host), *_counts(records, host, named))
        if each is not None
    ]


def _memory(records: Sequence[MemoryRecord], host: str, named: dict[int, tuple[int, str]]) -> Forecast | None:
    """Forecast the end of memory, by the tightest control group, else by the sum of PSS and what is free."""
    times = _times(records)
    groups = [record.group for record in records if record.group is not None]
    last = records[-1]
    if len(groups) == len(records):
        used = np.array([group[0] for group in groups], np.float64)
        limit, limit_of = groups[-1][1], "cgroup"
    elif last.available_bytes is not None:
        sums = [sum(row[_PROPORTIONAL] for row in record.processes) for record in records]
        used = np.array(sums, np.float64)
        limit, limit_of = int(used[-1]) + last.available_bytes, "host"
    else:
        return None
    slope = slope_of(times, used)
    if slope is None or slope.per_s * (times[-1] - slope.since_s) < _LEAST_BYTES:
        return None
    kind, grows, left = _grown(records, slope, named)
    room = limit - float(used[-1])
    if kind == "copy-on-write" and left < room:
        text = f"memory grows by copying on write, by {size(left)} more at most: that fits"
        return _forecast("memory", kind, host, (used[-1], limit, limit_of), slope, None, text, grows=grows)
    ends = _ends(room, slope)
    if ends is None:
        return None
    who = max(grows, key=lambda name: grows[name], default=None)
    why = {
        "leak": f": {who} grows by {size(grows.get(who or '', 0.0))} an hour",
        "shared-memory": ": shared memory (/dev/shm) grows",
        "copy-on-write": ": workers copy what they share with the training",
    }.get(kind, "")
    text = f"out of memory in {_span(*ends)} at this rate{why}"
    return _forecast("memory", kind, host, (used[-1], limit, limit_of), slope, ends, text, grows=grows)


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
    grows = {
        named.get(number, (0, "another process"))[1]: 3600 * bytes_ / length_s
        for number, bytes_ in sorted(own.items(), key=lambda pair: pair[1])
        if bytes_ >= _LEAST_BYTES / 4
    }
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


def _shm(records: Sequence[MemoryRecord], host: str) -> Forecast | None:
    known = [(record.mono_ns / 1e9, record.shm) for record in records if record.shm is not None]
    if not known or not known[-1][1][1]:
        return None
    used, limit = np.array([shm[0] for _, shm in known], np.float64), known[-1][1][1]
    slope = slope_of(np.array([time_s for time_s, _ in known]), used)
    ends = None if slope is None else _ends(limit - float(used[-1]), slope)
    if slope is None or ends is None:
        return None
    text = f"/dev/shm is full in {_span(*ends)} at this rate ({size(used[-1])} of {size(limit)})"
    return _forecast("shm", "shared-memory", host, (used[-1], limit, "host"), slope, ends, text)


def _counts(records: Sequence[MemoryRecord], host: str, named: dict[int, tuple[int, str]]) -> list[Forecast]:
    """Forecast who runs out of descriptors or mappings."""
    found: list[Forecast] = []
    for number in [row[_NUMBER] for row in records[-1].processes]:
        rows = [
            (record.mono_ns / 1e9, row)
            for record in records
            for row in record.processes
            if row[_NUMBER] == number
        ]
        times, last = np.array([time_s for time_s, _ in rows]), rows[-1][1]
        limits = {
            "descriptors": (_OPEN, last[_MOST_OPEN]),
            "mappings": (_MAPPED, records[-1].most_mappings),
        }
        for what, (column, limit) in limits.items():
            values = np.array([row[column] for _, row in rows], np.float64)
            slope = slope_of(times, values) if limit > 0 and (values >= 0).all() else None
            ends = None if slope is None else _ends(limit - float(values[-1]), slope)
            if slope is None or ends is None:
                continue
            pid, role = named.get(number, (None, "a process"))
            text = f"{role} has no {what} left in {_span(*ends)} at this rate ({values[-1]:.0f} of {limit})"
            most = values[-1], limit, "process" if what == "descriptors" else "host"
            found.append(_forecast(what, "leak", host, most, slope, ends, text, pid=pid, role=role))
    return found


def _forecast(
    what: str,
    kind: str,
    host: str,
    of: tuple[float, int, str],
    slope: Slope,
    ends: tuple[float, float, float] | None,
    text: str,
    grows: dict[str, float] | None = None,
    pid: int | None = None,
    role: str | None = None,
) -> Forecast:
    """Make a forecast `of` what is used of which limit."""
    return Forecast(
        what=what,
        kind=kind,
        host=host,
        pid=pid,
        role=role,
        used=int(of[0]),
        limit=int(of[1]),
        limit_of=of[2],
        per_hour=3600 * slope.per_s,
        per_hour_ci95=[3600 * slope.low, 3600 * slope.high],
        seconds=None if ends is None else ends[0],
        seconds_ci95=None if ends is None else [ends[1], ends[2]],
        grows=grows or {},
        text=text,
    )


def _ends(room: float, slope: Slope) -> tuple[float, float, float] | None:
    """In how many s `room` is used up, and the bounds of that; None where it is later than is told."""
    if room <= 0 or room / slope.per_s > _LONGEST_S:
        return None
    return room / slope.per_s, room / slope.high, room / slope.low


def _span(seconds: float, soonest: float, latest: float) -> str:
    """Format a time with the larger side of its interval; without a latest end that is near, the soonest."""
    off = max(seconds - soonest, latest - seconds)
    if off >= seconds:
        return f"{time_span(soonest)} or more"
    return f"{time_span(seconds)} ± {time_span(off if seconds < 600 else 60 * max(1, round(off / 60)))}"


def _times(records: Sequence[MemoryRecord]) -> Floats:
    return np.array([record.mono_ns / 1e9 for record in records])
