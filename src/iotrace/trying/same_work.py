"""Whether the two runs of a pair did the same work: only then does their time say anything."""

from __future__ import annotations

from collections.abc import Sequence

from iotrace.errors import IotraceError
from iotrace.sweeps.execute import tail
from iotrace.sweeps.results import SweepRun
from iotrace.trying.options import StopError
from iotrace.trying.results import FAILED, UNCLEAR
from iotrace.units import time_span

_LONGEST = 120  # of a program's last line


def check_run(run: SweepRun, is_first: bool, most_s: float) -> None:
    """Stop where a run failed, or was ended after `most_s`.

    Raises:
        StopError: the trial ends.
        IotraceError: it is the first run, and of the program as it is.
    """
    if run.ok:
        return
    if run.seconds >= most_s:
        what = f"a run takes longer than the {time_span(most_s)} that were left"
        remedy = "--minutes gives it more, --steps ends each run earlier"
        if is_first:
            raise IotraceError(what, remedy)
        raise StopError(UNCLEAR, f"{what}: {remedy}")
    if not run.params:
        what = f"the program fails as it is: {run.reason or run.status}"
        if is_first:
            raise IotraceError(what, "run it by itself first; it gets no terminal here", tail(run))
        raise StopError(UNCLEAR, what)
    said = [line.strip() for line in tail(run).split("\n") if line.strip()]
    last = f": {said[-1][:_LONGEST]}" if said and run.status == "failed" else ""
    how = "fails with it" if run.status == "failed" else "does not take it"
    raise StopError(FAILED, f"the program {how}: {run.reason or run.status}{last}")


def check_pair(pair: Sequence[SweepRun], first: SweepRun, steps: int | None) -> None:
    """Stop where the runs of a pair, or the trial's first, did not do the same work.

    Each was ended after so many `steps`, if not None.

    Raises:
        StopError: the trial ends.
    """
    if (lengths := _other_lengths([first, *pair], steps)) is not None:
        least, most = lengths
        raise StopError(FAILED, f"the runs did not do the same work: {least} and {most} batches")


def _other_lengths(runs: Sequence[SweepRun], steps: int | None) -> tuple[int, int] | None:
    """The fewest and most batches where runs were of other lengths; one that is ended may be longer."""
    known = [run.batches for run in runs if run.batches is not None]
    whole = [run.batches for run in runs if run.batches is not None and _is_whole(run, steps)]
    if not whole or (min(whole) == max(whole) and max(known) <= min(whole)):
        return None
    return min(whole), max(known)


def _is_whole(run: SweepRun, steps: int | None) -> bool:
    """Whether a run came to its own end: one that is ended has as many batches as its steps allow."""
    if run.batches is None:
        return False
    return steps is None or run.batches < steps + max(1, (run.workers or 0) - 1)
