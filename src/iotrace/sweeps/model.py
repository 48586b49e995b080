"""What one traced point predicts of the others, and what stops each of them.

A step ends when the consumer has computed and the next batch is there. With w workers that make a batch in
T_production each, the loop does min(1 / T_compute, w / T_production) steps a second, and never more than the
cores can compute: cores / CPU time of a step, of training and workers together. T_compute is the step less
the wait in which the accelerator had nothing to do: without workers, it works while a batch is made.
"""

from __future__ import annotations

from dataclasses import dataclass

from iotrace.sweeps.results import SweepRun

_NOT_INPUT_BOUND = 0.05  # XProf's bound, as a share of the step
_CORES_BUSY = 0.9
_PRODUCTION_GREW = 1.25


@dataclass(frozen=True)
class Model:
    """Measured at one point: times in ms per step, CPU time of all the job's processes included."""

    compute_ms: float
    production_ms: float
    cpu_ms: float | None
    cores: int
    launch_ms: (
        float  # what the consumer does in a step beside waiting: all of compute_ms without an accelerator
    )

    def per_second(self, workers: int) -> float:
        """Steps per second with `workers` workers; 0 workers make each batch between two steps."""
        if workers == 0:
            return 1e3 / max(self.compute_ms, self.launch_ms + self.production_ms)
        bounds = [1e3 / self.compute_ms, 1e3 * workers / self.production_ms]
        if self.cpu_ms:
            bounds.append(1e3 * self.cores / self.cpu_ms)
        return min(bounds)


def model_of(runs: list[SweepRun], cores: int) -> Model | None:
    """The model from the run with the fewest workers, at least one if any has; None without figures."""
    usable = [
        run for run in runs if run.ok and run.compute_ms and run.production_ms and run.workers is not None
    ]
    if not usable:
        return None
    source = min(usable, key=lambda run: (run.workers == 0, run.workers))
    assert source.compute_ms is not None
    assert source.production_ms is not None
    cpu_ms = None
    if source.cpu_pct_mean is not None and source.step_ms is not None:
        cpu_ms = source.cpu_pct_mean / 100 * source.step_ms
    launch_ms = source.compute_ms
    if source.step_ms is not None and source.raw_wait_fraction is not None:
        launch_ms = source.step_ms * (1 - source.raw_wait_fraction)
    return Model(source.compute_ms, source.production_ms, cpu_ms, cores, launch_ms)


def stopped_by(run: SweepRun, model: Model) -> str | None:
    """What keeps the point from being faster: ``compute``, ``cores``, ``storage`` or ``workers``."""
    fraction = run.raw_wait_fraction if run.stall_fraction is None else run.stall_fraction
    if fraction is None:
        return None
    if fraction < _NOT_INPUT_BOUND:
        return "compute"
    if run.cpu_pct_mean is not None and run.cpu_pct_mean >= 100 * _CORES_BUSY * model.cores:
        return "cores"
    reading = run.causes_ms.get("read", 0.0)
    grew = (run.production_ms or 0.0) > _PRODUCTION_GREW * model.production_ms
    if grew and reading >= max(run.causes_ms.values(), default=0.0) > 0:
        return "storage"
    return "workers"
