"""Which commit a directory has checked out, read from the repository's files: no program of git runs."""

from __future__ import annotations

import re
from pathlib import Path

from iotrace.session.reading import open_regular

_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_REFERENCE = re.compile(r"refs/[^\0\n]{1,1000}")
_MOST_BYTES = 4 << 20
_MOST_ABOVE = 40


def commit_of(directory: Path) -> str:
    """Return the hash of the commit that `directory`, or one above it, has checked out; empty: not known.

    Whether its files were changed since is not known.
    """
    try:
        for above in [directory, *directory.parents][:_MOST_ABOVE]:
            if (above / ".git").exists():
                return _head(above / ".git")
    except (OSError, ValueError):
        pass
    return ""


def _head(git: Path) -> str:
    if git.is_file():  # a worktree, a submodule: it names where its own are
        git = git.parent / _text(git).removeprefix("gitdir:").strip()
    head = _text(git / "HEAD").strip()
    if not head.startswith("ref:"):
        return _hash(head)
    name = head.removeprefix("ref:").strip()
    if not _REFERENCE.fullmatch(name) or ".." in name:
        return ""
    common = git / _text(git / "commondir").strip() if (git / "commondir").exists() else git
    for place in (git, common):
        if (place / name).exists():
            return _hash(_text(place / name).strip())
    lines = (line.split(" ") for line in _text(common / "packed-refs").splitlines())
    return next((_hash(words[0]) for words in lines if words[1:] == [name]), "")


def _hash(text: str) -> str:
    return text if _HASH.fullmatch(text) else ""


def _text(path: Path) -> str:
    with open_regular(path) as file:
        return file.read(_MOST_BYTES).decode()
