"""What is known of the runs of a sweep or a search: what its advice and doubts of it rest on."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class SweepFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The runs that gave figures, and their points; None is unknown.

    In `disturbed` of the `runs` others took CPUs, in one of them `taken_fraction`. `above` names the fastest
    point above the ceiling. `spread_pct` is the most by which runs of a point differ. `missing` of the
    `points` gave no figures. `is_proven`: of a search, the best and the program's own ran in turns;
    `is_whole`: it ended by itself.
    """

    runs: int = 0
    disturbed: int = 0
    taken_fraction: float | None = None
    others_unknown: bool = False
    above: str | None = None
    fewest_repeats: int | None = None
    spread_pct: float | None = None
    fewest_steps: int | None = None
    tracing_pct: float | None = None
    points: int = 0
    missing: int = 0
    is_proven: bool = True
    is_whole: bool = True


class OutcomeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a sweep or a search met beside its figures, one thing or several; what is empty did not happen.

    `workers` were asked for on `cpus`. Of `ended` points iotrace ended the program. What is not known of
    `point` is said by `unknown`. A run of `failed` ended with `status`, as `reason` and its `last_line` say;
    `no_ceiling`: it was that of the ceiling of a sweep. The chosen setting changes the workers of an
    `iterable` dataset, or lets batches come `out_of_order`. `not_predicted` says why no setting was,
    `missed_fraction` by how much the model missed one.
    """

    workers: Sequence[int] = ()
    cpus: int = 1
    cache_problem: str = ""
    ended: Sequence[str] = ()
    point: str = ""
    unknown: str = ""
    failed: str = ""
    no_ceiling: bool = False
    status: str = ""
    reason: str = ""
    last_line: str = ""
    iterable: bool = False
    out_of_order: bool = False
    not_predicted: str = ""
    missed_fraction: float | None = None


class SettingFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a setting may need beside the program's own, of a place where so much is left; None is unknown.

    `workers` are those of each of `ranks`, on `cpus`; `more_workers` of all ranks are added.
    """

    workers: int
    ranks: int
    cpus: float
    more_workers: int = 0
    memory_needed_bytes: float | None = None
    memory_left_bytes: int | None = None
    shm_needed_bytes: float | None = None
    shm_left_bytes: int | None = None
    descriptors_needed: int = 0
    descriptors: int | None = None


class PointFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The chosen point of a sweep, and the next one with more workers; None is unknown.

    It still waits `wait_fraction` of a step, of which `left` names the largest part; `unmade_fraction` of
    the wait is for batches that were not made yet. `stopped_by` is what bounds it. With `next_workers`
    it is `next_is_faster`, or takes `next_compute_ms` to compute a step instead of `compute_ms`.
    """

    workers: int
    wait_fraction: float
    stopped_by: str
    left: str = ""
    disturbed: bool = False
    unmade_fraction: float | None = None
    next_workers: int | None = None
    next_is_faster: bool = False
    compute_ms: float | None = None
    next_compute_ms: float | None = None

    @property
    def waits(self) -> str:
        """Say how much of a step it waits."""
        return f"{100 * self.wait_fraction:.0f} % of the step"


class ChoiceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is in the way of a choice between points, of which `points` gave figures.

    `only` is the one that did, `vague` has no interval. `above_ceiling` names the point that is faster than
    its ceiling, `apart` two of which one may be faster; each with its figures. `quiet` says how to
    measure anew.
    """

    points: int
    only: str = ""
    vague: str = ""
    above_ceiling: tuple[str, str] | None = None
    apart: tuple[str, str] | None = None
    quiet: str = ""
