"""Hook readers of images: PIL and tifffile."""

from __future__ import annotations

from iotrace.agent.readpaths.record import ReadPaths, path_of, result_of, size_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def _pillow(read_paths: ReadPaths, module: Any) -> None:
    """Hook ``Image.open``, which reads the header alone."""
    read_paths.patch(module, "open", "PIL.Image.open", result_of("fp"))


def _pillow_file(read_paths: ReadPaths, module: Any) -> None:
    """Hook ``ImageFile.load``, which reads and decodes the pixels, when they are first needed."""
    read_paths.patch(
        module.ImageFile,
        "load",
        "PIL.ImageFile.load",
        lambda result, args, _: (-1, path_of(getattr(args[0], "filename", ""))),
    )


def _tifffile(read_paths: ReadPaths, module: Any) -> None:
    """Hook ``imread``, and ``asarray`` of a file, a series or a page; a thread pool may decode segments."""
    read_paths.patch(module, "imread", "tifffile.imread", result_of("files"), own_threads=True)
    for owner in (module.TiffPageSeries, module.TiffPage, module.TiffFrame):
        _tifffile_array(read_paths, owner, lambda part: part.parent.filehandle.path)
    _tifffile_array(read_paths, module.TiffFile, lambda tiff: tiff.filehandle.path)


def _tifffile_array(read_paths: ReadPaths, owner: Any, file_of: Callable[[Any], Any]) -> None:
    read_paths.patch(
        owner,
        "asarray",
        f"tifffile.{owner.__name__}.asarray",
        lambda result, args, _: (size_of(result), path_of(file_of(args[0]))),
        own_threads=True,
    )


HOOKS = {"PIL.Image": _pillow, "PIL.ImageFile": _pillow_file, "tifffile.tifffile": _tifffile}
