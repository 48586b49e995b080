"""What memory maps had read from storage for what was used of them, as far as the kernel tells.

No call reads a mapped file. The kernel counts what a process had read from storage, not of which file: what its read
calls may have had is taken off, so that what is left is a lower bound of what page faults fetched.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from iotrace.analysis.host.kernel_account import accounts_of_loop
from iotrace.analysis.results import MappedReads
from iotrace.session.names import KIND_ITEM
from iotrace.sources.paths import Paths
from iotrace.sources.processes import Process
from iotrace.sources.records import Mapped
from iotrace.sources.session import Rank

_PAGE = 4096
_OF_ACCESSES = 0.01  # a process with fewer of them made no batches of it
# Fetched / touched at most. Here 1 GB/s came from the disk, and a page of it in 0.2 ms: at 65 single pages were
# 1.7 times as fast, at 30 as fast. (docs/culprits.md)
_WORTH = 64

_NO_ACCOUNT = "the kernel tells no bytes from storage of these processes"
_OTHER_MAPS = "several files were mapped, and the kernel counts bytes from storage by process"
_CHILDREN = "the process had children, whose bytes from storage the kernel adds to its own"
_NOT_COUNTED = "pages came by faults, but this file system counts no bytes from storage"
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
    odd = sum(record.odd for _, record in own)
    makers = {process.pid: process for process, record in own if record.accesses >= _OF_ACCESSES * accesses}
    faults = sum(_faults(process) for process in makers.values())
    touched = None if odd else sum(record.pages for _, record in own) * _PAGE
    fetched, why = _fetched([*makers.values()], rank, faults)
    if any(path not in members for path in mapped):
        fetched, why = None, _OTHER_MAPS
    worth = fetched is not None and touched is not None and fetched >= _WORTH * touched > 0
    return MapFetched(
        used_bytes=sum(record.bytes for _, record in own),
        fetched_bytes=fetched,
        why=why or _NOT_DECODED,
        reads=MappedReads(
            accesses=accesses,
            touched_bytes=touched,
            major_faults=faults,
            predicted_bytes=touched if worth else None,
        ),
    )


def _faults(process: Process) -> int:
    return int(process.spans["major_faults"][process.spans["kind"] == KIND_ITEM].sum())


def _fetched(makers: list[Process], rank: Rank, faults: int) -> tuple[int | None, str]:
    total = 0
    for process in makers:
        ticks = [tick for tick in accounts_of_loop(process) if tick.read_bytes is not None]
        if not ticks:
            return None, _NO_ACCOUNT
        if any(child.identity.ppid == process.pid for child in rank.processes):
            return None, _CHILDREN
        last = ticks[-1]
        read, called = last.read_bytes or 0, last.rchar or 0
        if process.identity.role != "forked":  # a forked child's account begins with it
            read, called = read - (ticks[0].read_bytes or 0), called - (ticks[0].rchar or 0)
        total += max(0, read - called)
    if faults * _PAGE > total:
        return None, _NOT_COUNTED
    return total, ""
