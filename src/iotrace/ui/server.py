"""The server's process: its port, the address that is told, and its end."""

from __future__ import annotations

import asyncio
import errno
import os
import platform
import socket
import sys
import tempfile
import webbrowser
from collections.abc import Sequence
from pathlib import Path

import uvicorn

from iotrace.errors import IotraceError
from iotrace.report.printing import echo
from iotrace.session.serving import LOOPBACK, announced, tunnel_to
from iotrace.ui.access import is_loopback
from iotrace.ui.app import application

_TRIES = 50


class _Server(uvicorn.Server):
    """Without the tick of ten times a second, which only adds a date to answers."""

    async def main_loop(self) -> None:
        while not self.should_exit:
            await asyncio.sleep(0.5)


def serve(roots: Sequence[Path], host: str, port: int, token: str, read_only: bool, browser: bool) -> None:
    """Serve until a signal ends it; says where."""
    listening, used = _listen(host, port)
    with listening, tempfile.TemporaryDirectory(prefix="iotrace-ui-") as directory:
        app = application(roots, token, host, read_only, Path(directory))
        config = uvicorn.Config(
            app,
            log_level="error",
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            lifespan="on",
            timeout_graceful_shutdown=2,
        )
        if port not in (0, used):
            echo(f"iotrace: port {port} is in use: {used} is the next free one", err=True)
        address = _address(host, used)
        _tell(roots, address, token, browser)
        with announced(address, roots):
            _Server(config).run([listening])


def _listen(host: str, port: int) -> tuple[socket.socket, int]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for tried in range(port, port + _TRIES if port else 1):
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, tried))
            listening.listen(128)
            return listening, listening.getsockname()[1]
        except (OSError, OverflowError) as error:
            listening.close()
            number = error.errno if isinstance(error, OSError) else None
            if number != errno.EADDRINUSE:
                why = error.strerror if isinstance(error, OSError) else "there is no such port"
                raise IotraceError(f"cannot listen on {host}:{tried}: {why}", "choose --port N") from error
    raise IotraceError(f"ports {port} to {port + _TRIES - 1} are in use", "choose another --port N")


def _address(host: str, port: int) -> str:
    name = LOOPBACK if is_loopback(host) else host if host not in ("0.0.0.0", "::") else platform.node()
    return f"http://{f'[{name}]' if ':' in name else name}:{port}"


def _tell(roots: Sequence[Path], address: str, token: str, browser: bool) -> None:
    where = f"{address}/?token={token}"
    echo(f"serves  {', '.join(map(str, roots))}", f"open    {where}")
    if tunnel := tunnel_to(address):
        echo(f"first   {tunnel}     where the browser is")
    elif browser and sys.stdout.isatty() and (sys.platform == "darwin" or os.environ.get("DISPLAY")):
        webbrowser.open(where)
    echo("until   Ctrl-C")
    sys.stdout.flush()
