"""Record when modules were imported, and from where: a slow start is often one of many files.

Python holds `_ModuleLockManager` of its import system from the search for a module until it has run, however
that ends. A subclass of it notes both times. None of our frames is on the stack meanwhile: tracebacks, the
levels of warnings and the depth of recursion stay what they are.
"""

from __future__ import annotations

import sys
from _struct import Struct
from os import O_CLOEXEC, O_RDONLY
from posix import close, makedev, open, read, stat
from time import monotonic_ns, thread_time_ns

from iotrace.agent import patching, unpatched
from iotrace.agent.imports import hide
from iotrace.session.guard import ours

TYPE_CHECKING = False  # `typing` costs half of the agent's start-up
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    # Begin and end, ns of CLOCK_MONOTONIC; the thread's CPU time meanwhile, ns; the thread; the module.
    Row = tuple[int, int, int, int, str]

_NAME = "_ModuleLockManager"
_USED = {"__init__", "__enter__", "__exit__"}
# A program may look for a module that is not there at each of its steps.
_MOST = 20_000
# A process that reads no data and does not train tells of its imports where they took as long.
_LONG_NS = 1_000_000_000
_MOST_BYTES = 1 << 20  # of the list of mounts
_pack = Struct("<4q").pack


def install() -> Imports | None:
    """Note imports from now on; None where this Python's import system is not as expected."""
    bootstrap: Any = sys.modules.get("_frozen_importlib")
    original = getattr(bootstrap, _NAME, None)
    if type(original) is not type or not vars(original).keys() >= _USED:
        return None
    rows: list[Row] = []
    replacement = _timed(original, rows)
    setattr(bootstrap, _NAME, replacement)

    def undo() -> None:
        if getattr(bootstrap, _NAME, None) is replacement:
            setattr(bootstrap, _NAME, original)

    patching.on_undo(undo)
    return Imports(rows, monotonic_ns())


def _timed(original: Any, rows: list[Row]) -> Any:
    """Make a subclass of the lock's manager that adds to `rows`."""
    # Of this scope: what freezes a program's clock looks for its functions in modules.
    begin, leave, now, used = original.__init__, original.__exit__, monotonic_ns, thread_time_ns
    add, most, thread = rows.append, _MOST, unpatched.get_native_id

    def entered(self: Any, name: str) -> None:
        begin(self, name)
        self.began = now(), used(), name

    def left(self: Any, *raised: Any) -> None:
        leave(self, *raised)  # first: a signal handler may raise in what follows
        if len(rows) < most:
            began, used_before, name = self.began
            add((began, now(), used() - used_before, thread(), name))

    hide(entered)
    hide(left)
    own = {"__init__": entered, "__exit__": left, "__module__": original.__module__}
    return type(_NAME, (original,), own)


class Imports:
    """The modules that were imported since the last record of them, and since `begun_ns`."""

    def __init__(self, rows: list[Row], begun_ns: int) -> None:
        self._rows = rows
        self._begun_ns = begun_ns
        self.clear = rows.clear

    @property
    def long(self) -> bool:
        """Whether they took so long that they are told of in any process."""
        rows = self._rows
        return bool(rows) and rows[-1][1] - rows[0][0] >= _LONG_NS

    def record(self) -> dict[str, Any] | None:
        """Take them out, as a record; None without one."""
        from binascii import b2a_base64  # no process needs it that neither reads nor trains

        rows = self._rows[:]
        if not rows:
            return None
        del self._rows[: len(rows)]
        paths = _paths({name for *_, name in rows})
        packed = b"".join([_pack(began, ended - began, cpu, tid) for began, ended, cpu, tid, _ in rows])
        return {
            "type": "imports",
            "names": "\n".join([name.replace("\n", "?") for *_, name in rows]),
            "rows": b2a_base64(packed, newline=False).decode(),
            "paths": paths,
            "mounts": _mounts(paths),
            "begun_ns": self._begun_ns,
        }


def _paths(names: set[str]) -> dict[str, str]:
    """Return a file of each package among the modules `names`, where one of its modules has one.

    It asks no module for an attribute: some import others then.
    """
    found: dict[str, str] = {}
    look: Callable[[Any, str], Any] = object.__getattribute__
    for name in sorted(names):
        package = name.partition(".")[0]
        module = sys.modules.get(name)
        if package in found or type(module) is not type(sys):
            continue
        spec = look(module, "__dict__").get("__spec__")
        origin = getattr(spec, "origin", None) if getattr(spec, "has_location", False) is True else None
        if type(origin) is str:
            found[package] = origin
    return found


def _mounts(paths: dict[str, str]) -> dict[str, str]:
    """Return type and point of the mount that holds each of `paths`, by device; links do not deceive it."""
    held: dict[int, str] = {}
    for line in _mount_lines() if paths else ():
        before, _, behind = line.partition(" - ")
        fields = before.split(" ")
        major, _, minor = fields[2].partition(":") if len(fields) > 4 else ("", "", "")
        if major.isdecimal() and minor.isdecimal():
            held.setdefault(makedev(int(major), int(minor)), f"{behind.partition(' ')[0]} {fields[4]}")
    found = {package: held.get(_device(path)) for package, path in paths.items()}
    return {package: mount for package, mount in found.items() if mount is not None}


def _mount_lines() -> list[str]:
    data = b""
    try:
        descriptor = open("//proc/self/mountinfo", O_RDONLY | O_CLOEXEC)
        try:
            while len(data) < _MOST_BYTES and (block := read(descriptor, 1 << 16)):
                data += block
        finally:
            close(descriptor)
    except ours(OSError):
        pass
    return data.decode(errors="replace").splitlines()


def _device(path: str) -> int:
    """Return the device of the file `path`, -1 where it is none, as in a zip."""
    try:
        return stat(f"//{path.lstrip('/')}").st_dev if path.startswith("/") else -1
    except ours(OSError, ValueError):
        return -1
