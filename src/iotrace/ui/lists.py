"""The list of runs: which it shows, in which order, which are of one program; and the deletion of one."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from iotrace.errors import IotraceError
from iotrace.session.listing import delete_sessions
from iotrace.session.liveness import ENDED
from iotrace.ui.answers import RefusedError, find_entry, html, read_form
from iotrace.ui.index import FAILED, HANGS, Entry, Index
from iotrace.ui.places import SESSION
from iotrace.ui.trend import Lines, draw_lines

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
        return {each: draw_lines(known[each], self._index.standings, *_TREND_PX) for each in programs}

    async def ask(self, request: Request) -> Response:
        """Ask whether a session shall be deleted."""
        entry = await self._deletable(request.query_params.get("of", ""))
        return html("delete.html", title="Delete a session", entry=entry)

    async def delete(self, request: Request) -> Response:
        """Delete a session."""
        entry = await self._deletable((await read_form(request)).get("of", ""))
        path = entry.place.path
        try:
            await asyncio.to_thread(delete_sessions, path.parent, [path.name])
        except IotraceError as error:
            raise RefusedError(f"{error}. {error.remedy}", HTTPStatus.OK, "Not deleted") from error
        self._index.forget()
        return RedirectResponse("/", HTTPStatus.SEE_OTHER)

    async def _deletable(self, key: str) -> Entry:
        entry = await find_entry(self._index, key)
        if entry.place.kind != SESSION or entry.is_live:
            raise RefusedError("Only a session that has ended can be deleted.", HTTPStatus.OK, "Not deleted")
        return entry


class Query(NamedTuple):
    """What to show of the list, by its address; `within` is the sweep whose runs to show."""

    text: str = ""
    within: str = ""
    verdict: str = ""
    state: str = ""
    sort: str = ""
    order: str = "down"


_SORTS: dict[str, Callable[[Entry], Any]] = {
    "": lambda each: (each.state in HANGS, each.is_live, each.started_ns or 0),  # what goes on comes first
    "name": lambda each: each.key,
    "verdict": lambda each: each.headline.verdict_class,
    "state": lambda each: each.state,
    "wait": lambda each: each.headline.wait_fraction,
    "step": lambda each: each.headline.step_ms,
    "rate": lambda each: each.headline.steps_per_second,
    "started": lambda each: each.started_ns,
    "took": lambda each: each.seconds,
    "host": lambda each: each.host,
    "ranks": lambda each: each.headline.ranks,
    "size": lambda each: each.bytes,
}


def chosen(entries: Iterable[Entry], query: Query) -> list[Entry]:
    """Choose and sort; what is not known comes last in either order."""
    words = query.text.lower().split()
    shown = [
        each
        for each in entries
        if (not query.within or each.key.startswith(f"{query.within}/"))
        and (not query.verdict or each.headline.verdict_class == query.verdict)
        and (not query.state or each.state == query.state)
        and all(word in _text(each) for word in words)
    ]
    value = _SORTS.get(query.sort, _SORTS[""])
    known = [each for each in shown if value(each) is not None]
    known.sort(key=value, reverse=query.order != "up")
    return known + [each for each in shown if value(each) is None]


def _text(entry: Entry) -> str:
    parts = (entry.key, entry.program, entry.verdict, entry.headline.why, entry.host, entry.problem)
    return " ".join(filter(None, parts)).lower()


def histories(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    """Return the ended runs of each program, by time: runs that comparisons see as the same work.

    None of a sweep, a tune or a trial: these differ by what was tried.
    """
    by_work: dict[str, list[Entry]] = {}
    for each in entries:
        ended = each.state in (ENDED, FAILED) and each.started_ns is not None
        if each.place.kind == SESSION and ended and each.work and not each.place.in_series:
            by_work.setdefault(each.work, []).append(each)
    for runs in by_work.values():
        runs.sort(key=lambda each: each.started_ns or 0)
    return by_work
