"""A whole session as plain data: what reports and timelines start from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from iotrace.session import names
from iotrace.session.manifest import Manifest, Outcome, read_manifest, read_outcome
from iotrace.sources.dftracer import PosixCalls, read_posix
from iotrace.sources.paths import Paths, is_code
from iotrace.sources.records import IteratorStart, Mark, Process, Worker, read_processes


@dataclass(frozen=True)
class Rank:
    """A training process and its loader workers."""

    number: int
    main: Process
    workers: list[Process]

    @property
    def processes(self) -> list[Process]:
        """The training process first."""
        return [self.main, *self.workers]


@dataclass(frozen=True)
class Session:
    """One traced run. `calls` are POSIX calls on data: the program's own code is left out."""

    path: Path
    manifest: Manifest
    outcome: Outcome | None
    processes: list[Process]
    calls: PosixCalls
    paths: Paths

    @cached_property
    def ranks(self) -> list[Rank]:
        """Every process that iterated a loader or marked steps; the first one of all where none did."""
        # A worker whose dataset iterates a loader of its own stays a worker.
        trainers = [
            process
            for process in self.processes
            if (process.of_type(IteratorStart) or process.of_type(Mark)) and not process.of_type(Worker)
        ]
        if not trainers:
            trainers = self.processes[:1]
        told = [trainer.identity.rank for trainer in trainers]
        # The environment's ranks hold where each is told once; several programs of one run share them.
        distinct = None not in told and len(set(told)) == len(told)
        numbers = [rank for rank in told if rank is not None] if distinct else list(range(len(trainers)))
        found = [
            Rank(number, trainer, self._workers_of(trainer))
            for number, trainer in zip(numbers, trainers, strict=True)
        ]
        return sorted(found, key=lambda rank: rank.number)

    def _workers_of(self, trainer: Process) -> list[Process]:
        pids = {pid for start in trainer.of_type(IteratorStart) for pid in start.pids}
        return [
            process
            for process in self.processes
            if process is not trainer
            and process.of_type(Worker)
            and (process.pid in pids or process.identity.ppid == trainer.pid)
        ]


def open_session(path: Path, progress: Callable[[str], None] = lambda _: None) -> Session:
    """Read the session at `path`; SessionError where there is none that this version reads."""
    manifest = read_manifest(path)
    progress("reading the records of the processes")
    processes = read_processes(path)
    progress("reading the POSIX calls")
    calls = read_posix(path / names.POSIX)
    paths = Paths(path, manifest.cwd, {*calls.files, *_read_path_files(processes)})
    prefixes = {prefix for process in processes for prefix in process.identity.prefixes}
    session_prefix = str(path.resolve())
    is_data = np.array(
        [
            not is_code(paths.absolute(file), prefixes)
            and not paths.absolute(file).startswith(session_prefix + "/")
            for file in calls.files
        ],
        dtype=np.bool_,
    )
    data_calls = calls.where(is_data[calls.file]) if len(calls) else calls
    return Session(path, manifest, read_outcome(path), processes, data_calls, paths)


def _read_path_files(processes: list[Process]) -> set[str]:
    """The files that the agents' spans name."""
    return {
        process.texts[number]
        for process in processes
        for number in np.unique(process.spans["file"]).tolist()
        if number in process.texts
    }
