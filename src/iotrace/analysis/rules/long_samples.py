"""Few samples that take much longer than the others."""

from __future__ import annotations

import math
import posixpath
from collections.abc import Iterator

from msgspec.structs import replace

from iotrace.analysis.results import Change
from iotrace.analysis.rules.causes import MOSTLY, call_with, finding, is_worth, level, which
from iotrace.analysis.rules.facts.loader import LoaderFacts
from iotrace.analysis.rules.facts.long_samples import LongSamples
from iotrace.analysis.rules.facts.making import Making
from iotrace.analysis.rules.model import THE_CAUSE, Finding, fires, rule, silent
from iotrace.units import counted

_MOST_NAMED, _AGAIN = 5, 0.7  # samples; of the long ones: fewer indices are long again and again
_BRIDGED = 0.34  # of the batches hold a long sample
_LONG = LongSamples(count=11, of=110, long_ms=900.0, usual_ms=10.0, share=0.9, of_batches=0.1, wait_ms=45.0)
_NAMED = replace(_LONG, which=[(17, "d/a.h5"), (230, "d/a.h5")])
_QUICK_ON_AVERAGE = {"production_ms": 60.0, "workers": 2, "wait_ms": 50.0}


@rule("IO105", "few-long-samples", "loader", turn=THE_CAUSE)
@fires(
    {"making": Making(long=_LONG), **_QUICK_ON_AVERAGE},
    {"making": Making(long=_LONG), **_QUICK_ON_AVERAGE, "production_ms": 600.0},
    {"making": Making(long=_NAMED), **_QUICK_ON_AVERAGE},
    {"making": Making(long=_LONG), **_QUICK_ON_AVERAGE, "workers": 0, "inner_workers": 2},
)
@silent(
    {"making": Making(), **_QUICK_ON_AVERAGE},
    {"making": Making(long=replace(_LONG, wait_ms=4.0)), **_QUICK_ON_AVERAGE},
    {"making": Making(long=_LONG), **_QUICK_ON_AVERAGE, "library": "spdl", "wrapped": True},
    {"making": Making(long=_LONG), **_QUICK_ON_AVERAGE, "wait_ms": 2.0, "causes_ms": {"transform": 2.0}},
)
def few_long_samples(facts: LoaderFacts, *, most_ahead: int = 64) -> Iterator[Finding]:
    """Few samples take much longer than the others, and the loop waits for them.

    For example, a tenth of the samples is on slow storage, or much larger. If batches are delivered in order,
    all that follow wait for a long one. If workers are faster than the loop on average, a stock of ready
    batches hides it.

    Silent for loaders of other libraries whose threads make the samples: iotrace does not time those.

    Indices of samples that are long again and again are named, with the file that a library reads for each.

    Remedy: a larger `prefetch_factor`, so that enough batches are ready for the loop meanwhile; or make these
    samples faster. If a dataset fills itself by another DataLoader within the loop, do that in a thread.
    """
    long, about = facts.making.long, facts.about
    if long is None or not facts.is_waited_for or not is_worth(long.wait_ms, facts):
        return
    if about.library and about.wrapped:  # what was timed is the loop asking it for a batch
        return
    compute_ms = facts.step_ms - facts.wait_ms
    made_ms = (facts.production_ms or math.inf) * facts.batches_per_step / max(1, about.workers)
    ahead = None
    if about.workers and about.in_order is not False and about.prefetch_factor and made_ms < compute_ms:
        taken = long.long_ms / compute_ms * facts.batches_per_step
        ahead = math.ceil(taken / about.workers) + 1
    bridges = (
        ahead is not None
        and (about.prefetch_factor or 0) < ahead <= most_ahead
        and long.of_batches <= _BRIDGED
        and not (facts.handed_over or about.wrapped or about.library)
    )
    item = facts.item.partition(" (")[0] or about.dataset
    remedy = call_with(f"prefetch_factor={ahead}", facts) + " bridges long samples" if bridges else ""
    if facts.inner_workers and not about.workers:
        remedy = (
            f"fill {about.dataset} ahead, in a thread: its long samples iterate another DataLoader meanwhile"
        )
    yield finding(
        facts,
        text=f"{long.count} of {counted(long.of, 'sample')} take {long.long_ms:.0f} ms each in {item}, the "
        f"others {long.usual_ms:.2g} ms: {long.wait_ms:.1f} ms of wait a step{_named(long, facts.epochs)}",
        how=(
            f"with {ahead} batches ahead for each worker the loop has enough while one is made; or find out "
            "what these samples have in common, such as their size or where they are stored"
        )
        if bridges
        else "",
        remedy=remedy,
        level=level(long.wait_ms, facts),
        evidence={"long_ms": long.long_ms, "usual_ms": long.usual_ms, "count": long.count, **which(facts)},
        gain_ms=min(facts.bound_ms, long.wait_ms) if bridges else None,
        cost_ms=long.wait_ms,
        change=Change(settings={"prefetch_factor": str(ahead)}) if bridges else None,
        is_main_cause=long.wait_ms >= MOSTLY * facts.wait_ms,
    )


def _named(long: LongSamples, epochs: int) -> str:
    """Name the few samples that are long again and again; some of many, unless others are in each epoch."""
    of_files = len({file for _, file in long.which if file}) == len(long.which)
    said = [f"{index} ({posixpath.basename(file)})" if of_files else f"{index}" for index, file in long.which]
    if not said or (len(said) > _MOST_NAMED and epochs > 1 and len(said) > _AGAIN * long.count):
        return ""
    if len(said) > _MOST_NAMED:
        return f"; such as samples {', '.join(said[:3])}"
    return f"; these are samples {', '.join(said)}" if len(said) > 1 else f"; each is sample {said[0]}"
