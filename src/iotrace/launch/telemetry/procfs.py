"""Parse the texts of /proc: pure functions, and files that are kept open.

Opening a file of /proc costs more than reading it; `os.pread` at 0 makes the kernel write it again.

Also the process's control groups, whose limits hold for it, and the mounted file systems.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
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


def parse_fields(data: bytes) -> dict[bytes, bytes]:
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
    values = parse_fields(data)
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
    sizes = {name: _bytes(text) for name, text in parse_fields(sums).items()}
    shared = sizes[b"Shared_Clean"] + sizes[b"Shared_Dirty"]
    proportional = sizes.get(b"Pss_Anon", sizes[b"Pss"]) + sizes.get(b"Pss_Shmem", 0)
    return sizes[b"Anonymous"], proportional, sizes[b"Private_Dirty"], shared


def parse_run_delay(data: bytes) -> int:
    """/proc/PID/schedstat: ns so far in which the main thread was ready to run but had no CPU."""
    return int(data.split()[1])


def parse_ready(data: bytes) -> tuple[int, int]:
    """/proc/PID/task/TID/schedstat: ns so far in which a thread had no CPU, and those with or without one."""
    ran_ns, delayed_ns = map(int, data.split()[:2])
    return delayed_ns, ran_ns + delayed_ns


def parse_ids(data: bytes) -> tuple[int, int]:
    """/proc/PID/status: the process that a thread belongs to, and the pid that the process itself sees.

    The latter is another one in a PID namespace of its own (NSpid, since Linux 4.1).
    """
    values = parse_fields(data)
    return int(values[b"Tgid"]), int(values.get(b"NSpid", values[b"Tgid"]).split()[-1])


def parse_cpus(data: bytes) -> dict[int, tuple[int, int, int, int]]:
    """/proc/stat: busy, iowait, idle and stolen ticks so far by CPU number. Stolen time is busy, too."""
    cpus = {}
    for line in data.splitlines():
        if not line.startswith(b"cpu"):
            break  # what follows, interrupts by number, is long
        name, *texts = line.split()
        if name != b"cpu":
            user, nice, system, idle, iowait, irq, softirq, steal = (int(text) for text in texts[:8])
            cpus[int(name[3:])] = (user + nice + system + irq + softirq + steal, iowait, idle, steal)
    return cpus


def parse_memory(data: bytes) -> dict[str, int]:
    """/proc/meminfo, the fields that reports use, in bytes."""
    values = parse_fields(data)
    return {name: _bytes(values[field]) for field, name in _MEMORY_FIELDS.items() if field in values}


def _bytes(kib: bytes) -> int:
    return int(kib.split()[0]) * 1024


def parse_pressure(data: bytes) -> dict[str, int]:
    """/proc/pressure/*: us so far in which ``some`` task, and in which every task (``full``), was stalled."""
    pressure = {}
    for line in data.splitlines():
        kind, *fields = line.split()
        totals = [field for field in fields if field.startswith(b"total=")]
        if totals:
            pressure[kind.decode()] = int(totals[0][6:])
    return pressure


def parse_disks(data: bytes, disks: set[str]) -> dict[str, tuple[int, int, int]]:
    """/proc/diskstats: bytes read, bytes written and ms busy so far, of the whole `disks`."""
    counts = {}
    for line in data.splitlines():
        fields = line.split()
        name = fields[2].decode()
        if name in disks:
            counts[name] = (int(fields[5]) * _SECTOR_BYTES, int(fields[9]) * _SECTOR_BYTES, int(fields[12]))
    return counts


def parse_net(data: bytes) -> dict[str, tuple[int, int]]:
    """/proc/net/dev: bytes received and sent so far by interface, but the loopback."""
    interfaces = {}
    for line in data.splitlines():
        name, colon, rest = line.partition(b":")
        fields = rest.split()
        if colon and name.strip() != b"lo" and len(fields) >= 16:
            interfaces[name.strip().decode()] = (int(fields[0]), int(fields[8]))
    return interfaces


def parse_last_pid(data: bytes) -> int:
    """/proc/loadavg: the pid that was given last. It grows until pids begin again."""
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


# File systems of the kernel's own, in which no data lies.
_NO_FILES = frozenset(
    {"proc", "sysfs", "devpts", "cgroup", "cgroup2", "mqueue", "debugfs", "tracefs", "securityfs", "bpf"}
    | {"pstore", "configfs", "fusectl", "binfmt_misc", "autofs", "efivarfs", "nsfs", "rpc_pipefs"}
)
_MOST_MOUNTS = 256
_MEMORY_OF_VERSION_1 = "memory.usage_in_bytes", "memory.limit_in_bytes"
_COUNT = re.compile(rb"^(\S+) (\d+)$", re.MULTILINE)
_NO_LIMIT = 1 << 60  # bytes: version 1 writes the largest multiple of a page that fits 63 bits

MEMBERSHIP, MOUNTS = "/proc/self/cgroup", "/proc/self/mounts"


def read_own() -> tuple[str, str]:
    """Return the texts of /proc/self/cgroup and /proc/self/mounts; empty where they cannot be read."""
    try:
        with open(MEMBERSHIP) as cgroups, open(MOUNTS) as mounts:
            return cgroups.read(), mounts.read()
    except (OSError, UnicodeDecodeError):
        return "", ""


def list_groups(texts: tuple[str, str], controller: str) -> list[str]:
    """Return the directories of the groups of `controller`, and of the groups above, in both versions."""
    return [*groups_v2(*texts), *groups_v1(*texts, controller)]


def groups_v2(cgroups: str, mounts: str) -> list[str]:
    """Return the directories of the process's group of version 2 and of the groups above it, its own first.

    `cgroups` and `mounts` are the texts of `read_own`.
    """
    paths = [line[3:] for line in cgroups.splitlines() if line.startswith("0::")]
    roots = [line.split()[1] for line in mounts.splitlines() if line.split()[2:3] == ["cgroup2"]]
    return _upwards(roots[0], paths[0]) if paths and roots else []


def groups_v1(cgroups: str, mounts: str, controller: str) -> list[str]:
    """Return the same for version 1's `controller`."""
    for line in cgroups.splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        if controller in controllers.split(","):
            for mount in mounts.splitlines():
                words = mount.split()
                if words[2:3] == ["cgroup"] and controller in words[3].split(","):
                    return _upwards(words[1], path)
    return []


def _upwards(root: str, path: str) -> list[str]:
    """Return `root`/`path` and the directories above it, up to `root`.

    In a container the path may be the host's, and only the mount's root is visible: its own group.
    """
    directory = os.path.normpath(f"{root}/{path}")
    directories = []
    if directory.startswith(f"{root}/") and os.path.isdir(directory):
        while directory != root:
            directories.append(directory)
            directory = os.path.dirname(directory)
    return [*directories, root]


def mounts_with_files(mounts: str) -> list[tuple[str, str]]:
    """Return where file systems that may hold data are mounted, and their types, from the text of mounts."""
    points = [line.split()[1:3] for line in mounts.splitlines() if len(line.split()) > 2]
    return [(_unescaped(point), kind) for point, kind in points if kind not in _NO_FILES][-_MOST_MOUNTS:]


def _unescaped(point: str) -> str:
    """Undo what the kernel does to blanks and backslashes in a name."""
    for code, text in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        point = point.replace(code, text)
    return point


def parse_counts(data: bytes) -> dict[bytes, int]:
    """Parse the lines of a name and a number that a group's accounts consist of."""
    return {name: int(number) for name, number in _COUNT.findall(data)}


def parse_quota(data: bytes) -> tuple[int, int] | None:
    """Parse cpu.stat of a group: periods of its quota in which it ran, and those in which it was throttled.

    None without that account; both are 0 without a quota. The throttled time with them is summed over the
    CPUs' run queues, so it is no share of anything.
    """
    counts = parse_counts(data)
    if b"nr_periods" not in counts or b"nr_throttled" not in counts:
        return None
    return counts[b"nr_periods"], counts[b"nr_throttled"]


def parse_refaults(data: bytes) -> tuple[int, int] | None:
    """Parse memory.stat of a group: pages of files, and others, that came back after it had dropped them.

    Those of the groups below are in it, as version 2 has it. None where the kernel does not count them.
    """
    counts = parse_counts(data)
    for prefix in (b"total_workingset_refault_", b"workingset_refault_"):
        if prefix + b"file" in counts:
            return counts[prefix + b"file"], counts.get(prefix + b"anon", 0)
    return None


def memory_use(directory: str) -> tuple[int | None, int] | None:
    """Return what a group uses that the kernel cannot take back, and its limit, in bytes; None without one.

    Pages of files that are cached count as used in the kernel's own figure: it drops them first. The use is
    None where the group does not show it.
    """
    version_2 = os.path.exists(f"{directory}/memory.max")
    current, most = ("memory.current", "memory.max") if version_2 else _MEMORY_OF_VERSION_1
    limit = read_text(f"{directory}/{most}")
    if not limit.isdecimal() or int(limit) >= _NO_LIMIT:
        return None
    try:
        stat = parse_counts(read_file(f"{directory}/memory.stat"))
        if version_2:
            cached = stat[b"file"] - stat[b"shmem"] + stat.get(b"slab_reclaimable", 0)
        else:
            cached = stat[b"total_cache"] - stat.get(b"total_shmem", 0)
        return max(0, int(read_file(f"{directory}/{current}")) - cached), int(limit)
    except (OSError, ValueError, KeyError):
        return None, int(limit)


def read_text(path: str) -> str:
    """Return the text of a file without the blanks around it; empty where it cannot be read."""
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""


def count_oom_kills() -> int | None:
    """Count the processes of this control group that the kernel ended for lack of memory; None: unknown."""
    texts = read_own()
    accounts = [f"{group}/memory.events" for group in groups_v2(*texts)[:1]]
    accounts += [f"{group}/memory.oom_control" for group in groups_v1(*texts, "memory")[:1]]
    for path in accounts:
        with suppress(OSError, ValueError, KeyError):
            return parse_counts(read_file(path))[b"oom_kill"]
    return None
