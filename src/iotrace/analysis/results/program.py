"""What the views of a program show: its speed, its trainer's time, its model."""

from __future__ import annotations

from iotrace.analysis.results.base import ReportPart

# Not captured where nobody asked for it: the first screen does not miss it.
MEMORY_BY_OPERATOR = "memory by operator and module"


class PhaseSpeed(ReportPart, frozen=True, kw_only=True):
    """How fast the loop took batches in one phase: `cycles` of asking and working took `seconds`.

    `wait_ms` is the mean raw wait for a batch, `production_per_second` what the loader's workers can make.
    """

    phase: str
    batches: int
    samples: int | None = None
    cycles: int
    seconds: float
    batches_per_second: float | None = None
    samples_per_second: float | None = None
    wait_ms: float | None = None
    production_per_second: float | None = None


class SpeedPoint(ReportPart, frozen=True, kw_only=True):
    """The speed of `steps` measured steps that follow each other, from number `first_step` on."""

    first_step: int
    steps: int
    at_seconds: float
    steps_per_second: float
    wait_fraction: float


class Speed(ReportPart, frozen=True, kw_only=True):
    """`cpu_seconds` of the training process and its workers; `device_seconds`: busy, in profiled steps.

    `evolution`: the measured steps in at most 20 pieces of equal counts.
    """

    phases: list[PhaseSpeed]
    cpu_seconds: float | None = None
    device_seconds: float | None = None
    device_steps: int | None = None
    evolution: list[SpeedPoint]


class TrainerRange(ReportPart, frozen=True, kw_only=True):
    """A range of Lightning's trainer: what `owner` did in `hook`; no time is in two rows' `self_ms_total`.

    `kind`: ``callback``, ``strategy``, ``module``, ``data module`` or ``loop``.
    """

    kind: str
    owner: str
    hook: str
    calls: int
    ms_total: float
    self_ms_total: float
    ms_max: float
    ms_per_step: float | None = None
    run_pct: float | None = None

    @property
    def name(self) -> str:
        return f"{self.owner}.{self.hook}" if self.owner else self.hook


class TrainerTimes(ReportPart, frozen=True, kw_only=True):
    """Where the trainer's time went; `seconds` of all its runs (fit, validate, test, predict)."""

    seconds: float | None = None
    ranges: list[TrainerRange]


class ModelLayer(ReportPart, frozen=True, kw_only=True):
    """A module at `depth` below the root; figures with those of its modules, each parameter counted once.

    `input_shapes` and `output_shapes` are those of the first tensors of its first call; None: not called.
    `multiply_adds` of all its calls in one pass: of linear and convolution layers, others have none.
    """

    name: str
    kind: str
    depth: int
    calls: int
    input_shapes: list[list[int]] | None = None
    output_shapes: list[list[int]] | None = None
    parameters: int | None = None
    trainable: int | None = None
    size_bytes: int | None = None
    multiply_adds: int | None = None


class Model(ReportPart, frozen=True, kw_only=True):
    """A module that the training called, and all in it, as one forward pass of the program showed them."""

    root: str
    parameters: int | None = None
    trainable: int | None = None
    size_bytes: int | None = None
    multiply_adds: int | None = None
    left_out: int
    layers: list[ModelLayer]


class MemoryOperator(ReportPart, frozen=True, kw_only=True):
    """What an operator itself was given and freed on a device, without the operators that it called.

    `at_peak_bytes` of it were held at the device's peak.
    """

    device: str
    name: str
    allocations: int
    allocated_bytes: int
    freed_bytes: int
    at_peak_bytes: int | None = None


class MemoryDevice(ReportPart, frozen=True, kw_only=True):
    """A device's memory in the profiled steps; peaks are those of torch's allocator.

    `peak_by_phase_bytes`: which phase was given what the peak held; `before` the trace began.
    """

    device: str
    allocations: int
    allocated_bytes: int
    freed_bytes: int
    peak_bytes: int | None = None
    reserved_peak_bytes: int | None = None
    peak_at_us: float | None = None
    peak_by_phase_bytes: dict[str, int] | None = None


class MemoryModule(ReportPart, frozen=True, kw_only=True):
    """What was given to a module's operators, forward and backward, without the modules inside it."""

    device: str
    name: str
    allocations: int
    allocated_bytes: int
    at_peak_bytes: int | None = None


class MemoryPoint(ReportPart, frozen=True, kw_only=True):
    """What a device's allocator held at a time, by the phase that was given it; `before` the trace began."""

    device: str
    at_us: float
    held_bytes: int
    by_phase_bytes: dict[str, int]


class Memory(ReportPart, frozen=True, kw_only=True):
    """`operators`, `modules`: of each device the 20 that were given most; `evolution`: 20 points at most."""

    devices: list[MemoryDevice]
    operators: list[MemoryOperator]
    modules: list[MemoryModule]
    evolution: list[MemoryPoint]


class Snapshot(ReportPart, frozen=True, kw_only=True):
    """A file of what torch's allocator on a device recorded, written `at_seconds` after the start."""

    path: str
    size_bytes: int | None = None
    at_seconds: float
