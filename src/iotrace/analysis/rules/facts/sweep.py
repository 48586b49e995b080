"""What is known of all runs of a sweep or a search: what doubts of its advice rest on."""

from __future__ import annotations

import msgspec


class SweepFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The runs that gave figures, and their points; None is unknown.

    In `disturbed` of the `runs` others took CPUs, in one of them `taken_fraction`. `above` names the fastest
    point above the ceiling. `spread_pct` is the most by which runs of a point differ. `missing` of the
    `points` gave no figures. `is_proven`: of a search, the best and the program's own ran in turns;
    `is_whole`: it ended by itself.
    """

    runs: int = 0
    disturbed: int = 0
    taken_fraction: float | None = None
    others_unknown: bool = False
    above: str | None = None
    fewest_repeats: int | None = None
    spread_pct: float | None = None
    fewest_steps: int | None = None
    tracing_pct: float | None = None
    points: int = 0
    missing: int = 0
    is_proven: bool = True
    is_whole: bool = True
