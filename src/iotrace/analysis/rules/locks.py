"""Locks that the threads which make the loop's items wait for: h5py's, the interpreter's, those of files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from iotrace.analysis.results import PipelineStage, busiest
from iotrace.analysis.rules.causes import finding, is_worth, level, which
from iotrace.analysis.rules.facts.loader import LoaderFacts, TakenFrom
from iotrace.analysis.rules.facts.making import LockWait, Making
from iotrace.analysis.rules.facts.rank import RankFacts
from iotrace.analysis.rules.model import MORE_WORKERS, THE_LOOP, Finding, fires, rule, silent
from iotrace.analysis.wait.interpreter import LoopTurns
from iotrace.units import percent

SLEEP_LESS = "sleep less at {}; if it polls there, have what it waits for come sooner"
_LEADING = 0.25  # of the wait: what a verdict names before its cause
_POOL = TakenFrom("Pool", "load", 4, "processes", 30.0)
_COMPUTING = [
    PipelineStage(
        name="encode", makers=2, of="threads", busy=1.1, items=400, item_ms=6.0, on_cpu_fraction=0.7,
        puts="queue.Queue", wait_ms=3.0, slowest=False,
    ),
]  # fmt: skip


def _locked(lock: str, ms: float, each_ms: float, sharing: int = 4, **more: Any) -> Making:
    """Make the facts of an example."""
    return Making(locks={lock: LockWait(ms=ms, each_ms=each_ms, item_ms=31.0, sharing=sharing, **more)})


@rule("IO231", "h5py-lock", "loader", turn=MORE_WORKERS)
@fires({"cause": "read", "making": _locked("h5py", 30.0, 22.0)})
@silent(
    {"cause": "read", "making": _locked("h5py", 2.0, 1.0)},
    {"cause": "read", "making": Making()},
    {"cause": "read", "wait_ms": 4.0, "making": _locked("h5py", 3.0, 1.0)},
)
def h5py_lock(facts: LoaderFacts) -> Iterator[Finding]:
    """Threads that read HDF5 wait for each other: h5py lets one thread of a process in at a time.

    The lock is one for all files and all objects of a process. So more threads read and decode no faster, and
    a file handle of its own for each thread does not help. iotrace sees a thread asleep in a call of h5py,
    outside of any read, while another thread is in one.

    Remedy: processes in place of threads, as DataLoader's workers or a ProcessPoolExecutor.
    """
    lock = facts.making.locks.get("h5py")
    if lock is not None:
        yield from _waited(
            facts,
            lock,
            text=f"{lock.sharing} threads wait for h5py's lock, which lets one in at a time: ",
            how="read in processes in place of threads; one file handle for each thread does not help",
            remedy=in_processes(facts),
        )


@rule("IO232", "interpreter-lock", "loader", turn=MORE_WORKERS)
@fires(
    {"making": _locked("interpreter", 30.0, 22.0)},
    {"making": _locked("interpreter", 30.0, 17.0, 1), "lock_held": 0.9},
    {"pipeline": _COMPUTING, "lock_held": 0.94},
    {"pipeline": _COMPUTING, "lock_held": 0.94, "making": _locked("interpreter", 8.0, 0.5)},
)
@silent(
    {"making": _locked("interpreter", 2.0, 0.5)},
    # Threads that compute in NumPy, and hold the lock in between.
    {"making": _locked("interpreter", 8.0, 1.0)},
    {"making": Making()},
    {"making": _locked("interpreter", 30.0, 17.0, 1), "taken_from": _POOL},
    # The lock is a small part of what an item takes, whatever the other threads waited for it.
    {"making": _locked("interpreter", 30.0, 2.0)},
    {"making": _locked("interpreter", 30.0, 11.0)},
    # Nobody has the lock for most of the wait: it is no lock that makes the items late.
    {"making": _locked("interpreter", 30.0, 22.0), "lock_held": 0.2},
    {"pipeline": _COMPUTING, "lock_held": 0.2},
    {"pipeline": [replace(_COMPUTING[0], of="processes")], "lock_held": 0.94},
    {"pipeline": [replace(_COMPUTING[0], makers=1)], "lock_held": 0.94},
    {"pipeline": [replace(_COMPUTING[0], on_cpu_fraction=0.1)], "lock_held": 0.94},
)
def interpreter_lock(
    facts: LoaderFacts, *, leading: float = _LEADING, most: float = 0.5
) -> Iterator[Finding]:
    """The makers of batches wait for the interpreter's lock: one thread of a process runs at a time.

    iotrace measures how long each thread waited for the lock while it made an item: here at least half of
    that time. Or samples say that another thread has the lock for nearly all of the loop's wait, and a stage
    of several threads computes. Python code holds the lock. Sleeps, reads, and NumPy and the like mostly let
    it go. More threads only wait longer.

    Remedy: processes in place of threads, as DataLoader's workers or a ProcessPoolExecutor; or less Python
    code for each item.
    """
    lock = facts.making.locks.get("interpreter")
    if facts.taken_from is not None:  # there it is the loop that waits, not who makes items
        return
    share = lock.each_ms / lock.item_ms if lock is not None and lock.item_ms else 1.0
    held = facts.lock_held is None or facts.lock_held >= most
    # Code that lets go of the lock takes it, too.
    if lock is None or not held or share < most or lock.ms < leading * facts.wait_ms:
        yield from _takes_turns(facts)
        return
    who = f"{lock.sharing} threads wait" if lock.sharing > 1 else "the makers of batches wait"
    yield from _waited(
        facts,
        replace(lock, ms=min(lock.ms, share * facts.wait_ms)),
        text=f"{who} for Python's interpreter, which runs one thread at a time: ",
        how="make the batches in processes, each with an interpreter; more threads only wait longer",
        remedy=in_processes(facts),
    )


def _takes_turns(facts: LoaderFacts, *, least: float = 0.85, computes: float = 0.6) -> Iterator[Finding]:
    """Tell of a stage of several threads that compute, while one of them has the lock nearly all the wait."""
    stage = busiest(facts.pipeline)
    if stage is None or stage.of != "threads" or stage.makers < 2 or (facts.lock_held or 0.0) < least:
        return
    # It computes, or waits for its turn.
    working = (stage.on_cpu_fraction or 0.0) + stage.locks_ms.get("interpreter", 0.0) / stage.item_ms
    if working < computes or not facts.is_waited_for or not is_worth(facts.wait_ms, facts):
        return
    where = f" ({(stage.site or '').rpartition('/')[2]})" if stage.site else ""
    yield finding(
        facts,
        text=(
            f"the {stage.makers} threads of {stage.name}{where} take turns at Python's interpreter: one has "
            f"it in {percent(facts.lock_held or 0.0)} of the wait"
        ),
        how=(
            "processes in place of threads, each with an interpreter, or vectorise it: most of NumPy lets "
            "other threads run. Where it calls BLAS (linear algebra), try OPENBLAS_NUM_THREADS=1 first: it "
            "may start too many threads. The loop's Python code waits for these threads, too"
        ),
        remedy=f"processes in place of threads for {stage.name}, or vectorise it; where it calls BLAS, try "
        "OPENBLAS_NUM_THREADS=1 first",
        level=level(facts.wait_ms, facts),
        evidence={"lock_held": facts.lock_held or 0.0, "threads": float(stage.makers), **which(facts)},
        cost_ms=facts.wait_ms,  # the gain is not known: the loop's other work waits for the lock, too
        is_main_cause=True,
        tries=True,
        silences=("IO101", "IO102", "IO103", "IO230", "IO236"),
    )


_TURNS = LoopTurns(30.0, "tokenize")


@rule("IO517", "loop-takes-turns", "loop", turn=THE_LOOP, saves_wait=False)
@fires({"turns": _TURNS, "raw_ms": 2.0}, {"turns": LoopTurns(12.0, "tokenize"), "raw_ms": 2.0})
@silent(
    {"turns": LoopTurns(4.0, "tokenize"), "raw_ms": 2.0},
    {"turns": LoopTurns(30.0), "raw_ms": 2.0},  # several threads may have it
    {"turns": _TURNS, "raw_ms": 60.0},  # its makers are late, which `interpreter_lock` tells
    {},
)
def loop_takes_turns(facts: RankFacts, *, least_of_step: float = 0.1) -> Iterator[Finding]:
    """The loop waits for Python's interpreter, as the threads that make its items run Python code.

    One thread of a process runs Python code at a time: so the loop's own code takes longer. iotrace measures
    how long a loop that takes its items from a queue or a pool waits for the interpreter between two items.
    The stage is named where no other thread of the process computes as much.

    Remedy: processes in place of the threads. Or code that lets go of the interpreter, as most of NumPy does.
    """
    turns, step_ms = facts.turns, facts.report.steps.mean_ms
    wait_ms = facts.report.data_wait.raw_ms or 0.0
    if not step_ms or not turns.who or turns.ms < max(wait_ms, least_of_step * step_ms):
        return
    yield Finding(
        text=(
            f"the loop waits for Python's interpreter in {turns.ms:.1f} of {step_ms:.1f} ms of each step: it "
            f"runs one thread at a time, and {turns.who} computes beside the loop"
        ),
        remedy=f"do {turns.who} in a process, not a thread: Python runs one thread at a time",
        level="high" if turns.ms >= 2 * least_of_step * step_ms else "medium",
        evidence={"turns_ms": turns.ms},
        gain_ms=turns.ms,
        gain_interval_ms=[0.0, turns.ms],
        tries=True,
        cost_ms=turns.ms,
        is_main_cause=True,
    )


@rule("IO233", "file-lock", "loader", turn=MORE_WORKERS)
@fires({"making": _locked("file", 30.0, 22.0, file="data/index.lock")})
@silent({"making": _locked("file", 1.0, 1.0, file="data/index.lock")})
def file_lock(facts: LoaderFacts) -> Iterator[Finding]:
    """The makers of batches wait for the lock of a file (``flock``, ``lockf``, ``filelock``).

    Threads and processes that share the lock work one after the other, on all hosts.

    Remedy: read without the lock: files that nobody writes need none. Or a lock for each part of the data.
    """
    lock = facts.making.locks.get("file")
    if lock is not None:
        yield from _waited(
            facts,
            lock,
            text=f"the makers of batches wait for the lock of {lock.file}: ",
            how="one at a time has it: files that nobody writes need no lock; else use a lock for each part",
            remedy=f"no lock of {lock.file} to read, or more of them",
        )


@rule("IO238", "program-lock", "loader", turn=MORE_WORKERS)
@fires(
    {"cause": "transform", "making": _locked("program", 30.0, 22.0, file="store.py:22")},
    {"cause": "read", "workers": 8, "making": _locked("program", 30.0, 28.0, 8, file="data.py:9 (zipfile)")},
)
@silent(
    {"cause": "transform", "making": _locked("program", 2.0, 1.0, file="store.py:22")},
    {"cause": "transform", "making": _locked("program", 8.0, 5.0, file="store.py:22")},
    {"cause": "transform", "making": Making()},
)
def program_lock(facts: LoaderFacts, *, leading: float = _LEADING) -> Iterator[Finding]:
    """Threads or processes that make the batches wait for a lock that one of them holds.

    They share a connection, a file or a cache behind a ``Lock``, an ``RLock`` or a ``Semaphore``, so more
    threads only wait longer. iotrace looks 20 times a second, or less often in a long run, where each thread
    is: a thread that is just taking a lock waits for it. So the time is an estimate. For locks of
    ``multiprocessing``, each ``with`` is timed.

    Remedy: a handle or connection for each thread; or hold the lock for less: not while reading or decoding.
    What the lock protects may serve only one at a time: then nothing is gained.
    """
    lock = facts.making.locks.get("program")
    if lock is None or lock.ms < leading * facts.wait_ms:
        return
    waiting = f"{lock.sharing} threads wait" if lock.sharing > 1 else "the makers of batches wait"
    one = "thread" if lock.sharing > 1 else "worker"
    yield from _waited(
        facts,
        lock,
        text=f"{waiting} for the lock taken at {lock.file}: about ",
        how=(
            f"give each {one} a connection or a file of its own, or hold the lock for less, not while it "
            f"reads or decodes; more {one}s only wait longer"
        ),
        remedy=f"one handle per {one} in place of the lock at {lock.file}, or hold it for less",
        tries=True,
        silences=("IO101", "IO102", "IO103", "IO106", "IO230"),
    )


@rule("IO250", "peer-slow", "loader", turn=MORE_WORKERS)
@fires(
    {"making": _locked("peer", 30.0, 22.0, 2, file="child process at train.py:9")},
    {"cause": "unknown", "making": _locked("peer", 30.0, 22.0, 1, file="pipe at train.py:9")},
    {
        "pool": "ThreadPoolExecutor",
        "wrapped": True,
        "workers": 8,
        "making": _locked("peer", 30.0, 22.0, 8, file="socket at train.py:9"),
    },
    {"cause": "read", "workers": 4, "making": _locked("peer", 30.0, 22.0, 4, file="socket at train.py:9")},
    {
        "making": _locked("peer", 30.0, 28.0, 1, file="socket at train.py:9"),
        "pipeline": [replace(_COMPUTING[0], setting="concurrency", setting_value=1, set_at="train.py:42")],
    },
)
@silent(
    {"cause": "unknown", "making": _locked("peer", 2.0, 1.0, file="pipe at train.py:9")},
    {"cause": "decode", "making": _locked("peer", 10.0, 8.0, file="pipe at train.py:9")},
    {"cause": "unknown", "making": Making()},
)
def peer_slow(facts: LoaderFacts, *, most: float = 0.4) -> Iterator[Finding]:
    """The makers of batches wait for data from a pipe or a socket: for a server, or another program.

    20 times a second, or less often in a long run, iotrace looks at what each thread sleeps in. A thread in a
    read of a pipe (``pipe:curl`` of webdataset, ``ffmpeg``, ``xz -dc``) or a socket (an object store) waits
    for its writer. So the time is an estimate. The decoding of the data has no part in it. A thread in
    ``subprocess.run`` waits for a program, which is started anew for each item.

    Remedy: use several connections or programs at once: each worker of a DataLoader has its own. Or keep a
    copy of the data nearby, or of what comes through the pipe. A server or a disk may be no faster for
    several: then that gains nothing.
    """
    lock = facts.making.locks.get("peer")
    if lock is None or lock.ms < most * facts.wait_ms:
        return
    what, how, remedy = of_peer(lock.file)
    stage = busiest(facts.pipeline)
    if stage is not None and stage.setting and not lock.file.startswith("child process"):
        now = "" if stage.setting_value is None else f" from {stage.setting_value}"
        at = f", at {(stage.set_at or '').rpartition('/')[2]}" if stage.set_at else ""
        how = f"raise {stage.setting} of {stage.name}{now}{at}: {how}"
        remedy = f"raise {stage.setting} of {stage.name}{now}{at}; or {remedy.rpartition(' or ')[2]}"
    elif lock.file.startswith("socket") and facts.about.workers and facts.about.pool.endswith("Executor"):
        more = f"more than {facts.about.workers} workers in the {facts.about.pool}"
        how = f"{more}, where who writes there can serve them; or {how.rpartition('; or ')[2]}"
        remedy = f"{more}, or {remedy.rpartition(' or ')[2]}"
    yield from _waited(
        facts,
        lock,
        text=f"the makers of batches wait for {what}: about ",
        how=how,
        remedy=remedy,
        tries=True,
        gains=False,  # that depends on who writes there
        silences=("IO101", "IO102", "IO103", "IO106", "IO230", "IO236"),
    )


def of_peer(file: str) -> tuple[str, str, str]:
    """Say what one that waits for a peer waits for, what to do, and that in short; of `LockWait.file`."""
    kind, _, site = file.partition(" at ")
    if kind == "child process":
        return (
            f"a {kind}, at {site}",
            "start one that keeps running, and send it each item, or call a library; threads that wait for "
            "processes do no work, and more processes need more CPUs",
            f"no process for each item at {site}: one that stays, or a library in its place",
        )
    several = "read from several at once (workers, threads), if the writer can serve them"
    if kind == "pipe":
        near = "store once what comes through it"
        remedy = f"make the writer of the pipe at {site} faster, read from several at once, or {near}"
    else:
        near = "copy the data nearby"
        remedy = f"read from more {kind}s at once (threads, workers), or {near}"
    return f"data from a {kind}, at {site}", f"{several}; or {near}", remedy


def in_processes(facts: LoaderFacts) -> str:
    """Say in short that processes shall do what threads do: one remedy, whichever lock they wait for."""
    stage = next((each for each in facts.pipeline if each.slowest and each.of == "threads"), None)
    h5py, interpreter = (facts.making.locks.get(lock) for lock in ("h5py", "interpreter"))
    if h5py is not None and (interpreter is None or h5py.ms >= interpreter.ms):
        return "read HDF5 in processes, not threads: h5py has one lock"
    if stage is not None:
        return f"processes in place of threads for {stage.name}: Python runs one thread at a time"
    return "processes in place of threads: Python runs one thread at a time"


def _waited(
    facts: LoaderFacts,
    lock: LockWait,
    *,
    text: str,
    how: str,
    remedy: str,
    tries: bool = False,
    gains: bool = True,
    silences: tuple[str, ...] = ("IO101", "IO102", "IO103", "IO230"),
) -> Iterator[Finding]:
    # At most each maker goes on without the lock, all at once; those of a stage are as many as share it.
    makers = max(facts.about.workers, lock.sharing, 1)
    each_ms = (lock.item_ms - lock.each_ms) / makers * facts.batches_per_step
    least_ms = max(facts.step_ms - facts.bound_ms, facts.on_cpus_ms)
    at_once_ms = facts.step_ms - max(least_ms, each_ms) if lock.item_ms else lock.ms
    gain_ms = min(facts.step_ms - least_ms, max(lock.ms, at_once_ms))
    if not facts.is_waited_for or not is_worth(min(gain_ms, lock.ms), facts):
        return
    of = f" ({lock.each_ms:.1f} of {lock.item_ms:.1f} ms an item)" if lock.item_ms else ""
    yield finding(
        facts,
        text=f"{text}{lock.ms:.1f} ms of wait a step{of}",
        how=how,
        remedy=remedy,
        level=level(lock.ms, facts),
        evidence={"locked_ms": lock.ms, "threads": float(lock.sharing), **which(facts)},
        gain_ms=gain_ms if gains else None,
        gain_interval_ms=[0.0, gain_ms] if tries and gains else None,
        tries=tries,
        cost_ms=lock.ms if gain_ms <= lock.ms else None,
        is_main_cause=lock.ms >= _LEADING * facts.wait_ms,
        silences=silences,
    )
