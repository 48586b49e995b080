"""What is hooked of each library that reads files: h5py, zarr 2 and 3, numpy, torch, PIL, tifffile, tarfile
(and what reads through it, such as webdataset), pyarrow and pandas.

`HOOKS` maps the name of a library's module to what hooks it once the program has imported it. pyarrow,
pandas, zarr and tifffile may decode on threads of their own.
"""

from __future__ import annotations

from operator import attrgetter

from iotrace.agent.patching import observe
from iotrace.agent.readpaths.hooks import ReadPaths, path_of, result_of, size_of

TYPE_CHECKING = False  # `tarfile` alone does not bring `typing`
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from iotrace.agent.recording.recorder import Recorder

    Hook = Callable[[ReadPaths, Any], None]


def _functions(library: str, parameters: dict[str, str], own_threads: bool = True) -> Hook:
    """Make a hook for functions that read one file each; `parameters`: which holds it, by function's name."""

    def hook(read_paths: ReadPaths, module: Any) -> None:
        for name, parameter in parameters.items():
            describe = result_of(parameter)
            read_paths.patch(module, name, f"{library}.{name}", describe, own_threads=own_threads)

    return hook


def _h5py(read_paths: ReadPaths, module: Any) -> None:
    """Hook ``Dataset.__getitem__`` and ``read_direct``: HDF5's reads, with its filters' decompression."""

    def file_of(dataset: Any) -> Any:
        # `dataset.file.filename` makes two objects and costs eight times as much.
        return module.h5f.get_name(dataset.id)

    def read_direct(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, str]:
        return size_of(args[1] if len(args) > 1 else kwargs["dest"]), path_of(file_of(args[0]))

    read_paths.patch_methods(module.Dataset, "__getitem__", "h5py.Dataset", file_of, own_threads=False)
    read_paths.patch(module.Dataset, "read_direct", "h5py.Dataset.read_direct", read_direct)


def _zarr_2(read_paths: ReadPaths, module: Any) -> None:
    """Hook ``zarr.core``: a module with the class Array in zarr 2, a package in zarr 3."""
    if hasattr(module, "Array"):
        _zarr(read_paths, module.Array, attrgetter("store.path"))


def _zarr_3(read_paths: ReadPaths, module: Any) -> None:
    """Hook zarr 3, whose reads run on threads of its own, in the same process."""
    _zarr(read_paths, module.Array, attrgetter("store_path.store.root"))


def _zarr(read_paths: ReadPaths, array_class: Any, root_of: Callable[[Any], Any]) -> None:
    def file_of(array: Any) -> str:
        try:
            root = str(root_of(array))
        except AttributeError:  # a store that is no directory
            return ""
        return f"{root}/{array.path}" if array.path else root

    # Blosc, too, decompresses on threads of its own.
    read_paths.patch_methods(array_class, "__getitem__", "zarr.Array", file_of)


def _numpy(read_paths: ReadPaths, module: Any) -> None:
    """Hook ``load`` and ``fromfile``, whose reads dftracer sees in part; members of ``.npz``; memory maps."""
    from iotrace.agent.readpaths.memory_maps import hook_memory_maps

    def loaded(result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, str]:
        # Only the header of a mapped file has been read.
        return result_of("file", sized=not isinstance(result, module.memmap))(result, args, kwargs)

    read_paths.patch(module, "load", "numpy.load", loaded)
    read_paths.patch(module, "fromfile", "numpy.fromfile", result_of("file"))
    archive, path = module.lib.npyio.NpzFile, attrgetter("zip.filename")
    read_paths.patch_methods(archive, "__getitem__", "numpy.NpzFile", path, own_threads=False)
    hook_memory_maps(read_paths.recorder, module)


def _torch(read_paths: ReadPaths, module: Any) -> None:
    """Hook ``torch.load``, whose result has no size of its own."""
    read_paths.patch(module, "load", "torch.load", result_of("f", sized=False))


def _pillow_file(read_paths: ReadPaths, module: Any) -> None:
    """Hook ``ImageFile.load``, which reads and decodes the pixels, when they are first needed."""

    def file_of(image: Any) -> Any:
        return getattr(image, "filename", "")

    read_paths.patch_methods(
        module.ImageFile, "load", "PIL.ImageFile", file_of, own_threads=False, sized=False
    )


def _tifffile(read_paths: ReadPaths, module: Any) -> None:
    """Hook ``imread``, and ``asarray`` of a file, a series or a page; a thread pool may decode segments."""
    _functions("tifffile", {"imread": "files"})(read_paths, module)
    read_paths.patch_methods(module.TiffFile, "asarray", "tifffile.TiffFile", attrgetter("filehandle.path"))
    for owner in (module.TiffPageSeries, module.TiffPage, module.TiffFrame):
        path = attrgetter("parent.filehandle.path")
        read_paths.patch_methods(owner, "asarray", f"tifffile.{owner.__name__}", path)


def _tarfile(read_paths: ReadPaths, module: Any) -> None:
    """Hook ``TarFile.next``, which passes over the last member to the next header, and reads of members.

    Members are read through a buffer; hooking what fills it makes a span per fill, not per call.
    """

    def file_of(archive: Any) -> Any:
        return archive.name or archive.fileobj  # a stream's archive has no name of its own

    read_paths.patch_methods(
        module.TarFile, "next", "tarfile.TarFile", file_of, own_threads=False, sized=False
    )
    shown, file_of_member = "tarfile.ExFileObject", attrgetter("fileobj")
    read_paths.patch_methods(module._FileInFile, "read", shown, file_of_member, own_threads=False)


def _pyarrow_parquet(read_paths: ReadPaths, module: Any) -> None:
    """Hook reads of ``ParquetFile`` and ``ParquetDataset``, and ``read_table``, which uses the latter."""
    _functions("pyarrow.parquet", {"read_table": "source"})(read_paths, module)
    file_of = _remember_source(read_paths, module.ParquetFile, "source")
    shown = "pyarrow.parquet.ParquetFile"
    read_paths.patch_methods(module.ParquetFile, "read read_row_group read_row_groups", shown, file_of)
    shown = f"{shown}.iter_batches"
    read_paths.patch_iterator(module.ParquetFile, "iter_batches", shown, lambda args, _: file_of(args[0]))
    dataset_of = _remember_source(read_paths, module.ParquetDataset, "path_or_paths")
    read_paths.patch_methods(module.ParquetDataset, "read", "pyarrow.parquet.ParquetDataset", dataset_of)


def _pyarrow_ipc(read_paths: ReadPaths, module: Any) -> None:
    """Hook the record batches of IPC files and streams; a memory map's are read later, by page faults."""
    for owner, names in (
        (module.RecordBatchFileReader, "read_all get_batch get_record_batch"),
        (module.RecordBatchStreamReader, "read_all read_next_batch __next__"),
    ):
        file_of = _remember_source(read_paths, owner, "source")
        read_paths.patch_methods(owner, names, f"pyarrow.ipc.{owner.__name__}", file_of)


def _remember_source(read_paths: ReadPaths, owner: Any, parameter: str) -> Callable[[Any], str]:
    """Note the source that each object of class `owner` is made with; return what gives an object's path."""
    from weakref import ref  # pyarrow has imported it

    # By id: some compare by value and have no hash, which a WeakKeyDictionary would need.
    sources: dict[int, tuple[Any, str]] = {}

    def made(_: Any, __: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        key = id(args[0])
        forget = ref(args[0], lambda _: sources.pop(key, None))
        sources[key] = forget, path_of(args[1] if len(args) > 1 else kwargs[parameter])

    observe(owner, "__init__", read_paths.recorder, f"noting the file of a {owner.__name__}", after=made)
    return lambda reader: sources.get(id(reader), (None, ""))[1]


def _pandas_text(read_paths: ReadPaths, module: Any) -> None:
    """Hook ``read_csv`` and the like, and the chunks of the reader that they return with ``chunksize``."""
    names = ("read_csv", "read_table", "read_fwf")
    _functions("pandas", dict.fromkeys(names, "filepath_or_buffer"))(read_paths, module)

    def file_of(reader: Any) -> Any:
        return getattr(getattr(reader, "handles", None), "handle", None)

    read_paths.patch_methods(module.TextFileReader, "read", "pandas.TextFileReader", file_of)


def hook_library(module: Any, recorder: Recorder, name: str) -> None:
    """Hook the library's module `name`."""
    HOOKS[name](ReadPaths(recorder), module)


HOOKS: dict[str, Hook] = {
    "h5py": _h5py,
    "zarr.core": _zarr_2,
    "zarr.core.array": _zarr_3,
    "numpy": _numpy,
    "torch": _torch,
    "PIL.Image": _functions("PIL.Image", {"open": "fp"}, own_threads=False),  # reads the header alone
    "PIL.ImageFile": _pillow_file,
    "tifffile.tifffile": _tifffile,
    "tarfile": _tarfile,
    "pyarrow.parquet.core": _pyarrow_parquet,
    "pyarrow.ipc": _pyarrow_ipc,
    "pyarrow.feather": _functions("pyarrow.feather", {"read_feather": "source", "read_table": "source"}),
    "pyarrow.orc": _functions("pyarrow.orc", {"read_table": "source"}),
    "pyarrow.csv": _functions("pyarrow.csv", {"read_csv": "input_file"}),
    "pyarrow.json": _functions("pyarrow.json", {"read_json": "input_file"}),
    "pandas.io.parsers.readers": _pandas_text,
    "pandas.io.parquet": _functions("pandas", {"read_parquet": "path"}),
    "pandas.io.feather_format": _functions("pandas", {"read_feather": "path"}),
    "pandas.io.orc": _functions("pandas", {"read_orc": "path"}),
    "pandas.io.pickle": _functions("pandas", {"read_pickle": "filepath_or_buffer"}),
    "pandas.io.json._json": _functions("pandas", {"read_json": "path_or_buf"}),
    "pandas.io.pytables": _functions("pandas", {"read_hdf": "path_or_buf"}),
    "pandas.io.excel._base": _functions("pandas", {"read_excel": "io"}),
}
