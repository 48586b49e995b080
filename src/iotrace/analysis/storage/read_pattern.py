"""How read calls went: latency, bandwidth, small, random and repeated ones; of a file or of several."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec
import numpy as np

from iotrace.analysis.intervals import length, union
from iotrace.analysis.results import ReadPattern
from iotrace.analysis.storage.kernel_account import READS
from iotrace.sources.clocks.session_clock import Times
from iotrace.sources.dftracer import stdio
from iotrace.sources.posix_calls import PosixCalls

SMALL_READ = 64 << 10
_LARGEST = 2**62
_NONE = np.zeros(0, dtype=np.int64)


class FileCalls(msgspec.Struct):
    """The calls of a rank on one file.

    `starts_ns` and `ends_ns` are those of the reads that did not fail, or of bursts of `made` reads.
    """

    opens: int = 0
    maps: int = 0
    reads: int = 0
    read_bytes: int = 0
    unsized_reads: int = 0
    read_ns: int = 0
    writes: int = 0
    write_bytes: int = 0
    write_ns: int = 0
    metadata: int = 0
    metadata_ns: int = 0
    touched: int = 0  # of these all but stat, access, the listing of a directory and what follows an open
    filled: int = 0  # reads that returned something, and of these the small ones
    small: int = 0
    sequential: int = 0
    after_another: int = 0
    by_worker: dict[int, int] = msgspec.field(default_factory=lambda: defaultdict(int))
    ranged_bytes: int = 0  # what the reads at known places hold together, and how much of it is not the same
    distinct_bytes: int = 0
    extent_bytes: int = 0  # where the last of them ends: the file is no shorter
    starts_ns: Times = msgspec.field(default_factory=_NONE.copy)
    ends_ns: Times = msgspec.field(default_factory=_NONE.copy)
    made: Times = msgspec.field(default_factory=_NONE.copy)

    @property
    def is_used(self) -> bool:
        """Whether more was done with it than to look: imports ask many paths and list directories."""
        return self.touched + self.reads + self.writes > 0

    @property
    def sequential_fraction(self) -> float | None:
        """Of the reads with one before."""
        return self.sequential / self.after_another if self.after_another else None

    @property
    def reread_fraction(self) -> float | None:
        """Of the bytes of reads at known places."""
        return 1 - self.distinct_bytes / self.ranged_bytes if self.ranged_bytes else None


_COUNTS = [field.name for field in msgspec.structs.fields(FileCalls) if field.type is int]


def _together(files: Sequence[FileCalls]) -> FileCalls:
    """Sum up the calls on files, as if they were one."""
    return FileCalls(
        **{name: sum(getattr(file, name) for file in files) for name in _COUNTS},
        starts_ns=np.concatenate([file.starts_ns for file in files]),
        ends_ns=np.concatenate([file.ends_ns for file in files]),
        made=np.concatenate([file.made for file in files]),
    )


def pattern_of(files: Sequence[FileCalls], samples: int | None) -> ReadPattern | None:
    """Sum up the reads of files; None where there was none. `samples`: how many the rank's loaders made."""
    if not any(file.reads for file in files):
        return None
    whole = files[0] if len(files) == 1 else _together(files)
    lasted_ns = whole.ends_ns - whole.starts_ns
    taken = _ordered(lasted_ns, whole.made)
    read_bytes = None if whole.unsized_reads else whole.read_bytes
    reading_ns = int(lasted_ns[0]) if len(lasted_ns) == 1 else length(union(whole.starts_ns, whole.ends_ns))
    sequential = whole.sequential_fraction
    return ReadPattern(
        reads=whole.reads,
        p50_ms=_quantile_ms(taken, 50),
        p95_ms=_quantile_ms(taken, 95),
        p99_ms=_quantile_ms(taken, 99),
        quantiles_of_bursts=bool((whole.made > 1).any()),
        bytes_per_s=_per_second(read_bytes, reading_ns),
        reader_bytes_per_s=_per_second(read_bytes, int(lasted_ns.sum())),
        small_fraction=whole.small / whole.filled if whole.filled else None,
        random_fraction=None if sequential is None else 1 - sequential,
        reread_fraction=whole.reread_fraction,
        metadata_calls=whole.metadata,
        metadata_calls_per_sample=whole.metadata / samples if samples else None,
    )


def _ordered(lasted_ns: Times, made: Times) -> tuple[Times, Times]:
    """What a call took, in order, and how many calls took that or less; those of a burst are alike."""
    each_ns = lasted_ns // np.maximum(made, 1)
    order = np.argsort(each_ns, kind="stable")
    return each_ns[order], np.cumsum(made[order])


def _quantile_ms(ordered: tuple[Times, Times], percent: int) -> float | None:
    """The least latency that so many of the calls did not exceed: a call's own, never one between two."""
    each_ns, until = ordered
    if not len(each_ns):
        return None
    wanted = -(-int(until[-1]) * percent // 100)
    return int(each_ns[np.searchsorted(until, wanted)]) / 1e6


def add_times(files: dict[str, FileCalls], calls: PosixCalls, shown: list[str]) -> None:
    """Give each file the times of its reads that did not fail."""
    places = {name: place for place, name in enumerate(dict.fromkeys(shown))}
    is_read = [name in READS for name in calls.names]
    may_tell = [name in stdio.READS for name in calls.names]
    reads = np.array(is_read, dtype=np.bool_)[calls.name] if len(calls) else np.zeros(0, dtype=np.bool_)
    if not reads.any():
        return
    reads &= (calls.result >= 0) | np.array(may_tell, dtype=np.bool_)[calls.name]
    chosen = np.flatnonzero(reads)
    of = np.array([places[name] for name in shown], dtype=np.int64)[calls.file[chosen]]
    chosen = chosen[np.argsort(of, kind="stable")]
    bounds = np.searchsorted(np.sort(of), np.arange(len(places) + 1))
    starts, ends, made = calls.start_ns[chosen], calls.end_ns[chosen], calls.calls[chosen]
    for name, first, last in zip(places, bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        if last > first:
            file, own = files.setdefault(name, FileCalls()), slice(first, last)
            file.starts_ns, file.ends_ns, file.made = starts[own], ends[own], made[own]


def ranges_by_place(place: Times, start: Times, size: Times) -> dict[int, tuple[int, int]]:
    """What the ranges of each place hold together, and how much of it is not the same, by the place."""
    if not len(place):
        return {}
    count, apart = int(place.max()) + 1, int((start + size).max()) + 1
    whole = np.bincount(place, size, count).astype(np.int64)
    places = np.flatnonzero(whole).tolist()
    if apart * count >= _LARGEST:
        own = [(start[place == each], size[place == each]) for each in places]
        distinct = [length(union(starts, starts + sizes)) for starts, sizes in own]
    else:  # one place behind the other: all ranges in one order
        begins, ends = union(place * apart + start, place * apart + start + size)
        distinct = np.bincount(begins // apart, ends - begins, count)[places].astype(np.int64).tolist()
    return dict(zip(places, zip(whole[places].tolist(), distinct, strict=True), strict=True))


def extents_by_place(place: Times, end: Times) -> dict[int, int]:
    """Where the last range of each place ends, by the place."""
    found = np.zeros(int(place.max(initial=-1)) + 1, np.int64)
    np.maximum.at(found, place, end)
    return {each: int(found[each]) for each in np.flatnonzero(found).tolist()}


def _per_second(amount: int | None, time_ns: int) -> float | None:
    return amount / (time_ns / 1e9) if amount and time_ns else None
