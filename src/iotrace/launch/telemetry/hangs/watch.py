"""Tell a hang once: no batch for long, and nothing that could make one computes, reads or writes.

A job that is slow is never called hung. Anything that says that it may go on by itself ends the suspicion:
CPU time, a byte read or written, a sleep, a write, a stopped or debugged training process, a prompt.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from stat import S_ISREG

from iotrace.launch.telemetry.hangs import blocked
from iotrace.launch.telemetry.hangs.blocked import About
from iotrace.launch.telemetry.hangs.progress import Progress, find
from iotrace.launch.telemetry.hangs.words import collective_of, differing, sentence, waits_for_others
from iotrace.launch.telemetry.tree import Tree
from iotrace.session import names

_LEAST_NS = 30_000_000_000
_FACTOR = 20  # usual gaps between batches
_LEAST_BATCHES = 5
_SAMPLES = 3  # after the first
_SAMPLE_NS = 5_000_000_000
_BUSY = 0.01  # of a core
# Of a thread in a sample: torch's loaders wake every 5 s to look after each other, and where the agent sees
# their wait it reads its account of a few bytes. What comes through a socket is not counted, but wakes.
_OWN_BYTES, _WAKES = 256, 5
_NEVER = 1 << 62  # batches
_SLOWEST_NS = 2_000_000_000  # between looks for new processes
_APPENDS = os.O_APPEND

Activity = dict[tuple[int, int], tuple[int, int, int]]


class _Suspicion:
    """Training processes without batches: what the threads of their chain had done at the last sample."""

    def __init__(self) -> None:
        self.sampled_ns = 0
        self.quiet = -1
        self.activity: Activity = {}


class HangWatch:
    """Watches the training processes of a host's launches; `check` returns what is to be told.

    Ranks of one job wait for each other: they are one group, and hang together or not at all.
    """

    def __init__(self, tree: Tree, least_ns: int = _LEAST_NS, sample_ns: int = _SAMPLE_NS) -> None:
        self._tree = tree
        self._least_ns, self._sample_ns = least_ns, sample_ns
        self._known: dict[str, Progress] = {}
        self._suspected: dict[str, _Suspicion] = {}
        self._told: dict[str, int] = {}  # by directory: how many batches it had
        self._found_ns = 0

    def check(self, now_ns: int) -> About | None:
        """Look at what was written; return a ``hang`` record where one is certain, once for each process."""
        if now_ns - self._found_ns >= _SLOWEST_NS:
            self._found_ns = now_ns
            for launch in {member.launch for member in self._tree.members.values()}:
                find(launch, self._known)
        alive = [each for each in self._known.values() if each.pid in self._tree.members]
        for each in alive:
            each.look(now_ns)
            if each.batches > self._told.get(each.directory, each.batches):
                self._told[each.directory] = _NEVER
                return {"type": "resumed", "mono_ns": now_ns, "pid": each.pid}
        groups: dict[str, list[Progress]] = {}
        for each in alive:
            if each.trains:
                groups.setdefault("ranks" if each.rank is not None else each.directory, []).append(each)
        hung = [group for name, group in groups.items() if self._hangs(name, group, now_ns)]
        return self._tell([each for group in hung for each in group], now_ns) if hung else None

    def _is_late(self, progress: Progress, now_ns: int) -> bool:
        return (
            progress.batches >= _LEAST_BATCHES
            and not progress.exhausted
            and progress.directory not in self._told
            and now_ns - progress.last_ns >= progress.longest_ns(self._least_ns, _FACTOR)
        )

    def _hangs(self, name: str, group: list[Progress], now_ns: int) -> bool:
        late = [each for each in group if self._is_late(each, now_ns)]
        if not late:
            self._suspected.pop(name, None)
            return False
        found = self._suspected.setdefault(name, _Suspicion())
        if now_ns - found.sampled_ns < self._sample_ns:
            return False
        try:
            chain = self._chain([each.pid for each in group])
            now = self._activity(chain)
            goes_on = self._may_go_on(late, group, chain)
        except (OSError, ValueError, KeyError, IndexError):  # the kernel hides it: nothing is told
            self._suspected.pop(name, None)
            return False
        quiet = not goes_on and _is_quiet(found.activity, now, now_ns - found.sampled_ns)
        found.quiet = found.quiet + 1 if quiet or (found.quiet < 0 and not goes_on) else -1
        found.activity, found.sampled_ns = now, now_ns
        return found.quiet >= _SAMPLES

    def _chain(self, pids: list[int]) -> list[int]:
        """Return the processes and all that they started, which may make their batches."""
        parents = {each: blocked.parent_of(each) for each in self._tree.members}
        chain = list(pids)
        for one in chain:
            chain += [each for each, parent in parents.items() if parent == one and each not in chain]
        return chain

    def _activity(self, chain: list[int]) -> Activity:
        writers = {each.pid: each.writer for each in self._known.values()}
        found: Activity = {}
        for pid in chain:
            with suppress(FileNotFoundError, ProcessLookupError):
                found |= blocked.activity(pid, writers.get(pid, 0))
        return found

    def _may_go_on(self, late: list[Progress], group: list[Progress], chain: list[int]) -> bool:
        """Say whether a process may go on by itself, or is held on purpose."""
        training = {each.pid for each in group}
        looks = {pid: blocked.look_at(pid, {}) for pid in chain}
        for pid, about in looks.items():
            if blocked.is_traced(pid) or about["call"] in blocked.SLEEPS:
                return True
            if about["call"] is None and about["wchan"] is None and about["state"] != "T":
                return True  # nothing is known of it
            if pid in training and (
                about["state"] in ("T", "t", "R", "Z") or about["call"] in blocked.WRITES
            ):
                return True
        return any(self._waits_elsewhere(each, group, looks[each.pid]) for each in late)

    def _waits_elsewhere(self, late: Progress, group: list[Progress], about: About) -> bool:
        """Say whether it may wait for what nobody here sees: a request, a key, ranks on other hosts."""
        own = self._chain([late.pid])
        workers = any(each.worker is not None and each.pid in own for each in self._known.values())
        waits = about["call"] in blocked.POLLS or about["call"] in blocked.WAITS_FOR_CHILD
        # A server, a prompt, a notebook between cells: it asks nobody for a batch.
        if waits and not workers:
            return True
        if about.get("descriptor") == 0 and str(about["file"]).startswith("/dev/"):
            return True
        here = len({each.rank for each in group})
        return not waits and late.rank is not None and (late.world_size or 1) > here

    def _tell(self, hung: list[Progress], now_ns: int) -> About:
        by_pid = {each.pid: each for each in self._known.values()}
        late = [each for each in hung if self._is_late(each, now_ns)]
        mains = {each.pid: each for each in hung}
        processes = []
        for main in sorted(hung, key=lambda each: (each.rank or 0, each.pid)):
            self._told[main.directory] = main.batches
            for pid in self._chain([main.pid]):
                own = by_pid.get(pid)
                if pid != main.pid and (own is None or pid in mains):
                    continue  # a helper of multiprocessing, a shell; a rank that another one started
                role = _role(main) if pid == main.pid or own is None else f"worker {own.worker}"
                about = blocked.look_at(pid, {"role": role, "of": main.pid})
                asked = (
                    own is not None
                    and own.stacks is not None
                    and about["state"] not in ("D", "T", "t")
                    and self._tree.members[pid].is_the_same()
                    and blocked.ask_for_stacks(pid, own.directory, own.stacks)
                )
                about["stack"] = blocked.stack_of(own.directory) if asked and own is not None else None
                about["text"] = sentence(about)
                processes.append(about)
        waited_ns = max(now_ns - main.last_ns for main in late)
        processes.sort(key=lambda about: waits_for_others(about) or bool(collective_of(about)))
        return {
            "type": "hang",
            "mono_ns": now_ns,
            "waited_ns": waited_ns,
            "batches": {str(main.pid): main.batches for main in hung},
            "processes": processes,
            "text": in_words(waited_ns, processes),
        }


def _role(main: Progress) -> str:
    return "training" if main.rank is None or main.world_size in (None, 1) else f"rank {main.rank}"


def _is_quiet(before: Activity, now: Activity, passed_ns: int) -> bool:
    """Say whether the same threads used less than `_BUSY` of a core, read and wrote nothing, hardly woke."""
    if before.keys() != now.keys():
        return False
    cpu_ns = sum(now[each][0] - before[each][0] for each in now)
    grown = [(now[each][1] - before[each][1], now[each][2] - before[each][2]) for each in now]
    idle = all(size <= _OWN_BYTES and wakes <= _WAKES for size, wakes in grown)
    return idle and cpu_ns < _BUSY * passed_ns


def in_words(waited_ns: int, processes: list[About]) -> list[str]:
    """Return the lines that tell a hang: what each process is in, those that wait for others last."""
    return [
        f"HUNG: no batch for {waited_ns / 1e9:.0f} s, and no process computes, reads or writes",
        *(f"  {about['role']} (pid {about['pid']}) {about['text']}" for about in processes),
        *(f"  {line}" for line in differing(processes)),
    ]


def tell_launcher(lines: list[str]) -> None:
    """Write lines to the launcher's standard error, where that loses nothing of what stands there.

    It is opened anew: a descriptor that the sidecar kept would hold a pipe open beyond the launcher's end.
    """
    path = f"/proc/{os.getppid()}/fd/2"
    with suppress(OSError, ValueError, IndexError):
        with open(f"/proc/{os.getppid()}/fdinfo/2") as file:
            flags = next(int(line.split()[1], 8) for line in file if line.startswith("flags:"))
        if S_ISREG(os.stat(path).st_mode) and not flags & _APPENDS:
            return
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            os.write(descriptor, "".join(f"iotrace: {line}\n" for line in lines).encode(errors="replace"))
        finally:
            os.close(descriptor)


def store(directory: str, record: About) -> None:
    """Append the record to the sampler's file of hangs."""
    with suppress(OSError):
        descriptor = os.open(
            f"{directory}/{names.HANGS}",
            os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC,
            names.FILE_MODE,
        )
        try:
            os.write(descriptor, (json.dumps(record, separators=(",", ":")) + "\n").encode())
        finally:
            os.close(descriptor)
