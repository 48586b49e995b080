"""When the training thread saved checkpoints: by the calls that save, and by its POSIX calls.

Definitions: docs/definitions.md, "loop_events".
"""

from __future__ import annotations

import posixpath
from bisect import bisect_right

import msgspec
import numpy as np
import numpy.typing as npt

from iotrace.analysis.intervals import Coverage, Intervals, Times, union
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.storage.io import WRITES
from iotrace.session.names import KIND_CHECKPOINT
from iotrace.sources.posix_calls import PosixCalls

_LEAST_WRITTEN = 1 << 20  # bytes to one file
_SAME_WRITING_NS = 50_000_000  # between two calls on one file
_OPENS = ("fopen", "fopen64")
_OPENING, _CLOSING = ("open", "open64", "openat", *_OPENS), ("close", "fclose")
_SEVERAL = "metadata"
SYNCS = frozenset({"fsync", "fdatasync"})
_ENDS = SYNCS | {"rename", "unlink"}  # of an older one that it takes the place of
# What names a file as a checkpoint: a part of its path, or an ending.
_WORDS = ("ckpt", "checkpoint")
_ENDINGS = frozenset({"pt", "pth", "safetensors", "msgpack", "pdparams", "keras", "weights"})


class Writing(msgspec.Struct, frozen=True):
    """Files that a thread wrote `_LEAST_WRITTEN` to, without a pause: when, which, how many bytes.

    `saved`: which of them are checkpoints.
    """

    starts: Times
    ends: Times
    files: list[str]
    sizes: Times
    saved: npt.NDArray[np.bool_]

    def chosen(self, which: npt.NDArray[np.bool_]) -> Writing:
        """Those of a mask."""
        files = [file for file, own in zip(self.files, which.tolist(), strict=True) if own]
        return Writing(self.starts[which], self.ends[which], files, self.sizes[which], self.saved[which])

    def within(self, start_ns: int, end_ns: int) -> tuple[str | None, int | None, float | None]:
        """The file that most was written to between two times, the bytes of all, and how many MB a second."""
        inside = np.flatnonzero((self.starts >= start_ns) & (self.starts < end_ns))
        if not len(inside):
            return None, None, None
        largest = int(inside[np.argmax(self.sizes[inside])])
        starts, ends = union(self.starts[inside], self.ends[inside])
        size = int(self.sizes[inside].sum())
        return self.files[largest], size, size / 1e6 / max(1e-9, float((ends - starts).sum()) / 1e9)


def writing_of(analysis: RankAnalysis) -> Writing:
    """Find the files that the training thread wrote much to, in order of time."""
    main, thread, paths = analysis.rank.main, analysis.loop.thread, analysis.session.paths
    calls = analysis.session.calls_of(main)
    calls = calls.where(calls.tid == (main.pid if thread is None else thread.tid))
    order = np.lexsort((calls.start_ns, calls.file))
    starts, ends, file = calls.start_ns[order], calls.end_ns[order], calls.file[order]
    name = np.array(calls.names or [""])[calls.name[order]]
    size = np.where(np.isin(name, [*WRITES]), np.maximum(calls.result[order], 0), 0)
    same = np.diff(file) == 0
    # What C++ writes between the two, as torch.save does, nobody traces; the kernel's account has it.
    unseen = np.append(np.isin(name[:-1], _OPENS) & (name[1:] == "fclose") & same, False)
    # The thread begins no step while it saves: what it writes step by step are results, or a log.
    step = np.searchsorted(analysis.loop.steps["start_ns"], starts, side="right")
    near = (starts[1:] - ends[:-1] <= _SAME_WRITING_NS) & (np.diff(step) == 0) | unseen[:-1]
    first = np.flatnonzero(np.append(np.ones(min(1, len(file)), np.bool_), ~(same & near)))
    if not len(first):
        return Writing(starts, ends, [], size, near)
    begun, ended = starts[first], np.maximum.reduceat(ends, first)
    sizes = np.add.reduceat(size, first)
    for at in np.flatnonzero(np.add.reduceat(unseen.astype(np.int64), first)).tolist():
        sizes[at] = max(int(sizes[at]), _accounted(analysis, int(begun[at]), int(ended[at])))
    large = np.flatnonzero(sizes >= _LEAST_WRITTEN)
    large = large[np.argsort(begun[large], kind="stable")]
    names_of = [paths.shown(calls.files[number]) for number in file[first][large].tolist()]
    saved = np.array([_is_named_so(each) for each in names_of], np.bool_)
    # What is saved to memory first is written in the same step.
    spans = _saving(analysis)
    steps_ns = analysis.loop.steps["start_ns"]
    unnamed = np.searchsorted(steps_ns, spans["start_ns"][spans["file"] < 0], side="right")
    saved |= np.isin(np.searchsorted(steps_ns, begun[large], side="right"), unnamed)
    return Writing(begun[large], ended[large], names_of, sizes[large], saved)


def _is_named_so(path: str) -> bool:
    """Whether a path says that it is a checkpoint."""
    low = path.lower()
    endings = posixpath.basename(low).split(".")[1:]
    return any(word in low for word in _WORDS) or not _ENDINGS.isdisjoint(endings)


def _saving(analysis: RankAnalysis) -> npt.NDArray[np.void]:
    """The spans of the training thread's calls that save."""
    main, thread = analysis.rank.main, analysis.loop.thread
    tid = main.pid if thread is None else thread.tid
    which = (main.spans["kind"] == KIND_CHECKPOINT) & (main.spans["tid"] == tid)
    spans: npt.NDArray[np.void] = main.spans[which]
    return spans


def _accounted(analysis: RankAnalysis, start_ns: int, end_ns: int) -> int:
    """How many bytes the process passed to writing calls by the samples around an interval; 0: unknown."""
    main = analysis.rank.main
    telemetry = analysis.session.telemetry_of(main)
    sampled = None if telemetry is None else telemetry.process_of(main)
    written = None if sampled is None else sampled.series("wchar")
    if written is None:
        return 0
    first = int(np.searchsorted(written.time_ns, start_ns, side="right")) - 1
    last = int(np.searchsorted(written.time_ns, end_ns))
    return int(written.value[last] - written.value[first]) if first >= 0 and last < len(written.value) else 0


class Saves(msgspec.Struct, frozen=True):
    """When a thread saved checkpoints, sorted and disjoint; to which files, and the bytes that calls show.

    Each file, and each size, has a time in the save.
    """

    starts: Times
    ends: Times
    files: list[tuple[int, str]]
    sizes: list[tuple[int, int]]

    def within(self, start_ns: int, end_ns: int) -> tuple[list[str], int]:
        """The files that were saved to between two times, each once, and the bytes."""
        files = dict.fromkeys(file for at_ns, file in self.files if start_ns <= at_ns < end_ns)
        return [*files], sum(size for at_ns, size in self.sizes if start_ns <= at_ns < end_ns)


def saves_of(analysis: RankAnalysis) -> Saves:
    """Find the checkpoints of the training thread.

    One is a call that saves, or 1 MiB or more written to a file that is named so, or in the step of a call
    that saved to memory; with the time in which the thread held the file open, and with the calls that sync
    and rename it, and that remove an older one at once.
    """
    main, session = analysis.rank.main, analysis.session
    tid = main.pid if analysis.loop.thread is None else analysis.loop.thread.tid
    spans = _saving(analysis)
    begun, ended = spans["start_ns"], spans["start_ns"] + spans["duration_ns"]
    writing = writing_of(analysis)
    writing = writing.chosen(writing.saved)
    starts, ends = union(np.append(begun, writing.starts), np.append(ended, writing.ends))
    calls = session.calls_of(main)
    calls = calls.where((calls.tid == tid) & (calls.file >= 0))
    opened, closed, file, written = _held_open(calls)
    own = in_one_step(opened, closed, analysis.loop.steps["start_ns"])
    own &= Coverage(starts, ends).within(opened, closed) > 0
    starts, ends = union(np.append(starts, opened[own]), np.append(ends, closed[own]))
    end_calls = calls.where(calls.named(_ENDS))
    # What ends a save lies in it, or follows it at once.
    for begin_ns, end_ns in zip(end_calls.start_ns.tolist(), end_calls.end_ns.tolist(), strict=True):
        at = int(np.searchsorted(starts, begin_ns, side="right")) - 1
        if at >= 0 and begin_ns - ends[at] <= _SAME_WRITING_NS:
            ends[at] = max(ends[at], end_ns)
    named = _named(analysis, spans)
    shown = [session.paths.shown(calls.files[number]) for number in file[own].tolist()]
    files = [*zip(opened[own].tolist(), shown, strict=True)] or [(each[0], each[2]) for each in named]
    files += zip(writing.starts.tolist(), writing.files, strict=True)
    held, wrote = (opened[own], written[own]), (writing.starts, writing.sizes)
    at_ns, sizes = held if held[1].sum() >= wrote[1].sum() else wrote
    return Saves(
        *union(starts, ends),
        [(at_ns, _given_name(at_ns, each, named)) for at_ns, each in files],
        [*zip(at_ns.tolist(), sizes.tolist(), strict=True)],
    )


def _named(analysis: RankAnalysis, spans: npt.NDArray[np.void]) -> list[tuple[int, int, str]]:
    """When calls ran that had a path to save to: from, to, the path; of one within another the outer."""
    texts, found = analysis.rank.main.texts, list[tuple[int, int, str]]()
    starts, ends = spans["start_ns"], spans["start_ns"] + spans["duration_ns"]
    for at in np.lexsort((-ends, starts)).tolist():
        path, start_ns = texts.get(int(spans["file"][at])), int(starts[at])
        if path and (not found or start_ns >= found[-1][1]):
            found.append((start_ns, int(ends[at]), analysis.session.paths.shown(path)))
    return found


def _given_name(at_ns: int, path: str, named: list[tuple[int, int, str]]) -> str:
    """The path that the program saves to: who writes it may write to a passing file, and move that there.

    A file in a directory that was given stays itself.
    """
    at = bisect_right(named, at_ns, key=lambda each: each[0]) - 1
    if at < 0 or at_ns >= named[at][1] or path.startswith(f"{named[at][2].rstrip('/')}/"):
        return path
    return named[at][2]


def in_one_step(opened: Times, closed: Times, steps_ns: Times) -> npt.NDArray[np.bool_]:
    """Mark files that were open while no step began: who saves begins none, a log stays open for many.

    Times in ns, those of files of shape (files,); `steps_ns` is when each step began, sorted.
    """
    return np.asarray(np.searchsorted(steps_ns, opened, side="right") == np.searchsorted(steps_ns, closed))


def _held_open(calls: PosixCalls) -> tuple[Times, Times, Times, Times]:
    """When files were open that were written to meanwhile: from, to, the file, the bytes; one thread's."""
    order = np.lexsort((calls.start_ns, calls.file))
    name = np.array(calls.names or [""])[calls.name[order]]
    file, starts, ends = calls.file[order], calls.start_ns[order], calls.end_ns[order]
    writes = np.isin(name, [*WRITES])
    size = np.cumsum(np.where(writes, np.maximum(calls.result[order], 0), 0))
    count = np.cumsum(writes)
    # A burst of several quick calls of metadata may hold the opening, or the closing.
    bounds = np.flatnonzero(np.isin(name, [*_OPENING, *_CLOSING, _SEVERAL]))
    first, last = bounds[:-1], bounds[1:]
    pairs = ~np.isin(name[first], _CLOSING) & ~np.isin(name[last], _OPENING) & (file[first] == file[last])
    pairs &= count[last] > count[first]
    first, last = first[pairs], last[pairs]
    before = np.maximum(first - 1, 0)
    first = np.where(np.isin(name[before], _OPENING) & (file[before] == file[first]), before, first)
    return starts[first], ends[last], file[first], size[last] - size[first]


def writes_of(analysis: RankAnalysis) -> Intervals:
    """When the training thread wrote to files, or waited for the disk."""
    main, thread = analysis.rank.main, analysis.loop.thread
    calls = analysis.session.calls_of(main)
    calls = calls.where(calls.tid == (main.pid if thread is None else thread.tid))
    opened, closed, *_ = held_open_in_steps(analysis, calls.where(calls.file >= 0))
    calls = calls.where(calls.named(WRITES | SYNCS))
    return union(np.append(calls.start_ns, opened), np.append(calls.end_ns, closed))


def held_open_in_steps(analysis: RankAnalysis, calls: PosixCalls) -> tuple[Times, Times, Times, Times]:
    """When a thread held files open that it wrote to and closed in the same step: from, to, file, bytes.

    A file that stays open over steps costs the loop nothing meanwhile.
    """
    opened, closed, file, written = _held_open(calls)
    steps = analysis.loop.steps["start_ns"]
    first, last = (np.searchsorted(steps, each, side="right") for each in (opened, closed))
    same = (first == last) & (first > 0)
    return opened[same], closed[same], file[same], written[same]
