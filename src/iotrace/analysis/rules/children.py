"""Processes that the program started itself, and whose work the loop may wait for."""

from __future__ import annotations

from collections.abc import Iterator

from iotrace.analysis.results import FileIo, Io, ProcessUse
from iotrace.analysis.rules.facts.rank import RankFacts
from iotrace.analysis.rules.locks import of_peer
from iotrace.analysis.rules.loop import PREPARED_IN_THE_LOOP, WAITING
from iotrace.analysis.rules.model import THE_LOOP, Finding, fires, rule, silent
from iotrace.analysis.rules.recurring import HIGH
from iotrace.analysis.wait.locks import SLEEP

_FEEDING = {
    "before_ms": 80.0,
    "before_fraction": 0.8,
    "function": "frames (train.py:30)",
    "function_ms": 80.0,
}
_IN_POOL = {
    "line": "train.py:30",
    "calls": "Pool.imap",
    "library": "multiprocessing",
    "fraction": 1.0,
    "samples": 90,
}
_MAIN = {"role": "main", "pid": 1, "cpu_pct_mean": 15.0, "run_delay_pct_mean": 3.0}
_BUSY = {
    "role": "child",
    "pid": 2,
    "program": "render.py a.json",
    "cpu_pct_mean": 60.0,
    "run_delay_pct_mean": 37.0,
}
_IDLE = {
    "role": "child",
    "pid": 3,
    "program": "render.py b.json",
    "cpu_pct_mean": 2.0,
    "run_delay_pct_mean": 1.0,
}
_WORKER = {"role": "worker 0", "pid": 4, "cpu_pct_mean": 50.0, "run_delay_pct_mean": 45.0}
_READ = {
    "path": "scenes/a.json",
    "opens": 100,
    "read_bytes": 1 << 20,
    "reread_fraction": 0.99,
    "by_worker": {"2": 200},
}


@rule("IO515", "child-at-work", "loop", turn=THE_LOOP, saves_wait=False)
@fires(
    {"feeding": _FEEDING, "processes": [_MAIN, _BUSY, _IDLE]},
    {"feeding": _FEEDING, "processes": [_MAIN, _BUSY, _IDLE], "files": [_READ]},
    {"feeding": _FEEDING, "processes": [_MAIN, _WORKER]},
    {"feeding": {**_FEEDING, "waits": "pipe at train.py:17"}, "processes": [_MAIN, _BUSY]},
    {"feeding": _FEEDING, "processes": [_MAIN, _WORKER, {**_WORKER, "role": "worker 1", "pid": 5}]},
    {"feeding": {**_FEEDING, "hot": _IN_POOL}, "processes": [_MAIN, _WORKER]},
)
@silent(
    {"feeding": _FEEDING, "processes": [_MAIN, _IDLE]},
    {"feeding": _FEEDING, "processes": [{**_MAIN, "cpu_pct_mean": 90.0}, _BUSY]},
    {"feeding": _FEEDING, "processes": [{**_MAIN, "cpu_pct_mean": None}, _BUSY]},
    {"feeding": {**_FEEDING, "before_fraction": 0.1}, "processes": [_MAIN, _BUSY]},
    {"feeding": {**_FEEDING, "waits": "sleep at train.py:9"}, "processes": [_MAIN, _BUSY]},
    {"processes": [_MAIN, _BUSY]},
    {"feeding": _FEEDING, "processes": []},
)
def child_at_work(
    facts: RankFacts, *, busy_percent: float = 80.0, least_of_step: float = 0.2
) -> Iterator[Finding]:
    """The loop sleeps before its forward pass, and processes that it started work all that time.

    Nothing shows a hand-over between them: the data may come through a pipe, a socket, shared memory or a
    file. But while the loop's thread sleeps, the process works. Time in which it was ready to run without a
    CPU counts as work.

    Remedy: make what that process does faster, such as a file that it reads again for each item, or start
    more of them, if there are CPUs for them.
    """
    feeding, processes = facts.report.feeding, facts.report.system.processes
    before = feeding.before_fraction if feeding is not None else None
    if feeding is None or not before or before < least_of_step or not processes:
        return
    if not _sleeps(processes[0], 100 * before):
        return
    if feeding.waits and feeding.waits.partition(" at ")[0] == SLEEP:  # for nobody
        return
    known = [(share, each) for each in processes[1:] if (share := _at_work(each)) is not None]
    working = [(share, each) for share, each in known if share >= busy_percent]
    if not working:
        return
    several, least = len(working) > 1, min(share for share, _ in working)
    idle = max((share for share, _ in known if share < busy_percent), default=None)
    names = sorted({each.program or each.role for _, each in working})
    who = f"{len(working)} processes" if several else f"{names[0]} (pid {working[0][1].pid})"
    does, hot = f"sleeps in {feeding.function or 'its own code'}", feeding.hot
    if hot is not None and hot.library in WAITING:
        does = f"waits in {hot.library}'s {hot.calls} ({hot.line})"
    if feeding.waits:
        does = f"waits for {of_peer(feeding.waits)[0]}"
    text = (
        f"before its forward pass the loop {does}; meanwhile {who} "
        f"that the program started {'work' if several else 'works'} {least:.0f} % of the time"
        + ("" if idle is None else f", others {idle:.0f} % at most")
    )
    what = names[0] if len(names) == 1 else "what they do"
    how = f"make {what} faster, or start more, if there are free CPUs"
    again = _read_again(facts.report.io, {each.pid for _, each in working})
    if again is not None:
        text += f", and {'open' if several else 'opens'} {again.path} {again.opens} times"
        how = f"read {again.path} once, and keep it; or {how}"
    yield Finding(
        text=text,
        remedy=how,
        evidence={"before_ms": feeding.before_ms, "at_work_pct": least, "processes": len(working)},
        level="high" if before > HIGH else "medium",
        cost_ms=feeding.before_ms,
        silences=(PREPARED_IN_THE_LOOP,),
        is_main_cause=True,
    )


def _sleeps(main: ProcessUse, before_percent: float, slack_percent: float = 15.0) -> bool:
    """Whether the training process sleeps for half of that time or more, and cannot work in much of it."""
    share = _at_work(main)
    if share is None or main.cpu_pct_mean is None:
        return False
    return 100 - share >= 0.5 * before_percent and main.cpu_pct_mean <= 100 - before_percent + slack_percent


def _at_work(process: ProcessUse) -> float | None:
    """How much of the time it had a CPU or was ready to run, in percent."""
    if process.cpu_pct_mean is None:
        return None
    return process.cpu_pct_mean + (process.run_delay_pct_mean or 0.0)


def _read_again(io: Io | None, pids: set[int], least_opens: int = 10, least: float = 0.5) -> FileIo | None:
    """Find the file that these processes open again and again, if it is half of what they read, or more."""
    files = [each for each in (io.files if io else []) if {*map(int, each.by_worker)} & pids]
    read_bytes = {each.path: each.read_bytes or 0 for each in files}
    most = max(files, key=lambda each: read_bytes[each.path], default=None)
    if most is None or most.opens < least_opens or (most.reread_fraction or 0.0) < least:
        return None
    return most if read_bytes[most.path] >= least * sum(read_bytes.values()) else None
