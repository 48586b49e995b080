"""What a merge did: the figures that are printed, and stored in the result."""

from __future__ import annotations

import msgspec

SCHEMA_VERSION = 1


class SourceSummary(msgspec.Struct, frozen=True):
    """One input. `clock` is exact, measured, inferred, assumed or none; `clock_bound_ns` null where unknown.

    `clock_shift_ns` was added to its times. Where a drift was found and undone, `clock_drift_ppb` is what the
    shift grows by in ns a second, from the source's own time `clock_shift_at_ns` on; else both are null.
    `lanes_moved` and `arrows_backwards` as in the whole.
    """

    path: str
    kind: str
    rank: int | None
    clock: str
    clock_shift_ns: int
    clock_shift_at_ns: int | None
    clock_drift_ppb: float | None
    clock_bound_ns: int | None
    clock_why: str
    events: int
    lost_events: int
    lanes_moved: int
    arrows_backwards: int


class KindCount(msgspec.Struct, frozen=True):
    """Events of one kind: read from the inputs, left out on request, written."""

    read: int
    selected_away: int
    written: int


class Summary(msgspec.Struct, frozen=True):
    """`lanes_moved`: slices that begin inside another of their track and end after it (children outside their
    parents), and were given a track beside it.

    `arrows_backwards`: flows that end before they start, such as kernels before their launch.
    `loose_arrow_ends`: ends of flows that no slice holds, shown as instants.
    `first_ns` and `last_ns` are CLOCK_REALTIME.
    """

    schema_version: int
    outputs: list[str]
    bytes_read: int
    bytes_written: int
    seconds: float
    first_ns: int | None
    last_ns: int | None
    counts: dict[str, KindCount]
    processes: int
    threads: int
    lanes_moved: int
    loose_arrow_ends: int
    arrows_backwards: int
    sources: list[SourceSummary]
    problems: list[str]
    notes: list[str]
