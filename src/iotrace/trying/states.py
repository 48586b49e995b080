"""The page cache before a run: a copy has just been written, so its original has to be as near."""

from __future__ import annotations

import os
from collections.abc import Sequence

from iotrace.analysis.results import Report
from iotrace.sweeps import cache

_MOST_BYTES = 8 << 30  # of data: larger ones are left as they are
_FROM_STORAGE = 0.5  # of the bytes read, from which on data counts as not in memory


class Pages:
    """Brings data into memory before each run, or out of it where the recorded run read it from storage."""

    def __init__(self, report: Report) -> None:
        stored = [each.storage_read_bytes or 0 for rank in report.ranks for each in rank.system.processes]
        read = [file.read_bytes or 0 for rank in report.ranks for file in (rank.io.files if rank.io else ())]
        self.wanted = cache.COLD if sum(read) and sum(stored) >= _FROM_STORAGE * sum(read) else cache.WARM

    def prepare(self, paths: Sequence[str]) -> None:
        """Prepare the files, and those of stores."""
        files = [file for path in paths for file in _files(path)]
        if files and sum(map(os.path.getsize, files)) <= _MOST_BYTES:
            cache.prepare(self.wanted, files)


def _files(path: str) -> list[str]:
    if not os.path.isdir(path):
        return [path]
    return [os.path.join(root, name) for root, _, names in os.walk(path) for name in names]
