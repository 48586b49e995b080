"""Read paths: the library calls inside which files are read and decoded.

Each library is hooked once the program has imported it, never before. A description gives a call's bytes and
file after it has returned; what is not known stays unknown.
"""

from __future__ import annotations

from typing import Any

from iotrace.agent.patching import patch
from iotrace.agent.recorder import Recorder
from iotrace.agent.spans import timed
from iotrace.session.names import KIND_READ_PATH

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Describe = Callable[[Any, tuple[Any, ...]], tuple[int, str]]


def hooks(recorder: Recorder) -> dict[str, Callable[[Any], None]]:
    """What to do with each library's module once it is there, by the module's name."""
    record = _Record(recorder)
    return {
        "h5py": record.h5py,
        "zarr.core": record.zarr_2,
        "zarr.core.array": record.zarr_3,
        "numpy": record.numpy,
        "torch": record.torch,
        "PIL.Image": record.pillow,
        "PIL.ImageFile": record.pillow_file,
    }


class _Record:
    """Patches the read paths of each library to record spans."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def _patch(self, owner: Any, name: str, shown: str, describe: Describe) -> None:
        def counted(result: Any, args: tuple[Any, ...]) -> tuple[int, str]:
            self._recorder.start()
            return describe(result, args)

        patch(owner, name, lambda original: timed(self._recorder, original, shown, KIND_READ_PATH, counted))

    def h5py(self, module: Any) -> None:
        """``Dataset.__getitem__`` and ``read_direct``: HDF5's reads, with its filters' decompression."""

        def path_of(dataset: Any) -> str:
            # `dataset.file.filename` makes two objects and costs eight times as much.
            return _text(module.h5f.get_name(dataset.id))

        self._patch(
            module.Dataset,
            "__getitem__",
            "h5py.Dataset.__getitem__",
            lambda result, args: (_bytes(result), path_of(args[0])),
        )
        self._patch(
            module.Dataset,
            "read_direct",
            "h5py.Dataset.read_direct",
            lambda result, args: (_bytes(args[1]), path_of(args[0])),
        )

    def zarr_2(self, module: Any) -> None:
        """``zarr.core`` is a module with the class Array in zarr 2, a package in zarr 3."""
        if hasattr(module, "Array"):
            self._zarr(module.Array, lambda array: array.store.path)

    def zarr_3(self, module: Any) -> None:
        """Its reads run on threads of its own; the POSIX calls there belong to the same process."""
        self._zarr(module.Array, lambda array: array.store_path.store.root)

    def _zarr(self, array_class: Any, root_of: Callable[[Any], Any]) -> None:
        def describe(result: Any, args: tuple[Any, ...]) -> tuple[int, str]:
            array = args[0]
            try:
                root = str(root_of(array))
            except AttributeError:  # a store that is no directory
                return _bytes(result), ""
            return _bytes(result), f"{root}/{array.path}" if array.path else root

        self._patch(array_class, "__getitem__", "zarr.Array.__getitem__", describe)

    def numpy(self, module: Any) -> None:
        """``load`` and ``fromfile``, whose reads dftracer sees in part, and the members of an ``.npz``."""
        for name in ("load", "fromfile"):
            self._patch(module, name, f"numpy.{name}", lambda result, args: (_bytes(result), _text(args[0])))
        archive = module.lib.npyio.NpzFile
        self._patch(
            archive,
            "__getitem__",
            "numpy.NpzFile.__getitem__",
            lambda result, args: (_bytes(result), _text(args[0].zip.filename)),
        )

    def torch(self, module: Any) -> None:
        """``torch.load``."""
        self._patch(module, "load", "torch.load", lambda result, args: (-1, _text(args[0])))

    def pillow(self, module: Any) -> None:
        """``Image.open`` reads the header alone."""
        self._patch(module, "open", "PIL.Image.open", lambda result, args: (-1, _text(args[0])))

    def pillow_file(self, module: Any) -> None:
        """``ImageFile.load`` reads and decodes the pixels, when they are first needed."""
        self._patch(
            module.ImageFile,
            "load",
            "PIL.ImageFile.load",
            lambda result, args: (-1, _text(getattr(args[0], "filename", ""))),
        )


def _bytes(result: Any) -> int:
    size = getattr(result, "nbytes", -1)
    return size if isinstance(size, int) else -1


def _text(path: Any) -> str:
    """A path as text; empty for what is none, such as an open file without a name."""
    if isinstance(path, str):
        return path
    if isinstance(path, bytes):
        return path.decode(errors="surrogateescape")
    to_path = getattr(path, "__fspath__", None)
    if to_path is not None:
        return _text(to_path())
    name = getattr(path, "name", "")
    return name if isinstance(name, str) else ""
