"""In words: what a fix gains, how fast steps go, why some are slow, device, files, failures, hangs."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

from iotrace.analysis.results import (
    ACCOUNT_NAMES,
    MOST_FACTOR,
    VALIDATION_ITERATORS,
    WIDE,
    Account,
    Failure,
    Fix,
    Forecast,
    HangInfo,
    LoaderResult,
    RankReport,
    SessionInfo,
    SlowLoopSteps,
)
from iotrace.analysis.rules.startup import OWN_START, SLOW_IMPORTS
from iotrace.analysis.verdict.reason import SEVERAL, unit_of
from iotrace.units import counted, duration, milliseconds, percent, shared_out, size

_WORTH_A_FACTOR = 1.05  # a speedup below is told in ms
_SMALL_FACTOR = 1.1
_LEAST_MS = 0.05  # what is shown as 0.0
_MOST_GROUPS = 2
_WORTH_NAMING = 0.01  # of the wait
_LONG_START = 0.05  # of the run
_WORTH_TELLING = 0.1  # of a gain: what is beyond the cost of the fix's own cause
_MOST_PARTS = 3  # of slow steps
_WORTH_A_LINE = 0.05  # of the time of the measured steps
_WAITS = frozenset(("read", "decode", "transform", "collate", "sampling", "transport"))
_PART_NAMES = {
    "garbage_collection": "garbage collection",
    "asleep": "asleep (time.sleep)",
    "startup": "workers start",
    "drawing": "choosing samples",
    "restart": "making iterators",
    "queued": "batches queued",
    "collectives": "waits in collectives",
    "neighbours": "no CPU: others",
    "throttling": "no CPU: quota",
    "no_cpu": "no CPU",
    "unnamed": "not explained",
}
# Parts of a recording by their names in JSON.
_CALLED = {"posix": "POSIX calls", "compute": "operators and kernels"}
_PARTS_NOT_CAPTURED = re.compile(r"^(?:posix|compute)\b")


def gain_text(fix: Fix) -> str:
    """What a fix gains: of a setting as predicted, with its interval; else about, and at most.

    What a fix leaves of its cause nobody knows.
    """
    gain_ms, most_ms = fix.gain_ms_per_step, fix.bound_ms
    if gain_ms is None or (fix.may_gain_none and fix.told[1] is None):
        return ""
    if fix.gain_interval_ms is not None and fix.is_predicted:
        return _predicted_text(fix, gain_ms, fix.gain_interval_ms)
    about, most = fix.told
    if most is not None and most >= _WORTH_A_FACTOR:
        if about is None or about < _WORTH_A_FACTOR:
            return f"at most {_faster(most)}"
        is_wide = most >= WIDE * about  # what queued for CPUs, most often: how much of that goes nobody knows
        return (
            f"{_times(about)}x to {_faster(most)}"
            if is_wide
            else f"about {_times(about)}x, at most {_faster(most)}"
        )
    if about is not None and about >= _WORTH_A_FACTOR:
        if most_ms is not None and WIDE * about <= MOST_FACTOR:
            return f"{about:.1f}x to over {MOST_FACTOR:.0f}x faster"
        told = f"{_times(about)}x faster" if about <= MOST_FACTOR else _shorter(about)
        return f"about {told}, perhaps more"
    if most_ms is None:
        return f"about {milliseconds(gain_ms)} a step, perhaps more"
    return f"at most {milliseconds(most_ms)} a step"


def _faster(most: float) -> str:
    """Say a bound, rounded up to what is shown of it."""
    if most > MOST_FACTOR:
        return _shorter(most)
    shown = 100 if most < _SMALL_FACTOR else 10
    return f"{_times(math.ceil(shown * most - 1e-6) / shown)}x faster"


def _times(factor: float) -> str:
    """Write a factor, a small one to a hundredth: 1.06 is no 1.1."""
    return f"{factor:.2f}" if factor < _SMALL_FACTOR else f"{factor:.1f}"


def _shorter(factor: float) -> str:
    return f"{percent(1 - 1 / factor)} shorter steps"


def _predicted_text(fix: Fix, gain_ms: float, interval_ms: Sequence[float]) -> str:
    low_ms, high_ms = interval_ms
    if fix.speedup is None or fix.speedup < _WORTH_A_FACTOR:
        return f"saves {milliseconds(gain_ms)} a step ({low_ms:.1f} to {high_ms:.1f})"
    step_ms = gain_ms / (1 - 1 / fix.speedup)
    if fix.speedup > MOST_FACTOR:
        low, high = (f"{100 * max(each, 0.0) / step_ms:.0f}" for each in interval_ms)
        return f"{percent(gain_ms / step_ms)} shorter steps ({low} to {high})"
    low, high = (f"{step_ms / max(step_ms - each, 0.01 * step_ms):.1f}" for each in (low_ms, high_ms))
    return f"{fix.speedup:.1f}x faster ({low} to {high})"


def other_wait_text(fix: Fix) -> str:
    """Say why a fix gains more than its own cause or file costs; empty where it does not."""
    gain_ms, cost_ms = fix.gain_ms_per_step, fix.cost_ms_per_step
    if gain_ms is None or cost_ms is None or gain_ms - cost_ms < _WORTH_TELLING * gain_ms:
        return ""
    more = milliseconds(gain_ms - cost_ms)
    return f"{milliseconds(cost_ms)} a step of waits for it, and {more} of waits for others, end with it"


def who_failed(failure: Failure, several: bool) -> str:
    """Name the worker, thread or process that an exception ended; of `several` ranks with the rank."""
    training = failure.role == "rank"
    who = "the training process" if training else failure.role or "a process"
    if failure.worker is not None:
        who = f"worker {failure.worker}"
    if several and failure.rank is not None:
        who = (
            f"rank {failure.rank}" if training and failure.worker is None else f"{who} of rank {failure.rank}"
        )
    return f"thread {failure.thread} of {who}" if failure.thread is not None else who


def hang_text(hang: HangInfo) -> str:
    """Say a hang in one sentence: its first line, then who is in what; not who only waits for work."""
    first, *others = hang.text or [f"no batch for {hang.waited_seconds:.0f} s"]
    told = [line for line in others if not line.endswith("waits for work")]
    return f"{first}: {'; '.join(told)}" if told else first


def hang_rows(session: SessionInfo) -> list[tuple[str, str]]:
    """Say each hang of the run: its lines, and the file of each stack."""
    rows = []
    for hang in session.hangs:
        lines = [*hang.text, *["batches came again"] * hang.resumed]
        lines += [f"Python stacks of pid {each.pid}: {each.stacks}" for each in hang.processes if each.stacks]
        rows += [("" if number else "hang", text) for number, text in enumerate(lines)]
    return rows


def device_facts(rank: RankReport) -> list[str]:
    """Say how long the device was busy, and for which phases, where launches tell; they sum to that."""
    found = rank.accelerator
    if found is None or found.by_phase is None:
        return []
    parts = []
    for one in found.by_phase:
        if one.busy_us is None:
            continue
        alone_ms = (one.comm_alone_us or 0.0) / 1e3
        alone = f" ({alone_ms:.1f} communication alone)" if alone_ms >= _LEAST_MS else ""
        parts.append(f"{one.phase} {one.busy_us / 1e3:.1f}{alone}")
    span_us = found.span_us if found.idle_time is None else found.idle_time.span_us
    busy = f"busy {found.busy_us / 1e3:.1f} of {milliseconds(span_us / 1e3)} traced"
    return [busy, " · ".join(parts)]


def step_parts_ms(rank: RankReport) -> dict[str, float]:
    """What is known of a step: its data wait, and what the host did in the rest."""
    phases = rank.phases_ms
    parts = {
        "data wait": rank.data_wait.raw_ms,
        "forward": phases.forward,
        "backward": phases.backward,
        "optimizer": phases.optimizer,
        "other": phases.other,
    }
    return {name: ms for name, ms in parts.items() if ms is not None}


def pace_texts(rank: RankReport) -> list[str]:
    """Say how many steps and samples a second; where a step is no update, or takes several batches, too.

    What comes from a queue or a pool may be no batch: an item.
    """
    steps, found = rank.steps, []
    if steps.per_second is not None:
        found.append(f"{steps.per_second:.1f} steps/s")
    if steps.samples_per_second is not None:
        found.append(f"{steps.samples_per_second:.1f} samples/s")
    if (steps.per_update or 0.0) >= SEVERAL:
        found.append(f"{steps.per_update:.3g} steps an update")
    if (steps.batches or 0.0) >= SEVERAL:
        found.append(f"{steps.batches:.3g} {unit_of(rank)} a step")
    return found


def part_name(part: str) -> str:
    """Name a part of a slow step as people read it."""
    return f"wait for {part}" if part in _WAITS else _PART_NAMES.get(part, part)


def part_not_captured(part: str) -> str:
    """Name a part that is not captured as people call it."""
    return _PARTS_NOT_CAPTURED.sub(lambda found: _CALLED[found[0]], part)


def slow_text(found: SlowLoopSteps) -> str:
    """Sum up the slow steps and their causes in one line."""
    parts = sorted(found.parts_ms.items(), key=lambda pair: -pair[1])[:_MOST_PARTS]
    named = [
        f"{part_name(part)} {percent(min(1.0, ms / found.over_ms))}"
        for part, ms in parts
        if ms >= 0.01 * found.over_ms
    ]
    if found.unnamed_ms >= 0.01 * found.over_ms:
        named.append(f"not explained {percent(found.unnamed_ms / found.over_ms)}")
    apart = f", apart from {found.apart} with recurring work of the loop" if found.apart else ""
    slow = f"{'was' if found.count == 1 else 'were'} slow, by {milliseconds(found.over_ms)} in all{apart}"
    return f"{found.count} of {found.measured} steps {slow}: " + ", ".join(named)


def loop_facts(rank: RankReport, why: str | None) -> list[str]:
    """What the loop does again and again beside its steps, where that takes much of its time.

    `why`: what the verdict said already.
    """
    said = [each.said for each in rank.recurring if each.loop_fraction >= _WORTH_A_LINE]
    return [each for each in said if each not in (why or "")]


def slow_facts(rank: RankReport) -> list[str]:
    """What a first screen says of slow steps: nothing where they hardly matter."""
    found, steps = rank.loop_slow_steps, rank.steps
    if found is None or not found.count or steps.mean_ms is None:
        return []
    return [slow_text(found)] if found.over_ms >= _WORTH_A_LINE * steps.mean_ms * steps.count else []


def forecast_texts(forecasts: Iterable[Forecast]) -> list[str]:
    """What a first screen says of what runs out: nothing of what ends before."""
    return [each.text for each in forecasts if each.seconds is not None]


def file_facts(rank: RankReport) -> list[str]:
    """The files, summed up, that cost the wait most; what else was read."""
    worth_ms = max(_LEAST_MS, _WORTH_NAMING * (rank.data_wait.raw_ms or 0.0))
    shown = [group for group in rank.file_groups if group.cost_ms >= worth_ms][:_MOST_GROUPS]
    parts = []
    for group in shown:
        few = f", {len(group.few.paths)} of them {percent(group.few.fraction)}" if group.few else ""
        members = counted(group.members_read or group.members or 0, "file")
        files = "" if group.members is None else f" ({members}{few})"
        own = {"decode": group.decode_ms, "transform": group.transform_ms, "read": group.read_ms}
        of = ", ".join(f"{name} {ms:.1f}" for name, ms in own.items() if ms is not None and ms >= _LEAST_MS)
        parts.append(f"{group.path}{files} {milliseconds(group.cost_ms)} a step{f' ({of})' if of else ''}")
    # Of a mapped file no call reads: how many bytes came of it is unknown.
    read = [group for group in rank.file_groups if group.reads or group.read_bytes is None]
    rest = [group for group in read if group not in shown]
    if rest:
        known = [group.read_bytes for group in rest if group.read_bytes is not None]
        least = "" if len(known) == len(rest) else "≥ "
        count = sum(group.members_read or group.members or 1 for group in rest)
    if rest and (not least or sum(known)):  # else of no byte it is known
        parts.append(f"{counted(count, 'other' if parts else 'file')}: {least}{size(sum(known))} read in all")
    return parts


def start_facts(rank: RankReport) -> list[str]:
    """What held the start up and can be helped, where it is much of the run."""
    if rank.startup is None or rank.steps.loop_seconds is None:
        return []
    long = rank.startup.seconds >= _LONG_START * (rank.startup.seconds + rank.steps.loop_seconds)
    slow = [each for each in rank.culprits if each.id in (SLOW_IMPORTS, OWN_START) and each.remedy and long]
    return [f"{each.text}: {each.remedy}" for each in slow]


def _workers(rank: RankReport, made_by: LoaderResult) -> str:
    """Count the workers: of several loaders that the steps wait for those of each."""
    awaited = {each.loader for each in rank.data_wait.by_loader}
    beside = [loader for loader in rank.loaders if loader.id in awaited and not loader.wrapped]
    if len(beside) > 1 and made_by in beside:
        of = ", ".join(f"{loader.named} {loader.workers}" for loader in beside)
        return f"{counted(sum(loader.workers for loader in beside), 'worker')} ({of})"
    several = len({loader.named for loader in rank.loaders if not loader.wrapped}) > 1
    return f"{counted(made_by.workers, 'worker')}{f' of {made_by.named}' if several else ''}"


def run_facts(rank: RankReport) -> list[str]:
    """What the run was: all of its time, its workers, its memory."""
    parts = []
    if rank.account is None and rank.startup is not None:
        parts.append(f"start-up {_seconds(rank.startup.seconds)}")
    if rank.account is None and rank.steps.loop_seconds is not None:
        parts.append(f"training {_seconds(rank.steps.loop_seconds)}")
    primary = rank.primary
    within = [loader for loader in rank.loaders if primary is not None and loader.within == primary.id]
    made_by = within[0] if len(within) == 1 else primary
    if made_by is not None and not made_by.wrapped:
        parts.append(_workers(rank, made_by))
    together, resident = rank.system.pss_peak_bytes, rank.system.rss_peak_bytes
    if together is not None:
        parts.append(f"memory {size(together)} at most")
    elif resident is not None:
        shared = " (RSS: shared pages count in each process)" if len(rank.system.processes) > 1 else ""
        parts.append(f"memory {size(resident)} at most{shared}")
    return [*account_facts(rank.account), " · ".join(parts)] if parts else account_facts(rank.account)


def account_facts(account: Account | None) -> list[str]:
    """All of the run's time, part by part, in seconds and whole percent, which sum to 100."""
    if account is None or not account.whole_ns:
        return []
    known = {ACCOUNT_NAMES.get(part.name, part.name): part.ns for part in account.parts if part.ns}
    firsts_ns = account.validation_first_batches_ns
    if firsts_ns:
        known[ACCOUNT_NAMES[VALIDATION_ITERATORS]] -= firsts_ns
        known["first batches of its validation"] = firsts_ns
    shares = shared_out(100, [*known.values()])
    shown = [
        f"{name} {_seconds_of(ns)} ({share} %)"
        for (name, ns), share in zip(known.items(), shares, strict=True)
        if share
    ]
    return [f"{_seconds(account.whole_ns / 1e9)}: {' · '.join(shown)}"]


def spawned_texts(account: Account | None) -> list[str]:
    """What spawned workers did before they worked."""
    if account is None or account.spawned is None:
        return []
    found = account.spawned
    needed = f"{duration(found.needed_ns)} of that torch and numpy"
    imports = f"{duration(found.import_ns)} to import {found.script} again ({needed})" if found.script else ""
    given = f"{duration(found.unpickle_ns)} to unpickle {size(found.pickled_bytes / max(1, found.count))}"
    pickled = f"pickling took {duration(found.pickle_ns)} in all"
    return [", ".join(each for each in (f"{found.count} spawned: {imports}", given, pickled) if each)]


def _seconds_of(time_ns: int) -> str:
    return _seconds(time_ns / 1e9) if time_ns >= 10**8 else f"{time_ns / 1e6:.0f} ms"


def _seconds(seconds: float) -> str:
    if seconds < 600:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 300 else f"{minutes // 60} h"
