"""An epoch of the same data, where it has more batches than before, or fewer: a step says nothing of that."""

from __future__ import annotations

from collections.abc import Sequence

from iotrace.analysis.compare.basis import Loader, Rank
from iotrace.analysis.compare.results import EpochChange
from iotrace.analysis.compare.spread import differ, spread_of
from iotrace.analysis.compare.step_verdict import BANNERS, RUN_TO_RUN_PCT, times
from iotrace.analysis.host.disturbance import is_disturbed
from iotrace.analysis.results import Trust
from iotrace.units import digits

_OTHER_COUNT = 1.1  # times as many batches
_ALIKE = 0.15  # by which counts may differ: each worker ends with a batch that is not full
_SAME_BYTES = 0.05


def epoch_change(
    ranks: tuple[Rank, Rank],
    trusts: tuple[Trust, Trust],
    alone_pct: Sequence[float] | None,
    samples: Sequence[int] | None = None,
) -> EpochChange | None:
    """Compare the epochs of two loops; None unless both had the same data in other numbers of batches.

    A program that was run for shorter is not faster: every epoch has to have run to its end, over the same
    data. That is known where the workers of one side gave each sample several times, all of the data each,
    and the numbers of batches differ as that says; and where batches of other sizes make as many samples.
    `alone_pct` is the interval of the step's change with nobody else on the CPUs; for as many samples, where
    steps take so many `samples`.
    """
    one, other = (rank.primary for rank in ranks)
    accounts = [rank.account for rank in ranks]
    if one is None or other is None or accounts[0] is None or accounts[1] is None:
        return None
    batches = [_batches(loader) for loader in (one, other)]
    if not batches[0] or not batches[1] or max(batches) < _OTHER_COUNT * min(batches):
        return None
    times = _times(ranks, batches)
    if times is None and not _as_many_samples((one, other), batches):
        return None
    most = max(one.epochs or 1, other.epochs or 1)  # workers start once, however many epochs follow
    seconds = [
        (account.loop_ns / (loader.epochs or 1) + account.first_ns / most) / 1e9
        for account, loader in zip(accounts, (one, other), strict=True)
        if account is not None
    ]
    ratio = seconds[1] / seconds[0] if seconds[0] else 0.0
    if not ratio:
        return None
    disturbed = any(is_disturbed(rank.system.host) for rank in ranks)
    more = batches[1] / batches[0] * (samples[1] / samples[0] if samples else 1.0)
    low, high = (more * (1 + each / 100) for each in alone_pct or (-100.0, 1e9))
    is_certain = not low <= 1 <= high and (high < 1) == (ratio < 1)
    apart = differ(seconds, [spread_of(trust) for trust in trusts])
    verdict = "unknown" if disturbed else "no-difference"
    if (is_certain or apart) and 100 * abs(ratio - 1) >= RUN_TO_RUN_PCT:
        verdict = "faster" if ratio < 1 else "slower"
    return EpochChange(
        verdict=verdict,
        batches=[round(each) for each in batches],
        samples=[loader.batch_size for loader in (one, other)],
        seconds=seconds,
        change_pct=100 * (ratio - 1),
        times=times,
        likely=verdict in BANNERS and not is_certain and disturbed,
    )


def epoch_text(epoch: EpochChange, steps_ms: Sequence[float]) -> str:
    """Say what an epoch took on both sides, in how many batches, and a step beside it."""
    took = f"an epoch takes {digits(epoch.seconds[0])} -> {digits(epoch.seconds[1])} s"
    step = f"a step took {steps_ms[0]:.1f} -> {steps_ms[1]:.1f} ms"
    rest = f"{took}, in {epoch.batches[0]} -> {epoch.batches[1]} batches; {step}"
    if epoch.verdict not in BANNERS:
        if epoch.verdict == "unknown":
            return f"NOT CLEAR: {rest}; other programs ran"
        return f"NO DIFFERENCE seen: {rest}"
    by = times(1 + epoch.change_pct / 100)
    return f"{'LIKELY ' if epoch.likely else ''}{BANNERS[epoch.verdict]} {by}: {rest}"


def _batches(loader: Loader) -> float:
    """The batches of an epoch, on average; 0 where one was left before its end, or that is not known."""
    if not loader.epochs or loader.epochs_ended != loader.epochs:
        return 0.0
    return (loader.batches or 0) / loader.epochs


def _times(ranks: tuple[Rank, Rank], batches: Sequence[float]) -> list[int] | None:
    """How often an epoch had each sample; None where that is not what made the numbers of batches differ."""
    times = [_given(rank) for rank in ranks]
    expected = times[1] / times[0]
    if times[0] == times[1] or abs(batches[1] / batches[0] / expected - 1) > _ALIKE:
        return None
    read = [_distinct_bytes(rank) for rank in ranks]
    if read[0] is None or read[1] is None or abs(read[1] - read[0]) > _SAME_BYTES * read[0]:
        return None
    return times


def _given(rank: Rank) -> int:
    """How often the workers gave each sample, where one would do; else once."""
    found = (culprit.evidence.get("times") for culprit in rank.culprits if culprit.code == "IO411")
    return round(next((each for each in found if each), 1.0))


def _distinct_bytes(rank: Rank) -> float | None:
    """Sum up the bytes that were read, each once; None where that is not known of a file."""
    total_bytes = 0.0
    for file in rank.io.files if rank.io else ():
        if file.maps or (file.reads and (file.read_bytes is None or file.reread_fraction is None)):
            return None
        total_bytes += (file.read_bytes or 0) * (1 - (file.reread_fraction or 0.0))
    return total_bytes or None


def _as_many_samples(loaders: tuple[Loader, Loader], batches: Sequence[float]) -> bool:
    """Whether batches of other sizes make as many samples: all but the last of each worker are full."""
    one, other = loaders
    if not one.batch_size or not other.batch_size or one.batch_size == other.batch_size:
        return False
    samples = [batches[0] * one.batch_size, batches[1] * other.batch_size]
    error = max(one.batch_size * max(1, one.workers or 1), other.batch_size * max(1, other.workers or 1))
    return abs(samples[1] - samples[0]) <= min(error, _ALIKE * samples[0])
