"""The list of runs, and the deletion of one after a question."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from iotrace.errors import IotraceError
from iotrace.session.listing import delete_sessions
from iotrace.ui.answers import RefusedError, form_of, found, html
from iotrace.ui.choosing import Query, chosen, histories
from iotrace.ui.index import Entry, Index
from iotrace.ui.places import SESSION
from iotrace.ui.trend import Lines, lines_of

_ROWS = 200  # of a page
_TREND_PX = (96.0, 26.0)


class Lists:
    """What is served, filtered and sorted as the address says."""

    def __init__(self, index: Index) -> None:
        self._index = index

    async def show(self, request: Request) -> Response:
        """Show the list."""
        asked = request.query_params
        query = Query(**{name: asked.get(name, default) for name, default in Query()._asdict().items()})
        entries = await asyncio.to_thread(self._index.entries)
        rows = await asyncio.to_thread(chosen, entries, query)
        known = await asyncio.to_thread(histories, entries)
        pages = max(1, -(-len(rows) // _ROWS))
        number = asked.get("page", "")
        page = min(pages, max(1, int(number))) if number.isdecimal() and len(number) < 9 else 1
        shown = rows[(page - 1) * _ROWS : page * _ROWS]
        return html(
            "list.html",
            title="Runs",
            query=query,
            rows=shown,
            trends=self._trends(shown, known),
            found=len(rows),
            count=len(entries),
            page=page,
            pages=pages,
            verdicts=sorted(Counter(filter(None, (each.headline.verdict_class for each in entries))).items()),
            states=sorted(Counter(filter(None, (each.state for each in entries))).items()),
        )

    def _trends(self, rows: Sequence[Entry], known: dict[str, list[Entry]]) -> dict[str, Lines | None]:
        """Draw the runs of each row's program."""
        programs = {each.work for each in rows if each.work in known}
        return {each: lines_of(known[each], self._index.standings, *_TREND_PX) for each in programs}

    async def ask(self, request: Request) -> Response:
        """Ask whether a session shall be deleted."""
        entry = await self._deletable(request.query_params.get("of", ""))
        return html("delete.html", title="Delete a session", entry=entry)

    async def delete(self, request: Request) -> Response:
        """Delete a session."""
        entry = await self._deletable((await form_of(request)).get("of", ""))
        path = entry.place.path
        try:
            await asyncio.to_thread(delete_sessions, path.parent, [path.name])
        except IotraceError as error:
            raise RefusedError(f"{error}. {error.remedy}", HTTPStatus.OK, "Not deleted") from error
        self._index.forget()
        return RedirectResponse("/", HTTPStatus.SEE_OTHER)

    async def _deletable(self, key: str) -> Entry:
        entry = await found(self._index, key)
        if entry.place.kind != SESSION or entry.is_live:
            raise RefusedError("Only a session that has ended can be deleted.", HTTPStatus.OK, "Not deleted")
        return entry
