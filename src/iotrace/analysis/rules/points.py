"""What a sweep says of its points: which settings a place has no room for, what more workers would bring,
and why no point is advised.
"""

from __future__ import annotations

from collections.abc import Iterator

from iotrace.analysis.rules.facts.sweep import ChoiceFacts, PointFacts, SettingFacts
from iotrace.analysis.rules.model import Finding, fires, rule, silent
from iotrace.units import counted, percent, size

_MOST_PCT = 80.0  # of what is left: what batches and workers may take of it
_GIB = 1 << 30


@rule("IO921", "workers-beyond-cpus", "setting")
@fires({"workers": 64, "cpus": 8.0})
@silent({"workers": 32, "cpus": 8.0})
def workers_beyond_cpus(facts: SettingFacts, *, most_per_cpu: int = 4) -> Iterator[Finding]:
    """A setting has many more workers than there are CPUs: a search does not try it."""
    if facts.workers * facts.ranks > most_per_cpu * facts.cpus:
        of_ranks = f" for each of {facts.ranks} ranks" if facts.ranks > 1 else ""
        text = f"{facts.workers} workers{of_ranks} on {facts.cpus:g} CPUs (over {most_per_cpu} for each)"
        yield Finding(text=text)


@rule("IO922", "workers-beyond-memory", "setting")
@fires({"more_workers": 6, "memory_needed_bytes": 12.0 * _GIB, "memory_left_bytes": 8 * _GIB})
@silent(
    {"more_workers": 6, "memory_needed_bytes": 6.0 * _GIB, "memory_left_bytes": 8 * _GIB},
    {"more_workers": 6, "memory_needed_bytes": 12.0 * _GIB, "memory_left_bytes": None},
)
def workers_beyond_memory(facts: SettingFacts, *, most_pct: float = _MOST_PCT) -> Iterator[Finding]:
    """The workers that a setting adds may need more memory than is left: a search does not try it."""
    needed, left = facts.memory_needed_bytes, facts.memory_left_bytes
    if needed is not None and left is not None and needed > most_pct / 100 * left:
        what = f"{facts.more_workers} workers more may need {size(needed)} of memory"
        yield Finding(text=f"{what}: {_beyond(most_pct, left)}")


@rule("IO923", "batches-beyond-shared-memory", "setting")
@fires({"shm_needed_bytes": 12.0 * _GIB, "shm_left_bytes": 8 * _GIB})
@silent({"shm_needed_bytes": 6.0 * _GIB, "shm_left_bytes": 8 * _GIB})
def batches_beyond_shm(facts: SettingFacts, *, most_pct: float = _MOST_PCT) -> Iterator[Finding]:
    """The batches that a setting makes ahead need more of /dev/shm than is left: a search does not try it."""
    needed, left = facts.shm_needed_bytes, facts.shm_left_bytes
    if needed is not None and left is not None and needed > most_pct / 100 * left:
        yield Finding(text=f"its batches need {size(needed)} of /dev/shm: {_beyond(most_pct, left)}")


@rule("IO924", "too-few-descriptors", "setting")
@fires({"descriptors_needed": 2000, "descriptors": 1024})
@silent({"descriptors_needed": 2000, "descriptors": None})
def too_few_descriptors(facts: SettingFacts) -> Iterator[Finding]:
    """A setting needs more open files than the limit allows: a search does not try it."""
    if facts.descriptors is not None and facts.descriptors_needed > facts.descriptors:
        limit = f"the limit is {facts.descriptors} (ulimit -n)"
        yield Finding(text=f"it needs some {facts.descriptors_needed} descriptors, and {limit}")


def _beyond(most_pct: float, free_bytes: int) -> str:
    return f"over {percent(most_pct / 100)} of the {size(free_bytes)} that are free"


@rule("IO931", "point-is-compute-bound", "point")
@fires({"stopped_by": "compute", "wait_fraction": 0.02})
@silent({"stopped_by": "workers"})
def point_is_compute_bound(facts: PointFacts) -> Iterator[Finding]:
    """The chosen point hardly waits: the rest of a step is compute, and more workers will not help."""
    if facts.stopped_by == "compute":
        most = counted(facts.workers, "worker")
        yield Finding(
            text=f"It waits {facts.waits}: the rest is compute, and more than {most} will not help."
        )


@rule("IO932", "still-waits", "point")
@fires({"disturbed": True}, {"unmade_fraction": 0.1}, {"unmade_fraction": None})
@silent({"unmade_fraction": 0.8}, {"next_workers": 8}, {"stopped_by": "compute"})
def still_waits(facts: PointFacts, *, least_unmade_pct: float = 25.0) -> Iterator[Finding]:
    """The point with the most workers still waits, and whether more of them would help is not known.

    Most of the wait is for batches that were made already, or others used the CPUs.
    """
    if facts.stopped_by != "workers" or facts.next_workers is not None:
        return
    unmade = facts.unmade_fraction
    if facts.disturbed:
        yield Finding(text=f"It still waits {facts.waits}: what more workers get of busy CPUs is unknown.")
    elif unmade is None or 100 * unmade < least_unmade_pct:
        yield Finding(text=f"It still waits {facts.waits}.")


@rule("IO933", "try-more-workers", "point")
@fires({"unmade_fraction": 0.8})
@silent({"unmade_fraction": 0.8, "disturbed": True}, {"unmade_fraction": 0.1})
def try_more_workers(facts: PointFacts, *, least_unmade_pct: float = 25.0) -> Iterator[Finding]:
    """The point with the most workers still waits for batches that were not made yet.

    Remedy: sweep more workers.
    """
    if facts.stopped_by != "workers" or facts.next_workers is not None or facts.disturbed:
        return
    if facts.unmade_fraction is not None and 100 * facts.unmade_fraction >= least_unmade_pct:
        yield Finding(text=f"It still waits {facts.waits}: try more than {facts.workers} workers.")


@rule("IO934", "more-not-clear", "point")
@fires({"next_workers": 8, "next_is_faster": True})
@silent({"next_workers": 8})
def more_not_clear(facts: PointFacts) -> Iterator[Finding]:
    """The next point with more workers is faster, but not beyond the intervals of both."""
    if facts.stopped_by == "workers" and facts.next_workers is not None and facts.next_is_faster:
        text = f"It waits {facts.waits}; whether {facts.next_workers} workers are faster is not clear."
        yield Finding(text=text)


@rule("IO935", "more-would-not-help", "point")
@fires(
    {"stopped_by": "cores"},
    {"next_workers": 8, "compute_ms": 50.0, "next_compute_ms": 60.0},
    {"next_workers": 8},
)
@silent({"next_workers": 8, "next_is_faster": True}, {"stopped_by": "compute"})
def more_would_not_help(facts: PointFacts, *, grown_pct: float = 2.0) -> Iterator[Finding]:
    """More workers were no faster, or what they need is busy: all cores, the storage."""
    reasons = {"cores": "all cores are busy", "storage": "reading slows down as more workers read"}
    reason = reasons.get(facts.stopped_by)
    if facts.stopped_by == "workers" and facts.next_workers is not None and not facts.next_is_faster:
        before_ms, after_ms = facts.compute_ms, facts.next_compute_ms
        reason = f"{facts.next_workers} were no faster"
        if before_ms and after_ms and after_ms > before_ms * (1 + grown_pct / 100):
            slower = f"{before_ms:.0f} to {after_ms:.0f} ms of compute a step"
            reason = f"they take cores from the loop ({slower} with {facts.next_workers})"
    if reason is not None:
        left = facts.left or f"it waits {facts.waits}"
        yield Finding(
            text=f"More than {counted(facts.workers, 'worker')} will not help, as {reason}: {left}."
        )


@rule("IO941", "no-figures", "choice")
@fires({"points": 0})
@silent({"points": 1, "only": "4 workers"})
def no_figures(facts: ChoiceFacts) -> Iterator[Finding]:
    """No point of the sweep gave figures."""
    if not facts.points:
        yield Finding(text="no point gave figures")


@rule("IO942", "one-point", "choice")
@fires({"points": 1, "only": "4 workers"})
@silent({"points": 2, "apart": ("2 or 4 workers", "9 against 10")})
def one_point(facts: ChoiceFacts) -> Iterator[Finding]:
    """One point alone gave figures: there is nothing to compare them with.

    Remedy: sweep two values or more.
    """
    if facts.only:
        text = f"{facts.only} alone gave figures: there is nothing to compare them with"
        yield Finding(text=text, remedy="sweep two values or more: --workers 1,2,4")


@rule("IO943", "few-steps-for-an-interval", "choice")
@fires({"vague": "4 workers"})
@silent({"apart": ("2 or 4 workers", "9 against 10")})
def few_steps_for_an_interval(facts: ChoiceFacts) -> Iterator[Finding]:
    """A point measured too few steps to say between which bounds its rate lies.

    Remedy: more `--steps`.
    """
    if facts.vague:
        text = f"{facts.vague}: too few steps for a 95 % interval"
        yield Finding(text=text, remedy="more steps, such as --steps 50")


@rule("IO944", "faster-than-its-ceiling", "choice")
@fires({"above_ceiling": ("4 workers", "20 steps/s against 11"), "quiet": "run it again"})
@silent({"above_ceiling": None, "apart": ("2 or 4 workers", "9 against 10")})
def faster_than_its_ceiling(facts: ChoiceFacts) -> Iterator[Finding]:
    """A point is faster than training on batches from memory: one of both was held up.

    Remedy: run it again with fewer other programs.
    """
    if facts.above_ceiling is not None:
        which, figures = facts.above_ceiling
        text = f"{which} are faster than the ceiling, which no loader can beat"
        yield Finding(text=text, why=f"{figures}: one of both was held up", remedy=facts.quiet)


@rule("IO945", "points-not-apart", "choice")
@fires({"apart": ("2 or 4 workers", "9 against 10"), "quiet": "run it again"})
@silent({"apart": None, "vague": "4 workers"})
def points_not_apart(facts: ChoiceFacts) -> Iterator[Finding]:
    """Which of two points is faster is not clear: their intervals overlap.

    Remedy: more runs a point, longer ones, fewer other programs.
    """
    if facts.apart is not None:
        which, figures = facts.apart
        text, remedy = f"which of {which} is faster is not clear", f"{facts.quiet}, or --steps 100"
        yield Finding(text=text, why=f"{figures} steps/s", remedy=remedy)
