"""What the making of each batch was made of: read, decode, transform, collate, unknown; and in which files.

An instant belongs to the first that holds it: a POSIX call (`read`), a read path such as h5py
(`decode`), the dataset's ``__getitem__`` or ``__next__`` (`transform`), the collate function. Where the
POSIX tracer sees less than the thread was blocked, inside a read path, the rest of the blocked time is
`read` too: page faults of memory maps, reads through duplicated descriptors, remote stores. Page faults
outside read paths are `analysis.mapped`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from iotrace.analysis.intervals import Coverage, Shares, Times, pieces
from iotrace.analysis.wait.page_faults import faulted
from iotrace.session.names import KIND_COLLATE, KIND_ITEM, KIND_MAPPED, KIND_READ_PATH
from iotrace.sources.dftracer.calls import PosixCalls
from iotrace.sources.paths import Paths
from iotrace.sources.processes import Process

PARTS = ("read", "decode", "transform", "collate", "unknown")


@dataclass
class Composition:
    """Of each production window of one process, in the order given; all in ns.

    `parts` has one row per window and one column per name in `PARTS`; the rows sum to the windows'
    lengths. `files` gives, per window, ``{path: [read, decode]}``.
    """

    parts: npt.NDArray[np.float64]
    files: list[dict[str, list[float]]]


def compose(
    process: Process,
    calls: PosixCalls,
    paths: Paths,
    starts: Times,
    ends: Times,
    mapped_files: Sequence[str] = (),
) -> Composition:
    """Compose the productions ``[starts[i], ends[i])`` of `process`: sorted and disjoint.

    `calls` are the process's own POSIX calls, `mapped_files` the files of its memory maps.
    """
    spans = process.spans
    span_starts = spans["start_ns"]
    span_ends = span_starts + spans["duration_ns"]
    kind = spans["kind"]
    posix = Coverage(calls.start_ns, calls.end_ns)
    # A copy out of a memory map (by a list of indices) reads inside the access: a read path of its own.
    outer = outermost(spans, (kind == KIND_READ_PATH) | (kind == KIND_MAPPED))
    layers = [posix]
    covered_starts, covered_ends = posix.starts, posix.ends
    items = kind == KIND_ITEM
    for layer_starts, layer_ends in (
        (span_starts[outer], span_ends[outer]),
        _first_to_last(span_starts[items], span_ends[items], starts, ends),
        (span_starts[kind == KIND_COLLATE], span_ends[kind == KIND_COLLATE]),
    ):
        covered_starts = np.concatenate((covered_starts, layer_starts))
        covered_ends = np.concatenate((covered_ends, layer_ends))
        layers.append(Coverage(covered_starts, covered_ends))
    cumulative = np.stack([layer.within(starts, ends) for layer in layers], axis=1)
    parts = np.zeros((len(starts), len(PARTS)))
    parts[:, 0] = cumulative[:, 0]
    parts[:, 1:4] = np.diff(cumulative, axis=1)
    parts[:, 4] = (ends - starts) - cumulative[:, 3]

    files: list[dict[str, list[float]]] = [{} for _ in range(len(starts))]
    _share_reads(calls, paths, starts, ends, files)
    _share_decoding(process, paths, outer, posix, starts, ends, files, parts)
    _share_faults(process, paths, outer, layers, starts, ends, files, parts, mapped_files)
    return Composition(parts, files)


def compose_inline(
    process: Process, calls: PosixCalls, paths: Paths, starts: Times, ends: Times, tid: int
) -> Composition:
    """`compose` for batches that the consumer's thread `tid` took from a wrapped source.

    Other threads' calls are none of theirs. What made the source wait, its prefetcher or another process,
    cannot be seen: blocked time that neither calls nor read paths explain is `unknown`.
    """
    spans = process.spans[process.spans["tid"] == tid]
    made = compose(replace(process, spans=spans), calls.where(calls.tid == tid), paths, starts, ends)
    items = spans[outermost(spans, spans["kind"] == KIND_ITEM)]
    item_starts, item_ends = items["start_ns"], items["start_ns"] + items["duration_ns"]
    piece_starts, piece_ends, item, window = pieces(item_starts, item_ends, starts, ends)
    on_cpu = items["cpu_ns"] + np.maximum(items["run_delay_ns"], 0)
    off_cpu = np.where(items["voluntary_switches"] > 0, items["duration_ns"] - on_cpu, 0)
    share = (piece_ends - piece_starts) / np.maximum(items["duration_ns"][item], 1)
    blocked = np.zeros(len(starts))
    np.add.at(blocked, window, off_cpu[item] * share)
    read, transform, unknown = (PARTS.index(part) for part in ("read", "transform", "unknown"))
    unexplained = np.clip(blocked - made.parts[:, read], 0, made.parts[:, transform])
    made.parts[:, transform] -= unexplained
    made.parts[:, unknown] += unexplained
    return made


def _first_to_last(item_starts: Times, item_ends: Times, starts: Times, ends: Times) -> tuple[Times, Times]:
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


def outermost(spans: npt.NDArray[Any], chosen: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Of the chosen spans, those not inside another chosen one of the same thread."""
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


def _share_reads(
    calls: PosixCalls, paths: Paths, starts: Times, ends: Times, files: list[dict[str, list[float]]]
) -> None:
    piece_starts, piece_ends, call, window = pieces(calls.start_ns, calls.end_ns, starts, ends)
    shares = Shares(calls.start_ns, calls.end_ns).of(piece_starts, piece_ends)
    names = [paths.shown(file) for file in calls.files]
    for index, file, share in zip(window.tolist(), calls.file[call].tolist(), shares.tolist(), strict=True):
        files[index].setdefault(names[file], [0.0, 0.0])[0] += share


def _share_decoding(
    process: Process,
    paths: Paths,
    outer: npt.NDArray[np.bool_],
    posix: Coverage,
    starts: Times,
    ends: Times,
    files: list[dict[str, list[float]]],
    parts: npt.NDArray[np.float64],
) -> None:
    """Divide what is in read paths but in no POSIX call; move its blocked part from decode to read."""
    spans = process.spans[outer]
    span_starts, span_ends = spans["start_ns"], spans["start_ns"] + spans["duration_ns"]
    blocked = _blocked_fraction(spans, posix.within(span_starts, span_ends))
    piece_starts, piece_ends, span, window = pieces(span_starts, span_ends, starts, ends)
    shares = Shares(span_starts, span_ends, mask=posix).of(piece_starts, piece_ends)
    read = shares * blocked[span]
    np.add.at(parts[:, 0], window, read)
    np.subtract.at(parts[:, 1], window, read)
    shown = _shown(process, paths, spans["file"])
    for index, file, share, read_share in zip(
        window.tolist(), spans["file"][span].tolist(), shares.tolist(), read.tolist(), strict=True
    ):
        name = shown.get(file)
        if name is not None:
            entry = files[index].setdefault(name, [0.0, 0.0])
            entry[0] += read_share
            entry[1] += share - read_share


def _share_faults(
    process: Process,
    paths: Paths,
    outer: npt.NDArray[np.bool_],
    layers: list[Coverage],
    starts: Times,
    ends: Times,
    files: list[dict[str, list[float]]],
    parts: npt.NDArray[np.float64],
    mapped_files: Sequence[str],
) -> None:
    """Move what the items read by page faults, outside calls and read paths, from transform to read."""
    items = process.spans[outermost(process.spans, process.spans["kind"] == KIND_ITEM)]
    found = faulted(process.spans, items, process.spans[outer], layers[0])
    reading = np.flatnonzero(found.fraction > 0)
    if not len(reading):
        return
    item_starts, item_ends = items["start_ns"], items["start_ns"] + items["duration_ns"]
    shared = Shares(item_starts, item_ends, mask=layers[1])
    piece_starts, piece_ends, item, window = pieces(item_starts[reading], item_ends[reading], starts, ends)
    item = reading[item]
    read = shared.of(piece_starts, piece_ends) * found.fraction[item]
    np.add.at(parts[:, 0], window, read)
    np.subtract.at(parts[:, 2], window, read)
    shown = _shown(process, paths, process.spans["file"])
    only = paths.shown(mapped_files[0]) if len(mapped_files) == 1 else None
    for index, row, read_share in zip(window.tolist(), item.tolist(), read.tolist(), strict=True):
        touched = {shown[file]: part for file, part in found.files[row].items() if file in shown}
        if not touched and only is not None:
            touched = {only: 1.0}
        for name, part in touched.items():
            files[index].setdefault(name, [0.0, 0.0])[0] += read_share * part


def _shown(process: Process, paths: Paths, files: npt.NDArray[Any]) -> dict[int, str]:
    """How reports name the files of a process, by number."""
    return {
        number: paths.shown(process.texts[number])
        for number in np.unique(files).tolist()
        if number in process.texts
    }


def _blocked_fraction(spans: npt.NDArray[Any], in_calls: Times) -> npt.NDArray[np.float64]:
    """Of each span's time outside POSIX calls, the fraction in which its thread was blocked.

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
