"""Tell queues apart: which of them are one stage, made anew, and what each is called."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from iotrace.analysis.intervals import Times
from iotrace.sources.records import Queue

_BESIDE = 0.5  # of what is taken from one while another is in use: they are two, side by side
# Of one function's queues so many stages are told apart, each by its last queues: a program may make a queue
# for each request.
_MOST_STAGES, _LAST = 64, 8


def firsts_of(queues: Sequence[Queue | None], queue: Times, taken_ns: Times, renewed: bool = False) -> Times:
    """Return, of each queue, the first one that is the same stage.

    A program makes new queues for each epoch, into which the same functions put, and takes from one after
    the other. `renewed`: a library does that, which may take from two of them at once for a while.
    """
    firsts = np.arange(len(queues))
    order = np.lexsort((taken_ns, queue))
    begin, end = (np.searchsorted(queue[order], firsts, side) for side in ("left", "right"))
    times = [taken_ns[order[start:stop]] for start, stop in zip(begin, end, strict=True)]
    stages: dict[tuple[str, str, int], list[list[int]]] = defaultdict(list)
    for at, each in enumerate(queues):
        if each is None or not (each.by or renewed):
            continue
        known = stages[each.by, each.of, each.limit]
        fitting = [
            own for own in known if renewed or not any(_beside(times[at], times[one]) for one in own[-_LAST:])
        ]
        if not fitting:
            if len(known) < _MOST_STAGES:
                known.append([at])
            continue
        # Of several, which the loop takes from in turns: whose makers are called alike, else the oldest.
        stage = max(fitting, key=lambda own: (_alike(each, queues[own[0]]), -own[-1]))
        stage.append(at)
        firsts[at] = stage[0]
    return firsts


def _alike(one: Queue, other: Queue | None) -> int:
    """Count the names that two queues' makers have in common."""
    return 0 if other is None else len({*one.apart} & {*other.apart})


def _beside(one: Times, other: Times) -> bool:
    """Tell whether a loop takes from two queues side by side."""
    if len(one) > len(other):
        one, other = other, one
    if not len(one):
        return False
    within = (one >= other[0]) & (one <= other[-1])
    return bool(within.mean() >= _BESIDE)


def named_apart(queues: Sequence[Queue | None], firsts: Times) -> list[Queue | None]:
    """Call queues of several stages, into which the same function puts, by what tells their makers apart."""
    stages: dict[str, list[int]] = defaultdict(list)
    for at in np.unique(firsts).tolist():
        about = queues[at]
        if about is not None and about.by:
            stages[about.by].append(at)
    called: dict[int, str] = {}
    for by, same in stages.items():
        if not 1 < len(same) <= _MOST_STAGES:
            continue
        given = [about.apart for at in same if (about := queues[at]) is not None]
        own = [_own(each, [one for one in given if one is not each]) for each in given]
        if all(own):
            called.update({at: _called(by, name) for at, name in zip(same, own, strict=True)})
    pairs = zip(queues, firsts.tolist(), strict=True)
    return [
        _renamed(each, called[first]) if each is not None and first in called else each
        for each, first in pairs
    ]


def _renamed(queue: Queue, name: str) -> Queue:
    """Call a queue otherwise: by a function, or by what tells apart what the same function makes."""
    site = queue.sites.get(queue.by if name.startswith(f"{queue.by} ") else name, "")
    return replace(queue, by=name, sites={name: site})


def _own(names: list[str], others: list[list[str]]) -> str:
    """Return the first of a maker's names that no other has."""
    return next((each for each in names if not any(each in one for one in others)), "")


def _called(by: str, name: str) -> str:
    """A function's name stands alone; a thread, a process or a line is no name of what it does."""
    if name.startswith("line "):
        return f"{by} taken at {name.removeprefix('line ')}"
    return f"{by} in {name}" if name.startswith(("thread ", "process ")) else name
