"""How batches are made: loaders, stages and what they cost, work that is done again and again."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Annotated

import msgspec

from iotrace.analysis.results.base import ReportPart, figure
from iotrace.analysis.results.code import HotLine
from iotrace.units import counted, duration

_MANY_FILES = 10.0  # that a sampler reads: fewer may be an index


class SamplerWork(ReportPart, frozen=True, kw_only=True):
    """What a sampler of the program does in the loop before each epoch, in epochs but the first."""

    function: Annotated[str, figure("the program's outermost function of it, with its file and first line")]
    inner: Annotated[str | None, figure("the innermost that most of it is in", null="none but that")] = None
    passes: Annotated[int, figure("so many epochs")]
    ms: Annotated[float, figure("how long it takes before each", "ms")]
    files: Annotated[float | None, figure("files that it reads there, a mean", null="POSIX calls were not traced")] = None

    @property
    def said(self) -> str:
        """Say what it does, and how long that takes."""
        most = "" if self.inner is None else f", most of it in {self.inner}"
        reads = f": it reads {counted(round(self.files or 0), 'file')} in the main process" if self.reads else ""
        return f"{self.function} takes {duration(1e6 * self.ms)} before each epoch{most}{reads}"

    @property
    def reads(self) -> bool:
        """Whether it reads many files."""
        return (self.files or 0.0) >= _MANY_FILES


class LoaderResult(ReportPart, frozen=True, kw_only=True):
    """A loader of the rank."""

    id: Annotated[int, figure("number of the loader in its process; numbers may be skipped")]
    kind: Annotated[str, figure("`training`, a phase of Lightning's, `evaluation` or `other`")]
    primary: Annotated[bool, figure("whether it is the primary loader")]
    dataset: Annotated[str, figure("class name of the dataset; of a wrapped source its own, or the generator function's")]
    item: Annotated[str | None, figure("the function that makes an item", null="not a DataLoader's, or unknown")] = None
    collate: Annotated[str | None, figure("the function of the program that puts samples together, with its line", null="torch's own, or unknown")] = None
    item_hot: Annotated[HotLine | None, figure("the line that making an item is mostly in", null="no line is, or too few samples")] = None
    collate_hot: Annotated[HotLine | None, figure("the line that `collate` is mostly in", null="no line is, or too few samples")] = None
    sampling_hot: Annotated[HotLine | None, figure("the line that its sampler is mostly in while the loop waits", null="no line is, or too few samples")] = None
    sampler: Annotated[
        SamplerWork | None, figure("what its sampler does before each epoch", null="less than 10 ms, too few samples, or it has none of the program's")
    ] = None
    start_code: Annotated[
        str | None, figure("the program's function that workers are mostly in as they start, such as a `worker_init_fn`", null="none is, or too few samples")
    ] = None
    start_code_ms: Annotated[float | None, figure("the time that a worker is in `start_code`, the median", null="`start_code` is")] = None
    first_file: Annotated[
        str | None, figure("the file that its workers work with for most of their first sample, and in no other one", null="there is none")
    ] = None
    first_file_ms: Annotated[float | None, figure("how long they do, the median", null="`first_file` is")] = None
    first_code: Annotated[str | None, figure("the program's innermost function that most of long first samples is in", null="none is, or too few samples")] = (
        None
    )
    wrapped: Annotated[bool, figure("whether it is a source wrapped by `iotrace.batches`")]
    within: Annotated[int | None, figure("the loader that asks it for all of its batches, and hands them to the loop", null="the loop asks it")] = None
    library: Annotated[str | None, figure("the library whose loader hands the batches to the loop", null="torch's DataLoader, `iotrace.batches`")] = None
    pool: Annotated[str | None, figure("the class of the pool whose tasks make the items, or of the queue that they come from", null="neither")] = None
    workers: Annotated[int, figure("`num_workers` of its last pass; of a pool its threads or processes")]
    batch_size: Annotated[int | None, figure("as set in the DataLoader that makes the batches", null="it has no such setting")] = None
    prefetch_factor: Annotated[int | None, figure("as set in the DataLoader that makes the batches", null="it has no such setting")] = None
    persistent_workers: Annotated[bool | None, figure("as set in the DataLoader that makes the batches", null="it has no such setting")] = None
    pin_memory: Annotated[bool | None, figure("as set in the DataLoader that makes the batches", null="it has no such setting")] = None
    in_order: Annotated[bool | None, figure("as set in the DataLoader that makes the batches", null="it has no such setting")] = None
    batches: Annotated[int, figure("deliveries over the whole run")]
    phases: Annotated[dict[str, int], figure("batches by phase; `{}` without Lightning")]
    raw_ms: Annotated[float | None, figure("mean raw wait", null="fewer than two batches")] = None
    delay_ms: Annotated[float | None, figure("mean of delivered - prepared, where known", null="`num_workers=0`, or none known")] = None
    production_ms: Annotated[float | None, figure("mean of prepared - taken, where known", null="none known")] = None
    made_fraction: Annotated[
        float | None, figure("the share of its batches whose making was seen: who made them, and when", null="no batch, or a library's own threads make them")
    ] = None
    queue_depth_mean: Annotated[float | None, figure("mean number that lay prepared when the next was asked for")] = None
    ready_in_turn_mean: Annotated[
        float | None, figure("of these, the mean number that the loop could take one after the other: the one whose turn it is may still be in the making")
    ] = None
    tensors: Annotated[float | None, figure("tensors in a batch that a worker hands over, the mean", null="no more than 16, or unknown")] = None
    batch_bytes_mean: Annotated[
        float | None, figure("bytes of the tensors and arrays in a batch that a worker hands over", null="no worker does, or unknown")
    ] = None
    padded_fraction: Annotated[
        float | None, figure("the share of its batches that pads samples of unequal lengths", null="samples have no lengths, or these are unknown")
    ] = None
    padded_squares_fraction: Annotated[
        float | None, figure("1 - the sum of the samples' squared lengths / that of their lengths in the batch", null="as `padded_fraction`")
    ] = None
    epochs: Annotated[int, figure("passes that were begun")]
    epochs_ended: Annotated[int | None, figure("passes that the loop took to the loader's end", null="recorded by an older iotrace")] = None
    after_training: Annotated[bool, figure("whether it was first asked behind the last run of Lightning's trainer")]
    start_method: Annotated[str | None, figure("how workers were started: `fork`, `spawn`, `forkserver`", null="no workers")] = None
    first_batch_ms: Annotated[float | None, figure("raw wait for the first batch of the run", null="no batch")] = None
    failures: Annotated[list[str], figure("class names of exceptions that `__next__` raised, StopIteration not")]

    @property
    def start_said(self) -> str:
        """What its workers do as they start, and in their first samples alone; empty where that is unknown."""
        found = ""
        if self.start_code is not None and self.start_code_ms is not None:
            found = f"; {self.start_code} takes {duration(1e6 * self.start_code_ms)} in each worker"
        if self.first_file is not None and self.first_file_ms is not None:
            code = f", in {self.first_code}" if self.first_code else ""
            found += f"; each worker works with {self.first_file} for {duration(1e6 * self.first_file_ms)} in its first sample, in no other{code}"
        return found

    @property
    def named(self) -> str:
        """What a reader knows it by: a queue has no dataset whose items nobody was seen to make."""
        return self.dataset or self.pool or self.library or f"loader {self.id}"


# Kinds of repeated work.
LISTING, READING_AGAIN, OPENING, DECODING, ASKING = "listing", "reading", "opening", "decoding", "asking"
DATABASES = (".db", ".sqlite", ".sqlite3", ".duckdb")  # suffixes


class RepeatedWork(ReportPart, frozen=True, kw_only=True):
    """What samples of the loop's loader do again and again with files; times are means over all samples.

    A sample's time with a file is from a call on it until the next call on another one; what follows its last
    call counts for none, and of `asking` no pause of more than 1 ms between two calls.
    """

    kind: Annotated[
        str,
        figure(
            "`listing` directories, `reading` much of files by its own code, `decoding` much of files by a library, "
            "`opening` files (until a library reads them), `asking` for files that none opens",
            said="what",
        ),
    ]
    paths: Annotated[list[str], figure("the files or directories that make up 90 % of the time, costliest first", said="which", place=1)]
    files: Annotated[int, figure("how many there are", said="files")]
    read_fraction: Annotated[float | None, figure("of `reading` and `decoding`, what a sample reads of a file, on average", null="another kind")] = None
    kept_bytes: Annotated[int | None, figure("what to keep these files takes in each process at least, of `reading` and `decoding`", null="another kind")] = (
        None
    )
    stored_bytes: Annotated[int | None, figure("of these files, as they are stored", null="another kind")] = None
    decoded_bytes: Annotated[int | None, figure("of these files, all of them decoded, as their headers tell", null="not known, or another kind")] = None
    given_fraction: Annotated[float | None, figure("of `decoded_bytes` of a file, what a sample is given of it", null="likewise")] = None
    block: Annotated[
        list[int] | None, figure("rows and columns that are decoded at once, of rasters that are one block or strips", null="they are none, or are tiled")
    ] = None
    compression: Annotated[str, figure("of such rasters; empty where it is none, or not known")] = ""
    entries: Annotated[
        int | None, figure("entries of a directory, the mean", null="not of `listing`, or the results were not counted", said="entries", absent="-")
    ] = None
    samples_fraction: Annotated[float, figure("samples that do it")]
    ms_per_sample: Annotated[float, figure("time of a sample with these files", said="ms", place=-3)]
    of_ms_per_sample: Annotated[float, figure("time of a sample", said="sample ms", place=-2)]
    site: Annotated[
        str | None, figure("the program's function and line that most of it is called in", null="no line is, too few samples, or several libraries in turn")
    ] = None
    wait_ms: Annotated[float, figure("the data wait charged to it, per step", "ms", said="wait", place=-1)]
    gain_ms: Annotated[float | None, figure("what a step loses without it, by replay", "ms per step", null="the loader is no DataLoader in order")] = None
    most_ms: Annotated[float | None, figure("the same at most, where what is left gets quicker", "ms per step", null="it is not known")] = None
    spares_fraction: Annotated[float | None, figure("what share of making batches goes with it at most", null="it is not known")] = None


class PipelineStage(ReportPart, frozen=True, kw_only=True):
    """Threads or processes of the program that make items for the loop: those that put into one queue or pool.

    The stage before it makes what it takes; the loop takes what the last one makes. Of the measured steps.
    """

    name: Annotated[str, figure("the function that makes its items", said="stage")]
    makers: Annotated[int, figure("how many threads or processes it has", said="of")]
    of: Annotated[str, figure("`threads`, `processes` or `coroutines`", said="who")]
    busy: Annotated[float, figure("how many of them work, on average: they neither wait for input nor for room", said="busy")]
    items: Annotated[int, figure("how many items it made", said="items")]
    item_ms: Annotated[float, figure("mean time of an item's making, without these waits", "ms", said="each")]
    on_cpu_fraction: Annotated[float | None, figure("the share of their making in which they computed", null="it was too quick to be timed", said="CPU")] = None
    queued_fraction: Annotated[
        float | None, figure("the share of their making in which they were ready and had no CPU", null="it was too quick to be timed, or a library calls it")
    ] = None
    before: Annotated[
        float | None, figure("how many items lie before it when it takes one, on average", null="it takes none from a queue that says so", said="before")
    ] = None
    before_limit: Annotated[int | None, figure("how many may lie there", null="any number, or not known", said="limit")] = None
    room_fraction: Annotated[
        float | None,
        figure("the share of their time in which its makers wait for room to put an item", null="they go to no queue with a limit", said="room"),
    ] = None
    after_limit: Annotated[int | None, figure("how many items may lie behind it", null="any number, or not known")] = None
    locks_ms: Annotated[
        dict[str, float],
        figure("of an item's making, the waits for a lock: `interpreter` (Python's), `h5py`, `file`, `program` (by samples); left out without waits", "ms"),
    ] = msgspec.field(default_factory=dict)
    lock_file: Annotated[str | None, figure("the file whose lock its makers wait for longest", null="they wait for none")] = None
    puts: Annotated[str, figure("the class of the queue or pool that hands its items on", said="by")]
    wait_ms: Annotated[float, figure("the loop's wait in which it worked on what the loop waited for, per step", "ms", said="wait")]
    slowest: Annotated[bool, figure("whether it holds the loop up: it works most of the loop's wait")] = False
    site: Annotated[str | None, figure("the line of its function", null="not known, or not the program's", said="at")] = None
    hot: Annotated[HotLine | None, figure("the line that its making is mostly in, by samples", null="no line is, or too few samples")] = None
    setting: Annotated[str | None, figure("the library's setting that says how many work at once", null="none is known")] = None
    setting_value: Annotated[int | None, figure("its value", null="the library chooses, or no setting is known")] = None
    set_at: Annotated[str | None, figure("the line that sets it", null="not known")] = None


def busiest(stages: Sequence[PipelineStage]) -> PipelineStage | None:
    """Return the stage that works as long as all the others together, or longer; None where none does."""
    most = max(stages, key=attrgetter("busy"), default=None)
    return most if most is not None and 2 * most.busy >= sum(each.busy for each in stages) else None


class StageCost(ReportPart, frozen=True, kw_only=True):
    """What one stage costs in one file (None: in all others) each time that a sample needs it.

    All calls of one sample are one cost, as opening an image and decoding it later; so are its calls on all
    files that have no row of their own.
    Other programs only add to a cost, and seldom to all of it: so these are lower quartiles. None changes
    `decoded_bytes`: it is a count.
    """

    stage: Annotated[str, figure("`read`, `decode`, `transform`, `collate` (of a batch)")]
    path: Annotated[str | None, figure("the file, or the directory of files that are needed seldom", null="no file, or all that have no row of their own")] = (
        None
    )
    loader: Annotated[str | None, figure("the dataset of the loader whose samples they are", null="the steps wait for one loader")] = None
    clock: Annotated[str, figure("`cpu`: CPU time of the thread; `wall`: elapsed time")]
    quiet: Annotated[bool | None, figure("of the seconds alone in which other programs and machines took little", null="nothing tells what others took")] = None
    count: Annotated[int, figure("of how many times the figures are; how often a sample needs it")]
    per_sample: Annotated[float, figure("of how many times the figures are; how often a sample needs it")]
    mean_ms: Annotated[float, figure("mean and lower quartile of the costs, in ms")]
    quartile_ms: Annotated[float, figure("mean and lower quartile of the costs, in ms")]
    blocks_ms: Annotated[list[float], figure("the lower quartiles of consecutive blocks of them, 40 at most")]
    decoded_bytes: Annotated[
        float | None, figure("of decoding, the mean of what the calls returned each time", null="where a call's result has no known size")
    ] = None
    decoded_bytes_error: Annotated[float | None, figure("the standard error of that mean", null="where it is unknown")] = None


class SampleCall(ReportPart, frozen=True, kw_only=True):
    """A call that making samples consists of, within the call before it that is one level less deep."""

    name: Annotated[str, figure("the function, region or call of the C library")]
    depth: Annotated[int, figure("how many calls hold it: 0 makes a sample, or puts samples together")]
    count: Annotated[int, figure("how often it was called", said="calls")]
    per_sample: Annotated[float, figure("the same, for each call of the outermost one", said="per sample")]
    ms_each: Annotated[float, figure("mean time of a call", "ms", said="each")]
    own_ms_each: Annotated[float, figure("the same without the calls in it", "ms", said="own")]
