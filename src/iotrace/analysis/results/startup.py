"""From the start of a process to its first step, imports by package; all of its time, part by part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from iotrace.analysis.results.base import ReportPart, figure


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
    unknown_why: Annotated[str | None, figure("why there are no parts", null="there are")] = None


# All of the time, as the user's clock sees it: start-up, loop, end.

START_UP, FIRST_START, TRAINING, WAITS, FIRST_BATCHES, ITERATORS = _OF_TRAINING = (
    *("start-up", "first start", "training", "waits", "first batches", "iterators"),
)
VALIDATION, VALIDATION_ITERATORS, CHECKPOINTS, WRITING, END = _BESIDE = (*("validation", "validation iterators", "checkpoints", "writing", "end"),)
PARTS = (*_OF_TRAINING, *_BESIDE)
_WORTH_PERCENT = 5.0
BEFORE_AND_AFTER = (START_UP, FIRST_START, END)


class AccountPart(ReportPart, frozen=True, kw_only=True):
    """A part of the run; each instant of the training thread belongs to one."""

    name: Annotated[str, figure("which one, see below")]
    in_loop: Annotated[bool, figure("whether it lies between the first batch and the last step")]
    ns: Annotated[int | None, figure("its length; those that are known sum to `whole_ns`", null="not known: its time is in `training`")] = None
    share_pct: Annotated[float | None, figure("of `whole_ns`", null="not known")] = None
    times: Annotated[int | None, figure("how often: waits, iterators, evaluations, checkpoints", null="it is one piece, or unknown")] = None


class SpawnedWorkers(ReportPart, frozen=True, kw_only=True):
    """What the loop's spawned workers did before they worked."""

    count: Annotated[int, figure("workers that were spawned, or forked by a fork server, and recorded it")]
    script: Annotated[str | None, figure("the script that they imported again", null="none")] = None
    import_ns: Annotated[int, figure("importing that script and what it imports, mean of a worker")]
    needed_ns: Annotated[int, figure("of that torch and numpy, which any worker imports")]
    unpickle_ns: Annotated[int, figure("unpickling the dataset and what else they were given, without imports, mean of a worker")]
    pickle_ns: Annotated[int, figure("pickling that in the main process, in all")]
    pickled_bytes: Annotated[int, figure("of that, in all", "bytes")]


class Account(ReportPart, frozen=True, kw_only=True):
    """The whole run of a training process, and what its loaders cost the loop in all.

    Times are those of the training thread, in integer ns; the parts sum exactly.
    """

    whole_ns: Annotated[int, figure("from the start to the end of the process's run, as far as it was seen")]
    loop_ns: Annotated[int, figure("of that from the first batch to the end of the last step, or of an evaluation behind it, without `first start`")]
    steps: Annotated[int, figure("batches that the loop trained on, from the first to the last: the steps of a program's own clock")]
    parts: Annotated[list[AccountPart], figure("start-up, loop and end, in their order")]
    loader_pct: Annotated[float | None, figure("of the loop: waits, first batches, and iterators, those of evaluations too", null="the wait is not known")] = (
        None
    )
    restarts_pct: Annotated[float | None, figure("of the loop: iterators alone, those of evaluations too", null="the wait is not known")] = None
    iterators: Annotated[int, figure("iterators that the loop made of loaders with workers, after the first of each")] = 0
    one_batch_iterators: Annotated[int, figure("iterators of which the loop took one batch, and left them")] = 0
    restarted: Annotated[int, figure("of the iterators those with new workers")] = 0
    workers_started: Annotated[int, figure("workers that were started for them")] = 0
    spawned: Annotated[
        SpawnedWorkers | None, figure("what spawned workers did before they worked", null="none was spawned, or recorded by an older iotrace")
    ] = None

    @property
    def judged_ns(self) -> int:
        """The loop and the first start of its workers."""
        return self.part_ns(FIRST_START) + self.loop_ns

    @property
    def step_ms(self) -> float | None:
        """What a step took on average, with all that lies between steps and the first start of workers."""
        return self.judged_ns / self.steps / 1e6 if self.steps and self.loop_ns else None

    @property
    def restarts_ns(self) -> int:
        """How long iterators were made and ended in the loop."""
        return self.part_ns(ITERATORS) + self.part_ns(VALIDATION_ITERATORS)

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

    def part_ns(self, name: str) -> int:
        """Return the length of a part; 0 where it is not known."""
        return next((part.ns or 0 for part in self.parts if part.name == name), 0)
