"""How far runs of one program differ by themselves, and how fast the CPUs were in each.

What a stage costs differs from run to run by more than its samples within one run say. Several runs show by
how much. One run shows nothing of it: then the sidecar's fixed piece of work says how steady the CPUs were.
Both are joined, as a prior of so many degrees of freedom and what the runs add to it (Gelman et al.,
Bayesian Data Analysis, 2.6: scaled inverse chi-square).

How alike the machine was in two sessions: other programs, and files that were not in memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

import msgspec

from iotrace.analysis.compare.basis import Basis, Rank
from iotrace.analysis.host.disturbance import disturbances
from iotrace.analysis.resampling import T99, T999, student_t
from iotrace.analysis.results import BAD, Calibration, Trust, total

PRIOR_FREEDOM = 4
# Standard deviations of a stage's cost over runs, as shares of it, before any run was seen.
OF_TIME = 0.10  # elapsed times, such as reading
_OF_CPU = 0.05  # CPU times, where nothing says how fast the CPUs were
_STEADIEST, _OF_SCATTER = (
    0.01,
    0.35,
)  # measured: 1.6 to 3.7 % where the median was 6 to 10 % over the quartile


class Noise(msgspec.Struct, frozen=True):
    """How far two sides differ by chance, as shares: half a 95 % interval, what 1 in 100 (1,000) exceed."""

    half95: float
    exceeded_by_1_in_100: float
    exceeded_by_1_in_1000: float


def noise_of(sides: Sequence[Sequence[float]], prior: float, within: float = 0.0) -> Noise:
    """Find the noise of the difference between the means of two sides, from the logarithms of their runs.

    `prior` is what is known of the runs' spread beforehand, `within` the deviation of the difference by what
    each run itself shows.
    """
    squares = sum(sum((value - fmean(side)) ** 2 for value in side) for side in sides)
    freedom = PRIOR_FREEDOM + sum(len(side) - 1 for side in sides)
    spread = (PRIOR_FREEDOM * prior**2 + squares) / freedom
    deviation = math.sqrt(spread * sum(1 / len(side) for side in sides) + within**2)
    quantiles = student_t(freedom), student_t(freedom, T99), student_t(freedom, T999)
    return Noise(*(quantile * deviation for quantile in quantiles))


def prior_of(clock: str, ranks: Sequence[Rank]) -> float:
    """Return what the spread of a stage's cost over runs is taken to be before any is seen, as a share."""
    if clock != "cpu":
        return OF_TIME
    known = calibrations(ranks)
    if known is None:
        return _OF_CPU
    scatter = fmean(each.median_us / each.quartile_us - 1 for each in known)
    return min(max(_OF_SCATTER * scatter, _STEADIEST), _OF_CPU)


def have_others_taken(ranks: Sequence[Rank]) -> bool:
    """Whether other programs took CPUs from any of the runs.

    CPU times then err as elapsed ones do: caches and cores are shared. The same code was seen to differ by up
    to 39 % so.
    """
    hosts = (rank.system.host for rank in ranks)
    return any(host is not None and any(disturbances(host)) for host in hosts)


def slowness_of(ranks: Sequence[Rank]) -> list[float]:
    """Return what a fixed piece of work cost in each run; the same for all where it is not known of all."""
    known = calibrations(ranks)
    return [1.0] * len(ranks) if known is None else [each.quartile_us for each in known]


def cpu_slower_pct(before: Sequence[Rank], after: Sequence[Rank]) -> float | None:
    """Return by how much longer a fixed piece of work took on the second side; None where it is unknown."""
    ranks = [*before, *after]
    if calibrations(ranks) is None:
        return None
    slowness = slowness_of(ranks)
    return 100 * (fmean(slowness[len(before) :]) / fmean(slowness[: len(before)]) - 1)


def calibrations(ranks: Sequence[Rank]) -> list[Calibration] | None:
    """Return what is known of the CPUs' speed in each run; None unless it is of all, by the same work."""
    hosts = [rank.system.host for rank in ranks]
    known = [host.calibration for host in hosts if host is not None and host.calibration is not None]
    if len(known) < len(ranks) or len({each.work for each in known}) != 1:
        return None
    return known if all(each.quartile_us > 0 for each in known) else None


# What is seen a few times in a run differs more from run to run than a mean of many steps.
_SPREAD, _SPREAD_UNTRUSTED = 0.25, 0.5


def spread_of(trust: Trust) -> float:
    """Return by which share a time that is seen a few times in a run may err, either way."""
    return _SPREAD_UNTRUSTED if trust.level == BAD else _SPREAD


def differ(values: Sequence[float], spreads: Sequence[float]) -> bool:
    """Whether two values differ by more than both may err."""
    (low, high), (other_low, other_high) = (
        (value * (1 - spread), value * (1 + spread)) for value, spread in zip(values, spreads, strict=True)
    )
    return other_high < low or high < other_low


_ALIKE = 0.1  # of the CPUs: by how much the shares that others took may differ
_SEVERAL = 3  # baselines, to show how far runs differ
_MORE_FROM_STORAGE = 2.0  # times as many bytes a step
_FEW_BYTES = 1 << 16  # a step: as good as none


def busy(side: Basis) -> str | None:
    """Say what kept the CPUs of a session's hosts from the program; None where they were free for it."""
    hosts = [rank.system.host for rank in side.ranks if rank.steps.count]
    return next((why for host in hosts for why in disturbances(host)), None)


def held_up_alike(baselines: Sequence[Basis], sessions: Sequence[Basis]) -> bool:
    """Whether others took as much of the CPUs in the sessions as in several baselines.

    Then the spread of the baselines shows what that does to the figures.
    """
    shares = [others_share(side) for side in baselines]
    known = [share for share in shares if share is not None]
    if len(known) < max(_SEVERAL, len(shares)):
        return False
    now = [others_share(side) for side in sessions]
    alike = (min(known) - _ALIKE, max(known) + _ALIKE)
    return all(share is not None and alike[0] <= share <= alike[1] for share in now)


def others_share(side: Basis) -> float | None:
    """Find the share of the CPUs that other programs took, on the host where it was largest."""
    hosts = [rank.system.host for rank in side.ranks if rank.steps.count]
    shares = [None if host is None else host.others_cpu_fraction for host in hosts]
    return None if None in shares else max((share or 0.0 for share in shares), default=None)


def other_storage(ranks: tuple[Rank, Rank]) -> str | None:
    """Say that one session read far more from storage, the other from memory; None where both did alike."""
    known = [_from_storage(rank) for rank in ranks]
    if known[0] is None or known[1] is None:
        return None
    low, high = sorted(value for value in known if value is not None)
    if high <= _FEW_BYTES or high <= _MORE_FROM_STORAGE * low:
        return None
    cold = "the baseline" if known[0] > known[1] else "the session"
    return f"{cold} read its files from storage, the other from memory"


def _from_storage(rank: Rank) -> float | None:
    read_bytes = total(process.storage_read_bytes for process in rank.system.processes)
    if read_bytes is None or not rank.system.processes or not rank.steps.count:
        return None
    return read_bytes / rank.steps.count
