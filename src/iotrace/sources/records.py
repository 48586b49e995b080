"""The agent's records: who each process was, its loader's and worker's records, its spans."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt

from iotrace.session import names
from iotrace.session.manifest import launches
from iotrace.sources.clock import Clock
from iotrace.sources.lines import read_lines
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


# Whatever a damaged line holds, its numbers fit a column of int64.
Int = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]


class Identity(msgspec.Struct, frozen=True):
    """process.json: what a process said of itself at its start."""

    format: Int
    pid: Int
    ppid: Int
    role: str
    clock: tuple[Int, Int, Int]
    node: str = ""
    host: str = ""
    boot_id: str = ""
    incarnation: Int = 0
    rank: Int | None = None
    local_rank: Int | None = None
    world_size: Int | None = None
    argv: list[str] = []
    python: str = ""
    prefixes: list[str] = []
    cpus: Int | None = None


class Distributed(msgspec.Struct, tag="distributed"):
    """The program made its default process group."""

    rank: Int
    world_size: Int
    backend: str = ""


class Text(msgspec.Struct, tag="text"):
    id: Int
    text: str


class Tick(msgspec.Struct, tag="tick"):
    """The kernel's account of the process at one instant; `rchar` in bytes, None where it was unreadable."""

    clock: tuple[Int, Int, Int]
    cpu_ns: Int
    rchar: Int | None = None
    syscr: Int | None = None
    read_bytes: Int | None = None


class IteratorStart(msgspec.Struct, tag="iterator"):
    """An epoch of a loader begins (told again when its workers are up)."""

    iterator: Int
    loader: Int
    dataset: str
    iterable: bool
    workers: Int
    epoch: Int
    generation: Int
    mono_ns: Int
    batch_size: Int | None = None
    prefetch_factor: Int | None = None
    persistent_workers: bool = False
    pin_memory: bool = False
    in_order: bool = True
    start_method: str | None = None
    pids: list[Int] = []
    phase: str | None = None
    wrapped: bool = False


class Batch(msgspec.Struct, tag="batch"):
    """A batch that the consumer got. Times in ns of CLOCK_MONOTONIC, None where there was no such stage.

    `phase` is the value of Lightning's RunningStage, None without its trainer; `ahead` is how many batches
    its loop takes in advance of the one that it works on.
    """

    iterator: Int
    epoch: Int
    generation: Int
    index: Int
    tid: Int
    wait_start_ns: Int
    delivered_ns: Int
    grad: bool
    backward_count: Int
    worker: Int | None = None
    pid: Int | None = None
    sent_ns: Int | None = None
    received_ns: Int | None = None
    pinned_ns: Int | None = None
    fetch_start_ns: Int | None = None
    fetch_end_ns: Int | None = None
    samples: Int | None = None
    phase: str | None = None
    ahead: Int = 0


class IteratorEnd(msgspec.Struct, tag="iterator_end"):
    iterator: Int
    epoch: Int
    outcome: str
    wait_start_ns: Int
    mono_ns: Int
    backward_count: Int


class Mark(msgspec.Struct, tag="mark"):
    """The program said by `iotrace.step` that its next step begins."""

    mono_ns: Int


class TrainerRun(msgspec.Struct, tag="trainer"):
    """Lightning's trainer ran; `function` is ``fit``, ``validate``, ``test`` or ``predict``."""

    function: str
    start_ns: Int
    end_ns: Int


class Worker(msgspec.Struct, tag="worker"):
    worker: Int
    count: Int
    mono_ns: Int


class WorkerUp(msgspec.Struct, tag="worker_up"):
    mono_ns: Int


class Idle(msgspec.Struct, tag="idle"):
    """A worker found no index to take: all that it had recorded is written."""

    mono_ns: Int


class Produced(msgspec.Struct, tag="produced"):
    """A batch that a worker made; `outcome` is ``batch``, ``stop`` or ``error``."""

    generation: Int
    index: Int
    outcome: str
    taken_ns: Int
    prepared_ns: Int
    fetch_start_ns: Int | None = None
    fetch_end_ns: Int | None = None
    samples: Int | None = None


class OwnLog(msgspec.Struct, tag="own_log"):
    """The program began a log of dftracer's of its own at `prefix`, or ended it: empty then."""

    prefix: str
    mono_ns: Int
    ended: bool


class PosixEnded(msgspec.Struct, tag="posix_ended"):
    """dftracer was ended in this process, by a child of its that could not run its program."""

    mono_ns: Int


class Override(msgspec.Struct, tag="override"):
    """A sweep set a loader's (num_workers, prefetch_factor)."""

    dataset: str
    before: tuple[Int | None, Int | None]
    after: tuple[Int | None, Int | None]


class Ended(msgspec.Struct, tag="ended"):
    """A sweep had its steps, and ended a program that went on without batches."""

    empty: Int


class End(msgspec.Struct, tag="end"):
    """The process said that this was all; `broken` is why it could not write everything."""

    mono_ns: Int
    broken: str = ""


class Exposed(msgspec.Struct, tag="exposed"):
    """How long the accelerator stood idle during the wait for a batch, by its own events."""

    iterator: Int
    epoch: Int
    index: Int
    exposed_ns: Int


class TorchWindow(msgspec.Struct, tag="torch_window"):
    """A change of a window of the torch profiler, which took `duration_ns` from the program.

    `event` is ``warmup``, ``active``, ``end``, ``exported`` or ``error``; `why` is empty where the window
    ended as planned, else what cut it short.
    """

    window: Int
    event: str
    step: Int
    mono_ns: Int
    duration_ns: Int
    loader: Int | None = None
    path: str = ""
    bytes: Int | None = None
    why: str = ""


class TorchProgram(msgspec.Struct, tag="torch_program"):
    """The program made or started a profiler of its own: iotrace's ended, for good."""

    what: str
    mono_ns: Int


class TorchProgramTrace(msgspec.Struct, tag="torch_program_trace"):
    """A trace that the program exported; `path` is empty where it was not copied, for the reason `why`."""

    path: str
    source: str
    mono_ns: Int
    duration_ns: Int
    bytes: Int | None = None
    why: str = ""


Record = (
    Distributed
    | Text
    | Tick
    | IteratorStart
    | Batch
    | IteratorEnd
    | Mark
    | TrainerRun
    | Worker
    | WorkerUp
    | Idle
    | Produced
    | OwnLog
    | PosixEnded
    | Override
    | Ended
    | End
    | Exposed
    | TorchWindow
    | TorchProgram
    | TorchProgramTrace
)


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
