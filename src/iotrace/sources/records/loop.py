"""The passes over loaders: iterators, workers, pools, queues, what a sweep set."""

from __future__ import annotations

from iotrace.sources.records.base import Int, Record


class StepCall(Record, tag="step_call"):
    """Where the program makes a call that trains without torch: the loop's file, line, what feeds it.

    `first_line` is that of the loop's function, `by` the code on the lines of `feeds`.
    """

    site: Int
    called: str
    file: str
    line: Int
    first_line: Int
    feeds: list[Int]
    by: str
    mono_ns: Int
    kind: str = "trains"


class Pickled(Record, tag="pickled"):
    """The process pickled what it passes to one that it spawns."""

    start_ns: Int
    duration_ns: Int
    bytes: Int


class Spawned(Record, tag="spawned"):
    """The process was spawned: it imported `script` until `prepared_ns`, then unpickled what it was given."""

    start_ns: Int
    prepared_ns: Int
    unpickled_ns: Int
    script: str = ""


class IteratorMade(Record, tag="iterator_made"):
    """A thread made an iterator of a loader: it started its workers, or waited for those that it has."""

    iterator: Int
    tid: Int
    start_ns: Int
    duration_ns: Int


class WorkersEnded(Record, tag="workers_ended"):
    """A thread ended the workers of an iterator, and waited for that."""

    iterator: Int
    tid: Int
    start_ns: Int
    duration_ns: Int


class IteratorStart(Record, tag="iterator"):
    """An epoch of a loader begins (recorded again when its workers are up)."""

    iterator: Int
    loader: Int
    dataset: str
    workers: Int
    epoch: Int
    generation: Int
    mono_ns: Int
    batch_size: Int | None = None
    start_method: str | None = None
    pids: list[Int] = []
    phase: str | None = None
    wrapped: bool = False
    site: str | None = None
    builder: str | None = None
    library: str = ""
    item: str | None = None
    item_site: str | None = None
    item_library: str | None = None
    collate: str | None = None
    collate_site: str | None = None
    collate_library: str | None = None
    tid: Int | None = None
    iterable: bool | None = None
    fed_by: str | None = None
    sampler: str | None = None
    torch_sampler: str | None = None
    shuffle: str | None = None
    tokenizer: str | None = None
    prefetch_factor: Int | None = None
    persistent_workers: bool | None = None
    pin_memory: bool | None = None
    in_order: bool | None = None
    pool: str = ""
    rows: bool = False
    taker: str = ""
    taker_line: Int = 0
    taken_by: str = ""
    apart: list[str] = []
    limit: Int = 0  # of a queue, which the loop's own record does not know

    @property
    def named(self) -> str:
        """What a reader knows it by: a queue has no dataset whose items nobody was seen to make."""
        return self.dataset or self.pool or self.library or "the source"


class PoolWorker(Record, tag="pool_worker"):
    """The process works for a pool of its parent's."""

    worker: Int
    pool: Int
    mono_ns: Int


class PoolDoubt(Record, tag="pool_doubt"):
    """Why results of a pool are no turns: ``polled`` for an unseen time, ``chunked``: several a task.

    ``timed``: a coroutine may have slept by a timer, while another one waited for the result. ``unseen``: no
    item was seen at a condition, an event or a semaphore.
    """

    iterator: Int
    doubt: str


class Queue(Record, tag="queue"):
    """A queue whose items are followed: its number, its class, how many it holds at most (0: any number).

    `by` is the function that put the first item there; `apart` is what else distinguishes its maker.
    `sites` has the lines of the functions among these.
    """

    queue: Int
    of: str
    limit: Int
    by: str
    mono_ns: Int
    apart: list[str] = []
    sites: dict[str, str] = {}

    @property
    def site(self) -> str | None:
        """The line of the function that makes its items."""
        return self.sites.get(self.by) or None


class Stage(Record, tag="stage"):
    """A function that a library calls to make batches, or (`name` is empty) all that it calls.

    `setting` says how many work at once, `value` (-1: the library chooses), and is set at the line `set_at`.
    """

    library: str
    name: str
    value: Int
    mono_ns: Int
    site: str | None = None
    setting: str = ""
    set_at: str | None = None


class IteratorEnd(Record, tag="iterator_end"):
    iterator: Int
    epoch: Int
    outcome: str
    wait_start_ns: Int
    mono_ns: Int
    backward_count: Int
    tid: Int | None = None


class Worker(Record, tag="worker"):
    """A worker has started; `init`: with a worker_init_fn; `watched`: `AskedNumber` would be recorded."""

    worker: Int
    init: bool = False
    watched: bool = False


class AskedNumber(Record, tag="asked_number"):
    """The program looked at the number of its worker, by ``get_worker_info().id``."""

    mono_ns: Int


class WorkerUp(Record, tag="worker_up"):
    mono_ns: Int


class Idle(Record, tag="idle"):
    """A worker found no index to take: all that it had recorded is written."""

    mono_ns: Int = 0


class Override(Record, tag="override"):
    """A sweep set a loader's (num_workers, prefetch_factor); `before` are the program's own."""

    dataset: str = ""
    before: tuple[Int | None, Int | None] = (None, None)


class Replayed(Record, tag="replayed"):
    """From here on the loop gets batches from memory, as a sweep asked."""


class Ended(Record, tag="ended"):
    """A sweep had its steps, and ended a program that went on without batches."""
