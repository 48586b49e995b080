"""The table by which the recorder (capture/serve.c) gives a program copies of its data, and what it gave."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path

from iotrace.session import names
from iotrace.session.manifest import write_atomically
from iotrace.trying.results import Data

_MAGIC = b"IOSERVE1"
_HEAD, _ENTRY = struct.Struct("<8sQQ40x"), struct.Struct("<8Q")
_HITS, _WRITTEN = 6, 7  # of an entry
_END = bytes(8)  # the recorder compares words


def write_table(path: Path, data: Sequence[Data]) -> None:
    """Write the table of what is replaced; OSError where an original or the table is not to be had."""
    found = [(os.stat(each.path), each) for each in data]
    files = [pair for pair in found if not os.path.isdir(pair[1].path)]
    stores = [pair for pair in found if os.path.isdir(pair[1].path)]
    files.sort(key=lambda pair: pair[0].st_ino)
    start, texts, entries = _HEAD.size + _ENTRY.size * len(found), bytearray(), []
    for status, each in [*files, *stores]:
        name = start + len(texts)
        texts += os.fsencode(os.path.basename(os.path.realpath(each.path))) + b"\0"
        target = start + len(texts)
        texts += os.fsencode(os.path.realpath(each.new_path)) + b"\0"
        where = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        entries.append(_ENTRY.pack(*where, name, target, 0, 0))
    head = _HEAD.pack(_MAGIC, len(files), len(stores))
    write_atomically(path, b"".join([head, *entries, bytes(texts), _END]))


def given(path: Path, data: Sequence[Data]) -> tuple[dict[str, int], list[str]]:
    """Read how often each copy was opened, by the original's path, and which originals were written to."""
    table = path.read_bytes()
    _, files, stores = _HEAD.unpack_from(table)
    by_target = {os.path.realpath(each.new_path): each.path for each in data}
    opens, written = {}, []
    for number in range(files + stores):
        entry = _ENTRY.unpack_from(table, _HEAD.size + number * _ENTRY.size)
        target = table[entry[5] : table.index(b"\0", entry[5])]
        original = by_target[os.fsdecode(target)]
        opens[original] = entry[_HITS]
        if entry[_WRITTEN]:
            written.append(original)
    return opens, written


def variables(path: Path, recorder: Path | None = None) -> dict[str, str]:
    """Return the variables that switch it on; with `recorder`, that library is preloaded by them, too."""
    preloads = [] if recorder is None else [str(recorder), os.environ.get("LD_PRELOAD", "")]
    preloaded = {"LD_PRELOAD": ":".join(filter(None, preloads))} if preloads else {}
    return {names.SERVED_VARIABLE: str(path), **preloaded}
