"""Whether the runs of a pair did the same work, and whether runs in turn prove that a change is faster.

Only where the work is the same does the time of two runs say anything.

After a pair the runs so far are looked at, five times at most; each look asks for 99 %, so that all of them
together are wrong in 5 % of the trials of a change that does nothing.

Beside other programs steps may differ more than a change gains. What is left of a step without all that its
threads queued for a CPU (analysis/host/disturbance.py) differs far less: in it are the CPU time that the job
needs, and what it waits for storage. It is looked at once, after the last pair, and only of data that is
stored otherwise: such a change moves no work to other processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import msgspec

from iotrace.analysis.resampling import T95, T995
from iotrace.errors import IotraceError
from iotrace.sweeps.execute import tail
from iotrace.sweeps.results import SweepRun
from iotrace.sweeps.rows import pair_runs, paired_ratio
from iotrace.trying.results import FAILED, LOOP, NO_HELP, PROVEN, SLOWER, UNCLEAR, Gain, StopError
from iotrace.units import time_span

_LONGEST = 120  # of a program's last line
FEWEST_PAIRS = 3
_MOST_LOOKS = 5
_HARDLY = 1.05  # times as fast at most: what gains less is no help


class Judgement(msgspec.Struct, frozen=True):
    """What the pairs so far say, and whether more would change it."""

    kind: str = UNCLEAR
    gain: Gain | None = None
    is_final: bool = False
    gain_unqueued: Gain | None = None


def choose_step_time(runs: Sequence[SweepRun], measured: str) -> list[SweepRun]:
    """Return the runs, with a step as `measured`: with all that lies between steps, or without."""
    if measured != LOOP:
        return list(runs)
    return [msgspec.structs.replace(run, step_ms=run.loop_ms) for run in runs]


def judge_unqueued(runs: Sequence[SweepRun], params: dict[str, str], judged: Judgement) -> Judgement:
    """Add what the steps without queueing show; it counts where the steps as measured leave it unclear."""
    good = [run for run in runs if run.ok]
    if any(run.unqueued_step_ms is None for run in good) or not any(run.disturbed for run in good):
        return judged
    left = [msgspec.structs.replace(run, step_ms=run.unqueued_step_ms) for run in good]
    gain, surely = judge(left, params).gain, paired_ratio(left, params, T995)
    if judged.gain is None or gain is None or surely is None:
        return judged
    is_proven = judged.kind == UNCLEAR and surely[1] > _HARDLY and judged.gain.median > 1
    return msgspec.structs.replace(judged, kind=PROVEN if is_proven else judged.kind, gain_unqueued=gain)


def looks(most_pairs: int) -> list[int]:
    """After how many pairs the runs are looked at, where there are at most so many."""
    if most_pairs < FEWEST_PAIRS:
        return []
    count = min(_MOST_LOOKS, most_pairs - FEWEST_PAIRS + 1)
    step = (most_pairs - FEWEST_PAIRS) / max(1, count - 1)
    return sorted({FEWEST_PAIRS + round(step * number) for number in range(count)})


def judge(runs: Sequence[SweepRun], params: dict[str, str]) -> Judgement:
    """Say what the pairs of the program as it is and of `params` show."""
    surely, likely = (paired_ratio(runs, params, quantiles) for quantiles in (T995, T95))
    if surely is None or likely is None:
        return Judgement()
    ratios = [own_ms / other_ms for own_ms, other_ms in pair_runs(runs, params)]
    gain = Gain(median=median(ratios), low=likely[1], high=likely[2])
    if surely[2] < 1:
        return Judgement(SLOWER, gain, True)
    if likely[2] < _HARDLY:
        return Judgement(NO_HELP, gain, True)
    if surely[1] > 1:
        return Judgement(PROVEN, gain, True)
    return Judgement(UNCLEAR, gain)


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
