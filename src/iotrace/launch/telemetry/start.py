"""Start the sidecar, one for each host and session, and release it when the command ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import site
import subprocess
import sys
import sysconfig
from contextlib import suppress
from pathlib import Path

from iotrace.launch.session_directory import numbered
from iotrace.launch.telemetry.procfs import read_stat
from iotrace.session import names

DEFAULT_INTERVAL_MS = 200
SHORTEST_INTERVAL_MS = 20
LONGEST_INTERVAL_MS = 1000  # a run of some seconds still has samples from within its steps
_END_SECONDS = 1.0
_KINDS = ("stdlib", "platstdlib", "purelib", "platlib")
# The launcher's own import path replaces the interpreter's: nothing in the command's directory, in PYTHONPATH
# or in site-packages' .pth files runs.
_CODE = (
    "import sys; sys.path[:] = sys.argv.pop(1).split(':');"
    "from iotrace.launch.telemetry.sidecar import main; main(sys.argv[1:])"
)
# How the names of variables begin that a launcher which is itself traced has from the outer one.
_OUTER = ("LD_PRELOAD", names.SETTINGS_VARIABLE, "DFTRACER_")


class Telemetry:
    """A running sidecar, or nothing where another launcher's samples this host."""

    def __init__(self, process: subprocess.Popen[bytes] | None, directory: Path | None = None) -> None:
        self._process = process
        self._directory = directory

    def release(self) -> None:
        """Wait a moment for the last samples: the command has ended."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                code = self._process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:  # others' processes still run, or a device does not answer
                return
            if code < 0 and self._directory is not None:  # by its samples it would look like a late one
                with suppress(OSError, ValueError):
                    killed = self._directory / names.KILLED
                    killed.write_text(signal.Signals(-code).name)
                    killed.chmod(names.FILE_MODE)

    def kill(self) -> None:
        """End it at once: nothing was run."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def start(session: Path, interval_ms: int, most_bytes: int = 0) -> Telemetry:
    """Start sampling this host into the session's directory, unless another launcher's sidecar does.

    The sidecar keeps the session below `most_bytes`; 0: no limit.

    What the system refuses is left out: the report says that there is no telemetry.
    """
    directory = None
    try:
        directory = claim(session)
        if directory is None:
            return Telemetry(None)
        return Telemetry(_spawn(session, directory, interval_ms, most_bytes), directory)
    except OSError:
        if directory is not None:
            shutil.rmtree(directory, ignore_errors=True)  # the claim is another launcher's to make
        return Telemetry(None)


def claim(session: Path) -> Path | None:
    """Make the directory to sample into; None where a sidecar of the session lives on this host.

    Making a directory succeeds once, also on network file systems: no locks. The PID namespace in its name
    distinguishes hosts of the same name, and containers on one host.
    """
    namespace = os.stat("/proc/self/ns/pid").st_ino
    for directory in numbered(session / names.TELEMETRY / f"{os.uname().nodename}-{namespace:x}"):
        try:
            directory.parent.mkdir(names.DIRECTORY_MODE, exist_ok=True)
            directory.mkdir(names.DIRECTORY_MODE)
            return directory
        except FileExistsError:
            if _lives(directory):
                break
    return None


def _lives(directory: Path) -> bool:
    """Say whether the sidecar of `directory` runs; one that has not written its pid yet is about to."""
    try:
        with open(directory / names.RECORDS, "rb") as file:
            sampler = json.loads(file.readline())
        stat = read_stat(sampler["pid"])
    except FileNotFoundError as error:
        return not str(error.filename).startswith("/proc/")
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return True
    return stat.state != "Z" and stat.start_ticks == sampler.get("start_ticks")


def _spawn(session: Path, directory: Path, interval_ms: int, most_bytes: int) -> subprocess.Popen[bytes]:
    environment = outer_environment()
    environment["ZES_ENABLE_SYSMAN"] = "1"  # in the program it would change which devices torch sees
    if preloaded := os.environ.get(names.SIDECAR_PRELOAD_VARIABLE):
        environment["LD_PRELOAD"] = preloaded  # one may shift the program's time, and so the sidecar's
    arguments = map(str, (session, directory, interval_ms, most_bytes))
    return subprocess.Popen(
        [sys.executable, "-IS", "-c", _CODE, import_path(), *arguments],
        env=environment,
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def outer_environment() -> dict[str, str]:
    """Return the environment of a process of ours that is not traced, even where the launcher is."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_OUTER)}


def import_path() -> str:
    """Return this process's import path, iotrace first, absolute: the sidecar has another directory.

    The current directory is left out, unless installed packages lie there.
    """
    own = str(Path(__file__).parents[3])
    try:
        here = os.path.realpath(".")
    except FileNotFoundError:  # it was deleted: nothing can be imported from it
        here = ""
    installed = {os.path.realpath(entry) for entry in _installed()}
    others = []
    for entry in sys.path:
        if not entry or not (os.path.isabs(entry) or here):
            continue
        resolved = os.path.realpath(entry)
        if resolved != here or resolved in installed:
            others.append(os.path.abspath(entry))
    return os.pathsep.join(dict.fromkeys([own, *others]))


def _installed() -> list[str]:
    """Return the directories of the standard library and of installed packages."""
    user = site.getusersitepackages() if site.ENABLE_USER_SITE else None
    directories = [sysconfig.get_path(kind) for kind in _KINDS] + site.getsitepackages()
    return [*directories, user] if user else directories
