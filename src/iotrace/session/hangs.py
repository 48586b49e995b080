"""What samplers told of processes that hang, and whether the run goes on."""

from __future__ import annotations

from pathlib import Path

import msgspec

from iotrace.session import names
from iotrace.session.launches import joint_state, read_launches
from iotrace.session.liveness import RUNNING
from iotrace.session.reading import entries, read_whole


class BlockedProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process of a loop that hangs; None is what is not known. `stack`: innermost frame first."""

    pid: int
    role: str = ""
    text: str = ""
    state: str | None = None
    wchan: str | None = None
    call: str | None = None
    file: str | None = None
    stack: list[str] | None = None


class Hang(msgspec.Struct, frozen=True, kw_only=True, tag="hang"):
    """No batch came for `waited_ns`; `mono_ns` is when it was told, `text` in which words."""

    mono_ns: int
    waited_ns: int
    processes: list[BlockedProcess] = []
    text: list[str] = []
    resumed: bool = False


class _Resumed(msgspec.Struct, frozen=True, tag="resumed"):
    mono_ns: int


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """`state` is one of `liveness`, ``hung`` or ``resumed`` where a run hangs, or did; `text` says it."""

    state: str
    hangs: list[Hang]
    text: list[str]


def hangs_of(session: Path) -> list[Hang]:
    """Read what the session's samplers told; what is damaged is left out."""
    found: list[Hang] = []
    for directory in entries(session / names.TELEMETRY):
        own: list[Hang] = []
        try:
            lines = read_whole(directory / names.HANGS).splitlines()
        except OSError:
            continue
        for line in lines:
            try:
                record = msgspec.json.decode(line, type=Hang | _Resumed)
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue
            if isinstance(record, Hang):
                own.append(record)
            else:
                own = [msgspec.structs.replace(each, resumed=True) for each in own]
        found += own
    return found


def status_of(session: Path) -> Status:
    """Say whether the run of a session goes on, and what it hangs in.

    Raises:
        SessionError: it is no session.
    """
    state = joint_state(read_launches(session))
    hangs = hangs_of(session)
    text = [line for each in hangs for line in each.text]
    if hangs and all(each.resumed for each in hangs):
        text.append("it went on since: batches came again")
    elif hangs and state == RUNNING:
        state = "hung"
    elif hangs:
        text.append(f"the run is over: {state}")
    return Status(state=state, hangs=hangs, text=text)
