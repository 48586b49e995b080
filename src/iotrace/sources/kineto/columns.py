"""Kineto's lines, chunk by chunk, into the columns of a `KinetoTrace`."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt

from iotrace.sources.chrome.json_events import EventReader
from iotrace.sources.kineto.events import NO_ARGUMENTS, Arguments, Collective, Line, collective_of
from iotrace.sources.kineto.kinds import FLOWS, is_collective_range
from iotrace.sources.kineto.trace import Column, Events, Flows, KinetoTrace, Thread

# Kineto counts its times from a multiple of three months since the epoch (libkineto's ChromeTraceBaseTime).
_BASE_QUANTUM_NS = 7_889_238 * 10**9
# Below this, a double of microseconds tells one nanosecond from the next.
_EXACT_US = 2.0**43
_FARTHEST_US = 2.0**53
_YEAR_2000_NS = 946_684_800 * 10**9


class _Index(dict[Any, int]):
    """Numbers keys in the order they come."""

    def __missing__(self, key: Any) -> int:
        self[key] = number = len(self)
        return number


class Columns:
    """Collects the columns of a file chunk by chunk."""

    def __init__(self, exact: bool = False) -> None:
        self._exact = exact
        self._parts: dict[str, list[npt.NDArray[Any]]] = {}
        self._names, self._categories, self._threads = _Index(), _Index(), _Index()
        self._flow_categories, self._flow_ids = _Index(), _Index()
        self._collectives: list[Collective] = []
        self._collective_ranges: list[bool] = []  # by number of the name
        self._process_names: dict[int | str, str] = {}
        self._thread_names: dict[Thread, str] = {}
        self._unread: dict[str, int] = {}
        self._untimed = 0

    def add(self, lines: Iterable[Line]) -> bool:
        """Take the chunk in; False where its times need `ExactLine` and are none."""
        events: list[Line] = []
        flows: list[Line] = []
        for line in lines:
            phase = line.ph
            if phase == "X" or phase == "i" or phase == "I":
                events.append(line)
            elif phase == "s" or phase == "f" or phase == "t":
                flows.append(line)
            elif phase == "M":
                self._metadata(line)
            else:
                self._unread[phase] = self._unread.get(phase, 0) + 1
        return self._add_events(events) and self._add_flows(flows)

    def _times(self, lines: list[Line]) -> tuple[list[Line], Column] | None:
        """Start times in ns, and the lines that have one; None where float64 does not hold them."""
        if self._exact:
            timed = [line for line in lines if isinstance(line.ts, Decimal) and abs(line.ts) < _FARTHEST_US]
            self._untimed += len(lines) - len(timed)
            return timed, _column([round(Decimal(line.ts or 0) * 1000) for line in timed])
        us = np.array([line.ts for line in lines], dtype=np.float64)
        usable = np.abs(us) < _FARTHEST_US  # NaN is not
        if not usable.all():
            self._untimed += int((~usable).sum())
            lines = [line for line, keep in zip(lines, usable.tolist(), strict=True) if keep]
            us = us[usable]
        if len(us) and (np.abs(us) >= _EXACT_US).any() and (us != np.floor(us)).any():
            return None
        return lines, _ns(us)

    def _add_events(self, lines: list[Line]) -> bool:
        timed = self._times(lines)
        if timed is None:
            return False
        lines, start_ns = timed
        durations = np.array([line.dur for line in lines], dtype=np.float64)
        durations[~(np.abs(durations) < _FARTHEST_US)] = 0.0
        args = [line.args or NO_ARGUMENTS for line in lines]
        self._append("start_ns", start_ns)
        self._append("duration_ns", np.maximum(_ns(durations), 0))
        self._append("instant", np.array([line.ph != "X" for line in lines], dtype=np.bool_))
        self._append("thread", _column([self._threads[line.pid, line.tid] for line in lines]))
        self._append("category", _column([self._categories[line.cat] for line in lines]))
        names = [self._names[line.name] for line in lines]
        self._append("name", _column(names))
        self._append("correlation", _integers([one.correlation for one in args]))
        self._append("stream", _integers([one.stream for one in args]))
        self._append("device", _integers([one.device for one in args]))
        self._append("external_id", _integers([one.external_id for one in args]))
        old = _integers([one.old_external_id for one in args])
        self._parts["external_id"][-1] = np.where(old >= 0, old, self._parts["external_id"][-1])
        self._append("sequence", _integers([one.sequence for one in args]))
        self._append("forward_thread", _integers([one.forward_thread for one in args]))
        self._append("bytes", _integers([one.bytes for one in args]))
        self._add_collectives(lines, names, args)
        return True

    def _add_collectives(self, lines: list[Line], names: list[int], args: list[Arguments]) -> None:
        ranges = self._collective_ranges
        ranges += map(is_collective_range, list(self._names)[len(ranges) :])
        column = np.full(len(lines), -1, dtype=np.int64)
        for place, (name, one) in enumerate(zip(names, args, strict=True)):
            if one.collective is not None or ranges[name]:
                column[place] = len(self._collectives)
                self._collectives.append(collective_of(lines[place].name, one))
        self._append("collective", column)

    def _add_flows(self, lines: list[Line]) -> bool:
        timed = self._times(lines)
        if timed is None:
            return False
        lines, time_ns = timed
        categories = [FLOWS.get(line.cat.lower(), line.cat) for line in lines]
        self._append("flow_time_ns", time_ns)
        self._append("flow_thread", _column([self._threads[line.pid, line.tid] for line in lines]))
        self._append("flow_category", _column([self._flow_categories[category] for category in categories]))
        self._append(
            "flow",
            _column(
                [self._flow_ids[category, line.id] for category, line in zip(categories, lines, strict=True)]
            ),
        )
        self._append("flow_phase", _column([ord(line.ph) for line in lines]))
        return True

    def _metadata(self, line: Line) -> None:
        if line.args is None or not line.args.name or line.pid is None:
            return
        if line.name == "process_name":
            self._process_names[_number(line.pid)] = str(line.args.name)
        elif line.name == "thread_name" and line.tid is not None:
            self._thread_names[_number(line.pid), _number(line.tid)] = str(line.args.name)

    def _append(self, name: str, part: npt.NDArray[Any]) -> None:
        self._parts.setdefault(name, []).append(part)

    def _whole(self, name: str) -> npt.NDArray[Any]:
        parts = self._parts.pop(name, [])
        dtype = np.bool_ if name == "instant" else np.int64
        return np.concatenate(parts) if parts else np.empty(0, dtype=dtype)

    def trace(self, reader: EventReader[Any], near_ns: int | None) -> KinetoTrace:
        """Everything that was added, with the base time applied."""
        problems = reader.problems
        document = reader.document
        start_ns, flow_time_ns = self._whole("start_ns"), self._whole("flow_time_ns")
        base_ns = _base(document, start_ns, near_ns, problems)
        # Threads are named by numbers and by strings of numbers, in one trace: the same ones.
        threads = _Index()
        same = np.array([threads[_number(pid), _number(tid)] for pid, tid in self._threads] or [0])
        if self._untimed:
            problems.append(f"{self._untimed} events without a time were left out")
        if self._unread.keys() & {"B", "E"}:
            pairs = self._unread.get("B", 0)
            problems.append(f"{pairs} events told by their begin and end apart were left out")
        distributed = document.get("distributedInfo")
        distributed = distributed if isinstance(distributed, dict) else {}
        devices = document.get("deviceProperties")
        return KinetoTrace(
            path=reader.path,
            events=Events(
                start_ns=start_ns + (base_ns or 0),
                duration_ns=self._whole("duration_ns"),
                instant=self._whole("instant"),
                thread=same[self._whole("thread")],
                category=self._whole("category"),
                name=self._whole("name"),
                correlation=self._whole("correlation"),
                stream=self._whole("stream"),
                device=self._whole("device"),
                external_id=self._whole("external_id"),
                sequence=self._whole("sequence"),
                forward_thread=self._whole("forward_thread"),
                bytes=self._whole("bytes"),
                collective=self._whole("collective"),
            ),
            flows=Flows(
                time_ns=flow_time_ns + (base_ns or 0),
                thread=same[self._whole("flow_thread")],
                category=self._whole("flow_category"),
                flow=self._whole("flow"),
                phase=self._whole("flow_phase"),
            ),
            names=list(self._names),
            categories=list(self._categories),
            flow_categories=list(self._flow_categories),
            threads=list(threads),
            collectives=self._collectives,
            base_ns=base_ns,
            rank=_whole_number(distributed.get("rank")),
            world_size=_whole_number(distributed.get("world_size")),
            devices=[one for one in devices if isinstance(one, dict)] if isinstance(devices, list) else [],
            process_names=self._process_names,
            thread_names=self._thread_names,
            document=document,
            problems=problems,
        )


def _ns(us: npt.NDArray[np.float64]) -> Column:
    # Whole and fractional part apart: 1000 times a large double would round once more.
    whole = np.floor(us)
    return whole.astype(np.int64) * 1000 + np.rint((us - whole) * 1000).astype(np.int64)


def _column(numbers: list[int]) -> Column:
    return np.array(numbers, dtype=np.int64)


def _integers(values: list[Any]) -> Column:
    """A column of what should be integers; -1 for what is none."""
    try:
        column = np.array(values)
        if column.dtype == np.int64:
            return column
    except (OverflowError, ValueError):
        pass
    return _column([-1 if (number := _whole_number(value)) is None else number for value in values])


def _whole_number(value: Any) -> int | None:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if abs(number) < 2**62 else None


def _number(value: int | str | None) -> int | str:
    """A process or thread as a number where it is one, also in a string."""
    if isinstance(value, str):
        return int(value) if value.isdecimal() and value.isascii() else value
    return 0 if value is None else value


def _base(document: dict[str, Any], start_ns: Column, near_ns: int | None, problems: list[str]) -> int | None:
    """What the times are counted from; 0 where they are absolute, None where that is not known."""
    told = _whole_number(document.get("baseTimeNanoseconds"))
    if told is not None:
        return told
    if not len(start_ns) or int(np.median(start_ns)) > _YEAR_2000_NS:
        return 0
    if near_ns is None:
        problems.append("does not say what its times are counted from: they have no date")
        return None
    first_ns = int(start_ns.min())
    periods = round((near_ns - first_ns) / _BASE_QUANTUM_NS)
    problems.append("its base time was cut off with its end, and inferred from Kineto's counting in quarters")
    return periods * _BASE_QUANTUM_NS
