"""One process of a session as its agent recorded it: who it was, its records, its spans."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from iotrace.session import names
from iotrace.session.liveness import process_lives
from iotrace.session.manifest import launches
from iotrace.session.reading import UNREADABLE, entries, read_whole
from iotrace.sources.clocks.anchors import AnchorSource, Clocks, relate_clocks
from iotrace.sources.clocks.session_clock import Clock, Recording, Times
from iotrace.sources.columns import Columns, Index
from iotrace.sources.kineto.profiler_traces import Windows, read_windows
from iotrace.sources.records import (
    End,
    Identity,
    Idle,
    Imports,
    IteratorStart,
    LoopStacks,
    Mapped,
    PoolWorker,
    Record,
    Tick,
    TorchProgramTrace,
    TorchWindow,
    Worker,
)
from iotrace.sources.rows import divided, each_record, newest_ns, read_columns
from iotrace.sources.samples import Sidecar

_OF_WRITER = (Tick, Imports, LoopStacks, Mapped)  # what the agent's writer sums up, also of before
SPAN_DTYPE = np.dtype([(name, f"<{code}") for name, code in names.SPAN_FIELDS.items()])


class Process(msgspec.Struct, frozen=True, dict=True):
    """What one process recorded. Span times are the session's; record times are still monotonic.

    `arrays` has what comes with every batch or step, by kind.
    """

    identity: Identity
    clock: Clock
    records: list[Record]
    spans: Columns
    texts: dict[int, str]
    problems: list[str] = []
    torch_traces: list[Path] = []
    lives: bool | None = False  # None where that is not to be seen from here
    agent_errors: list[str] = []  # what the agent could not do in it, and why
    arrays: dict[int, Columns] = {}
    domain: str = ""
    called: frozenset[int] = frozenset()  # numbers of files of its spans that its calls are seen to read

    @cached_property
    def windows(self) -> Windows:
        """What torch.profiler recorded of the process; read when it is first asked for."""
        return read_windows(self.torch_traces, self.identity.clock[1], self.clock, self.recordings)

    @cached_property
    def recordings(self) -> dict[str, Recording]:
        """When each trace of torch.profiler was recorded, by its name, as far as the agent knows."""
        return _recordings(self.records)

    @property
    def began_ns(self) -> int:
        """When its agent began, in the session's time (ns)."""
        return self.clock.to_session_ns(self.identity.clock[0])

    @property
    def pid(self) -> int:
        return self.identity.pid

    @property
    def host(self) -> str:
        """The machine's name, as the user may have overridden it."""
        return self.identity.host

    @property
    def clock_domain(self) -> str:
        """Processes of one domain share their clock."""
        return self.domain or _anchors(self.identity, []).domain

    @cached_property
    def ended(self) -> bool:
        """Whether the process closed its records itself; else up to a second of them is lost."""
        return any(isinstance(record, End) for record in self.records)

    @property
    def idle(self) -> bool:
        """Whether it is a worker that had nothing to do at its last record: its records are all written."""
        last = next((record for record in reversed(self.records) if not isinstance(record, _OF_WRITER)), None)
        newest = max((newest_ns(kind, rows) for kind, rows in self.arrays.items()), default=0)
        return isinstance(last, Idle) and last.mono_ns >= newest

    @property
    def worker(self) -> int | None:
        """Its number within its loader; None where it is no loader worker."""
        workers: list[Worker | PoolWorker] = [*self.of_type(Worker)]
        if not self.takes_steps and not len(
            self.rows(names.ROUND_ROW)
        ):  # else it trains in its parent's pool
            workers += self.of_type(PoolWorker)
        return workers[0].worker if workers else None

    @property
    def role(self) -> str:
        """What it is to the one that trains: ``worker 3``, or ``forked`` where that is unknown."""
        return self.identity.role if self.worker is None else f"worker {self.worker}"

    @property
    def takes_steps(self) -> bool:
        """Whether it iterated a loader, marks its steps or calls what trains; a pool may feed anything."""
        loads = any(not start.pool for start in self.of_type(IteratorStart))
        return loads or len(self.rows(names.MARK_ROW)) > 0 or len(self.rows(names.TURN_ROW)) > 0

    @cached_property
    def span_files(self) -> dict[int, str]:
        """The files that the spans name, by their numbers."""
        return self._named(self.spans["file"])

    def files_of(self, *kinds: int) -> set[str]:
        """The files that its spans of some kinds name."""
        return {*self._named(self.spans["file"][np.isin(self.spans["kind"], kinds)]).values()}

    def _named(self, files: npt.NDArray[Any]) -> dict[int, str]:
        # Neighbours are often alike: few are left to be sorted.
        numbers = np.unique(files[np.append(True, files[1:] != files[:-1])[: len(files)]]).tolist()
        return {number: self.texts[number] for number in numbers if number in self.texts}

    def of_type(self, kind: type[Any]) -> list[Any]:
        """The records of one type, in the order they were made."""
        return self._by_type.get(kind, [])

    def rows(self, kind: int) -> Columns:
        """What was recorded of one kind of `names.ROW_FIELDS`, in the order it was made; -1: not known."""
        return (
            self.arrays[kind] if kind in self.arrays else Columns(0, dict.fromkeys(names.ROW_FIELDS[kind], 0))
        )

    @cached_property
    def outermost(self) -> dict[tuple[int, ...], npt.NDArray[np.bool_]]:
        """Of some kinds, the marks of the spans that no other one of these holds; kept once made."""
        return {}

    @cached_property
    def _by_type(self) -> dict[type[Any], list[Any]]:
        by_type: dict[type[Any], list[Any]] = {}
        for record in self.records:
            by_type.setdefault(type(record), []).append(record)
        return by_type

    def spans_by_start(self) -> SpansByStart:
        """Its spans in an order in which those of an interval are found soon."""
        order, starts = None, self.spans["start_ns"]
        ends = starts + self.spans["duration_ns"]
        if (starts[1:] < starts[:-1]).any():
            order = np.argsort(starts, kind="stable")
            starts, ends = starts[order], ends[order]
        return SpansByStart(starts, order, np.maximum.accumulate(ends, out=ends))


class SpansByStart(msgspec.Struct, frozen=True):
    """Spans by their starts: their rows (None: as they are), and the latest end so far."""

    starts: Times
    rows: Times | None
    latest: Times

    def between(self, start_ns: int, end_ns: int) -> Index:
        """The rows of spans that touch an interval, and of spans that touch what the first ones cover."""
        for _ in range(2):
            first = np.searchsorted(self.latest, start_ns, side="right")
            last = np.searchsorted(self.starts, end_ns)
            if first >= last:
                break
            start_ns = min(start_ns, int(self.starts[first]))
            end_ns = max(end_ns, int(self.latest[last - 1]))
        return slice(first, last) if self.rows is None else np.sort(self.rows[first:last])


def read_processes(
    session: Path, sidecars: Sequence[Sidecar] = (), losses: list[str] | None = None
) -> tuple[list[Process], Clocks]:
    """Read the processes of a session, by start, and make the clocks that they and `sidecars` recorded.

    A damaged process is read as far as it can be; its `problems` say what is missing. `losses` tell of those
    that do not say who they are.
    """
    recorded = []
    for launch in [session, *launches(session)]:
        for directory in entries(launch / names.PROCESSES):
            try:
                identity = msgspec.json.decode(read_whole(directory / names.PROCESS), type=Identity)
            except (OSError, *UNREADABLE):  # killed before it could say who it was, or damaged since
                if losses is not None and _recorded(directory):
                    what = f"{names.PROCESS} of {directory.name} cannot be read"
                    losses.append(f"{what}: all that this process recorded was left out")
                continue
            problems: list[str] = []
            texts: dict[int, str] = {}
            records, arrays = divided(each_record(directory / names.RECORDS, Record, problems), texts)
            recorded.append((directory, identity, records, texts, problems, arrays))
    anchors = [_anchors(identity, records) for _, identity, records, *_ in recorded]
    clocks = relate_clocks([*anchors, *(sidecar.anchors for sidecar in sidecars)])
    if set(clocks.of_domain) - {clocks.reference, *clocks.links}:
        from iotrace.sources.kineto.profiler_traces import Traced, relate_by_collectives

        traced = [
            Traced(source.domain, _torch_traces(directory), identity.clock[1], _recordings(records))
            for (directory, identity, records, *_), source in zip(recorded, anchors, strict=True)
        ]
        relate_by_collectives(clocks, traced)
    processes = [
        _process(*each, clocks.of_domain[source.domain], source.domain)
        for each, source in zip(recorded, anchors, strict=True)
    ]
    return sorted(processes, key=lambda process: process.began_ns), clocks


def _recorded(directory: Path) -> bool:
    files = [directory / name for name in (names.RECORDS, names.SPANS)]
    try:
        return any(path.is_file() and path.stat().st_size for path in files)
    except PermissionError:  # another user's
        return True


def _anchors(who: Identity, records: list[Record]) -> AnchorSource:
    anchors = [who.clock, *(record.clock for record in records if isinstance(record, Tick))]
    ended = any(isinstance(record, End) for record in records)
    return AnchorSource(who.node, who.host, who.boot_id, anchors, who.pid, ended)


def _process(
    directory: Path,
    identity: Identity,
    records: list[Record],
    texts: dict[int, str],
    problems: list[str],
    arrays: dict[int, Columns],
    clock: Clock,
    domain: str,
) -> Process:
    spans = read_columns(directory / names.SPANS, SPAN_DTYPE, "span", problems, ("name", "file", "kind"))
    if len(spans):
        spans["duration_ns"] = clock.durations_to_session_ns(spans["start_ns"], spans["duration_ns"])
        spans["start_ns"] = clock.times_to_session_ns(spans["start_ns"])
        spans.pack("duration_ns", "cpu_ns", "run_delay_ns", "bytes")
    if names.ROUND_ROW in arrays and names.MADE_ROW in arrays:
        from iotrace.sources.delegated_steps import give_to_one_thread  # reports of bare traces need none

        give_to_one_thread(identity.pid, records, arrays, spans)
    if (directory / names.BROKEN).exists():
        problems.append("could not write all it recorded")
    for record in records:
        if isinstance(record, End) and record.broken:
            problems.append(f"could not write all it recorded: {record.broken}")
    traces = _torch_traces(directory)
    ended = any(isinstance(record, End) for record in records)
    lives = False if ended else process_lives(msgspec.structs.asdict(identity))
    errors = _agent_errors(directory / names.LOG)
    return Process(identity, clock, records, spans, texts, problems, traces, lives, errors, arrays, domain)


def _torch_traces(directory: Path) -> list[Path]:
    return [path for path in entries(directory) if path.match(names.TORCH_TRACES)]


def _recordings(records: Sequence[Record]) -> dict[str, Recording]:
    recordings: dict[str, Recording] = {}
    active: dict[int, int] = {}
    ended: dict[int, int] = {}
    for record in records:
        if isinstance(record, TorchWindow):
            if record.event == "active":
                active[record.window] = record.mono_ns
            elif record.event == "end":
                ended[record.window] = record.mono_ns + record.duration_ns
            elif record.event == "exported" and record.path:
                until_ns = ended.get(record.window, record.mono_ns)
                recordings[Path(record.path).name] = Recording(active.get(record.window), until_ns)
        elif isinstance(record, TorchProgramTrace) and record.path:
            recordings[Path(record.path).name] = Recording(None, record.mono_ns)
    return recordings


def _agent_errors(log: Path) -> list[str]:
    """Read what the agent kept from the program, without the times; damaged lines are as good as any."""
    try:
        lines = read_whole(log).decode(errors="replace").splitlines()
    except OSError:  # as good as always: nothing has failed
        return []
    return [line.partition(" ")[2] or line for line in lines if line]
