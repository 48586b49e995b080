"""The view of storage: how reads went, by mount and by file; what processes read from the device."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from iotrace.analysis.results import Amplification, FewFiles, RankReport, ReadPattern, Report, RowGroups
from iotrace.report.views.table import Field, Table, of_ranks
from iotrace.units import one_decimal, percent, size, three_digits

_NO_CALLS = "POSIX calls were not traced"
_NO_MOUNTS = "this session does not say what was mounted where"
_MOST_ROWS = 20


class _Amplified(Amplification, frozen=True, kw_only=True):
    """A group with what was fetched and decoded of it."""

    path: str


class _Few(FewFiles, frozen=True, kw_only=True):
    """The few files of a group."""

    path: str


class _Row(ReadPattern, frozen=True, kw_only=True):
    """A file, group or mount, with the pattern of its reads."""

    path: str
    plain_bytes_per_s: float | None = None


def _mib(value: float) -> str:
    return f"{value / (1 << 20):,.0f}"


_PATTERN = (
    Field("reads", "reads"),
    Field("p50_ms", "p50 ms", three_digits),
    Field("p95_ms", "p95", three_digits),
    Field("p99_ms", "p99", three_digits),
    Field("bytes_per_s", "MiB/s", _mib),
    Field("small_fraction", "small", percent),
    Field("random_fraction", "random", percent, absent="-"),
    Field("reread_fraction", "again", percent, absent="-"),
    Field("metadata_calls_per_sample", "meta", one_decimal),
)
_NAMED = (*_PATTERN, Field("path", "of", is_text=True))
_KEY = (
    "small: below 64 KiB · again: of bytes · meta: metadata calls a sample",
    "MiB/s: while a read ran · slow or fast says nothing of the page cache",
)


def storage(report: Report) -> list[Table]:
    """Show how reads went by mount and by file, then the bytes that came from the device."""
    mounts = of_ranks(
        report.ranks,
        lambda rank: Table(
            title="Reads by mounted file system",
            rows=[
                _row(f"{mount.point} ({mount.type})", mount.pattern, mount.plain_bytes_per_s)
                for mount in (rank.io and rank.io.mounts) or []
            ],
            fields=_MOUNTED,
            unknown=_NO_CALLS if rank.io is None else _NO_MOUNTS if rank.io.mounts is None else "no data",
        ),
    )
    files = of_ranks(
        report.ranks,
        lambda rank: Table(
            title="Reads by file, store or directory",
            rows=[_row(each.path, each.pattern) for each in rank.file_groups if each.pattern][:_MOST_ROWS],
            fields=_NAMED,
            unknown=_NO_CALLS if rank.io is None else "no call read data",
            notes=_KEY,
        ),
    )
    amplified = of_ranks(
        report.ranks,
        lambda rank: Table(
            title="Fetched and decoded for what was used",
            rows=[
                _Amplified(path=each.path, **msgspec.structs.asdict(each.amplification))
                for each in rank.file_groups
                if each.amplification
            ][:_MOST_ROWS],
            fields=_AMPLIFIED,
            unknown=_NO_CALLS
            if rank.io is None
            else "no file whose format tells it was read (HDF5, zarr, Parquet, memory maps)",
            notes=("of a memory map: fetched from storage, at least",)
            if any(
                each.amplification and (each.amplification.mapped or each.read_bytes is None)
                for each in rank.file_groups
            )
            else (),
        ),
    )
    grouped = of_ranks(
        [rank for rank in report.ranks if _row_groups(rank)],
        lambda rank: Table(
            title="Row groups of Parquet files",
            rows=_row_groups(rank)[:_MOST_ROWS],
            fields=_ROW_GROUPS,
            notes=("times: that each was decoded in an epoch · fit: rows of a group that would fit",),
        ),
    )
    few = of_ranks(
        [rank for rank in report.ranks if _few(rank)],
        lambda rank: Table(
            title="Few files that take most of their directory's time", rows=_few(rank), fields=_FEW
        ),
    )
    repeated = of_ranks(
        [rank for rank in report.ranks if rank.repeated],
        lambda rank: Table(
            title="What samples do again and again",
            rows=rank.repeated,
            fields=_REPEATED,
            notes=("ms: of a sample, until it turns to another file · wait: ms a step",),
        ),
    )
    device = of_ranks(
        report.ranks,
        lambda rank: Table(
            title="Read from the device (the kernel's account), by process and time",
            rows=(rank.io and rank.io.device_reads) or [],
            fields=(
                Field("pid", "pid"),
                Field("role", "role", is_text=True),
                Field("total_bytes", "in all", size),
                Field("read_bytes", "MiB in each tenth of the run", _tenths),
            ),
            unknown=_NO_CALLS if rank.io is None else "no process's account could be read",
        ),
    )
    return mounts + files + few + repeated + amplified + grouped + device


_MOUNTED = (*_PATTERN[:5], Field("plain_bytes_per_s", "plain", _mib), *_NAMED[5:])


_AMPLIFIED = (
    Field("fetched_bytes", "fetched", size),
    Field("decoded_bytes", "decoded", size),
    Field("used_bytes", "used", size),
    Field("decoded_per_used", "decoded/used", one_decimal),
    Field("path", "of", is_text=True),
    Field("why", "unknown", is_text=True),
)

_ROW_GROUPS = (
    Field("group_rows", "rows"),
    Field("groups_read", "groups"),
    Field("reads", "reads"),
    Field("decoded_bytes", "decoded", size),
    Field("decoded_per_pass", "times", one_decimal),
    Field("suggested_rows", "fit", absent="-"),
    Field("path", "of", is_text=True),
)


_FEW = (
    Field("fraction", "time", percent),
    Field("of", "of files"),
    Field("path", "in", is_text=True),
    Field("paths", "files", ", ".join, is_text=True),
)

_REPEATED = (
    Field("kind", "what", is_text=True),
    Field("ms_per_sample", "ms", one_decimal),
    Field("of_ms_per_sample", "of", one_decimal),
    Field("wait_ms", "wait", one_decimal),
    Field("files", "files"),
    Field("entries", "entries", absent="-"),
    Field("paths", "of", ", ".join, is_text=True),
)


def _few(rank: RankReport) -> list[_Few]:
    return [
        _Few(path=each.path, **msgspec.structs.asdict(each.few)) for each in rank.file_groups if each.few
    ][:_MOST_ROWS]


def _row_groups(rank: RankReport) -> list[RowGroups]:
    known = [group.amplification for group in rank.file_groups if group.amplification]
    return [each for amplification in known for each in amplification.row_groups]


def _row(path: str, pattern: ReadPattern, plain: float | None = None) -> msgspec.Struct:
    return _Row(path=path, plain_bytes_per_s=plain, **msgspec.structs.asdict(pattern))


def _tenths(amounts: Sequence[int]) -> str:
    return " ".join(f"{amount / (1 << 20):.0f}" for amount in amounts)
