"""Write copies of data with the same values, stored otherwise: a script for the program's own Python.

That one has the libraries that read the data, iotrace's need not: the script imports the standard library,
and of the others what a job asks for. It reads jobs, a JSON list, from its input, and prints a JSON object a
line: progress, what is done, or why a job is refused. Nothing is written where there is no room for all jobs.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

_SLAB_BYTES = 64 << 20
_CACHE_BYTES = 256 << 20  # of decoded chunks of HDF5
_ROOM = 1.05  # times what is expected
_PIECE = 4 << 20
_LARGEST_TABLE = 1 << 30
_PACKERS = ("gzip", "lzf", "szip")
_ORIENTATION = 274  # EXIF's


class RefusedError(Exception):
    """Why the data cannot be copied so."""


class Library:
    """A library that is imported where a job asks for it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._name), name)


h5py, zarr, pandas, np = (Library(name) for name in ("h5py", "zarr", "pandas", "numpy"))
pa, pq, Image = (Library(name) for name in ("pyarrow", "pyarrow.parquet", "PIL.Image"))
Job = dict[str, Any]


def same(old: Any, new: Any, pieces: Iterable[Any]) -> bool:
    """Whether two arrays hold the same bytes, or the same objects, in each piece."""
    for piece in pieces:
        one, other = np.asarray(old[piece]), np.asarray(new[piece])
        if one.dtype != other.dtype or one.shape != other.shape:
            return False
        if not ((one == other).all() if one.dtype.hasobject else one.tobytes() == other.tobytes()):
            return False
    return True


def slabs(shape: tuple[int, ...], rows: int) -> Iterator[tuple[slice, ...]]:
    """Yield pieces of so many rows."""
    if not shape:
        yield ()
    for start in range(0, shape[0] if shape else 0, max(1, rows)):
        yield (slice(start, min(start + max(1, rows), shape[0])),)


def rows_at_once(array: Any) -> int:
    """Rows that fill a slab."""
    row_bytes = array.nbytes // array.shape[0] if array.shape and array.shape[0] else 1
    return max(1, _SLAB_BYTES // max(1, row_bytes))


@contextmanager
def hdf5_pair(job: Job, target: str, mode: str) -> Iterator[tuple[Any, Any]]:
    options = {"rdcc_nbytes": _CACHE_BYTES, "rdcc_nslots": 1_000_003}
    with h5py.File(job["source"], "r", **options) as old, h5py.File(target, mode, **options) as new:
        yield old, new


def hdf5_pieces(array: Any) -> Iterable[Any]:
    return array.iter_chunks() if array.chunks else slabs(array.shape, rows_at_once(array))


def hdf5_arrays(file: Any, job: Job) -> dict[str, list[int] | None]:
    """Return the datasets to store again, each with its chunks; None: they stay as they are."""
    if job["how"] == "chunks":
        return {name: list(chunk) for name, chunk in job["arrays"].items()}
    arrays: dict[str, list[int] | None] = {}

    def look(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and item.compression in _PACKERS:
            arrays[name] = None

    file.visititems(look)
    if not arrays:
        raise RefusedError("none of its datasets is compressed")
    return arrays


def hdf5_room(job: Job) -> int:
    """The whole file stays in the copy, dead parts included; each dataset again, decoded at most."""
    with h5py.File(job["source"], "r") as file:
        packed = job["how"] == "chunks"
        names = hdf5_arrays(file, job)
        sizes = [2 * file[name].id.get_storage_size() if packed else file[name].nbytes for name in names]
    return int(os.path.getsize(job["source"]) + sum(sizes))


def hdf5(job: Job, target: str, progress: Callable[[float], None]) -> None:
    copy_file(job["source"], target)
    with hdf5_pair(job, target, "r+") as (old, new):
        names = hdf5_arrays(old, job)
        for number, (name, chunk) in enumerate(names.items()):
            store_anew(old[name], new[name], chunk, job["how"] == "lighter")
            progress((number + 1) / len(names) / 2)


def store_anew(old: Any, before: Any, chunk: list[int] | None, unpack: bool) -> None:
    kinds = {name: before.attrs.get_id(name).dtype for name in before.attrs}
    scales = [list(dim.values()) for dim in before.dims] if "DIMENSION_LIST" in kinds else []
    left = {"DIMENSION_LIST"} if scales else set()
    for name, kind in kinds.items():
        if name not in left and (h5py.check_ref_dtype(kind) or kind.names or name == "CLASS"):
            raise RefusedError(f"{old.name} is referred to by others in the file ({name})")
    layout = before.id.get_create_plist().copy()
    if chunk is not None:
        layout.set_chunk(tuple(chunk))
    if unpack:
        layout.remove_filter(h5py.h5z.FILTER_ALL)
    parent, base = before.parent, before.name.rpartition("/")[2]
    beside = f".iotrace-{base}"
    kind, space = before.id.get_type(), before.id.get_space()
    made = h5py.Dataset(h5py.h5d.create(parent.id, beside.encode(), kind, space, layout))
    for piece in hdf5_pieces(old):
        made[piece] = old[piece]
    for name in kinds.keys() - left:
        made.attrs.create(name, before.attrs[name], dtype=kinds[name])
    for dim, of_dim in enumerate(scales):
        for scale in of_dim:
            before.dims[dim].detach_scale(scale)
            made.dims[dim].attach_scale(scale)
    del parent[base]
    parent.move(beside, base)


def hdf5_equal(job: Job, target: str) -> bool:
    with hdf5_pair(job, target, "r") as (old, new):
        for name in hdf5_arrays(old, job):
            one, other = old[name], new[name]
            if (one.shape, one.dtype, sorted(one.attrs)) != (other.shape, other.dtype, sorted(other.attrs)):
                return False
            if not same(one, other, hdf5_pieces(one)):
                return False
        named: list[list[str]] = [[], []]
        old.visit(named[0].append)
        new.visit(named[1].append)
        return sorted(named[0]) == sorted(named[1])


def zarr_room(job: Job) -> int:
    room = 0
    for name in job["arrays"]:
        where = os.path.join(job["source"], name)
        decoded = zarr.open_array(where, mode="r").nbytes
        room += decoded if job["how"] == "lighter" else min(decoded, 2 * tree_bytes(where))
    return room


def tree_bytes(root: str) -> int:
    return sum(os.path.getsize(os.path.join(at, file)) for at, _, files in os.walk(root) for file in files)


def zarr_store(job: Job, target: str, progress: Callable[[float], None]) -> None:
    source = job["source"]
    anew = {os.path.normpath(os.path.join(source, name)) for name in job["arrays"]}

    def leave(folder: str, entries: list[str]) -> list[str]:
        return [each for each in entries if os.path.normpath(os.path.join(folder, each)) in anew]

    if os.path.normpath(source) not in anew:
        shutil.copytree(source, target, copy_function=link_file, ignore=leave)
    for number, (name, chunk) in enumerate(job["arrays"].items()):
        old = zarr.open_array(os.path.join(source, name), mode="r")
        where = os.path.normpath(os.path.join(target, name))
        chunks = tuple(chunk or old.chunks)
        if hasattr(zarr, "from_array"):
            new = zarr.from_array(
                where, data=old, chunks=chunks, write_data=False, overwrite=True, attributes=dict(old.attrs),
                compressors=None if job["how"] == "lighter" else "keep", dimension_names=dimension_names(old),
            )  # fmt: skip
        elif zarr.__version__.startswith("2."):
            new = zarr.create(
                old.shape, chunks=chunks, dtype=old.dtype, store=where, overwrite=True,
                compressor=None if job["how"] == "lighter" else old.compressor, filters=old.filters,
                fill_value=old.fill_value, order=old.order, dimension_separator=old._dimension_separator,
            )  # fmt: skip
            new.attrs.put(old.attrs.asdict())
        else:
            raise RefusedError(f"zarr {zarr.__version__} cannot copy an array with other chunks: 3.1 can")
        for piece in slabs(old.shape, aligned(old, chunks)):
            new[piece] = old[piece]
        progress((number + 1) / len(job["arrays"]) / 2)
    if is_consolidated(source):
        zarr.consolidate_metadata(target)


def dimension_names(array: Any) -> Any:
    """The names of its dimensions, which zarr 3's format has."""
    return getattr(getattr(array, "metadata", None), "dimension_names", None) or None


def aligned(array: Any, chunks: tuple[int, ...]) -> int:
    """Rows that fill whole new chunks, and old ones where these are not too large."""
    new, old = (chunks[0], array.chunks[0]) if array.shape else (1, 1)
    rows = max(new, old) if max(new, old) % min(new, old) == 0 else new
    return int(max(rows, rows_at_once(array) // rows * rows))


def is_consolidated(root: str) -> bool:
    if os.path.exists(os.path.join(root, ".zmetadata")):
        return True
    with suppress(OSError, ValueError), open(os.path.join(root, "zarr.json"), encoding="utf-8") as file:
        return bool(json.load(file).get("consolidated_metadata"))
    return False


def zarr_equal(job: Job, target: str) -> bool:
    for name in job["arrays"]:
        one, other = (zarr.open_array(os.path.join(root, name), mode="r") for root in (job["source"], target))
        about = [(each.shape, each.dtype, dict(each.attrs), dimension_names(each)) for each in (one, other)]
        if about[0] != about[1]:
            return False
        rows = max(rows_at_once(one), one.chunks[0] if one.shape else 1)
        if not same(one, other, slabs(one.shape, rows)):
            return False
    return True


def parquet(job: Job, target: str, progress: Callable[[float], None]) -> None:
    file, rows = pq.ParquetFile(job["source"]), job["rows"]
    about, done = file.metadata, 0
    group = about.row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    packed = {one.path_in_schema: one.compression.lower().replace("uncompressed", "none") for one in columns}
    with pq.ParquetWriter(target, file.schema_arrow, compression=packed) as writer:
        for batch in file.iter_batches(max(1, (1 << 16) // rows) * rows):
            writer.write_table(pa.Table.from_batches([batch]), row_group_size=rows)
            done += batch.num_rows
            progress(done / max(1, about.num_rows) / 2)


def parquet_equal(job: Job, target: str) -> bool:
    one, other = pq.ParquetFile(job["source"]), pq.ParquetFile(target)
    if not one.schema_arrow.equals(other.schema_arrow) or one.metadata.num_rows != other.metadata.num_rows:
        return False
    pieces = zip(one.iter_batches(1 << 16), other.iter_batches(1 << 16), strict=True)
    return all(left.equals(right) for left, right in pieces)


def csv_room(job: Job) -> int:
    if os.path.getsize(job["source"]) > _LARGEST_TABLE:
        raise RefusedError("it is too large to be held as a table")
    return twice(job)


def csv(job: Job, target: str, progress: Callable[[float], None]) -> None:
    pandas.read_csv(job["source"]).to_parquet(target, engine="pyarrow")
    progress(0.5)


def csv_equal(job: Job, target: str) -> bool:
    one, other = pandas.read_csv(job["source"]), pandas.read_parquet(target)
    return bool(one.equals(other) and one.dtypes.equals(other.dtypes) and one.index.equals(other.index))


def npz_room(job: Job) -> int:
    with zipfile.ZipFile(job["source"]) as packed:
        return sum(info.file_size for info in packed.infolist())


def npz(job: Job, target: str, progress: Callable[[float], None]) -> None:
    with zipfile.ZipFile(job["source"]) as packed, zipfile.ZipFile(target, "w") as plain:
        for info in packed.infolist():
            made = zipfile.ZipInfo(info.filename, info.date_time)
            with packed.open(info) as old, plain.open(made, "w", force_zip64=True) as new:
                shutil.copyfileobj(old, new, _PIECE)
    progress(0.5)


def npz_equal(job: Job, target: str) -> bool:
    with zipfile.ZipFile(job["source"]) as packed, zipfile.ZipFile(target) as plain:
        if packed.namelist() != plain.namelist() or plain.testzip() is not None:
            return False
        return all(packed.getinfo(name).CRC == plain.getinfo(name).CRC for name in packed.namelist())


def image_room(job: Job) -> int:
    with Image.open(job["source"]) as image:
        return int(image.width * image.height * len(image.getbands()) * 1.02 + 4096)


def image(job: Job, target: str, progress: Callable[[float], None]) -> None:
    with Image.open(job["source"]) as picture:
        if picture.mode not in ("RGB", "L") or getattr(picture, "n_frames", 1) > 1:
            raise RefusedError(f"an image of the mode {picture.mode}")
        if picture.getexif().get(_ORIENTATION, 1) != 1:
            raise RefusedError("an image whose EXIF data turn it")
        picture.load()
        picture.save(target, format="BMP")
    progress(0.5)


def image_equal(job: Job, target: str) -> bool:
    with Image.open(job["source"]) as one, Image.open(target) as other:
        return (one.mode, one.size, one.tobytes()) == (other.mode, other.size, other.tobytes())


def twice(job: Job) -> int:
    return 2 * os.path.getsize(job["source"])


def copy_file(source: str, target: str) -> None:
    with open(source, "rb") as old, open(target, "xb") as new:
        shutil.copyfileobj(old, new, _PIECE)


def link_file(source: str, target: str) -> None:
    """Give a file that stays as it is another name; a copy where the file system has none."""
    try:
        os.link(source, target)
    except OSError:
        copy_file(source, target)


FORMATS = {
    "hdf5": (hdf5_room, hdf5, hdf5_equal),
    "zarr": (zarr_room, zarr_store, zarr_equal),  # of either major version
    "parquet": (twice, parquet, parquet_equal),
    "csv": (csv_room, csv, csv_equal),  # the program gets this copy by another call
    "npz": (npz_room, npz, npz_equal),
    "image": (image_room, image, image_equal),
}


def tell(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def remove(path: str) -> None:
    with suppress(OSError):
        shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)


def write(number: int, job: Job) -> None:
    """Write the copy next to its name, look whether it is equal, and only then give it its name."""
    _, make, is_equal = FORMATS[job["format"]]
    target = job["target"]
    os.makedirs(os.path.dirname(target), 0o700, exist_ok=True)
    head, extension = os.path.splitext(target)
    partial = f"{head}.partial{extension}"
    try:
        make(job, partial, lambda part: tell(job=number, progress=part))
        if not is_equal(job, partial):
            raise RefusedError("the copy does not hold equal values")
        status = os.stat(job["source"])
        os.utime(partial, ns=(status.st_atime_ns, status.st_mtime_ns))
        os.rename(partial, target)
    except BaseException:
        remove(partial)
        raise
    tell(job=number, done=True)


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what is half written is removed
    jobs = json.load(sys.stdin)
    try:
        needed = [int(_ROOM * FORMATS[job["format"]][0](job)) for job in jobs]
    except (RefusedError, ImportError, OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        tell(refused=str(error))
        return 1
    os.makedirs(os.path.dirname(jobs[0]["target"]), 0o700, exist_ok=True)
    free = shutil.disk_usage(os.path.dirname(jobs[0]["target"])).free
    if sum(needed) > free:
        tell(needed=sum(needed), free=free)
        return 1
    for number, job in enumerate(jobs):
        try:
            write(number, job)
        except Exception as error:
            is_refused = isinstance(error, RefusedError)
            tell(job=number, refused=str(error) if is_refused else f"{type(error).__name__}: {error}")
            if not is_refused or len(jobs) == 1:
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
