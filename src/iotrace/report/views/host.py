"""Views of the machine under a program: storage, and means and peaks of processes, host and devices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec

from iotrace.analysis.results import (
    Amplification,
    DeviceReads,
    FewFiles,
    RankReport,
    ReadPattern,
    RepeatedWork,
    Report,
    ReportPart,
    RowGroups,
)
from iotrace.analysis.results.base import figure, figures_of
from iotrace.report.blocks import Field, Table, columns, of_ranks
from iotrace.units import one_decimal, three_digits

_NO_CALLS = "POSIX calls were not traced"
_NO_MOUNTS = "this session does not say what was mounted where"
_NO_FORMAT = "no file whose format tells it was read (HDF5, zarr, Parquet, memory maps)"
_MOST_ROWS = 20
# How the view of the system shows units, and the factor.
_SHOWN = {"bytes": ("MiB", 2**-20), "0 to 1": ("%", 100.0), "bytes/s": ("MB/s", 1e-6)}


class _Amplified(Amplification, frozen=True, kw_only=True):
    """A group with what was fetched and decoded of it."""

    path: Annotated[str, figure("the group", said="file or directory", place=1)]


class _Few(FewFiles, frozen=True, kw_only=True):
    """The few files of a group that take most of its time."""

    path: Annotated[str, figure("the group", said="in", place=1)]


class _Row(ReadPattern, frozen=True, kw_only=True):
    """A file, group or mount, with the pattern of its reads."""

    path: Annotated[str, figure("what was read", said="file or mount")]
    plain_bytes_per_s: float | None = None


def _short(value: float) -> str:
    return "< 0.001" if 0 < value < 0.001 else three_digits(value)


def _mib(value: float) -> str:
    return f"{value / (1 << 20):,.0f}"


def storage(report: Report) -> list[Table]:
    """Show how reads went by mount and by file, then the bytes that came from the device."""
    quantiles = dict.fromkeys(("p50_ms", "p95_ms", "p99_ms"), _short)
    fields = columns(_Row, bytes_per_s=_mib, metadata_calls_per_sample=one_decimal, **quantiles)
    key = (
        "small: reads below 64 KiB · reread: of bytes · metadata: calls a sample (open, stat, seek, ...)",
        "MiB/s: while a read ran · slow or fast says nothing of the page cache",
    )

    def mounts(rank: RankReport) -> Table:
        return Table(
            title="Reads by mounted file system",
            rows=[
                _row(f"{mount.point} ({mount.type})", mount.pattern, mount.plain_bytes_per_s)
                for mount in (rank.io and rank.io.mounts) or []
            ],
            fields=[*fields[:5], Field("plain_bytes_per_s", "plain MiB/s", _mib), *fields[5:]],
            unknown=_NO_CALLS if rank.io is None else _NO_MOUNTS if rank.io.mounts is None else "no data",
        )

    def files(rank: RankReport) -> Table:
        return Table(
            title="Reads by file, store or directory",
            rows=[_row(each.path, each.pattern) for each in rank.file_groups if each.pattern][:_MOST_ROWS],
            fields=fields,
            unknown=_NO_CALLS if rank.io is None else "no call read data",
            notes=key,
        )

    def amplified(rank: RankReport) -> Table:
        known = [(each, each.amplification) for each in rank.file_groups if each.amplification]
        rows = [_Amplified(path=each.path, **msgspec.structs.asdict(own)) for each, own in known]
        mapped = any(own.mapped or each.read_bytes is None for each, own in known)
        return Table(
            title="Fetched and decoded for what was used",
            rows=rows[:_MOST_ROWS],
            fields=columns(_Amplified, decoded_per_used=one_decimal),
            unknown=_NO_CALLS if rank.io is None else _NO_FORMAT,
            notes=["of a memory map: fetched from storage, at least"] if mapped else [],
        )

    def row_groups(rank: RankReport) -> Table:
        return Table(
            title="Row groups of Parquet files",
            rows=_row_groups(rank)[:_MOST_ROWS],
            fields=columns(RowGroups, group_rows=str, decoded_per_pass=one_decimal, suggested_rows=str),
            notes=["times: that each was decoded in an epoch · fit: rows of a group that would fit"],
        )

    def device(rank: RankReport) -> Table:
        return Table(
            title="Read from the device (the kernel's account), by process and time",
            rows=(rank.io and rank.io.device_reads) or [],
            fields=columns(DeviceReads, read_bytes=_tenths),
            unknown=_NO_CALLS if rank.io is None else "no process's account could be read",
        )

    def few(rank: RankReport) -> Table:
        return Table(
            title="Few files that take most of their directory's time",
            rows=_few(rank),
            fields=columns(_Few, paths=", ".join),
        )

    def repeated(rank: RankReport) -> Table:
        return Table(
            title="What samples do again and again",
            rows=rank.repeated,
            fields=columns(RepeatedWork, paths=", ".join),
            notes=("ms: until a sample turns to another file · sample ms: all of it · wait: ms a step",),
        )

    return [
        *of_ranks(report.ranks, mounts, files),
        *of_ranks([rank for rank in report.ranks if _few(rank)], few),
        *of_ranks([rank for rank in report.ranks if rank.repeated], repeated),
        *of_ranks(report.ranks, amplified),
        *of_ranks([rank for rank in report.ranks if _row_groups(rank)], row_groups),
        *of_ranks(report.ranks, device),
    ]


def _few(rank: RankReport) -> list[_Few]:
    known = [(group.path, group.few) for group in rank.file_groups if group.few]
    return [_Few(path=path, **msgspec.structs.asdict(few)) for path, few in known][:_MOST_ROWS]


def _row_groups(rank: RankReport) -> list[RowGroups]:
    known = [group.amplification for group in rank.file_groups if group.amplification]
    return [each for amplification in known for each in amplification.row_groups]


def _row(path: str, pattern: ReadPattern, plain: float | None = None) -> msgspec.Struct:
    return _Row(path=path, plain_bytes_per_s=plain, **msgspec.structs.asdict(pattern))


def _tenths(amounts: Sequence[int]) -> str:
    return " ".join(f"{amount / (1 << 20):.0f}" for amount in amounts)


class SystemRow(msgspec.Struct, frozen=True, kw_only=True):
    """A figure of the machine over the measured time: its mean, and its peak."""

    what: Annotated[str, figure("the figure", said="what", place=-1)]
    mean: Annotated[float | None, figure("its mean", said="mean", absent="-")]
    peak: Annotated[float | None, figure("its peak", said="peak", absent="-")]
    unit: Annotated[str, figure("its unit", said="unit")]


def system(report: Report) -> list[Table]:
    """Show the mean and the peak of what the rank's processes, its host and its devices used."""

    def make(rank: RankReport) -> Table:
        return Table(
            title="System, over the measured steps",
            rows=[*_system_rows(rank)],
            fields=columns(SystemRow, mean=three_digits, peak=three_digits),
            unknown="no sample was taken",
            remedy="iotrace run takes them, without --no-telemetry",
        )

    return of_ranks(report.ranks, make)


def _system_rows(rank: RankReport) -> Iterator[SystemRow]:
    found = rank.system
    yield from _rows_of(found, after=" of the rank's processes")
    for process in found.processes:
        yield from _rows_of(process, after=f" of {process.role}, pid {process.pid}")
    if found.host is not None:
        yield from _rows_of(found.host)
    for gpu in found.gpus:
        yield from _rows_of(gpu, before=f"gpu {gpu.index} ")


def _rows_of(part: ReportPart, before: str = "", after: str = "") -> Iterator[SystemRow]:
    """Make a row of each figure that has a name here; the largest sample stands beside its mean."""
    for each in sorted(figures_of(type(part)), key=lambda each: each.place):
        name = each.name
        peak = name if each.is_largest else f"{each.sampled}_peak"
        values = (None if name == peak else getattr(part, name), getattr(part, peak, None))
        if each.said and values != (None, None):
            unit, scale = _SHOWN.get(each.unit, (each.unit, 1.0))
            mean, most = (None if value is None else value * scale for value in values)
            yield SystemRow(what=f"{before}{each.said}{after}", mean=mean, peak=most, unit=unit)
