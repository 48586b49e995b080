"""What failed in a run, the cause first: exceptions that nothing caught, processes that a signal ended."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from signal import Signals
from typing import Protocol

import msgspec
import numpy as np

from iotrace.analysis.loop.deliveries import LoaderRun
from iotrace.analysis.loop.steps import Loop
from iotrace.analysis.results import EXIT, Failure
from iotrace.session import names
from iotrace.session.names import KIND_ITEM, KIND_MAPPED, KIND_READ_PATH
from iotrace.sources.processes import Process
from iotrace.sources.records import Failure as Recorded, IteratorEnd, IteratorStart
from iotrace.sources.session import Rank, Session, rank_of

_SHOWN_NS = 5 * 10**9
_FRAME = re.compile(r'^([\s|]*)File "([^"]+)", line (\d+)(?:, in (.+))?$')
_ERROR = re.compile(r"^([\s|]*)([A-Za-z_][\w.]*)(?:: ?(.*))?$")
_WORDS = re.compile(r"\w")
# What torchrun says of a rank that a signal ended.
_SIGNALLED = re.compile(r"rank +: (\d+) .*\n +exitcode +: -(\d+) \(pid: (\d+)\)")
# The same of the one that failed first, and last told: a code that it ended with, such as that of os._exit.
_EXITED = re.compile(r"Root Cause.*?rank +: (\d+) .*?exitcode +: (\d+) +\(pid: (\d+)\)", re.DOTALL)
_CONTROLS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|[^\n\t -~\u00a0-\U0010ffff]")
# What torch says of a worker that a signal or its own code ended.
_DEAD_WORKER = re.compile(r"DataLoader worker \(pid(?:\(s\))? (\d+).*")
# These come from outside or from a defect; torchrun ends the other ranks by SIGTERM, and SIGABRT may follow.
_FIRST_SIGNALS = {Signals.SIGKILL, Signals.SIGSEGV, Signals.SIGBUS, Signals.SIGILL, Signals.SIGFPE}
# numpy's functions of which an exception is about the file that was read.
_OF_NUMPY = ("/npyio", "/_npyio", "/format.py", "/_format_impl.py")


class Traceback(msgspec.Struct, frozen=True):
    """What the text of a traceback says: the exception raised first, and the frames down to it."""

    error: str
    message: str
    frames: list[tuple[str, int, str]]  # file, line, function


class Trained(Protocol):
    """A rank's loaders and its loop, both made when they are asked for: few runs fail."""

    @property
    def rank(self) -> Rank:
        """The rank itself."""

    @property
    def loaders(self) -> list[LoaderRun]:
        """Its loaders."""

    @property
    def loop(self) -> Loop:
        """Its training loop."""


class _Run(msgspec.Struct, frozen=True):
    """The session, and the rank that each of its processes, by its id here, trains or reads for."""

    session: Session
    by_process: Mapping[int, Trained]


def timed_failures(session: Session, by_process: Mapping[int, Trained]) -> list[tuple[float, Failure]]:
    """List what failed, in order, each with its time in ns; -inf where a launcher told of it later.

    `by_process` has the rank that a process, by its id here, trains or reads for.

    The first is the cause, the others may follow from it. A worker's exception counts where its loop raised
    it, and took no batch afterwards.
    """
    run = _Run(session, by_process)
    found: list[tuple[float, Failure]] = []
    for process in run.session.processes:
        found += _of_process(run, process)
    found += _of_launches(run)
    return sorted(found, key=lambda each: each[0])


def shown_until(session: Session, at_ns: int) -> tuple[int, int]:
    """Return until when timelines show a failure, 5 s at most, and when the last command ended, ns."""
    ends_ns = [each.outcome.ended_ns for each in session.launches if each.outcome is not None]
    last_ns = max([at_ns, *ends_ns])
    return min(last_ns, at_ns + _SHOWN_NS), last_ns


def parse(text: str, error: str) -> Traceback:
    """Read the text of a traceback whose last exception is an `error`; of a nested one, the innermost's."""
    lines = text.split("\n")
    frames: list[tuple[str, int, str]] = []
    last, depth = -1, 0
    for number, line in enumerate(lines):
        frame = _FRAME.match(line)
        if frame is not None:
            frames.append((frame[2], int(frame[3]), frame[4] or ""))
            last, depth = number, len(frame[1])
    for number, line in enumerate(lines[last + 1 :], last + 1):
        said = _ERROR.match(line)
        if said is not None and len(said[1]) < max(depth, 1):
            message = said[3] or next(filter(_WORDS.search, lines[number + 1 :]), "").strip()
            dead_worker = _DEAD_WORKER.search(text)  # the first time it is named the signal is, too
            return Traceback(said[2], dead_worker[0].strip() if dead_worker else message, frames)
    return Traceback(error, "", frames)


def _of_process(run: _Run, process: Process) -> Iterator[tuple[float, Failure]]:
    records: list[Recorded] = process.of_type(Recorded)
    one = _rank_of(run, process)
    for record in records:
        ended_loop = record.index is not None and one is not None and _ended_loop(record, one.rank.main)
        if ended_loop or record.thread is not None:
            yield process.clock.to_session_ns(record.mono_ns), _of_record(run, process, record)
    whole = [each for each in records if each.index is None and each.thread is None]
    for record in whole[-1:]:  # a console shows several
        dead_worker = _DEAD_WORKER.search(record.text)
        pid = record.of_pid if dead_worker is None else int(dead_worker[1])
        about = next((each for each in run.session.processes if each.pid == pid), process)
        yield process.clock.to_session_ns(record.mono_ns), _of_record(run, about, record)
        for number, signal, pid in _SIGNALLED.findall(record.text):
            if int(signal) in _FIRST_SIGNALS:
                dead = next((each for each in run.session.processes if each.pid == int(pid)), None)
                yield float("-inf"), _of_signal(run, int(signal), dead, int(number))
        for number, code, pid in _EXITED.findall(record.text):
            left = next((each for each in run.session.processes if each.pid == int(pid)), None)
            own = [] if left is None else left.of_type(Recorded)
            if all(each.thread is not None for each in own):  # else its exception says more
                yield float("-inf"), _of_code(run, int(code), left, int(number))


def _of_launches(run: _Run) -> Iterator[tuple[float, Failure]]:
    """Find the commands that a signal ended, and their processes where only one can be meant."""
    for launch in run.session.launches:
        if launch.outcome is None or launch.outcome.signal is None:
            continue
        task = launch.manifest.task.partition(".")[0]
        mains = [
            each
            for each in run.session.processes
            if each.identity.role == "main" and not each.ended and task in ("", str(each.identity.rank))
        ]
        main = mains[0] if len(mains) == 1 else None
        yield launch.outcome.ended_ns, _of_signal(run, launch.outcome.signal, main)


def _ended_loop(record: Recorded, main: Process) -> bool:
    """Tell whether the loop raised a worker's exception, and took no batch afterwards."""
    ends = [each.mono_ns for each in main.of_type(IteratorEnd) if each.outcome != "exhausted"]
    raised_ns = next((at for at in ends if at >= record.mono_ns), None)
    if raised_ns is None:
        return False
    return not (main.rows(names.BATCH_ROW)["delivered_ns"] > raised_ns).any()


def _of_signal(run: _Run, signal: int, process: Process | None, rank: int | None = None) -> Failure:
    name = signal_name(signal)
    return _of_end(run, name, f"ended by {name}", process, rank)


def _of_code(run: _Run, code: int, process: Process | None, rank: int) -> Failure:
    """A rank that ended with a code of its own, and no exception that was seen."""
    message = f"ended with exit code {code}, without an exception that was seen"
    return _of_end(run, f"{EXIT}{code}", message, process, rank)


def _of_end(run: _Run, name: str, message: str, process: Process | None, rank: int | None) -> Failure:
    one = None if process is None else _rank_of(run, process)
    return Failure(
        process=None if process is None else process.pid,
        role=None if process is None else run.session.role_of(process),
        rank=rank if one is None else one.rank.number,
        type=name,
        message=message,
        after_steps=_after_steps(one),
        stack="",
    )


def signal_name(signal: int) -> str:
    """Name a signal as the shell does: ``SIGKILL``; ``signal 35`` of one without a name."""
    try:
        return Signals(signal).name
    except ValueError:
        return f"signal {signal}"


def _of_record(run: _Run, process: Process, record: Recorded) -> Failure:
    """Say where the exception was raised, in which batch, and of which file it is."""
    text = _CONTROLS.sub("", record.text)
    seen = parse(text, record.error)
    one = _rank_of(run, process)
    epoch = batch = None
    if one is not None and record.thread is None:
        epoch, batch = _batch_of(one, process, record)
    users = [number for number, (file, _, _) in enumerate(seen.frames) if _is_users(file, process)]
    below = seen.frames[users[-1] + 1 :] if users else seen.frames
    path, library = _read_last(run, process, record)
    about = path and _is_about(path, library, seen.message, [file for file, _, _ in below])
    at = None
    if users:
        file, line, function = seen.frames[users[-1]]
        at = f"{run.session.paths.shown(file)}:{line}{f' in {function}' if function else ''}"
    return Failure(
        process=process.pid,
        role=_role_of(run, process),
        rank=rank_of(process)[0] if one is None else one.rank.number,
        worker=process.worker,
        type=seen.error,
        message=seen.message,
        at=at,
        file=path if about else None,
        batch=batch,
        epoch=epoch,
        after_steps=_after_steps(one),
        stack=text.rstrip(),
        sample=record.sample,
        thread=record.thread,
        read_last=path or None,
    )


def _rank_of(run: _Run, process: Process) -> Trained | None:
    """Find the rank that trains in `process`, or whose worker it is."""
    return run.by_process.get(id(process))


def _role_of(run: _Run, process: Process) -> str:
    """Name the role as the session does; ``helper`` only where the program did not fail with the process.

    A launcher that has no exception of its own may start ranks: these know their number.
    """
    role = run.session.role_of(process)
    if process.identity.rank is not None or (role != "helper" and _rank_of(run, process) is not None):
        return role
    who = process.identity.ppid, process.identity.node
    parents = [each for each in run.session.processes if (each.pid, each.identity.node) == who]
    if any(all(own.thread is not None for own in each.of_type(Recorded)) for each in parents):
        return "helper"
    return "process" if role == "helper" else role


def _after_steps(one: Trained | None) -> int | None:
    """Count the steps that were ended; None where no loop was begun."""
    return None if one is None or not (one.loaders or one.loop.begun) else len(one.loop.steps)


def _is_users(file: str, process: Process) -> bool:
    """Tell whether a frame's file is the program's own, not an installed package's."""
    if not file.startswith("/"):
        return file in ("<string>", "<stdin>") or file.startswith("<ipython") or file.endswith(".py")
    roots = [f"{prefix}/" for prefix in process.identity.prefixes if prefix not in ("/", "/usr")]
    installed = "/site-packages/" in file or "/dist-packages/" in file
    return not installed and not file.startswith(("/usr/lib", *roots))


def _batch_of(one: Trained, process: Process, record: Recorded) -> tuple[int | None, int | None]:
    """Find epoch and batch: the one that the worker made, or that the loop had last or asked for."""
    main = one.rank.main
    if record.index is not None:
        starts = [each for each in main.of_type(IteratorStart) if process.pid in each.pids]
        own = [each for each in starts if each.generation == record.generation]
        return (_epoch_of(one, own[-1].iterator, own[-1].epoch) if own else None), record.index
    if one.loop.primary is None or not len(one.loop.primary.deliveries):
        return None, None
    last = one.loop.primary.deliveries[-1]
    for end in main.of_type(IteratorEnd):
        if main.clock.to_session_ns(end.mono_ns) > last.delivered_ns:
            epoch = _epoch_of(one, end.iterator, end.epoch)
            goes_on = (end.iterator, epoch) == last.of_pass
            return (None, None) if end.outcome == "exhausted" else (epoch, last.index + 1 if goes_on else 0)
    return last.epoch, last.index


def _epoch_of(one: Trained, iterator: int, epoch: int) -> int:
    """Number an epoch as reports do: loaders that one line makes anew are one loader."""
    recorded = [each.epoch for each in one.rank.main.of_type(IteratorStart) if each.iterator == iterator]
    numbered = [each for loader in one.loaders for number, each in loader.passes if number == iterator]
    return epoch + min(numbered) - min(recorded) if numbered and recorded else epoch


def _read_last(run: _Run, process: Process, record: Recorded) -> tuple[str, str]:
    """Find the file that was read last for the batch, of a worker for the sample; and by which library."""
    one, spans = _rank_of(run, process), process.spans
    failed_ns = process.clock.to_session_ns(record.mono_ns)
    ends_ns = spans["start_ns"] + spans["duration_ns"]
    since_ns = process.began_ns
    if record.taken_ns is not None:
        since_ns = process.clock.to_session_ns(record.taken_ns)
        made = spans["start_ns"][(spans["kind"] == KIND_ITEM) & (ends_ns <= failed_ns)]
        if record.sample is not None and len(made):  # the sample that raised it was the last one begun
            since_ns = max(since_ns, int(made.max()))
    elif one is not None:
        delivered = [loader.deliveries["delivered_ns"] for loader in one.loaders]
        before = [own[own <= failed_ns] for own in delivered]
        since_ns = max((int(own.max()) for own in before if len(own)), default=since_ns)
    is_read = np.isin(spans["kind"], (KIND_READ_PATH, KIND_MAPPED)) & (spans["file"] >= 0)
    rows = np.flatnonzero(is_read & (spans["start_ns"] >= since_ns) & (ends_ns <= failed_ns))
    if not len(rows):
        return "", ""
    last = spans[rows[np.argmax(ends_ns[rows])]]
    path = run.session.paths.shown(process.texts.get(int(last["file"]), ""))
    return path, process.texts.get(int(last["name"]), "").partition(".")[0]


def _is_about(path: str, library: str, message: str, below: list[str]) -> bool:
    """Tell whether an exception is about the file that was read last: it, or the file's library, says so.

    `below` are the files of the frames that the program's own code called.
    """
    if library == "numpy":  # arrays are its business, too
        of_library = any(part in file for file in below for part in _OF_NUMPY)
    else:
        of_library = any(f"/{library}/" in f"/{file}" for file in below)
    return of_library or PurePath(path).name in message
