"""The copies of a trial while it lasts: written once, given to each changed run, removed at its end.

They are given by a table that the recorder reads (capture/serve.c), and in which it notes what it gave.
"""

from __future__ import annotations

import os
import shutil
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec.structs import replace

from iotrace.session import names
from iotrace.session.manifest import write_atomically
from iotrace.trying import copies
from iotrace.trying.results import FAILED, Data, StopError
from iotrace.units import counted, time_span

_MAGIC = b"IOSERVE1"
_HEAD, _ENTRY = struct.Struct("<8sQQ40x"), struct.Struct("<8Q")
_HITS, _WRITTEN = 6, 7  # of an entry
_END = bytes(8)  # the recorder compares words


def write_table(path: Path, data: Sequence[Data]) -> None:
    """Write the table of what is replaced; OSError where an original or the table is not to be had."""
    originals = [(os.stat(each.path), each) for each in data]
    files = [pair for pair in originals if not os.path.isdir(pair[1].path)]
    stores = [pair for pair in originals if os.path.isdir(pair[1].path)]
    files.sort(key=lambda pair: pair[0].st_ino)
    start, texts, entries = _HEAD.size + _ENTRY.size * len(originals), bytearray(), []
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


_TABLE = "served"


class Copied:
    """What `jobs` ask for, next to the runs of the trial in `directory`.

    `preloaded` is the recorder where no agent brings it into the runs. `warnings`: what else to know.
    """

    def __init__(self, jobs: Sequence[copies.Job], directory: Path, preloaded: Path | None) -> None:
        self.data: list[Data] = []
        self.warnings: list[str] = []
        self._jobs, self._directory, self._preloaded = list(jobs), directory, preloaded
        self._place: Path | None = None

    @property
    def _table(self) -> Path:
        return self._directory / _TABLE

    def write(self, python: str, progress: Callable[[float], None]) -> str:
        """Write all by the program's Python, and return what was done; raises as `copies.write_copies`."""
        self._place = copies.place_for(self._jobs, self._directory)
        jobs, started = copies.with_targets(self._jobs, self._place), time.monotonic()
        self.data = copies.write_copies(jobs, python, progress)
        if any(job.format == copies.IMAGE for job in jobs):
            self.warnings.append(
                "images were tried decoded, at their own size: resized for training they may cost less"
            )
        if len(self.data) < len(jobs):
            left = counted(len(jobs) - len(self.data), "file")
            self.warnings.append(f"{left} could not be stored so, and are read as they are")
        what = self.data[0].path if len(self.data) == 1 else counted(len(self.data), "file")
        return f"copied {what} in {time_span(time.monotonic() - started)}: equal values, in {self._place}"

    def remove(self) -> None:
        """Delete them."""
        copies.remove([each.new_path for each in self.data])
        if self._place is not None:
            shutil.rmtree(self._place, ignore_errors=True)

    def paths(self, changed: bool) -> list[str]:
        """Return the data that a run reads."""
        return [each.new_path if changed else each.path for each in self.data]

    def variables(self, changed: bool) -> dict[str, str]:
        """Return the variables that give a changed run the copies; both kinds of runs have the recorder.

        Raises:
            StopError: an original was changed.
        """
        if not self.data:
            return {}
        if changed:
            self._check_originals()
            write_table(self._table, self.data)
        served = variables(self._table, self._preloaded)
        return served if changed else {name: served[name] for name in served if name == "LD_PRELOAD"}

    def _check_originals(self) -> None:
        for each in self.data:
            if not os.path.isdir(each.path) and _changed_ns(each.path) != _changed_ns(each.new_path):
                raise StopError(FAILED, f"{each.path} was changed during the trial")

    def note_given(self) -> None:
        """Note how often the run that ended opened each copy.

        Raises:
            StopError: it opened none, or wrote to the data.
        """
        if not self.data:
            return
        opens, written = given(self._table, self.data)
        if written:
            raise StopError(FAILED, f"the program writes to {written[0]}, so no copy can replace it")
        if not any(opens.values()):
            what = self.data[0].path if len(self.data) == 1 else "any of the files"
            raise StopError(FAILED, f"the program did not open {what} by a call that iotrace can redirect")
        self.data = [
            replace(each, opens=opens[each.path] if each.opens is None else min(each.opens, opens[each.path]))
            for each in self.data
        ]


def _changed_ns(path: str) -> int:
    return os.stat(path).st_mtime_ns
