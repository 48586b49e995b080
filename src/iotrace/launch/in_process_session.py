"""Record a part of the running program for `iotrace.profile`: no launcher, no POSIX calls."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from iotrace.launch import traced_run
from iotrace.launch.session_directory import begin, numbered
from iotrace.launch.telemetry.procfs import read_stat
from iotrace.launch.traced_run import added_read_paths
from iotrace.session import names
from iotrace.session.manifest import NotCaptured, Outcome, PosixState, write_document

# The writers of other processes look twice a second whether the session is over.
_LONGEST_WAIT_S = 2.0
_NO_POSIX = NotCaptured(
    "posix",
    "iotrace.profile begins inside the program, and POSIX calls are traced from a process's start",
    "iotrace run -- CMD",
)


class InProcessSession:
    """The session of one ``with iotrace.profile()`` block, or of one call of a decorated function.

    Each of several ranks makes a session named by its `rank`: they do not know of one another.

    Raises:
        LaunchError: the session cannot be made.
    """

    # Of this process's earlier blocks: the next one of the same name gets a number.
    _made: ClassVar[set[Path]] = set()

    def __init__(self, output: str | None, rank: int | None) -> None:
        suffix = "" if rank is None else f"-rank{rank}"
        command = list(getattr(sys, "orig_argv", [])) or list(sys.argv)
        self.settings, not_understood = added_read_paths()
        not_captured = [_NO_POSIX, *not_understood]
        manifest = traced_run.describe(command, PosixState(on=False), not_captured, {}, in_job=False)
        if output is None:
            self.shown, self.session = traced_run.begin_by_default(manifest, suffix)
        else:
            named = numbered(Path(output + suffix))
            self.shown = next(path for path in named if path.resolve() not in self._made)
            self.session = begin(self.shown, manifest)
        self._made.add(self.session)
        self._started_ns = time.monotonic_ns()
        self._before: dict[str, tuple[str | None, str]] = {}

    def path_from_here(self) -> Path:
        """Return the session's path as the block named it, unless the program has changed its directory."""
        return traced_run.as_shown(self.shown, self.session)

    def enter_environment(self) -> None:
        """Make processes that are started, such as spawned workers, record into the session."""
        variables = traced_run.agent_environment(
            self.session, os.environ.get("PYTHONPATH", ""), self.settings
        )
        for name, value in variables.items():
            self._before[name] = (os.environ.get(name), value)
            os.environ[name] = value

    def leave_environment(self) -> None:
        """Restore the variables, but for those that the program has set meanwhile."""
        for name, (before, ours) in self._before.items():
            if os.environ.get(name) != ours:
                continue
            if before is None:
                del os.environ[name]
            else:
                os.environ[name] = before

    def close(self) -> None:
        """End the session, in the block's other processes too, and write its outcome."""
        with suppress(OSError):  # deleted meanwhile: nothing is left to be closed
            (self.session / names.CLOSED).mkdir(names.DIRECTORY_MODE)
            deadline = time.monotonic() + _LONGEST_WAIT_S
            while any(map(_writing, self._others())) and time.monotonic() < deadline:
                time.sleep(0.02)
        duration_ns = time.monotonic_ns() - self._started_ns
        outcome = Outcome(exit_code=None, ended_ns=time.time_ns(), duration_ns=duration_ns)
        write_document(self.session / names.OUTCOME, outcome)

    def _others(self) -> list[Path]:
        own = f"{os.getpid()}-"
        directories = (self.session / names.PROCESSES).iterdir()
        return [directory for directory in directories if not directory.name.startswith(own)]


def _writing(process: Path) -> bool:
    """Say whether the process lives and has not ended its records; one without records has no writer."""
    try:
        if read_stat(process.name.partition("-")[0]).state == "Z":
            return False
        with (process / names.RECORDS).open("rb") as records:
            records.seek(max(0, records.seek(0, os.SEEK_END) - 256))
            return b'"type":"end"' not in records.read()
    except OSError:
        return False
