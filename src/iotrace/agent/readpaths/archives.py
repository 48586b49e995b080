"""Hook archives: the standard library's ``tarfile``, and what reads through it, such as webdataset."""

from __future__ import annotations

from operator import attrgetter

from iotrace.agent.readpaths.record import ReadPaths, path_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def _tarfile(read_paths: ReadPaths, module: Any) -> None:
    """Hook ``TarFile.next``, which passes over the last member to the next header, and reads of members.

    Members are read through a buffer; hooking what fills it makes a span per fill, not per call.
    """

    def skipped(_: Any, args: tuple[Any, ...], __: dict[str, Any]) -> tuple[int, str]:
        return -1, path_of(args[0].name or args[0].fileobj)  # a stream's archive has no name of its own

    read_paths.patch(module.TarFile, "next", "tarfile.TarFile.next", skipped)
    archive = attrgetter("fileobj")
    read_paths.patch_methods(module._FileInFile, "read", "tarfile.ExFileObject", archive, own_threads=False)


HOOKS = {"tarfile": _tarfile}
