"""Parts of the program that its author named."""

from __future__ import annotations

from collections.abc import Iterator

from iotrace.analysis.rules.facts.rank import RankFacts
from iotrace.analysis.rules.model import Finding, fires, rule, silent
from iotrace.units import percent

_FIRST = "IO300"  # the author's own word for the cause goes before who takes CPUs
_OUTER = {"name": "load", "count": 100, "wait_ms": 55.0}
_INNER = {"name": "augment", "count": 100, "wait_ms": 45.0}


@rule("IO408", "region-held-wait", "rank")
@fires({"regions": [_OUTER, _INNER]})
@silent({"regions": [{**_INNER, "wait_ms": 20.0}]}, {"regions": [{**_INNER, "wait_ms": None}]})
def region_held_wait(facts: RankFacts) -> Iterator[Finding]:
    """Most of the data wait is in a region that the program names (`iotrace.region`).

    If regions are inside each other, the smallest one that still holds half of the wait is named. A name says
    where the time goes, and not what to do about it: no remedy.
    """
    known = [(each.wait_ms or 0.0, each.name) for each in facts.report.regions]
    main = [each for each in known if facts.is_significant(each[0]) and facts.is_main_cause(each[0])]
    if main:
        wait_ms, name = min(main)
        share = percent(wait_ms / (facts.report.data_wait.raw_ms or wait_ms))
        yield Finding(
            text=f'region "{name}" holds {share} of it',
            evidence={"region": name},
            cost_ms=wait_ms,
            is_main_cause=True,
            place=_FIRST,
        )
