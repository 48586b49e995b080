"""What a process says of itself: who it is, its threads, imports, stacks, failures, its end."""

from __future__ import annotations

import msgspec

from iotrace.sources.records.base import Int, Record


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
    `since`, by stack: where the sample came late, the first of the lines that the innermost function with a
    line may have been in; 0: in that line. `asked`: the thread was sampled at any time, not only where it
    releases the interpreter's lock by itself; else samples that came late are empty stacks. `held`, by stack:
    that lock was not free; where it was, the thread was in a call that releases it, such as torch's.
    """

    tid: Int
    times_ns: list[Int]
    numbers: list[Int]
    path: list[tuple[Int, Int]]
    stacks: list[list[tuple[Int, Int]]]
    functions: list[tuple[str, str, Int]]
    since: list[Int] = []
    held: list[bool] = []
    asked: bool = False


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


class End(Record, tag="end"):
    """The process said that this was all; `broken` is why it could not write everything."""

    broken: str = ""
    mono_ns: Int = 0
