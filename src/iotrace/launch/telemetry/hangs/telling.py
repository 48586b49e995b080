"""Say in a few words what a blocked process is in, by `blocked.look_at` and its Python stack.

Frames are lines of faulthandler, the innermost first: ``File "train.py", line 17 in __getitem__``. A hang is
written to the launcher's standard error, and to the sampler's file.

Follow what agents write of the batches that their processes got: how many, and how long ago the last.
"""

from __future__ import annotations

import json
import os
from binascii import Error, a2b_base64
from collections import deque
from contextlib import suppress
from stat import S_ISREG

from iotrace.launch.telemetry.hangs.blocked import OF_A_FILE, POLLS, WRITES, About
from iotrace.session import names
from iotrace.session.append_file import append_line
from iotrace.session.hangs import (
    LIBRARIES,
    WAITS_FOR_WORK,
    WAITS_FOR_WORKERS,
    banner,
    differing,
    how_long,
)

_STATES = {"T": "stopped", "t": "traced by a debugger", "D": "blocked in the kernel", "Z": "ended"}
_COLLECTIVES = ("/torch/distributed/distributed_c10d.py", "/torch/nn/parallel/distributed.py")
_ASIDE = ("wrapper", "_wait")
_WITHIN = (
    "what intercepts calls on files may hang there (libraries of DAOS and Lustre, tracing): "
    "iotrace run --io off -- CMD shows whether it hangs untraced"
)
_QUEUES = ("/multiprocessing/queues.py", "/queue.py")


def sentence(about: About, now_ns: int = 0) -> str:
    """Say what a process is in, in a few words; `now_ns`, if it is given, by CLOCK_MONOTONIC."""
    state = _STATES.get(str(about["state"]), "")
    if state == "stopped":
        return f"is stopped: kill -CONT {about['pid']} lets it go on"
    if waits_for_others(about):
        return WAITS_FOR_WORK if str(about["role"]).startswith("worker") else WAITS_FOR_WORKERS
    stack = about.get("stack") or []
    where = _frame(stack)
    doing, aside = _doing(about, stack, now_ns), _aside(about, now_ns)
    return f"{doing}{f' ({state})' if state else ''}{f', {where}' if where else ''}{aside}"


def _how_long(call: About, now_ns: int) -> str:
    return how_long(call.get("call_since_ns"), now_ns)


def _aside(about: About, now_ns: int) -> str:
    """Say what another thread is in that the main thread may wait for."""
    threads = about.get("threads")
    if not threads or about.get("call_since_ns"):
        return ""
    oldest = threads[0]
    of = f" of {oldest['file']}" if oldest["file"] else ""
    return f"; its thread {oldest['tid']} is in {oldest['call']}{of}{_how_long(oldest, now_ns)}"


def sentence_of_busy(about: About, frames: list[str], on_device: bool) -> str:
    """Say where a process computes, by the program's frames that its dumps share."""
    named = find_collective(about)
    if named:
        return f"waits for other ranks in {named}, on a CPU, {_frame(frames)}"
    device = " or waits for its device" if on_device else ""
    return f"computes{device}, {_frame(frames)}"


def _doing(about: About, stack: list[str], now_ns: int) -> str:
    lasts = _how_long(about, now_ns)
    call, file = about["call"], about["file"]
    if within := about.get("within"):
        of = f" of {within['file']}" if within["file"] else ""
        lasts = _how_long(within, now_ns)
        return f"is in {within['call']}{of}{lasts}, and waits there for a lock, not for the file system"
    if call == "futex" or call in POLLS:
        named = find_collective(about)
        if named:
            return f"waits for other ranks in {named}"
        put, got = (_is_in(stack, _QUEUES, name) for name in ("put", "get"))
        if put or got:
            return f"waits {'to put into a full queue' if put else 'for an empty queue'}"
        return "waits for a lock" if call == "futex" else "waits for a message"
    if _of_a_stream(about):
        return f"waits to {'write to' if call in WRITES else 'read from'} a {_of_a_stream(about)}"
    if call in ("flock", "fcntl") and file is not None:
        return f"waits for the lock of {file}"
    if about["wchan"] == "wait_for_partner" and call not in OF_A_FILE:
        return f"is stuck opening {file or 'a file'}{lasts} (a named pipe that no other process opens)"
    if call is not None:
        on = f" on {about['file_system']}" if about.get("file_system") else ""
        return f"is in {call} of {file}{on}{lasts}" if file is not None else f"is in {call}{lasts}"
    return f"is in the kernel's {about['wchan']}" if about["wchan"] else "does nothing"


def waits_for_others(about: About) -> bool:
    """Say whether a process of a loader only waits for the others: for a batch, or for an index."""
    frames = about.get("stack") or []
    asks = any(
        "/torch/utils/data/" in line and line.endswith(("_get_data", "_worker_loop")) for line in frames
    )
    # A lock: of the thread that pins memory. A socket: a worker hands over a descriptor there.
    waits = about["call"] in POLLS or about["call"] == "futex" or _of_a_stream(about) != ""
    return waits and asks and not any(line.endswith("in fetch") for line in frames)


def _of_a_stream(about: About) -> str:
    """Return ``socket`` or ``pipe`` where a process reads from or writes to one."""
    kind = str(about["file"]).partition(":")[0]
    return kind if about["call"] in OF_A_FILE and kind in ("socket", "pipe") else ""


def find_collective(about: About) -> str:
    """Return the collective that a process is in, ``backward`` where DistributedDataParallel's; else ''."""
    stack = about.get("stack") or []
    for line in stack:
        name = function_name(line)
        if any(file in line for file in _COLLECTIVES) and name not in _ASIDE:
            return name
        if not any(part in line for part in LIBRARIES):
            break
    ranked = str(about["role"]).startswith("rank")
    return "backward" if ranked and stack and function_name(stack[0]) == "_engine_run_backward" else ""


def _is_in(stack: list[str], files: tuple[str, ...], function: str) -> bool:
    """Whether the program itself called this function of these files, and is in it."""
    for line in stack:
        if any(file in line for file in files) and function_name(line) == function:
            return True
        if not any(part in line for part in LIBRARIES):
            return False
    return False


def function_name(line: str) -> str:
    """Return the function that a frame is in."""
    return line.rpartition(" in ")[2]


def _frame(stack: list[str]) -> str:
    """Return the innermost frame of the program's own, in the words of faulthandler."""
    own = [line for line in stack if line.startswith("File ") and not any(part in line for part in LIBRARIES)]
    chosen = own or stack
    return chosen[0][:1].lower() + chosen[0][1:] if chosen else ""


def make_record(waited_ns: int, processes: list[About], kind: str) -> About:
    """Make the record of a hang of a `kind`: its processes as they are shown, and in words."""
    for about in processes:
        about["collective"] = find_collective(about)
    since = f"no batch for {waited_ns / 1e9:.0f} s"
    ranks = [
        (about["rank"], "", about["collective"])
        for about in processes
        if about.get("rank") is not None and about.get("stack")
    ]
    roles = {about["pid"]: str(about["role"]) for about in processes}
    told = [f"  {_whose(about, roles)} (pid {about['pid']}) {about['text']}" for about in processes]
    if any(about.get("within") for about in processes):
        told.append(f"  {_WITHIN}")
    if any(collective for _, _, collective in ranks):
        told += [f"  {line}" for line in differing(ranks)]
    return {
        "type": "hang",
        "kind": kind,
        "waited_ns": waited_ns,
        "processes": processes,
        "text": [banner(kind, since, "ranks on other hosts"), *told],
    }


def _whose(about: About, roles: dict[int, str]) -> str:
    """Name a process; a worker of one of several ranks with that rank."""
    main = roles.get(about.get("of", 0), "")
    role = str(about["role"])
    return f"{role} of {main}" if main.startswith("rank") and main != role else role


def tell_launcher(lines: list[str]) -> None:
    """Write lines to the launcher's standard error, where that overwrites nothing.

    It is opened again: a descriptor that the sidecar kept would hold a pipe open beyond the launcher's end.
    """
    path = f"/proc/{os.getppid()}/fd/2"
    with suppress(OSError, ValueError, IndexError):
        with open(f"/proc/{os.getppid()}/fdinfo/2") as file:
            flags = next(int(line.split()[1], 8) for line in file if line.startswith("flags:"))
        if S_ISREG(os.stat(path).st_mode) and not flags & os.O_APPEND:
            return
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            os.write(descriptor, "".join(f"iotrace: {line}\n" for line in lines).encode(errors="replace"))
        finally:
            os.close(descriptor)


def store(directory: str, session: str, record: About) -> None:
    """Append the record to the sampler's file of hangs; paths in it are relative to the session."""
    for about in record.get("processes", ()):
        if about.get("stacks"):
            about["stacks"] = os.path.relpath(about["stacks"], session)
    with suppress(OSError):
        append_line(f"{directory}/{names.HANGS}", json.dumps(record, separators=(",", ":")))


_ROWS = b'"type":"rows"'
_BATCH = f'"kind":{names.BATCH_ROW},'.encode()
# The base64 text of a row: 8 bytes for its kind, and for each field.
_ROW_BYTES = 8 * (1 + len(names.ROW_FIELDS[names.BATCH_ROW]))
_ROW_CHARACTERS = _ROW_BYTES * 4 / 3
_GRAD = 8 * (1 + names.ROW_FIELDS[names.BATCH_ROW].index("grad"))
_TOLD = (b'"type":"tick"', b'"type":"stacks"', b'"type":"worker"', b'"type":"iterator')
_MOST_BYTES = 1 << 20  # at a look
_GAPS = 100


class Progress:
    """One process: `batches` that it got, `gaps` between looks that saw some (ns), the `last` of them.

    `writer` is the thread of its agent, `exhausted` says that its last pass over a loader has ended.
    `rank` and `world_size` are as its launcher says, `evaluates`: it got its last batch under no_grad.
    Its Python stacks were asked for `dumps` times, and have `dumped` bytes.
    """

    def __init__(self, directory: str, pid: int) -> None:
        self.directory = directory
        self.pid = pid
        self.batches = 0
        self.gaps: deque[int] = deque(maxlen=_GAPS)
        self.last_ns = 0
        self.writer = 0
        self.worker: int | None = None
        self.exhausted = False
        self.rank: int | None = None
        self.world_size: int | None = None
        self.evaluates = False
        self.dumps = self.dumped = 0
        self._described = False
        self._rows = 0
        self.stacks: tuple[int, int] | None = None  # signal and descriptor
        self._offset = 0

    def look(self, now_ns: int) -> None:
        """Read what has been written since the last look."""
        if not self._described:
            self._describe()
        try:
            with open(f"{self.directory}/{names.RECORDS}", "rb") as file:
                file.seek(self._offset)
                data = file.read(_MOST_BYTES)
        except OSError:
            return
        whole = data.rfind(b"\n") + 1
        if not whole and len(data) == _MOST_BYTES:
            whole = len(data)  # a line longer than any of an agent's
        self._offset += whole
        batches = 0
        for line in data[:whole].split(b"\n"):
            if _ROWS in line[:32]:
                self._rows += 1
                batches += self._batches(line)
            elif line[:24].startswith(tuple(b"{" + start for start in _TOLD)):
                with suppress(ValueError, KeyError, TypeError):
                    self._learn(json.loads(line))
        if batches:
            if self.batches:
                self.gaps.append(now_ns - self.last_ns)
            self.batches += batches
            self.last_ns, self.exhausted = now_ns, False

    def _describe(self) -> None:
        with suppress(OSError, ValueError, TypeError):
            with open(f"{self.directory}/{names.PROCESS}", "rb") as file:
                document = json.loads(file.read())
            self._described = True
            if document.get("role") == "main":
                self.rank, self.world_size = document.get("rank"), document.get("world_size")

    @property
    def trains(self) -> bool:
        """Whether it is a training process: one that got batches, or a rank of a job."""
        return self.worker is None and (self.batches > 0 or self.rank is not None)

    def written(self) -> int:
        """Return a number that grows with each sample, pass or step that the process recorded."""
        try:
            return self._rows + os.stat(f"{self.directory}/{names.SPANS}").st_size
        except OSError:
            return self._rows

    def _batches(self, line: bytes) -> int:
        if _BATCH not in line[:48]:
            return 0
        with suppress(Error):
            last = a2b_base64(line.rpartition(b':"')[2].rstrip(b'"}'))[-_ROW_BYTES:]
            self.evaluates = last[_GRAD : _GRAD + 8] == bytes(8)
        return max(1, int(len(line) / _ROW_CHARACTERS))

    def _learn(self, record: dict[str, object]) -> None:
        kind = record["type"]
        if kind == "tick":
            self.writer = int(str(record.get("writer", 0)))
        elif kind == "stacks":
            self.stacks = int(str(record["signal"])), int(str(record["descriptor"]))
        elif kind == "worker":
            self.worker = int(str(record["worker"]))
        elif kind in ("iterator", "iterator_end"):
            self.exhausted = kind == "iterator_end"

    def longest_ns(self, least_ns: int, factor: int) -> int:
        """Return how long it may go without a batch: `factor` usual gaps, `least_ns` at least."""
        ordered = sorted(self.gaps)
        if not ordered:
            return least_ns
        usual_ns = ordered[int(0.95 * (len(ordered) - 1))] if self.batches >= 20 else ordered[-1]
        return max(least_ns, factor * usual_ns)


def find(launch: str, known: dict[str, Progress]) -> None:
    """Add the processes of `launch`, a directory laid out like a session, that are not in `known`."""
    root = f"{launch}/{names.PROCESSES}"
    with suppress(OSError):
        for name in os.listdir(root):
            directory = f"{root}/{name}"
            pid = name.partition("-")[0]
            if directory not in known and pid.isdecimal() and name.endswith(f"-{os.uname().nodename}"):
                known[directory] = Progress(directory, int(pid))
