"""The server: which address shows what, the words that pages use, its port and its end.

Requests name keys of the list, and never a path.
"""

from __future__ import annotations

import asyncio
import errno
import os
import platform
import socket
import sys
import tempfile
import webbrowser
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from iotrace.errors import IotraceError
from iotrace.report.page.render import WORDS as OF_A_REPORT
from iotrace.report.printing import echo
from iotrace.report.tables import CAUSES
from iotrace.session.serving import LOOPBACK, announced, tunnel_to
from iotrace.ui import pages
from iotrace.ui.access import Guard, is_loopback
from iotrace.ui.answers import RefusedError, html, refused
from iotrace.ui.history import History
from iotrace.ui.index import Index
from iotrace.ui.jobs import Jobs
from iotrace.ui.lists import Lists
from iotrace.ui.live import Feeds
from iotrace.ui.running import Running
from iotrace.ui.runs import Runs, Timelines

_OF_A_LIST = {
    "running": "The run goes on.",
    "hung": "No batch has come for long, and no process computes, reads or writes.",
    "computing": "No batch has come for long, and a process computes in one place of the program.",
    "ended, failed": "The command ended with exit code 0, with another one.",
    "killed": "Nothing of the run lives, and no end was written.",
    "unknown": "The run was started on another host, which alone knows whether it goes on; or a sweep is not "
    "complete.",
    "damaged": "Nothing can be shown: the list says why.",
    "baseline": "A report that later runs of the program are compared with.",
    "waits": "The share of each step in which the loop waits for data.",
    "history": "Solid: steps per second. Dashed: waits. Each point is a run of the same command; the circle "
    "is this run.",
}
_OF_A_HISTORY = {
    "worse": "A stage, a file or the step takes at least 5 % longer than in up to five runs before it, "
    "by more than runs of one program differ.",
    "not clear": "The machine hides whether it got worse: other programs took CPUs, or runs differ as much "
    "by chance.",
    "slower, but perhaps not by the program": "The steps of this run take longer for certain; the machine "
    "may be the reason.",
    "faster": "The step takes less time, beyond chance. Later runs are compared with this one.",
}
WORDS = [
    ("In the list", _OF_A_LIST),
    ("Of a run", OF_A_REPORT),
    ("Causes of a wait", CAUSES),
    ("In a history", _OF_A_HISTORY),
]
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


def application(roots: Sequence[Path], token: str, host: str, read_only: bool, directory: Path) -> Starlette:
    """Make the application that serves `roots`; `directory` is its own, for what analyses make."""
    index, jobs, feeds = Index(roots), Jobs(directory), Feeds(directory)
    lists, runs, timelines = Lists(index), Runs(index, jobs, read_only), Timelines(index, jobs)
    history = History(index, jobs, read_only)
    running = Running(index, feeds)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        first = asyncio.create_task(asyncio.to_thread(index.entries))  # before anybody asks
        try:
            yield
        finally:
            first.cancel()
            await jobs.close()
            await feeds.close()

    routes = [
        Route("/", lists.show),
        Route("/run", runs.show),
        Route("/file", runs.file),
        Route("/compare", runs.compare),
        Route("/history", history.show),
        Route("/check", history.check),
        Route("/live", running.events),
        Route("/words", _words),
        Route("/metrics", running.metrics),
        Route("/timeline", timelines.begin),
        Route("/timeline/{job}/", timelines.page),
        Route("/timeline/{job}/trace", timelines.trace),
        Route("/timeline/{job}/ui/{name:path}", timelines.perfetto),
        Route("/static/ui.css", _style),
        Route("/static/ui.js", _script),
    ]
    if not read_only:
        routes += [Route("/delete", lists.ask), Route("/delete", lists.delete, methods=["POST"])]
        routes += [Route("/baseline", history.set_baseline, methods=["POST"])]
    handlers: dict[Any, Any] = {404: _missing, RefusedError: refused}
    guard = Middleware(Guard, token=token, host=host)
    return Starlette(routes=routes, middleware=[guard], exception_handlers=handlers, lifespan=lifespan)


async def _words(_: Request) -> Response:
    return html("words.html", title="What the words mean", parts=WORDS)


async def _style(_: Request) -> Response:
    return Response(pages.style(), media_type="text/css")


async def _script(_: Request) -> Response:
    return Response(pages.script(), media_type="text/javascript")


async def _missing(_: Request, error: Exception) -> Response:
    return html("message.html", HTTPStatus.NOT_FOUND, title="Not there", text="There is no such page.")
