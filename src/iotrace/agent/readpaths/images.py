"""Hook readers of images: PIL and tifffile."""

from __future__ import annotations

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
    for owner in (module.TiffFile, module.TiffPageSeries, module.TiffPage, module.TiffFrame):
        file_of = _file_of_tiff if owner is module.TiffFile else _file_of_part
        shown = f"tifffile.{owner.__name__}.asarray"
        read_paths.patch_method(owner, "asarray", shown, file_of, own_threads=True)


def _file_of_tiff(tiff: Any) -> Any:
    return tiff.filehandle.path


def _file_of_part(part: Any) -> Any:
    return part.parent.filehandle.path


HOOKS = {"PIL.Image": _pillow, "PIL.ImageFile": _pillow_file, "tifffile.tifffile": _tifffile}
