"""Runs that go on: events for their pages, and metrics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from iotrace.analysis.pulse import SECONDS, Pulse, RankPulse
from iotrace.analysis.results.top import Top, TopRank
from iotrace.export.metrics import CONTENT_TYPE, metrics_text
from iotrace.report.page.charts import HEIGHT, bars
from iotrace.report.words import forecast_texts
from iotrace.ui import pages
from iotrace.ui.answers import find_entry
from iotrace.ui.index import HANGS, Entry, Index
from iotrace.ui.live import Feeds, Look

_FIRST_LOOK_S = 4.0
_MOST_RANKS = 8  # that are drawn every second
_STILL_THERE = b":\n\n"  # tells a connection that is gone from one without news
_LEAST_BARS = 25  # that the strip of steps has room for


class Running:
    """What is seen of runs that go on."""

    def __init__(self, index: Index, feeds: Feeds) -> None:
        self._index, self._feeds = index, feeds

    async def events(self, request: Request) -> Response:
        """Send what a run's page shows whenever it has changed, and at last that the run is over."""
        entry = await find_entry(self._index, request.query_params.get("of", ""))
        return StreamingResponse(self._events(entry), media_type="text/event-stream")

    async def _events(self, entry: Entry) -> AsyncIterator[bytes]:
        if not entry.is_live:
            yield _event("over", "")
            return
        number, pulse = 0, None
        async for look in self._feeds.follow(entry.place.path):
            # A pulse is small: the whole page comes only when something was analysed, or hangs.
            news = b""
            if look.top is not None and look.number != number:
                news = _event("look", self._shown(look, look.top))
                number = look.number
            if look.pulse is not None and look.pulse is not pulse:
                pulse = look.pulse
                news += _event("pulse", _pulse_shown(pulse, look.top))
            yield news or _STILL_THERE
        yield _event("over", "")

    def _shown(self, look: Look, top: Top) -> str:
        steps = [_strip(rank) for rank in top.ranks if rank.last_steps_ms]
        return pages.page(
            "look.html",
            top=top,
            state=look.state if look.state in HANGS else top.state,
            hang=look.hang,
            hangs=look.state in HANGS,
            stacks=look.stacks,
            holds_up=look.holds_up,
            soon=forecast_texts(top.forecasts),
            strip=steps[0] if steps else None,
            most_ranks=_MOST_RANKS,
        )

    async def metrics(self, _: Request) -> Response:
        """Write the live runs' figures for Prometheus; a run has them from the second look on."""
        entries = await asyncio.to_thread(self._index.entries)
        looks = {each.key: self._feeds.of(each.place.path) for each in entries if each.is_live}
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.gather(*map(_seen, looks.values())), _FIRST_LOOK_S)
        seen = [(key, look.top, look.state) for key, look in looks.items() if look.top is not None]
        return Response(metrics_text(seen), headers={"Content-Type": CONTENT_TYPE})


def _strip(rank: TopRank) -> dict[str, Any]:
    """Draw the newest steps, the oldest on the left: what each waited at the bottom, the rest above it."""
    steps_ms, waits_ms = rank.last_steps_ms, rank.last_waits_ms or [0.0] * len(rank.last_steps_ms)
    rest_ms = [max(0.0, step - wait) for step, wait in zip(steps_ms, waits_ms, strict=True)]
    wait, rest = bars([waits_ms, rest_ms], max(steps_ms) or 1.0)
    return {
        "count": len(steps_ms),
        "width": max(len(steps_ms), _LEAST_BARS),
        "height": HEIGHT,
        "wait": wait,
        "rest": rest,
        "most_ms": max(steps_ms),
        "least_ms": min(steps_ms),
        "known": bool(rank.last_waits_ms),
    }


def _pulse_shown(pulse: Pulse, top: Top | None) -> str:
    """Draw the seconds of each rank: what share of each the loop waited; the rank of the verdict first."""
    first = top.verdict.rank if top is not None and top.verdict is not None else None
    ranks = sorted(pulse.ranks, key=lambda each: (each.rank != first, -(each.age_s or 0.0)))[:_MOST_RANKS]
    return pages.page("pulse.html", ranks=[_seconds(each) for each in ranks], seconds=SECONDS, height=HEIGHT)


def _seconds(rank: RankPulse) -> dict[str, Any]:
    waits = [wait or 0.0 for wait in rank.waits]
    rest = [0.0 if wait is None else max(0.0, 1.0 - wait) for wait in rank.waits]
    wait, others = bars([waits, rest], 1.0)
    newest = rank.newest
    return {
        "rank": rank.rank,
        "host": rank.host,
        "wait": wait,
        "rest": others,
        "age_s": rank.age_s,
        "batches": None if newest is None else rank.batches[newest],
        "wait_fraction": None if newest is None else rank.waits[newest],
    }


async def _seen(look: Look) -> None:
    async with look.news:
        while look.top is None and not look.over:
            await look.news.wait()


def _event(name: str, text: str) -> bytes:
    lines = "".join(f"data: {line}\n" for line in text.split("\n"))
    return f"event: {name}\n{lines}\n".encode(errors="replace")
