"""What the training thread itself read and wrote in the measured steps, beside what it asked of loaders.

Its reading is all that is known of the data without a loader; with one, reading that no data wait holds.
"""

from __future__ import annotations

import msgspec
import numpy as np
from msgspec.structs import replace

from iotrace.analysis.intervals import Coverage, Intervals, distinct, pieces, subtract, union
from iotrace.analysis.loop.step_table import StepTable
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import LoopReads
from iotrace.analysis.storage.io import WRITES
from iotrace.analysis.wait.called_files import with_called
from iotrace.analysis.wait.data_wait import file_costs
from iotrace.analysis.wait.file_costs import read_calls
from iotrace.analysis.wait.page_faults import bounds
from iotrace.analysis.wait.production import READING, compose, of_kinds

_WORTH_TELLING = 0.01  # of a step, where the data wait is known
_SYNCS = frozenset({"fsync", "fdatasync"})
_MOSTLY = 0.5  # of the time that writing takes


def loop_reads(analysis: RankAnalysis) -> LoopReads | None:
    """Sum up the thread's reading and decoding; None without a step.

    Where the data wait is known, its asks and evaluations are left out; None where little is left.
    """
    thread, kept, main = analysis.loop.thread, analysis.kept, analysis.rank.main
    if thread is None or not len(kept):
        return None
    unknown = bool(analysis.loop.unknown_why)
    calls = analysis.session.calls_of(main)
    calls = calls.where((calls.tid == thread.tid) & read_calls(calls))
    own = (main.spans["tid"] == thread.tid) & of_kinds(main.spans, *READING)
    spans = main.spans[own]
    starts, ends = (kept["start_ns"], kept["end_ns"]) if unknown else _outside_asks(kept)
    if not unknown:  # most of many steps hold no read
        begin, until = bounds(spans)
        begin, until = np.append(begin, calls.start_ns), np.append(until, calls.end_ns)
        begun = np.searchsorted(starts, begin, side="right") - 1
        held = distinct(begun[np.isin(begun, pieces(begin, until, starts, ends)[3])])
        starts, ends = starts[held], ends[held]
        if not len(held):
            return None
    main = with_called(replace(main, spans=spans), calls, analysis.session.paths)
    made = compose(main, calls, analysis.session.paths, starts, ends, inline=True)
    spent_ns = made.parts[:, :2].sum(axis=0)
    if not unknown and spent_ns.sum() < _WORTH_TELLING * int(kept.duration_ns.sum()):
        return None
    a_step = 1e-6 / len(kept)
    return LoopReads(
        read_ms=float(spent_ns[0]) * a_step,
        decode_ms=float(spent_ns[1]) * a_step,
        files=file_costs(made.files, len(kept)),
    )


def _outside_asks(steps: StepTable) -> Intervals:
    """Return the steps' time without evaluations and without the waits in them, sorted and disjoint."""
    starts, ends, _ = steps.pieces
    asks = steps.awaited
    return subtract(union(starts, ends), union(asks["wait_start_ns"], asks["delivered_ns"]))


class LoopWrites(msgspec.Struct, frozen=True, kw_only=True):
    """What the training thread wrote in the measured steps, and waited for the disk of that, in ms a step.

    `of_steps` is the share of the steps in which it wrote. `file` took most of the time; empty: no one did.
    """

    writing_ms: float
    synced_ms: float
    of_steps: float
    file: str


def loop_writes(analysis: RankAnalysis) -> LoopWrites | None:
    """Sum up what the thread wrote outside of its waits and evaluations; None where it wrote nothing."""
    thread, kept, main = analysis.loop.thread, analysis.kept, analysis.rank.main
    if thread is None or not len(kept) or analysis.loop.unknown_why:
        return None
    calls = analysis.session.calls_of(main)
    calls = calls.where((calls.tid == thread.tid) & calls.named(WRITES | _SYNCS))
    if not len(calls.tid):
        return None
    spent_ns = Coverage(*_outside_asks(kept)).within(calls.start_ns, calls.end_ns)
    writing = distinct(np.searchsorted(kept["start_ns"], calls.start_ns[spent_ns > 0], side="right"))
    named = calls.file >= 0
    by_file = np.bincount(calls.file[named], spent_ns[named], 1)
    costly = int(np.argmax(by_file))
    is_one = by_file[costly] >= _MOSTLY * spent_ns.sum() and spent_ns.any()
    return LoopWrites(
        writing_ms=float(spent_ns.sum()) * 1e-6 / len(kept),
        synced_ms=float(spent_ns[calls.named(_SYNCS)].sum()) * 1e-6 / len(kept),
        of_steps=len(writing) / len(kept),
        file=analysis.session.paths.shown(calls.files[costly]) if is_one else "",
    )
