"""How long the threads that make items wait for a lock: the interpreter's, h5py's, that of a file."""

from __future__ import annotations

import msgspec
import numpy as np

from iotrace.analysis.intervals import Coverage, Times, distinct, holding
from iotrace.analysis.loop.deliveries import Deliveries
from iotrace.analysis.loop.hops import maker_key
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.wait.chains import makers_of
from iotrace.analysis.wait.page_faults import bounds
from iotrace.analysis.wait.production import outermost
from iotrace.session import names
from iotrace.session.names import KIND_READ_PATH
from iotrace.sources.columns import Columns
from iotrace.sources.processes import Process

INTERPRETER, H5PY, FILE = LOCKS = ("interpreter", "h5py", "file")
_NO_END = np.iinfo(np.int64).max
_H5PY = "h5py."  # how the names of its read paths begin


class Locked(msgspec.Struct, frozen=True):
    """Waits of makers for one lock, in order of their maker and time: when each began, how long it was.

    `sharing` is the most threads of one process that wait for it, `files` counts the ns by file.
    """

    maker: Times
    start_ns: Times
    waited_ns: Times
    sharing: int
    files: dict[str, int]

    def of(self, deliveries: Deliveries, main_pid: int) -> Times:
        """Sum up what lies in the making of each of `deliveries`, in ns."""
        found = np.zeros(len(deliveries), np.int64)
        makers = makers_of(deliveries, main_pid)
        for maker in distinct(self.maker).tolist():
            mine = np.flatnonzero(deliveries.made & (makers == maker))
            mine = mine[np.argsort(deliveries["taken_ns"][mine], kind="stable")]
            own = self.maker == maker
            at = holding(deliveries["taken_ns"][mine], deliveries["prepared_ns"][mine], self.start_ns[own])
            np.add.at(found, mine[at[at >= 0]], self.waited_ns[own][at >= 0])
        return found

    def of_asks(self, taken: Deliveries, main_pid: int) -> Times:
        """Sum up what lies in the asks for each of the deliveries `taken`, in ns."""
        found = np.zeros(len(taken), np.int64)
        order = np.argsort(taken["wait_start_ns"], kind="stable")
        starts = taken["wait_start_ns"][order]
        for tid in distinct(taken["tid"]).tolist():
            own = self.maker == maker_key(np.array(main_pid), np.array(tid))
            at = holding(starts, np.append(starts[1:], _NO_END), self.start_ns[own])
            np.add.at(found, order[at[at >= 0]], self.waited_ns[own][at >= 0])
        return np.minimum(found, taken.wait_ns)


def locks_of(analysis: RankAnalysis) -> dict[str, Locked]:
    """Find the waits of a rank's threads for each lock, by its name in `LOCKS`."""
    rows: dict[str, list[tuple[int, Times, Times, Times]]] = {lock: [] for lock in LOCKS}
    files: dict[str, int] = {}
    for process in analysis.rank.processes:
        noted, real = process.rows(names.LOCKED_ROW), process.clock.times_to_session_ns
        of_file = noted["file"] >= 0
        for lock, own in ((INTERPRETER, noted[~of_file]), (FILE, noted[of_file])):
            # What was waited in the making of an item stands at its end, which is the item's.
            start_ns = real(own["start_ns"]) if lock is FILE else real(own["end_ns"]) - 1
            rows[lock].append((process.pid, own["tid"], start_ns, own["waited_ns"]))
        for number, waited_ns in zip(
            noted[of_file]["file"].tolist(), noted[of_file]["waited_ns"].tolist(), strict=True
        ):
            path = analysis.session.paths.shown(process.texts.get(number, ""))
            files[path] = files.get(path, 0) + waited_ns
        rows[H5PY].append((process.pid, *_in_h5py(analysis, process)))
    return {lock: _joined(rows[lock], files if lock is FILE else {}) for lock in LOCKS}


def _joined(rows: list[tuple[int, Times, Times, Times]], files: dict[str, int]) -> Locked:
    sharing = max((len(distinct(tids)) for _, tids, _, _ in rows), default=0)
    maker = np.concatenate([maker_key(np.full(len(tids), pid), tids) for pid, tids, _, _ in rows])
    start_ns, waited_ns = (np.concatenate([row[place] for row in rows]) for place in (2, 3))
    order = np.lexsort((start_ns, maker))
    return Locked(maker[order], start_ns[order], waited_ns[order], sharing, files)


def _in_h5py(analysis: RankAnalysis, process: Process) -> tuple[Times, Times, Times]:
    """Find which thread waited for h5py's lock, when, for how long.

    A thread that sleeps in a call of h5py outside POSIX calls, while another thread of its process is in
    one, waits for that one: h5py holds one lock for all files.
    """
    spans = process.spans
    numbers = [number for number, text in process.texts.items() if text.startswith(_H5PY)]
    chosen = (spans["kind"] == KIND_READ_PATH) & np.isin(spans["name"], numbers)
    reading = spans[outermost(spans, chosen)]
    if len(distinct(reading["tid"])) < 2:
        none = np.zeros(0, np.int64)
        return none, none, none
    waits_ns = _waits(analysis, process, reading)
    return reading["tid"].astype(np.int64), reading["start_ns"], waits_ns


def _waits(analysis: RankAnalysis, process: Process, reading: Columns) -> Times:
    """How long each call slept outside POSIX calls while another thread was in one."""
    starts, ends = bounds(reading)
    calls = analysis.session.calls_of(process)
    found = np.zeros(len(starts), np.int64)
    for tid in distinct(reading["tid"]).tolist():
        own, others = reading["tid"] == tid, reading["tid"] != tid
        in_calls = calls.where(calls.tid == tid)
        posix_ns = Coverage(in_calls.start_ns, in_calls.end_ns).within(starts[own], ends[own])
        delay_ns = np.maximum(reading["run_delay_ns"][own], 0)
        slept_ns = reading["duration_ns"][own] - reading["cpu_ns"][own] - delay_ns - posix_ns
        beside_ns = Coverage(starts[others], ends[others]).within(starts[own], ends[own])
        switched = reading["voluntary_switches"][own] > 0
        found[own] = np.where(switched, np.clip(np.minimum(slept_ns, beside_ns), 0, None), 0)
    return found
