"""Which servers of `iotrace ui` this user runs here, and where they show a session.

Each says so in a file of its own that only its owner can read; no secret is in it. A file is believed while
the process that wrote it lives.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote, urlsplit

import msgspec

from iotrace.session import names
from iotrace.session.liveness import launcher_lives, this_process
from iotrace.session.manifest import Launcher, read_document, write_atomically

LOOPBACK = "127.0.0.1"
MOST_DEPTH = 12  # directories below a served one
_MOST_SERVERS = 100


class Server(msgspec.Struct, frozen=True):
    """A server of `roots` at `address`."""

    process: Launcher
    address: str
    roots: list[str]


@contextmanager
def announced(address: str, roots: Sequence[Path]) -> Iterator[None]:
    """Let runs of this user know of the caller's server; where nothing can be written, they do not."""
    path = None
    with suppress(OSError):
        path = _directory() / f"{os.uname().nodename}-{os.getpid()}.json"
        path.parent.mkdir(names.DIRECTORY_MODE, parents=True, exist_ok=True)
        served = [readable for root in roots if (readable := _text(root)) is not None]
        write_atomically(path, msgspec.json.encode(Server(this_process(), address, served)))
    try:
        yield
    finally:
        if path is not None:
            with suppress(OSError):
                path.unlink(missing_ok=True)


def served_at(session: Path) -> str | None:
    """Return the address where a living server shows `session`; None where there is none."""
    with suppress(OSError):
        directory, path = _directory(), session.resolve()
        if not _is_ours(directory):
            return None
        for file in sorted(directory.glob("*.json"))[:_MOST_SERVERS]:
            server = read_document(file, Server) if _is_ours(file) else None
            if server is None or not launcher_lives(server.process):
                continue
            roots = [Path(root) for root in server.roots]
            for root, prefix in zip(roots, prefixes(roots), strict=True):
                key = find_key(path, root, prefix)
                if key is not None:
                    return f"{server.address}/run?of={quote(key)}"
    return None


def tunnel_to(address: str) -> str:
    """Return the command that leads to `address` from where the browser is; empty where none is needed."""
    where = urlsplit(address)
    if not os.environ.get("SSH_CONNECTION") or where.hostname != LOOPBACK:
        return ""
    return f"ssh -L {where.port}:{LOOPBACK}:{where.port} {os.uname().nodename}"


def prefixes(roots: Sequence[Path]) -> list[str]:
    """Return what keys of the list begin with, for each served directory."""
    return [""] if len(roots) == 1 else [f"{number + 1}-{root.name}" for number, root in enumerate(roots)]


def find_key(path: Path, root: Path, prefix: str) -> str | None:
    """Return what addresses call `path`: valid text, whatever its name is; None where the list lacks it."""
    relative = os.path.relpath(path, root)
    parts = relative.split("/")
    if parts[0] == ".." or len(parts) > MOST_DEPTH + 1 or any(each.startswith(".") for each in parts[1:]):
        return None
    if relative == ".":
        own = prefix or root.name
    elif parts[0].startswith("."):
        return None
    else:
        own = f"{prefix}/{relative}".lstrip("/")
    return os.fsencode(own).decode(errors="backslashreplace")


def _directory() -> Path:
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(runtime) and os.path.isdir(runtime):
        return Path(runtime) / "iotrace"
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if not os.path.isabs(cache):
        raise OSError("no home directory")
    return Path(cache) / "iotrace" / "ui"


def _is_ours(path: Path) -> bool:
    """Whether nobody else can have written it: what it says is printed as an address to open."""
    status = os.lstat(path)
    return status.st_uid == os.getuid() and not status.st_mode & 0o022


def _text(path: Path) -> str | None:
    try:
        return os.fsencode(path).decode()
    except UnicodeDecodeError:
        return None
