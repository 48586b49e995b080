"""Inputs and outputs in object stores (``s3://``, ``gs://``, whatever fsspec knows), by way of a local copy.

An input is fetched in ranges into a temporary directory, which is deleted when the command ends. An output is
written locally first, and then uploaded.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any

from iotrace.errors import IotraceError, UsageError
from iotrace.units import size

_RANGE_BYTES = 16 << 20
_TRIES = 4
_PAUSE_SECONDS = 0.5  # before the second try; twice that before the third, and so on
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "az": "az", "abfs": "az", "abfss": "az"}
_VERSIONS = ("size", "ETag", "etag", "generation", "mtime")  # what changes when an object is written anew
_MAGIC = frozenset("*?[")


class StoreError(IotraceError):
    """What a store does not give or take."""


def is_url(text: str) -> bool:
    """Tell whether `text` names something in a store."""
    scheme, colon, _ = text.partition("://")
    return bool(colon) and scheme.isidentifier() and scheme != "file"


def fetch(url: str, directory: Path) -> Path:
    """Fetch the file, the tree, or what matches the pattern `url` into `directory`; return what lies there.

    Raises:
        StoreError: it is not there, may not be read, or has no room here.
    """
    with _told(url, "read"):
        store, path = _store_of(url)
        pattern = bool(_MAGIC & set(path))
        found = store.find(path) if not pattern else store.glob(path)
        infos = [store.info(each) for each in found if not each.endswith("/")]
    infos = [info for info in infos if info["type"] == "file"]
    if not infos:
        raise StoreError(f"there is nothing at {url}", "name a trace, or the directory of a session")
    needed, free = sum(info["size"] for info in infos), shutil.disk_usage(directory).free
    if needed > free:
        raise StoreError(
            f"{url} holds {size(needed)}, and {directory.parent} has room for {size(free)}",
            "set TMPDIR to a directory with room",
        )
    name = PurePosixPath(path.rstrip("/")).name if not pattern else "matches"
    alone = not pattern and infos[0]["name"].rstrip("/") == path.rstrip("/")
    for info in infos:
        below = info["name"].lstrip("/") if pattern else os.path.relpath(info["name"], path)
        target = directory / name if alone else directory / name / below
        if not alone and (".." in PurePosixPath(below).parts or below.startswith("/")):
            raise StoreError(f"{url} holds {info['name']}, which leads out of it", "leave that object out")
        target.parent.mkdir(parents=True, exist_ok=True)
        with _told(f"{url} ({info['name']})", "read"):
            _fetch_file(store, info, target)
    return directory / name


def _fetch_file(store: Any, info: dict[str, Any], target: Path) -> None:
    """Read an object in ranges; a range that fails is asked for again, from where the copy ends."""
    name, end = info["name"], info["size"]
    with target.open("wb") as out:
        while (done := out.tell()) < end:
            piece = _again(store.cat_file, name, start=done, end=min(end, done + _RANGE_BYTES))
            if not piece:
                raise OSError("it ended early")
            out.write(piece)
    store.invalidate_cache()
    after = store.info(name)
    if [after.get(key, info.get(key)) for key in _VERSIONS] != [info.get(key) for key in _VERSIONS]:
        raise OSError("it was written anew meanwhile")


def upload(source: Path, url: str) -> None:
    """Upload the file `source`; where that fails after several tries the file stays, and the error names it.

    Raises:
        StoreError: the store does not take it.
    """
    kept = f"the result is in {source}: copy it there by hand, or repeat the command"
    with _told(url, "written", kept):
        store, path = _store_of(url)
        _again(store.put_file, os.fspath(source), path)
        store.invalidate_cache()
        if store.info(path)["size"] != source.stat().st_size:
            raise OSError("what is there is not what was sent")


def _again(do: Callable[..., Any], *words: Any, **named: Any) -> Any:
    """Call `do` until it succeeds, four times at most; what will not get better is raised at once."""
    for number in range(_TRIES - 1):
        try:
            return do(*words, **named)
        except (FileNotFoundError, PermissionError):
            raise
        except Exception:  # each store has errors of its own for a connection that broke
            time.sleep(_PAUSE_SECONDS * 2**number)
    return do(*words, **named)


def _store_of(url: str) -> tuple[Any, str]:
    if find_spec("fsspec") is None:
        raise UsageError(f"{url} needs the package fsspec, which is not installed here", _install(url))
    from fsspec.core import url_to_fs

    try:
        found: tuple[Any, str] = url_to_fs(url)
    except ImportError as error:
        raise UsageError(
            f"{url} needs a package that is not installed here: {error}", _install(url)
        ) from error
    except ValueError as error:
        raise UsageError(f"{url} cannot be understood: {error}", "such as s3://BUCKET/session") from error
    return found


def _install(url: str) -> str:
    extra = _EXTRAS.get(url.partition("://")[0])
    return (
        f"pip install 'iotrace-agent[{extra}]'" if extra else "pip install fsspec, and what it needs for that"
    )


@contextmanager
def _told(url: str, done: str, remedy: str = "") -> Iterator[None]:
    """Turn what a store raises into a sentence."""
    try:
        yield
    except IotraceError:
        raise
    except FileNotFoundError as error:
        raise StoreError(f"{url} cannot be {done}: there is none", remedy or "see its name") from error
    except PermissionError as error:
        allow = "these credentials do not allow it"
        raise StoreError(f"{url} cannot be {done}: {allow} ({_line(error)})", remedy) from error
    except Exception as error:  # each store has errors of its own
        if "credential" in f"{type(error).__name__} {error}".lower():
            how = "set them as the store's own tools have them (AWS_PROFILE, AWS_ACCESS_KEY_ID, gcloud, az)"
            raise StoreError(f"{url} cannot be {done}: no credentials were found", how) from error
        raise StoreError(f"{url} cannot be {done}: {_line(error)}", remedy or "try it again") from error


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


class Copies:
    """The local copies of one command's inputs and outputs, below one temporary directory."""

    def __init__(self) -> None:
        self._delete: weakref.finalize[..., Copies] | None = None  # at the latest when Python ends
        self._outputs: list[tuple[Path, str]] = []

    def of_input(self, url: str) -> Path:
        """Fetch `url`; its copy is deleted when the command ends."""
        return fetch(url, self._new())

    def of_output(self, url: str) -> Path:
        """Return the local file that the command writes in place of `url`."""
        path = self._new() / PurePosixPath(url).name
        self._outputs.append((path, url))
        return path

    def close(self, say: Callable[[str], None]) -> None:
        """Upload the outputs that were written, say so, and delete the copies."""
        if self._delete is None:
            return
        # All that was written there: `merge --per-rank` makes a file of each rank.
        written = [(file, url) for own, url in self._outputs for file in sorted(own.parent.iterdir())]
        for file, url in written:
            target = f"{url.rpartition('/')[0]}/{file.name}"
            try:
                upload(file, target)
            except StoreError:
                self._delete.detach()
                raise
            say(f"iotrace: wrote {target}")
        self._delete()

    def _new(self) -> Path:
        if self._delete is None:
            self._root = tempfile.mkdtemp(prefix="iotrace-")
            self._delete = weakref.finalize(self, shutil.rmtree, self._root, ignore_errors=True)
        return Path(tempfile.mkdtemp(dir=self._root))
