"""Tell a hang once: no batch for long, and nothing that could make one computes, reads or writes.

A job that is slow is never called hung. Anything that says that it may go on by itself ends the suspicion:
CPU time, a byte read or written, a sleep, a write, a stopped or debugged training process, a prompt.
Where CPU time is all that ends it, `computing` judges.

Find processes that compute without a step: on a CPU all the time, in one place of the program.

Such a process may be right: a step may be long. So it is called what it is, and never a hang.
"""

from __future__ import annotations

import re
from contextlib import suppress

from iotrace.launch.telemetry.hangs import blocked
from iotrace.launch.telemetry.hangs.blocked import About, OpenCalls
from iotrace.launch.telemetry.hangs.telling import (
    Progress,
    find,
    find_collective,
    function_name,
    make_record,
    sentence,
    sentence_of_busy,
    waits_for_others,
)
from iotrace.launch.telemetry.tree import Tree
from iotrace.session import names
from iotrace.session.hangs import is_foreign

LEAST_NS = 60_000_000_000  # without a batch
DUMPS = 3  # the same, one after the other
MOST_DUMPS = 6  # of a process, in its life
_BUSY_SHARE = 0.9  # of the time: on a CPU, or ready for one
# What takes as long as it likes: compilers, what writes checkpoints, and functions whose names say so.
_LONG = (
    *("/torch/_dynamo/", "/torch/_inductor/", "/torch/_functorch/", "/torch/export/", "/triton/"),
    *("/torch/serialization.py", "/torch/distributed/checkpoint/", "/safetensors/", "/pickle.py"),
)
_VALIDATES = ("val", "valid", "validate", "validation", "eval", "evaluate", "evaluation", "test", "predict")
_LONG_WORDS = frozenset({*_VALIDATES, "save", "checkpoint", "compile", "export"})
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


class Computing:
    """What the processes of a loop were in at each sample: `stacks` by pid, the dumps in order."""

    def __init__(self) -> None:
        self.stacks: dict[int, list[list[str]]] = {}
        self._used_ns: dict[int, int] = {}
        self._written = -1

    def busy(self, chain: list[int], passed_ns: int) -> set[int]:
        """Return the processes whose main thread has been on a CPU, or ready for one, since the last call."""
        used_ns = {pid: used for pid in chain if (used := blocked.wanted_cpu_ns(pid)) is not None}
        before, self._used_ns = self._used_ns, used_ns
        least_ns = _BUSY_SHARE * passed_ns
        return {pid for pid, used in used_ns.items() if pid in before and used - before[pid] >= least_ns}

    def forget(self) -> None:
        """Forget the dumps: something else has happened."""
        self.stacks.clear()

    def judge(self, busy: set[int], known: dict[int, Progress]) -> bool:
        """Ask each busy process for its stack; say whether all were in one place three times."""
        written = sum(each.written() for each in known.values())
        if written != self._written or not busy <= known.keys():
            self._written = written  # a sample, a forward pass, a step: it gets on
            self.forget()
            return False
        if self.stacks.keys() - busy:
            self.forget()
        for pid in busy:
            stack = dump(known[pid])
            if not stack or takes_long(stack):
                self.forget()
                return False
            self.stacks.setdefault(pid, []).append(stack)
        return all(place(self.stacks[pid][-DUMPS:]) for pid in busy)


def dump(progress: Progress, most: int = MOST_DUMPS) -> list[str]:
    """Ask a process for its stack; empty where it was asked `most` times, or does not say."""
    if progress.stacks is None or progress.dumps >= most:
        return []
    progress.dumps += 1
    before = progress.dumped
    if not blocked.ask_for_stacks(progress.pid, progress.directory, progress.stacks, before):
        return []
    stack, progress.dumped = blocked.read_stack(progress.directory, before)
    return stack


def place(dumps: list[list[str]]) -> list[str]:
    """Return the program's frames that `DUMPS` dumps share, innermost first; empty where they differ.

    Alike: the same calls, each from the same line. Within the innermost function the line may differ.
    """
    if len(dumps) < DUMPS:
        return []
    stacks = [_own(stack)[::-1] for stack in dumps]
    depth = min(map(len, stacks))
    if not depth:
        return []
    calls = depth if len(set(map(len, stacks))) > 1 else depth - 1
    first = stacks[0]
    for other in stacks[1:]:
        if other[:calls] != first[:calls]:
            return []
        if _function(other[depth - 1]) != _function(first[depth - 1]):
            return []
    return stacks[-1][:depth][::-1]


def takes_long(stack: list[str]) -> bool:
    """Say whether a stack is that of a compiler, a checkpoint or a validation, as far as names tell."""
    for line in stack:
        words = {word.lower() for word in _WORD.findall(function_name(line))}
        if words & _LONG_WORDS or any(part in line for part in _LONG):
            return True
    return False


def _own(stack: list[str]) -> list[str]:
    frames = [line for line in stack if line.startswith("File ")]
    return [line for line in frames if not is_foreign(line)] or frames


def _function(line: str) -> tuple[str, str]:
    return line.partition(", line ")[0], function_name(line)


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

Activity = dict[tuple[int, int], tuple[int, int, int]]


class _Suspicion:
    """Training processes without batches: what the threads of their chain had done at the last sample."""

    def __init__(self) -> None:
        self.sampled_ns = 0
        self.quiet = -1
        self.activity: Activity = {}
        self.computing = Computing()
        self.busy: set[int] = set()
        self.elsewhere = False  # a rank waits, and may do so for one on another host

    @property
    def kind(self) -> str:
        """What it is, once it is certain; see `session.hangs`."""
        return "computing" if self.busy else "waiting" if self.elsewhere else "hung"


class HangWatch:
    """Watches the training processes of a host's launches; `check` returns what is to be reported.

    Ranks of one job wait for each other: they are one group, and hang together or not at all.
    """

    def __init__(self, tree: Tree, least_ns: int = _LEAST_NS, sample_ns: int = _SAMPLE_NS) -> None:
        self._tree = tree
        self._least_ns, self._sample_ns = least_ns, sample_ns
        self._computing_ns = max(least_ns, LEAST_NS)
        self._known: dict[str, Progress] = {}
        self._suspected: dict[str, _Suspicion] = {}
        self._told: dict[str, int] = {}  # by directory: how many batches it had
        self._open_calls = OpenCalls()
        self._found_ns = self._now_ns = 0

    def check(self, now_ns: int) -> About | None:
        """Look at what was written; return a ``hang`` record where one is certain, once for each process."""
        self._now_ns = now_ns
        if not self._suspected:
            self._open_calls.forget()
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
        # torchrun inherits the scheduler's number, too: what started a rank is none.
        parents = {blocked.read_parent(each.pid) for each in alive if each.rank is not None}
        for each in alive:
            if each.trains and (each.batches or each.pid not in parents):
                groups.setdefault("ranks" if each.rank is not None else each.directory, []).append(each)
        told = [name for name, group in groups.items() if self._hangs(name, group, now_ns)]
        kinds = {name: self._suspected[name].kind for name in told}
        hung = [each for name in told if kinds[name] == kinds[told[0]] for each in groups[name]]
        return self._tell(hung, kinds[told[0]], now_ns) if hung else None

    def _is_late(self, progress: Progress, now_ns: int, least_ns: int | None = None) -> bool:
        return (
            progress.batches >= _LEAST_BATCHES
            and not progress.exhausted
            and progress.directory not in self._told
            and now_ns - progress.last_ns >= progress.longest_ns(least_ns or self._least_ns, _FACTOR)
        )

    def _hangs(self, name: str, group: list[Progress], now_ns: int) -> bool:
        late = [each for each in group if self._is_late(each, now_ns)]
        if not late:
            self._suspected.pop(name, None)
            return False
        suspicion = self._suspected.setdefault(name, _Suspicion())
        if now_ns - suspicion.sampled_ns < self._sample_ns:
            return False
        passed_ns, suspicion.sampled_ns = now_ns - suspicion.sampled_ns, now_ns
        try:
            chain = self._chain([each.pid for each in group])
            now = self._activity(chain)
            busy = suspicion.computing.busy(chain, passed_ns)
            goes_on = self._may_go_on(late, group, chain, busy)
            suspicion.elsewhere = self._waits_for_others(late, group, busy)
        except (OSError, ValueError, KeyError, IndexError):  # the kernel hides it: nothing is reported
            self._suspected.pop(name, None)
            return False
        before, suspicion.activity = suspicion.activity, now
        quiet = not goes_on and _is_quiet(before, now, passed_ns, busy)
        suspicion.quiet = suspicion.quiet + 1 if quiet or (suspicion.quiet < 0 and not goes_on) else -1
        suspicion.busy = busy if quiet else set()
        if not suspicion.busy:
            suspicion.computing.forget()
            return suspicion.quiet >= _SAMPLES
        suspicion.quiet = 0
        return self._computes(suspicion, late, now_ns)

    def _computes(self, suspicion: _Suspicion, late: list[Progress], now_ns: int) -> bool:
        own = {each.pid: each for each in self._known.values() if each.pid in suspicion.busy}
        if any(each.evaluates or not self._is_late(each, now_ns, self._computing_ns) for each in late):
            return False
        if not all(self._tree.members[pid].is_the_same() for pid in own):
            return False
        return suspicion.computing.judge(suspicion.busy, own)

    def _chain(self, pids: list[int]) -> list[int]:
        """Return the processes and all that they started, which may make their batches."""
        parents = {each: blocked.read_parent(each) for each in self._tree.members}
        chain = list(pids)
        for one in chain:
            chain += [each for each, parent in parents.items() if parent == one and each not in chain]
        return chain

    def _activity(self, chain: list[int]) -> Activity:
        known = {each.pid: each for each in self._known.values()}
        activity: Activity = {}
        for pid in chain:
            own = known.get(pid)
            with suppress(FileNotFoundError, ProcessLookupError):
                activity |= blocked.activity(pid, own.writer if own else 0)
            if own is not None and (pid, pid) in activity:  # the stacks that it wrote for us
                cpu_ns, size, wakes = activity[pid, pid]
                activity[pid, pid] = cpu_ns, size - own.dumped, wakes
        return activity

    def _look_at(self, pid: int, known: About) -> About:
        """Return what /proc says of a process, and our recorder."""
        about = blocked.look_at(pid, known)
        member = self._tree.members.get(pid)
        if member is not None:
            self._open_calls.add_to(about, member.launch, member.started_ns, self._now_ns)
        return about

    def _may_go_on(
        self, late: list[Progress], group: list[Progress], chain: list[int], busy: set[int]
    ) -> bool:
        """Say whether a process may go on by itself, or is held on purpose; for `busy` ones that is known."""
        training = {each.pid for each in group}
        looks = {pid: self._look_at(pid, {}) for pid in chain}
        for pid, about in looks.items():
            if blocked.is_traced(pid):
                return True
            if pid in busy:
                continue
            if about["call"] in blocked.SLEEPS:
                return True
            if about["call"] is None and about["wchan"] is None and about["state"] != "T":
                return True  # nothing is known of it
            goes_on = about["state"] in ("T", "t", "R", "Z") or about["call"] in blocked.WRITES
            if pid in training and goes_on:
                return True
        if busy & training and any(self._has_ranks_elsewhere(each, group) for each in group):
            return True  # it may ask again and again whether another host's rank has come
        return any(self._waits_elsewhere(each, looks[each.pid]) for each in late if each.pid not in busy)

    def _has_ranks_elsewhere(self, one: Progress, group: list[Progress]) -> bool:
        return one.rank is not None and (one.world_size or 1) > len({each.rank for each in group})

    def _waits_elsewhere(self, late: Progress, about: About) -> bool:
        """Say whether it may wait for what nobody here sees: a request, a key."""
        # A server, a prompt, a notebook between cells: it asks nobody for a batch.
        if _polls(about) and not self._has_workers(late):
            return True
        return about.get("descriptor") == 0 and str(about["file"]).startswith("/dev/")

    def _has_workers(self, one: Progress) -> bool:
        own = self._chain([one.pid])
        return any(each.worker is not None and each.pid in own for each in self._known.values())

    def _waits_for_others(self, late: list[Progress], group: list[Progress], busy: set[int]) -> bool:
        """Say whether no rank here waits for its own workers, and the job has ranks on other hosts."""
        return all(
            each.pid not in busy
            and self._has_ranks_elsewhere(each, group)
            and not _polls(self._look_at(each.pid, {}))
            for each in late
        )

    def _tell(self, hung: list[Progress], kind: str, now_ns: int) -> About:
        by_pid = {each.pid: each for each in self._known.values()}
        late = [each for each in hung if self._is_late(each, now_ns)]
        mains = {each.pid: each for each in hung}
        shared: dict[int, list[list[str]]] = {}
        if kind == "computing":
            for one in self._suspected.values():
                shared |= one.computing.stacks
        processes = []
        for main in sorted(hung, key=lambda each: (each.rank or 0, each.pid)):
            self._told[main.directory] = main.batches
            for pid in self._chain([main.pid]):
                own = by_pid.get(pid)
                if pid != main.pid and (own is None or pid in mains):
                    continue  # a helper of multiprocessing, a shell; a rank that another one started
                role = _role(main) if pid == main.pid or own is None else f"worker {own.worker}"
                about = self._look_at(pid, {"role": role, "of": main.pid})
                about["stack"] = None
                if pid == main.pid and role != "training":
                    about["rank"] = main.rank
                if pid in shared:
                    about["stack"], frames = shared[pid][-1], place(shared[pid][-DUMPS:])
                    about["text"] = sentence_of_busy(about, frames, blocked.uses_device(pid))
                else:
                    can_answer = about["state"] not in ("D", "T", "t")
                    if own is not None and can_answer and self._tree.members[pid].is_the_same():
                        about["stack"] = dump(own, MOST_DUMPS + 1) or None
                    about["text"] = sentence(about, now_ns)
                if about["stack"] and own is not None:
                    about["stacks"] = f"{own.directory}/{names.STACKS}"
                processes.append(about)
        waited_ns = max(now_ns - main.last_ns for main in late)
        if shared:
            processes.sort(key=lambda about: about["pid"] not in shared)
        else:
            processes.sort(key=lambda about: waits_for_others(about) or bool(find_collective(about)))
        return {
            **make_record(waited_ns, processes, kind),
            "mono_ns": now_ns,
            "world_size": max((main.world_size or 1 for main in hung), default=1),
            "batches": {str(main.pid): main.batches for main in hung},
        }


def _polls(about: About) -> bool:
    return about["call"] in blocked.POLLS or about["call"] in blocked.WAITS_FOR_CHILD


def _role(main: Progress) -> str:
    return "training" if main.rank is None or main.world_size in (None, 1) else f"rank {main.rank}"


def _is_quiet(before: Activity, now: Activity, passed_ns: int, busy: set[int]) -> bool:
    """Say whether the same threads used less than `_BUSY` of a core, read and wrote nothing, hardly woke.

    Of processes that are `busy` threads may use CPUs, and wake.
    """
    if before.keys() != now.keys():
        return False
    others = [each for each in now if each[0] not in busy]
    cpu_ns = sum(now[each][0] - before[each][0] for each in others)
    if any(now[each][1] - before[each][1] > _OWN_BYTES for each in now):
        return False
    idle = all(now[each][2] - before[each][2] <= _WAKES for each in others)
    return idle and cpu_ns < _BUSY * passed_ns
