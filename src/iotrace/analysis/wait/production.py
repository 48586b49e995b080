"""What the making of each batch was made of: read, decode, transform, collate, unknown; and in which files.

An instant belongs to the first that holds it: a POSIX call (`read`), a read path such as h5py
(`decode`), the dataset's ``__getitem__`` or ``__next__`` (`transform`), the collate function. Where the
POSIX tracer sees less than the thread was blocked, inside a read path, the rest of the blocked time is
`read` too: page faults of memory maps, reads through duplicated descriptors, remote stores. Page faults
outside read paths are those of `page_faults`. Of an item that read one file alone, the `transform` behind the
first read is charged to that file, too: it is told as "transform, after reading" it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from iotrace.analysis.intervals import Coverage, Intervals, Shares, Times, pieces
from iotrace.analysis.wait.item_reads import ItemReads, item_reads
from iotrace.analysis.wait.page_faults import Fractions, Spans, page_faults
from iotrace.session.names import KIND_COLLATE, KIND_ITEM, KIND_MAPPED, KIND_READ_PATH
from iotrace.sources.dftracer import stdio
from iotrace.sources.dftracer.calls import PosixCalls
from iotrace.sources.paths import Paths
from iotrace.sources.processes import Process

PARTS = ("read", "decode", "transform", "collate", "unknown")
_READ, _DECODE, _TRANSFORM, _COLLATE, _UNKNOWN = range(len(PARTS))

Files = dict[str, list[float]]  # path -> ns of `FILE_PARTS`
FILE_PARTS = ("read", "decode", "transform")  # the last: what followed the read of it alone, in an item


class Composition(msgspec.Struct, frozen=True):
    """What the production windows ``[starts[i], ends[i])`` of one process were made of, in ns.

    `parts` has the shape (windows, `PARTS`): each row sums to the length of its window. `files` has the
    files of each window.
    """

    starts: Times
    ends: Times
    parts: npt.NDArray[np.float64]
    files: list[Files]

    def move_to_read(self, part: int, windows: Times, costs_ns: Fractions) -> None:
        """Move `costs_ns`, one in each of `windows` (repeated or not), from `part` to `read`."""
        np.add.at(self.parts[:, _READ], windows, costs_ns)
        np.subtract.at(self.parts[:, part], windows, costs_ns)

    def charge(self, window: int, path: str, *costs_ns: float) -> None:
        """Add `costs_ns`, those of `FILE_PARTS` in order, to what the file at `path` cost in one window."""
        costs = self.files[window].setdefault(path, [0.0] * len(FILE_PARTS))
        for part, cost_ns in enumerate(costs_ns):
            costs[part] += cost_ns


def compose(
    process: Process,
    calls: PosixCalls,
    paths: Paths,
    starts: Times,
    ends: Times,
    mapped_files: Sequence[str] = (),
    inline: bool = False,
) -> Composition:
    """Compose the productions ``[starts[i], ends[i])`` of `process`: sorted and disjoint.

    `calls` are the process's own POSIX calls, `mapped_files` the files of its memory maps. `inline`: a
    wrapped source makes the batches, and one item of it may hold several of the windows.
    """
    spans = process.spans
    if not inline:
        spans = spans[~_holds_a_window(spans, starts, ends)]
    posix = Coverage(calls.start_ns, calls.end_ns)
    # A copy out of a memory map (by a list of indices) reads inside the access: a read path of its own.
    is_read_path = (spans["kind"] == KIND_READ_PATH) | (spans["kind"] == KIND_MAPPED)
    read_paths = spans[outermost(spans, is_read_path)]
    layers = [posix]
    for layer in (
        _bounds(read_paths),
        _first_to_last(*_bounds(spans[spans["kind"] == KIND_ITEM]), starts, ends),
        _bounds(spans[spans["kind"] == KIND_COLLATE]),
    ):
        covered = layers[-1]
        layers.append(
            Coverage(np.concatenate((covered.starts, layer[0])), np.concatenate((covered.ends, layer[1])))
        )
    cumulative = np.stack([layer.within(starts, ends) for layer in layers], axis=1)
    parts = np.diff(cumulative, axis=1, prepend=0, append=(ends - starts)[:, None]).astype(np.float64)
    made = Composition(starts, ends, parts, [{} for _ in range(len(starts))])
    shown = {number: paths.shown(file) for number, file in process.span_files.items()}
    shown_calls = [paths.shown(file) for file in calls.files]
    items = spans[outermost(spans, spans["kind"] == KIND_ITEM)]
    reads = item_reads(items, spans, read_paths, calls, shown, shown_calls)
    _, held = stdio.nested(calls)  # calls inside one of stdio are that one's time
    _charge_calls(made, calls.where(~held) if held.any() else calls, shown_calls)
    _share_decoding(made, read_paths, posix, shown, reads)
    only = paths.shown(mapped_files[0]) if len(mapped_files) == 1 else None
    faulted = _share_faults(made, spans, items, read_paths, layers, shown, only)
    _share_after_reads(made, items, layers[1], reads, 1 - faulted)
    return made


def compose_inline(
    process: Process, calls: PosixCalls, paths: Paths, starts: Times, ends: Times, tid: int
) -> Composition:
    """`compose` for batches that the consumer's thread `tid` took from a wrapped source.

    Calls of other threads do not count. What made the source wait, its prefetcher or another process,
    cannot be seen: blocked time that neither calls nor read paths explain is `unknown`.
    """
    spans = process.spans[process.spans["tid"] == tid]
    own = calls.where(calls.tid == tid)
    made = compose(replace(process, spans=spans), own, paths, starts, ends, inline=True)
    items = spans[outermost(spans, spans["kind"] == KIND_ITEM)]
    piece_starts, piece_ends, item, window = pieces(*_bounds(items), starts, ends)
    on_cpu = items["cpu_ns"] + np.maximum(items["run_delay_ns"], 0)
    off_cpu = np.where(items["voluntary_switches"] > 0, items["duration_ns"] - on_cpu, 0)
    share = (piece_ends - piece_starts) / np.maximum(items["duration_ns"][item], 1)
    blocked = np.zeros(len(starts))
    np.add.at(blocked, window, off_cpu[item] * share)
    unexplained = np.clip(blocked - made.parts[:, _READ], 0, made.parts[:, _TRANSFORM])
    transform = made.parts[:, _TRANSFORM]
    kept = np.divide(transform - unexplained, transform, out=np.ones(len(starts)), where=transform > 0)
    for files, fraction in zip(made.files, kept.tolist(), strict=True):
        for costs in files.values():
            costs[_TRANSFORM] *= fraction
    made.parts[:, _TRANSFORM] -= unexplained
    made.parts[:, _UNKNOWN] += unexplained
    return made


def _holds_a_window(spans: Spans, starts: Times, ends: Times) -> npt.NDArray[np.bool_]:
    """Mark the items that hold a whole window: of a source that wraps the loader whose windows these are."""
    begin, end = _bounds(spans)
    first = np.searchsorted(starts, begin)
    until = np.append(ends, np.iinfo(np.int64).max)[first]
    holds = (begin < np.append(starts, 0)[first]) & (until < end)
    return np.asarray(holds & (spans["kind"] == KIND_ITEM), np.bool_)


def _bounds(spans: Spans) -> Intervals:
    return spans["start_ns"], spans["start_ns"] + spans["duration_ns"]


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


def outermost(spans: Spans, chosen: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Mark the chosen spans that are not inside another chosen one of the same thread."""
    rows = np.flatnonzero(chosen)
    rows = rows[np.lexsort((-spans["duration_ns"][rows], spans["start_ns"][rows], spans["tid"][rows]))]
    keep = np.zeros(len(spans), dtype=np.bool_)
    tid, end = None, 0
    for row, row_tid, start, duration in zip(
        rows.tolist(),
        spans["tid"][rows].tolist(),
        spans["start_ns"][rows].tolist(),
        spans["duration_ns"][rows].tolist(),
        strict=True,
    ):
        if row_tid != tid or start >= end:
            keep[row] = True
            tid, end = row_tid, start + duration
    return keep


def _charge_calls(made: Composition, calls: PosixCalls, shown: list[str]) -> None:
    piece_starts, piece_ends, call, window = pieces(calls.start_ns, calls.end_ns, made.starts, made.ends)
    shares = Shares(calls.start_ns, calls.end_ns).of(piece_starts, piece_ends)
    for index, file, share in zip(window.tolist(), calls.file[call].tolist(), shares.tolist(), strict=True):
        made.charge(index, shown[file], share)


def _share_decoding(
    made: Composition, read_paths: Spans, posix: Coverage, shown: dict[int, str], reads: ItemReads
) -> None:
    """Divide what is in read paths but in no POSIX call; move its blocked part from decode to read.

    A read path that knows no file decodes what its item read last.
    """
    bounds = _bounds(read_paths)
    files = [shown.get(file) for file in read_paths["file"].tolist()]
    for row, path in reads.latest.items():
        files[row] = path
    blocked = blocked_fraction(read_paths, posix.within(*bounds))
    piece_starts, piece_ends, span, window = pieces(*bounds, made.starts, made.ends)
    shares = Shares(*bounds, mask=posix).of(piece_starts, piece_ends)
    read = shares * blocked[span]
    made.move_to_read(_DECODE, window, read)
    for index, row, share, read_share in zip(
        window.tolist(), span.tolist(), shares.tolist(), read.tolist(), strict=True
    ):
        path = files[row]
        if path is not None:
            made.charge(index, path, read_share, share - read_share)


def _share_faults(
    made: Composition,
    spans: Spans,
    items: Spans,
    read_paths: Spans,
    layers: list[Coverage],
    shown: dict[int, str],
    only: str | None,
) -> Fractions:
    """Move what the items read by page faults, outside calls and read paths, from transform to read.

    `only` is the one mapped file of the process, if it has just one: faults in no known file are its. Return
    the fraction of each item's own time that was moved.
    """
    fraction, touched_files = page_faults(spans, items, read_paths, layers[0])
    reading = np.flatnonzero(fraction > 0)
    if not len(reading):
        return fraction
    starts, ends = _bounds(items)
    piece_starts, piece_ends, item, window = pieces(starts[reading], ends[reading], made.starts, made.ends)
    item = reading[item]
    read = Shares(starts, ends, mask=layers[1]).of(piece_starts, piece_ends) * fraction[item]
    made.move_to_read(_TRANSFORM, window, read)
    for index, row, read_share in zip(window.tolist(), item.tolist(), read.tolist(), strict=True):
        touched = {shown[file]: part for file, part in touched_files[row].items() if file in shown}
        if not touched and only is not None:
            touched = {only: 1.0}
        for path, part in touched.items():
            made.charge(index, path, read_share * part)
    return fraction


def _share_after_reads(
    made: Composition, items: Spans, in_files: Coverage, reads: ItemReads, kept: Fractions
) -> None:
    """Charge the time of an item outside `in_files`, behind its first read, to the only file that it read.

    `kept` is the fraction of each item's own time that is `transform`.
    """
    rows = np.flatnonzero([path is not None for path in reads.only])
    if not len(rows):
        return
    starts, ends = _bounds(items)
    after = np.minimum(reads.first_end_ns[rows], ends[rows])
    piece_starts, piece_ends, piece, window = pieces(after, ends[rows], made.starts, made.ends)
    item = rows[piece]
    costs = Shares(starts, ends, mask=in_files).of(piece_starts, piece_ends) * kept[item]
    for index, row, cost_ns in zip(window.tolist(), item.tolist(), costs.tolist(), strict=True):
        path = reads.only[row]
        if path is not None:
            made.charge(index, path, 0.0, 0.0, cost_ns)


def blocked_fraction(spans: Spans, in_calls: Times) -> Fractions:
    """Find the fraction of each span's time outside POSIX calls in which its thread was blocked.

    Off-CPU time beyond that of the calls, where the thread gave up the CPU by itself, less what it waited for
    a CPU; a thread that was only preempted was decoding. Where that wait is unknown (a library's own threads)
    and calls are seen, these are taken for all of the reading: the rest may have been a wait for a CPU.
    """
    duration = spans["duration_ns"]
    outside = duration - in_calls
    delay = spans["run_delay_ns"]
    slept = (spans["voluntary_switches"] > 0) & ((delay >= 0) | (in_calls == 0))
    off_cpu = np.where(slept, duration - spans["cpu_ns"] - np.maximum(delay, 0), 0)
    beyond = np.clip(off_cpu - in_calls, 0, outside)
    return np.divide(beyond, outside, out=np.zeros(len(spans)), where=outside > 0)
