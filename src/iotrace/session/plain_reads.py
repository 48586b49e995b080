"""Keep what a plain sequential reader got from a mounted file system, for the reports of this user."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import msgspec

from iotrace.session.manifest import read_document, write_atomically


class PlainReads(msgspec.Struct, frozen=True, kw_only=True):
    """What one reader got of `bytes` in `seconds`, in pieces of 1 MiB, one after the other.

    `cold`: the kernel said that no page of the files was in memory. It may have been in that of a server, or
    of a disk. None: the kernel does not tell. `why` says why it was not cold. `saved` is the file that keeps
    this, None where it was not kept.
    """

    schema_version: int = 1
    path: str
    node: str
    point: str
    type: str
    files: int
    bytes: int
    seconds: float
    bytes_per_s: float
    cold: bool | None
    why: str = ""
    at_ns: int
    saved: str | None = None


def save(reads: PlainReads) -> Path:
    """Keep `reads` instead of what was known of their mount; return the file.

    Raises:
        OSError: it cannot be written.
    """
    path = _file(reads.node, reads.point)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, msgspec.json.encode(reads))
    return path


def load(node: str, point: str) -> PlainReads | None:
    """What is known of the file system that `node` has at `point`."""
    try:
        return read_document(_file(node, point), PlainReads)
    except OSError:
        return None


def _file(node: str, point: str) -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if not os.path.isabs(cache):
        raise OSError("no home directory")
    name = hashlib.sha256(f"{node}\0{point}".encode(errors="surrogateescape")).hexdigest()[:24]
    return Path(cache) / "iotrace" / "storage" / f"{name}.json"
