"""Hook readers of images: PIL and tifffile."""

from __future__ import annotations

from operator import attrgetter

from iotrace.agent.readpaths.record import ReadPaths, path_of, result_of

TYPE_CHECKING = False
if TYPE_CHECKING:
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
    read_paths.patch_methods(module.TiffFile, "asarray", "tifffile.TiffFile", attrgetter("filehandle.path"))
    for owner in (module.TiffPageSeries, module.TiffPage, module.TiffFrame):
        path = attrgetter("parent.filehandle.path")
        read_paths.patch_methods(owner, "asarray", f"tifffile.{owner.__name__}", path)


HOOKS = {"PIL.Image": _pillow, "PIL.ImageFile": _pillow_file, "tifffile.tifffile": _tifffile}
