"""What a merge did: the figures that are printed and stored in the result, and how they are summed up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from iotrace import compiled
from iotrace.merge.plan import ClockLink, Input
from iotrace.sources.chrome.batch import KINDS

SCHEMA_VERSION = 1
_METADATA = "metadata"
_DAY_NS = 86_400 * 10**9
_EXACT_SPAN_NS = 100 * _DAY_NS
_BROWSER_JSON_BYTES = 1_200_000_000


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
    parents), and were given a track next to it.

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


def described(item: Input) -> dict[str, Any]:
    """What comes after the events of an input: its clock with the bound, its metadata."""
    return {
        "file": item.file.label,
        "kind": item.file.kind,
        "rank": item.survey.rank,
        **_clock(item.link),
        "metadata": item.result.metadata,
    }


def _clock(link: ClockLink) -> dict[str, Any]:
    return {
        "clock": link.kind,
        "clock_shift_ns": link.map.shift_ns,
        "clock_shift_at_ns": link.map.at_ns if link.map.drift_ppb else None,
        "clock_drift_ppb": link.map.drift_ppb or None,
        "clock_bound_ns": link.bound_ns,
        "clock_why": link.why,
    }


def summarise(
    paths: list[Path],
    inputs: list[Input],
    problems: list[str],
    notes: list[str],
    seconds: float,
    suffix: str,
) -> Summary:
    """Make the summary of a merge of `inputs` to `paths` in `seconds`; `notes` get what its kind costs."""
    results = [item.result for item in inputs]
    read, written = Counter[str](), Counter[str]()
    for result in results:
        for phase, count in result.read.items():
            read[KINDS.get(phase, "other")] += count
        for phase, count in result.written.items():
            written[KINDS.get(phase, "other")] += count
    kinds = [kind for kind in (*dict.fromkeys(KINDS.values()), "other") if read[kind] and kind != _METADATA]
    sizes = [path.stat().st_size for path in paths]
    read_bytes = sum(item.survey.bytes for item in inputs)
    first = min((result.first_ns for result in results if result.first_ns is not None), default=None)
    last = max((result.last_ns for result in results if result.last_ns is not None), default=None)
    span_ns = 0 if first is None or last is None else last - first
    notes += _advice(suffix, inputs[0].job.native, span_ns, max(sizes))
    return Summary(
        schema_version=SCHEMA_VERSION,
        outputs=[str(path) for path in paths],
        bytes_read=read_bytes,
        bytes_written=sum(sizes),
        seconds=seconds,
        first_ns=first,
        last_ns=last,
        counts={kind: KindCount(read[kind], read[kind] - written[kind], written[kind]) for kind in kinds},
        processes=len({process.pid for result in results for process in result.tracks.processes.values()}),
        threads=sum(thread.used for result in results for thread in result.tracks.threads),
        lanes_moved=sum(result.moved for result in results),
        loose_arrow_ends=sum(result.unbound for result in results),
        arrows_backwards=sum(result.backwards for result in results),
        sources=[
            SourceSummary(
                path=str(item.file.path),
                kind=item.file.kind,
                rank=item.survey.rank,
                **_clock(item.link),
                events=sum(count for phase, count in item.result.read.items() if _counts(phase)),
                lost_events=item.result.lost_events,
                lanes_moved=item.result.moved,
                arrows_backwards=item.result.backwards,
            )
            for item in inputs
        ],
        problems=problems,
        notes=notes,
    )


def _counts(phase: str) -> bool:
    """Whether an event counts: names of processes and threads do not."""
    return KINDS.get(phase) != _METADATA


def _advice(suffix: str, native: bool, span_ns: int, largest_bytes: int) -> Iterator[str]:
    """Say what the kind of the output costs, and which one has no such cost."""
    if not native and span_ns > _EXACT_SPAN_NS:
        yield (
            f"the inputs are {span_ns / _DAY_NS:.0f} days apart: Perfetto rounds times of JSON beyond "
            "100 days; .pftrace keeps every ns"
        )
    if ".pftrace" in suffix and not native:
        yield compiled.missing(
            f"the output is Chrome JSON under the name {suffix}, which Perfetto opens as well"
        )
    elif not compiled.available():
        yield compiled.missing("merging gives the same result four times slower")
    if suffix == ".json" and largest_bytes > _BROWSER_JSON_BYTES:
        yield (
            f"{largest_bytes / 2**30:.1f} GiB of JSON is more than a browser opens: write .pftrace, "
            "or a part (--steps, --time, --drop)"
        )
