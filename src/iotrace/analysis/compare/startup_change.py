"""What the program does before its loop, where it takes longer than before, or less."""

from __future__ import annotations

import re

from iotrace.analysis.compare.basis import Rank, Startup
from iotrace.analysis.compare.results import StartupChange, StartupPartChange
from iotrace.analysis.compare.spread import differ, spread_of
from iotrace.analysis.host.disturbance import grown_beside_others
from iotrace.analysis.results import START_UP, Trust
from iotrace.analysis.startup.waterfall import PICKLING, WORKERS

_WORTH = 0.1  # of the longer run
_OF_PARTS = 0.1  # of the parts that changed, to be named
# The loop has these, and the first start of its workers, which is no part of the start-up.
_LATER = re.compile(rf"first (batch|step)|{WORKERS}|{PICKLING}")
_INSIDE = re.compile(r"\.<locals>[^(]*(?=$| )")  # a function of its own inside another
_UNNAMED = "not named"


def startup_change(ranks: tuple[Rank, Rank], trusts: tuple[Trust, Trust]) -> StartupChange | None:
    """Compare the start-ups; None unless parts that changed beyond chance make a tenth of a run.

    Beside others a part changed where it did so by more than times may have grown beside them.
    """
    one, other = (rank.account for rank in ranks)
    startups = [rank.startup for rank in ranks]
    if one is None or other is None or startups[0] is None or startups[1] is None:
        return None
    seconds = [account.part_ns(START_UP) / 1e9 for account in (one, other)]
    parts = [_parts(startup) for startup in startups if startup is not None]
    if not all(seconds) or not all(parts):
        return None
    grown = grown_beside_others([rank.system.host for rank in ranks], "wall")
    spreads = [spread_of(trust) for trust in trusts]
    pairs = {name: [own.get(name, 0.0) for own in parts] for name in {**parts[0], **parts[1]}}
    least = _WORTH * max(one.whole_ns, other.whole_ns) / 1e9
    changed = [
        StartupPartChange(what=name, seconds=pair)
        for name, pair in pairs.items()
        if name != _UNNAMED
        and (pair[1] < pair[0]) == (seconds[1] < seconds[0])
        and differ(pair, spreads)
        and max(pair) > (1 + grown) * min(pair)
    ]
    by = sum(abs(part.seconds[1] - part.seconds[0]) for part in changed)
    if by < least or abs(seconds[1] - seconds[0]) < least:
        return None
    named = [part for part in changed if abs(part.seconds[1] - part.seconds[0]) >= _OF_PARTS * by]
    named.sort(key=lambda part: -abs(part.seconds[1] - part.seconds[0]))
    return StartupChange(seconds=seconds, parts=named)


def _parts(startup: Startup) -> dict[str, float]:
    """Sum up the seconds before the loop by name."""
    found: dict[str, float] = {}
    for part in startup.parts:
        if not _LATER.match(part.name):
            name = _INSIDE.sub("", part.name)
            found[name] = found.get(name, 0.0) + part.seconds
    return found
