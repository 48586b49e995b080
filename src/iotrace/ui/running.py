"""Runs that go on: events for their pages, and metrics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from iotrace.report.words import soon
from iotrace.ui import pages
from iotrace.ui.answers import found
from iotrace.ui.index import Entry, Index
from iotrace.ui.live import Feeds, Look
from iotrace.ui.metrics import KIND, metrics_text

_FIRST_LOOK_S = 4.0


class Running:
    """What is seen of runs that go on."""

    def __init__(self, index: Index, feeds: Feeds) -> None:
        self._index, self._feeds = index, feeds

    async def events(self, request: Request) -> Response:
        """Send what a run's page shows whenever it has changed, and at last that the run is over."""
        entry = await found(self._index, request.query_params.get("of", ""))
        return StreamingResponse(self._events(entry), media_type="text/event-stream")

    async def _events(self, entry: Entry) -> AsyncIterator[bytes]:
        if not entry.is_live:
            yield _event("over", "")
            return
        async for look in self._feeds.follow(entry.place.path):
            if look.top is not None:
                shown = pages.page("look.html", top=look.top, hang=look.hang, soon=soon(look.top.forecasts))
                yield _event("look", shown)
        yield _event("over", "")

    async def metrics(self, _: Request) -> Response:
        """Write the live runs' figures for Prometheus; a run has them from the second look on."""
        entries = await asyncio.to_thread(self._index.entries)
        looks = {each.key: self._feeds.of(each.place.path) for each in entries if each.is_live}
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.gather(*map(_seen, looks.values())), _FIRST_LOOK_S)
        seen = [(key, look.top, look.state) for key, look in looks.items() if look.top is not None]
        return Response(metrics_text(seen), headers={"Content-Type": KIND})


async def _seen(look: Look) -> None:
    async with look.news:
        while look.top is None and not look.over:
            await look.news.wait()


def _event(name: str, text: str) -> bytes:
    lines = "".join(f"data: {line}\n" for line in text.split("\n"))
    return f"event: {name}\n{lines}\n".encode(errors="replace")
