"""Timelines in Perfetto: its own pages where they are installed, else handed over to ui.perfetto.dev."""

from __future__ import annotations

import mimetypes
import re
import secrets
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, RedirectResponse, Response

from iotrace.errors import IotraceError
from iotrace.ui.answers import PATIENCE_S, RefusedError, found, unfinished
from iotrace.ui.index import Index
from iotrace.ui.jobs import Job, Jobs
from iotrace.ui.places import SESSION, TRACE as A_TRACE
from iotrace.ui.tasks import TIMELINE, TRACE, Task
from iotrace.viewer.server import UI_POLICY, page, perfetto_ui

_NUMBER = re.compile(r"\d{1,12}(\.\d{1,9})?")
_WHOLE = re.compile(r"\d{1,12}")
_PLACES = {
    "at": _NUMBER,
    "batch": _WHOLE,
    "around": re.compile(r"worst|failure|\d{1,12}"),
    "rank": re.compile(r"\d{1,6}"),
    "file": re.compile(r"(?s).{1,4096}"),  # compared with names that were recorded, and never opened
}


class Timelines:
    """Makes a timeline when it is asked for, and shows it at a step, a batch or a time."""

    def __init__(self, index: Index, jobs: Jobs) -> None:
        self._index, self._jobs = index, jobs

    async def begin(self, request: Request) -> Response:
        """Make the timeline of a run, then go to its page."""
        entry = await found(self._index, request.query_params.get("of", ""))
        if entry.place.kind not in (SESSION, A_TRACE) or entry.is_live:
            raise RefusedError("Only a session that has ended has a timeline, or a trace.")
        at = {name: request.query_params[name] for name in _PLACES if request.query_params.get(name)}
        if any(not _PLACES[name].fullmatch(value) for name, value in at.items()):
            raise RefusedError("A step is a number, as a batch and a time are.")
        task = Task(kind=TIMELINE, paths=[str(entry.place.path)], traces=entry.place.kind == A_TRACE, at=at)
        job = await self._jobs.get(task, PATIENCE_S)
        waiting = unfinished(job, f"The timeline of {entry.key} is being made")
        return waiting or RedirectResponse(f"/timeline/{job.name}/", 303)

    async def page(self, request: Request) -> Response:
        """Show Perfetto, or the page that opens it."""
        job = self._job(request)
        assert job.done is not None
        assert job.done.view is not None
        view = job.done.view
        if _perfetto() is not None:
            url = f"http://{request.headers['host']}/timeline/{job.name}/trace"
            return RedirectResponse(f"/timeline/{job.name}/ui/{view.fragment(url=url)}", 303)
        nonce = secrets.token_urlsafe(16)
        policy = (
            f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        body = page("iotrace", view.what, TRACE, view.fragment(), nonce)
        return HTMLResponse(body, headers={"Content-Security-Policy": policy})

    async def trace(self, request: Request) -> Response:
        """Hand the timeline over."""
        return FileResponse(self._job(request).directory / TRACE, media_type="application/octet-stream")

    async def perfetto(self, request: Request) -> Response:
        """Hand over a file of Perfetto's pages."""
        self._job(request)
        ui, name = _perfetto(), request.path_params["name"] or "index.html"
        path = None if ui is None else (ui / name).resolve()
        if ui is None or path is None or not path.is_relative_to(ui.resolve()) or not path.is_file():
            raise RefusedError("There is no such file.")
        kind = "application/wasm" if path.suffix == ".wasm" else mimetypes.guess_type(name)[0]
        headers = {"Content-Security-Policy": UI_POLICY}
        return FileResponse(path, media_type=kind or "application/octet-stream", headers=headers)

    def _job(self, request: Request) -> Job:
        job = self._jobs.named(request.path_params["job"])
        if job is None or job.done is None or job.done.view is None:
            raise RefusedError("This timeline is no longer kept. Open it again from its run.")
        return job


def _perfetto() -> Path | None:
    try:
        return perfetto_ui()
    except IotraceError:
        return None
