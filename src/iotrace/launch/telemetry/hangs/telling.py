"""Tell a hang: in words, on the launcher's standard error, and in the sampler's file."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from stat import S_ISREG

from iotrace.launch.telemetry.hangs.blocked import About
from iotrace.launch.telemetry.hangs.words import collective_of
from iotrace.session import names
from iotrace.session.append_file import append_line
from iotrace.session.hang_words import banner, differing


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
    told = [f"  {about['role']} (pid {about['pid']}) {about['text']}" for about in processes]
    if any(collective for _, _, collective in ranks):
        told += [f"  {line}" for line in differing(ranks)]
    return {
        "type": "hang",
        "kind": kind,
        "waited_ns": waited_ns,
        "processes": processes,
        "text": [banner(kind, since, "ranks on other hosts"), *told],
    }


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
