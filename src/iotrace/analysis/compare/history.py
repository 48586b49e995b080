"""Runs of one program in order of time: which got worse than those before it, by the rules of `check`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from iotrace.analysis.compare.basis import Basis, basis_of
from iotrace.analysis.compare.check import check
from iotrace.analysis.compare.results import Comparison, Standing
from iotrace.errors import SessionError

WORSE, UNCLEAR, FASTER, OTHER_WORK = "worse", "not-clear", "faster", "other-work"
_MOST_BEFORE = 5  # that a run is compared with
_WORSE_BY_PCT = 5.0


def standings(reports: Sequence[Any]) -> Iterator[Standing]:
    """Judge each of `reports`, as plain data and in order of time, by those before it.

    A run that got worse, or faster, or did other work begins anew: later ones are compared with it.
    """
    before: list[Basis] = []
    for report in reports:
        basis = basis_of(report)
        if not basis.session.ended or basis.session.exit_code or not any(r.steps.count for r in basis.ranks):
            yield Standing()
            continue
        found = _standing(report, before)
        before = [basis] if found.kind in (WORSE, FASTER, OTHER_WORK) else [*before, basis][-_MOST_BEFORE:]
        yield found


def _standing(report: Any, before: Sequence[Basis]) -> Standing:
    if not before:
        return Standing()
    against = [each.path for each in before]
    try:
        result = check([report], before, [], _WORSE_BY_PCT, before="earlier run")
    except SessionError as error:
        return Standing(kind=OTHER_WORK, text=str(error), against=against)
    told: dict[str, Any] = {"against": against, "middle": result.baseline or ""}
    if result.worse:
        return Standing(kind=WORSE, text="; ".join(each.text for each in result.worse), **told)
    if result.untold:
        return Standing(kind=UNCLEAR, text="; ".join(each.text for each in result.untold), **told)
    comparison = result.comparison
    if comparison is not None and comparison.verdict == "faster":
        return Standing(kind=FASTER, text=_faster(comparison, len(against)), **told)
    return Standing(**told)


def _faster(comparison: Comparison, count: int) -> str:
    """Say against which of several runs it is faster: the one in the middle, whose steps the text has."""
    return comparison.text if count == 1 else f"{comparison.text}, against the middle of {count} earlier runs"
