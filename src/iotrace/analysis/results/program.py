"""What the views of a program show: its speed, its trainer's time, its model.

From the start of a process to its first step, imports by package; all of its time, part by part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from iotrace.analysis.results.base import ReportPart, figure

# Not captured where nobody asked for it: the first screen does not miss it.
MEMORY_BY_OPERATOR = "memory by operator and module"


class PhaseSpeed(ReportPart, frozen=True, kw_only=True):
    """How fast the loop took batches in one phase."""

    phase: Annotated[str, figure("the phase; without a trainer the kind of the loader", said="phase", place=1)]
    batches: Annotated[int, figure("that were delivered", said="batches", place=2)]
    samples: Annotated[int | None, figure("in them", null="a loader does not tell its samples")] = None
    cycles: Annotated[int, figure("from one ask to the next within a pass, without the first of a pass")]
    seconds: Annotated[float, figure("their length, all together")]
    batches_per_second: Annotated[float | None, figure("`cycles` / `seconds`", said="batches/s", place=3)] = None
    samples_per_second: Annotated[float | None, figure("likewise", said="samples/s", place=4)] = None
    wait_ms: Annotated[float | None, figure("the mean raw wait for a batch, without the first of a pass", said="wait ms", place=5)] = None
    production_per_second: Annotated[
        float | None,
        figure("workers (at least one) / the mean time to make a batch", null="loaders share it, or of other libraries", said="loader batches/s", place=6),
    ] = None


class SpeedPoint(ReportPart, frozen=True, kw_only=True):
    """The speed of measured steps that follow each other."""

    first_step: Annotated[int, figure("number of its first step", said="from step")]
    steps: Annotated[int, figure("how many measured steps", said="steps")]
    at_seconds: Annotated[float, figure("since the loop's first step", said="after s")]
    steps_per_second: Annotated[float, figure("their speed", said="steps/s")]
    wait_fraction: Annotated[float, figure("the raw wait's share", said="data wait")]


class Speed(ReportPart, frozen=True, kw_only=True):
    """How fast the rank goes."""

    phases: Annotated[list[PhaseSpeed], figure("how fast the loop took batches in each phase")]
    cpu_seconds: Annotated[float | None, figure("CPU time of the training process and its workers since their start")] = None
    device_seconds: Annotated[float | None, figure("`accelerator`'s busy time")] = None
    device_steps: Annotated[int | None, figure("of so many profiled steps")] = None
    evolution: Annotated[list[SpeedPoint], figure("the measured steps in order, in at most 20 pieces of equal counts")]


class TrainerRange(ReportPart, frozen=True, kw_only=True):
    """A range of Lightning's trainer; no time is in two rows' `self_ms_total`."""

    kind: Annotated[str, figure("`callback`, `strategy`, `module`, `data module` or `loop`", said="kind")]
    owner: Annotated[str, figure("whose range it is", said="of")]
    hook: Annotated[str, figure("what it did")]
    calls: Annotated[int, figure("how often", said="calls")]
    ms_total: Annotated[float, figure("their length, all together", said="total ms")]
    self_ms_total: Annotated[float, figure("the same, less the ranges directly inside", said="self ms")]
    ms_max: Annotated[float, figure("the longest")]
    ms_per_step: Annotated[float | None, figure("of those that begin in measured steps, outside evaluation passes", said="ms a step")] = None
    run_pct: Annotated[float | None, figure("of `seconds`", said="% of run")] = None

    @property
    def name(self) -> str:
        return f"{self.owner}.{self.hook}" if self.owner else self.hook


class TrainerTimes(ReportPart, frozen=True, kw_only=True):
    """Where the trainer's time went."""

    seconds: Annotated[float | None, figure("all of fit, validate, test, predict")] = None
    ranges: Annotated[list[TrainerRange], figure("each of its ranges, summed up over the run")]


class ModelLayer(ReportPart, frozen=True, kw_only=True):
    """A module of a model; figures with those of its modules."""

    name: Annotated[str, figure("its name", said="layer", place=4)]
    kind: Annotated[str, figure("its class")]
    depth: Annotated[int, figure("counts from the root")]
    calls: Annotated[int, figure("in one forward pass")]
    input_shapes: Annotated[list[list[int]] | None, figure("of the first tensors of its first call", null="not called")] = None
    output_shapes: Annotated[list[list[int]] | None, figure("likewise", null="not called", said="output", place=3, absent="not called")] = None
    parameters: Annotated[int | None, figure("with those of the layers inside, each once", null="a lazy layer that is not made", said="params", place=1)] = None
    trainable: Annotated[int | None, figure("of these, those that are trained", null="a lazy layer that is not made")] = None
    size_bytes: Annotated[int | None, figure("of parameters and buffers", null="a lazy layer that is not made")] = None
    multiply_adds: Annotated[
        int | None, figure("of all its calls in that pass: of linear and convolution layers", null="others count nothing", said="mult-adds", place=2)
    ] = None


class Model(ReportPart, frozen=True, kw_only=True):
    """A module that the training called, and all in it, as one forward pass of the program showed them."""

    root: Annotated[str, figure("its class")]
    parameters: Annotated[int | None, figure("all, each once", null="a lazy layer that is not made")] = None
    trainable: Annotated[int | None, figure("of these, those that are trained", null="a lazy layer that is not made")] = None
    size_bytes: Annotated[int | None, figure("of parameters and buffers", null="a lazy layer that is not made")] = None
    multiply_adds: Annotated[int | None, figure("of all its layers in one pass")] = None
    left_out: Annotated[int, figure("layers beyond those listed")]
    layers: Annotated[list[ModelLayer], figure("each of its layers")]


class MemoryOperator(ReportPart, frozen=True, kw_only=True):
    """What an operator itself was given and freed on a device."""

    device: Annotated[str, figure("the device", said="device", place=5)]
    name: Annotated[str, figure("the operator", said="operator", place=6)]
    allocations: Annotated[int, figure("times that it was given memory, itself", said="times", place=3)]
    allocated_bytes: Annotated[int, figure("what it was given", said="given", place=1)]
    freed_bytes: Annotated[int, figure("what was given back within it; most is freed by Python, outside of operators", said="freed", place=2)]
    at_peak_bytes: Annotated[int | None, figure("of it, held at the device's peak", null="the trace does not tell addresses", said="at peak", place=4)] = None


class MemoryDevice(ReportPart, frozen=True, kw_only=True):
    """A device's memory in the profiled steps."""

    device: Annotated[str, figure("the device, by the type that the event says", said="device", place=6)]
    allocations: Annotated[int, figure("times that memory was given", said="times", place=3)]
    allocated_bytes: Annotated[int, figure("what was given", said="given", place=1)]
    freed_bytes: Annotated[int, figure("what was given back", said="freed", place=2)]
    peak_bytes: Annotated[int | None, figure("the largest that torch's allocator said", said="peak", place=4)] = None
    reserved_peak_bytes: Annotated[int | None, figure("the same of what it reserved", said="reserved", place=5, absent="-")] = None
    peak_at_us: Annotated[float | None, figure("since the first event of the trace")] = None
    peak_by_phase_bytes: Annotated[dict[str, int] | None, figure("the peak by phase; `before` the trace began", null="the trace does not tell addresses")] = (
        None
    )


class MemoryModule(ReportPart, frozen=True, kw_only=True):
    """What was given to a module's operators, forward and backward, without the modules inside it."""

    device: Annotated[str, figure("the device", said="device", place=4)]
    name: Annotated[str, figure("the module", said="module", place=5)]
    allocations: Annotated[int, figure("times that its operators were given memory", said="times", place=2)]
    allocated_bytes: Annotated[int, figure("what they were given", said="given", place=1)]
    at_peak_bytes: Annotated[int | None, figure("of it, held at the device's peak", null="the trace does not tell addresses", said="at peak", place=3)] = None


class MemoryPoint(ReportPart, frozen=True, kw_only=True):
    """What a device's allocator held at a time."""

    device: Annotated[str, figure("the device", said="device")]
    at_us: Annotated[float, figure("since the first event of the trace", said="at ms")]
    held_bytes: Annotated[int, figure("what its allocator held", said="held")]
    by_phase_bytes: Annotated[dict[str, int], figure("the same by the phase that was given it, `before` the trace began", said="{}")]


class Memory(ReportPart, frozen=True, kw_only=True):
    """What was given of each device's memory."""

    devices: Annotated[list[MemoryDevice], figure("by device")]
    operators: Annotated[list[MemoryOperator], figure("of each device the 20 that were given most, themselves")]
    modules: Annotated[list[MemoryModule], figure("likewise, each without the modules inside it")]
    evolution: Annotated[list[MemoryPoint], figure("at 20 equal distances of time at most")]


class Snapshot(ReportPart, frozen=True, kw_only=True):
    """A file of what torch's allocator on a device recorded."""

    path: Annotated[str, figure("the file", said="file", place=3)]
    size_bytes: Annotated[int | None, figure("its size", said="size", place=2)] = None
    at_seconds: Annotated[float, figure("after the start of the process", said="at s", place=1)]


class StartupPart(ReportPart, frozen=True, kw_only=True):
    """A part of the time from the start of the process to the first step's end."""

    name: Annotated[str, figure("what it was", said="part")]
    at_seconds: Annotated[float, figure("after the start of the process, where it begins", said="from s")]
    seconds: Annotated[float, figure("its length; parts do not overlap: each instant belongs to the innermost", said="s")]
    sampled: Annotated[bool, figure("whether the main thread's stack was looked at now and then")] = False


class ImportedPackage(ReportPart, frozen=True, kw_only=True):
    """Imports of the modules of one package."""

    package: Annotated[str, figure("its name", said="package")]
    at_seconds: Annotated[float, figure("after the start of the process, where its import begins")]
    seconds: Annotated[float, figure("of its modules, without those of others that these import", said="s")]
    cpu_seconds: Annotated[float, figure("its thread was on a CPU", said="CPU s")]
    modules: Annotated[int, figure("what was looked for, found or not", said="modules")]
    directory: Annotated[str | None, figure("where it lies", null="it has no files", said="in", absent="-")] = None
    mount: Annotated[str | None, figure("its file system's type and point", null="it has no files, or unknown")] = None


class ImportMount(ReportPart, frozen=True, kw_only=True):
    """The packages of `imports` that lie on one file system."""

    mount: Annotated[
        str | None, figure("the file system's type and point", null="unknown", said="file system", absent="unknown, or none: built in, not found")
    ] = None
    seconds: Annotated[float, figure("of the imports from it", said="s")]
    cpu_seconds: Annotated[float, figure("their thread was on a CPU", said="CPU s")]
    modules: Annotated[int, figure("of them", said="modules")]
    packages: Annotated[int, figure("of them", said="packages")]


class LoadedFile(ReportPart, frozen=True, kw_only=True):
    """A stored result that the program loads at its start, by one call."""

    call: Annotated[str, figure("`pickle.load`, `torch.load`, `numpy.load`, `joblib.load` or `pandas.read_pickle`")]
    file: Annotated[str | None, figure("what it loads", null="not known")] = None
    seconds: Annotated[float, figure("what that takes of `reads`")]
    reading_seconds: Annotated[float | None, figure("of that in read calls: the rest makes objects", null="POSIX calls were not traced")] = None


class Startup(ReportPart, frozen=True, kw_only=True):
    """From the start of the training process to its first step."""

    seconds: Annotated[float, figure("from the start of the training process to the loop's first request; of `iotrace.profile` from where it begins")]
    launched_seconds: Annotated[float | None, figure("from the launch of the command to the start of the process", null="the launch is unknown")] = None
    first_step_seconds: Annotated[float | None, figure("from the start of the process to the end of the first step")] = None
    named_fraction: Annotated[float | None, figure("the share of it that parts name")] = None
    parts: Annotated[Sequence[StartupPart], figure("what that time was made of; they sum to it, what has no name is the last one")] = ()
    imports: Annotated[Sequence[ImportedPackage], figure("by package")] = ()
    mounts: Annotated[Sequence[ImportMount], figure("the same by file system")] = ()
    imports_waiting_seconds: Annotated[float | None, figure("of imports, neither on a CPU nor ready for one: a lower bound", null="without telemetry")] = None
    worker_imports_seconds: Annotated[float | None, figure("imports of the worker that had most, until then")] = None
    pickled_bytes: Annotated[int | None, figure("what the main process pickled for processes that it spawned", null="nothing")] = None
    loaded: Annotated[LoadedFile | None, figure("the stored result that takes most of `reads`", null="none does")] = None
    unknown_why: Annotated[str | None, figure("why there are no parts", null="there are")] = None


# All of the time, as the user's clock sees it: start-up, loop, end.

START_UP, FIRST_START, FIRST_SAMPLING, TRAINING, WAITS, SKIPPED, FIRST_BATCHES, ITERATORS, SAMPLING = _OF_TRAINING = (
    *("start-up", "first start", "first sampling", "training", "waits", "skipped batches", "first batches"),
    *("iterators", "sampling"),
)
VALIDATION, VALIDATION_ITERATORS, CHECKPOINTS, WRITING, PROFILER, HANGING, END = _BESIDE = (
    *("validation", "validation iterators", "checkpoints", "writing", "profiler", "hung", "end"),
)
PARTS = (*_OF_TRAINING, *_BESIDE)
_NEEDLESS, _MOST_NAMED = 0.25, 3  # of what a worker imports; packages in a sentence
_WORTH_PERCENT = 5.0
BEFORE_AND_AFTER = (START_UP, FIRST_START, FIRST_SAMPLING, HANGING, END)
ACCOUNT_NAMES = {  # as sentences call the parts; others by their own names
    FIRST_START: "workers' first start",
    FIRST_SAMPLING: "choosing the first epoch's samples",
    WAITS: "waits for batches",
    SKIPPED: "batches not trained on",
    ITERATORS: "making iterators",
    SAMPLING: "choosing later epochs' samples",
    VALIDATION_ITERATORS: "making iterators of its validation",
    WRITING: "writing files",
    PROFILER: "starting and ending torch.profiler (iotrace)",
}


class AccountPart(ReportPart, frozen=True, kw_only=True):
    """A part of the run; each instant of the training thread belongs to one."""

    name: Annotated[str, figure("which one, see below")]
    in_loop: Annotated[bool, figure("whether it lies between the first batch and the last step")]
    ns: Annotated[int | None, figure("its length; those that are known sum to `whole_ns`", null="not known: its time is in `training`")] = None
    share_pct: Annotated[float | None, figure("of `whole_ns`", null="not known")] = None
    times: Annotated[int | None, figure("how often: skipped batches, iterators, evaluations, checkpoints", null="it is one piece, or unknown")] = None


def _named(packages: list[str]) -> str:
    first = packages[:_MOST_NAMED]
    return " and ".join([", ".join(first[:-1]), first[-1]]) if len(first) > 1 else "".join(first)


class SpawnedWorkers(ReportPart, frozen=True, kw_only=True):
    """What the loop's spawned workers did before they worked."""

    count: Annotated[int, figure("workers that were spawned, or forked by a fork server, and recorded it")]
    script: Annotated[str | None, figure("the script that they imported again", null="none")] = None
    import_ns: Annotated[int, figure("importing that script and what it imports, mean of a worker")]
    needed_ns: Annotated[int, figure("of that torch and numpy, which any worker imports")]
    own_ns: Annotated[int, figure("of that the script's own code, outside of imports")] = 0
    packages: Annotated[dict[str, int], figure("of that the imports of packages, with all that these import: those of 5 % or more, longest first", "ns")] = (
        msgspec.field(default_factory=dict)
    )
    forkserver: Annotated[bool, figure("whether a fork server forked them")] = False
    unpickle_ns: Annotated[int, figure("unpickling the dataset and what else they were given, without imports, mean of a worker")]
    pickle_ns: Annotated[int, figure("pickling that in the main process, in all")]
    pickled_bytes: Annotated[int, figure("of that, in all", "bytes")]

    @property
    def needless_ns(self) -> int:
        """What importing took beyond torch and numpy."""
        return self.import_ns - self.needed_ns

    @property
    def is_needed(self) -> bool:
        """Whether little of it is needless: to move code spares next to nothing."""
        return _NEEDLESS * self.import_ns > self.needless_ns

    @property
    def runs_script(self) -> bool:
        """Whether the script's own code takes most of what is needless, or the packages are not known."""
        return not self.packages or 2 * self.own_ns >= self.needless_ns > 0

    @property
    def imports(self) -> str:
        """Name what it imports; the script where its own code takes the time."""
        if self.runs_script and not self.is_needed:
            return (self.script or "the script").rpartition("/")[2]
        return _named([*self.packages] or ["torch"])

    @property
    def beyond(self) -> str:
        """Name the packages beyond torch and numpy."""
        return _named([name for name in self.packages if name not in ("torch", "numpy")])

    @property
    def started(self) -> str:
        """Say by what they are started."""
        return "forkserver" if self.forkserver else "spawned"


class Account(ReportPart, frozen=True, kw_only=True):
    """The whole run of a training process, and what its loaders cost the loop in all.

    Times are those of the training thread, in integer ns; the parts sum exactly.
    """

    whole_ns: Annotated[int, figure("from the start to the end of the process's run, as far as it was seen")]
    loop_ns: Annotated[
        int, figure("of that from the first batch to the end of the last step, or of an evaluation behind it, without `first start` and `first sampling`")
    ]
    steps: Annotated[int, figure("batches that the loop trained on, from the first to the last: the steps of a program's own clock")]
    parts: Annotated[list[AccountPart], figure("start-up, loop and end, in their order")]
    loader_pct: Annotated[
        float | None, figure("of the loop: waits, first batches, iterators, those of evaluations too, and `sampling`", null="the wait is not known")
    ] = None
    restarts_pct: Annotated[float | None, figure("of the loop: iterators, those of evaluations too, and `sampling` alone", null="the wait is not known")] = None
    validation_first_batches_ns: Annotated[int, figure("of `validation iterators` the waits for first batches")] = 0
    iterators: Annotated[int, figure("iterators that the loop made of loaders with workers, after the first of each")] = 0
    one_batch_iterators: Annotated[int, figure("iterators of which the loop took one batch, and left them")] = 0
    restarted: Annotated[int, figure("of the iterators those with new workers")] = 0
    workers_started: Annotated[int, figure("workers that were started for them")] = 0
    validation_workers_started: Annotated[int, figure("those of `workers_started` that were for evaluations")] = 0
    spawned: Annotated[
        SpawnedWorkers | None, figure("what spawned workers did before they worked", null="none was spawned, or recorded by an older iotrace")
    ] = None

    @property
    def judged_ns(self) -> int:
        """The loop, and before it the first start of its workers and the choice of the first samples."""
        return self.first_ns + self.loop_ns

    @property
    def first_ns(self) -> int:
        """What the first iterators took: workers started, and samplers chose."""
        return self.part_ns(FIRST_START) + self.part_ns(FIRST_SAMPLING)

    @property
    def step_ms(self) -> float | None:
        """What a step took on average, with all that lies between steps and the first start of workers."""
        return self.judged_ns / self.steps / 1e6 if self.steps and self.loop_ns else None

    @property
    def restarts_ns(self) -> int:
        """How long iterators were made and ended in the loop."""
        return self.part_ns(ITERATORS) + self.part_ns(VALIDATION_ITERATORS)

    @property
    def first_batches_ns(self) -> int:
        """How long the loop waited for first batches, those of its validation among them."""
        return self.part_ns(FIRST_BATCHES) + self.validation_first_batches_ns

    def is_worth(self, cost_ns: int) -> bool:
        """Whether that is 5 % or more of the loop and the first start."""
        return self.judged_ns > 0 and 100 * cost_ns >= _WORTH_PERCENT * self.judged_ns

    @property
    def avoidable_start_pct(self) -> float:
        """What spawned workers did needlessly at the first start, percent of that and the loop; 0: unknown."""
        if self.spawned is None or not self.judged_ns:
            return 0.0
        needless_ns = self.spawned.import_ns - self.spawned.needed_ns + self.spawned.unpickle_ns
        return 100 * min(self.part_ns(FIRST_START), needless_ns) / self.judged_ns

    def part(self, name: str) -> AccountPart | None:
        """Return a part; None where there is none of it."""
        return next((part for part in self.parts if part.name == name), None)

    def part_ns(self, name: str) -> int:
        """Return the length of a part; 0 where it is not known."""
        part = self.part(name)
        return 0 if part is None else part.ns or 0
