"""What was read and written: by file, group, mount and process."""

from __future__ import annotations

import msgspec

from iotrace.analysis.results.base import ReportPart
from iotrace.analysis.results.loop import FileCost


class ReadPattern(ReportPart, frozen=True, kw_only=True):
    """How read calls of a file, group or mount went over the run; slow or fast, never "cached".

    Shares are 0 to 1: of calls that returned less than 64 KiB, of those that begin elsewhere than where the
    process's last read of the file ended, of bytes that were read before. `bytes_per_s`: over the time in
    which a read ran; `reader_bytes_per_s`: what one reader got. Metadata: open, close, stat, seek and so on.
    `quantiles_of_bursts`: quick reads, one behind the other, were recorded together, and count as alike.
    """

    reads: int
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    quantiles_of_bursts: bool = False
    bytes_per_s: float | None
    reader_bytes_per_s: float | None
    small_fraction: float | None
    random_fraction: float | None
    reread_fraction: float | None
    metadata_calls: int
    metadata_calls_per_sample: float | None


class MountIo(ReportPart, frozen=True, kw_only=True):
    """What the rank did on a mounted file system, found by the files' paths; links are not followed.

    `plain_bytes_per_s`: what ``iotrace doctor --storage`` found a plain sequential reader to get from it;
    `plain_cold`: whether that came from storage, as far as the kernel says.
    """

    point: str
    type: str
    files: int
    read_bytes: int | None
    pattern: ReadPattern
    plain_bytes_per_s: float | None = None
    plain_cold: bool | None = None


class DeviceReads(ReportPart, frozen=True, kw_only=True):
    """What a process had read from storage, by the kernel's account, in parts of the run.

    `read_bytes[i]` lies between `at_seconds[i]` and `at_seconds[i + 1]`, counted from the first account of
    the rank's processes.
    """

    pid: int
    role: str
    total_bytes: int
    at_seconds: list[float]
    read_bytes: list[int]


class FileIo(ReportPart, frozen=True, kw_only=True):
    """A file's I/O over the run; what page faults of its `maps` read is in no figure.

    `kind` and `members` are those of its `group`, which is None of files that are no data.
    """

    path: str
    opens: int
    maps: int
    reads: int
    read_bytes: int | None
    read_ms_total: float | None
    writes: int
    write_bytes: int
    metadata_ms_total: float
    sequential_fraction: float | None
    reread_fraction: float | None
    by_worker: dict[str, int]
    kind: str = "file"
    members: int | None = None
    group: str | None = None
    pattern: ReadPattern | None = None


class Chunks(ReportPart, frozen=True, kw_only=True):
    """What was read of a store of chunks over the run: `read` of `of` chunks, `times_read` in all.

    Each time it is read, a chunk is decoded whole: `decoded_bytes`, of which `used_bytes` were asked for.
    Dates are those of the chunks that were read, of a dataset that says them.
    """

    read: int
    of: int | None
    times_read: int
    decoded_bytes: int | None
    used_bytes: int | None
    amplification: float | None
    first_date: str | None
    last_date: str | None
    variables: list[str]


class ChunkedArray(ReportPart, frozen=True, kw_only=True):
    """An array in chunks and what was asked of it; `access` is the shape that most accesses had.

    A chunk is decoded whole: `decoded_at_most_bytes` where every touched chunk was decoded, `.._at_least_..`
    where a cache kept as many as calls do not contradict. With `suggested_chunk` accesses of this shape would
    decode `predicted_bytes` at most; `command` writes such a copy. Both are null or empty where none helps.
    """

    path: str
    dataset: str
    shape: list[int]
    chunk: list[int]
    chunk_bytes: int
    access: list[int] | None
    accesses: int
    chunks_touched: int
    used_bytes: int
    decoded_at_least_bytes: int
    decoded_at_most_bytes: int
    suggested_chunk: list[int] | None = None
    predicted_bytes: int | None = None
    command: str = ""


class RowGroups(ReportPart, frozen=True, kw_only=True):
    """What was read of a Parquet file by row groups: `reads` of `groups_read` different ones of its `groups`.

    A row group is decoded whole: `decoded_bytes`; `distinct_bytes` where each were decoded once. In each of
    `passes` of the rank's loaders each was decoded `decoded_per_pass` times. With `suggested_rows` a group
    the same reads would decode about `predicted_bytes`, if no two samples share a row; `command` writes such
    a copy. `whole_reads` took the whole file, in `readers` processes; with `keep` each of these would decode
    it once, `predicted_bytes` in all, if it kept what it read.
    """

    path: str
    rows: int
    groups: int
    group_rows: int
    groups_read: int
    columns_read: int
    columns: int
    reads: int
    decoded_bytes: int
    distinct_bytes: int
    passes: int | None
    decoded_per_pass: float | None
    suggested_rows: int | None = None
    predicted_bytes: int | None = None
    command: str = ""
    whole_reads: int = 0
    readers: int = 0
    keep: bool = False


class MappedReads(ReportPart, frozen=True, kw_only=True):
    """Accesses to a memory map, and the bytes of the pages that they touched at most.

    `major_faults` of samples waited for a page; what else came with it was read around it. Single pages would
    fetch `predicted_bytes` at most; null unless that is far less than what was fetched.
    """

    accesses: int
    touched_bytes: int | None
    major_faults: int
    predicted_bytes: int | None = None


class Amplification(ReportPart, frozen=True, kw_only=True):
    """Bytes that calls fetched of a group, that libraries decoded of them, that the program was given.

    Null where that is not known, for the reason in `why`.
    """

    fetched_bytes: int | None
    decoded_bytes: int | None
    used_bytes: int | None
    fetched_per_used: float | None
    decoded_per_used: float | None
    why: str
    arrays: list[ChunkedArray]
    row_groups: list[RowGroups] = msgspec.field(default_factory=list)
    mapped: MappedReads | None = None


class WholeReads(ReportPart, frozen=True, kw_only=True):
    """Files that most batches read and decoded whole: `times` in all, in `readers` processes.

    In each pass of the rank's loaders each file was read `times_per_pass` times. A process that kept them
    would read each once, and hold `given_bytes` (null: calls do not say); `fits`: there is memory for that.
    """

    files: int
    times: int
    times_per_pass: float
    readers: int
    given_bytes: int | None
    fits: bool


class FileGroup(ReportPart, frozen=True, kw_only=True):
    """Files that are one thing to their user: a store, a dataset, a directory, an archive or one file.

    The first four figures are its cost of the data wait, per measured step; the others are over the run.
    """

    path: str
    kind: str
    members: int | None
    ms: float | None
    read_ms: float | None
    decode_ms: float | None
    transform_ms: float | None
    reads: int | None
    read_bytes: int | None
    read_ms_total: float | None
    write_bytes: int | None
    chunks: Chunks | None = None
    pattern: ReadPattern | None = None
    amplification: Amplification | None = None
    whole_reads: WholeReads | None = None

    @property
    def cost_ms(self) -> float:
        """The ms of a step's wait in these files, and in the transform of what they held."""
        return (self.ms or 0.0) + (self.transform_ms or 0.0)


class ProcessCoverage(msgspec.Struct, frozen=True):
    """The bytes that a process read, traced and by the kernel's count; in the measured steps likewise."""

    pid: int
    role: str
    coverage: float | None
    traced_bytes: int | None
    kernel_bytes: int | None
    is_worker: bool = False
    steps_traced_bytes: int | None = None
    steps_kernel_bytes: int | None = None


MOSTLY_SEEN = 0.95  # of the bytes that the kernel counted


class Io(ReportPart, frozen=True, kw_only=True):
    """`data_coverage`: of the processes that make batches, in the measured steps or over the run.

    `unseen_because` says what the kernel counts and the tracer does not; None where no data was read."""

    coverage: float | None
    data_coverage: float | None = None
    data_coverage_of_steps: bool = False
    unseen_because: str | None
    calls: int
    bytes: int
    ms_total: float
    files: list[FileIo]
    processes: list[ProcessCoverage]
    mounts: list[MountIo] | None = None
    device_reads: list[DeviceReads] | None = None

    @property
    def seen_fraction(self) -> float | None:
        """The share of the kernel's bytes that was traced: of what makes batches, where that is known."""
        return self.coverage if self.data_coverage is None else self.data_coverage

    @property
    def seen_in_part(self) -> bool:
        """Whether processes read more than was traced: the bytes of each file are at least those told."""
        seen = self.seen_fraction
        return seen is not None and seen < MOSTLY_SEEN and self.unseen_because is not None


def cost_of_file_ms(file: FileCost | FileGroup, cause: str) -> float:
    """Return what a file, or a group of files, adds to a cause."""
    return {"read": file.read_ms, "decode": file.decode_ms}.get(cause) or 0.0
