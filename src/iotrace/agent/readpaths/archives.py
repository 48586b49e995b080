"""Hook archives: the standard library's ``tarfile``, and what reads through it, such as webdataset."""

from __future__ import annotations

from iotrace.agent.readpaths.record import ReadPaths, path_of, size_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def _tarfile(read_paths: ReadPaths, module: Any) -> None:
    """Hook ``TarFile.next``, which passes over the last member to the next header, and reads of members.

    Members are read through a buffer; hooking what fills it makes a span per fill, not per call.
    """
    read_paths.patch(
        module.TarFile, "next", "tarfile.TarFile.next", lambda _, args, __: (-1, _archive_of(args[0]))
    )
    read_paths.patch(
        module._FileInFile,
        "read",
        "tarfile.ExFileObject.read",
        lambda result, args, _: (size_of(result), path_of(args[0].fileobj)),
    )


def _archive_of(tar: Any) -> str:
    # A stream's archive has no name of its own.
    return path_of(tar.name or tar.fileobj)


HOOKS = {"tarfile": _tarfile}
