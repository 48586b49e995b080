"""Names and formats of session version 1, shared by those who write it and those who read it.

It is used inside traced processes, hence it imports nothing. docs/session-format.md describes every field.
"""

from __future__ import annotations

FORMAT_VERSION = 1

SETTINGS_VARIABLE = "IOTRACE_AGENT"
HOST_VARIABLE = "IOTRACE_HOST"
JOB_VARIABLE = "IOTRACE_JOB"
SIDECAR_PRELOAD_VARIABLE = "IOTRACE_SIDECAR_PRELOAD"  # a library that is preloaded into sidecars
OVERRIDE_VARIABLE = "IOTRACE_POINT"  # what a sweep asks of a run
SERVED_VARIABLE = "IOTRACE_SERVED"  # the table of data that a trial gives its program copies of
# Of the recorder of POSIX calls (capture/): where it writes, and the directories that it leaves out or takes
# alone; and how many filters of system calls the launcher has: a program with more of them is left alone.
POSIX_VARIABLE, POSIX_SKIP_VARIABLE, POSIX_ONLY_VARIABLE, POSIX_FILTERS_VARIABLE = (
    f"IOTRACE_POSIX{rest}" for rest in ("", "_SKIP", "_ONLY", "_FILTERS")
)

# A session holds paths, command lines and data of the program: it is for its owner alone, whatever the umask.
DIRECTORY_MODE, FILE_MODE = 0o700, 0o600

MANIFEST = "manifest.json"
OUTCOME = "outcome.json"
COSTS = "costs.json"
PROCESSES = "processes"
POSIX = "posix"
OUT = "out"
TIMELINE = "timeline.pftrace"  # in `OUT`
SWEEP_RESULT, TUNE_RESULT = "sweep-result.json", "tune-result.json"  # in the directory of a sweep, of a tune
SWEEP_STATE = "sweep.json"  # what a sweep, a tune or a trial has run so far
OF_SERIES = frozenset((SWEEP_RESULT, TUNE_RESULT, SWEEP_STATE))
LAUNCHES = "launches"  # further launchers of the same job: each has a subdirectory laid out like a session
FILES = "files.json"
VERDICT = "verdict.json"  # in `out`: what the report after the run said
TELEMETRY = "telemetry"  # one subdirectory for each sampler: its claim, and its streams

CLOCK = "clock.json"  # where the sidecar of the reference host answers, and the session's key

DROPPED = "dropped"  # of dftracer's lines: the sums of the calls that the limit of the session's size dropped

HANGS = "hangs.jsonl"  # of a sampler: what it reported of processes that hang
STACKS = "stacks.txt"  # of a process: its Python stacks, where it was asked for them
PROCESS = "process.json"
RECORDS = "records.jsonl"
SPANS = "spans.bin"
LOG = "agent.log"
TORCH_TRACES = "torch-*.json*"
CLOSED = "closed"  # a directory in the session: it has ended before its processes
KILLED = "killed"  # of a sampler: the name of the signal that ended it, written by its launcher
BROKEN = "broken"  # a directory: making one needs no descriptor

# Settings of the torch.profiler window: WAIT:WARMUP:ACTIVE:REPEAT or "off"; comma lists.
TORCH_STEPS = "torch_steps"
TORCH_OPTIONS = "torch_options"
TORCH_ACTIVITIES = "torch_activities"
SPARED = "spared"  # the event of a window that leaves the device out
CUDA_SNAPSHOT = "cuda_snapshot"  # WARMUP:STEPS; absent: none
OFF = "off"
# Rows that other packages add to the agent's table of read paths: lines of fields between tabs.
READ_PATHS = "readpaths"
READ_PATHS_GROUP = "iotrace.readpaths"  # the entry points that hold them

# Traces of torch.profiler in a process's directory, by number: the agent's own, and copies of the program's.
CUDA_SNAPSHOT_FILE = "cuda-snapshot.pickle"
TORCH_TRACE = "torch-{}.json.gz"
PROGRAM_TRACE = "torch-program-{}.json"
# What the agent's ranges are called in its traces: a module's forward, a step of the training loader.
MODULE_RANGE = "module:"
STEP_RANGE = "ProfilerStep#"

# A span, little-endian without padding: its fields in order, with their codes of `struct`. Times are those of
# CLOCK_MONOTONIC; -1 where a value is unknown.
SPAN_FIELDS = {
    "start_ns": "q",
    "duration_ns": "q",
    "cpu_ns": "q",
    "bytes": "q",
    "tid": "i",
    "name": "i",  # the id of a `text` record, and so is `file`
    "file": "i",
    "kind": "i",
    "minor_faults": "i",
    "major_faults": "i",
    "voluntary_switches": "i",
    "involuntary_switches": "i",
    "run_delay_ns": "q",  # ready to run, but without a CPU
}
SPAN_FORMAT = "<" + "".join(SPAN_FIELDS.values())

# What is recorded at each batch or step: rows of 64-bit integers in one record of the type `rows`, their kind
# first. -1 where a value is unknown; times are those of CLOCK_MONOTONIC.
(
    BATCH_ROW,
    PRODUCED_ROW,
    ROUND_ROW,
    BLOCKED_ROW,
    EXPOSED_ROW,
    DEVICE_PHASE_ROW,
    MARK_ROW,
    PAUSE_ROW,
    MADE_ROW,
    HANDED_ROW,
    LOCKED_ROW,
    TURN_ROW,
    TENSORS_ROW,
    PADDED_ROW,
    LONG_ROW,
    SENT_ROW,
    GIVEN_ROW,
    OWN_ROW,
) = range(18)
ROW_FIELDS = (
    (
        *("iterator", "epoch", "generation", "index", "tid", "wait_start_ns", "delivered_ns", "grad"),
        *("backward_count", "phase", "ahead", "worker", "pid", "sent_ns", "received_ns", "pinned_ns"),
        *("fetch_start_ns", "fetch_end_ns", "samples"),  # `phase`: the id of a `text` record
    ),
    (
        *("generation", "index", "outcome", "taken_ns", "fetch_start_ns", "fetch_end_ns", "prepared_ns"),
        *("samples", "bytes"),
    ),
    ("what", "number", "tid", "mono_ns", "cpu_ns", "run_delay_ns"),
    ("tid", "start_ns", "end_ns", "by", "queue", "call"),
    ("iterator", "epoch", "index", "exposed_ns"),
    ("tid", "start_ns", "device_ns"),
    ("mono_ns",),
    ("pause", "tid", "start_ns", "end_ns"),  # `pause`: one of `PAUSES`
    ("pool", "task", "tid", "taken_ns", "prepared_ns", "fed"),  # `fed`: it was given data
    ("queue", "item", "tid", "asked_ns", "taken_ns", "length", "kind"),  # `kind`: the `text` of its class
    # For the lock of a file, for one of the program's (`LOCK_AT`), or in the making of an item for the
    # interpreter's (-1).
    ("tid", "start_ns", "end_ns", "waited_ns", "file"),
    ("site", "tid", "start_ns", "end_ns"),  # of a call that trains; `site`: of a `step_call` record
    ("generation", "index", "tensors"),  # of a batch that a worker hands over
    # Of a batch of `samples` that have lengths, each filled up to `width`: sums of lengths, and of squares.
    ("mono_ns", "samples", "width", "length", "squares"),
    ("tid", "start_ns", "sample"),  # of a sample that took much longer than those before: its index
    # Of a large item that a process sends to another: pickled, and written to a pipe, by these times.
    ("pool", "item", "pickled_ns", "sent_ns", "bytes"),
    ("pool", "item", "came_ns", "bytes"),  # of a task that much is pickled with: a process has got its bytes
    ("tid", "mono_ns", "own_ns"),  # CPU time so far of hooks outside of spans, on this thread
)
PART_OF_TASK = 1 << 52  # between the numbers of items that one task of a pool makes
LOCK_AT = "lock:"  # before the library that takes a lock of threads, and FILE:LINE of who calls it
OF_LIBRARY = "*"  # in its place: the lock is a library's own, in C
PEER_AT = "peer:"  # likewise before `pipe` or `socket`, which a thread waits for data from
IDLE_AT = "idle:"  # before FILE:LINE of who runs an event loop, which waits for its coroutines' input
SENDING_AT = "sending:"  # a worker's thread that sends batches waited for the interpreter, before it sent one
TURN_AT = "turn:"  # the loop waited for the interpreter between two of its items
SLEEP_AT = "asleep:"  # before the library, if any, and FILE:LINE of the function that sleeps for a time
# What the numbers in these fields mean.
OUTCOMES = ("batch", "stop", "error")
ROUNDS = ("backward", "optimizer")
CALLS = ("", "get", "put")
PAUSES = ("collection", "compilation", "jit")  # Python's garbage collector, torch.compile, jax.jit

# A telemetry sample of a process, likewise. All but the first three and `rss_bytes` are sums so far.
SAMPLES = "processes.bin"
SAMPLE_FIELDS = {
    "time_ns": "q",
    "process": "i",
    "threads": "i",
    "cpu_ns": "q",
    "rss_bytes": "q",
    "major_faults": "q",
    "rchar": "q",  # bytes passed to read calls, and to write calls
    "wchar": "q",
    "read_calls": "q",
    "write_calls": "q",
    "read_bytes": "q",  # from storage, and to it
    "write_bytes": "q",
}
SAMPLE_FORMAT = "<" + "".join(SAMPLE_FIELDS.values())

# What a sampler says of processes' threads once a second: lists of (number of the process, value...).
SCHEDULING = ("switches", "affinity", "memory_nodes", "swap_bytes", "run_delay_ns", "pool_ns")
LISTED = ("affinity", "memory_nodes")  # of these: texts such as "0-3,8", where they have changed

KIND_ITEM = 1  # Dataset.__getitem__, __getitems__ or the iterator's __next__
KIND_COLLATE = 2
KIND_READ_PATH = 3  # h5py and the like: contains the file reads and the decoding
KIND_MAPPED = 4  # an access to a memory map: the file is read by page faults, during it or later
KIND_REGION = 5  # a part of the program that its author named
KIND_DFTRACER = 6  # a function or block that the program marked for dftracer
KIND_PHASE = 7  # what a thread that trains is in, by the names below
KIND_TRAINER = 8  # a range of Lightning's trainer: a hook, a callback, a strategy, the running of a batch
KIND_CHECKPOINT = 9  # a call that saves a checkpoint: torch.save, safetensors, a trainer's
KIND_CALLBACK = 10  # a function of the program that a library calls, on threads of its own, to make batches
KIND_REDUCTION = 11  # a collective that a thread waits for; DDP's from its last gradient on
OF_GRADIENTS = "all-reduce"  # the name of DDP's
WORKER_STATE = "StatefulDataLoader: state of a worker"  # a region

FORWARD = "forward"
FORWARD_NO_GRAD = "forward, no grad"
BACKWARD = "backward"
OPTIMIZER = "optimizer"
CLOSURE = "closure"  # what an optimizer's step calls to compute the loss again


# Who traces POSIX calls: our recorder, or dftracer, which logs every call and costs more.
RECORDER, DFTRACER = "iotrace", "dftracer"
RECORDED_CALLS = ".io"  # the suffix of the recorder's files
# In `POSIX`, while the command runs: the directory on a disk of the host where the recorder's files are, if
# they are not there; and how that begins.
RECORDED_IN, LOCAL_DIRECTORY = "recorded-in", "iotrace-posix-"
# The recorder's kinds of calls, as it numbers them: 16 of metadata, of reading and of writing each. The last
# of metadata is a burst of several quick ones.
CALLS_EACH = 16
METADATA_CALLS = (
    *("open", "close", "lseek", "stat", "access", "mmap", "opendir", "readdir", "fopen", "fclose", "fseek"),
    *("fsync", "rename", "unlink", "truncate", "metadata"),
)
READING_CALLS = (
    *("read", "pread64", "readv", "preadv", "fread", "fgets", "getline"),
    *("sendfile", "copy_file_range"),
)
WRITING_CALLS = ("write", "pwrite64", "writev", "pwritev", "fwrite", "fputs", "copy_file_range (to)")


def kept_log(log: str) -> str:
    """Return the path of what is kept of the beginning of `log`, which was dropped."""
    return f"{log}.kept"


def encode_settings(settings: dict[str, str]) -> str:
    """Encode settings for one environment variable. JSON would cost each process 9 ms of import."""
    return ";".join(
        f"{key}={value.replace('%', '%25').replace(';', '%3B')}" for key, value in settings.items()
    )


def decode_settings(text: str) -> dict[str, str]:
    """Undo `encode_settings`; pieces without ``=`` are ignored."""
    pairs = (piece.partition("=") for piece in text.split(";"))
    return {key: value.replace("%3B", ";").replace("%25", "%") for key, equals, value in pairs if equals}
