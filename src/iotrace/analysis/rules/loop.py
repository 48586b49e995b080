"""What the training thread itself does in its steps, beside its computing."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator

from iotrace.analysis.rules.facts.rank import RankFacts
from iotrace.analysis.rules.model import THE_LOOP, Finding, rule
from iotrace.analysis.wait.data_wait import MODERATELY_PERCENT

_HIGH = 0.2  # of a step
_MOSTLY = 0.5  # of the time that writing takes
_WRITES = {"writing_ms": 12.0, "synced_ms": 10.0, "of_steps": 1.0, "file": "run/log.csv"}


@rule(
    "IO502",
    "writing-in-the-loop",
    "loop",
    turn=THE_LOOP,
    saves_wait=False,
    fires=[{"writes": _WRITES}, {"writes": {**_WRITES, "synced_ms": 0.0, "file": ""}}],
    silent=[
        {"writes": {**_WRITES, "of_steps": 0.1}},
        {"writes": {**_WRITES, "writing_ms": 4.0}},
        {"writes": _WRITES, "accelerator": {"span_us": 1000.0, "idle_us": 10.0}},
    ],
)
def writing_in_the_loop(facts: RankFacts, *, least_of_steps: float = 0.5) -> Iterator[Finding]:
    """The training thread itself writes in most steps.

    It does not train meanwhile. A checkpoint now and then is none of it: slow steps show that. Nor is writing
    beside a device that is busy.

    Remedy: write or sync less often, or in a thread.
    """
    writes, step_ms, device = facts.writes, facts.report.steps.mean_ms, facts.report.accelerator
    if writes is None or not step_ms or writes.of_steps < least_of_steps:
        return
    if device is not None and device.span_us and 100 * device.idle_us < MODERATELY_PERCENT * device.span_us:
        return
    spent_ms, synced_ms = writes.writing_ms, writes.synced_ms
    if 100 * spent_ms < MODERATELY_PERCENT * step_ms:
        return
    does = "sync" if synced_ms >= _MOSTLY * spent_ms else "write"
    name = posixpath.basename(writes.file) or "its files"
    yield Finding(
        text=f"the training thread itself writes for {spent_ms:.1f} ms a step"
        + (f", most of it to {writes.file}" if writes.file else "")
        + (f"; {synced_ms:.1f} ms of that it waits for the disk (fsync)" if does == "sync" else ""),
        how=f"{does} less often, or in a thread of its own",
        remedy=f"{does} {name} less often, or in a thread: the loop does it for {spent_ms:.1f} ms a step",
        level="high" if spent_ms > _HIGH * step_ms else "medium",
        evidence={"writing_ms": spent_ms, "sync_ms": synced_ms},
        gain_ms=spent_ms,
    )
