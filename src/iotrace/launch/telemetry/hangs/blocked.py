"""What a blocked process is in, by /proc: its state, system call, file, and its Python stack.

The calls on files that a process's threads are in, and since when, by what our recorder keeps of them.

The kernel says neither since when, nor, where it hides the system call, which file. The recorder's file says
both without asking the process; of an open or a stat it does not know the path until the call has ended.
"""

from __future__ import annotations

import os
import re
import time
from array import array
from contextlib import suppress
from typing import Any

from iotrace.launch.telemetry.procfs import parse_fields, parse_io, parse_status, read_file, read_stat
from iotrace.session import names, recorded
from iotrace.session.recorded import Walk

About = dict[str, Any]  # a record of a hang, or of one of its processes

# Numbers of system calls, by machine: x86_64, and the generic table of aarch64 and others.
_CALLS = {
    "x86_64": """
        0 read 1 write 2 open 3 close 4 stat 5 fstat 6 lstat 7 poll 8 lseek 17 pread64 18 pwrite64 19 readv
        20 writev 21 access 23 select 26 msync 35 nanosleep 40 sendfile 42 connect 43 accept 45 recvfrom
        47 recvmsg 61 wait4 72 fcntl 73 flock 74 fsync 75 fdatasync 76 truncate 77 ftruncate 82 rename
        87 unlink 202 futex 217 getdents64 230 clock_nanosleep 232 epoll_wait 247 waitid 257 openat
        262 newfstatat 263 unlinkat 264 renameat 269 faccessat 270 pselect6 271 ppoll 281 epoll_pwait
        295 preadv 296 pwritev 316 renameat2 326 copy_file_range 327 preadv2 328 pwritev2 332 statx
        439 faccessat2
    """,
    "aarch64": """
        22 epoll_pwait 25 fcntl 32 flock 35 unlinkat 38 renameat 45 truncate 46 ftruncate 48 faccessat
        56 openat 57 close 61 getdents64 62 lseek 63 read 64 write 65 readv 66 writev 67 pread64 68 pwrite64
        69 preadv 70 pwritev 71 sendfile 72 pselect6 73 ppoll 79 newfstatat 80 fstat 82 fsync 83 fdatasync
        95 waitid 98 futex 101 nanosleep 115 clock_nanosleep 202 accept 207 recvfrom 212 recvmsg 227 msync
        260 wait4 276 renameat2 285 copy_file_range 286 preadv2 287 pwritev2 291 statx 439 faccessat2
    """,
}.get(os.uname().machine, "").split()
_CALL_NAMES = dict(zip(map(int, _CALLS[::2]), _CALLS[1::2], strict=True))
SLEEPS = frozenset({"nanosleep", "clock_nanosleep"})
WRITES = frozenset({"write", "pwrite64", "writev", "fsync", "fdatasync", "msync", "ftruncate", "rename"})
WRITES |= {*names.WRITING_CALLS, "pwritev2", "truncate", "renameat", "renameat2"}
POLLS = frozenset({"poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait"})
WAITS_FOR_CHILD = frozenset({"wait4", "waitid"})
OF_A_FILE = frozenset({"read", "pread64", "readv", "write", "pwrite64", "writev", "flock", "fcntl", "fsync"})
OF_A_FILE |= {"preadv", "preadv2", "pwritev", "pwritev2", "lseek", "fdatasync", "getdents64"}
# The argument that points to the path, by call.
_OF_A_PATH = {"openat": 1, "newfstatat": 1, "statx": 1, "faccessat": 1, "faccessat2": 1, "unlinkat": 1}
_OF_A_PATH |= dict.fromkeys(("open", "stat", "lstat", "access", "unlink"), 0)
_LONGEST_PATH, _PAGE = 4096, 4096
_TICKS = ("hrtimer_nanosleep", "do_nanosleep")
_ASIDE = (b"pt_", b"cuda", b"gloo", b"nccl", b"NCCL")  # watchdogs and event loops of libraries
_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/render")
_MOST_STACK = 1 << 16
_STACK_SECONDS = 1.0
_RECORDER = b"/_posix_recorder.so"
_STACK_BYTES = 1 << 14


def look_at(pid: int, known: About) -> About:
    """Return `known` and what /proc says of the main thread of a process; what cannot be read is None."""
    about: About = {"pid": pid, "state": None, "wchan": None, "call": None, "file": None, **known}
    with suppress(OSError, ValueError, IndexError):
        about["state"] = read_stat(pid).state
    with suppress(OSError, ValueError):
        about["wchan"] = read_file(f"/proc/{pid}/wchan").decode().strip("\0 \n") or None
    with suppress(OSError, ValueError, IndexError):
        number, *arguments = read_file(f"/proc/{pid}/syscall").decode().split()
        if number.isdecimal():
            about["call"] = _CALL_NAMES.get(int(number), f"system call {number}")
            if about["call"] in OF_A_FILE:
                descriptor = int(arguments[0], 16)
                about["descriptor"] = descriptor
                about["file"] = os.readlink(f"/proc/{pid}/fd/{descriptor}")
            elif about["call"] in _OF_A_PATH:
                about["file"] = _text_at(pid, int(arguments[_OF_A_PATH[about["call"]]], 16))
    if about["file"]:
        with suppress(OSError, ValueError, IndexError):
            about["file_system"] = _find_file_system(pid, about["file"])
    if about["call"] is None and about["wchan"] in _TICKS:
        about["call"] = "clock_nanosleep"
    return about


def _find_file_system(pid: int, file: str) -> str | None:
    """Return the type and the mount point of a file's file system; None where it is no file.

    By the process's table of mounts: to ask the file system itself (statfs) may hang as its other calls do.
    """
    path = os.path.join(os.readlink(f"/proc/{pid}/cwd"), file)
    if ":[" in file or not path.startswith("/"):
        return None
    best = "", ""
    for line in read_file(f"/proc/{pid}/mountinfo").decode(errors="surrogateescape").splitlines():
        about, _, of = line.partition(" - ")
        point = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), about.split()[4])
        if len(point) >= len(best[0]) and f"{path}/".startswith(f"{point.rstrip('/')}/"):
            best = point, of.split()[0]
    return f"{best[1]} at {best[0]}" if best[0] else None


def _text_at(pid: int, address: int) -> str | None:
    """Return the text at an address of a process's memory; None where it may not be read."""
    descriptor = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = b""
        while b"\0" not in data and len(data) < _LONGEST_PATH:
            end = (address + len(data)) // _PAGE * _PAGE + _PAGE  # the next page may not be there
            piece = os.pread(descriptor, end - address - len(data), address + len(data))
            if not piece:
                return None
            data += piece
        return os.fsdecode(data.partition(b"\0")[0])
    finally:
        os.close(descriptor)


def read_parent(pid: int) -> int:
    """Return the parent of a process; 0 where it has ended."""
    try:
        return read_stat(pid).ppid
    except (OSError, ValueError, IndexError):
        return 0


def is_traced(pid: int) -> bool:
    """Say whether a debugger holds the process."""
    with suppress(OSError):
        return int(parse_fields(read_file(f"/proc/{pid}/status")).get(b"TracerPid", 0)) != 0
    return False


def activity(pid: int, writer: int) -> dict[tuple[int, int], tuple[int, int, int]]:
    """Return, by thread but the agent's: CPU ns, bytes read and written, voluntary switches, each so far.

    Threads that torch runs next to the program's wake often and do nothing: their switches are 0.

    Raises:
        OSError: the kernel does not let us see it.
    """
    activity = {}
    for name in os.listdir(f"/proc/{pid}/task"):
        if int(name) == writer:
            continue
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            task = f"/proc/{pid}/task/{name}"
            cpu_ns = read_stat(f"{pid}/task/{name}").cpu_ns
            read_bytes, written_bytes, *_ = parse_io(read_file(f"{task}/io"))
            aside = read_file(f"{task}/comm").startswith(_ASIDE)
            switches = 0 if aside else parse_status(read_file(f"{task}/status")).voluntary
            activity[pid, int(name)] = cpu_ns, read_bytes + written_bytes, switches
    return activity


def wanted_cpu_ns(pid: int) -> int | None:
    """Return how long the main thread was on a CPU, or ready for one; None where the kernel does not say."""
    try:
        used, waited, *_ = read_file(f"/proc/{pid}/task/{pid}/schedstat").split()
        return int(used) + int(waited)
    except (OSError, ValueError):
        return None


def uses_device(pid: int) -> bool:
    """Say whether the process has an accelerator open: it may be on a CPU to ask whether that is done."""
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                if os.readlink(f"/proc/{pid}/fd/{name}").startswith(_DEVICES):
                    return True
    return False


def ask_for_stacks(pid: int, directory: str, stacks: tuple[int, int], written: int) -> bool:
    """Send the signal of the process's handler, if that still is the agent's: `written` bytes long so far."""
    number, descriptor = stacks
    path = f"{directory}/{names.STACKS}"
    try:
        if not os.path.samefile(f"/proc/{pid}/fd/{descriptor}", path) or os.path.getsize(path) != written:
            return False
        caught = parse_fields(read_file(f"/proc/{pid}/status"))[b"SigCgt"]
        if not int(caught, 16) >> (number - 1) & 1:
            return False
        os.kill(pid, number)
    except (OSError, ValueError, KeyError):
        return False
    return True


def read_stack(directory: str, offset: int) -> tuple[list[str], int]:
    """Return the Python stack of the main thread as the handler wrote it from `offset` on, and where it ends.

    The innermost frame is the first.
    """
    path, until = f"{directory}/{names.STACKS}", time.monotonic() + _STACK_SECONDS
    data, before = b"", None
    while time.monotonic() < until and (not data or data != before):
        before = data
        with suppress(OSError):
            data = read_file(path)[offset:]
        time.sleep(0.05)
    text = data[:_MOST_STACK].decode(errors="replace")
    # The current thread, or else the one that Python names last: the main thread.
    stacks = [block for block in text.split("\n\n") if "most recent call first" in block]
    current = [block for block in stacks if block.startswith("Current thread")] or stacks[-1:]
    frames = [line.strip() for block in current[:1] for line in block.splitlines()[1:] if line.strip()]
    return frames, offset + len(data)


LEAST_NS = 5_000_000_000  # a call of another thread is reported when it has lasted so long
_MOST_RECORDS = 20_000  # that are passed at a look, some 20 ms
_MOST_THREADS = 1024
_STARTED_NS = 1_000_000_000  # to which the kernel's word on a process's start is taken


class _File:
    """A process's file, as far as it was read: where its threads and its files' names are."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._walk = Walk()
        self._threads: list[int] = []
        self._name_at = array("q")

    def calls(self, pid: int, started_ns: int) -> list[About]:
        """Return the calls that the process's threads are in; none where the file is another process's."""
        descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            head = recorded.read_head(descriptor)
            if head is None or head.pid != pid or head.start_ns < started_ns - _STARTED_NS:
                return []
            for record in self._walk.records(descriptor, head.used_bytes, _MOST_RECORDS):
                self._learn(record)
            calls = [recorded.open_call_at(descriptor, at) for at in self._threads]
            return [self._told(descriptor, call) for call in calls if call is not None]
        finally:
            os.close(descriptor)

    def _learn(self, record: recorded.Record) -> None:
        if record.type == recorded.THREAD and len(self._threads) < _MOST_THREADS:
            self._threads.append(record.at)
        elif record.type == recorded.NAME and record.first < recorded.MOST_FILES:
            self._name_at.extend([0] * (record.first + 1 - len(self._name_at)))
            self._name_at[record.first] = record.at

    def _told(self, descriptor: int, call: recorded.OpenCall) -> About:
        at = self._name_at[call.file] if call.file < len(self._name_at) else 0
        return {
            "tid": call.tid,
            "call": recorded.name_of_kind(call.kind),
            "file": (recorded.name_at(descriptor, at) or None) if at else None,
            "call_since_ns": call.since_ns,
        }


class OpenCalls:
    """The files of the processes that are looked at, which are read on where the last look stopped."""

    def __init__(self) -> None:
        self._files: dict[str, _File] = {}

    def add_to(self, about: About, launch: str, started_ns: int, now_ns: int) -> None:
        """Add since when a process's main thread is in its call, and what its other threads are in.

        Where the kernel hides them, the call and the file, too. `within`: its call has not returned to the
        recorder, and waits for a lock instead of the system: of libc, or of what else intercepts the call.
        """
        calls: list[About] = []
        with suppress(OSError):
            path = _find_path(launch, about["pid"])
            if path:
                calls = self._files.setdefault(path, _File(path)).calls(about["pid"], started_ns)
        for call in calls:
            if call["tid"] != about["pid"]:
                continue
            if _is_same_call(about, call):
                about["call"] = about["call"] or call["call"]
                about["file"] = about["file"] or call["file"]
                about["call_since_ns"] = call["call_since_ns"]
            elif now_ns - call["call_since_ns"] >= LEAST_NS and _waits_in_recorder(about):
                about["within"] = call
        others = [call for call in calls if call["tid"] not in (0, about["pid"])]
        long = [call for call in others if now_ns - call["call_since_ns"] >= LEAST_NS]
        if long:
            about["threads"] = sorted(long, key=lambda call: int(call["call_since_ns"]))

    def forget(self) -> None:
        """Nothing is suspected any more."""
        self._files.clear()


def _is_same_call(about: About, call: About) -> bool:
    """Say whether what the recorder says is the system call that the kernel shows.

    It is not in a call any more, whatever its file says, where a signal's handler left the call by a jump.
    """
    file = about["file"]
    if about["call"] is None:
        return about["state"] not in ("R", "Z")
    if about["call"] not in recorded.SYSTEM_CALLS.get(call["call"], ()):
        return False
    return file is None or call["file"] is None or file.startswith("/")


def _waits_in_recorder(about: About) -> bool:
    """Say whether a thread waits for a lock below the recorder: its stack has an address there."""
    pid = about["pid"]
    if about["call"] != "futex":
        return False
    with suppress(OSError, ValueError, IndexError):
        stack = int(read_file(f"/proc/{pid}/syscall").split()[-2], 16)
        maps = [line.split() for line in read_file(f"/proc/{pid}/maps").splitlines() if _RECORDER in line]
        code = [tuple(int(end, 16) for end in parts[0].split(b"-")) for parts in maps if b"x" in parts[1]]
        descriptor = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.pread(descriptor, _STACK_BYTES, stack)
        finally:
            os.close(descriptor)
        return any(low <= word < high for word in array("Q", data[: len(data) & -8]) for low, high in code)
    return False


def _find_path(launch: str, pid: int) -> str:
    """Return the newest of a process's files on this host: it has one for each program that it ran."""
    begin, end = f"{pid}-", f"-{os.uname().nodename}{names.RECORDED_CALLS}"
    candidates = []
    for directory in recorded.list_directories(launch)[0]:
        for name in os.listdir(directory):
            if name.startswith(begin) and name.endswith(end):
                with suppress(ValueError):
                    candidates.append((int(name[len(begin) : -len(end)], 16), f"{directory}/{name}"))
    return max(candidates)[1] if candidates else ""
