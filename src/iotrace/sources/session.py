"""A whole session as plain data: what reports and timelines start from."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from iotrace.session import names, plain_reads
from iotrace.session.liveness import Launch, joint_exit_code, joint_state, read_launches
from iotrace.session.manifest import Costs, Manifest, read_document
from iotrace.session.reading import left_out
from iotrace.sources.clocks.anchors import Clocks
from iotrace.sources.dftracer.call_reader import OwnLogs, read_posix
from iotrace.sources.paths import Paths, is_code
from iotrace.sources.posix_calls import FileSums, PosixCalls
from iotrace.sources.processes import Process, read_processes
from iotrace.sources.recorder.reader import read_recorded
from iotrace.sources.records import Distributed, IteratorStart, OwnLog, PoolWorker, Tick, Worker
from iotrace.sources.samples import read_sidecars
from iotrace.sources.stolen_time import add_stolen_time
from iotrace.sources.telemetry import Telemetry, read_telemetry

_OF_PROGRAM = ("forked", "spawned", "main")  # roles of processes that the program itself starts


class Rank(msgspec.Struct, frozen=True):
    """A training process and its loader workers; `incarnation` counts the restarts of an elastic job.

    `numbered`: a process group or a launcher gave the number, else the processes are counted from 0.
    """

    number: int
    world_size: int | None
    incarnation: int
    main: Process
    workers: list[Process]
    numbered: bool = True

    @property
    def processes(self) -> list[Process]:
        """The training process first."""
        return [self.main, *self.workers]

    @property
    def name(self) -> str:
        """What files of this rank are called."""
        restart = f"-restart{self.incarnation}" if self.incarnation else ""
        return f"rank{self.number}{restart}"


class Session(msgspec.Struct, frozen=True, dict=True):
    """One traced job. `calls` are POSIX calls on data: the program's own code is left out."""

    path: Path
    launches: list[Launch]
    processes: list[Process]
    calls: PosixCalls
    paths: Paths
    telemetry: list[Telemetry] = []
    costs: Costs | None = None
    clocks: Clocks = msgspec.field(default_factory=Clocks)
    problems: list[str] = []  # what could not be read of it; its parts list more of their own

    @property
    def manifest(self) -> Manifest:
        """The first launcher's manifest: what holds for the whole session is the same in all of them."""
        return self.launches[0].manifest

    @property
    def ended(self) -> bool:
        """Whether the end of every launch was seen."""
        return all(launch.outcome is not None for launch in self.launches)

    @property
    def state(self) -> str:
        """``running`` where one launch runs, else ``killed`` or ``unknown`` where one is; else ``ended``."""
        return joint_state(self.launches)

    @property
    def exit_code(self) -> int | None:
        """The first exit code that is not 0; None where an end was not seen, or has no code."""
        return joint_exit_code(self.launches)

    @property
    def signal(self) -> int | None:
        """The signal that ended the command whose exit code is the session's."""
        ends = [launch.outcome for launch in self.launches if launch.outcome is not None]
        return next((end.signal for end in ends if end.exit_code and end.exit_code == self.exit_code), None)

    @property
    def oom_kills(self) -> int | None:
        """How many processes a control group lost for lack of memory, at most; None where it is not known."""
        ends = [launch.outcome for launch in self.launches if launch.outcome is not None]
        return max((end.oom_kills for end in ends if end.oom_kills is not None), default=None)

    @property
    def posix_on(self) -> bool:
        """Whether POSIX calls were traced."""
        return any(launch.manifest.posix.on for launch in self.launches)

    @property
    def accelerators(self) -> list[str]:
        """The accelerators' device nodes on any of the hosts."""
        return sorted({node for launch in self.launches for node in launch.manifest.accelerators})

    @property
    def posix_by(self) -> str:
        """Who traced POSIX calls: `names.RECORDER` or `names.DFTRACER`."""
        return self.manifest.posix.by

    def calls_of(self, process: Process) -> PosixCalls:
        """The POSIX calls of one process."""
        if (process.identity.node, process.pid) in self.namesakes:
            return self._no_calls
        nodes = self.calls.nodes
        # A pid means something on its own host alone; calls of one host need not name it.
        node = process.identity.node if len(nodes) > 1 else next(iter(nodes), "")
        return self._calls_by_process.get((node, process.pid), self._no_calls)

    def sums_of(self, processes: Collection[Process]) -> FileSums | None:
        """What these processes did with each file, where our recorder kept that."""
        sums, nodes = self.calls.sums, self.calls.nodes
        if sums is None:
            return None
        number = {name: number for number, name in enumerate(nodes)}
        other = 0 if len(nodes) == 1 else -1  # one host goes by any name
        wanted = {(number.get(each.identity.node, other), each.pid) for each in processes}
        keep = [pair in wanted for pair in zip(sums.node.tolist(), sums.pid.tolist(), strict=True)]
        return sums.where(np.array(keep, np.bool_))

    @cached_property
    def namesakes(self) -> set[tuple[str, int]]:
        """Host and number of processes that lived at once: of machines or containers of one name.

        Nothing tells which of them made a call: these have none.
        """
        several = [rows for rows in self._by_pid.values() if len(rows) > 1]
        groups = [[self.processes[row] for row in rows] for rows in several]
        return {(own[0].identity.node, own[0].pid) for own in groups if any(map(_at_once, own, own[1:]))}

    @cached_property
    def _calls_by_process(self) -> dict[tuple[str, int], PosixCalls]:
        return self.calls.by_process()

    @cached_property
    def _no_calls(self) -> PosixCalls:
        return self.calls.where(np.zeros(len(self.calls), dtype=np.bool_))

    plain_reads = staticmethod(plain_reads.load)

    def telemetry_of(self, process: Process) -> Telemetry | None:
        """The samples of the host of `process`, preferably by the sidecar that saw the process."""
        there = [item for item in self.telemetry if item.sampler.node == process.identity.node]
        seen = [item for item in there if item.process_of(process) is not None]
        return next(iter([*seen, *there]), None)

    @cached_property
    def ranks(self) -> list[Rank]:
        """Every process that iterated a loader or called `iotrace.step`; those that trained where none did.

        With them those of their process group that trained on what others sent. The first where none trained.
        """
        # A worker whose dataset iterates a loader of its own stays a worker.
        processes = [process for process in self.processes if process.worker is None]
        trainers = [process for process in processes if process.takes_steps]
        if any(process.of_type(Distributed) for process in trainers):
            trainers = [process for process in processes if process.takes_steps or _is_fed(process)]
        if not trainers:
            trainers = [each for each in processes if each.of_type(IteratorStart)]
            trainers = trainers or [*filter(_trained, processes)] or self.processes[:1]
        numbers = [rank_of(trainer) for trainer in trainers]
        incarnations = [trainer.identity.incarnation for trainer in trainers]
        # Recorded ranks count where each occurs once: several programs of one run share their variables.
        ranks = [(rank, restart) for (rank, _), restart in zip(numbers, incarnations, strict=True)]
        numbered = None not in [rank for rank, _ in numbers] and len(set(ranks)) == len(ranks)
        if not numbered:
            ranks = [(number, 0) for number in range(len(trainers))]
        job_ranks = [
            Rank(number or 0, world_size, restart, trainer, self._find_workers(trainer), numbered)
            for trainer, (number, restart), (_, world_size) in zip(trainers, ranks, numbers, strict=True)
        ]
        return sorted(job_ranks, key=lambda rank: (rank.number, rank.incarnation))

    def role_of(self, process: Process) -> str:
        """``rank`` (it trains), ``loader worker``, ``launcher`` (it started ranks), ``main``, ``helper``."""
        if process.of_type(Worker) or (process.worker is not None and id(process) in self._workers):
            return "loader worker"
        if id(process) in self._mains:
            steps = process.of_type(IteratorStart) or process.takes_steps or _is_fed(process)
            return "rank" if steps else "main"
        if any(id(child) in self._mains for child in self.children_of(process)):
            return "launcher"
        return "main" if process.identity.role == "main" else "helper"

    def numbered(self, node: str, pid: int) -> list[Process]:
        """The processes of a number, which means something on its own host alone, in the order of starts."""
        return [self.processes[row] for row in self._by_pid.get((node, pid), ())]

    def children_of(self, process: Process) -> list[Process]:
        """The processes that it started itself, in the order of their starts."""
        return [self.processes[row] for row in self._by_ppid.get((process.identity.node, process.pid), ())]

    def _find_workers(self, trainer: Process) -> list[Process]:
        node = trainer.identity.node
        rows = {*self._by_ppid.get((node, trainer.pid), ())}
        for pid in {pid for start in trainer.of_type(IteratorStart) for pid in start.pids}:
            rows.update(self._by_pid.get((node, pid), ()))
        members = [self.processes[row] for row in sorted(rows)]
        for process in members:  # which grows: a stage may start processes of its own
            if process.of_type(PoolWorker):
                seen = {*map(id, members)}
                members += [each for each in self.children_of(process) if id(each) not in seen]
        if any(not start.pool for start in trainer.of_type(IteratorStart)):
            # A pool next to a loader may do anything, unless what it makes is taken within the loader.
            taken = {*trainer.rows(names.HANDED_ROW)["queue"].tolist()}
            members = [
                each
                for each in members
                if each.of_type(Worker)
                or any(one.pool in taken for one in each.of_type(PoolWorker))
                or (each.spans["kind"] == names.KIND_CALLBACK).any()  # the loader's library asks it
            ]
        workers = [process for process in members if process is not trainer and process.worker is not None]
        if workers or trainer.of_type(IteratorStart) or len(trainer.rows(names.HANDED_ROW)):
            return workers
        # Nothing tells what feeds the loop: the program's other processes may, by memory that they share.
        own = [process for process in members if process.identity.role in _OF_PROGRAM]
        return [process for process in own if not len(process.rows(names.ROUND_ROW))]

    @cached_property
    def _mains(self) -> set[int]:
        return {id(rank.main) for rank in self.ranks}

    @cached_property
    def _workers(self) -> set[int]:
        return {id(worker) for rank in self.ranks for worker in rank.workers}

    @cached_property
    def _by_pid(self) -> dict[tuple[str, int], list[int]]:
        return _rows((process.identity.node, process.pid) for process in self.processes)

    @cached_property
    def _by_ppid(self) -> dict[tuple[str, int], list[int]]:
        return _rows((process.identity.node, process.identity.ppid) for process in self.processes)


def _rows(keys: Iterable[tuple[str, int]]) -> dict[tuple[str, int], list[int]]:
    """The rows of each key."""
    rows: dict[tuple[str, int], list[int]] = {}
    for row, key in enumerate(keys):
        rows.setdefault(key, []).append(row)
    return rows


def _at_once(one: Process, other: Process) -> bool:
    """Whether two processes of one pid ran at the same time, and not one after the other as with an exec."""
    if one.identity.boot_id != other.identity.boot_id:
        return bool(one.identity.boot_id and other.identity.boot_id)
    first, second = sorted((one, other), key=lambda process: process.identity.clock[0])
    last_ns = max([first.identity.clock[0], *(tick.clock[0] for tick in first.of_type(Tick))])
    return bool(second.identity.clock[0] < last_ns)


def _is_fed(process: Process) -> bool:
    """Whether a process of a process group trained."""
    return bool(process.of_type(Distributed)) and _trained(process)


def _trained(process: Process) -> bool:
    return len(process.rows(names.ROUND_ROW)) > 0


def rank_of(process: Process) -> tuple[int | None, int | None]:
    """Rank and world size, by the program's process group, else by its launcher's variables."""
    groups = process.of_type(Distributed)
    if groups:
        return groups[-1].rank, groups[-1].world_size
    return process.identity.rank, process.identity.world_size


def open_session(path: Path, progress: Callable[[str], None] = lambda _: None) -> Session:
    """Read the session at `path`.

    Raises:
        SessionError: there is none that this version reads.
    """
    launches = read_launches(path)
    progress("reading the records of the processes")
    problems = list(left_out(path))
    sidecars = read_sidecars(path, problems)
    processes, clocks = read_processes(path, sidecars, problems)
    progress("reading the POSIX calls")
    posix = [launch.path / names.POSIX for launch in launches]
    calls = read_calls(posix, launches[0].manifest, processes, clocks)
    paths = Paths(path, launches[0].manifest.cwd, {*calls.files, *read_path_files(processes)})
    prefixes = {prefix for process in processes for prefix in process.identity.prefixes}
    session_prefix = f"{path.resolve()}/"
    is_data = np.array(
        [is_data_file(file, paths, prefixes, session_prefix) for file in calls.files], dtype=np.bool_
    )
    data_calls = select_data_calls(calls, is_data)
    progress("reading the telemetry")
    telemetry = read_telemetry(sidecars, clocks)
    costs = read_document(path / names.COSTS, Costs)
    for launch in launches:
        if launch.outcome is None and (launch.path / names.OUTCOME).exists():
            problems.append(f"{names.OUTCOME} cannot be read: how the run ended is not known")
    session = Session(path, launches, processes, data_calls, paths, telemetry, costs, clocks, problems)
    for process in processes:
        sampled = session.telemetry_of(process)
        if sampled is not None:
            add_stolen_time(process, sampled.host)
    return session


def read_calls(
    directories: list[Path], manifest: Manifest, processes: list[Process], clocks: Clocks
) -> PosixCalls:
    """The calls in `directories`, by whoever traced them; in the session's time."""
    if manifest.posix.by == names.RECORDER:
        return read_recorded(directories, clocks)
    return read_posix(*directories, own_logs=_own_logs(processes), clocks=clocks)


def select_data_calls(calls: PosixCalls, is_data: npt.NDArray[np.bool_]) -> PosixCalls:
    """Leave out calls on other files than data; `is_data` has one bool for each file."""
    if calls.sums is not None and len(calls.sums.file):
        calls = replace(calls, sums=calls.sums.where(is_data[calls.sums.file]))
    return calls.where(is_data[calls.file]) if len(calls) else calls


def is_data_file(file: str, paths: Paths, prefixes: Collection[str], session_prefix: str) -> bool:
    """Tell whether a file is data: no code, which is below `prefixes`, and no part of the session."""
    absolute = paths.absolute(file)
    return not is_code(absolute, prefixes) and not absolute.startswith(session_prefix)


def _own_logs(processes: list[Process]) -> OwnLogs:
    since_ns: dict[str, int] = {}
    for process in processes:
        for record in process.of_type(OwnLog):
            if not record.ended:
                began_ns = process.clock.lowest_stamp(record.mono_ns)
                since_ns[record.prefix] = min(began_ns, since_ns.get(record.prefix, began_ns))
    return OwnLogs(since_ns, frozenset(process.pid for process in processes))


def read_path_files(processes: list[Process]) -> set[str]:
    """The files that the agents' spans name."""
    return {file for process in processes for file in process.span_files.values()}
