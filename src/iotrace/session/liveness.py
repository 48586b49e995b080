"""The launches of a session: how each began, and whether it ended, goes on, or was killed.

A launch without an outcome is judged by its processes on this host, by its files elsewhere.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from iotrace.session import names
from iotrace.session.identity import boot_id
from iotrace.session.manifest import Launcher, Manifest, Outcome, launches, read_manifest, read_outcome
from iotrace.session.reading import open_regular

ENDED, RUNNING, KILLED, UNKNOWN = "ended", "running", "killed", "unknown"

# Agents and sidecar write once a second; a busy host or file system makes them late, clocks of hosts differ.
_FRESH_SECONDS = 10.0
# The kernel gives a process's start in ticks of 10 ms; the agent's first clock reading is later.
_START_SLACK_NS = 50_000_000
_LONGEST_LINE = 1 << 20


def this_process() -> Launcher:
    """Describe the calling process, for the manifest of the session that it makes."""
    pid = os.getpid()
    return Launcher(pid, _start_ticks(pid) or 0, os.uname().nodename, boot_id(), _pid_namespace())


def judge_state(launch: Path, manifest: Manifest, outcome: Outcome | None) -> str:
    """Return ``ended``, ``running``, ``killed`` (nothing of it lives), or ``unknown``: on another host.

    A program that outlives its launcher is ``running``.
    """
    if outcome is not None:
        return ENDED
    launcher_here = None if manifest.launcher is None else launcher_lives(manifest.launcher)
    if launcher_here is not None:
        if launcher_here:
            return RUNNING
        processes = first_documents(launch.glob(f"{names.PROCESSES}/*/{names.PROCESS}"))
        sidecars = first_documents(launch.glob(f"{names.TELEMETRY}/*/{names.RECORDS}"))
        lives = any(map(_sidecar_lives, sidecars)) or any(map(process_lives, processes))
        return RUNNING if lives else KILLED
    heard_seconds = last_heard_seconds(launch)
    return RUNNING if heard_seconds is not None and heard_seconds < _FRESH_SECONDS else UNKNOWN


def launcher_lives(launcher: Launcher) -> bool | None:
    """Return whether the process that described itself so lives; None where that is not to be seen here."""
    if not _is_here(launcher.node, launcher.boot_id) or launcher.pid_namespace != _pid_namespace():
        return None
    return _start_ticks(launcher.pid) == launcher.start_ticks


def last_heard_seconds(launch: Path) -> float | None:
    """Return how long ago something of the launch was written; None where nothing is there."""
    newest = 0.0
    for pattern in (f"{names.TELEMETRY}/*/{names.RECORDS}", f"{names.PROCESSES}/*/{names.RECORDS}"):
        for path in launch.glob(pattern):
            # Opening makes a network file system look again.
            with suppress(OSError), open_regular(path, inside=True) as file:
                newest = max(newest, os.fstat(file.fileno()).st_mtime)
    return time.time() - newest if newest else None


def _is_here(node: object, boot: object) -> bool:
    return node == os.uname().nodename and bool(boot) and boot == boot_id()


def _sidecar_lives(sampler: dict[str, Any]) -> bool:
    """It samples until the command's last process on its host has ended."""
    pid, ticks = sampler.get("pid"), sampler.get("start_ticks")
    here = _is_here(sampler.get("node"), sampler.get("boot_id"))
    return here and isinstance(pid, int) and ticks is not None and _start_ticks(pid) == ticks


def process_lives(identity: dict[str, Any]) -> bool | None:
    """Return whether the process that its agent described lives; None where that cannot be seen here.

    A process that has the pid now, and began after the agent's first clock reading, is another one.
    """
    if not _is_here(identity.get("node"), identity.get("boot_id")):
        return None
    try:
        ticks, began_ns = _start_ticks(int(identity["pid"])), int(identity["clock"][0])
    except (KeyError, IndexError, TypeError, ValueError):
        return None
    if ticks is None:
        return False
    # Ticks count from the boot, the agent's clock leaves out the time in which the machine slept.
    slept_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()
    started_ns = ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK") - slept_ns
    return started_ns <= began_ns + _START_SLACK_NS


def _start_ticks(pid: int) -> int | None:
    """Return when the process began, in ticks since the boot; None where it has ended."""
    try:
        data = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The program's name comes first, in parentheses, and may hold any character.
    fields = data[data.rindex(b")") + 2 :].split()
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def _pid_namespace() -> int:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def first_documents(paths: Any) -> list[dict[str, Any]]:
    """Return the first line of each file, where it is a JSON object."""
    documents = []
    for path in paths:
        with suppress(OSError, ValueError, RecursionError), open_regular(path, inside=True) as file:
            document = json.loads(file.readline(_LONGEST_LINE))
            if isinstance(document, dict):
                documents.append(document)
    return documents


class Launch(msgspec.Struct, frozen=True):
    """One ``iotrace run`` of the session's job: how it began and, if known, ended.

    `state` when it was read: ``ended``, ``running``, ``killed``, or ``unknown``; then something of it was
    written `heard_seconds` before, None where nothing was.
    """

    path: Path
    manifest: Manifest
    outcome: Outcome | None
    state: str = ENDED
    heard_seconds: float | None = None


def read_launches(session: Path) -> list[Launch]:
    """Read the launches of the session at `session`, the first launcher's first.

    Raises:
        SessionError: there is none that this version reads.
    """
    launched = []
    for path in (session, *launches(session)):
        manifest, outcome = read_manifest(path), read_outcome(path)
        state = judge_state(path, manifest, outcome)
        heard_seconds = last_heard_seconds(path) if state == UNKNOWN else None
        launched.append(Launch(path, manifest, outcome, state, heard_seconds))
    return launched


def joint_state(launches: list[Launch]) -> str:
    """Return the state of a whole session: ``running`` as long as one of its launches is."""
    states = {launch.state for launch in launches}
    return next((state for state in (RUNNING, KILLED, UNKNOWN) if state in states), ENDED)


def joint_exit_code(launches: list[Launch]) -> int | None:
    """Return the first exit code that is not 0; None where an end was not seen, or has no code."""
    codes = [launch.outcome.exit_code if launch.outcome else None for launch in launches]
    return None if None in codes else next((code for code in codes if code), 0)
