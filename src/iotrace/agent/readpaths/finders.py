"""Find the file and the bytes of a call, after its end: from its result, its arguments, or what made it.

Written as text: ``0:source`` is an argument by its place, or by its name (a method's object is 0), ``result``
what was returned, ``0.store.path`` an attribute of it, ``0.name()`` what a method of it returns, ``result.1``
the second of what was returned, and ``made 0`` the file that the object was made with. `length` as a size is
the length of the result.
"""

from __future__ import annotations

import os
import sys
from _functools import partial  # type: ignore[import-not-found]  # `functools` is five files to read
from _operator import attrgetter, itemgetter, methodcaller
from _weakref import ref
from posix import stat
from stat import S_ISDIR

from iotrace.agent.patching import WeakTable
from iotrace.session.guard import ours

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Arguments = tuple[Any, ...]
    Keywords = dict[str, Any]
    Find = Callable[[Any, Arguments, Keywords], Any]

# By the id of an object that a call of a library made: what forgets it, and its file. An object that has no
# weak references is never forgotten; the next one at its address takes its place.
made: dict[int, tuple[Any, str]] = {}
_MOST_WRAPPERS = 8
_h5py_files, _h5py_names = WeakTable(), WeakTable()  # of its objects
_MOST_VARIABLES = 512
_MISSING = (AttributeError, IndexError, KeyError, TypeError)


def compiled(text: str) -> Find:
    """Return what finds what `text` describes; it returns None where that is not there."""
    kind, _, rest = text.rpartition(" ")
    head, *steps = rest.split(".")
    place, _, name = head.partition(":")
    number = -1 if place in ("result", "length") else int(place)
    path = [*map(_step, steps)]

    def find(result: Any, args: Arguments, kwargs: Keywords) -> Any:
        try:
            found = result if number < 0 else args[number] if number < len(args) else kwargs[name]
            for step in path:
                found = step(found)
        except ours(*_MISSING):
            return None
        return made.get(id(found), (None, None))[1] if kind else found

    return find


def _step(text: str) -> Callable[[Any], Any]:
    if text.isdigit():
        return itemgetter(int(text))
    return methodcaller(text[:-2]) if text.endswith("()") else attrgetter(text)


def remember(thing: Any, file: str) -> str:
    """Note the file of a `thing` that a library made, and return it: some of them cannot be asked for it."""
    key = id(thing)
    try:
        forget = ref(thing, partial(made.pop, key))  # no Python code: see `patching.WeakTable`
    except ours(TypeError):
        forget = None
    made[key] = forget, file
    return file


def size_of(result: Any) -> int:
    """Return the bytes that `result` holds; -1 where that is unknown."""
    if type(result) is bytes:
        return len(result)
    if type(result).__name__ == "Table" and hasattr(result, "get_total_buffer_size"):
        return int(result.get_total_buffer_size())  # of pyarrow: `nbytes` takes 1 ms of 500 chunks
    size = getattr(result, "nbytes", -1)
    if isinstance(size, int) and size >= 0:
        return size
    if isinstance(result, (str, bytearray)):
        return len(result)
    # Of a pandas object the bytes of its columns: ``memory_usage`` takes a thousand times as long.
    blocks = getattr(getattr(result, "_mgr", None), "blocks", None)
    return -1 if blocks is None else sum(int(block.values.nbytes) for block in blocks)


def rows_size(result: Any, _: Arguments, __: Keywords) -> int:
    """Return about the bytes of a list of rows, each as the first; -1 where that is unknown."""
    if type(result) is not list or not result or type(result[0]) is not tuple:
        return 0 if result == [] else -1
    return len(result) * sum(len(each) if type(each) in (bytes, str) else 8 for each in result[0])


def path_of(file: Any) -> str:
    """Return a path, or the path of an open file, as text; empty where there is none, as of a buffer.

    Readers of archives and streams wrap the file that they read in others (``fileobj``).
    """
    for _ in range(_MOST_WRAPPERS):
        if isinstance(file, str):
            return str.__str__(file)  # text alone: of an `np.str_`, too
        if isinstance(file, bytes):
            return file.decode(errors="surrogateescape")
        to_path = getattr(file, "__fspath__", None)
        name = to_path() if to_path is not None else getattr(file, "name", "")
        if name and isinstance(name, (str, bytes)):
            return path_of(name)
        file = getattr(file, "fileobj", None)
    return ""


def h5py_file(_: Any, args: Arguments, __: Keywords) -> Any:
    """Find the file of a dataset; `dataset.file.filename` makes two objects and costs eight times as much.

    To ask h5py takes its lock, for which threads wait: each object is asked once.
    """
    file = _h5py_files.get(args[0])
    if file is None:
        file = sys.modules["h5py"].h5f.get_name(args[0].id)
        _h5py_files.put(args[0], file)
    return file


def h5py_name(array: Any) -> Any:
    """Find the name of a dataset in its file; asked once, as the file."""
    name = _h5py_names.get(array)
    if name is None:
        name = sys.modules["h5py"].h5i.get_name(array.id)
        _h5py_names.put(array, name)
    return name


def zarr_array(_: Any, args: Arguments, __: Keywords) -> str:
    """Find the directory of an array of zarr 2 or 3; empty where its store is none."""
    array = args[0]
    try:
        store = array.store_path.store if hasattr(array, "store_path") else array.store
        root = str(store.root if hasattr(store, "root") else store.path)
    except ours(AttributeError):
        return ""
    return f"{root}/{array.path}" if array.path else root


def about_zarr(args: Arguments) -> dict[str, Any]:
    """Describe an array of zarr: how many chunks it has, and how many bytes each is when decoded."""
    array = args[0]
    shape, chunks = array.shape, array.chunks
    count = chunk_bytes = 1
    for size, chunk in zip(shape, chunks):  # noqa: B905  # of an odd array the shorter one
        count *= -(-size // chunk)
        chunk_bytes *= chunk
    return {
        "type": "array",
        "chunks": int(count),
        "chunk_bytes": int(chunk_bytes * array.dtype.itemsize),
        "rows_per_chunk": int(chunks[0]) if chunks else 1,
        "sharded": getattr(array, "shards", None) is not None,
    }


def about_rasterio(args: Arguments) -> dict[str, Any]:
    """Describe a raster of rasterio: its size when it is decoded, and the block that is decoded at once."""
    raster = args[0]
    height, width = raster.block_shapes[0]
    return {
        "type": "raster",
        "shape": [int(raster.height), int(raster.width)],
        "block": [int(height), int(width)],
        "bands": int(raster.count),
        "item_bytes": sys.modules["numpy"].dtype(raster.dtypes[0]).itemsize,
        "compression": getattr(raster.compression, "name", "") if raster.compression else "",
        "driver": str(raster.driver),
    }


def about_anemoi(args: Arguments) -> dict[str, Any]:
    """Describe a dataset of anemoi, by what it has read of its store already: its dates and variables."""
    dataset = args[0]
    dates = dataset.__dict__.get("dates", ())  # a cached property
    attributes = getattr(dataset.store.attrs, "_cached_asdict", None) or {}
    return {
        "type": "gridded",
        "dates": len(dates),
        "first": str(dates[0]) if len(dates) else "",
        "last": str(dates[-1]) if len(dates) else "",
        "frequency": str(attributes.get("frequency", "")),
        "variables": [str(name) for name in attributes.get("variables", ())][:_MOST_VARIABLES],
    }


def unless_mapped(result: Any, _: Arguments, __: Keywords) -> int:
    """Return the bytes of an array; of a mapped file only the header has been read."""
    return -1 if isinstance(result, sys.modules["numpy"].memmap) else size_of(result)


def polars(result: Any, _: Arguments, __: Keywords) -> int:
    """Return the bytes of a frame of polars."""
    return int(result.estimated_size())


def archive(_: Any, args: Arguments, __: Keywords) -> Any:
    """Find the file of a tar archive; a stream's archive has no name of its own."""
    return args[0].name or args[0].fileobj


def pil_opened(result: Any, args: Arguments, kwargs: Keywords) -> str:
    """Find the file of an image; one of an open file forgets it once it is loaded, and is remembered."""
    file = path_of(args[0] if args else kwargs.get("fp"))
    if file and not getattr(result, "filename", ""):
        remember(result, file)
    return file


def pil_image(_: Any, args: Arguments, __: Keywords) -> str:
    """Find the file of an image that is loaded; empty of one in memory."""
    return path_of(getattr(args[0], "filename", "")) or made.get(id(args[0]), (None, ""))[1]


def pil_is_loaded(args: Arguments) -> bool:
    """Whether an image has been decoded: PIL asks for its pixels again and again."""
    return not args[0].tile


# Bytes of a pixel as arrays have them; colours that a palette stands for count as such.
_OF_PIXEL = {"1": 1, "L": 1, "P": 3, "LA": 2, "RGB": 3, "RGBA": 4, "CMYK": 4, "YCbCr": 3, "I": 4, "F": 4}


def pil_bytes(_: Any, args: Arguments, __: Keywords) -> int:
    """Tell how many bytes an image has once it is decoded."""
    width, height = args[0].size
    return int(width * height * _OF_PIXEL[args[0].mode])


OF_ARGUMENTS = (pil_opened, pil_image)  # the file is an argument's, as of most that are written as text


def arrow_dataset(_: Any, args: Arguments, __: Keywords) -> str:
    """Find the file of a dataset of pyarrow, or the directory of its files; an open file has no name."""
    return _common([file for file in getattr(args[0], "files", ()) if file != "<Buffer>"])


def hf_dataset(_: Any, args: Arguments, __: Keywords) -> str:
    """Find the mapped Arrow file of a Hugging Face dataset, or the directory of its files."""
    table = args[0]._data
    known = made.get(id(table))
    if known is not None:
        return known[1]
    return remember(table, _common([file["filename"] for file in args[0].cache_files]))


def hf_is_transformed(args: Arguments) -> bool:
    """Whether such a dataset hands what it has read to a function of the program's (`set_transform`)."""
    if args[0]._format_type != "custom":
        return False
    hf_dataset(None, args, {})  # which `hf_table` will be asked for
    return True


def hf_table(_: Any, args: Arguments, __: Keywords) -> str:
    """Find the same of the table of such a dataset; empty where no dataset of it was asked before."""
    known = made.get(id(args[0]))
    return "" if known is None else known[1]


def _common(files: list[str]) -> str:
    if len(files) < 2:
        return files[0] if files else ""
    return os.path.commonpath(files)


def lmdb_data(_: Any, args: Arguments, __: Keywords) -> str:
    """Find the mapped file of an environment of lmdb."""
    environment = args[0]
    known = made.get(id(environment))
    if known is not None:
        return known[1]
    path = path_of(environment.path())
    return remember(environment, f"{path}/data.mdb" if S_ISDIR(stat(path).st_mode) else path)


def fsspec_object(_: Any, args: Arguments, kwargs: Keywords) -> str:
    """Find the URL of what a coroutine of a file system of fsspec read; ``sync(loop, func, ...)``."""
    words = [word for word in args[2:] if type(word) is str]
    if not words:
        words = [word for word in (kwargs.get("path"), kwargs.get("rpath")) if type(word) is str]
    system = getattr(args[1], "__self__", None)
    if system is None and len(args) > 2 and words[:1] != [args[2]]:  # s3fs: file system, bucket, key
        system, words = args[2], ["/".join(words[:2])]
    if not words:
        return ""
    protocol = getattr(system, "protocol", "")
    scheme = protocol if isinstance(protocol, str) else protocol[0]
    return words[0] if "://" in words[0] or not scheme else f"{scheme}://{words[0]}"


def obstore_object(_: Any, args: Arguments, kwargs: Keywords) -> str:
    """Find the object that was asked for, in the store that it lies in."""
    store, path = args[0], args[1] if len(args) > 1 else kwargs["path"]
    prefix = getattr(store, "prefix", None)
    config = getattr(store, "config", None) or {}
    bucket = config.get("bucket") or config.get("container_name")
    scheme = type(store).__name__.removesuffix("Store").lower()
    if scheme == "local":
        return f"{prefix}/{path}" if prefix else str(path)
    return f"{scheme}://" + "/".join(str(part).strip("/") for part in (bucket, prefix, path) if part)
