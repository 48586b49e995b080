"""What the making of each batch was made of: read, decode, transform, collate, unknown; and in which files.

An instant belongs to the first that holds it: a POSIX call (`read`), a read path such as h5py
(`decode`), the dataset's ``__getitem__`` or ``__next__`` (`transform`), the collate function. Where the
POSIX tracer sees less than the thread was blocked, inside a read path, the rest of the blocked time is
`read` too: page faults of memory maps, reads through duplicated descriptors, remote stores. Page faults
outside read paths are those of `page_faults`. Of an item that read one file alone, the `transform` behind the
first read is charged to that file, too: it is told as "transform, after reading" it; not of a thread that
reads ahead (`read_ahead`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from iotrace.analysis.intervals import Coverage, Intervals, Shares, Times, distinct, pieces, ranges
from iotrace.analysis.wait.file_costs import Charges, FileCosts, FileNames, item_reads
from iotrace.analysis.wait.page_faults import Fractions, bounds, page_faults, touched
from iotrace.session.names import KIND_COLLATE, KIND_ITEM, KIND_MAPPED, KIND_READ_PATH
from iotrace.sources.columns import Columns
from iotrace.sources.dftracer import stdio
from iotrace.sources.paths import Paths
from iotrace.sources.posix_calls import PosixCalls
from iotrace.sources.processes import Process
from iotrace.sources.stolen_time import run_delays

PARTS = ("read", "decode", "transform", "collate", "unknown")
_READ, _DECODE, _TRANSFORM, *_ = range(len(PARTS))
READING = (KIND_READ_PATH, KIND_MAPPED)  # kinds of spans that read files
_MOST_NS = 2**62


class Composition(msgspec.Struct, frozen=True):
    """What the production windows ``[starts[i], ends[i])`` of one process were made of, in ns.

    `parts` has the shape (windows, `PARTS`): each row sums to the length of its window. `files` are
    charged to windows.
    """

    starts: Times
    ends: Times
    parts: npt.NDArray[np.float64]
    files: FileCosts

    def move_to_read(self, part: int, windows: Times, costs_ns: Fractions) -> None:
        """Move `costs_ns`, one in each of `windows` (repeated or not), from `part` to `read`."""
        np.add.at(self.parts[:, _READ], windows, costs_ns)
        np.subtract.at(self.parts[:, part], windows, costs_ns)


def compose(
    process: Process,
    calls: PosixCalls,
    paths: Paths,
    starts: Times,
    ends: Times,
    mapped_files: Sequence[str] = (),
    inline: bool = False,
    names: FileNames | None = None,
    ahead: frozenset[int] = frozenset(),
) -> Composition:
    """Compose the productions ``[starts[i], ends[i])`` of `process`: sorted and disjoint.

    `calls` are the process's own POSIX calls, `mapped_files` the files of its memory maps. `inline`: one
    item of a source may hold several of the windows. `names` number the
    files. Threads `ahead` read what they use much later: it is not told what of their work is of which file.
    """
    names = names or FileNames()
    if not inline:
        process = without_holders(process, starts, ends)
    spans = process.spans
    posix = Coverage(calls.start_ns, calls.end_ns)
    # A copy out of a memory map (by a list of indices) reads inside the access: a read path of its own.
    read_paths = outermost_of(process, *READING)
    layers = [posix]
    for layer in (
        bounds(read_paths),
        _first_to_last(*bounds(spans[spans["kind"] == KIND_ITEM]), starts, ends),
        bounds(spans[spans["kind"] == KIND_COLLATE]),
    ):
        covered = layers[-1]
        layers.append(
            Coverage(np.concatenate((covered.starts, layer[0])), np.concatenate((covered.ends, layer[1])))
        )
    cumulative = np.stack([layer.within(starts, ends) for layer in layers], axis=1)
    parts = np.diff(cumulative, axis=1, prepend=0, append=(ends - starts)[:, None]).astype(np.float64)
    shown = {number: paths.shown(file) for number, file in process.span_files.items()}
    shown_calls = {number: paths.shown(calls.files[number]) for number in distinct(calls.file).tolist()}
    items = outermost_of(process, KIND_ITEM)
    reads = item_reads(items, spans, read_paths, calls, shown, shown_calls, names)
    known = (reads.latest >= 0) & ~np.isin(read_paths["tid"], [*ahead])
    files = np.where(known, reads.latest, names.of(read_paths["file"], shown))
    only_read = np.where(np.isin(items["tid"], [*ahead]), -1, reads.only)
    # What a library decodes on threads of its own, inside its call that has the file, is that call's.
    inside = _inside_others(read_paths, files >= 0) & ~np.isin(read_paths["tid"], items["tid"])
    read_paths, files = read_paths[~inside], files[~inside]
    made = Composition(starts, ends, parts, FileCosts.of(names, []))
    _, held = stdio.nested(calls)  # calls inside one of stdio are that one's time
    own_calls = calls.where(~held) if held.any() else calls
    charges = [_of_calls(made, own_calls, names.of(own_calls.file, shown_calls))]
    blocked = _blocked(process, read_paths, posix)
    charges.append(_of_decoding(made, read_paths, posix, files, blocked))
    only = paths.shown(mapped_files[0]) if len(mapped_files) == 1 else None
    faulted, of_faults = _of_faults(made, spans, items, read_paths, layers, shown, names, only)
    charges += of_faults
    charges.append(_of_what_follows(made, items, layers[1], only_read, reads.first_end_ns, 1 - faulted))
    return replace(made, files=FileCosts.of(names, charges))


def without_holders(process: Process, starts: Times, ends: Times) -> Process:
    """Leave out items that hold a whole window: of a source that wraps the loader whose windows these are."""
    holds = _holds_a_window(process.spans, starts, ends)
    return replace(process, spans=process.spans[~holds]) if holds.any() else process


def _holds_a_window(spans: Columns, starts: Times, ends: Times) -> npt.NDArray[np.bool_]:
    """Mark the items that hold a whole window."""
    begin, end = bounds(spans)
    first = np.searchsorted(starts, begin)
    until = np.append(ends, np.iinfo(np.int64).max)[first]
    holds = (begin < np.append(starts, 0)[first]) & (until < end)
    return np.asarray(holds & (spans["kind"] == KIND_ITEM), np.bool_)


def _first_to_last(item_starts: Times, item_ends: Times, starts: Times, ends: Times) -> Intervals:
    """Per window that makes samples, from the start of its first to the end of its last.

    What lies between two samples is the fetcher's loop, which iterates the dataset, and the recording of the
    samples: with many small ones a few per cent of the production.
    """
    piece_starts, piece_ends, _, window = pieces(item_starts, item_ends, starts, ends)
    first, last = ends.copy(), starts.copy()
    np.minimum.at(first, window, piece_starts)
    np.maximum.at(last, window, piece_ends)
    made = first < last
    return first[made], last[made]


def of_kinds(spans: Columns, *kinds: int) -> npt.NDArray[np.bool_]:
    """Mark the spans of some kinds; ``np.isin`` takes several times as long for few."""
    marks: npt.NDArray[np.bool_] = np.logical_or.reduce([spans["kind"] == kind for kind in kinds])
    return marks


def outermost_of(process: Process, *kinds: int) -> Columns:
    """Take its spans of some kinds that are not inside another one of these on the same thread."""
    if kinds not in process.outermost:
        process.outermost[kinds] = outermost(process.spans, of_kinds(process.spans, *kinds))
    return process.spans[process.outermost[kinds]]


def outermost(spans: Columns, chosen: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Mark the chosen spans that are not inside another chosen one of the same thread."""
    rows = np.flatnonzero(chosen)
    keep = np.zeros(len(spans), dtype=np.bool_)
    if not len(rows):
        return keep
    tids, starts, lengths = (spans[field][rows] for field in ("tid", "start_ns", "duration_ns"))
    if (tids == tids[0]).all() and (starts[1:] >= starts[:-1] + np.maximum(lengths[:-1], 1)).all():
        keep[rows] = True  # one behind the other, as a worker makes them
        return keep
    rows = rows[np.lexsort((-lengths, starts, tids))]
    tids = spans["tid"][rows]
    thread = np.cumsum(np.append(False, tids[1:] != tids[:-1]))
    starts = spans["start_ns"][rows] - spans["start_ns"][rows].min()
    ends = starts + spans["duration_ns"][rows]
    # One thread behind the other: all times in one order.
    behind_ns = thread * min(int(ends.max()) + 1, _MOST_NS // (int(thread[-1]) + 1))
    until = np.maximum.accumulate(np.append(-1, (ends + behind_ns)[:-1]))
    alone = (starts + behind_ns >= until) | np.append(True, tids[1:] != tids[:-1])
    keep[rows[alone]] = True
    holder = np.maximum.accumulate(np.where(alone, np.arange(len(rows)), 0))
    beyond = distinct(holder[ends > ends[holder]])  # it overlaps the one that holds its start
    for first in beyond.tolist():
        until_ns = ends[first]
        for at in range(first + 1, len(rows)):
            if alone[at]:
                break
            if starts[at] >= until_ns:
                keep[rows[at]], until_ns = True, ends[at]
    return keep


def _inside_others(spans: Columns, has_file: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Mark the spans without a file that lie, in time, inside one that has a file."""
    starts, ends = bounds(spans)
    order = np.argsort(starts[has_file], kind="stable")
    until = np.maximum.accumulate(np.append(-1, ends[has_file][order]))
    begun = np.searchsorted(starts[has_file][order], starts, side="right")
    return np.asarray(~has_file & (ends <= until[begun]), np.bool_)


def _of_calls(made: Composition, calls: PosixCalls, file: Times) -> Charges:
    piece_starts, piece_ends, call, window = pieces(calls.start_ns, calls.end_ns, made.starts, made.ends)
    shares = Shares(calls.start_ns, calls.end_ns).of(piece_starts, piece_ends)
    return Charges.of(window, file[call], shares)


def _of_decoding(
    made: Composition, read_paths: Columns, posix: Coverage, file: Times, blocked: Fractions
) -> Charges:
    """Divide what is in read paths but in no POSIX call; move its blocked part from decode to read."""
    starts, ends = bounds(read_paths)
    piece_starts, piece_ends, span, window = pieces(starts, ends, made.starts, made.ends)
    shares = Shares(starts, ends, mask=posix).of(piece_starts, piece_ends)
    read = shares * blocked[span]
    made.move_to_read(_DECODE, window, read)
    return Charges.of(window, file[span], read, shares - read)


def _of_faults(
    made: Composition,
    spans: Columns,
    items: Columns,
    read_paths: Columns,
    layers: list[Coverage],
    shown: dict[int, str],
    names: FileNames,
    only: str | None,
) -> tuple[Fractions, list[Charges]]:
    """Move what the items read by page faults, outside calls and read paths, from transform to read.

    `only` is the one mapped file of the process, if it has just one: faults in no known file are its. Return
    the fraction of each item's own time that was moved, too.
    """
    fraction = page_faults(items, read_paths, layers[0])
    reading = np.flatnonzero(fraction > 0)
    if not len(reading):
        return fraction, []
    starts, ends = bounds(items)
    piece_starts, piece_ends, item, window = pieces(starts[reading], ends[reading], made.starts, made.ends)
    item = reading[item]
    read = Shares(starts, ends, mask=layers[1]).of(piece_starts, piece_ends) * fraction[item]
    made.move_to_read(_TRANSFORM, window, read)
    touching, file, share = touched(spans, items)
    file = names.of(file, shown)
    touching, file, share = touching[file >= 0], file[file >= 0], share[file >= 0]
    row, piece = ranges(np.searchsorted(touching, item), np.searchsorted(touching, item, side="right"))
    charges = [Charges.of(window[piece], file[row], read[piece] * share[row])]
    if only is not None:
        none = ~np.isin(item, touching)
        charges.append(Charges.of(window[none], np.full(none.sum(), names.number(only)), read[none]))
    return fraction, charges


def _of_what_follows(
    made: Composition, items: Columns, in_files: Coverage, only: Times, first_end_ns: Times, kept: Fractions
) -> Charges:
    """Charge the time of an item outside `in_files`, behind its first read, to the `only` file that it read.

    `kept` is the fraction of each item's own time that is `transform`.
    """
    rows = np.flatnonzero(only >= 0)
    starts, ends = bounds(items)
    after = np.minimum(first_end_ns[rows], ends[rows])
    piece_starts, piece_ends, piece, window = pieces(after, ends[rows], made.starts, made.ends)
    item = rows[piece]
    costs = Shares(starts, ends, mask=in_files).of(piece_starts, piece_ends) * kept[item]
    return Charges.of(window, only[item], np.zeros(len(costs)), np.zeros(len(costs)), costs)


def _blocked(process: Process, read_paths: Columns, posix: Coverage) -> Fractions:
    in_calls = posix.within(*bounds(read_paths))
    return blocked_fraction(read_paths, in_calls, run_delays(process, read_paths), process.called)


def blocked_fraction(
    spans: Columns, in_calls: Times, delay: Times, called: Collection[int] = ()
) -> Fractions:
    """Find the fraction of each span's time outside POSIX calls in which its thread was blocked.

    Off-CPU time beyond that of the calls, where the thread gave up the CPU by itself, less what it waited for
    a CPU (`delay`, -1: unknown); a thread that was only preempted was decoding. Where that wait is unknown (a
    library's own threads) and calls are seen, in the span or elsewhere of its file (`called`), these are
    taken for all of the reading: the rest may have been a wait for a CPU, or for the library's threads.
    """
    duration = spans["duration_ns"]
    outside = duration - in_calls
    by_calls = in_calls > 0
    if called and (delay < 0).any():
        by_calls |= np.isin(spans["file"], [*called])
    slept = (spans["voluntary_switches"] > 0) & ((delay >= 0) | ~by_calls)
    off_cpu = np.where(slept, duration - spans["cpu_ns"] - np.maximum(delay, 0), 0)
    beyond = np.clip(off_cpu - in_calls, 0, outside)
    found: Fractions = np.divide(beyond, outside, out=np.zeros(len(spans)), where=outside > 0)
    return found
