"""The exposed wait: the part of the data wait in which the accelerator had nothing to do."""

from __future__ import annotations

from dataclasses import dataclass

from iotrace.analysis.device.compute import Exposure
from iotrace.analysis.loop.deliveries import Step


@dataclass(frozen=True)
class ExposedWait:
    """Mean per step in ms, share of the step, how it is known, and over how many steps; None: unknown."""

    ms: float | None = None
    fraction: float | None = None
    source: str | None = None
    steps: int | None = None


def exposed_wait(kept: list[Step], accelerated: bool, by_kernels: Exposure | None = None) -> ExposedWait:
    """Without an accelerator, the raw wait; with one, by its events of every step, else by the kernels' gaps.

    `by_kernels` is of the steps inside the torch window, which `kept` leaves out.
    """
    if not accelerated:
        return _mean([(step.wait_ns, step.duration_ns) for step in kept], "cpu")
    # An epoch's last step awaits nothing: on its own it says nothing of the device.
    if any(step.awaited and step.exposed_ns is not None for step in kept):
        timed = [(step.exposed_ns, step.duration_ns) for step in kept if step.exposed_ns is not None]
        return _mean(timed, "cuda_events")
    if by_kernels is not None:
        exposed_ns, duration_ns, steps = by_kernels.exposed_ns, by_kernels.duration_ns, by_kernels.steps
        return ExposedWait(exposed_ns / steps / 1e6, exposed_ns / duration_ns, "kernels", steps)
    return ExposedWait()


def _mean(timed: list[tuple[int, int]], source: str) -> ExposedWait:
    exposed_ns = sum(exposed_ns for exposed_ns, _ in timed)
    duration_ns = sum(duration_ns for _, duration_ns in timed)
    return ExposedWait(exposed_ns / len(timed) / 1e6, exposed_ns / duration_ns, source, len(timed))
