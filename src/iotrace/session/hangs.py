"""What samplers reported of processes that hang, and whether the run goes on.

Say in which collectives ranks of a job are that does not go on; used by samplers and by readers.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from iotrace.session import names
from iotrace.session.liveness import RUNNING, Launch, first_documents, joint_state, read_launches
from iotrace.session.reading import entries, read_whole

HUNG, COMPUTING, WAITING = "hung", "computing", "waiting"
WAITS_FOR_WORK, WAITS_FOR_WORKERS = "waits for work", "waits for its workers"
LIBRARIES = ("/torch/", "/multiprocessing/", "/threading.py", "/queue.py", "/iotrace/", "/selectors.py")
_INSTALLED = ("/site-packages/", "/dist-packages/", "/lib/python3", "<frozen ", *LIBRARIES)
_LATER_NS = 1_000_000_000  # the least that a hang has to last longer than was reported


def banner(kind: str, since: str, awaited: str) -> str:
    """Say what a hang of a `kind` is; one that is ``waiting`` is for what is `awaited`."""
    return {
        HUNG: f"HUNG: {since}, and no process computes, reads or writes",
        COMPUTING: f"COMPUTING WITHOUT A STEP: {since}, in one place of the program",
        WAITING: f"WAITING: {since}, for {awaited}",
    }[kind]


def is_foreign(line: str) -> bool:
    """Say whether a frame is not the program's own."""
    return any(part in line for part in _INSTALLED)


def span(time_ns: int) -> str:
    """Say how long a hang lasts: ``47 s``, ``14 min``, ``2 h 5 min``."""
    seconds = time_ns / 1e9
    if seconds < 120:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(int(seconds // 60), 60)
    return " ".join([*[f"{hours} h"] * (hours > 0), *[f"{minutes} min"] * (minutes > 0)])


def how_long(since_ns: int | None, now_ns: int) -> str:
    """Say how long a call has lasted, after what it is; empty where that is unknown."""
    return f" for {(now_ns - since_ns) / 1e9:.0f} s" if since_ns and now_ns > since_ns else ""


def differing(places: Sequence[tuple[int, str, str]]) -> list[str]:
    """Say in which collectives ranks are, where these are not the same, or some rank is in none.

    `places`: number, host where it is to be named, and collective (empty: none) of each rank whose stack is
    known. What most of them are in comes first.
    """
    by_name: dict[str, list[tuple[int, str]]] = {}
    for number, host, name in sorted(places):
        by_name.setdefault(name, []).append((number, host))
    if len(by_name) < 2:
        return []
    rows = [
        f"{ranks_in_words(own)} {'is' if len(own) == 1 else 'are'} in {name or 'none'}"
        for name, own in sorted(by_name.items(), key=lambda pair: (-len(pair[1]), pair[1]))
    ]
    return [f"ranks are not in one collective: {', '.join(rows)}"]


def ranks_in_words(ranks: Iterable[tuple[int, str]]) -> str:
    """Name ranks by number and host: ``rank 3 (node2)``, ``ranks 0 to 3 (node1), 8``."""
    runs: list[tuple[int, int, str]] = []
    for number, host in sorted(set(ranks)):
        if runs and runs[-1][1:] == (number - 1, host):
            runs[-1] = runs[-1][0], number, host
        else:
            runs.append((number, number, host))
    parts = [
        (f"{first}" if first == last else f"{first} to {last}") + (f" ({host})" if host else "")
        for first, last, host in runs
    ]
    several = len(runs) > 1 or any(first != last for first, last, _ in runs)
    return f"rank{'s' if several else ''} {', '.join(parts)}"


_RANK = re.compile(r"rank (\d+)")


class BlockedThread(msgspec.Struct, frozen=True, kw_only=True):
    """A thread that is in a call on a file since `call_since_ns` of its host's CLOCK_MONOTONIC."""

    tid: int
    call: str = ""
    file: str | None = None
    call_since_ns: int = 0


class BlockedProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process of a loop that hangs; None is what is not known. `stack`: innermost frame first.

    `of` is the pid of the loop's training process.
    `stacks` is the file, relative to the session, that holds those of all its threads. `collective` is what
    a rank waits in for the others; empty: nothing of that kind. Since `call_since_ns` of its host's
    CLOCK_MONOTONIC its main thread is in the call; `threads` are others that have been in one for long.
    """

    pid: int
    role: str = ""
    of: int | None = None
    text: str = ""
    host: str | None = None
    state: str | None = None
    wchan: str | None = None
    call: str | None = None
    file: str | None = None
    call_since_ns: int | None = None
    threads: list[BlockedThread] = []
    stack: list[str] | None = None
    stacks: str | None = None
    collective: str = ""

    @property
    def rank(self) -> int | None:
        """Its number, where it is a rank of a job with several."""
        match = _RANK.fullmatch(self.role)
        return None if match is None else int(match[1])


class Hang(msgspec.Struct, frozen=True, kw_only=True, tag="hang"):
    """No batch came for `waited_ns`; `mono_ns` is when it was reported, `text` the words.

    `kind`: ``hung``; ``computing`` where a process was on a CPU, in one place of the program; ``waiting``
    where ranks waited for those of other hosts. It went on at `resumed_ns`. `lasted_ns` is from its last
    batch until it went on, or its run ended, or until now; readers find it. None where that is unknown.
    """

    mono_ns: int
    waited_ns: int
    kind: str = HUNG
    host: str | None = None
    world_size: int | None = None
    processes: list[BlockedProcess] = []
    text: list[str] = []
    resumed: bool = False
    resumed_ns: int | None = None
    lasted_ns: int | None = None


class _Resumed(msgspec.Struct, frozen=True, tag="resumed"):
    mono_ns: int


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """`state` is one of `liveness`; of a run that hangs ``hung`` or ``computing``. `text` says it."""

    state: str
    hangs: list[Hang]
    text: list[str]


def read_hangs(
    session: Path, hosts: Mapping[int, str] | None = None, until_ns: int | None = None
) -> list[Hang]:
    """Read what the session's samplers reported; several hosts give one hang.

    `hosts` says where ranks ran, by their numbers.
    """
    return joined(hangs_told(session, until_ns), hosts or {})


def over_ns(launches: list[Launch]) -> int | None:
    """Return until when a hang can have lasted: now, or the end of a run that is over; None if unknown."""
    if joint_state(launches) == RUNNING:
        return time.time_ns()
    ends_ns = [each.outcome.ended_ns for each in launches if each.outcome is not None]
    return max(ends_ns) if len(ends_ns) == len(launches) else None


def hangs_told(session: Path, until_ns: int | None = None) -> list[Hang]:
    """Read what each host's sampler reported, in that host's CLOCK_MONOTONIC; what is damaged is left out.

    `until_ns`: a hang lasts until then (CLOCK_REALTIME) where it did not go on; None where nobody knows.
    """
    hangs: list[Hang] = []
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
                own = [
                    each if each.resumed else replace(each, resumed=True, resumed_ns=record.mono_ns)
                    for each in own
                ]
        hangs += [_retold(each, _lasted_ns(each, directory, until_ns)) for each in own]
    return hangs


def _lasted_ns(hang: Hang, sampler: Path, until_ns: int | None) -> int | None:
    """Return how long it lasted from its last batch on; never less than was reported."""
    if hang.resumed_ns is not None:
        return hang.waited_ns + max(0, hang.resumed_ns - hang.mono_ns)
    if until_ns is None or hang.resumed:
        return None
    for document in first_documents([sampler / names.RECORDS]):
        match document.get("clock"):
            case [int(mono_ns), int(real_ns), *_]:
                return hang.waited_ns + max(0, until_ns - (real_ns + hang.mono_ns - mono_ns))
    return None


def _retold(hang: Hang, lasted_ns: int | None) -> Hang:
    """Say how long it lasted, not how long when it was reported; nobody looked at its calls later."""
    if lasted_ns is None:
        return hang
    if lasted_ns - hang.waited_ns < _LATER_NS:
        return replace(hang, lasted_ns=lasted_ns)
    texts = {each.text: _without_times(each, hang.mono_ns) for each in hang.processes if each.text}
    lines = []
    for line in hang.text[1:]:
        told = next((text for text in texts if line.endswith(text)), "")
        lines.append(line.removesuffix(told) + texts[told] if told else line)
    told = f"no batch for {hang.waited_ns / 1e9:.0f} s"
    first = [line.replace(told, f"no batch for {span(lasted_ns)}", 1) for line in hang.text[:1]]
    processes = [replace(each, text=texts.get(each.text, "")) for each in hang.processes]
    return replace(hang, lasted_ns=lasted_ns, text=[*first, *lines], processes=processes)


def _without_times(process: BlockedProcess, told_ns: int) -> str:
    text = process.text
    for since_ns in (process.call_since_ns, *(each.call_since_ns for each in process.threads)):
        if lasts := how_long(since_ns, told_ns):
            text = text.replace(lasts, "", 1)
    return text


def joined(hangs: list[Hang], hosts: Mapping[int, str]) -> list[Hang]:
    """Make one hang of those that one job's ranks have on several hosts, where no rank went on since.

    Where ranks of some host were not seen to wait, they are what differs: it stays ``waiting``, and says so.
    """
    own = [each for each in hangs if not each.resumed and (each.world_size or 1) > len(_ranks(each))]
    if not own or all(each.kind != WAITING for each in own):
        return hangs
    processes = [
        replace(process, host=each.host) if process.host is None else process
        for each in own
        for process in each.processes
    ]
    waited_ns = max(each.waited_ns for each in own)
    lasted_ns = max((each.lasted_ns for each in own if each.lasted_ns is not None), default=None)
    is_longer = lasted_ns is not None and lasted_ns - waited_ns >= _LATER_NS
    lasts = span(lasted_ns or 0) if is_longer else f"{waited_ns / 1e9:.0f} s"
    world_size = max(each.world_size or 1 for each in own)
    seen = {process.rank for process in processes if process.rank is not None}
    computing = any(each.kind == COMPUTING for each in own)
    missing = sorted(set(range(world_size)) - seen)
    count = len({each.host for each in own})
    since = f"no batch for {lasts} on {count} host{'s' if count > 1 else ''}"
    lines = [
        f"  {each.role} (pid {each.pid} on {each.host}) {each.text}"
        for each in processes
        if each.rank is not None or each.collective or not each.text.startswith(WAITS_FOR_WORK)
    ]
    kind = WAITING if missing else COMPUTING if computing else HUNG
    whose = ranks_in_words((number, hosts.get(number, "")) for number in missing)
    if missing:
        lines.append(f"  {whose}: not seen to wait; look there")
    else:
        places = [
            (each.rank, each.host or "", each.collective)
            for each in processes
            if each.rank is not None and each.stack
        ]
        lines += [f"  {line}" for line in differing(places)]
    one = Hang(
        mono_ns=max(each.mono_ns for each in own),
        waited_ns=waited_ns,
        kind=kind,
        world_size=world_size,
        processes=processes,
        text=[banner(kind, since, whose), *lines],
        lasted_ns=lasted_ns,
    )
    return [*(each for each in hangs if each not in own), one]


def _ranks(hang: Hang) -> set[int]:
    return {each.rank for each in hang.processes if each.rank is not None}


def read_status(session: Path) -> Status:
    """Say whether the run of a session goes on, and what it hangs in.

    Raises:
        SessionError: it is no session.
    """
    launches = read_launches(session)
    state, hangs = joint_state(launches), read_hangs(session, until_ns=over_ns(launches))
    text = [line for each in hangs for line in each.text]
    if hangs and all(each.resumed for each in hangs):
        text.append("it went on since: batches came again")
    elif hangs and state == RUNNING:
        kinds = {each.kind for each in hangs if not each.resumed}
        state = next((kind for kind in (HUNG, COMPUTING) if kind in kinds), state)
    elif hangs:
        text.append(f"the run is over: {state}")
    return Status(state=state, hangs=hangs, text=text)
