"""One process of a session as its agent recorded it: who it was, its records, its spans."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from iotrace.session import names
from iotrace.session.manifest import launches
from iotrace.sources.clock import Clock
from iotrace.sources.lines import read_lines
from iotrace.sources.records import End, Identity, Idle, Record, Text, Tick
from iotrace.sources.windows import Windows, read_windows

SPAN_DTYPE = np.dtype(
    [
        ("start_ns", "<i8"),
        ("duration_ns", "<i8"),
        ("cpu_ns", "<i8"),
        ("bytes", "<i8"),
        ("tid", "<i4"),
        ("name", "<i4"),
        ("file", "<i4"),
        ("kind", "<i4"),
        ("minor_faults", "<i4"),
        ("major_faults", "<i4"),
        ("voluntary_switches", "<i4"),
        ("involuntary_switches", "<i4"),
        ("run_delay_ns", "<i8"),
    ]
)
assert SPAN_DTYPE.itemsize == names.SPAN_BYTES


@dataclass(frozen=True)
class Process:
    """What one process recorded. Span times are CLOCK_REALTIME; record times are still monotonic."""

    identity: Identity
    clock: Clock
    records: list[Record]
    spans: npt.NDArray[Any]
    texts: dict[int, str]
    problems: list[str] = field(default_factory=list)
    torch_traces: list[Path] = field(default_factory=list)

    @cached_property
    def windows(self) -> Windows:
        """What torch.profiler recorded of the process; read when it is first asked for."""
        return read_windows(self.torch_traces, self.identity.clock[1])

    @property
    def pid(self) -> int:
        return self.identity.pid

    @property
    def host(self) -> str:
        """The machine's name, as the user may have overridden it."""
        return self.identity.host

    @property
    def clock_domain(self) -> str:
        """Processes of one domain share their clocks: those of one boot of a kernel.

        A host's name that the user gave stands for a machine of its own.
        """
        identity = self.identity
        return identity.host if identity.host != identity.node else identity.boot_id or identity.node

    @property
    def ended(self) -> bool:
        """Whether the process closed its records itself; else up to a second of them is lost."""
        return any(isinstance(record, End) for record in self.records)

    @property
    def idle(self) -> bool:
        """Whether it is a worker that had nothing to do when last heard of: its records are all written."""
        last = next((record for record in reversed(self.records) if not isinstance(record, Tick)), None)
        return isinstance(last, Idle)

    def of_type(self, kind: type[Any]) -> list[Any]:
        """The records of one type, in the order they were made."""
        return [record for record in self.records if isinstance(record, kind)]


def read_processes(session: Path) -> list[Process]:
    """All processes of a session, by start. A damaged one is read as far as it goes, and says so."""
    found = []
    for place in [session, *launches(session)]:
        for directory in sorted((place / names.PROCESSES).glob("*")):
            process = _read_process(directory)
            if process is not None:
                found.append(process)
    return sorted(found, key=lambda process: process.identity.clock[1])


def _read_process(directory: Path) -> Process | None:
    try:
        identity = msgspec.json.decode((directory / names.PROCESS).read_bytes(), type=Identity)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None  # killed before it could say who it was
    problems: list[str] = []
    records: list[Record] = read_lines(directory / names.RECORDS, Record, problems)
    anchors = [identity.clock, *(record.clock for record in records if isinstance(record, Tick))]
    clock = Clock(anchors)
    spans = _read_spans(directory / names.SPANS, problems)
    if len(spans):
        spans["start_ns"] = clock.real(spans["start_ns"])
    texts = {record.id: record.text for record in records if isinstance(record, Text)}
    if (directory / names.BROKEN).exists():
        problems.append("could not write all it recorded")
    for record in records:
        if isinstance(record, End) and record.broken:
            problems.append(f"could not write all it recorded: {record.broken}")
    traces = sorted(directory.glob(names.TORCH_TRACES))
    return Process(identity, clock, records, spans, texts, problems, traces)


def _read_spans(path: Path, problems: list[str]) -> npt.NDArray[Any]:
    try:
        data = path.read_bytes()
    except OSError:
        data = b""
    if len(data) % SPAN_DTYPE.itemsize:
        problems.append(f"{path.name} was cut in its last span")
    count = len(data) // SPAN_DTYPE.itemsize
    spans: npt.NDArray[Any] = np.frombuffer(data, dtype=SPAN_DTYPE, count=count).copy()
    return spans
