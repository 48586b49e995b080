"""One process of a session as its agent recorded it: who it was, its records, its spans."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from iotrace.session import names
from iotrace.session.manifest import launches
from iotrace.sources.clocks.anchors import AnchorSource, Clocks, clocks_of, domain_of, sidecars
from iotrace.sources.clocks.session_clock import Clock
from iotrace.sources.kineto.profiler_traces import Recording, Windows, read_windows
from iotrace.sources.record_files import read_records, read_rows
from iotrace.sources.records import (
    End,
    Identity,
    Idle,
    Record,
    Text,
    Tick,
    TorchProgramTrace,
    TorchWindow,
    Worker,
)

SPAN_DTYPE = np.dtype([(name, f"<{code}") for name, code in names.SPAN_FIELDS.items()])


class Process(msgspec.Struct, frozen=True, dict=True):
    """What one process recorded. Span times are the session's; record times are still monotonic."""

    identity: Identity
    clock: Clock
    records: list[Record]
    spans: npt.NDArray[Any]
    texts: dict[int, str]
    problems: list[str] = []
    torch_traces: list[Path] = []

    @cached_property
    def windows(self) -> Windows:
        """What torch.profiler recorded of the process; read when it is first asked for."""
        return read_windows(self.torch_traces, self.identity.clock[1], self.clock, self._recordings())

    def _recordings(self) -> dict[str, Recording]:
        """When each trace of torch.profiler was recorded, by its path, as far as the agent knows."""
        found: dict[str, Recording] = {}
        active: dict[int, int] = {}
        ended: dict[int, int] = {}
        for record in self.records:
            if isinstance(record, TorchWindow):
                if record.event == "active":
                    active[record.window] = record.mono_ns
                elif record.event == "end":
                    ended[record.window] = record.mono_ns + record.duration_ns
                elif record.event == "exported" and record.path:
                    until_ns = ended.get(record.window, record.mono_ns)
                    found[Path(record.path).name] = Recording(active.get(record.window), until_ns)
            elif isinstance(record, TorchProgramTrace) and record.path:
                found[Path(record.path).name] = Recording(None, record.mono_ns)
        return found

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
        return domain_of(self.identity.node, self.identity.host, self.identity.boot_id)

    @property
    def ended(self) -> bool:
        """Whether the process closed its records itself; else up to a second of them is lost."""
        return any(isinstance(record, End) for record in self.records)

    @property
    def idle(self) -> bool:
        """Whether it is a worker that had nothing to do when last heard of: its records are all written."""
        last = next((record for record in reversed(self.records) if not isinstance(record, Tick)), None)
        return isinstance(last, Idle)

    @property
    def worker(self) -> int | None:
        """Its number within its loader; None where it is no loader worker."""
        record = next(iter(self.of_type(Worker)), None)
        return record.worker if record is not None else None

    def of_type(self, kind: type[Any]) -> list[Any]:
        """The records of one type, in the order they were made."""
        return [record for record in self.records if isinstance(record, kind)]


def read_processes(session: Path) -> tuple[list[Process], Clocks]:
    """Read the processes of a session, by start, and the clocks that they and the sidecars recorded.

    A damaged process is read as far as it can be; its `problems` say what is missing.
    """
    found = []
    for launch in [session, *launches(session)]:
        for directory in sorted((launch / names.PROCESSES).glob("*")):
            process = _read_records(directory)
            if process is not None:
                found.append(process)
    clocks = clocks_of([*(item.anchors for item in found), *sidecars(session)])
    processes = [_process(item, clocks.of_domain[item.anchors.domain]) for item in found]
    return sorted(processes, key=lambda process: process.began_ns), clocks


class _Recorded(msgspec.Struct, frozen=True, dict=True):
    directory: Path
    identity: Identity
    records: list[Record]
    problems: list[str]

    @cached_property
    def anchors(self) -> AnchorSource:
        who = self.identity
        anchors = [who.clock, *(record.clock for record in self.records if isinstance(record, Tick))]
        ended = any(isinstance(record, End) for record in self.records)
        return AnchorSource(who.node, who.host, who.boot_id, anchors, who.pid, ended)


def _read_records(directory: Path) -> _Recorded | None:
    try:
        identity = msgspec.json.decode((directory / names.PROCESS).read_bytes(), type=Identity)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None  # killed before it could say who it was
    problems: list[str] = []
    records = read_records(directory / names.RECORDS, Record, problems)
    return _Recorded(directory, identity, records, problems)


def _process(recorded: _Recorded, clock: Clock) -> Process:
    directory, identity, records = recorded.directory, recorded.identity, recorded.records
    problems = recorded.problems
    spans = read_rows(directory / names.SPANS, SPAN_DTYPE, "span", problems)
    if len(spans):
        spans["start_ns"] = clock.times_to_session_ns(spans["start_ns"])
    texts = {record.id: record.text for record in records if isinstance(record, Text)}
    if (directory / names.BROKEN).exists():
        problems.append("could not write all it recorded")
    for record in records:
        if isinstance(record, End) and record.broken:
            problems.append(f"could not write all it recorded: {record.broken}")
    traces = sorted(directory.glob(names.TORCH_TRACES))
    return Process(identity, clock, records, spans, texts, problems, traces)
