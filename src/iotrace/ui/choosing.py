"""What of the list is shown, in which order; and which of its runs are of one program."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from iotrace.session.liveness import ENDED
from iotrace.ui.index import FAILED, HANGS, Entry
from iotrace.ui.places import SESSION


class Query(NamedTuple):
    """What of the list is asked for, as its address says it; `within` is a sweep whose runs are."""

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
    """Choose and sort; what is not known stands last in either order."""
    words = query.text.lower().split()
    found = [
        each
        for each in entries
        if (not query.within or each.key.startswith(f"{query.within}/"))
        and (not query.verdict or each.headline.verdict_class == query.verdict)
        and (not query.state or each.state == query.state)
        and all(word in _text(each) for word in words)
    ]
    value = _SORTS.get(query.sort, _SORTS[""])
    known = [each for each in found if value(each) is not None]
    known.sort(key=value, reverse=query.order != "up")
    return known + [each for each in found if value(each) is None]


def _text(entry: Entry) -> str:
    parts = (entry.key, entry.program, entry.verdict, entry.headline.why, entry.host, entry.problem)
    return " ".join(filter(None, parts)).lower()


def histories(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    """Return the runs of each program that have ended, by time: their work is one, as comparisons have it.

    None of a sweep, a tune or a trial: these differ by what was tried.
    """
    found: dict[str, list[Entry]] = {}
    for each in entries:
        ended = each.state in (ENDED, FAILED) and each.started_ns is not None
        if each.place.kind == SESSION and ended and each.work and not each.place.in_series:
            found.setdefault(each.work, []).append(each)
    for runs in found.values():
        runs.sort(key=lambda each: each.started_ns or 0)
    return found
