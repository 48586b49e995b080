"""Tell what a process that does not go on is in: in a few words, by `blocked.look_at` and its Python stack.

Frames are lines of faulthandler, the innermost first: ``File "train.py", line 17 in __getitem__``. A hang is
told on the launcher's standard error, and in the sampler's file.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from stat import S_ISREG

from iotrace.launch.telemetry.hangs.blocked import OF_A_FILE, POLLS, WRITES, About
from iotrace.session import names
from iotrace.session.append_file import append_line
from iotrace.session.hangs import banner, differing

_STATES = {"T": "stopped", "t": "traced by a debugger", "D": "blocked in the kernel", "Z": "ended"}
_LIBRARIES = ("/torch/", "/multiprocessing/", "/threading.py", "/queue.py", "/iotrace/", "/selectors.py")
_INSTALLED = ("/site-packages/", "/dist-packages/", "/lib/python3", "<frozen ", *_LIBRARIES)
_COLLECTIVES = ("/torch/distributed/distributed_c10d.py", "/torch/nn/parallel/distributed.py")
_ASIDE = ("wrapper", "_wait")
_QUEUES = ("/multiprocessing/queues.py", "/queue.py")


def sentence(about: About, now_ns: int = 0) -> str:
    """Say what a process is in, in a few words; `now_ns`, if it is given, by CLOCK_MONOTONIC."""
    state = _STATES.get(str(about["state"]), "")
    if state == "stopped":
        return f"is stopped: kill -CONT {about['pid']} lets it go on"
    if waits_for_others(about):
        return "waits for work" if str(about["role"]).startswith("worker") else "waits for its workers"
    stack = about.get("stack") or []
    where = _frame(stack)
    doing, aside = _doing(about, stack, _how_long(about, now_ns)), _aside(about, now_ns)
    return f"{doing}{f' ({state})' if state else ''}{f', {where}' if where else ''}{aside}"


def _how_long(call: About, now_ns: int) -> str:
    since_ns = call.get("call_since_ns")
    return f" for {(now_ns - since_ns) / 1e9:.0f} s" if since_ns and now_ns > since_ns else ""


def _aside(about: About, now_ns: int) -> str:
    """Say what another thread is in that the main thread may wait for."""
    threads = about.get("threads")
    if not threads or about.get("call_since_ns"):
        return ""
    oldest = threads[0]
    of = f" of {oldest['file']}" if oldest["file"] else ""
    return f"; its thread {oldest['tid']} is in {oldest['call']}{of}{_how_long(oldest, now_ns)}"


def sentence_of_busy(about: About, frames: list[str], on_device: bool) -> str:
    """Say where a process computes, by the program's frames that its dumps share."""
    named = collective_of(about)
    if named:
        return f"waits for other ranks in {named}, on a CPU, {_frame(frames)}"
    device = " or waits for its device" if on_device else ""
    return f"computes{device}, {_frame(frames)}"


def is_foreign(line: str) -> bool:
    """Say whether a frame is not the program's own."""
    return any(part in line for part in _INSTALLED)


def _doing(about: About, stack: list[str], lasts: str) -> str:
    call, file = about["call"], about["file"]
    if call == "futex" or call in POLLS:
        named = collective_of(about)
        if named:
            return f"waits for other ranks in {named}"
        put, got = (_is_in(stack, _QUEUES, name) for name in ("put", "get"))
        if put or got:
            return f"waits {'to put into a full queue' if put else 'for an empty queue'}"
        return "waits for a lock" if call == "futex" else "waits for a message"
    if _of_a_stream(about):
        return f"waits to {'write to' if call in WRITES else 'read from'} a {_of_a_stream(about)}"
    if call in ("flock", "fcntl") and file is not None:
        return f"waits for the lock of {file}"
    if about["wchan"] == "wait_for_partner" and call not in OF_A_FILE:
        return f"opens {f'{file}{lasts}, ' if file else ''}a FIFO that no other process opens"
    if call is not None:
        return f"is in {call} of {file}{lasts}" if file is not None else f"is in {call}{lasts}"
    return f"is in the kernel's {about['wchan']}" if about["wchan"] else "does nothing"


def waits_for_others(about: About) -> bool:
    """Say whether a process of a loader only waits for the others: for a batch, or for an index."""
    frames = about.get("stack") or []
    asks = any(
        "/torch/utils/data/" in line and line.endswith(("_get_data", "_worker_loop")) for line in frames
    )
    # A lock: of the thread that pins memory. A socket: a worker hands over a descriptor there.
    waits = about["call"] in POLLS or about["call"] == "futex" or _of_a_stream(about) != ""
    return waits and asks and not any(line.endswith("in fetch") for line in frames)


def _of_a_stream(about: About) -> str:
    """Return ``socket`` or ``pipe`` where a process reads from or writes to one."""
    kind = str(about["file"]).partition(":")[0]
    return kind if about["call"] in OF_A_FILE and kind in ("socket", "pipe") else ""


def collective_of(about: About) -> str:
    """Return the collective that a process is in, ``backward`` where DistributedDataParallel's; else ''."""
    stack = about.get("stack") or []
    for line in stack:
        name = function_of(line)
        if any(file in line for file in _COLLECTIVES) and name not in _ASIDE:
            return name
        if not any(part in line for part in _LIBRARIES):
            break
    ranked = str(about["role"]).startswith("rank")
    return "backward" if ranked and stack and function_of(stack[0]) == "_engine_run_backward" else ""


def _is_in(stack: list[str], files: tuple[str, ...], function: str) -> bool:
    """Whether the program itself called this function of these files, and is in it."""
    for line in stack:
        if any(file in line for file in files) and function_of(line) == function:
            return True
        if not any(part in line for part in _LIBRARIES):
            return False
    return False


def function_of(line: str) -> str:
    """Return the function that a frame is in."""
    return line.rpartition(" in ")[2]


def _frame(stack: list[str]) -> str:
    """Return the innermost frame of the program's own, in the words of faulthandler."""
    own = [
        line for line in stack if line.startswith("File ") and not any(part in line for part in _LIBRARIES)
    ]
    chosen = own or stack
    return chosen[0][:1].lower() + chosen[0][1:] if chosen else ""


def record_of(waited_ns: int, processes: list[About], kind: str) -> About:
    """Make the record of a hang of a `kind`: its processes as they are shown, and in words."""
    for about in processes:
        about["collective"] = collective_of(about)
    since = f"no batch for {waited_ns / 1e9:.0f} s"
    ranks = [
        (about["rank"], "", about["collective"])
        for about in processes
        if about.get("rank") is not None and about.get("stack")
    ]
    roles = {about["pid"]: str(about["role"]) for about in processes}
    told = [f"  {_whose(about, roles)} (pid {about['pid']}) {about['text']}" for about in processes]
    if any(collective for _, _, collective in ranks):
        told += [f"  {line}" for line in differing(ranks)]
    return {
        "type": "hang",
        "kind": kind,
        "waited_ns": waited_ns,
        "processes": processes,
        "text": [banner(kind, since, "ranks on other hosts"), *told],
    }


def _whose(about: About, roles: dict[int, str]) -> str:
    """Name a process; a worker of one of several ranks with that rank."""
    main = roles.get(about.get("of", 0), "")
    role = str(about["role"])
    return f"{role} of {main}" if main.startswith("rank") and main != role else role


def tell_launcher(lines: list[str]) -> None:
    """Write lines to the launcher's standard error, where that loses nothing of what stands there.

    It is opened anew: a descriptor that the sidecar kept would hold a pipe open beyond the launcher's end.
    """
    path = f"/proc/{os.getppid()}/fd/2"
    with suppress(OSError, ValueError, IndexError):
        with open(f"/proc/{os.getppid()}/fdinfo/2") as file:
            flags = next(int(line.split()[1], 8) for line in file if line.startswith("flags:"))
        if S_ISREG(os.stat(path).st_mode) and not flags & os.O_APPEND:
            return
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            os.write(descriptor, "".join(f"iotrace: {line}\n" for line in lines).encode(errors="replace"))
        finally:
            os.close(descriptor)


def store(directory: str, session: str, record: About) -> None:
    """Append the record to the sampler's file of hangs; paths in it are relative to the session."""
    for about in record.get("processes", ()):
        if about.get("stacks"):
            about["stacks"] = os.path.relpath(about["stacks"], session)
    with suppress(OSError):
        append_line(f"{directory}/{names.HANGS}", json.dumps(record, separators=(",", ":")))
