"""Parse the texts of /proc: pure functions, and files that are kept open.

Opening a file of /proc costs more than reading it; `os.pread` at 0 makes the kernel write it anew.
"""

from __future__ import annotations

import os
from typing import NamedTuple

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICK_NS = 1_000_000_000 // TICKS_PER_SECOND
_EXITING = 0x4  # PF_EXITING of the kernel's task flags
_SECTOR_BYTES = 512  # of /proc/diskstats, whatever the disk's own
_IO_FIELDS = (b"rchar", b"wchar", b"syscr", b"syscw", b"read_bytes", b"write_bytes")
_MEMORY_FIELDS = {
    b"MemTotal": "total_bytes",
    b"MemAvailable": "available_bytes",
    b"Cached": "cached_bytes",
    b"Dirty": "dirty_bytes",
    b"Writeback": "writeback_bytes",
}
UNKNOWN_IO = (-1,) * len(_IO_FIELDS)


class Stat(NamedTuple):
    """The fields of /proc/PID/stat; `start_ticks` since the boot distinguishes a pid's processes."""

    state: str
    ppid: int
    major_faults: int
    cpu_ns: int
    threads: int
    start_ticks: int
    rss_bytes: int
    exiting: bool  # its memory is being given back


def parse_stat(data: bytes) -> Stat:
    """/proc/PID/stat. The program's name comes first, in parentheses, and may hold any character."""
    fields = data[data.rindex(b")") + 2 :].split()
    return Stat(
        state=fields[0].decode(),
        ppid=int(fields[1]),
        major_faults=int(fields[9]),
        cpu_ns=(int(fields[11]) + int(fields[12])) * _TICK_NS,
        threads=int(fields[17]),
        start_ticks=int(fields[19]),
        rss_bytes=int(fields[21]) * PAGE_BYTES,
        exiting=bool(int(fields[6]) & _EXITING),
    )


def read_stat(pid: int | str) -> Stat:
    """Read and parse /proc/PID/stat, or a thread's (``PID/task/TID``); raises OSError where it has ended."""
    return parse_stat(read_file(f"/proc/{pid}/stat"))


def read_file(path: str) -> bytes:
    """Read a file of /proc whole."""
    with open(path, "rb", buffering=0) as file:
        return file.readall()


def fields_of(data: bytes) -> dict[bytes, bytes]:
    """The lines ``Name: value`` that many files of /proc consist of."""
    return dict(line.split(b":", 1) for line in data.splitlines() if b":" in line)


def parse_io(data: bytes) -> tuple[int, ...]:
    """/proc/PID/io: rchar, wchar, syscr, syscw, read_bytes, write_bytes."""
    values = dict(line.split(b": ") for line in data.splitlines())
    return tuple(int(values[field]) for field in _IO_FIELDS)


class Status(NamedTuple):
    """Fields of /proc/PID/status. Switches and CPUs are those of the main thread alone."""

    voluntary: int
    involuntary: int
    cpus: str  # that it may run on: "0-3,8"
    swap_bytes: int
    memory_nodes: str  # that it may have memory of: "0-1"


def parse_status(data: bytes) -> Status:
    """/proc/PID/status; what an older kernel does not tell is empty or 0."""
    values = fields_of(data)
    return Status(
        voluntary=int(values[b"voluntary_ctxt_switches"]),
        involuntary=int(values[b"nonvoluntary_ctxt_switches"]),
        cpus=values.get(b"Cpus_allowed_list", b"").decode().strip(),
        swap_bytes=_bytes(values.get(b"VmSwap", b"0 kB")),
        memory_nodes=values.get(b"Mems_allowed_list", b"").decode().strip(),
    )


def parse_rollup(data: bytes) -> tuple[int, int, int, int]:
    """/proc/PID/smaps_rollup: anonymous, proportional, private and dirty, shared bytes.

    The proportional ones are without pages of files, which the kernel may drop; older kernels do not say.
    """
    _, _, sums = data.partition(b"\n")
    found = {name: _bytes(text) for name, text in fields_of(sums).items()}
    shared = found[b"Shared_Clean"] + found[b"Shared_Dirty"]
    proportional = found.get(b"Pss_Anon", found[b"Pss"]) + found.get(b"Pss_Shmem", 0)
    return found[b"Anonymous"], proportional, found[b"Private_Dirty"], shared


def parse_run_delay(data: bytes) -> int:
    """/proc/PID/schedstat: ns so far in which the main thread was ready to run but had no CPU."""
    return int(data.split()[1])


def parse_ready(data: bytes) -> tuple[int, int]:
    """/proc/PID/task/TID/schedstat: ns so far in which a thread had no CPU, and those with or without one."""
    ran_ns, delayed_ns = map(int, data.split()[:2])
    return delayed_ns, ran_ns + delayed_ns


def parse_ids(data: bytes) -> tuple[int, int]:
    """/proc/PID/status: the process that a thread is of, and the pid that the process itself sees.

    The latter is another one in a PID namespace of its own (NSpid, since Linux 4.1).
    """
    values = fields_of(data)
    return int(values[b"Tgid"]), int(values.get(b"NSpid", values[b"Tgid"]).split()[-1])


def parse_cpus(data: bytes) -> dict[int, tuple[int, int, int, int]]:
    """/proc/stat: busy, iowait, idle and stolen ticks so far by CPU number. Stolen time is busy, too."""
    found = {}
    for line in data.splitlines():
        if not line.startswith(b"cpu"):
            break  # what follows, interrupts by number, is long
        name, *texts = line.split()
        if name != b"cpu":
            user, nice, system, idle, iowait, irq, softirq, steal = (int(text) for text in texts[:8])
            found[int(name[3:])] = (user + nice + system + irq + softirq + steal, iowait, idle, steal)
    return found


def parse_memory(data: bytes) -> dict[str, int]:
    """/proc/meminfo, the fields that reports use, in bytes."""
    values = fields_of(data)
    return {name: _bytes(values[field]) for field, name in _MEMORY_FIELDS.items() if field in values}


def _bytes(kib: bytes) -> int:
    return int(kib.split()[0]) * 1024


def parse_pressure(data: bytes) -> dict[str, int]:
    """/proc/pressure/*: us so far in which ``some`` task, and in which every task (``full``), was stalled."""
    found = {}
    for line in data.splitlines():
        kind, *fields = line.split()
        totals = [field for field in fields if field.startswith(b"total=")]
        if totals:
            found[kind.decode()] = int(totals[0][6:])
    return found


def parse_disks(data: bytes, disks: set[str]) -> dict[str, tuple[int, int, int]]:
    """/proc/diskstats: bytes read, bytes written and ms busy so far, of the whole `disks`."""
    found = {}
    for line in data.splitlines():
        fields = line.split()
        name = fields[2].decode()
        if name in disks:
            found[name] = (int(fields[5]) * _SECTOR_BYTES, int(fields[9]) * _SECTOR_BYTES, int(fields[12]))
    return found


def parse_net(data: bytes) -> dict[str, tuple[int, int]]:
    """/proc/net/dev: bytes received and sent so far by interface, but the loopback."""
    found = {}
    for line in data.splitlines():
        name, colon, rest = line.partition(b":")
        fields = rest.split()
        if colon and name.strip() != b"lo" and len(fields) >= 16:
            found[name.strip().decode()] = (int(fields[0]), int(fields[8]))
    return found


def parse_last_pid(data: bytes) -> int:
    """/proc/loadavg: the pid that was given last. It grows until pids begin anew."""
    return int(data.split()[4])


class ProcFile:
    """A file of /proc that is read often. `kept_open` costs a descriptor, and pins the process."""

    def __init__(self, path: str, kept_open: bool = True) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC) if kept_open else -1

    def read(self, size: int = 4096) -> bytes:
        """Return its text as it is now, up to `size` bytes, in one call."""
        if self._descriptor >= 0:
            return os.pread(self._descriptor, size, 0)
        descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(descriptor, size, 0)
        finally:
            os.close(descriptor)

    def read_all(self) -> bytes:
        """Return the whole text of a file that is kept open: the kernel may hand it out a page at a time."""
        parts, offset = [], 0
        while part := os.pread(self._descriptor, 1 << 16, offset):
            parts.append(part)
            offset += len(part)
        return b"".join(parts)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
