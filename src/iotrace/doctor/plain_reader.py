"""``iotrace doctor --storage PATH``: what a plain sequential reader gets there, bounded in time and bytes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from iotrace.doctor.checks.storage import ask_by_chance, find, find_mount, mounts
from iotrace.doctor.results import Check, ok
from iotrace.doctor.run import BadDataError, run_checks
from iotrace.errors import IotraceError
from iotrace.launch.traced_run import readable
from iotrace.page_cache import UNSUPPORTED, find_pages
from iotrace.session.plain_reads import PlainReads, save

MOST_BYTES = 256 << 20
MOST_SECONDS = 3.0
_PIECE_BYTES = 1 << 20
_WALK_SECONDS = 1.0
_PATIENCE_SECONDS = 8.0
_PAGES = 64  # of a file, that are looked for in memory
_IN_MEMORY = ("tmpfs", "ramfs")


class StorageError(IotraceError):
    """The reader could not read."""


def read_plainly(path: str) -> PlainReads:
    """Read files at or below `path`, the largest first, and keep what came of it.

    Raises:
        StorageError: nothing there can be read, or nothing answers.
    """
    reads: list[PlainReads] = []

    def check() -> Check:
        reads.append(_read(Path(path)))
        return ok("storage", "read")

    (result,) = run_checks([("storage", check)], _PATIENCE_SECONDS)
    if not reads:
        raise StorageError(f"{path}: {result.why or result.what}", remedy=result.remedy)
    with suppress(OSError):  # a home that cannot be written
        return replace(reads[0], saved=str(save(reads[0])))
    return reads[0]


def _read(path: Path) -> PlainReads:
    if not path.exists():
        remedy = "name a file, or a directory with data: --storage PATH"
        raise BadDataError(f"{path} does not exist", remedy)
    real = os.path.realpath(path)
    mount = find_mount(real, mounts())
    sizes = find(path, time.monotonic() + _WALK_SECONDS).sizes
    if not sizes:
        remedy = "name a file, or a directory with data"
        raise BadDataError(f"{path} has no file that holds something", remedy)
    # All of a directory may be on other mounts below it: what is read has to be of the mount that is named.
    device = os.stat(real).st_dev
    largest = sorted((each for each in sizes if each.stat().st_dev == device), key=lambda each: -sizes[each])
    until = time.monotonic() + MOST_SECONDS
    read_bytes, spent_ns, files, cold = _read_files(largest, sizes, until, False)
    if not read_bytes:  # none can be dropped from the page cache
        read_bytes, spent_ns, files, cold = _read_files(largest, sizes, until, True)
    if not read_bytes or not spent_ns:
        raise BadDataError(f"{path}: no file could be read", remedy="name one that you may read")
    kind = mount.kind if mount else "?"
    if kind in _IN_MEMORY:
        cold = False
    return PlainReads(
        path=readable(str(path)),
        node=os.uname().nodename,
        point=readable(mount.point) if mount else "?",
        type=kind,
        files=files,
        bytes=read_bytes,
        seconds=spent_ns / 1e9,
        bytes_per_s=read_bytes / (spent_ns / 1e9),
        cold=cold,
        why=_why(cold, kind),
        at_ns=time.time_ns(),
    )


def _read_files(
    files: list[Path], sizes: dict[Path, int], until: float, warm: bool
) -> tuple[int, int, int, bool | None]:
    """Read files, those that stay in memory only where `warm`: bytes, ns, files, whether all were cold."""
    read_bytes, spent_ns, count = 0, 0, 0
    seen: set[bool | None] = set()
    for file in files:
        if read_bytes >= MOST_BYTES or time.monotonic() > until:
            break
        with suppress(PermissionError), file.open("rb", buffering=0) as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            is_cold = _is_cold(file, min(sizes[file], MOST_BYTES - read_bytes))
            if is_cold is False and not warm:
                continue
            count += 1
            for amount, taken_ns in _pieces(opened.fileno(), MOST_BYTES - read_bytes, until):
                read_bytes, spent_ns = read_bytes + amount, spent_ns + taken_ns
            seen.add(is_cold)
    return read_bytes, spent_ns, count, False if False in seen else None if None in seen else True


def _pieces(descriptor: int, most_bytes: int, until: float) -> Iterator[tuple[int, int]]:
    """Read on until the end, `most_bytes` or `until`; yield each read's bytes and its time."""
    buffer = memoryview(bytearray(_PIECE_BYTES))
    while most_bytes > 0 and time.monotonic() < until:
        began_ns = time.perf_counter_ns()
        amount = os.readv(descriptor, [buffer[: min(_PIECE_BYTES, most_bytes)]])
        if not amount:
            return
        most_bytes -= amount
        yield amount, time.perf_counter_ns() - began_ns


def _is_cold(file: Path, read_bytes: int) -> bool | None:
    """Whether none of some pages, chosen by chance, is in memory; None where the kernel does not tell."""
    try:
        pages, _ = ask_by_chance(file, read_bytes, _PAGES, find_pages)
    except OSError as error:
        if error.errno in UNSUPPORTED:
            return None
        raise
    return True if not pages.pages else False if pages.exact else None


def _why(cold: bool | None, kind: str) -> str:
    if kind in _IN_MEMORY:
        return f"{kind} is memory"
    if cold is None:
        return "the kernel does not tell what of the files is in memory"
    return "" if cold else "pages of the files stayed in memory: another program maps them, or they are new"
