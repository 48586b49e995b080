"""What runs out at the rate at which it grows: memory, shared memory, descriptors, mappings."""

from __future__ import annotations

from collections.abc import Iterator

from iotrace.analysis.rules.facts.forecast import ForecastFacts
from iotrace.analysis.rules.model import Finding, fires, rule, silent
from iotrace.units import size, time_span

DAY_S = 86_400.0
LONGEST_DAYS = 7.0  # what comes later is not told
_GIB = 1 << 30


@rule("IO421", "memory-runs-out", "forecast")
@fires({"kind": "leak", "who": "main", "who_per_hour": 4.0 * _GIB}, {"kind": "shared-memory"})
@silent({"seconds": 10 * 86_400.0}, {"kind": "copy-on-write", "left_bytes": 1.0 * _GIB})
def memory_runs_out(facts: ForecastFacts, *, longest_days: float = LONGEST_DAYS) -> Iterator[Finding]:
    """Memory grows, and at this rate its limit is reached within a week.

    Growth that flattens, or that may be none, gives no forecast.

    Remedy: find what the process that grows keeps; Python objects that forked workers read are copied.
    """
    if facts.what != "memory" or facts.copies_fit or facts.seconds > longest_days * DAY_S:
        return
    why = {
        "leak": f": {facts.who} grows by {size(facts.who_per_hour)} an hour",
        "shared-memory": ": shared memory (/dev/shm) grows",
        "copy-on-write": ": workers copy what they share with the training",
    }
    yield Finding(text=f"out of memory in {_span(facts)} at this rate{why.get(facts.kind, '')}")


@rule("IO422", "copies-fit", "forecast")
@fires({"kind": "copy-on-write", "left_bytes": 1.0 * _GIB})
@silent({"kind": "copy-on-write", "left_bytes": 20.0 * _GIB}, {"kind": "leak"})
def copies_fit(facts: ForecastFacts) -> Iterator[Finding]:
    """Memory grows as forked workers copy what they share, and all that they may still copy fits."""
    if facts.what == "memory" and facts.copies_fit:
        left = size(facts.left_bytes or 0.0)
        yield Finding(text=f"memory grows by copying on write, by {left} more at most: that fits")


@rule("IO423", "shared-memory-fills", "forecast")
@fires({"what": "shm", "kind": "shared-memory"})
@silent({"what": "shm", "kind": "shared-memory", "seconds": 10 * 86_400.0})
def shared_memory_fills(facts: ForecastFacts, *, longest_days: float = LONGEST_DAYS) -> Iterator[Finding]:
    """/dev/shm grows, and at this rate it is full within a week: workers then die by SIGBUS.

    Remedy: find who leaves files there; make it larger.
    """
    if facts.what == "shm" and facts.seconds <= longest_days * DAY_S:
        of = f"{size(facts.used)} of {size(facts.limit)}"
        yield Finding(text=f"/dev/shm is full in {_span(facts)} at this rate ({of})")


@rule("IO424", "handles-run-out", "forecast")
@fires(
    {"what": "descriptors", "who": "main", "used": 900.0, "limit": 1024.0},
    {"what": "mappings", "who": "worker 0", "used": 60_000.0, "limit": 65_530.0},
)
@silent({"what": "descriptors", "who": "main", "seconds": 10 * 86_400.0})
def handles_run_out(facts: ForecastFacts, *, longest_days: float = LONGEST_DAYS) -> Iterator[Finding]:
    """A process opens or maps more and more files, and reaches its limit within a week.

    Remedy: close what is no longer read; `ulimit -n`, or vm.max_map_count.
    """
    if facts.what in ("descriptors", "mappings") and facts.seconds <= longest_days * DAY_S:
        of = f"({facts.used:.0f} of {facts.limit:.0f})"
        yield Finding(text=f"{facts.who} has no {facts.what} left in {_span(facts)} at this rate {of}")


def _span(facts: ForecastFacts) -> str:
    """Format a time with the larger side of its interval; without a latest end that is near, the soonest."""
    seconds = facts.seconds
    off = max(seconds - facts.soonest_s, facts.latest_s - seconds)
    if off >= seconds:
        return f"{time_span(facts.soonest_s)} or more"
    return f"{time_span(seconds)} ± {time_span(off if seconds < 600 else 60 * max(1, round(off / 60)))}"
