"""What is shown of a run: its report, its views, their files, its timeline; and two runs compared."""

from __future__ import annotations

import asyncio
import mimetypes
import re
import secrets
from http import HTTPStatus
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, RedirectResponse, Response

from iotrace.errors import IotraceError
from iotrace.report.views import VIEWS
from iotrace.ui import pages
from iotrace.ui.answers import PATIENCE_S, RefusedError, find_entry, html, report_task, unfinished
from iotrace.ui.index import Entry, Index
from iotrace.ui.jobs import Job, Jobs
from iotrace.ui.places import BASELINE, SESSION, SWEEP, TRACE, TUNE
from iotrace.ui.tasks import (
    COMPARISON,
    PAGE,
    REPORT,
    SWEEP as A_SWEEP,
    TIMELINE,
    TRACE as TRACE_FILE,
    Done,
    Shown,
    Task,
    decoded,
)
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
_KINDS = {"json": "application/json", "csv": "text/csv; charset=utf-8"}


class Runs:
    """Pages of what the list holds."""

    def __init__(self, index: Index, jobs: Jobs, read_only: bool) -> None:
        self._index, self._jobs, self._read_only = index, jobs, read_only

    async def show(self, request: Request) -> Response:
        """Show a run's report, one of its views, or how it goes."""
        entry = await find_entry(self._index, request.query_params.get("of", ""))
        if entry.is_live:
            return html("live.html", title=entry.key, entry=entry, bar=self._bar(entry, Done(), ""))
        job, name = await self._job(entry), request.query_params.get("view", "")
        if (waiting := unfinished(job, f"The report of {entry.key} is being made")) is not None:
            return waiting
        done = _done(job)
        if done.verdict and entry.headline.verdict_class is None:
            self._index.learn(entry, done.verdict, done.headline)
        if not name:
            text = await asyncio.to_thread((job.directory / PAGE).read_text, errors="replace")
            framed, policy = pages.framed(text, **self._bar(entry, done, ""))
            return HTMLResponse(framed.encode(errors="replace"), headers={"Content-Security-Policy": policy})
        _known(name, done)
        tables = decoded((job.directory / f"{name}.shown").read_bytes(), list[Shown])
        bar = self._bar(entry, done, name)
        return html(
            "view.html", title=f"{name} · {entry.key}", name=name, tables=tables, bar=bar, entry=entry
        )

    async def file(self, request: Request) -> Response:
        """Hand over a report's or a view's JSON, or a view's CSV."""
        entry = await find_entry(self._index, request.query_params.get("of", ""))
        form, name = request.query_params.get("form", "json"), request.query_params.get("view", "")
        if entry.is_live or form not in _KINDS or (form == "csv" and not name):
            raise RefusedError("There is no such file.")
        job = await self._job(entry)
        if (waiting := unfinished(job, f"The report of {entry.key} is being made")) is not None:
            return waiting
        if name:
            _known(name, _done(job))
        file = f"{name or 'report'}.{form}"
        return FileResponse(job.directory / file, media_type=_KINDS[form], filename=file)

    async def compare(self, request: Request) -> Response:
        """Show what changed between two runs, the older one first."""
        keys = list(dict.fromkeys(request.query_params.getlist("of")))
        if len(keys) != 2:
            raise RefusedError("Tick two runs in the list.", HTTPStatus.OK, "Compare two runs")
        both = [await find_entry(self._index, key) for key in keys]
        kinds = {entry.place.kind for entry in both}
        if kinds not in ({SESSION}, {TRACE}) or any(entry.is_live for entry in both):
            what = "Two sessions that have ended can be compared, or two traces."
            raise RefusedError(what, HTTPStatus.OK, "Compare two runs")
        both.sort(key=lambda entry: entry.started_ns or 0)
        paths = [str(entry.place.path) for entry in both]
        timelines = [pages.address("/timeline", of=entry.key) for entry in both]
        task = Task(kind=COMPARISON, paths=paths, traces=kinds == {TRACE}, timelines=timelines)
        job = await self._jobs.get(task, PATIENCE_S)
        if (waiting := unfinished(job, "The runs are being compared")) is not None:
            return waiting
        text = await asyncio.to_thread((job.directory / PAGE).read_text, errors="replace")
        framed, policy = pages.framed(
            text,
            entry=None,
            both=both,
            tabs=[],
            name="",
            files=[],
            deletes=False,
            is_sweep=False,
            has_history=False,
            has_baseline=False,
        )
        return HTMLResponse(framed.encode(errors="replace"), headers={"Content-Security-Policy": policy})

    async def _job(self, entry: Entry) -> Job:
        path, kind = str(entry.place.path), entry.place.kind
        if kind == BASELINE:
            task = Task(kind=REPORT, baselines=[path])
        else:
            task = Task(kind=A_SWEEP, paths=[path]) if kind in (SWEEP, TUNE) else report_task(entry)
        return await self._jobs.get(task, PATIENCE_S)

    def _bar(self, entry: Entry, done: Done, name: str) -> dict[str, object]:
        """What the bar on top of each of a run's pages shows."""
        return {
            "entry": entry,
            "both": [],
            "name": name,
            "tabs": [(view, VIEWS[view].shows) for view in done.views],
            "is_sweep": entry.place.kind in (SWEEP, TUNE),
            "has_history": entry.place.kind in (SESSION, BASELINE) and bool(entry.work) and not entry.is_live,
            "has_baseline": entry.place.kind == SESSION
            and not entry.is_live
            and self._index.has_baseline(entry.work),
            "files": [] if entry.is_live else ["json", "csv"] if name else ["json"],
            "deletes": not self._read_only and entry.place.kind == SESSION and not entry.is_live,
        }


def _done(job: Job) -> Done:
    assert job.done is not None
    return job.done


def _known(name: str, done: Done) -> None:
    """A view's name becomes that of a file: it has to be one of the report's."""
    if name not in done.views:
        raise RefusedError(f"This run has no view {name}.")


class Timelines:
    """Makes a timeline when it is asked for, and shows it at a step, a batch or a time.

    Perfetto's own pages show it where they are installed, else it is handed over to ui.perfetto.dev.
    """

    def __init__(self, index: Index, jobs: Jobs) -> None:
        self._index, self._jobs = index, jobs

    async def begin(self, request: Request) -> Response:
        """Make the timeline of a run, then go to its page."""
        entry = await find_entry(self._index, request.query_params.get("of", ""))
        if entry.place.kind not in (SESSION, TRACE) or entry.is_live:
            raise RefusedError("Only a session that has ended has a timeline, or a trace.")
        at = {name: request.query_params[name] for name in _PLACES if request.query_params.get(name)}
        if any(not _PLACES[name].fullmatch(value) for name, value in at.items()):
            raise RefusedError("A step is a number, as a batch and a time are.")
        task = Task(kind=TIMELINE, paths=[str(entry.place.path)], traces=entry.place.kind == TRACE, at=at)
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
        body = page("iotrace", view.what, TRACE_FILE, view.fragment(), nonce)
        return HTMLResponse(body, headers={"Content-Security-Policy": policy})

    async def trace(self, request: Request) -> Response:
        """Hand the timeline over."""
        return FileResponse(self._job(request).directory / TRACE_FILE, media_type="application/octet-stream")

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
