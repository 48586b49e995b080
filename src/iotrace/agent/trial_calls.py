"""Calls of the program that a trial answers otherwise: archives stay open, tables are Parquet."""

from __future__ import annotations

import os
import sys
import threading
from stat import S_ISREG
from typing import Any

from iotrace.agent.patching import hide_frame, patch
from iotrace.agent.recording.recorder import Recorder
from iotrace.session.guard import ours

_LAYER = "override"
_MOST_OPEN = 4  # archives of a thread
_PARQUET = b"PAR1"


def hook_archives(module: Any, recorder: Recorder, names: list[str]) -> None:
    """Patch ``tarfile.open``: an archive of these names stays open, and is given again."""
    kept: dict[Any, Any] = {}

    def make(original: Any) -> Any:
        def opening(*args: Any, **kwargs: Any) -> Any:
            key = _key(args, kwargs, names)
            found = kept.get(key)
            if found is None or found.closed:
                try:
                    found = original(*args, **kwargs)
                except BaseException as error:
                    hide_frame(error)
                    raise
                if key is not None and len(kept) < _MOST_OPEN:
                    found.close = _stay_open
                    kept[key] = found
                    recorder.records.append({"type": "kept_open", "path": key[2]})
            return found

        return opening

    patch(module, "open", make, layer=_LAYER)


def _key(args: tuple[Any, ...], kwargs: dict[str, Any], names: list[str]) -> tuple[Any, ...] | None:
    """Return what an archive is kept by; None: it is another one, a stream, or opened to write."""
    try:
        name = args[0] if args else kwargs["name"]
        mode = args[1] if len(args) > 1 else kwargs.get("mode", "r")
        plain = len(args) <= 2 and not set(kwargs) - {"name", "mode"} and mode in ("r", "r:", "r:*", "r:gz")
        if plain and os.path.basename(name) in names:
            return os.getpid(), threading.get_ident(), os.path.abspath(name), mode
    except ours(Exception):
        pass
    return None


def _stay_open() -> None:
    """Stand for ``close``."""


def hook_tables(module: Any) -> None:
    """Patch ``pandas.read_csv``: a file whose copy is Parquet is read by ``read_parquet``."""

    def make(original: Any) -> Any:
        def read_csv(*args: Any, **kwargs: Any) -> Any:
            path = args[0] if args else kwargs.get("filepath_or_buffer")
            try:
                if not _is_parquet(path):
                    return original(*args, **kwargs)
                others = [*map(repr, args[1:]), *(name for name in kwargs if name != "filepath_or_buffer")]
                if others:
                    raise ValueError(f"iotrace try: the copy is of read_csv(path), without {others[0]}")
                return sys.modules["pandas"].read_parquet(path)
            except BaseException as error:
                hide_frame(error)
                raise

        return read_csv

    patch(module, "read_csv", make, layer=_LAYER)


def _is_parquet(path: Any) -> bool:
    try:
        if not isinstance(path, (str, os.PathLike)) or not S_ISREG(
            os.stat(path).st_mode
        ):  # a pipe is read once
            return False
        with open(path, "rb") as file:
            return file.read(len(_PARQUET)) == _PARQUET
    except ours(OSError, ValueError):  # pandas says so, or it is a URL
        return False
