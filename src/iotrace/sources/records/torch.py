"""What torch was seen to do: its profiler's windows, snapshots of device memory, the model."""

from __future__ import annotations

import msgspec

from iotrace.sources.records.base import Int, Record


class Distributed(Record, tag="distributed"):
    """The program made its default process group."""

    rank: Int
    world_size: Int


class Framework(Record, tag="framework"):
    """The program imported a framework: ``torch``."""

    name: str


class DebugSwitches(Record, tag="debug_switches"):
    """Switches for debugging that were on as the program first trained: where its code names each, if known.

    ``anomaly``, ``deterministic``, ``launch_blocking``, ``distributed_detail``.
    """

    places: dict[str, str] = {}


class TrainerRun(Record, tag="trainer"):
    """Lightning's trainer ran."""

    start_ns: Int
    end_ns: Int


class ModuleRow(msgspec.Struct, array_like=True, frozen=True):
    """A module of a model: what it holds itself, how often the pass called it, shapes of the first call."""

    name: str
    kind: str
    calls: Int = 0
    given: list[list[Int]] | None = None
    returned: list[list[Int]] | None = None
    parameters: Int | None = None
    trainable: Int | None = None
    size_bytes: Int | None = None
    weight: Int | None = None


class Model(Record, tag="model"):
    """The modules that the first training pass of a module outside all others went through."""

    root: str
    modules: list[ModuleRow] = []
    left_out: Int = 0


class CudaSnapshot(Record, tag="cuda_snapshot"):
    """A change of iotrace's own recording of device memory, which took `duration_ns` from the program.

    `event` is ``started``, ``written``, ``program`` (it gave way to the program's) or ``error``; `why` says
    what ended it before its steps were over.
    """

    event: str
    mono_ns: Int
    duration_ns: Int
    steps: Int = 0
    why: str = ""


class MemorySnapshot(Record, tag="memory_snapshot"):
    """The program wrote what torch's allocator recorded on a device to `path`, for torch.cuda._memory_viz."""

    path: str
    mono_ns: Int
    bytes: Int | None = None


class TorchWindow(Record, tag="torch_window"):
    """A change of a window of the torch profiler, which took `duration_ns` from the program.

    `event` is ``warmup``, ``active``, ``end``, ``exported`` or ``error``, or ``spared``: the device is left
    out. `why` is empty where the window ended as planned, else what cut it short; `full`: an error, as the
    disk had no room for the trace.
    """

    window: Int
    event: str
    mono_ns: Int
    duration_ns: Int
    path: str = ""
    why: str = ""
    full: bool = False


class TorchProgram(Record, tag="torch_program"):
    """The program made or started a profiler of its own: iotrace's ended, for good."""

    what: str
    mono_ns: Int


class TorchProgramTrace(Record, tag="torch_program_trace"):
    """A trace that the program exported to `source`; `path` is empty where it was not copied."""

    path: str
    mono_ns: Int
    duration_ns: Int
    source: str = ""
    bytes: Int | None = None
