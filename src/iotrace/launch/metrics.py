"""`iotrace run --metrics`: where metrics go, and the process that gives them while the command runs."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from iotrace.errors import LaunchError
from iotrace.launch.telemetry.start import import_path, outer_environment

_CODE = (
    "import sys; sys.path[:] = sys.argv.pop(1).split(':');"
    "from iotrace.export.metrics import main; main(sys.argv[1:])"
)
_ADDRESS = re.compile(r"(?:(?P<host>[\w.-]+|\[[0-9a-fA-F:.]+\])?:)?(?P<port>\d{1,5})")
_SUFFIX = ".prom"  # the one that node_exporter's collector reads
_END_SECONDS = 2.0


class Exporter:
    """Gives metrics of a session at ``[HOST:]PORT``, or in a file for node_exporter's textfile collector."""

    def __init__(self, target: str) -> None:
        """Check `target`.

        Raises:
            LaunchError: it is neither.
        """
        self._process: subprocess.Popen[bytes] | None = None
        self._file: Path | None = None
        self._host, self._port = "127.0.0.1", 0
        if target.endswith(_SUFFIX):
            self._file = Path(target).absolute()
            if not self._file.parent.is_dir():
                raise LaunchError(f"--metrics: there is no directory {self._file.parent}", "make it first")
            return
        match = _ADDRESS.fullmatch(target)
        if match is None or int(match["port"]) > 65535:
            raise LaunchError(
                f"--metrics {target!r} is neither [HOST:]PORT nor a file that ends in {_SUFFIX}",
                "as in --metrics 9400",
            )
        self._host, self._port = (match["host"] or self._host).strip("[]"), int(match["port"])

    def start(self, session: Path) -> str:
        """Start the process; return what is to be said of it. What cannot be given harms no run."""
        try:
            if self._file is not None:
                self._spawn(session, str(self._file))
                return f"metrics in {self._file}"
            with _listening(self._host, self._port) as listening:
                os.set_inheritable(listening.fileno(), True)
                self._spawn(session, str(listening.fileno()), listening.fileno())
                host, port = listening.getsockname()[:2]
            return f"metrics at http://{f'[{host}]' if ':' in host else host}:{port}/metrics"
        except OSError as error:
            where = self._file or f"{self._host}:{self._port}"
            return f"no metrics at {where}: {error.strerror or error}"

    def stop(self) -> None:
        """End the process: the command has ended."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _spawn(self, session: Path, target: str, *descriptors: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-IS", "-c", _CODE, import_path(), str(session.resolve()), target],
            env={**outer_environment(), "OPENBLAS_NUM_THREADS": "1"},
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=descriptors,
            start_new_session=True,
        )


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(16)
    except OSError:
        listening.close()
        raise
    return listening
