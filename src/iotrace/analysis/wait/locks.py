"""How long who makes items waits for a lock: the interpreter's, h5py's, that of a file, the program's own.

Or for a peer that writes into a pipe or a socket, or for nothing but the time: `sleep`.
"""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np
import numpy.typing as npt

from iotrace.analysis.intervals import Coverage, Intervals, Times, distinct, holding
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

INTERPRETER, H5PY, FILE, PROGRAM, PEER, SLEEP = LOCKS = (
    *("interpreter", "h5py", "file", "program", "peer", "sleep"),
)
_NO_END = np.iinfo(np.int64).max
_H5PY = "h5py."  # how the names of its read paths begin
_SPARSE = 0.25  # of what looks found is more than the making that it lies in
_NOTHING = np.zeros(0, np.int64)


class Locked(msgspec.Struct, frozen=True):
    """Waits of makers for one lock, in order of their maker and time: when each began, how long it was.

    `sharing` is the most threads of one process that wait for it, `files` counts the ns by file, or by
    where the program takes its lock: `at` says which of them each wait is at, -1: at none.
    """

    maker: Times
    start_ns: Times
    waited_ns: Times
    sharing: int
    files: dict[str, int]
    at: Times

    def where(self, deliveries: Deliveries, main_pid: int) -> Counter[str]:
        """Count the ns of `files` that lie in the making of `deliveries`: threads wait elsewhere, too."""
        found, places = Counter[str](), [*self.files]
        makers = makers_of(deliveries, main_pid)
        for maker in distinct(self.maker[self.at >= 0]).tolist():
            mine = deliveries[deliveries.made & (makers == maker)]
            mine = mine[np.argsort(mine["taken_ns"], kind="stable")]
            own = (self.maker == maker) & (self.at >= 0)
            inside = holding(mine["taken_ns"], mine["prepared_ns"], self.start_ns[own]) >= 0
            each = zip(self.at[own][inside].tolist(), self.waited_ns[own][inside].tolist(), strict=True)
            for at, ns in each:
                found[places[at]] += ns
        return found

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
        return spread(found, np.where(deliveries.made, deliveries["prepared_ns"] - deliveries["taken_ns"], 0))

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


def spread(found_ns: Times, made_ns: Times) -> Times:
    """Spread over all short items what looks found in some: items that are made faster than looks come.

    A look then stands for several items, and says of each one what it says of all.
    """
    if not found_ns.any():
        return found_ns
    short = made_ns < np.median(found_ns[found_ns > 0])
    seen_ns = int(found_ns[short].sum())
    if np.maximum(found_ns - made_ns, 0)[short].sum() <= _SPARSE * seen_ns:
        return found_ns
    share = min(1.0, seen_ns / max(1, int(made_ns[short].sum())))
    return np.asarray(np.where(short, (share * made_ns).astype(np.int64), found_ns))


def locks_of(analysis: RankAnalysis) -> dict[str, Locked]:
    """Find the waits of a rank's threads for each lock, by its name in `LOCKS`."""
    rows: dict[str, list[tuple[int, Times, Times, Times, Times]]] = {lock: [] for lock in LOCKS}
    files: dict[str, dict[str, int]] = {lock: {} for lock in LOCKS}
    for process in analysis.rank.processes:
        noted, real = process.rows(names.LOCKED_ROW), process.clock.times_to_session_ns
        # Which tell of the loop (`interpreter`), and of what sends batches (`sending`).
        noted = noted[~(_at(process, noted, names.TURN_AT) | _at(process, noted, names.SENDING_AT))]
        of_program, of_file = _at(process, noted, names.LOCK_AT), noted["file"] >= 0
        of_peer, sleeps, idles = (
            _at(process, noted, prefix) for prefix in (names.PEER_AT, names.SLEEP_AT, names.IDLE_AT)
        )
        reading = _reading_h5py(process)
        # A lock in C that two threads or more wait for, which read HDF5.
        of_h5py = _at(process, noted, names.LOCK_AT + names.OF_LIBRARY) & np.isin(
            noted["tid"], reading["tid"]
        )
        by_lock = {
            INTERPRETER: ~of_file,
            FILE: of_file & ~of_program & ~of_peer & ~sleeps & ~idles,
            PEER: of_peer,
            SLEEP: sleeps,
            PROGRAM: of_program & ~of_h5py,
            H5PY: of_h5py,
        }
        for lock, mine in by_lock.items():
            own = noted[mine]
            # What was waited in the making of an item stands at its end, which is the item's.
            start_ns = real(own["end_ns"]) - 1 if lock is INTERPRETER else real(own["start_ns"])
            if lock is H5PY and not len(own):
                waits_ns = _waits(analysis, process, reading) if len(reading) else _NOTHING
                tids = reading["tid"].astype(np.int64)
                rows[H5PY].append((process.pid, tids, reading["start_ns"], waits_ns, np.full(len(tids), -1)))
                continue
            at = np.full(len(own), -1)
            rows[lock].append((process.pid, own["tid"], start_ns, own["waited_ns"], at))
            for number in distinct(own["file"][own["file"] >= 0]).tolist():
                path = _shown(analysis, process.texts.get(number, ""))
                waited_ns = int(own["waited_ns"][own["file"] == number].sum())
                files[lock][path] = files[lock].get(path, 0) + waited_ns
                at[own["file"] == number] = [*files[lock]].index(path)
    return {lock: _joined(rows[lock], files[lock]) for lock in LOCKS}


def waits_within(analysis: RankAnalysis, tid: int, within: Intervals, least_ns: float) -> str | None:
    """Say what a thread of the main process waited for most in these intervals: `pipe at FILE:LINE`.

    None where it was not seen to wait for `least_ns`. That is an estimate, by looks.
    """
    main = analysis.rank.main
    noted = main.rows(names.LOCKED_ROW)
    noted = noted[(noted["tid"] == tid) & (noted["file"] >= 0)]
    noted = noted[holding(*within, main.clock.times_to_session_ns(noted["start_ns"])) >= 0]
    waited: Counter[str] = Counter()
    for number in distinct(noted["file"]).tolist():
        text = main.texts.get(number, "")
        if text.startswith((names.PEER_AT, names.SLEEP_AT)):
            kind = "" if text.startswith(names.PEER_AT) else f"{SLEEP} at "
            waited[kind + _shown(analysis, text)] += int(noted["waited_ns"][noted["file"] == number].sum())
    what, waited_ns = waited.most_common(1)[0] if waited else (None, 0)
    return what if waited_ns >= least_ns else None


def _shown(analysis: RankAnalysis, text: str) -> str:
    """Shorten a path as elsewhere; say where a lock of threads is taken, and by which library."""
    if text.startswith(names.PEER_AT):
        kind, _, site = text.removeprefix(names.PEER_AT).partition(":")
        return f"{kind} at {site.rpartition('/')[2]}"
    prefix = next((each for each in (names.LOCK_AT, names.SLEEP_AT) if text.startswith(each)), None)
    if prefix is None:
        return analysis.session.paths.shown(text)
    library, _, site = text.removeprefix(prefix).partition(":")
    line = site.rpartition("/")[2]
    whose = "a library's lock" if library == names.OF_LIBRARY else library
    return f"{line} ({whose})" if library and not library.startswith("<") else line  # of code without a file


def _joined(rows: list[tuple[int, Times, Times, Times, Times]], files: dict[str, int]) -> Locked:
    sharing = max((len(distinct(row[1])) for row in rows), default=0)
    maker = np.concatenate([maker_key(np.full(len(row[1]), row[0]), row[1]) for row in rows])
    start_ns, waited_ns, at = (np.concatenate([row[place] for row in rows]) for place in (2, 3, 4))
    order = np.lexsort((start_ns, maker))
    return Locked(maker[order], start_ns[order], waited_ns[order], sharing, files, at[order])


def _at(process: Process, noted: Columns, prefix: str) -> npt.NDArray[np.bool_]:
    """Mark waits for what is called so."""
    numbers = [number for number, text in process.texts.items() if text.startswith(prefix)]
    return np.isin(noted["file"], np.array(numbers, np.int64))


def _reading_h5py(process: Process) -> Columns:
    """Return the calls of h5py of a process that makes some in several threads; else none.

    h5py holds one lock for all files. Where no look at the threads tells, one that sleeps in such a call
    outside POSIX calls, while another thread is in one, waits for that one.
    """
    spans = process.spans
    numbers = [number for number, text in process.texts.items() if text.startswith(_H5PY)]
    chosen = (spans["kind"] == KIND_READ_PATH) & np.isin(spans["name"], numbers)
    reading = spans[outermost(spans, chosen)]
    return reading if len(distinct(reading["tid"])) > 1 else reading[:0]


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
