"""How fast the loop goes: batches a second of training, validation and the rest, and how that changes."""

from __future__ import annotations

from collections import defaultdict

from iotrace.analysis.loop.deliveries import PHASES, Delivery, LoaderRun
from iotrace.analysis.loop.loaders import production_ms
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import PhaseSpeed, Speed, SpeedPoint
from iotrace.sources.records import Tick
from iotrace.sources.session import Rank

_MOST_POINTS = 20


def speed_of(analysis: RankAnalysis) -> Speed | None:
    """Compute the speed of each phase of a rank; None where no batch was delivered."""
    by_phase: dict[str, list[tuple[LoaderRun, list[Delivery]]]] = defaultdict(list)
    for loader in analysis.loaders:
        if loader.number in analysis.within:  # another loader asks it
            continue
        own: dict[str, list[Delivery]] = defaultdict(list)
        for delivery in loader.deliveries:
            own[PHASES.get(delivery.phase, delivery.phase) if delivery.phase else loader.kind].append(
                delivery
            )
        for phase, deliveries in own.items():
            by_phase[phase].append((loader, deliveries))
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


def _phase(phase: str, parts: list[tuple[LoaderRun, list[Delivery]]]) -> PhaseSpeed:
    """Sum up a phase over its loaders.

    A cycle lasts from one ask to the next of the same pass: what follows the last batch of a pass that was
    left is of no loader.
    """
    cycles = cycle_ns = wait_ns = waited = batches = 0
    samples: int | None = 0
    cycle_samples: int | None = 0
    productions = []
    for loader, deliveries in parts:
        batches += len(deliveries)
        passes: dict[tuple[int, int], list[Delivery]] = defaultdict(list)
        for delivery in deliveries:
            passes[delivery.of_pass].append(delivery)
            samples = None if samples is None or delivery.samples is None else samples + delivery.samples
        for key, own in passes.items():
            asks = [delivery.wait_start_ns for delivery in own]
            known = loader.passes.get(key)
            if known is not None and known.exhausted_ns is not None:
                asks.append(known.exhausted_ns[0])
            # The first batch of a pass waits for its workers' start.
            closed = list(zip(own, asks, asks[1:], strict=False))[1:]
            for delivery, ask, following in closed:
                cycles += 1
                cycle_ns += following - ask
                unknown = cycle_samples is None or delivery.samples is None
                cycle_samples = None if unknown else (cycle_samples or 0) + (delivery.samples or 0)
            wait_ns += sum(delivery.wait_ns for delivery in own[1:])
            waited += len(own[1:])
        made_ms = production_ms(deliveries)
        if made_ms and not loader.description.library:
            productions.append(max(1, loader.description.workers) * 1e3 / made_ms)
    seconds = cycle_ns / 1e9
    return PhaseSpeed(
        phase=phase,
        batches=batches,
        samples=samples,
        cycles=cycles,
        seconds=seconds,
        batches_per_second=cycles / seconds if seconds else None,
        samples_per_second=cycle_samples / seconds if seconds and cycle_samples is not None else None,
        wait_ms=wait_ns / waited / 1e6 if waited else None,
        production_per_second=productions[0] if len(productions) == len(parts) == 1 else None,
    )


def _cpu_seconds(rank: Rank) -> float | None:
    """Sum up the CPU time of a rank's processes, from the first account of each to its last."""
    used_ns = 0
    for process in rank.processes:
        ticks = process.of_type(Tick)
        if not ticks:
            return None
        used_ns += ticks[-1].cpu_ns
    return used_ns / 1e9


def _evolution(analysis: RankAnalysis) -> list[SpeedPoint]:
    kept = analysis.kept
    if not kept:
        return []
    each = -(-len(kept) // _MOST_POINTS)
    begin_ns = analysis.loop.steps[0].start_ns
    points = []
    for first in range(0, len(kept), each):
        steps = kept[first : first + each]
        length_ns = sum(step.duration_ns for step in steps)
        if length_ns:
            points.append(
                SpeedPoint(
                    first_step=first,
                    steps=len(steps),
                    at_seconds=(steps[0].start_ns - begin_ns) / 1e9,
                    steps_per_second=1e9 * len(steps) / length_ns,
                    wait_fraction=min(1.0, sum(step.wait_ns for step in steps) / length_ns),
                )
            )
    return points
