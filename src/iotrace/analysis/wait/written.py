"""What the training thread writes to files, and to which.

Definitions: docs/definitions.md, "loop_events".
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Callable

import msgspec
import numpy as np

from iotrace.analysis.intervals import Coverage, Intervals, distinct, length, union
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.storage.io import WRITES
from iotrace.analysis.wait.checkpoints import SYNCS, held_open_in_steps
from iotrace.sources.posix_calls import PosixCalls

_MOSTLY = 0.5  # of the time that writing takes
_NEARLY = 0.8  # of the time that files are open


class Written(msgspec.Struct, frozen=True):
    """What the training thread writes: when, to which files, how many bytes to those that it opens for that.

    `every` are its calls on files, `syncs` those that sync; `reopened`: most of it `files` are open.
    """

    every: Intervals
    own: Intervals
    syncs: PosixCalls
    files: list[str]
    size: int | None
    reopened: bool


def written_by(analysis: RankAnalysis, chosen: Callable[[Intervals], Intervals]) -> Written:
    """Find when the loop wrote and synced, as far as that is `chosen`, and to which files."""
    main = analysis.rank.main
    tid = main.pid if analysis.loop.thread is None else analysis.loop.thread.tid
    calls = analysis.session.calls_of(main)
    calls = calls.where((calls.tid == tid) & (calls.file >= 0))
    opened, closed, opened_file, written = held_open_in_steps(analysis, calls)
    every = union(calls.start_ns, calls.end_ns)
    calls = calls.where(calls.named(WRITES | SYNCS))
    own = chosen(union(np.append(calls.start_ns, opened), np.append(calls.end_ns, closed)))
    syncs = calls.where(calls.named(SYNCS))
    named = syncs if len(syncs.file) else calls
    files = [analysis.session.paths.shown(named.files[number]) for number in distinct(named.file).tolist()]
    # What files of one kind are open for names them: beside them a line may go to the terminal.
    free = Coverage(*own).within(opened, closed)
    shown = [analysis.session.paths.shown(calls.files[number]) for number in opened_file.tolist()]
    kinds = [(posixpath.dirname(each), posixpath.splitext(each)[1]) for each in shown]
    open_ns: Counter[tuple[str, str]] = Counter()
    for kind, ns in zip(kinds, free.tolist(), strict=True):
        open_ns[kind] += ns
    size, named_kinds = None, _most_of(open_ns)
    reopened = sum(open_ns[kind] for kind in named_kinds) >= _MOSTLY * max(1, length(own))
    if reopened:
        which = [at for at, kind in enumerate(kinds) if kind in named_kinds and free[at]]
        files = [*dict.fromkeys(shown[at] for at in which)]
        size = int(written[which].sum())
    return Written(every, own, syncs, files, size, bool(reopened))


def _most_of(open_ns: Counter[tuple[str, str]]) -> set[tuple[str, str]]:
    """Choose the kinds of files that are open for longest, until they have nearly all of it."""
    found, sum_ns = set(), 0
    for kind, ns in open_ns.most_common():
        if sum_ns >= _NEARLY * open_ns.total():
            break
        found.add(kind)
        sum_ns += ns
    return found
