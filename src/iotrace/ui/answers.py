"""Answers that several addresses give: a page, why there is none, that it is being made."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from iotrace.ui import pages
from iotrace.ui.index import Entry, Index
from iotrace.ui.jobs import Job
from iotrace.ui.places import TRACE
from iotrace.ui.tasks import REPORT, Task

# How long a page is waited for before one says that it is being made.
PATIENCE_S = 2.0
_MOST_FORM_BYTES = 1 << 16


class RefusedError(Exception):
    """What is asked for is not there, or cannot be shown: a sentence for its page."""

    def __init__(
        self, text: str, status: HTTPStatus = HTTPStatus.NOT_FOUND, title: str = "Not there"
    ) -> None:
        super().__init__(text)
        self.text, self.status, self.title = text, status, title


async def find_entry(index: Index, key: str) -> Entry:
    """Return what the list calls `key`.

    Raises:
        RefusedError: there is nothing of that name, or nothing of it can be read.
    """
    entry = await asyncio.to_thread(index.get, key)
    if entry is None:
        raise RefusedError(f"There is no {key} in the list. It may have been deleted, or renamed.")
    if entry.problem is not None:
        raise RefusedError(f"{key}: {entry.problem}", HTTPStatus.OK, "Not readable")
    return entry


def report_task(entry: Entry) -> Task:
    """Ask for the report of a session or a trace, whose page leads to its timeline."""
    timelines = [pages.address("/timeline", of=entry.key)]
    path = str(entry.place.path)
    return Task(kind=REPORT, paths=[path], traces=entry.place.kind == TRACE, timelines=timelines)


async def read_form(request: Request) -> dict[str, str]:
    """Read what a page's form sends.

    Raises:
        RefusedError: it is too long to be one of ours.
    """
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > _MOST_FORM_BYTES:
            raise RefusedError("That is too long for a form.", HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
    return dict(parse_qsl(body.decode(errors="replace")))


def refused(_: Request, error: Exception) -> Response:
    """Say why something is not shown."""
    assert isinstance(error, RefusedError)
    return html("message.html", error.status, title=error.title, text=error.text)


def html(template: str, status: HTTPStatus = HTTPStatus.OK, **shown: Any) -> Response:
    """Answer with a page of ours."""
    return HTMLResponse(pages.page(template, **shown).encode(errors="replace"), status)


def unfinished(job: Job, what: str) -> Response | None:
    """Say that `what` is being made, on a page that asks again; None where it is there.

    Raises:
        RefusedError: it could not be made.
    """
    if job.done is None:
        return html("waiting.html", HTTPStatus.ACCEPTED, title=what, text=what)
    if job.done.problem:
        raise RefusedError(job.done.problem, HTTPStatus.OK, "Not shown")
    return None
