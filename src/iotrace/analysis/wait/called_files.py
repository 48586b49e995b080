"""Which files of read paths a process reads by calls that were seen: then its calls are all the reading.

A library that buffers reads once for many of its calls: a video's packets come from a few reads, and the
frames between them only wait for the codec's threads. That is no reading, though no call is seen inside it.
"""

from __future__ import annotations

from collections.abc import Iterable
from posixpath import dirname

from msgspec.structs import replace

from iotrace.analysis.intervals import Times, distinct
from iotrace.analysis.storage.io import MAPS
from iotrace.analysis.storage.kernel_account import READS
from iotrace.sources.paths import Paths
from iotrace.sources.posix_calls import PosixCalls
from iotrace.sources.processes import Process


def with_called(process: Process, calls: PosixCalls, paths: Paths) -> Process:
    """Add which files of its spans its own `calls` read: no file that it mapped, whose pages no call reads.

    A store that is a directory is read where files below it are.
    """
    files = process.span_files
    if not files or not len(calls):
        return process
    read = _named(calls, calls.file[calls.named(READS) & (calls.result > 0)], paths)
    mapped = _named(calls, calls.file[calls.named(MAPS)], paths)
    seen = _with_directories(read) - _with_directories(mapped)
    return replace(
        process, called=frozenset(number for number, file in files.items() if paths.shown(file) in seen)
    )


def _named(calls: PosixCalls, files: Times, paths: Paths) -> set[str]:
    return {paths.shown(calls.files[number]) for number in distinct(files).tolist()}


def _with_directories(files: Iterable[str]) -> set[str]:
    found: set[str] = set()
    for file in files:
        while file and file not in found:
            found.add(file)
            file = dirname(file).rstrip("/")
    return found
