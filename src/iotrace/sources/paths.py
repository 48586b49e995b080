"""One file, one name: the spellings that programs used, resolved on the machine where the run was."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from iotrace.session import names
from iotrace.session.manifest import read_document, write_atomically


class Paths:
    """Maps spelled paths to shown ones: relative to the run's directory where below it, else absolute.

    The links are resolved when the session is first read after its run and kept in files.json, so that a
    session copied elsewhere shows the same names.
    """

    def __init__(self, session: Path, cwd: str, spelled: Iterable[str]) -> None:
        self._cwd = cwd
        kept = session / names.FILES
        known = read_document(kept, dict[str, str]) or {}
        missing = {path for path in spelled if path not in known}
        for path in missing:
            known[path] = self._resolve(path)
        self._known = known
        if missing:
            try:
                write_atomically(kept, msgspec.json.encode(known))
            except OSError:
                pass  # a read-only session: resolved again each time

    def _resolve(self, path: str) -> str:
        if "://" in path and not path.startswith("file:"):  # an object in a remote store
            return path
        if path.startswith("file:") and not os.path.exists(os.path.join(self._cwd, path)):
            path = unquote(urlsplit(path).path)  # as SQLite takes one: "file:data/x.db?mode=ro"
        absolute = os.path.normpath(os.path.join(self._cwd, path))
        return os.path.realpath(absolute) if os.path.exists(absolute) else absolute

    def absolute(self, spelled: str) -> str:
        """The file's own path, links resolved."""
        return self._known.get(spelled) or self._resolve(spelled)

    def shown(self, spelled: str) -> str:
        """How reports name the file."""
        path = self.absolute(spelled)
        below = self._cwd.rstrip("/") + "/"
        return path.removeprefix(below) if path.startswith(below) else path


_CODE_SUFFIXES = (".py", ".pyc", ".so", ".pth", ".egg-link")


def is_code(path: str, prefixes: Iterable[str]) -> bool:
    """Whether a resolved path belongs to the program's code rather than to its data."""
    name = os.path.basename(path)
    if name.endswith(_CODE_SUFFIXES) or ".so." in name or name == "pyvenv.cfg":
        return True
    if "/pymp-" in path:  # multiprocessing's sockets
        return True
    if any(part in f"{path}/" for part in ("/site-packages/", "/__pycache__/", ".dist-info/", ".egg-info/")):
        return True
    return any(
        path == prefix or path.startswith(prefix.rstrip("/") + "/")
        for prefix in prefixes
        if prefix not in ("/", "/usr")
    ) or path.startswith(("/proc/", "/sys/", "/dev/", "/usr/lib", "/lib/"))
