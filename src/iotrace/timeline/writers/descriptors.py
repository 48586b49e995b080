"""Descriptors of a native trace's tracks: a tree in the wanted order, or processes with their threads.

Perfetto sorts processes by how many slices they hold, and cannot be told otherwise. Plain tracks keep the
order that is asked for, so a trace is one root with groups below it. Its tables `process` and `thread` are
then empty; who asks for them in SQL gets processes, in Perfetto's order.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from iotrace.timeline.writers.id_map import Process
from iotrace.timeline.writers.protobuf import data, integer, text

PROCESS_UUID = 1 << 40
GROUP_UUID = PROCESS_UUID + (1 << 38)  # the first group of tracks within each process
_NEXT_GROUP = 1 << 36  # processes have smaller numbers
COUNTERS_OF_UUID = PROCESS_UUID + (1 << 39)  # the counters of each process
ROOT_UUID = 1 << 41
_COUNTERS = "counters"
_EXPLICIT = 3  # children stand in the order of their ranks


def tree(title: str, processes: list[Process]) -> Iterator[bytes]:
    """Yield the root, the groups of `processes`, the processes with their tracks, their counters at last."""
    yield _track(ROOT_UUID, title, None, 0)
    groups: dict[tuple[str, ...], int] = {(): ROOT_UUID}
    for process in processes:
        above = ROOT_UUID
        for depth in range(1, len(process.groups) + 1):
            path = process.groups[:depth]
            if path not in groups:
                if not process.threads:
                    break  # nothing else is of this group, and it has counters alone, or instants
                groups[path] = ROOT_UUID + len(groups)
                yield _track(groups[path], path[-1], above, process.order)
            above = groups[path]
        # One that has no slices of its own may have instants, which name it.
        yield _track(PROCESS_UUID + process.pid, process.short or process.name, above, process.order)
        within = {"": PROCESS_UUID + process.pid}
        for thread in process.threads:
            if thread.group not in within:
                within[thread.group] = GROUP_UUID + process.pid + _NEXT_GROUP * (len(within) - 1)
                yield _track(within[thread.group], thread.group, within[""], thread.order)
            # Lanes of one thread have one name: Perfetto shows them as one track.
            yield _track(thread.tid, thread.name, within[thread.group], thread.order)
    counters = ROOT_UUID + len(groups)
    yield _track(counters, _COUNTERS, ROOT_UUID, len(processes) + 1)
    for process in processes:
        yield _track(COUNTERS_OF_UUID + process.pid, process.name, counters, process.order)


def _track(uuid: int, name: str, above: int | None, order: int) -> bytes:
    fields = integer(1, uuid) + text(2, name) + integer(11, _EXPLICIT) + integer(12, order)
    return fields if above is None else fields + integer(5, above)


def tables(processes: list[Process]) -> Iterator[bytes]:
    """Yield processes and threads, which fill the tables of these names."""
    # The tracks' own numbers join the packets; those that are shown can be dense and in order, by which
    # Perfetto sorts the threads of native traces. No thread's is a process's, which would make it a main one.
    shown = count(1001 if len(processes) < 1000 else len(processes) + 1)
    for process in processes:
        fields = integer(1, process.order) + text(6, process.name) + integer(3, process.order)
        if process.labels:
            fields += text(8, process.labels)
        yield integer(1, PROCESS_UUID + process.pid) + data(3, fields)
        for thread in process.threads:
            name = f"{thread.name} +{thread.lane}" if thread.lane else thread.name
            fields = integer(1, process.order) + integer(2, next(shown)) + text(5, name)
            yield integer(1, thread.tid) + data(4, fields + integer(3, thread.order))
    yield integer(1, ROOT_UUID) + text(2, "whole trace")
