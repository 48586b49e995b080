"""Names and formats of session version 1, shared by those who write it and those who read it.

Used inside traced processes: the standard library's cheapest parts alone. docs/session-format.md
describes every field.
"""

from __future__ import annotations

FORMAT_VERSION = 1

SETTINGS_VARIABLE = "IOTRACE_AGENT"
HOST_VARIABLE = "IOTRACE_HOST"
JOB_VARIABLE = "IOTRACE_JOB"
POINT_VARIABLE = "IOTRACE_POINT"  # what a sweep asks of a run

MANIFEST = "manifest.json"
OUTCOME = "outcome.json"
COSTS = "costs.json"
PROCESSES = "processes"
POSIX = "posix"
OUT = "out"
LAUNCHES = "launches"  # further launchers of the same job: each has a subdirectory laid out like a session
FILES = "files.json"
TELEMETRY = "telemetry"  # one subdirectory for each sampler: its claim, and its streams

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
OFF = "off"

# Traces of torch.profiler in a process's directory, by number: the agent's own, and copies of the program's.
TORCH_TRACE = "torch-{}.json.gz"
PROGRAM_TRACE = "torch-program-{}.json"
# What the agent's ranges are called in its traces: a module's forward, a step of the training loader.
MODULE_RANGE = "module:"
STEP_RANGE = "ProfilerStep#"

# A span: start_ns, duration_ns, cpu_ns, bytes (CLOCK_MONOTONIC; bytes -1 where unknown), tid, name, file
# (indices of `text` records; file -1 where unknown), kind, minor faults, major faults, voluntary and
# involuntary context switches, time spent ready but without a CPU (ns, -1 where unknown). Little-endian, no
# padding.
SPAN_FORMAT = "<qqqqiiiiiiiiq"
SPAN_BYTES = 72

# A telemetry sample of a process: CLOCK_MONOTONIC in ns, number of the process, threads; then so far: CPU ns,
# resident bytes (now), major faults, bytes passed to read and to write calls, numbers of those calls, bytes
# read from and written to storage. -1 where unknown. Little-endian, no padding.
SAMPLES = "processes.bin"
SAMPLE_FORMAT = "<qiiqqqqqqqqq"
SAMPLE_BYTES = 88

KIND_ITEM = 1  # Dataset.__getitem__, __getitems__ or the iterator's __next__
KIND_COLLATE = 2
KIND_READ_PATH = 3  # h5py and the like: contains the file reads and the decoding
KIND_MAPPED = 4  # an access to a memory map: the file is read by page faults, during it or later
KIND_REGION = 5  # a part of the program that its author named
KIND_DFTRACER = 6  # a function or block that the program marked for dftracer


def encode_settings(settings: dict[str, str]) -> str:
    """Serialise settings into one environment variable. JSON would cost each process 9 ms of import."""
    return ";".join(f"{key}={_escape(value)}" for key, value in settings.items())


def decode_settings(text: str) -> dict[str, str]:
    """Undo `encode_settings`; pieces without ``=`` are ignored."""
    pairs = (piece.partition("=") for piece in text.split(";"))
    return {key: _unescape(value) for key, equals, value in pairs if equals}


def _escape(value: str) -> str:
    return value.replace("%", "%25").replace(";", "%3B")


def _unescape(value: str) -> str:
    return value.replace("%3B", ";").replace("%25", "%")
