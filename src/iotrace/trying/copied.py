"""The copies of a trial while it lasts: written once, given to each changed run, removed at its end."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec.structs import replace

from iotrace.trying import copies
from iotrace.trying.options import StopError
from iotrace.trying.results import FAILED, Data
from iotrace.trying.serving import given, variables, write_table
from iotrace.units import counted, time_span

_TABLE = "served"


class Copied:
    """What `jobs` ask for, as it lies beside the runs of the trial in `directory`.

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
                "images were tried decoded, at their own size: at the size that training takes they cost less"
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
            raise StopError(FAILED, f"the program writes to {written[0]}, so no copy can stand for it")
        if not any(opens.values()):
            what = self.data[0].path if len(self.data) == 1 else "any of the files"
            raise StopError(FAILED, f"the program did not open {what} by a call that iotrace can redirect")
        self.data = [
            replace(each, opens=opens[each.path] if each.opens is None else min(each.opens, opens[each.path]))
            for each in self.data
        ]


def _changed_ns(path: str) -> int:
    return os.stat(path).st_mtime_ns
