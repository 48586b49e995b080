"""See which threads wait for a lock of ``threading``, and where, whenever the loop's thread is sampled.

Locks are made in C, and taken too often to be wrapped. A thread that waits for one stays in the call, or in
the beginning of the ``with``, that takes it: its frame tells. Nothing else takes time there.

Libraries have locks of their own (h5py, SQLite). A thread that waits for such a one sleeps in a ``futex``
without an end, where a wait for the interpreter's has one. What other threads wait for, too, is a lock.

A thread that sleeps in a read of a pipe or a socket waits for who writes there: a server, another program.
One in ``time.sleep`` waits for nobody. An event loop of asyncio's that waits runs no coroutine.
"""

from __future__ import annotations

import os
import sys
import threading
from opcode import opmap
from time import monotonic_ns

from iotrace.agent.recording.frames import places_of, threads
from iotrace.agent.recording.thread_clocks import tids
from iotrace.session.guard import ours
from iotrace.session.identity import read_proc
from iotrace.session.names import IDLE_AT, LOCK_AT, LOCKED_ROW, OF_LIBRARY, PEER_AT, SLEEP_AT

TYPE_CHECKING = False  # `typing` costs half of the agent's start-up
if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import CodeType
    from typing import Any

    from iotrace.agent.recording.frames import Place

_TAKES = ("acquire", "__enter__")
_AWAITS = ("get", "put", "wait", "join", "result", "recv", "select", "poll")  # methods that wait for others
# Numbers of system calls: `futex`; `read`, `readv`, `recvfrom` and `recvmsg`; `poll`
# and `ppoll`; `wait4` and `waitid`; `clock_nanosleep`, which is `time.sleep` from Python 3.11 on.
_CALLED = {
    "x86_64": ("202", ("0", "19", "45", "47"), ("7", "271"), ("61", "247"), "230"),
    "aarch64": ("98", ("63", "65", "207", "212"), ("73",), ("260", "95"), "115"),
}
_FUTEX, _READS, _POLLS, _CHILDREN, _NAP = _CALLED.get(os.uname().machine, ("", (), (), (), ""))
_CYTHON = (".pyx", ".pxd", ".pxi")
_CHILDS = (f"{os.sep}subprocess.py", f"{os.sep}selectors.py")
_SELECTORS = f"{os.sep}selectors.py"
_DEEPEST = 6  # frames of `subprocess` and what it calls
_SOCKETS = (f"{os.sep}socket.py", f"{os.sep}ssl.py")
_MOST_SEEN = 4096
_BEGINS_WITH = {opmap[name] for name in ("BEFORE_WITH", "SETUP_WITH") if name in opmap}
_CALLS = {opmap[name] for name in ("CALL", "CALL_KW", "CALL_METHOD", "CALL_FUNCTION_KW") if name in opmap}
_METHODS = {opmap[name] for name in ("LOAD_METHOD", "LOAD_ATTR") if name in opmap}
_SPECIAL, _EXTENDED = opmap.get("LOAD_SPECIAL", -1), opmap["EXTENDED_ARG"]
_SHIFTED = sys.version_info >= (3, 12)  # the lowest bit of a name's number
# Between two looks; what is longer, a look does not stand for.
_LEAST_NS, _MOST_NS = 40_000_000, 1_000_000_000
_MOST_CODE = 4096
_THREADING = threading.__file__
_STANDARD = os.path.dirname(os.__file__) + os.sep
_ASYNCIO = os.path.join(_STANDARD, "asyncio", "")
_SUBPROCESS = os.path.join(_STANDARD, "subprocess.py")
# What waits at locks of these waits for an item, or for its turn to log.
_OTHERS = tuple(
    os.path.join(_STANDARD, name)
    for name in ("queue.py", "concurrent", "multiprocessing", "asyncio", "logging")
)
_OURS = os.path.join(__file__.rpartition(f"{os.sep}agent{os.sep}")[0], "")

_called_at: dict[tuple[int, int], tuple[CodeType, str]] = {}  # by a code's id and a place: a method


class LockWaits:
    """The waits that were seen: each look stands for the time since the last one."""

    def __init__(self, recorder: Any) -> None:
        self._recorder, self._last_ns = recorder, 0
        self._sleepers: dict[str, int] = {}  # by a futex: a thread that slept there, -1: several

    def look(self, loop: int, its_places: list[Place]) -> dict[int, list[Place]]:
        """Record which threads wait for a lock now, or for a peer; return where each is that was looked at.

        The thread `loop`, which is at `its_places`, waits for no lock here: those of the loop are known.
        """
        now_ns = monotonic_ns()
        since_ns = now_ns - self._last_ns
        seen: dict[int, list[Place]] = {}
        if since_ns < _LEAST_NS:
            return seen
        self._last_ns = now_ns
        stands = since_ns <= _MOST_NS
        active = threading._active  # type: ignore[attr-defined]
        for ident in threads():
            # A library's own thread, in which Python runs now and then, is known where we recorded that.
            tid = getattr(active.get(ident), "native_id", None) or tids.get(ident)
            seen[ident] = places = its_places if ident == loop else places_of(ident)
            if tid is None or not places:
                continue
            if stands and (site := self._waits(places, tid, ident == loop)):
                row = (LOCKED_ROW, tid, now_ns, now_ns, since_ns, self._recorder.text(site))
                self._recorder.records.append(row)
        return seen

    def _waits(self, places: list[Place], tid: int, is_loop: bool) -> str:
        """Say what a thread waits for, and where; or nothing."""
        if _runs_event_loop(places):
            return "" if is_loop else _idle(places, tid)
        return (_lock_of(places) if not is_loop else "") or self._asleep(places, tid, is_loop)

    def _asleep(self, places: list[Place], tid: int, is_loop: bool) -> str:
        """Say in which line of the program a thread waits for a library's lock, or a peer; or nothing."""
        code, _, at = places[0]
        if code.co_filename == _THREADING or code.co_filename.startswith(_OTHERS):
            return ""
        futex, peer = _sleeps_at(tid, code.co_filename)
        if peer and _awaits_child(places):  # it reads what that writes, or waits for its end
            peer = "child process"
        if peer == "poll":  # of an event loop, which may sleep by a timer
            return ""
        if peer == "sleep":
            whose = _library(code.co_filename) if _is_library(code.co_filename) else ""
            return f"{SLEEP_AT}{whose}:{code.co_filename}:{places[0][1]}"
        if peer:
            asks = _program_of(places)
            return "" if asks is None else f"{PEER_AT}{peer}:{asks}"
        if not futex or is_loop or _called(code, at) in _AWAITS:
            return ""
        if len(self._sleepers) >= _MOST_SEEN:
            self._sleepers.clear()
        if self._sleepers.setdefault(futex, tid) != tid:
            self._sleepers[futex] = -1
        asks = _program_of(places)
        if asks is None or self._sleepers[futex] != -1:
            return ""
        return f"{LOCK_AT}{OF_LIBRARY}:{asks}"


def _runs_event_loop(places: list[Place]) -> bool:
    """Whether a thread is where an event loop of asyncio's waits, in no coroutine."""
    files = [code.co_filename for code, _, _ in places[:3] if not code.co_filename.startswith(_OURS)]
    return len(files) > 1 and files[0].endswith(_SELECTORS) and files[1].startswith(_ASYNCIO)


def _idle(places: list[Place], tid: int) -> str:
    """Say who runs an event loop that waits now; nothing of one that only looks."""
    try:
        call = read_proc(f"/proc/self/task/{tid}/syscall", 256).split()
    except ours(OSError):
        return ""
    asks = _program_of(places)
    return "" if asks is None or len(call) < 2 else f"{IDLE_AT}{asks}"


def _sleeps_at(tid: int, file: str) -> tuple[str, str]:
    """Return the futex that a thread sleeps at without an end; or what it reads, waits for, or `sleep`."""
    try:
        call = read_proc(f"/proc/self/task/{tid}/syscall", 256).decode().split()
        if len(call) > 1 and call[0] in _POLLS and file.endswith(_SOCKETS):  # of one with a timeout
            return "", "socket"
        if len(call) > 1 and call[0] in (*_POLLS, *_CHILDREN) and file.endswith(_CHILDS):
            return "", "poll"
        if len(call) > 1 and call[0] == _NAP:
            return "", "sleep"
        if len(call) < 5 or call[0] not in (_FUTEX, *_READS):
            return "", ""
        if call[0] == _FUTEX:
            return (call[1] if call[4] == "0x0" else ""), ""
        kind = os.readlink(f"/proc/self/fd/{int(call[1], 16)}").partition(":[")[0]
    except ours(OSError):  # it has ended, or the kernel does not say
        return "", ""
    return "", kind if kind in ("pipe", "socket") else ""


def _awaits_child(places: list[Place]) -> bool:
    """Whether a thread is in a call of ``subprocess``."""
    return any(code.co_filename == _SUBPROCESS for code, _, _ in places[: _DEEPEST + 1])


def _program_of(places: Iterable[Place]) -> str | None:
    """Return file and line of the program's innermost function."""
    for code, line, _ in places:
        if not _is_library(code.co_filename) and not code.co_filename.endswith(_CYTHON):
            return f"{code.co_filename}:{line}"
    return None


def _is_library(file: str) -> bool:
    return file.startswith((_STANDARD, _OURS, "<")) or "-packages" + os.sep in file


def _lock_of(places: list[Place]) -> str:
    """Say where a lock is taken that a thread waits for, by where it is; empty where it waits for none."""
    within = 0  # functions of `threading`
    while within < len(places) and places[within][0].co_filename == _THREADING:
        within += 1
    if within == len(places):
        return ""
    # Of a semaphore, or a condition's own.
    takes = any(code.co_name in _TAKES for code, _, _ in places[:within])
    code, _, at = places[within]
    if not (takes or (within == 0 and _takes_lock(code, at))):
        return ""
    taken_in = code.co_filename
    if taken_in.startswith((*_OTHERS, _OURS, "<frozen")):
        return ""
    asks = _program_of(places[within:])
    if asks is None:
        return ""
    whose = "" if asks.rpartition(":")[0] == taken_in else _library(taken_in)
    return f"{LOCK_AT}{whose}:{asks}"


def _library(file: str) -> str:
    """Name the library that a file is of."""
    inner = file.rpartition("-packages" + os.sep)[2].removeprefix(_STANDARD)
    return inner.partition(os.sep)[0].removesuffix(".py")


def _takes_lock(code: CodeType, at: int) -> bool:
    return code.co_code[at] in _BEGINS_WITH or _called(code, at) in _TAKES


def _called(code: CodeType, at: int) -> str:
    """Name the method that is called `at` this place, in bytes; empty where none is."""
    key = id(code), at
    known = _called_at.get(key)
    if known is None:
        if len(_called_at) >= _MOST_CODE:
            _called_at.clear()
        known = _called_at[key] = code, _method(code, at)
    return known[1]


def _method(code: CodeType, at: int) -> str:
    raw = code.co_code
    if not 0 <= at < len(raw) - 1 or raw[at] not in _CALLS:
        return ""
    for place in range(at - 2, -1, -2):
        kind, number = raw[place], raw[place + 1]
        if kind == _SPECIAL:
            return "" if number else "__enter__"
        if kind in _METHODS:
            if place >= 2 and raw[place - 2] == _EXTENDED:
                number |= raw[place - 1] << 8
            number = number >> 1 if _SHIFTED else number
            return code.co_names[number] if number < len(code.co_names) else ""
        if kind in _CALLS:
            return ""
    return ""
