"""How fast the loop goes: batches a second of training, validation and the rest, and how that changes."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from iotrace.analysis.intervals import distinct
from iotrace.analysis.loop.deliveries import PHASES, Deliveries, LoaderRun
from iotrace.analysis.loop.loaders import production_ms
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import PhaseSpeed, Speed, SpeedPoint, total
from iotrace.analysis.table import NONE
from iotrace.sources.records import Tick
from iotrace.sources.session import Rank

_MOST_POINTS = 20


def speed_of(analysis: RankAnalysis) -> Speed | None:
    """Compute the speed of each phase of a rank; None where no batch was delivered."""
    by_phase: dict[str, list[tuple[LoaderRun, Deliveries]]] = defaultdict(list)
    for loader in analysis.loaders:
        if loader.number in analysis.within:  # another loader asks it
            continue
        own, texts = loader.deliveries, loader.deliveries.texts
        named: dict[str, list[int]] = defaultdict(list)
        for number in distinct(own["phase"]).tolist():
            phase = texts.get(number)
            named[PHASES.get(phase, phase) if phase else loader.kind].append(number)
        for phase, numbers in named.items():
            by_phase[phase].append((loader, own[np.isin(own["phase"], numbers)]))
    if not by_phase:
        return None
    order = [*PHASES.values(), *by_phase]
    busy_us = analysis.compute.accelerator.busy_us if analysis.compute.accelerator is not None else None
    return Speed(
        phases=[_phase(phase, by_phase[phase]) for phase in dict.fromkeys(order) if phase in by_phase],
        cpu_seconds=_cpu_seconds(analysis.rank),
        device_seconds=None if busy_us is None else busy_us / 1e6,
        device_steps=analysis.compute.breakdown_steps if busy_us is not None else None,
        evolution=_evolution(analysis),
    )


def _phase(phase: str, parts: list[tuple[LoaderRun, Deliveries]]) -> PhaseSpeed:
    """Sum up a phase over its loaders.

    A cycle lasts from one ask to the next of the same pass: what follows the last batch of a pass that was
    left is of no loader.
    """
    own = Deliveries.joined(deliveries for _, deliveries in parts)
    own = own[np.lexsort((own["epoch"], own["iterator"], own["loader"]))]
    keys = np.stack([own[field] for field in ("loader", "iterator", "epoch")], axis=1)
    is_first = np.append(True, (keys[1:] != keys[:-1]).any(axis=1))[: len(own)]
    following = np.append(own["wait_start_ns"][1:], NONE)[: len(own)]
    passes = {(loader.number, *key): each for loader, _ in parts for key, each in loader.passes.items()}
    for last in np.flatnonzero(np.append(is_first[1:], True)[: len(own)]).tolist():
        known = passes.get(tuple(keys[last].tolist()))
        following[last] = NONE if known is None or known.exhausted_ns is None else known.exhausted_ns[0]
    # The first batch of a pass waits for its workers' start.
    waited = int((~is_first).sum())
    closed = ~is_first & (following != NONE)
    cycles, seconds = int(closed.sum()), int((following - own["wait_start_ns"])[closed].sum()) / 1e9
    samples, samples_known = own["samples"], own.known("samples")
    samples_per_s = int(samples[closed].sum()) / seconds if seconds and samples_known[closed].all() else None
    productions = [
        max(1, loader.description.workers) * 1e3 / made_ms
        for loader, deliveries in parts
        if (made_ms := production_ms(deliveries)) and not loader.description.library
    ]
    return PhaseSpeed(
        phase=phase,
        batches=len(own),
        samples=int(samples.sum()) if samples_known.all() else None,
        cycles=cycles,
        seconds=seconds,
        batches_per_second=cycles / seconds if seconds else None,
        samples_per_second=samples_per_s,
        wait_ms=int(own.wait_ns[~is_first].sum()) / waited / 1e6 if waited else None,
        production_per_second=productions[0] if len(productions) == len(parts) == 1 else None,
    )


def _cpu_seconds(rank: Rank) -> float | None:
    """Sum up the CPU time of a rank's processes, from the start of each to its last account."""
    accounts = [process.of_type(Tick) for process in rank.processes]
    used_ns = total(ticks[-1].cpu_ns if ticks else None for ticks in accounts)
    return None if used_ns is None else used_ns / 1e9


def _evolution(analysis: RankAnalysis) -> list[SpeedPoint]:
    kept = analysis.kept
    if not len(kept):
        return []
    each = -(-len(kept) // _MOST_POINTS)
    begin_ns = analysis.loop.steps[0].start_ns
    points = []
    for first in range(0, len(kept), each):
        steps = kept[first : first + each]
        length_ns = int(steps.duration_ns.sum())
        if length_ns:
            points.append(
                SpeedPoint(
                    first_step=first,
                    steps=len(steps),
                    at_seconds=(steps[0].start_ns - begin_ns) / 1e9,
                    steps_per_second=1e9 * len(steps) / length_ns,
                    wait_fraction=min(1.0, int(steps.wait_ns.sum()) / length_ns),
                )
            )
    return points
