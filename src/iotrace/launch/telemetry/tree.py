"""Find the traced command's processes on this host in /proc, and sample them through open files."""

from __future__ import annotations

import os
import resource
import struct
import time
from contextlib import suppress

from iotrace.launch.telemetry import Record
from iotrace.launch.telemetry.procfs import (
    TICKS_PER_SECOND,
    UNKNOWN_IO,
    ProcFile,
    Stat,
    parse_ids,
    parse_io,
    parse_last_pid,
    parse_ready,
    parse_run_delay,
    parse_stat,
    parse_status,
    read_file,
    read_stat,
)
from iotrace.session import names

# A process that has just been made may not have its own environment yet (between fork and exec).
_YOUNG_TICKS = TICKS_PER_SECOND
# Another launcher that found this host claimed may have been a little quicker with its command.
_EARLIER_TICKS = 10 * TICKS_PER_SECOND
# Of so many new pids each is looked at by its number; of more when all are listed.
_MOST_NEWEST = 64
_DEAD = "ZXx"
_MOST_THREADS = 128  # of a process, whose run delays are read
_FILES_OF_A_MEMBER = 3
# Descriptors left to the host's figures, the drivers' libraries and the sidecar's own files.
_KEPT_FREE = 96
_MARK = f"{names.SETTINGS_VARIABLE}=".encode()
Lists = dict[str, list[tuple[object, ...]]]
_pack = struct.Struct(names.SAMPLE_FORMAT).pack


class Member:
    """A process of the command. Its files refer to this process, even when its pid has come to another.

    Without `kept_open`, where descriptors are few, they are opened each time, and its start is compared.
    """

    def __init__(self, number: int, pid: int, stat: Stat, launch: str, kept_open: bool = True) -> None:
        self.number = number
        self.pid = pid
        self.launch = launch
        self.start_ticks = stat.start_ticks
        self._rss_bytes = stat.rss_bytes
        self.kept_open = kept_open
        self._stat = ProcFile(f"/proc/{pid}/stat", kept_open)
        self._others: list[ProcFile | None] = []
        self._listed: dict[str, str] = {}  # by `names.LISTED`: what was recorded last
        self._pools: dict[str, tuple[int, int]] = {}  # by thread
        self._pool_ns = [0, 0]
        for name in ("io", "status"):
            try:
                self._others.append(ProcFile(f"/proc/{pid}/{name}", kept_open))
            except OSError:  # another user's (sudo): only its owner may see that
                self._others.append(None)

    def sample(self) -> bytes | None:
        """Return one record of `names.SAMPLE_FORMAT`; None when the process has ended."""
        try:
            stat = parse_stat(self._stat.read())
        except OSError:
            return None
        if (stat.state in _DEAD and stat.threads <= 1) or stat.start_ticks != self.start_ticks:
            return None
        if not stat.exiting or stat.rss_bytes > self._rss_bytes:  # else what it held, not what is still there
            self._rss_bytes = stat.rss_bytes
        io, counts = self._others[0], UNKNOWN_IO
        if io is not None:
            try:
                counts = parse_io(io.read())
            except (OSError, KeyError, ValueError):
                pass
        figures = self.number, stat.threads, stat.cpu_ns, self._rss_bytes, stat.major_faults
        return _pack(time.monotonic_ns(), *figures, *counts)

    @property
    def started_ns(self) -> int:
        """When it began, by CLOCK_MONOTONIC: the kernel counts from the boot, suspended time included."""
        asleep_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()
        return self.start_ticks * (1_000_000_000 // TICKS_PER_SECOND) - asleep_ns

    def is_the_same(self) -> bool:
        """Say whether its pid still is this process."""
        try:
            return read_stat(self.pid).start_ticks == self.start_ticks
        except (OSError, ValueError, IndexError):
            return False

    def scheduling(self, record: Lists) -> None:
        """Add what the kernel says of its main thread to the lists of `record`, by its number.

        Context switches and run delay so far; its swap; where they have changed the CPUs that it may run on
        and the nodes that it may have memory of.
        """
        try:
            if self._others[1] is not None:
                status = parse_status(self._others[1].read(8192))
                record["switches"].append((self.number, status.voluntary, status.involuntary))
                for name, text in zip(names.LISTED, (status.cpus, status.memory_nodes), strict=True):
                    if text and text != self._listed.get(name):
                        record[name].append((self.number, text))
                        self._listed[name] = text
                record["swap_bytes"].append((self.number, status.swap_bytes))
            delay_ns = parse_run_delay(read_file(f"/proc/{self.pid}/schedstat"))
            record["run_delay_ns"].append((self.number, delay_ns))
        except (OSError, LookupError, ValueError):  # it has ended, or the kernel keeps no such account
            return

    def pool(self) -> tuple[int, int]:
        """Return how long at least one other thread had no CPU so far, and how long one ran or had none.

        Of the time since the last call it is the thread in which either grew most.

        Raises:
            OSError, ValueError: it has ended, or the kernel keeps no such account.
        """
        task = f"/proc/{self.pid}/task"
        threads = os.listdir(task)
        if len(threads) <= _MOST_THREADS:
            pools = {
                name: parse_ready(read_file(f"{task}/{name}/schedstat"))
                for name in threads
                if int(name) != self.pid
            }
            both = [(self._pools[name], now) for name, now in pools.items() if name in self._pools]
            for at in (0, 1):
                grown = [now[at] - before[at] for before, now in both]
                self._pool_ns[at] += max(0, *grown, 0)
            self._pools = pools
        return self._pool_ns[0], self._pool_ns[1]

    def close(self) -> None:
        for file in (self._stat, *self._others):
            if file is not None:
                file.close()


class Tree:
    """All processes of the session's launchers on this host.

    A process belongs to it if its environment names the session, or its parent belongs to it: a daemon that
    left its parent is found by the first, a program with an emptied environment by the second.
    """

    def __init__(self, session: str, own_start_ticks: int) -> None:
        self._session = session
        self._earliest_ticks = own_start_ticks - _EARLIER_TICKS
        self._foreign = {os.getpid()}
        self._last_pid = self._looked_to = 0
        self._newest: ProcFile | None = None
        self._most_open = (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _KEPT_FREE) // _FILES_OF_A_MEMBER
        self._numbers = 0
        self.members: dict[int, Member] = {}
        self._unsampled: list[Member] = []

    def scan(self) -> list[Record]:
        """Take in new processes; return a ``process`` record for each."""
        present = {int(name) for name in os.listdir("/proc") if name.isdigit()}
        self._foreign = set() if self._pids_began_anew() else self._foreign & present
        self._looked_to = self._last_pid
        return self._take_in(sorted(present - self._foreign - self.members.keys()))

    def scan_newest(self) -> list[Record]:
        """Do the same for the pids given since the last scan: cheap where they are few."""
        newest = self._newest_pid()
        if not 0 < newest - self._looked_to <= _MOST_NEWEST:  # else they began again, or are too many: `scan`
            return []
        given = range(self._looked_to + 1, newest + 1)
        self._looked_to = newest
        return self._take_in([pid for pid in given if pid not in self.members])

    def _take_in(self, pids: list[int]) -> list[Record]:
        records = []
        now_ticks = time.clock_gettime(time.CLOCK_BOOTTIME) * TICKS_PER_SECOND
        for pid in pids:
            try:
                stat = read_stat(pid)
                launch = self._find_launch(pid, stat)
                if launch is None:
                    if now_ticks - stat.start_ticks > _YOUNG_TICKS:
                        self._foreign.add(pid)
                    continue
                group, own_pid = parse_ids(read_file(f"/proc/{pid}/status"))
                if group != pid:  # a thread: not listed, and yet to be found by its number
                    continue
                room = sum(member.kept_open for member in self.members.values()) < self._most_open
                member = Member(self._numbers, pid, stat, launch, room)
            except (OSError, ValueError, IndexError):  # it has ended meanwhile, or no descriptor is left
                continue
            self._numbers += 1
            self.members[pid] = member
            self._unsampled.append(member)
            records.append(_describe(member, stat, own_pid))
        return records

    def _pids_began_anew(self) -> bool:
        """Say whether a pid that was foreign may be a new process by now."""
        before, self._last_pid = self._last_pid, self._newest_pid()
        return not self._last_pid or self._last_pid < before

    def _newest_pid(self) -> int:
        """Return the pid that was given last; 0 where that is unknown."""
        try:
            if self._newest is None:
                self._newest = ProcFile("/proc/loadavg")
            return parse_last_pid(self._newest.read())
        except (OSError, ValueError, IndexError):
            return 0

    def sample(self, new_alone: bool = False) -> bytes:
        """Return a sample of each member, or of each that has none yet; ended members leave."""
        parts = []
        members = self._unsampled if new_alone else list(self.members.values())
        self._unsampled = []
        for member in members:
            sample = member.sample()
            if sample is None:
                member.close()
                del self.members[member.pid]
            else:
                parts.append(sample)
        return b"".join(parts)

    def scheduling(self) -> Lists:
        """Return `Member.scheduling` of all members."""
        record: Lists = {name: [] for name in names.SCHEDULING if name != "pool_ns"}
        for member in self.members.values():
            member.scheduling(record)
        return record

    def pools(self) -> list[tuple[object, ...]]:
        """Return the number and the `Member.pool` of each member, as far as they are known."""
        pools: list[tuple[object, ...]] = []
        for member in self.members.values():
            with suppress(OSError, ValueError):
                pools.append((member.number, *member.pool()))
        return pools

    def _find_launch(self, pid: int, stat: Stat) -> str | None:
        """Return the directory of the launcher that the process belongs to; None if it is foreign or dead."""
        if stat.start_ticks < self._earliest_ticks or stat.state in _DEAD:
            return None
        parent = self.members.get(stat.ppid)
        if parent is not None:
            return parent.launch
        try:
            environment = read_file(f"/proc/{pid}/environ")
        except OSError:
            return None
        for variable in environment.split(b"\0"):
            if variable.startswith(_MARK):
                settings = names.decode_settings(os.fsdecode(variable[len(_MARK) :]))
                launch = settings.get("session", "")
                if launch == self._session or launch.startswith(f"{self._session}/{names.LAUNCHES}/"):
                    return launch
        return None


def _describe(member: Member, stat: Stat, own_pid: int) -> Record:
    try:
        name = read_file(f"/proc/{member.pid}/comm").decode(errors="replace").strip()
    except OSError:
        name = ""
    return {
        "type": "process",
        "number": member.number,
        "pid": member.pid,
        "own_pid": own_pid,
        "ppid": stat.ppid,
        "name": name,
        "start_ns": member.started_ns,
    }
