"""dftracer 2.x: POSIX calls as JSON lines, into columns.

Hashes of file names are written once, by the first process that met a name: they are pooled over all
files of a run. Lines cut by a signal or a full disk are counted and left out.
"""

from __future__ import annotations

import gc
import glob
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt

from iotrace.sources.clocks.anchors import Clocks
from iotrace.sources.clocks.realtime_correction import Stamper, restamp
from iotrace.sources.clocks.session_clock import Clock, Times
from iotrace.sources.dftracer.lost_calls import Numbers

_CHUNK_BYTES = 8 << 20
_ESCAPED = {0xDC00 + byte: f"\\\\x{byte:02x}" for byte in range(0x80, 0x100)}

# Whatever a damaged line holds, its numbers fit a column of int64, times in ns included.
_Int = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]
_Us = Annotated[int, msgspec.Meta(ge=0, le=2**52)]


class _Arguments(msgspec.Struct):
    ret: _Int | None = None
    offset: _Int | None = None
    count: _Int | None = None
    fhash: str | None = None
    hhash: str | None = None
    name: str | None = None
    value: str | None = None


class _Line(msgspec.Struct):
    name: str
    cat: str
    pid: _Int
    tid: _Int
    ph: _Int
    ts: _Us = 0
    dur: _Us = 0
    id: _Int | None = None
    args: _Arguments | None = None


@dataclass(frozen=True)
class PosixCalls:
    """POSIX calls that have a file, sorted by start; one row per call in every column.

    `result` is what the call returned, -1 also where dftracer does not say (opens); `offset` and `count`
    are -1 where the call has none. `name`, `file` and `node` (the host's own name) index `names`, `files` and
    `nodes`.
    """

    start_ns: npt.NDArray[np.int64]
    end_ns: npt.NDArray[np.int64]
    pid: npt.NDArray[np.int64]
    tid: npt.NDArray[np.int64]
    name: npt.NDArray[np.int64]
    file: npt.NDArray[np.int64]
    result: npt.NDArray[np.int64]
    offset: npt.NDArray[np.int64]
    count: npt.NDArray[np.int64]
    node: npt.NDArray[np.int64]
    names: list[str]
    files: list[str]
    nodes: list[str]
    pids: frozenset[int]
    problems: list[str]
    unsure_ns: int = 0  # what times may be off by, beside their resolution, as a host's clock was set

    def __len__(self) -> int:
        return len(self.start_ns)

    def where(self, keep: npt.NDArray[np.bool_]) -> PosixCalls:
        """The rows for which `keep` (one bool a row) holds."""
        return replace(self, **{name: getattr(self, name)[keep] for name in _COLUMNS})

    def by_process(self) -> dict[tuple[str, int], PosixCalls]:
        """Split the table by host and pid; each part is sorted by start, and a view of one copy."""
        hosts = np.array([self.nodes.index(node) for node in self.nodes] or [0], dtype=np.int64)[self.node]
        order = np.lexsort((self.pid, hosts))  # stable: the order of starts stays
        hosts, pids = hosts[order], self.pid[order]
        whole = {name: getattr(self, name)[order] for name in _COLUMNS}
        first = np.flatnonzero((np.diff(hosts, prepend=-1) != 0) | (np.diff(pids, prepend=0) != 0))
        return {
            (self.nodes[int(hosts[begin])], int(pids[begin])): replace(
                self, **{name: column[begin:end] for name, column in whole.items()}
            )
            for begin, end in pairwise([*first.tolist(), len(order)])
        }


_COLUMNS = ("start_ns", "end_ns", "pid", "tid", "name", "file", "result", "offset", "count", "node")


def concatenate(parts: Sequence[PosixCalls]) -> PosixCalls:
    """The rows of tables that came from one, at least one, sorted by start."""
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS
    }
    order = np.argsort(columns["start_ns"], kind="stable")
    return replace(parts[0], **{name: column[order] for name, column in columns.items()})


class _Index(dict[str, int]):
    """Numbers strings in the order they come."""

    def __missing__(self, key: str) -> int:
        self[key] = number = len(self)
        return number


@dataclass(frozen=True)
class OwnLogs:
    """Logs of dftracer's that a program began by itself: by prefix of their paths, since when.

    They hold the calls of the process that began one, and of those that it started since. Only `pids` count:
    an earlier run may have written to the same place.
    """

    since_ns: dict[str, int]
    pids: frozenset[int]


_NONE = OwnLogs({}, frozenset())


def read_posix(*directories: Path, own_logs: OwnLogs = _NONE, clocks: Clocks | None = None) -> PosixCalls:
    """All calls in the ``.pfw`` files of `directories`, hashes resolved; times in ns (resolution 1 us).

    Also those in `own_logs`. `clocks` bring their times to the session's.
    """
    rows: list[tuple[int, ...]] = []
    logs: list[int] = []  # how many rows there are up to the end of each log
    names, hashes, hosts = _Index(), _Index(), _Index()
    spelled: dict[str, str] = {}
    nodes: dict[str, str] = {}
    pids: set[int] = set()
    problems: list[str] = []
    collecting = gc.isenabled()
    gc.disable()  # nothing here is cyclic, and collecting halves the speed
    try:
        for path, since_ns in _files(directories, own_logs, problems):
            numbers = Numbers()
            for line in _lines(path, problems):
                if line.id is not None:
                    numbers.add(line.pid, line.id)
                arguments = line.args
                if arguments is None:
                    continue
                foreign = since_ns is not None and line.ph == 1
                if foreign and (line.pid not in own_logs.pids or line.ts * 1000 < (since_ns or 0)):
                    continue
                if line.ph == 4:
                    if line.name == "HH" and arguments.value is not None and arguments.name is not None:
                        nodes[arguments.value] = arguments.name
                    elif line.name == "FH" and arguments.value is not None and arguments.name is not None:
                        spelled[arguments.value] = arguments.name
                elif line.ph == 1:
                    pids.add(line.pid)
                    if line.cat != "dftracer" and arguments.fhash is not None:
                        rows.append(
                            (
                                line.ts * 1000,
                                (line.ts + line.dur) * 1000,
                                line.pid,
                                line.tid,
                                names[line.name],
                                hashes[arguments.fhash],
                                -1 if arguments.ret is None else arguments.ret,
                                -1 if arguments.offset is None else arguments.offset,
                                -1 if arguments.count is None else arguments.count,
                                hosts[arguments.hhash or ""],
                            )
                        )
            logs.append(len(rows))
            if since_ns is None:  # a program's own log may hold an earlier run
                problems += numbers.problems()
    finally:
        if collecting:
            gc.enable()
    table = np.array(rows, dtype=np.int64).reshape(-1, len(_COLUMNS))
    host_names = [nodes.get(key, "") for key in hosts]
    unsure_ns = _steady(table, logs, host_names, clocks) if clocks is not None else 0
    table = table[np.argsort(table[:, 0], kind="stable")]
    columns = {name: np.ascontiguousarray(table[:, place]) for place, name in enumerate(_COLUMNS)}
    return PosixCalls(
        **columns,
        names=list(names),
        files=[spelled.get(key, f"(file {key}, name lost)") for key in hashes],
        nodes=host_names,
        pids=frozenset(pids),
        problems=problems,
        unsure_ns=unsure_ns,
    )


def _steady(table: Times, logs: Sequence[int], nodes: Sequence[str], clocks: Clocks) -> int:
    """Bring the times of the rows, in the order of their logs, to the session's; how far they may be off."""
    if all(clock.follows for clock in clocks.of_domain.values()):
        return 0
    pid, tid, node = (_COLUMNS.index(name) for name in ("pid", "tid", "node"))
    log = np.searchsorted(np.array(logs), np.arange(len(table)), side="right")
    keys = np.stack([log, table[:, node], table[:, pid], table[:, tid]], axis=1)
    _, thread = np.unique(keys, axis=0, return_inverse=True)
    by_thread = np.argsort(thread.reshape(-1), kind="stable")
    cuts = np.flatnonzero(np.diff(thread.reshape(-1)[by_thread])) + 1
    stampers: dict[int, list[Stamper]] = {}
    of_id: dict[int, Clock] = {}
    for rows in np.split(by_thread, cuts):
        first = table[rows[0]] if len(rows) else None
        clock = clocks.of(nodes[first[node]], int(first[pid])) if first is not None else None
        if clock is None or first is None:
            continue
        of_id[id(clock)] = clock
        life = clocks.life(nodes[first[node]], int(first[pid]))
        stampers.setdefault(id(clock), []).append(Stamper(rows, int(log[rows[0]]), *life))
    starts, ends = table[:, 0].copy(), table[:, 1].copy()
    unsure_ns = 0
    for key, own in stampers.items():
        found = restamp(of_id[key], starts, ends, own)
        for stamper in own:
            table[stamper.rows, 0] = found.start_ns[stamper.rows]
            table[stamper.rows, 1] = found.end_ns[stamper.rows]
        unsure_ns = max(unsure_ns, found.unsure_ns)
    return unsure_ns


def _files(
    directories: Sequence[Path], own_logs: OwnLogs, problems: list[str]
) -> list[tuple[Path, int | None]]:
    """The files to read, and since when their calls count where they are a program's own."""
    paths = sorted(path for directory in directories for path in directory.glob("*.pfw"))
    found: list[tuple[Path, int | None]] = [(path, None) for path in paths]
    for prefix, since_ns in own_logs.since_ns.items():
        place = Path(prefix)
        logs = sorted(place.parent.glob(glob.escape(place.name) + "-*.pfw"))
        if not logs:
            problems.append(
                f"{prefix}-*.pfw, the program's own log of dftracer's, is not there: "
                "it had the calls made since it was begun"
            )
        found += [(path, since_ns) for path in logs]
    return found


def _lines(path: Path, problems: list[str]) -> Any:
    decoder = msgspec.json.Decoder(_Line)
    lost = 0
    with path.open("rb") as file:
        rest = b""
        while chunk := file.read(_CHUNK_BYTES):
            whole, newline, rest = (rest + chunk).rpartition(b"\n")
            try:
                yield from decoder.decode_lines(whole + newline)
            except (msgspec.DecodeError, UnicodeDecodeError):
                for line in whole.split(b"\n"):
                    decoded = _decode_one(line, decoder)
                    if decoded is not None:
                        yield decoded
                    else:
                        lost += bool(line.strip())
        if rest.strip():
            decoded = _decode_one(rest, decoder)
            if decoded is not None:
                yield decoded
            else:
                lost += 1
    if lost:
        problems.append(f"{lost} unreadable lines in {path.name}")


def _decode_one(line: bytes, decoder: msgspec.json.Decoder[_Line]) -> _Line | None:
    # Names of files are raw bytes: those that are no UTF-8 become \\xNN, as in the agent's records.
    for candidate in (line, line.decode(errors="surrogateescape").translate(_ESCAPED).encode()):
        try:
            return decoder.decode(candidate)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
    return None
