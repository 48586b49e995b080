"""Which paths the server opens: none outside of the directory that it was started for."""

from __future__ import annotations

import os
from pathlib import Path

from iotrace.errors import SessionError, UsageError
from iotrace.session import names

_MOST_ENTRIES = 200_000
_LONGEST_NAME = 255
_REMEDY = "list_sessions names those that there are"


class Places:
    """The directory that is shown, its links resolved."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()

    def path(self, name: str) -> Path:
        """Return a path below the directory, its links resolved.

        Raises:
            UsageError: it leads out of the directory, or is no path.
        """
        try:
            if any(len(os.fsencode(part)) > _LONGEST_NAME for part in name.split("/")):
                raise ValueError(name)
            path = (self.root / name).resolve()
        except (ValueError, OSError, RuntimeError) as error:  # a zero byte, a circle of links
            raise UsageError("that is no path", _REMEDY) from error
        if not self.holds(path):
            raise UsageError("that path leads out of the directory that this server shows", _REMEDY)
        return path

    def holds(self, path: Path) -> bool:
        """Whether a path is below the directory."""
        return path == self.root or path.is_relative_to(self.root)

    def session(self, name: str) -> Path:
        """Return the directory of a session.

        Raises:
            UsageError: it leads out of the directory.
            SessionError: there is no session, or a link in it leads out of the directory.
        """
        path = self.path(name)
        if not (path / names.MANIFEST).is_file():
            raise SessionError("there is no session of that name", _REMEDY)
        self._refuse_links(path)
        return path

    def relative_name(self, path: Path) -> str:
        """Return what a path below the directory is called."""
        return os.path.relpath(path.resolve(), self.root)

    def below(self, text: str) -> str:
        """Name the paths in a text as they are called below the directory."""
        return text.replace(f"{self.root}/", "")

    def _refuse_links(self, session: Path) -> None:
        waiting, seen = [session], 0
        while waiting:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    seen += 1
                    if entry.is_symlink():
                        raise SessionError(f"{self.relative_name(session)} holds a link: it is not read")
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(Path(entry.path))
                    if seen > _MOST_ENTRIES:
                        raise SessionError(
                            f"{self.relative_name(session)} holds too many files: iotrace report reads it"
                        )
