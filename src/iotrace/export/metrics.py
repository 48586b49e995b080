"""Runs that go on, in the text format of Prometheus and OpenMetrics.

The process of `iotrace run --metrics`: looks at the session when it is asked, or for a file now and then.

Its standard input is a pipe that the launcher holds open: when that closes, the command has ended.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from iotrace.analysis.results.top import Top
from iotrace.analysis.top import Watch
from iotrace.errors import IotraceError
from iotrace.session.hangs import read_status
from iotrace.sources.live.session import LiveSession

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_HUNG = ("hung", "computing")
_RANK = ("session", "rank")


class Gauge(NamedTuple):
    """What a gauge says, and its labels."""

    text: str
    labels: Sequence[str]


GAUGES = {
    "iotrace_step_seconds": Gauge("Mean length of the newest measured steps.", _RANK),
    "iotrace_steps_per_second": Gauge("Measured steps per second.", _RANK),
    "iotrace_wait_ratio": Gauge("Share of the steps in which the loop waited for data.", _RANK),
    "iotrace_wait_seconds": Gauge("Wait for data per step.", _RANK),
    "iotrace_wait_cause_seconds": Gauge("Wait for data per step, by cause.", (*_RANK, "cause")),
    "iotrace_read_bytes_per_second": Gauge("Bytes that the rank's processes read per second.", _RANK),
    "iotrace_device_busy_ratio": Gauge("Utilisation of the accelerator.", (*_RANK, "device")),
    "iotrace_hung": Gauge("1 if the run hangs, or computes in one place without a batch.", ("session",)),
}


def metrics_text(seen: Iterable[tuple[str, Top, str]]) -> bytes:
    """Write gauges of sessions: their names, what was seen of them last, their states.

    What is not known has no sample.
    """
    samples: dict[str, list[str]] = {name: [] for name in GAUGES}
    for session, top, state in seen:
        own = [("iotrace_hung", [], float(state in _HUNG)), *_of_ranks(top)]
        for name, labels, value in own:
            if value is not None:
                samples[name].append(_sample(name, [session, *labels], value))
    lines = []
    for name, gauge in GAUGES.items():
        lines += [f"# HELP {name} {gauge.text}", f"# TYPE {name} gauge", *samples[name]]
    return ("\n".join([*lines, "# EOF"]) + "\n").encode(errors="replace")


def _sample(name: str, values: Sequence[str], value: float) -> str:
    pairs = zip(GAUGES[name].labels, values, strict=True)
    labels = ",".join(f'{label}="{_escaped(text)}"' for label, text in pairs)
    return f"{name}{{{labels}}} {value!r}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _of_ranks(top: Top) -> Iterator[tuple[str, list[str], float | None]]:
    for each in top.ranks:
        rank, wait = [str(each.rank)], each.data_wait
        yield "iotrace_step_seconds", rank, _seconds(each.steps.mean_ms)
        yield "iotrace_steps_per_second", rank, each.steps.per_second
        yield "iotrace_wait_ratio", rank, wait.raw_wait_fraction
        yield "iotrace_wait_seconds", rank, _seconds(wait.raw_ms)
        for cause, cost_ms in wait.causes_ms.items():
            yield "iotrace_wait_cause_seconds", [*rank, cause], cost_ms / 1e3
        read = [own.read_bytes_per_s for own in each.processes if own.read_bytes_per_s is not None]
        yield "iotrace_read_bytes_per_second", rank, sum(read) if read else None
        for gpu in each.gpus:
            busy = None if gpu.util_pct is None else gpu.util_pct / 100
            yield "iotrace_device_busy_ratio", [*rank, str(gpu.index)], busy


def _seconds(time_ms: float | None) -> float | None:
    return None if time_ms is None else time_ms / 1e3


_FILE_EVERY_S = 15.0
_FRESH_S = 1.0  # what is not older is said again
_PATIENCE_S = 10.0  # for who asks
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_FILE_MODE = 0o644  # the collector runs as somebody else


class Seen:
    """The newest look at a session; several threads may ask."""

    def __init__(self, session: Path) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._watch: Watch | None = None
        self._at = -_FRESH_S
        self._text = metrics_text([])

    def text(self) -> bytes:
        """Return the metrics as they are now; without any sample where nothing can be read."""
        with self._lock:
            if time.monotonic() - self._at >= _FRESH_S:
                self._text = self._look()
                self._at = time.monotonic()
            return self._text

    def _look(self) -> bytes:
        try:
            self._watch = self._watch or Watch(LiveSession(self._session))
            top = self._watch.look()
            return metrics_text([(self._session.name, top, read_status(self._session).state)])
        except (IotraceError, OSError):
            return metrics_text([])


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, listening: socket.socket, seen: Seen) -> None:
        address = listening.getsockname()
        super().__init__(address, _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket, self.seen = listening, seen
        self.is_loopback = address[0] in _LOOPBACK


class _Handler(BaseHTTPRequestHandler):
    timeout = _PATIENCE_S
    server: _Server

    def do_GET(self) -> None:
        """Answer with the metrics."""
        # A page elsewhere can make its own name lead here: such a name is not answered.
        with suppress(ValueError):
            name = urlsplit(f"//{self.headers.get('Host', '')}").hostname
            if self.server.is_loopback and name not in _LOOPBACK:
                self._say(HTTPStatus.FORBIDDEN, b"This server does not answer to that name.\n", "text/plain")
            elif self.path.partition("?")[0] != "/metrics":
                self._say(HTTPStatus.NOT_FOUND, b"The metrics are at /metrics.\n", "text/plain")
            else:
                self._say(HTTPStatus.OK, self.server.seen.text(), CONTENT_TYPE)

    def _say(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Write no log: standard error is nobody's."""


def main(arguments: list[str]) -> None:
    """``SESSION FILE`` or ``SESSION DESCRIPTOR``, of a socket that listens: give metrics."""
    session, target = arguments
    seen = Seen(Path(session))
    if target.isdecimal():
        server = _Server(socket.socket(fileno=int(target)), seen)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        select.select([0], [], [])
    else:
        _write_until_the_end(Path(target), seen)
    sys.stdout.flush()
    os._exit(0)  # threads may still answer


def _write_until_the_end(path: Path, seen: Seen) -> None:
    """Replace the file as a whole now and then; a run that has ended has none."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        while True:
            with suppress(OSError):  # the disk is full, say: what is there gets old, which its time shows
                temporary.unlink(missing_ok=True)
                descriptor = os.open(temporary, _NEW, _FILE_MODE)
                with open(descriptor, "wb") as file:
                    os.fchmod(descriptor, _FILE_MODE)
                    file.write(seen.text())
                temporary.replace(path)
            if select.select([0], [], [], _FILE_EVERY_S)[0]:
                return
    finally:
        for made in (temporary, path):
            with suppress(OSError):
                made.unlink(missing_ok=True)
