"""What the program reads: arrays, files, archives, by which calls."""

from __future__ import annotations

from math import prod

from iotrace.sources.records.base import Int, Record


class ArrayInfo(Record, tag="array"):
    """An array of zarr that was read: its chunks, and the bytes of each when it is decoded."""

    path: str
    chunks: Int
    chunk_bytes: Int
    rows_per_chunk: Int = 1
    sharded: bool = False


class RasterInfo(Record, tag="raster"):
    """A raster that was read: its rows and columns, and those of a block, which is decoded at once."""

    path: str
    shape: list[Int]
    block: list[Int]
    bands: Int
    item_bytes: Int
    compression: str = ""
    driver: str = ""

    @property
    def decoded_bytes(self) -> int:
        """All of it, decoded."""
        return prod(self.shape) * self.bands * self.item_bytes


class Chunked(Record, tag="chunked"):
    """Accesses of a process to an array in chunks, so far; `dataset` is its name in an HDF5 file.

    `accesses` touched `touched` chunks, each time counted, but for `odd` ones, whose selection is no integers
    and slices. `extents`: the shapes that they asked for, and how many did. `cache_bytes`: HDF5's cache;
    `whole`: a chunk is read whole (HDF5 reads parts of one without filters that does not fit its cache).
    `elements` were asked for, of which `asked_bytes` were given; `complete` accesses asked for all elements,
    one of them for `field` of each. `filtered`: chunks are, or may be, compressed. `objects`: so many h5py
    objects in turn were used; `kept` accesses began in a chunk that HDF5's cache would have held, had it been
    one. These are unknown of older sessions.
    """

    path: str
    dataset: str
    shape: list[Int]
    chunk: list[Int]
    item_bytes: Int
    cache_bytes: Int
    accesses: Int
    touched: Int
    odd: Int
    extents: list[tuple[list[Int], Int]]
    whole: bool = True
    version: str = ""  # of zarr
    elements: Int | None = None
    asked_bytes: Int | None = None
    complete: Int = 0
    field: str = ""
    filtered: bool = True
    objects: Int = 0
    kept: Int = 0


class RowGroupsRead(Record, tag="row_groups"):
    """Row groups of a Parquet file that one `call` of pyarrow read or iterated in a process, so far.

    `read`: by number, how often each was, its rows, and the bytes that it gave. `columns`: those that were
    asked for; None is all of them. The file has `rows` in `groups`. Of a call that chose rows by a filter
    nothing was `read` that is known.
    """

    path: str
    call: str
    columns: list[str] | None
    of_columns: Int
    rows: Int
    groups: Int
    read: list[tuple[Int, Int, Int, Int]]
    compression: str = ""

    @property
    def is_filtered(self) -> bool:
        """Whether a filter chose rows: which row groups were decoded for them, nobody knows."""
        return self.call.endswith("(filter)")


class Mapped(Record, tag="mapped"):
    """Accesses of a process to the memory map of a file, so far, and the bytes that they gave.

    All but `odd` ones were one piece of the file each, on `pages` of `page_bytes` at most, repeated ones too.
    Beside them single `elements` were taken, of this and of all other maps of the process. `apart` bytes were
    of accesses to small pieces: `piece` bytes each `gap` bytes.
    """

    path: str
    accesses: Int
    bytes: Int
    pages: Int
    odd: Int
    page_bytes: Int
    elements: Int = 0
    apart: Int = 0
    piece: Int = 0
    gap: Int = 0


class Gridded(Record, tag="gridded"):
    """A dataset of anemoi that was read: the dates along its first axis, its variables."""

    path: str
    dates: Int = 0
    first: str = ""
    last: str = ""
    frequency: str = ""
    variables: list[str] = []


class KeptOpen(Record, tag="kept_open"):
    """An archive that a trial keeps open for the program."""

    path: str


class OwnLog(Record, tag="own_log"):
    """The program began a log of dftracer's of its own at `prefix`, or ended it: empty then."""

    prefix: str
    mono_ns: Int
    ended: bool


class PosixEnded(Record, tag="posix_ended"):
    """dftracer was ended in this process, by a child of its that could not run its program."""
