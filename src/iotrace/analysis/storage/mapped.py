"""What memory maps had read from storage for what was used of them, as far as the kernel tells.

No call reads a mapped file. The kernel counts what a process had read from storage, not of which file: what
its read calls may have had is taken off, so that what is left is a lower bound of what page faults fetched.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from itertools import chain

import msgspec

from iotrace.analysis.results import MappedReads
from iotrace.analysis.storage.kernel_account import accounts_of_loop
from iotrace.session.names import KIND_ITEM
from iotrace.sources.paths import Paths
from iotrace.sources.processes import Process
from iotrace.sources.records import Mapped
from iotrace.sources.session import Rank

_SMALLEST_PAGE, _ELEMENT = 4096, 16
_BY_CALLS = 0.5  # of the bytes from storage
_OF_ACCESSES = 0.01  # a process with fewer of them made no batches of it
_WORTH = 64  # fetched / touched at most: where single pages were faster (docs/culprits.md)

_NO_ACCOUNT = "the kernel tells no bytes from storage of these processes"
_OTHER_MAPS = "several files were mapped, and the kernel counts bytes from storage by process"
_CHILDREN = "the process had children, whose bytes from storage the kernel adds to its own"
_NOT_COUNTED = "pages came by faults, but this file system counts no bytes from storage"
_CALLS = "read calls of its processes may have had most of what came from storage"
_NO_TRACE = "which bytes of its own map a program or a library takes leaves no trace"
_NOT_DECODED = "a memory map has nothing to decode"


class MapFetched(msgspec.Struct, frozen=True):
    """Bytes used of maps; those fetched at least, None for the reason in `why`."""

    used_bytes: int
    fetched_bytes: int | None
    why: str
    reads: MappedReads


def mapped_files(rank: Rank, paths: Paths) -> dict[str, list[tuple[Process, Mapped]]]:
    """The last sums of each process's accesses to mapped files, by file."""
    found: dict[str, list[tuple[Process, Mapped]]] = {}
    for process in rank.processes:
        for path, record in {record.path: record for record in process.of_type(Mapped)}.items():
            found.setdefault(paths.shown(path), []).append((process, record))
    return found


def fetched_by_faults(
    members: Collection[str], mapped: Mapping[str, list[tuple[Process, Mapped]]], rank: Rank
) -> MapFetched:
    """Tell what was fetched of the mapped files `members`, which are one group."""
    own = [pair for path in members for pair in mapped.get(path, ())]
    accesses = sum(record.accesses for _, record in own)
    # Of all maps of a process: the latest count, whatever file it stands by, is its largest.
    latest: Counter[int] = Counter()
    for process, record in chain.from_iterable(mapped.values()):
        latest[process.pid] = max(latest[process.pid], record.elements)
    elements = sum(latest[pid] for pid in {process.pid for process, _ in own})
    odd = sum(record.odd for _, record in own) + elements
    makers = {process.pid: process for process, record in own if record.accesses >= _OF_ACCESSES * accesses}
    faults = sum(_faults(process) for process in makers.values())
    touched = None if odd else sum(record.pages * record.page_bytes for _, record in own)
    fetched, why = _fetched([*makers.values()], rank, faults)
    if any(path not in members for path in mapped):
        fetched, why = None, _OTHER_MAPS
    worth = fetched is not None and touched is not None and fetched >= _WORTH * touched > 0
    return MapFetched(
        used_bytes=sum(record.bytes for _, record in own) + elements * _ELEMENT,
        fetched_bytes=fetched,
        why=why or _NOT_DECODED,
        reads=MappedReads(
            accesses=accesses,
            touched_bytes=touched,
            major_faults=faults,
            predicted_bytes=touched if worth else None,
        ),
    )


def fetched_by_own_maps(path: str, others: Collection[str], rank: Rank) -> tuple[int | None, str]:
    """Tell what was fetched of the file `path`, which the program or a library maps itself, or why not."""
    if any(other != path for other in others):
        return None, f"{_NO_TRACE}; {_OTHER_MAPS}"
    makers = [process for process in rank.processes if (process.spans["kind"] == KIND_ITEM).any()]
    fetched, why = _fetched(makers, rank, sum(map(_faults, makers)))
    return fetched, f"{_NO_TRACE}; {why}" if why else _NO_TRACE


def _faults(process: Process) -> int:
    return int(process.spans["major_faults"][process.spans["kind"] == KIND_ITEM].sum())


def _fetched(makers: list[Process], rank: Rank, faults: int) -> tuple[int | None, str]:
    read = called = 0
    for process in makers:
        ticks = [tick for tick in accounts_of_loop(process) if tick.read_bytes is not None]
        if not ticks:
            return None, _NO_ACCOUNT
        if any(child.identity.ppid == process.pid for child in rank.processes):
            return None, _CHILDREN
        # A forked child's account begins with it.
        before = None if process.identity.role == "forked" else ticks[0]
        read += (ticks[-1].read_bytes or 0) - (before.read_bytes or 0 if before else 0)
        called += (ticks[-1].rchar or 0) - (before.rchar or 0 if before else 0)
    if faults * _SMALLEST_PAGE > read:
        return None, _NOT_COUNTED
    if read and called > _BY_CALLS * read:
        return None, _CALLS
    return max(0, read - called), ""
