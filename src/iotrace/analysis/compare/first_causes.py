"""What the report of the longer run names as why, or advises first, and the other one does not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from iotrace.analysis.compare.basis import Basis, Rank
from iotrace.analysis.compare.results import WholeRun

STARTUP = "startup"  # a cause of waits that lies mostly beside the steps
_FELL = 0.5  # of the time: what is left of it at the most
# What they name stands beside the part that changed: the file, the line, the function of the loop.
_NAMED_BY_PARTS = frozenset({"IO101", "IO102", "IO103", "IO104", "IO506", "IO509"})
_OF_OTHERS = frozenset({"IO306"})  # other programs: no change of this one ended that


def first_cause(
    sides: tuple[Basis, Basis],
    ranks: tuple[Rank, Rank],
    rest_ms: Mapping[str, list[float]],
    whole: WholeRun | None,
    slower: bool,
) -> str | None:
    """Say what the first report found that the second does not, in its words; None where nothing is certain.

    Where the second is `slower`, what that found and the first does not. The time that it explains is half as
    much on the other side, or less: a report that knows less finds less.
    """
    has, lacks = (1, 0) if slower else (0, 1)
    verdict, rank = sides[has].verdict, ranks[has]
    first = next(iter(verdict.fixes), None)
    if first is None or first.code is None or verdict.rank not in (None, rank.rank):
        return None
    found = {fix.code for fix in sides[lacks].verdict.fixes} | {each.code for each in ranks[lacks].culprits}
    if first.code in found | _NAMED_BY_PARTS | _OF_OTHERS:
        return None
    times_ms = _times(verdict.cause, ranks, rest_ms, whole)
    if not any(each[has] > 0.0 and each[lacks] <= _FELL * each[has] for each in times_ms):
        return None
    where = f"in {'AB'[has]}, and not in {'AB'[lacks]}"
    why = next((each.text for each in rank.culprits if each.code == first.code and each.text), None)
    return f"{where}: {why}" if why else f"advised {where}: {first.text}"


def _times(
    cause: str | None, ranks: tuple[Rank, Rank], rest_ms: Mapping[str, list[float]], whole: WholeRun | None
) -> Iterator[list[float]]:
    """Yield what a cause takes on both sides; without one the wait, and what else a step does."""
    if cause == STARTUP and whole is not None:
        yield whole.starting_ms
    elif cause is not None:
        yield [rank.data_wait.causes_ms.get(cause, 0.0) for rank in ranks]
    else:
        yield [rank.data_wait.raw_ms or 0.0 for rank in ranks]
        yield from rest_ms.values()
