"""What is known of each loader that the loop waits for: what advice on it may rest on."""

from __future__ import annotations

import msgspec

from iotrace.analysis.results import (
    ChunkedArray,
    FileCost,
    FileGroup,
    GainRow,
    PipelineStage,
    SamplerWork,
)
from iotrace.analysis.rules.facts.making import Making
from iotrace.analysis.wait.data_wait import (
    MODERATELY_PERCENT,
    is_of_the_loader,
    taking_is_work_of,
)
from iotrace.analysis.wait.wait_code import WaitCode
from iotrace.sources.records import IteratorStart


class FileFacts(FileCost, frozen=True, kw_only=True):
    """A file's cost of the wait; bytes that calls read of it, and that libraries made of them.

    `delivered_bytes` is looked up of the file alone whose decoding costs most.
    """

    reads: int = 0
    opens: int = 0
    read_bytes: int | None = None
    delivered_bytes: int | None = None
    arrays: list[ChunkedArray] = msgspec.field(default_factory=list)


class TakenFrom(msgspec.Struct, frozen=True):
    """A pool or a queue: its class, what makes its items, how many threads or processes.

    Each item takes `item_ms`, less what its maker waited for a CPU or the interpreter's lock.
    """

    kind: str
    maker: str
    makers: int
    of: str
    item_ms: float

    @property
    def who(self) -> str:
        """Name who makes its items."""
        one = {"threads": "thread", "processes": "process"}[self.of]
        return f"the {self.makers} {self.of}" if self.makers > 1 else f"the {one}"


class LoaderFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A loader and its part of the data wait. Figures in ms are means per measured step; None is unknown.

    `wait_ms` is the loop's wait; `idle_ms` that of the accelerator in the waits for all loaders. `about`
    has its settings, None where it has none of that name. `of_several`: the loop waits for others, too.
    Of `epochs`, its passes, `epochs_ended` came to their end; None: unknown.
    `inner_workers` are those of a loader that its own samples iterate: no worker of torch's may start any.
    `objects` counts the DataLoaders that it was, one after the other. `handed_over`: another thread takes
    its batches. `core_free`: the cores were not all busy. `beside`: how long other threads of the
    workers compute, as a share of what the samples' own sleep. `asleep` and `on_cpu` are shares of the making
    of its samples, outside calls of libraries that work on threads of their own: these take `threaded` of
    it, and compute in `threaded_cpu` at least. `waits_alone`: others took CPUs, and without them the loop
    would wait, too, for 5 % of a step or more; `others_may_make_it`: perhaps for less than 10 %. `called`
    tells the loader from others of the program; else it is empty. `collate_line` is its collate function
    with its line, `collate_hot` the program's line that it is mostly in. `storage_bytes` came from storage,
    to all processes of the rank, per step. `made_ms` is
    the production of a step's batches. `gains_ms` is what a step loses without a cause, without reading and
    decoding (`FILES`), without that of one file (``files:PATH``) and with the transform's (`RESIZED`), all
    else as it was; `most_ms` the same at most, where what is left gets quicker; `spared` is their share of
    the making; `predicted` has what a
    replay on the model of the loader gives instead, where it may speak, by the row's id; `restart_ms` is
    what ending and starting workers takes in later epochs, `first_code` the function that their first samples
    are in, `draws` what a sampler of the program does there (`sees_draws`: as far as samples of the thread's
    stack show it), in the `steps` of the whole loop; `single` iterators were left after one batch;
    `all_bound_ms` is the sum of `bound_ms` of all loaders of the loop. `piped_bytes` of a batch came
    pickled through a pipe: what the process that trains read beyond calls on files, or `piped_ms`, where it
    was seen to take that long from its maker to the loop; its task came likewise, with `given_bytes`. Taking
    a step's batches lasts `taking_least_ms` at the least, where it is work, not a wait. `unqueued`: in that
    share of the time in which it was ready to run, the training thread had a CPU.
    `tensors` are in one, if many. `ready`: so many batches lay ready when the loop came for one. `making`:
    how they are made.
    `slept_ms`: how long the training thread slept in a step, all in all; it computed for `loop_cpu_ms` (0:
    unknown). `waits_at`: where it is as it makes
    them. `lock_held`: the share of the wait in which a
    thread had the interpreter's lock; in `queueing_ms` of it makers queued for busy CPUs. `event_loop`: the
    least share of the wait that asyncio's event loop slept in. `hot_in`: the library that making them is
    mostly in, `hot_line` the line and what it calls, for `hot_share` of its own code; `hot_held` the
    share that it takes where it calls nothing and holds the interpreter's lock; `hot_function` is the
    function of the program that holds it, with it, where that is another one than `item`. `pipeline`: the
    stages that make them, of a loop that takes them from queues and pools.
    """

    number: int = 0
    about: IteratorStart
    of_several: bool = False
    step_ms: float = 0.0
    wait_ms: float = 0.0
    idle_ms: float | None = None
    causes_ms: dict[str, float] = {}
    gains_ms: dict[str, float] = {}
    most_ms: dict[str, float] = {}
    spared: dict[str, float] = {}
    predicted: dict[str, GainRow] = {}
    files: list[FileFacts] = []
    groups: list[FileGroup] = []
    item: str = ""
    epochs: int = 1
    epochs_ended: int | None = None
    inner_workers: int = 0
    objects: int = 1
    handed_over: bool = False
    production_ms: float | None = None
    made_ms: float | None = None
    restart_ms: float = 0.0
    first_code: str = ""
    draws: SamplerWork | None = None
    sees_draws: bool = False
    steps: int = 0
    single: int = 0
    unmade_fraction: float = 0.0
    behind_ready_ms: float | None = None
    batch_bytes: float | None = None
    tensors: float | None = None
    piped_bytes: float | None = None
    piped_ms: float | None = None
    taking_least_ms: float | None = None
    given_bytes: float | None = None
    samples: float | None = None
    collate: str = ""
    collate_line: str = ""
    collate_hot: str = ""
    core_free: bool | None = None
    cpus: int | None = None
    accelerated: bool = False
    asleep: float | None = None
    on_cpu: float | None = None
    beside: float = 0.0
    threaded: float = 0.0
    threaded_cpu: float = 0.0
    waits_alone: bool = False
    others_may_make_it: bool = False
    called: str = ""
    storage_bytes: float | None = None
    batches: int = 0
    batches_per_step: float = 1.0
    all_bound_ms: float | None = None
    ready: float | None = None
    making: Making = Making()
    slept_ms: float | None = None
    loop_cpu_ms: float = 0.0
    unqueued: float | None = None
    waits_at: WaitCode = WaitCode()
    lock_held: float | None = None
    queueing_ms: float = 0.0
    event_loop: float = 0.0
    hot_in: str = ""
    hot_line: str = ""
    hot_function: str = ""
    hot_share: float = 0.0
    hot_held: float = 0.0
    pipeline: list[PipelineStage] = []
    taken_from: TakenFrom | None = None

    @property
    def bound_ms(self) -> float:
        """What of the wait a faster loader can win at most: an accelerator works in the rest of it.

        Of a loop that works on a pool's items itself no more than leaves a step as long as their making.
        """
        bound_ms = self.wait_ms if self.idle_ms is None else min(self.wait_ms, self.idle_ms)
        taken = self.taken_from
        if taken is None:
            return bound_ms
        return min(bound_ms, max(0.0, self.step_ms - taken.item_ms / taken.makers))

    @property
    def is_single(self) -> bool:
        """Whether an iterator is made for most batches: `next(iter(loader))`."""
        return self.epochs > 2 and 2 * self.single >= self.epochs

    @property
    def is_waited_for(self) -> bool:
        """Whether the waits for all loaders of the loop are worth a word: 5 % of a step, or more of it."""
        all_ms = self.bound_ms if self.all_bound_ms is None else self.all_bound_ms
        handing_ms = self.causes_ms.get("transport", 0.0)
        handing_over = min(1.0, handing_ms / self.wait_ms) if self.wait_ms else 0.0
        if self.taking_is_work:
            handing_over = 0.0
        others = self.others_may_make_it
        return is_of_the_loader(
            100 * all_ms / self.step_ms, handing_over, self.ready, others_may_make_it=others
        )

    @property
    def taking_is_work(self) -> bool:
        """Whether the loop, as it takes batches, unpickles large ones, or maps many tensors."""
        return taking_is_work_of(self.causes_ms.get("transport", 0.0), self.taking_least_ms)

    @property
    def queue_for_cpus(self) -> bool:
        """Whether its makers mostly lack a CPU, and none is free: more of them gain nothing."""
        if self.asleep is None or self.on_cpu is None or self.core_free is not False:
            return False
        return 1 - self.asleep - self.on_cpu - self.threaded >= _MOSTLY

    @property
    def first_samples_ms(self) -> float:
        """The wait for what new workers do in their first samples alone, as reading an index; 0: nothing.

        An iterable may do that in each pass, whoever makes it.
        """
        making = self.making
        if not self.about.workers or self.about.iterable or self.about.persistent_workers is not False:
            return 0.0
        usual_ms, first_ms = making.item_ms or 0.0, making.first_item_ms or 0.0
        # In order, each pass begins with the same samples, which may be long by themselves.
        in_order = self.about.torch_sampler == "SequentialSampler()"
        every_ms = 0.0 if in_order else making.first_least_ms or 0.0
        longer = first_ms >= _FIRST_TIMES * usual_ms or every_ms >= _EVERY_TIMES * usual_ms
        return making.fill_ms if longer and usual_ms else 0.0

    @property
    def on_cpus_ms(self) -> float:
        """How long a step takes at the least: its items and the loop itself compute on all CPUs; 0: unknown.

        More threads or processes, and locks that are gone, make no CPU faster.
        """
        if not self.cpus:
            return 0.0
        stages = [each.busy * each.on_cpu_fraction for each in self.pipeline if each.on_cpu_fraction]
        making_ms = self.step_ms * sum(stages)
        if not stages and self.on_cpu is not None and self.about.workers:
            making_ms = (self.made_ms or 0.0) * self.made_on_cpu
        return min(self.step_ms, (making_ms + self.loop_cpu_ms) / self.cpus) if making_ms else 0.0

    @property
    def made_asleep(self) -> float:
        """The share of a batch's making in which its thread slept, samples and collating together."""
        return self._made_as(self.asleep, self.making.collate_asleep)

    @property
    def made_on_cpu(self) -> float:
        """The same of its computing."""
        return self._made_as(self.on_cpu, self.making.collate_on_cpu)

    @property
    def waits_undisturbed(self) -> bool:
        """Whether the loop would wait, too, if all makers of batches had a CPU each.

        Known from the steps, or from the makers' own CPU time, which is longer than the rest of a step.
        """
        if self.waits_alone or self.made_ms is None or self.handed_over or self.about.library:
            return self.waits_alone
        rest_ms = self.step_ms - self.wait_ms
        made_ms = self.made_ms * self.made_on_cpu / max(1, self.about.workers)
        # Without workers the loop itself makes its batches: each ms of it is a wait.
        longer_ms = made_ms - rest_ms if self.about.workers else made_ms
        return 100 * longer_ms >= MODERATELY_PERCENT * (longer_ms + rest_ms)

    def _made_as(self, samples: float | None, collated: float | None) -> float:
        parts_ms = {
            each: self.causes_ms.get(each, 0.0) for each in ("read", "decode", "transform", "collate")
        }
        whole_ms = sum(parts_ms.values())
        of_collate = parts_ms["collate"] / whole_ms if whole_ms and collated is not None else 0.0
        return (1 - of_collate) * (samples or 0.0) + of_collate * (collated or 0.0)


_MOSTLY = 0.5  # of the making
_FIRST_TIMES = 20.0  # as long as any other: a first sample in which a worker gets ready
_EVERY_TIMES = 3.0  # likewise, if each of several is so long
