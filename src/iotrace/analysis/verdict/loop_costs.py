"""What its loaders cost a loop in all, where that is more than waiting: iterators made anew, a slow start."""

from __future__ import annotations

import msgspec

from iotrace.analysis.results import (
    FIRST_BATCHES,
    FIRST_START,
    ITERATORS,
    SAMPLING,
    SKIPPED,
    VALIDATION_ITERATORS,
    WAITS,
    Account,
    LoopCode,
    RankReport,
)
from iotrace.analysis.wait.data_wait import MODERATELY_PERCENT
from iotrace.units import counted, duration, percent, shared_out

_WORTH_NAMING = 0.005  # of the time that is judged
_NEARLY = 0.9  # of what is judged: what is left needs no word


class LoopCosts(msgspec.Struct, frozen=True):
    """What is judged in place of the steady step's wait: its share, what is said of it, and why.

    `mostly_waits`: more than half of it is waiting for batches, which iterators made anew are no reason for.
    `beside` is the share that is no waiting for batches, `computed` what of it the loop itself computes.
    """

    fraction: float
    text: str
    why: str
    mostly_waits: bool
    cause: str = "startup"
    beside: float = 0.0
    computed: float = 0.0


def loop_costs(rank: RankReport) -> LoopCosts | None:
    """Judge the whole loop, and the first start where it could be shorter; None where steps tell it all."""
    account = rank.account
    if account is None or account.loader_pct is None or account.restarts_pct is None:
        return None
    is_once = account.avoidable_start_pct >= MODERATELY_PERCENT
    built = max((each for each in rank.loop_code if each.builds is not None), key=_seconds, default=None)
    built_ns = 0 if built is None else int(1e9 * built.seconds)
    builds = 100 * built_ns >= MODERATELY_PERCENT * account.loop_ns > 0
    if not is_once and not builds and not _restarts(account):
        return None
    whole_ns = account.loop_ns + (account.part_ns(FIRST_START) if is_once else 0)
    firsts_ns = account.validation_first_batches_ns
    parts = {
        "starting workers once": account.part_ns(FIRST_START) if is_once else 0,
        "building the data anew": built_ns if builds else 0,
        "choosing the samples of later epochs": account.part_ns(SAMPLING),
        _restarts_name(account): account.part_ns(ITERATORS),
        "starting the workers of its validation": account.part_ns(VALIDATION_ITERATORS) - firsts_ns,
        "first batches": account.first_batches_ns,
        "batches not trained on": account.part_ns(SKIPPED),
        "waiting for batches": account.part_ns(WAITS),
    }
    fraction = sum(parts.values()) / whole_ns
    shown = sorted(parts.items(), key=lambda part: -part[1])
    shown = [part for part in shown if part[1] >= _WORTH_NAMING * whole_ns]
    shares = shared_out(round(100 * fraction), [ns for _, ns in shown])
    named = ", ".join(f"{share} % {name}" for share, (name, _) in zip(shares, shown, strict=True) if share)
    of = "the loop and its start" if is_once else "the loop"
    mostly_waits = 2 * parts["waiting for batches"] > sum(parts.values())
    why, cause = _why(account) + _in_each_worker(rank, account), "startup"
    works = [each.sampler.said for each in rank.loaders if each.sampler is not None]
    if works and 2 * account.part_ns(SAMPLING) > account.restarts_ns + account.part_ns(SAMPLING):
        why, cause = works[0], "sampling"
    if builds and built is not None:
        others = is_once or _restarts(account)
        why = f"{built.said}; {why}" if others and built_ns < _NEARLY * sum(parts.values()) else built.said
    beside = (sum(parts.values()) - parts["waiting for batches"]) / whole_ns
    computed = (account.part_ns(SAMPLING) + (built_ns if builds else 0)) / whole_ns
    text = f"{percent(fraction)} of {of}: {named}"
    return LoopCosts(fraction, text, why, mostly_waits, cause, beside, computed)


def _seconds(code: LoopCode) -> float:
    return code.seconds


def _in_each_worker(rank: RankReport, account: Account) -> str:
    """Say what the workers do as they start: of those that are started anew, where that is told."""
    loaders = sorted(rank.loaders, key=lambda each: not each.primary)
    if _restarts(account):
        loaders = [each for each in loaders if each.persistent_workers is not True]
        if (of := _restarted(account)).kind:  # the others may do something else
            loaders = [each for each in loaders if (each.kind == "training") == (of.kind == "training")]
    return next((each.start_said for each in loaders if each.start_said), "")


class _Restarted(msgspec.Struct, frozen=True):
    """Iterators that were made anew: of training or of validation, empty where there are no others."""

    kind: str
    iterators: int
    workers: int
    first_ns: int
    rest_ns: int


def _restarted(account: Account) -> _Restarted:
    """Count those of training or of validation, whichever cost more: a mean over both is true of neither."""
    of_validation, of_loop = account.part(VALIDATION_ITERATORS), account.part(ITERATORS)
    evaluates = 0 if of_validation is None else of_validation.times or 0
    firsts_ns, validation_ns = account.validation_first_batches_ns, account.part_ns(VALIDATION_ITERATORS)
    if not evaluates:
        count, rest_ns = account.restarted or account.iterators, account.restarts_ns - firsts_ns
        return _Restarted("", count, account.workers_started, account.first_batches_ns, rest_ns)
    trains = account.restarted - evaluates or (0 if of_loop is None else of_loop.times or 0)
    first_ns, rest_ns = account.part_ns(FIRST_BATCHES), account.part_ns(ITERATORS)
    if trains > 0 and first_ns + rest_ns >= validation_ns:
        workers = account.workers_started - account.validation_workers_started
        return _Restarted("training", trains, workers, first_ns, rest_ns)
    workers = account.validation_workers_started
    return _Restarted("validation", evaluates, workers, firsts_ns, validation_ns - firsts_ns)


def _restarts(account: Account) -> bool:
    """Whether iterators that are made anew take 5 % of the loop or more."""
    return account.iterators > 0 and (account.restarts_pct or 0.0) >= MODERATELY_PERCENT


def _restarts_name(account: Account) -> str:
    if not account.workers_started:
        return "iterators of persistent workers"
    if 2 * account.one_batch_iterators >= account.iterators:
        return "making an iterator for each batch"
    return "starting workers each epoch"


def _why(account: Account) -> str:
    """Say how often workers were started, what that took, and what spawned ones did first."""
    spawned = account.spawned
    if _restarts(account):
        of = _restarted(account)
        started = f", with {counted(of.workers, 'new worker')}" if of.workers else ""
        each = f"{duration(of.rest_ns / of.iterators)} an iterator"
        if of.first_ns > of.rest_ns:
            first = duration(of.first_ns / of.iterators)
            each = f"the first batch of each takes {first}, the rest {each}"
        kind = f" of {of.kind}" if of.kind else ""
        parts = [f"{counted(of.iterators, 'iterator')}{kind} made anew{started}: {each}"]
    else:
        parts = [f"its workers took {duration(account.part_ns(FIRST_START))} to start"]
    if spawned is not None:
        does = []
        if spawned.import_ns:
            does.append(f"imports {spawned.imports} again ({duration(spawned.import_ns)})")
        if 10 * spawned.unpickle_ns > spawned.import_ns:
            does.append(f"unpickles its data ({duration(spawned.unpickle_ns)})")
        if does:
            parts.append(f"each {spawned.started} worker {' and '.join(does)}")
    return "; ".join(parts)
