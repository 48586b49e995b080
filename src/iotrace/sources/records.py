"""The types of the agent's records, a line of records.jsonl each, with the fields that a reader needs.

docs/session-format.md describes all fields.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

# Whatever a damaged line holds, its numbers fit a column of int64.
Int = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]


class Identity(msgspec.Struct, frozen=True):
    """process.json: who a process is, written at its start."""

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
    executable: str = ""
    prefixes: list[str] = []
    cpus: Int | None = None


class Record(msgspec.Struct):
    """A line of records.jsonl, by its tag."""


class Distributed(Record, tag="distributed"):
    """The program made its default process group."""

    rank: Int
    world_size: Int


class Framework(Record, tag="framework"):
    """The program imported a framework: ``torch``."""

    name: str


class Versions(Record, tag="versions"):
    """The versions of the libraries that were imported at the first pass over a loader."""

    versions: dict[str, str]


class Threads(Record, tag="threads"):
    """How many threads libraries may use in the process, on which CPUs; `variables` that bound them.

    `collections`: those of the garbage collector are recorded.
    """

    mono_ns: Int
    threads: dict[str, Int] = {}
    affinity: list[Int] = []
    variables: dict[str, str] = {}
    collections: bool = False


class Collector(Record, tag="collector"):
    """The garbage collector: settings, collections by generation; once it took much time, its objects."""

    mono_ns: Int
    enabled: bool
    threshold: list[Int]
    collections: list[Int]
    objects: Int | None = None
    frozen: Int | None = None


class Stacks(Record, tag="stacks"):
    """The process writes its Python stacks to a file when it gets `signal`."""

    signal: Int
    descriptor: Int


class Imports(Record, tag="imports"):
    """Modules that were looked for, from `begun_ns` on: `names`, a line each, and `rows` of integers.

    `paths`: a file of each package among them; `mounts`: type and point of the mount that holds it.
    """

    names: str
    rows: bytes
    begun_ns: Int
    paths: dict[str, str] = {}
    mounts: dict[str, str] = {}


class StartupStacks(Record, tag="startup_stacks"):
    """What a thread was in before the first step, sampled: stack `numbers[i]` until `ends_ns[i]`.

    A stack lists its `functions` by number, the innermost first; -1 is none: the thread imported.
    A function is the file and the name of its code.
    """

    tid: Int
    began_ns: Int
    ends_ns: list[Int]
    numbers: list[Int]
    stacks: list[list[Int]]
    functions: list[tuple[str, str]]


class LoopStacks(Record, tag="loop_stacks"):
    """What the training thread was in while it trained, sampled: stack `numbers[i]` at `times_ns[i]`.

    A stack has the numbers of its `functions` and lines in them (0: of a library), the innermost first.
    `path` is that of the first backward pass or optimizer's step. A function is its file, name, first line.
    """

    tid: Int
    times_ns: list[Int]
    numbers: list[Int]
    path: list[tuple[Int, Int]]
    stacks: list[list[tuple[Int, Int]]]
    functions: list[tuple[str, str, Int]]


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


class Rows(Record, tag="rows"):
    """Records that come with every batch or step, as rows of integers: `kind` numbers names.ROW_FIELDS."""

    kind: Int
    rows: bytes


class Text(Record, tag="text"):
    id: Int
    text: str


class Tick(Record, tag="tick"):
    """The kernel's account of the process at one instant, in bytes; None where it was unreadable.

    `read_bytes` came from storage, `rchar` from anywhere.
    """

    clock: tuple[Int, Int, Int]
    cpu_ns: Int
    rchar: Int | None = None
    read_bytes: Int | None = None


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
    tid: Int | None = None
    iterable: bool | None = None
    fed_by: str | None = None
    sampler: str | None = None
    torch_sampler: str | None = None
    tokenizer: str | None = None
    prefetch_factor: Int | None = None
    persistent_workers: bool | None = None
    pin_memory: bool | None = None
    in_order: bool | None = None
    pool: str = ""
    rows: bool = False
    taker: str = ""
    taker_line: Int = 0


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

    `by` is the function that put the first item there.
    """

    queue: Int
    of: str
    limit: Int
    by: str
    mono_ns: Int


class IteratorEnd(Record, tag="iterator_end"):
    iterator: Int
    epoch: Int
    outcome: str
    wait_start_ns: Int
    mono_ns: Int
    backward_count: Int
    tid: Int | None = None


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


class ArrayInfo(Record, tag="array"):
    """An array of zarr that was read: its chunks, and the bytes of each when it is decoded."""

    path: str
    chunks: Int
    chunk_bytes: Int
    rows_per_chunk: Int = 1
    sharded: bool = False


class Chunked(Record, tag="chunked"):
    """Accesses of a process to an array in chunks, so far; `dataset` is its name in an HDF5 file.

    `accesses` touched `touched` chunks, each time counted, but for `odd` ones, whose selection is no integers
    and slices. `extents`: the shapes that they asked for, and how many did. `cache_bytes`: HDF5's cache;
    `whole`: a chunk is read whole (HDF5 reads parts of one without filters that does not fit its cache).
    """

    path: str
    dataset: str
    shape: list[Int]
    chunk: list[Int]
    item_bytes: Int
    cache_bytes: Int
    accesses: Int
    touched: Int
    odd: Int
    extents: list[tuple[list[Int], Int]]
    whole: bool = True
    version: str = ""  # of zarr


class RowGroupsRead(Record, tag="row_groups"):
    """Row groups of a Parquet file that one `call` of pyarrow read or iterated in a process, so far.

    `read`: by number, how often each was, its rows, and the bytes that it gave. `columns`: those that were
    asked for; None is all of them. The file has `rows` in `groups`.
    """

    path: str
    call: str
    columns: list[str] | None
    of_columns: Int
    rows: Int
    groups: Int
    read: list[tuple[Int, Int, Int, Int]]
    compression: str = ""


class Mapped(Record, tag="mapped"):
    """Accesses of a process to the memory map of a file, so far, and the bytes that they gave.

    All but `odd` ones were one piece of the file each, on `pages` of `page_bytes` at most, repeated ones too.
    Beside them single `elements` were taken, of this and of all other maps of the process.
    """

    path: str
    accesses: Int
    bytes: Int
    pages: Int
    odd: Int
    page_bytes: Int
    elements: Int = 0


class Gridded(Record, tag="gridded"):
    """A dataset of anemoi that was read: the dates along its first axis, its variables."""

    path: str
    dates: Int = 0
    first: str = ""
    last: str = ""
    frequency: str = ""
    variables: list[str] = []


class Worker(Record, tag="worker"):
    """A worker has started; `init`: with a worker_init_fn; `watched`: `AskedNumber` would be recorded."""

    worker: Int
    init: bool = False
    watched: bool = False


class AskedNumber(Record, tag="asked_number"):
    """The program looked at the number of its worker, by ``get_worker_info().id``."""

    mono_ns: Int


class KeptOpen(Record, tag="kept_open"):
    """An archive that a trial keeps open for the program."""

    path: str


class WorkerUp(Record, tag="worker_up"):
    mono_ns: Int


class Idle(Record, tag="idle"):
    """A worker found no index to take: all that it had recorded is written."""

    mono_ns: Int = 0


class Failure(Record, tag="failure"):
    """An exception that ended the process, or took the place of a worker's batch `index`.

    `text` is its traceback. `taken_ns` is when the worker took that index, `of_pid` the process that it is
    about, if another one. `sample` is the index that the dataset was asked for. An exception in `thread`
    ended that one alone.
    """

    mono_ns: Int
    error: str
    text: str
    sample: Int | None = None
    generation: Int | None = None
    index: Int | None = None
    taken_ns: Int | None = None
    of_pid: Int | None = None
    thread: str | None = None


class OwnLog(Record, tag="own_log"):
    """The program began a log of dftracer's of its own at `prefix`, or ended it: empty then."""

    prefix: str
    mono_ns: Int
    ended: bool


class PosixEnded(Record, tag="posix_ended"):
    """dftracer was ended in this process, by a child of its that could not run its program."""


class Override(Record, tag="override"):
    """A sweep set a loader's (num_workers, prefetch_factor); `before` are the program's own."""

    dataset: str = ""
    before: tuple[Int | None, Int | None] = (None, None)


class Replayed(Record, tag="replayed"):
    """From here on the loop gets batches from memory, as a sweep asked."""


class Ended(Record, tag="ended"):
    """A sweep had its steps, and ended a program that went on without batches."""


class End(Record, tag="end"):
    """The process said that this was all; `broken` is why it could not write everything."""

    broken: str = ""
    mono_ns: Int = 0


class TorchWindow(Record, tag="torch_window"):
    """A change of a window of the torch profiler, which took `duration_ns` from the program.

    `event` is ``warmup``, ``active``, ``end``, ``exported`` or ``error``, or ``spared``: the device is left
    out. `why` is empty where the window ended as planned, else what cut it short.
    """

    window: Int
    event: str
    mono_ns: Int
    duration_ns: Int
    path: str = ""
    why: str = ""


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
