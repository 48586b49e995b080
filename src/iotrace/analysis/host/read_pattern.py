"""How read calls went: latency, bandwidth, small, random and repeated ones; of a file or of several."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec
import numpy as np

from iotrace.analysis.intervals import length, union
from iotrace.analysis.results import ReadPattern
from iotrace.sources.clocks.session_clock import Times

SMALL_READ = 64 << 10
_NONE = np.zeros(0, dtype=np.int64)


class FileCalls(msgspec.Struct):
    """The calls of a rank on one file. `starts_ns` and `ends_ns` are those of the reads that did not fail."""

    opens: int = 0
    maps: int = 0
    reads: int = 0
    read_bytes: int = 0
    unsized_reads: int = 0
    read_ns: int = 0
    writes: int = 0
    write_bytes: int = 0
    metadata: int = 0
    metadata_ns: int = 0
    filled: int = 0  # reads that returned something, and of these the small ones
    small: int = 0
    sequential: int = 0
    after_another: int = 0
    by_worker: dict[int, int] = msgspec.field(default_factory=lambda: defaultdict(int))
    ranges: list[tuple[int, int]] = []
    ranged_bytes: int = 0  # what `ranges` hold together, and how much of it is not the same
    distinct_bytes: int = 0
    starts_ns: Times = msgspec.field(default_factory=_NONE.copy)
    ends_ns: Times = msgspec.field(default_factory=_NONE.copy)

    def sum_up_ranges(self) -> None:
        """Set the sums of `ranges`."""
        if self.ranges:
            ranges = np.array(self.ranges, dtype=np.int64)
            self.ranged_bytes = int((ranges[:, 1] - ranges[:, 0]).sum())
            self.distinct_bytes = length(union(ranges[:, 0], ranges[:, 1]))

    @property
    def sequential_fraction(self) -> float | None:
        """Of the reads with one before."""
        return self.sequential / self.after_another if self.after_another else None

    @property
    def reread_fraction(self) -> float | None:
        """Of the bytes of reads at known places."""
        return 1 - self.distinct_bytes / self.ranged_bytes if self.ranged_bytes else None


def pattern_of(files: Sequence[FileCalls], samples: int | None) -> ReadPattern | None:
    """Sum up the reads of files; None where there was none. `samples`: how many the rank's loaders made."""
    reads = sum(file.reads for file in files)
    if not reads:
        return None
    if len(files) == 1:
        starts, ends = files[0].starts_ns, files[0].ends_ns
    else:
        starts = np.concatenate([file.starts_ns for file in files])
        ends = np.concatenate([file.ends_ns for file in files])
    taken = np.sort(ends - starts)
    read_bytes = None if any(file.unsized_reads for file in files) else sum(file.read_bytes for file in files)
    reading_ns = int(taken[0]) if len(taken) == 1 else length(union(starts, ends))
    filled = sum(file.filled for file in files)
    after_another = sum(file.after_another for file in files)
    ranged_bytes = sum(file.ranged_bytes for file in files)
    metadata = sum(file.metadata for file in files)
    return ReadPattern(
        reads=reads,
        p50_ms=_quantile_ms(taken, 50),
        p95_ms=_quantile_ms(taken, 95),
        p99_ms=_quantile_ms(taken, 99),
        bytes_per_s=_per_second(read_bytes, reading_ns),
        reader_bytes_per_s=_per_second(read_bytes, int(taken.sum())),
        small_fraction=sum(file.small for file in files) / filled if filled else None,
        random_fraction=1 - sum(file.sequential for file in files) / after_another if after_another else None,
        reread_fraction=1 - sum(file.distinct_bytes for file in files) / ranged_bytes
        if ranged_bytes
        else None,
        metadata_calls=metadata,
        metadata_calls_per_sample=metadata / samples if samples else None,
    )


def _quantile_ms(ordered_ns: Times, percent: int) -> float | None:
    """The least latency that so many of the calls did not exceed: a call's own, never one between two."""
    if not len(ordered_ns):
        return None
    return int(ordered_ns[-(-len(ordered_ns) * percent // 100) - 1]) / 1e6


def _per_second(amount: int | None, time_ns: int) -> float | None:
    return amount / (time_ns / 1e9) if amount and time_ns else None
