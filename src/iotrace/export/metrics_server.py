"""The process of `iotrace run --metrics`: looks at the session when it is asked, or for a file now and then.

Its standard input is a pipe that the launcher holds open: when that closes, the command has ended.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import threading
import time
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from iotrace.analysis.top import Watch
from iotrace.errors import IotraceError
from iotrace.export.metrics import CONTENT_TYPE, metrics_text
from iotrace.session.hangs import status_of
from iotrace.sources.live.session import LiveSession

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
            found = self._watch.look()
            return metrics_text([(self._session.name, found, status_of(self._session).state)])
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
                descriptor = os.open(
                    temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _FILE_MODE
                )
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
