"""Hook one call of a library inside which files are read and decoded, and describe its bytes and file.

A library is hooked once the program has imported it, never before. `libraries` says what is hooked of each.
"""

from __future__ import annotations

import sys

from iotrace.agent.patching import hide_frame, patch
from iotrace.agent.recording.recorder import Recorder
from iotrace.agent.recording.spans import timed
from iotrace.session.names import KIND_READ_PATH

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    Arguments = tuple[Any, ...]
    Keywords = dict[str, Any]
    # Describes what a call has read, after its end: (result, args, kwargs) -> (bytes, file).
    Describe = Callable[[Any, Arguments, Keywords], tuple[int, str]]
    FileOf = Callable[[Arguments, Keywords], str]

_MOST_WRAPPERS = 8


class ReadPaths:
    """Patch the calls of one library so that each records a span."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def patch(
        self, owner: Any, name: str, shown: str, describe: Describe, *, own_threads: bool = False
    ) -> None:
        """Have ``owner.name`` record a span called `shown`.

        With `own_threads` the library decodes on threads of its own, while the caller sleeps: the span then
        holds the CPU time of the whole process.
        """

        def make(original: Any) -> Any:
            replacement = self._timed(original, shown, describe, own_threads)
            # Libraries look for the first frame that is not theirs when they warn (pandas'
            # find_stack_level, skip_file_prefixes): ours passes for a frame of theirs.
            code = getattr(original, "__code__", None)
            if code is not None:
                replacement.__code__ = replacement.__code__.replace(co_filename=code.co_filename)
            return replacement

        original = getattr(owner, name, None)
        patch(owner, name, make)
        # Packages may hold the function under the same name: they were imported before the agent started, by
        # a program that is recorded in part.
        for package in _packages_of(owner):
            if original is not None and getattr(package, name, None) is original:
                patch(package, name, lambda _: getattr(owner, name))

    def patch_methods(
        self,
        owner: Any,
        names: str,
        shown: str,
        file_of: Callable[[Any], Any],
        *,
        own_threads: bool = True,
        sized: bool = True,
    ) -> None:
        """Have the methods `names` of `owner` record spans: the file of the object and, if `sized`, the
        bytes of the result. The spans are called `shown` and the method's name."""

        def describe(result: Any, args: Arguments, _: Keywords) -> tuple[int, str]:
            return size_of(result) if sized else -1, path_of(file_of(args[0]))

        for name in names.split():
            self.patch(owner, name, f"{shown}.{name}", describe, own_threads=own_threads)

    def patch_iterator(self, owner: Any, name: str, shown: str, file_of: FileOf) -> None:
        """Have each item of the iterator that ``owner.name`` returns record a span called `shown`."""

        def make(original: Any) -> Any:
            def iterate(*args: Any, **kwargs: Any) -> Any:
                try:
                    iterator = iter(original(*args, **kwargs))
                except BaseException as error:
                    hide_frame(error)
                    raise

                def describe(result: Any, _: Arguments, __: Keywords) -> tuple[int, str]:
                    return size_of(result), file_of(args, kwargs)

                return _items(self._timed(iterator.__next__, shown, describe, own_threads=True))

            return iterate

        patch(owner, name, make)

    def _timed(self, call: Any, shown: str, describe: Describe, own_threads: bool) -> Any:
        recorder = self.recorder

        def counted(result: Any, args: Arguments, kwargs: Keywords) -> tuple[int, str]:
            recorder.start()
            return describe(result, args, kwargs)

        return timed(recorder, call, shown, KIND_READ_PATH, counted, own_threads=own_threads)


def _packages_of(owner: Any) -> list[Any]:
    """Return the packages that contain a module; none for a class."""
    parts = [] if isinstance(owner, type) else owner.__name__.split(".")[:-1]
    found = [sys.modules.get(".".join(parts[:length])) for length in range(1, len(parts) + 1)]
    return [package for package in found if package is not None]


def _items(advance: Callable[[], Any]) -> Iterator[Any]:
    """Return a generator, as the library's own iterator is one."""
    while True:
        try:
            item = advance()
        except StopIteration:
            return
        except BaseException as error:
            hide_frame(error)
            raise
        yield item


def result_of(name: str, sized: bool = True) -> Describe:
    """Describe a function by the file in its argument `name`, the first one, and, if `sized`, its result."""

    def describe(result: Any, args: Arguments, kwargs: Keywords) -> tuple[int, str]:
        return size_of(result) if sized else -1, path_of(args[0] if args else kwargs.get(name))

    return describe


def size_of(result: Any) -> int:
    """Return the bytes that `result` holds; -1 where that is unknown."""
    if type(result) is bytes:
        return len(result)
    size = getattr(result, "nbytes", -1)
    if isinstance(size, int) and size >= 0:
        return size
    # Of a pandas object the bytes of its columns: ``memory_usage`` takes a thousand times as long.
    blocks = getattr(getattr(result, "_mgr", None), "blocks", None)
    return -1 if blocks is None else sum(int(block.values.nbytes) for block in blocks)


def path_of(file: Any) -> str:
    """Return a path, or the path of an open file, as text; empty where there is none, as of a buffer.

    Readers of archives and streams wrap the file that they read in others (``fileobj``).
    """
    for _ in range(_MOST_WRAPPERS):
        if isinstance(file, str):
            return file
        if isinstance(file, bytes):
            return file.decode(errors="surrogateescape")
        to_path = getattr(file, "__fspath__", None)
        name = to_path() if to_path is not None else getattr(file, "name", "")
        if name and isinstance(name, (str, bytes)):
            return path_of(name)
        file = getattr(file, "fileobj", None)
    return ""
