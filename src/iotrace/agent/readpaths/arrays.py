"""Hook readers of arrays: h5py, zarr 2 and 3, numpy, torch."""

from __future__ import annotations

from operator import attrgetter

from iotrace.agent.readpaths.memory_maps import hook_memory_maps
from iotrace.agent.readpaths.record import ReadPaths, path_of, result_of, size_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


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
        _zarr(read_paths, module.Array, lambda array: array.store.path)


def _zarr_3(read_paths: ReadPaths, module: Any) -> None:
    """Hook zarr 3, whose reads run on threads of its own, in the same process."""
    _zarr(read_paths, module.Array, lambda array: array.store_path.store.root)


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

    def loaded(result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, str]:
        size_bytes, path = result_of("file")(result, args, kwargs)
        # Only the header of a mapped file has been read.
        return -1 if isinstance(result, module.memmap) else size_bytes, path

    read_paths.patch(module, "load", "numpy.load", loaded)
    read_paths.patch(module, "fromfile", "numpy.fromfile", result_of("file"))
    archive, path = module.lib.npyio.NpzFile, attrgetter("zip.filename")
    read_paths.patch_methods(archive, "__getitem__", "numpy.NpzFile", path, own_threads=False)
    hook_memory_maps(read_paths.recorder, module)


def _torch(read_paths: ReadPaths, module: Any) -> None:
    """Hook ``torch.load``, whose result has no size of its own."""
    describe = result_of("f")
    read_paths.patch(
        module, "load", "torch.load", lambda _, args, kwargs: (-1, describe(None, args, kwargs)[1])
    )


HOOKS = {
    "h5py": _h5py,
    "zarr.core": _zarr_2,
    "zarr.core.array": _zarr_3,
    "numpy": _numpy,
    "torch": _torch,
}
