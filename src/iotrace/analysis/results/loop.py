"""The training loop: steps, their data wait, phases, regions, what recurs, where it did not go on."""

from __future__ import annotations

from typing import Annotated

import msgspec

from iotrace.analysis.results.base import ReportPart, figure
from iotrace.analysis.results.code import HotLine
from iotrace.units import size

LEAST_COLLECTION = 0.05  # of the loop: less garbage makes single steps slow, and no more
_SELDOM = 2.0  # steps from one to the next
_IN_CALLS = 0.1  # of writing
_WORTH_SAYING = 0.05  # of what the loop does now and then
_KINDS = {
    "evaluation": "validation",
    "checkpoint": "saving checkpoints",
    "collection": "Python's garbage collection",
    "compilation": "compiling",
}


class Excluded(ReportPart, frozen=True, kw_only=True):
    """Steps left out of the figures: the first, those awaiting a worker's first batch, those profiled."""

    first: Annotated[int, figure("1 if there is any step, else 0")]
    warmup: Annotated[int, figure("warm-up steps, the first step not among them")]
    profiled: Annotated[int, figure("steps that a window of torch's profiler touched")]


class Steps(ReportPart, frozen=True, kw_only=True):
    """Measured steps; with gradient accumulation `per_update` or `batches` is more than 1."""

    count: Annotated[int, figure("measured steps")]
    begun: Annotated[int | None, figure("cuts, so also steps without a known end", null="no loop was seen")] = None
    unknown_why: Annotated[str | None, figure("why the data wait is null", null="where it is known")] = None
    excluded: Excluded
    mean_ms: Annotated[float | None, figure("mean length of the measured steps", null="no measured step")] = None
    mean_ci95_ms: Annotated[list[float] | None, figure("95 % interval of that mean: by blocks of steps", null="fewer than 4 measured steps")] = None
    drift_pct: Annotated[float | None, figure("mean of the second half of the steps / mean of the first half - 1", null="fewer than 8")] = None
    drift_ci95_pct: Annotated[list[float] | None, figure("its 95 % interval", null="the same")] = None
    p50_ms: Annotated[float | None, figure("percentiles of it, linearly interpolated", null="no measured step")] = None
    p95_ms: Annotated[float | None, figure("percentiles of it, linearly interpolated", null="no measured step")] = None
    per_second: Annotated[float | None, figure("`count` / sum of the measured steps' lengths", null="no measured step")] = None
    samples_per_second: Annotated[
        float | None, figure("samples of their batches / the same sum", null="no measured step, or one whose samples are unknown")
    ] = None
    loop_seconds: Annotated[float | None, figure("from the first step's beginning to the last known end of a step", null="no step has an end")] = None
    per_update: Annotated[
        float | None, figure("steps begun from one step of the busiest optimizer to the next, on average", null="fewer than two optimizer steps were seen")
    ] = None
    batches: Annotated[float | None, figure("of the loop's loader, delivered to a measured step, on average", null="no loader, or no measured step")] = None
    thread_cpu_ms: Annotated[float | None, figure("CPU time of the training thread, mean per measured step", null="fewer than 4 are counted")] = None
    thread_run_delay_ms: Annotated[
        float | None, figure("the same: it was ready to run, but had no CPU (schedstat)", null="the kernel does not count it, or fewer than 4 are counted")
    ] = None


class PhasesMs(ReportPart, frozen=True, kw_only=True):
    """Means per measured step of what the training thread was in; with the data wait they sum to the step."""

    forward: Annotated[float | None, figure("calls of modules with grad mode on", null="no such call was seen in a measured step")] = None
    backward: Annotated[float | None, figure("`torch.autograd.backward`, which `Tensor.backward` calls", null="not called in a measured step")] = None
    optimizer: Annotated[
        float | None, figure("`step` of the optimizers of `torch.optim` and of their subclasses", null="none made a step in a measured step")
    ] = None
    other: Annotated[
        float | None, figure("the rest: the program's own code, such as losses that are no modules", null="the data wait, or one of the others, is null")
    ] = None


class FileCost(ReportPart, frozen=True, kw_only=True):
    """A file's share of the data wait."""

    path: Annotated[str, figure("the file")]
    ms: Annotated[float, figure("in files: reading and decoding")]
    read_ms: Annotated[float, figure("of it, reading")]
    decode_ms: Annotated[float, figure("of it, decoding")]
    transform_ms: Annotated[float, figure("behind reading this one alone")]


class SlowLoopStep(ReportPart, frozen=True, kw_only=True):
    """A slow step."""

    step: Annotated[int, figure("its number in the timeline")]
    epoch: Annotated[int | None, figure("what opened it", null="of marked steps")] = None
    batch: Annotated[int | None, figure("the same", null="of marked steps")] = None
    start_s: Annotated[float, figure("since the launch")]
    ms: Annotated[float, figure("its length, with evaluation passes")]
    over_ms: Annotated[float, figure("beyond the usual")]
    parts_ms: Annotated[dict[str, float], figure("what it did longer than the median step, by cause")]
    unnamed_ms: Annotated[float, figure("the rest of `over_ms`")]
    host_ms: Annotated[dict[str, float], figure("phases of the training thread that were longer than usual")]
    file: Annotated[str | None, figure("that of the largest part", null="it has none")] = None
    write_bytes: Annotated[int | None, figure("of a checkpoint")] = None
    write_mb_per_s: Annotated[float | None, figure("bytes over the time of the part")] = None


class SlowLoopSteps(ReportPart, frozen=True, kw_only=True):
    """The measured steps that took long: beyond p95 and three times the median absolute deviation."""

    count: Annotated[int, figure("how many are slow")]
    measured: Annotated[int, figure("of so many")]
    apart: Annotated[int, figure("so many others are as long by what the loop does now and then: `loop_events`, `loop_code`")] = 0
    usual_ms: Annotated[float, figure("their median")]
    beyond_ms: Annotated[float, figure("from which on a step is slow")]
    over_ms: Annotated[float, figure("what the slow ones took beyond the median, all together")]
    explained_fraction: Annotated[float | None, figure("the share of that which causes explain", null="no step is slow")] = None
    parts_ms: Annotated[dict[str, float], figure("what of it each cause explains")]
    unnamed_ms: Annotated[float, figure("the rest")]
    unknown: Annotated[dict[str, str], figure("of which causes nothing was recorded, and why")]
    steps: Annotated[list[SlowLoopStep], figure("the 20 that took most beyond the usual")]


class Collector(ReportPart, frozen=True, kw_only=True):
    """Python's garbage collector in the training process, once it had collected for 0.2 s."""

    enabled: Annotated[bool, figure("whether it collects by itself: `gc.isenabled()`")]
    threshold: Annotated[int, figure("`gc.get_threshold()[0]`: so many new objects begin a collection")]
    objects: Annotated[int, figure("objects that a full collection looks at")]
    frozen: Annotated[int, figure("objects that `gc.freeze()` took out of it")]
    per_step: Annotated[float | None, figure("collections per step", null="it was looked at once")] = None
    full_per_step: Annotated[float | None, figure("those of all objects", null="it was looked at once")] = None
    is_called: Annotated[
        bool | None,
        figure("whether the program calls `gc.collect()`: more full collections than the collector makes by itself", null="it was looked at once"),
    ] = None


class LoopEvents(ReportPart, frozen=True, kw_only=True):
    """What the loop does now and then beside its steps: one kind of it, summed up over the whole loop."""

    kind: Annotated[
        str,
        figure("`evaluation`, `checkpoint`, `writing`: the loop writes to a file, or waits for the disk (fsync); `collection`, of garbage; or `compilation`"),
    ]
    count: Annotated[int, figure("in how many steps")]
    seconds: Annotated[float, figure("their sum")]
    loop_seconds: Annotated[float, figure("the loop's length, as in the account")]
    loop_fraction: Annotated[float, figure("the share of the loop's time")]
    every_steps: Annotated[float | None, figure("steps from one to the next, their median", null="there is one")] = None
    seen_seconds: Annotated[float, figure("of it, in calls and passes that were seen; the rest: so much longer than others are the steps that hold one")] = 0.0
    wait_seconds: Annotated[float | None, figure("of an evaluation, its own waits for data")] = None
    start_seconds: Annotated[float | None, figure("of an evaluation, its iterators and workers start: until it asks for its first batch, and that wait")] = None
    writing_seconds: Annotated[
        float | None, figure("of an evaluation, it writes to files: from opening to closing, as writing counts", null="another kind, or not known")
    ] = None
    first_start_seconds: Annotated[
        float | None, figure("on top of `seconds`, of an evaluation: the first start of its workers, which comes once", null="another kind")
    ] = None
    workers: Annotated[int | None, figure("`num_workers` of the evaluation's busiest loader")] = None
    persistent_workers: Annotated[bool | None, figure("as set there", null="no DataLoader's")] = None
    file: Annotated[str | None, figure("the file, or of several what their paths share, of what is written", null="none is known")] = None
    files: Annotated[int | None, figure("how many files these are", null="none is known")] = None
    bytes: Annotated[int | None, figure("written to them, as far as calls show", null="not known")] = None
    reopened: Annotated[bool, figure("of writing: most of it `file` is open, and closed again in the same step")] = False
    call_seconds: Annotated[float | None, figure("of writing, in calls on files: the rest is making what is written", null="another kind")] = None
    function: Annotated[
        str | None,
        figure(
            "of all but an evaluation with a loader: what the loop is in for most of it, by samples",
            null="another kind, or not known",
        ),
    ] = None
    compiler: Annotated[str | None, figure("of compiling, what compiles: `jax.jit` or `torch.compile`", null="another kind")] = None
    late: Annotated[int | None, figure("of compiling, in how many steps of the loop's second half", null="another kind")] = None
    collector: Annotated[Collector | None, figure("of collecting garbage, the collector", null="another kind, or not known")] = None
    hot: Annotated[
        HotLine | None, figure("of an evaluation, the line that most of it is in, outside of its waits and its models", null="another kind, or no line is")
    ] = None

    last_in_part: Annotated[
        bool, figure("of evaluations: of the last one, behind the loop's last step, `seconds` has its batches alone, and of others much that follows theirs")
    ] = False

    @property
    def recurs(self) -> bool:
        """Whether the loop does it again and again."""
        return self.count > 1

    @property
    def said(self) -> str:
        """Say what it took of the loop, how often, and what of it is known."""
        took = f"{self.seconds:.1f} of the loop's {self.loop_seconds:.1f} s"
        seldom = (self.every_steps or 0.0) >= _SELDOM and self.kind not in ("collection", "compilation")
        every = f"every {self.every_steps:.3g} steps" if seldom else ""
        if self.is_one_file:
            which = f", one in {self.every_steps:.3g}" if seldom else ""
            return f"{self.file} is opened and written anew in {self.count} steps{which}: that took {took}"
        if self.kind == "writing" and self.seen_seconds < self.seconds / 2:
            longer = f"take {self.over_ms_each:.0f} ms longer than others: {took}"
            counted = ", ".join(filter(None, (f"{self.count} in all", every)))
            return f"steps that sync {self.file or 'files'} (fsync), {counted}, {longer}"
        # Of what comes in nearly each step, and perhaps several times there, steps are counted.
        often = f": {self.count} times, {every}" if seldom else ": once" if self.count == 1 else f", in {self.count} steps"
        to = "" if self.file is None or self.kind == "evaluation" else f", {size(self.bytes)} to {self.file}" if self.bytes else f", to {self.file}"
        waits = self.wait_seconds or 0.0
        waits_much = waits >= max(0.05, _WORTH_SAYING * self.seconds)
        of_it = f"; {waits:.1f} s of it waits for its own data" if waits_much else ""
        writes = self.writing_seconds or 0.0
        if self.file is not None and writes >= max(0.05, _WORTH_SAYING * self.seconds):
            of_it += f"; {writes:.1f} s of it writes {self.file}"
        if self.kind == "collection" and self.collector is not None and self.collector.is_called:
            of_it += f"; the program calls gc.collect(){'' if self.function is None else f' in {self.function}'}"
        elif self.hot is not None:
            of_it += f"; most of {'the rest' if waits_much else 'it'} at {self.hot.said}"
        elif self.function:
            of_it += f"; most of it in {self.function}"
        if self.is_made:
            of_it += f"; {self.call_seconds:.2f} s of it in calls on files: the rest makes what is written"
        if self.last_in_part:
            of_it += "; of the last one its batches alone"
        first = self.first_start_seconds or 0.0
        if first >= _WORTH_SAYING * self.loop_seconds:
            of_it += f"; the first start of its workers took another {first:.1f} s"
        return f"{self.what} took {took}{often}{to}{of_it}"

    @property
    def is_made(self) -> bool:
        """Whether writing is nearly all making what is written: encoding an image, for example."""
        return self.reopened and self.call_seconds is not None and self.call_seconds < _IN_CALLS * self.seconds

    @property
    def is_one_file(self) -> bool:
        """Whether most of writing is one file, opened again and again."""
        return self.reopened and self.file is not None and (self.files or 1) == 1

    @property
    def what(self) -> str:
        """Name it."""
        return _KINDS.get(self.kind, "writing")

    @property
    def over_ms_each(self) -> float:
        """What each step that holds one takes beyond what was seen of it."""
        return 1e3 * max(0.0, self.seconds - self.seen_seconds) / self.count


class LoopReads(ReportPart, frozen=True, kw_only=True):
    """What the training thread read itself, beside its asks, in ms per measured step."""

    read_ms: Annotated[float, figure("per measured step", "ms per step")]
    decode_ms: Annotated[float, figure("likewise", "ms per step")]
    files: Annotated[list[FileCost], figure("the same by file")]


class WorstBatch(ReportPart, frozen=True, kw_only=True):
    batch: Annotated[int, figure("index of the batch in its epoch, and the epoch; both from 0")]
    epoch: Annotated[int, figure("index of the batch in its epoch, and the epoch; both from 0")]
    wait_ms: Annotated[float, figure("its raw wait, in ms")]
    delay_ms: Annotated[float | None, figure("delivered - prepared, in ms: how long it lay ready or was on its way")] = None
    worker: Annotated[int | None, figure("the worker that made it, and its pid", null="`num_workers=0`, or unknown")] = None
    pid: Annotated[int | None, figure("the worker that made it, and its pid", null="`num_workers=0`, or unknown")] = None
    cause: Annotated[str, figure("the largest of its causes")]
    files: Annotated[list[str], figure("the costliest files of its wait, three at most")]

    @property
    def made_by(self) -> str:
        """Who fetched it: the loop itself where no worker did."""
        return "loop" if self.worker is None else f"worker {self.worker}"


class LoaderWait(ReportPart, frozen=True, kw_only=True):
    """A loader's share of the data wait, as a mean per measured step."""

    loader: Annotated[int, figure("its `id`")]
    raw_ms: Annotated[float, figure("its share of the data wait", "ms per step")]


class DataWait(ReportPart, frozen=True, kw_only=True):
    raw_ms: Annotated[float | None, figure("sum of the raw waits in the measured steps / their number", "ms per step", null="no measured step")] = None
    exposed_ms: Annotated[float | None, figure("wait while the accelerator had nothing to do: `raw_ms` without one", "ms per step")] = None
    exposed_source: Annotated[str | None, figure("`cpu`, `cuda_events` or `kernels`", null="where `exposed_ms` is")] = None
    exposed_steps: Annotated[int | None, figure("how many steps `exposed_ms` and `stall_fraction` are of", null="where `exposed_ms` is")] = None
    raw_wait_fraction: Annotated[float | None, figure("sum of the raw waits / sum of the measured steps' lengths", null="no measured step")] = None
    raw_wait_fraction_ci95: Annotated[list[float] | None, figure("its 95 % interval, by blocks of steps", null="fewer than 4 measured steps")] = None
    stall_fraction: Annotated[float | None, figure("the same with the exposed wait", null="where `exposed_ms` is")] = None
    stall_fraction_ci95: Annotated[
        list[float] | None, figure("its 95 % interval, by blocks of steps", null="where `exposed_ms` is; fewer than 4 such steps")
    ] = None
    verdict: Annotated[str | None, figure("from `stall_fraction`, or from `raw_wait_fraction` where that is null", null="no measured step")] = None
    causes_ms: Annotated[dict[str, float], figure("the raw wait by cause; `{}` without a measured step", "ms per step")] = msgspec.field(default_factory=dict)
    by_loader: Annotated[list[LoaderWait], figure("the raw wait by loader; sums to `raw_ms`", "ms per step")] = msgspec.field(default_factory=list)
    too_few_workers: Annotated[bool | None, figure("whether more workers would help")] = None
    behind_ready_ms: Annotated[float | None, figure("the waits, less their `transport`, that began while a later batch lay ready", null="no measured step")] = (
        None
    )
    files: Annotated[list[FileCost], figure("the raw wait by file", "ms per step")] = msgspec.field(default_factory=list)
    worst_batches: Annotated[list[WorstBatch], figure("the longest waits, five at most", "ms")] = msgspec.field(default_factory=list)
    long_wait_steps: Annotated[int | None, figure("the fewest measured steps that hold 90 % of the raw wait", null="no wait")] = None
    long_wait_first: Annotated[int | None, figure("those of them that begin a pass over a loader", null="no wait")] = None
    sending_locked_ms: Annotated[
        float | None,
        figure("of waits for batches under way, the worker's thread that sends them waited for its interpreter", "ms per step", null="no worker tells of that"),
    ] = None
    without_cpu_ms: dict[str, float] | None = None
    queueing_ms: Annotated[
        float | None,
        figure(
            "what the raw wait loses at most if no thread queues for a CPU, by a replay of the batches",
            "ms per step",
            null="others took few CPUs, or not known",
        ),
    ] = None
    making_least_ms: Annotated[
        float | None,
        figure(
            "what a step takes at the least for its workers to make batches in, if none queues for a CPU",
            "ms per step",
            null="as `queueing_ms`, or no worker makes them",
        ),
    ] = None
    taking_least_ms: Annotated[
        float | None,
        figure(
            "what taking batches from workers takes at the least: a second for 2 GiB of large pickled ones, 0.05 ms for each of many tensors",
            "ms per step",
            null="neither of these, or not known",
        ),
    ] = None


class RegionResult(ReportPart, frozen=True, kw_only=True):
    """A part of the program that its author named, over the whole run; `wait_ms` is per measured step."""

    name: Annotated[str, figure("as given", said="region", place=-1)]
    count: Annotated[int, figure("spans: uses, and resumptions of decorated generators", said="count")]
    ms_total: Annotated[float, figure("sum of their lengths; of spans inside another one of that name on the same thread none", said="total ms")]
    cpu_ms_total: Annotated[float, figure("CPU time of their threads, of the same spans", said="CPU ms")]
    wait_ms: Annotated[float | None, figure("the data wait charged to it", "ms per step", said="wait ms a step", absent="-")] = None


class StepBlocks(ReportPart, frozen=True, kw_only=True):
    """Means of blocks of consecutive measured steps, in order of time; 64 at most, however long the run."""

    steps: Annotated[int, figure("steps of a block")]
    step_ms: Annotated[list[float], figure("mean length of a step in each block")]
    wait_ms: Annotated[list[float], figure("of it, the data wait; empty where it is unknown")]
    causes_ms: Annotated[dict[str, list[float]], figure("of it, by cause")]
    files_ms: Annotated[dict[str, list[float]], figure("of it, the eight costliest files: reading and decoding")]
    phases_ms: Annotated[dict[str, list[float]], figure("of a step, by phase, those that are known")] = msgspec.field(default_factory=dict)


class HungProcess(ReportPart, frozen=True, kw_only=True):
    """A process of a loop that hung, and what it was in."""

    pid: Annotated[int, figure("who", null="host: of older sessions")]
    role: Annotated[str, figure("`training`, `rank N` or `worker N`", null="host: of older sessions")]
    rank: Annotated[int | None, figure("its number", null="no rank of a job with several")] = None
    host: Annotated[str | None, figure("its host", null="of older sessions")] = None
    text: Annotated[str, figure("what it was in, in words", null="the kernel did not say; the call has no file")]
    state: Annotated[str | None, figure("the kernel's letter for its state", null="the kernel did not say; the call has no file")] = None
    call: Annotated[str | None, figure("the system call", null="the kernel did not say; the call has no file")] = None
    file: Annotated[str | None, figure("the file of that call", null="the kernel did not say; the call has no file")] = None
    collective: Annotated[str | None, figure("what a rank was in with the others", null="nothing of that kind, or no stack")] = None
    of: Annotated[int | None, figure("the pid of the loop's training process", null="of older sessions")] = None
    stack: Annotated[list[str] | None, figure("its main thread's Python frames, the innermost first", null="it was not asked, or did not answer")] = None
    stacks: Annotated[str | None, figure("the file that has those of all threads", null="it was not asked, or did not answer")] = None


class HangInfo(ReportPart, frozen=True, kw_only=True):
    """A loop that did not go on."""

    kind: Annotated[str, figure("`hung`, `computing` or `waiting`")]
    waited_seconds: Annotated[float, figure("since the last batch, when it was told")]
    lasted_seconds: Annotated[
        float | None, figure("from the last batch until batches came again, or the run ended, or until now", null="nobody knows when the run ended")
    ] = None
    resumed: Annotated[bool, figure("a batch came after that")]
    text: Annotated[list[str], figure("the sentences: who waits for whom, and which rank differs")]
    processes: list[HungProcess]
