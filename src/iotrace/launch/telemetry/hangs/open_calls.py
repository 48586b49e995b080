"""The calls on files that a process's threads are in, and since when, by what our recorder keeps of them.

The kernel says neither since when, nor, where it hides the system call, which file. The recorder's file says
both without asking the process; of an open or a stat it does not know the path until the call has ended.
"""

from __future__ import annotations

import os
from array import array
from contextlib import suppress

from iotrace.launch.telemetry.hangs.blocked import About
from iotrace.session import names, recorded
from iotrace.session.recorded import Walk

LEAST_NS = 5_000_000_000  # a call that another thread is in is told when it has lasted so long
_MOST_RECORDS = 20_000  # that are passed at a look, some 20 ms
_MOST_THREADS = 1024
_STARTED_NS = 1_000_000_000  # to which the kernel's word on a process's start is taken


class _File:
    """A process's file, as far as it was read: where its threads and its files' names are."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._walk = Walk()
        self._threads: list[int] = []
        self._name_at = array("q")

    def calls(self, pid: int, started_ns: int) -> list[About]:
        """Return the calls that the process's threads are in; none where the file is another process's."""
        descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            head = recorded.read_head(descriptor)
            if head is None or head.pid != pid or head.start_ns < started_ns - _STARTED_NS:
                return []
            for record in self._walk.records(descriptor, head.used_bytes, _MOST_RECORDS):
                self._learn(record)
            calls = [recorded.open_call_at(descriptor, at) for at in self._threads]
            return [self._told(descriptor, call) for call in calls if call is not None]
        finally:
            os.close(descriptor)

    def _learn(self, record: recorded.Record) -> None:
        if record.type == recorded.THREAD and len(self._threads) < _MOST_THREADS:
            self._threads.append(record.at)
        elif record.type == recorded.NAME and record.first < recorded.MOST_FILES:
            self._name_at.extend([0] * (record.first + 1 - len(self._name_at)))
            self._name_at[record.first] = record.at

    def _told(self, descriptor: int, call: recorded.OpenCall) -> About:
        at = self._name_at[call.file] if call.file < len(self._name_at) else 0
        return {
            "tid": call.tid,
            "call": recorded.name_of_kind(call.kind),
            "file": (recorded.name_at(descriptor, at) or None) if at else None,
            "call_since_ns": call.since_ns,
        }


class OpenCalls:
    """The files of the processes that are looked at, which are read on where the last look stopped."""

    def __init__(self) -> None:
        self._files: dict[str, _File] = {}

    def add_to(self, about: About, launch: str, started_ns: int, now_ns: int) -> None:
        """Add since when a process's main thread is in its call, and what its other threads are in.

        Where the kernel hides them, the call and the file, too.
        """
        calls: list[About] = []
        with suppress(OSError):
            path = _path_of(launch, about["pid"])
            if path:
                calls = self._files.setdefault(path, _File(path)).calls(about["pid"], started_ns)
        for call in calls:
            if call["tid"] == about["pid"] and _is_of(about, call):
                about["call"] = about["call"] or call["call"]
                about["file"] = about["file"] or call["file"]
                about["call_since_ns"] = call["call_since_ns"]
        others = [call for call in calls if call["tid"] not in (0, about["pid"])]
        long = [call for call in others if now_ns - call["call_since_ns"] >= LEAST_NS]
        if long:
            about["threads"] = sorted(long, key=lambda call: int(call["call_since_ns"]))

    def forget(self) -> None:
        """Nothing is suspected any more."""
        self._files.clear()


def _is_of(about: About, call: About) -> bool:
    """Say whether what the recorder says is the system call that the kernel shows.

    It is not in a call any more, whatever its file says, where a signal's handler left the call by a jump.
    """
    file = about["file"]
    if about["call"] is None:
        return about["state"] not in ("R", "Z")
    if about["call"] not in recorded.SYSTEM_CALLS.get(call["call"], ()):
        return False
    return file is None or call["file"] is None or file.startswith("/")


def _path_of(launch: str, pid: int) -> str:
    """Return the newest of a process's files on this host: it has one for each program that it ran."""
    begin, end = f"{pid}-", f"-{os.uname().nodename}{names.RECORDED_CALLS}"
    found = []
    for directory in recorded.directories_of(launch)[0]:
        for name in os.listdir(directory):
            if name.startswith(begin) and name.endswith(end):
                with suppress(ValueError):
                    found.append((int(name[len(begin) : -len(end)], 16), f"{directory}/{name}"))
    return max(found)[1] if found else ""
