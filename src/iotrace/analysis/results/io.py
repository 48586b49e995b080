"""What was read and written: by file, group, mount and process."""

from __future__ import annotations

from pathlib import PurePath
from typing import Annotated

import msgspec

from iotrace.analysis.results.base import ReportPart, figure
from iotrace.analysis.results.loop import FileCost

# Chunks so small cost more each than their bytes do: 0.2 to 0.5 ms in zarr, 3 µs in HDF5 (docs/culprits.md).
_SMALL_ZARR_CHUNK, _SMALL_HDF5_CHUNK = 16 << 10, 4 << 10
_MANY_CHUNKS = 16  # of an access


class ReadPattern(ReportPart, frozen=True, kw_only=True):
    """How read calls of a file, group or mount went over the run; slow or fast, never "cached"."""

    reads: Annotated[int, figure("read calls that did not fail", said="reads")]
    p50_ms: Annotated[float | None, figure("the least length that 50, 95, 99 % of them did not exceed", null="their times are not known", said="p50 ms")] = None
    p95_ms: Annotated[float | None, figure("the least length that 50, 95, 99 % of them did not exceed", null="their times are not known", said="p95")] = None
    p99_ms: Annotated[float | None, figure("the least length that 50, 95, 99 % of them did not exceed", null="their times are not known", said="p99")] = None
    quantiles_of_bursts: Annotated[bool, figure("whether quick reads, one behind the other, were recorded together")] = False
    bytes_per_s: Annotated[
        float | None, figure("bytes read / time in which at least one of the reads ran", null="a call does not tell its bytes", said="MiB/s")
    ] = None
    reader_bytes_per_s: Annotated[float | None, figure("bytes read / sum of the reads' lengths: what one reader got", null="as above")] = None
    small_fraction: Annotated[float | None, figure("reads that returned less than 64 KiB / those that returned something", null="none did", said="small")] = (
        None
    )
    random_fraction: Annotated[
        float | None,
        figure("1 - `sequential_fraction`, of several files over all of their reads", null="no read has one before", said="random", absent="-"),
    ] = None
    reread_fraction: Annotated[
        float | None, figure("as in `io.files[]`, of several files over all of their bytes", null="no range known", said="reread", absent="-")
    ] = None
    metadata_calls: Annotated[int, figure("calls that neither read nor write: open, close, stat, seek, mmap and so on")]
    metadata_calls_per_sample: Annotated[
        float | None,
        figure("the same / samples that the rank's loaders delivered, of all phases", null="a loader does not tell its samples", said="metadata"),
    ] = None


class MountIo(ReportPart, frozen=True, kw_only=True):
    """What the rank did on a mounted file system, found by the files' paths; links are not followed."""

    point: Annotated[str, figure("where the file system is mounted")]
    type: Annotated[str, figure("its type")]
    files: Annotated[int, figure("files of the data that lie on it; links were followed")]
    read_bytes: Annotated[int | None, figure("what read calls returned of them", null="a file was mapped, or a call does not tell")] = None
    pattern: Annotated[ReadPattern, figure("how the reads went")]
    plain_bytes_per_s: Annotated[
        float | None, figure("what `iotrace doctor --storage` last found one plain sequential reader to get", null="it was not asked")
    ] = None
    plain_cold: Annotated[bool | None, figure("whether that reader read from storage", null="it was not asked, or the kernel does not tell")] = None


class DeviceReads(ReportPart, frozen=True, kw_only=True):
    """What a process had read from storage, by the kernel's account, in parts of the run.

    `read_bytes[i]` lies between `at_seconds[i]` and `at_seconds[i + 1]`.
    """

    pid: Annotated[int, figure("`main` or `worker <number>`", said="pid", place=1)]
    role: Annotated[str, figure("`main` or `worker <number>`", said="role", place=2)]
    total_bytes: Annotated[int, figure("`read_bytes` of `/proc/PID/io` at its last account", said="in all", place=3)]
    at_seconds: Annotated[list[float], figure("bounds of ten equal parts of the run, since the first account of the rank's processes")]
    read_bytes: Annotated[list[int], figure("what of `total_bytes` was added in each part", said="MiB in each tenth of the run", place=4)]


class FileIo(ReportPart, frozen=True, kw_only=True):
    """A file's I/O over the run; what page faults of its `maps` read is in no figure."""

    path: Annotated[str, figure("as in `data_wait.files`")]
    opens: Annotated[int, figure("open calls, failed ones too")]
    maps: Annotated[int, figure("calls of mmap; what page faults read of the file is in no figure of this table")]
    reads: Annotated[int, figure("read calls that did not fail, those at the file's end included")]
    read_bytes: Annotated[int | None, figure("what they returned", null="a call does not tell, or no call read it")] = None
    read_ms_total: Annotated[float | None, figure("time in read calls, failed ones too", null="no call read the file")] = None
    writes: Annotated[int, figure("write calls that did not fail, and what they wrote", "bytes")]
    write_bytes: Annotated[int, figure("write calls that did not fail, and what they wrote")]
    metadata_ms_total: Annotated[float, figure("time in other calls: open, close, stat, seek, mmap, sync and so on")]
    sequential_fraction: Annotated[
        float | None, figure("reads that begin where the process's read of the file before ended / reads with one before", null="no such read")
    ] = None
    reread_fraction: Annotated[float | None, figure("1 - length of the union of ranges read / bytes of those reads", null="no range known")] = None
    by_worker: Annotated[dict[str, int], figure("`reads` by pid, the training process included")]
    kind: Annotated[str, figure("that of its group; `file` where it has none")] = "file"
    members: Annotated[int | None, figure("that of its group", null="the group is one file, or it has none")] = None
    group: Annotated[str | None, figure("the `path` of its entry in file_groups", null="it is no data")] = None
    pattern: Annotated[ReadPattern | None, figure("how its reads went", null="no read call")] = None


class Chunks(ReportPart, frozen=True, kw_only=True):
    """What was read of a store of chunks over the run."""

    read: Annotated[int, figure("chunks that were read")]
    of: Annotated[int | None, figure("that there are", null="sharded arrays")] = None
    times_read: Annotated[int, figure("with repetitions")]
    decoded_bytes: Annotated[int | None, figure("a chunk is decoded whole each time its file is opened")] = None
    used_bytes: Annotated[int | None, figure("what the program's reads of the arrays returned")] = None
    amplification: Annotated[float | None, figure("`decoded_bytes` / `used_bytes`")] = None
    first_date: Annotated[str | None, figure("of the chunks that were read", null="the dataset says none")] = None
    last_date: Annotated[str | None, figure("likewise", null="the dataset says none")] = None
    variables: Annotated[list[str], figure("that the dataset names")]


class ChunkedArray(ReportPart, frozen=True, kw_only=True):
    """An array in chunks, each decoded whole, and what was asked of it."""

    path: Annotated[str, figure("the file or zarr array")]
    dataset: Annotated[str, figure("its name in an HDF5 file, else empty")]
    shape: Annotated[list[int], figure("its shape", "elements, bytes")]
    chunk: Annotated[list[int], figure("the shape of a chunk", "elements, bytes")]
    chunk_bytes: Annotated[int, figure("of a decoded chunk", "elements, bytes")]
    access: Annotated[list[int] | None, figure("the shape that at least 80 % of the accesses asked for", "elements", null="none had that share")] = None
    accesses: Annotated[int, figure("its accesses")]
    chunks_touched: Annotated[int, figure("chunks that each touched, summed")]
    used_bytes: Annotated[int, figure("elements asked for times their size")]
    decoded_at_least_bytes: Annotated[int, figure("the same where a cache kept as much as calls do not contradict")]
    decoded_at_most_bytes: Annotated[int, figure("every touched chunk decoded")]
    suggested_chunk: Annotated[
        list[int] | None, figure("`access` as a chunk, or a part of it where chunks are many and small", "elements", null="it would not help; sharded arrays")
    ] = None
    predicted_bytes: Annotated[int | None, figure("what the same accesses would decode with it at most", null="as above")] = None
    command: Annotated[str, figure("writes a copy with these chunks next to it", null="empty where none is suggested")] = ""
    complete: Annotated[int, figure("accesses that asked for the whole array; of older sessions 0")] = 0
    complete_once: Annotated[int, figure("as many as would do: one an epoch in each process that did; 0: no loader was seen")] = 0
    field: Annotated[str, figure("a field that these asked for, of an array of records", null="empty where they asked for all")] = ""
    array_bytes: Annotated[int, figure("of the array, decoded", "elements, bytes")] = 0
    filtered: Annotated[bool, figure("whether its chunks are compressed, or may be")] = True
    objects: Annotated[int, figure("Dataset objects of h5py that they went through, one after the other")] = 0
    lost: Annotated[
        int | None,
        figure("chunks decoded again, at least, that HDF5's cache would have held in one object", null="not known, or they went through few objects"),
    ] = None

    @property
    def takes_small_chunks(self) -> bool:
        """Whether an access takes many chunks so small that a call for each takes longer than its bytes do."""
        if not self.accesses or self.chunks_touched < _MANY_CHUNKS * self.accesses:
            return False
        of_zarr = any(part.endswith(".zarr") for part in PurePath(self.path).parts)
        return 0 < self.chunk_bytes <= (_SMALL_ZARR_CHUNK if of_zarr else _SMALL_HDF5_CHUNK)

    @property
    def is_picked(self) -> bool:
        """Whether each access took elements by a list or a mask from what is stored as it is: nothing is decoded then."""
        return self.accesses > 0 and not self.chunks_touched and not self.filtered and bool(self.dataset)


class RowGroups(ReportPart, frozen=True, kw_only=True):
    """What was read of a Parquet file by row groups, each decoded whole; or whole, in `readers` processes."""

    path: Annotated[str, figure("the file", said="file")]
    rows: Annotated[int, figure("its rows")]
    groups: Annotated[int, figure("its row groups")]
    group_rows: Annotated[int, figure("of the largest row group that was read", "rows", said="rows")]
    groups_read: Annotated[int, figure("different row groups that were read", said="groups")]
    columns_read: Annotated[int, figure("columns that were asked for; all, where none was named")]
    columns: Annotated[int, figure("those of the file")]
    reads: Annotated[int, figure("reads of one, with repetitions", said="reads")]
    decoded_bytes: Annotated[int, figure("what the reads gave, as Arrow holds it; of several groups in one call each by its rows", said="decoded")]
    distinct_bytes: Annotated[int, figure("the same, each row group with the same columns once")]
    passes: Annotated[int | None, figure("iterations of the rank's loaders, of all together", null="no loader was seen")] = None
    decoded_per_pass: Annotated[float | None, figure("`decoded_bytes` / `distinct_bytes` / `passes`", null="`passes` is", said="times")] = None
    suggested_rows: Annotated[
        int | None, figure("rows a group that would help", "rows", null="none would; the file was read whole", said="fit", absent="-")
    ] = None
    predicted_bytes: Annotated[int | None, figure("what the same reads would decode, about", null="neither is named")] = None
    command: Annotated[str, figure("writes a copy with these row groups next to it, with the file's compression", null="empty where none is suggested")] = ""
    whole_reads: Annotated[int, figure("how often the whole file was given (once for each set of columns), as one call or by batches")] = 0
    readers: Annotated[int, figure("processes in which it was")] = 0
    keep: Annotated[bool, figure("whether keeping what was read would help")] = False


class MappedReads(ReportPart, frozen=True, kw_only=True):
    """Accesses to a memory map.

    `major_faults` of samples waited for a page; what else came with it was read around it.
    """

    accesses: Annotated[int, figure("`__getitem__` of the map that gave more than 16 bytes, in all processes")]
    touched_bytes: Annotated[int | None, figure("pages that the accesses lie on at most, repeated ones too", null="some accesses are unknown")] = None
    apart_fraction: Annotated[
        float | None, figure("the share of the bytes that lies in pieces of less than 64, far from each other, as a column does", null="nothing was given")
    ] = None
    piece_bytes: Annotated[int | None, figure("of the last access of that kind: the bytes of a piece", null="there is none")] = None
    gap_bytes: Annotated[int | None, figure("from one piece to the next", null="there is none")] = None
    major_faults: Annotated[int, figure("page faults of samples that waited for storage")]
    predicted_bytes: Annotated[int | None, figure("what single pages would fetch at most", null="it is not")] = None


class Amplification(ReportPart, frozen=True, kw_only=True):
    """Bytes that calls fetched of a group, that libraries decoded of them, that the program was given."""

    fetched_bytes: Annotated[int | None, figure("what read calls returned of the group's files", null="not known of a memory map", said="fetched")] = None
    decoded_bytes: Annotated[int | None, figure("what libraries decoded of them", null="unknown", said="decoded")] = None
    used_bytes: Annotated[int | None, figure("what the accesses asked for", null="unknown", said="used")] = None
    fetched_per_used: Annotated[float | None, figure("the same, divided", null="one of both is not known")] = None
    decoded_per_used: Annotated[float | None, figure("the same, divided", null="one of both is not known", said="decoded/used")] = None
    why: Annotated[str, figure("why a figure is null; empty where none is", said="unknown", place=2)]
    arrays: Annotated[list[ChunkedArray], figure("the arrays in chunks that were read, HDF5 and zarr; below")]
    row_groups: Annotated[list[RowGroups], figure("the Parquet files that pyarrow read by row groups, or whole; below")] = msgspec.field(default_factory=list)
    mapped: Annotated[MappedReads | None, figure("accesses to memory maps", null="no memory map, or the program's own")] = None

    @property
    def is_picked(self) -> bool:
        """Whether that is so of all its arrays."""
        return bool(self.arrays) and all(each.is_picked for each in self.arrays)


class WholeReads(ReportPart, frozen=True, kw_only=True):
    """Files that most batches read and decoded whole; a process that kept them would read each once."""

    files: Annotated[int, figure("the files")]
    times: Annotated[int, figure("how often they were read whole")]
    times_per_pass: Annotated[float, figure("`times` / `files` / iterations of the rank's loaders, of all together")]
    readers: Annotated[int, figure("the processes that did, of the file that most had read")]
    given_bytes: Annotated[
        int | None, figure("what one call for each of the files gave at most, together; of an archive of arrays one of each size", null="a call does not say")
    ] = None
    fits: Annotated[bool, figure("whether the files, kept in each of the `readers`", null="never; false where neither is known")]
    in_turn: Annotated[int | None, figure("how often a process read another of them than the last time", null="`fits`")] = None


class FewFiles(ReportPart, frozen=True, kw_only=True):
    """Few files of a group that make up most of what reading, decoding and the transform behind them take.

    Each takes three times as long as the median of the others, or longer.
    """

    paths: Annotated[list[str], figure("the files, costliest first", said="files", place=2)]
    of: Annotated[int, figure("files of the group that batches were made of", said="of files")]
    fraction: Annotated[float, figure("their share of the time, over all batches of the run", said="time", place=-1)]


class FileGroup(ReportPart, frozen=True, kw_only=True):
    """Files that are one thing to their user: a store, a dataset, a directory, an archive or one file.

    The first four figures are its cost of the data wait, per measured step; the others are over the run.
    """

    path: Annotated[str, figure("the file, or the directory that it stands for")]
    kind: Annotated[str, figure("`store`, `dataset`, `archive`, `directory` or `file`")]
    members: Annotated[int | None, figure("how many it stands for", "files", null="one file, or no call showed any")] = None
    members_read: Annotated[int | None, figure("how many of them a call read, or mapped", "files", null="one file, or no call showed any")] = None
    ms: Annotated[float | None, figure("sums of `data_wait.files`", "ms per step", null="the data wait is unknown")] = None
    read_ms: Annotated[float | None, figure("sums of `data_wait.files`", "ms per step", null="the data wait is unknown")] = None
    decode_ms: Annotated[float | None, figure("sums of `data_wait.files`", "ms per step", null="the data wait is unknown")] = None
    transform_ms: Annotated[float | None, figure("sums of `data_wait.files`", "ms per step", null="the data wait is unknown")] = None
    reads: Annotated[int | None, figure("sums of `io.files`", null="POSIX calls were not traced")] = None
    read_bytes: Annotated[int | None, figure("sums of `io.files`", null="of one of the files it is unknown")] = None
    read_ms_total: Annotated[float | None, figure("sums of `io.files`", null="of one of the files it is unknown")] = None
    write_bytes: Annotated[int | None, figure("sums of `io.files`", null="POSIX calls were not traced")] = None
    chunks: Annotated[Chunks | None, figure("of arrays of zarr in it, over the run", null="no array of zarr was read")] = None
    pattern: Annotated[ReadPattern | None, figure("how its reads went", null="no read call")] = None
    amplification: Annotated[Amplification | None, figure("what was fetched and decoded for what was used", null="its format does not tell")] = None
    whole_reads: Annotated[WholeReads | None, figure("calls that gave one of its files whole", null="there were none, or each was read once a pass")] = None
    few: Annotated[FewFiles | None, figure("few files that make up most of its time", null="there are none")] = None

    @property
    def cost_ms(self) -> float:
        """The ms of a step's wait in these files, and in the transform of what they held."""
        return (self.ms or 0.0) + (self.transform_ms or 0.0)


class ProcessCoverage(msgspec.Struct, frozen=True):
    """The bytes that a process read, traced and by the kernel's count; in the measured steps likewise."""

    pid: Annotated[int, figure("the process")]
    role: Annotated[str, figure("`main`, `forked`, `spawned` or `forkserver`")]
    coverage: Annotated[float | None, figure("`traced_bytes` / `kernel_bytes`", "0 to 1", null="no kernel bytes, or unknown")] = None
    traced_bytes: Annotated[int | None, figure("returned by read calls inside the interval", null="fewer than two accounts")] = None
    kernel_bytes: Annotated[int | None, figure("growth of `rchar` in `/proc/PID/io` over the interval", null="fewer than two accounts")] = None
    is_worker: bool = False
    steps_traced_bytes: int | None = None
    steps_kernel_bytes: int | None = None


MOSTLY_SEEN = 0.95  # of the bytes that the kernel counted
LITTLE_BYTES = 1 << 16


class Io(ReportPart, frozen=True, kw_only=True):
    """Calls of the rank's processes over the whole run."""

    coverage: Annotated[float | None, figure("traced bytes / kernel bytes, each summed over processes with kernel bytes", "0 to 1", null="none has any")] = None
    data_coverage: Annotated[float | None, figure("the same of the processes that make batches", "0 to 1", null="no kernel bytes")] = None
    data_coverage_of_steps: bool = False
    unseen_because: Annotated[str | None, figure("what the kernel counts as read and the tracer does not see", null="no data was read, no kernel bytes")] = None
    only: Annotated[list[str] | None, figure("paths of `--io`: calls on other files were not traced", null="all were")] = None
    calls: Annotated[int, figure("calls of every kind")]
    bytes: Annotated[int, figure("`read_bytes` + `write_bytes` of all files, where known")]
    ms_total: Annotated[float, figure("sum of all calls' lengths, a call inside another counted once; calls at the same time add up")]
    files: Annotated[list[FileIo], figure("by file, longest reading and metadata time first")]
    processes: Annotated[list[ProcessCoverage], figure("coverage by process, the training process first")]
    mounts: Annotated[list[MountIo] | None, figure("data by mounted file system", null="the session does not say what was mounted (older ones)")] = None
    device_reads: Annotated[list[DeviceReads] | None, figure("what each process had read from storage", null="no account of the kernel could be read")] = None

    @property
    def seen_fraction(self) -> float | None:
        """The share of the kernel's bytes that was traced: of what makes batches, where that is known."""
        return self.coverage if self.data_coverage is None else self.data_coverage

    @property
    def seen_in_part(self) -> bool:
        """Whether processes read more than was traced: the bytes of each file are at least those told."""
        seen = self.seen_fraction
        return seen is not None and seen < MOSTLY_SEEN and self.unseen_because is not None and not self._is_little

    @property
    def _is_little(self) -> bool:
        """Whether what makes batches read little beside what was traced: what the interpreter itself reads."""
        makers = [each for each in self.processes if each.is_worker] or self.processes
        of_steps = self.data_coverage_of_steps
        kernel = [each.steps_kernel_bytes if of_steps else each.kernel_bytes for each in makers]
        traced = [each.steps_traced_bytes if of_steps else each.traced_bytes for each in makers]
        known = sum(filter(None, kernel))
        return known > 0 and known - sum(filter(None, traced)) < LITTLE_BYTES


def cost_of_file_ms(file: FileCost | FileGroup, cause: str) -> float:
    """Return what a file, or a group of files, adds to a cause."""
    return {"read": file.read_ms, "decode": file.decode_ms}.get(cause) or 0.0
