"""One workload in all variants: passes in turns, and what each adds to the bare program's."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tools.benchmarks.statistics import Spread, differences, ratios, spread
from tools.benchmarks.steps import LEFT_OUT, steps_for
from tools.benchmarks.variants import BARE, Sample, interleaved, measure

# Words before the program.
_BEFORE = {"ddp_slow_rank": ["-m", "torch.distributed.run", "--nproc-per-node", "2"]}


@dataclass(frozen=True)
class Added:
    """What a variant adds. Ratios are over bare; None where it cannot be told from outside."""

    wall: Spread
    step: Spread
    apart_s: Spread  # to all but the steps of `step`
    cpu: Spread | None
    launcher_s: Spread | None
    window_s: Spread | None


@dataclass(frozen=True)
class Compared:
    """A workload's figures. `whole`: no pass was cut short by an interrupt."""

    command: list[str]
    steps: int
    bare_s: Spread
    bare_step_s: Spread
    added: dict[str, Added]
    whole: bool


def command_of(workload: Path, steps: int) -> list[str]:
    """How this workload is started."""
    return [sys.executable, *_BEFORE.get(workload.stem, []), str(workload), "--steps", str(steps)]


def compare(workload: Path, variants: list[str], passes: int, seconds: float, directory: Path) -> Compared:
    """Measure `workload` with `seconds` of steps, in so many passes."""
    # Not counted: it makes the data, fills the page cache, and tells how many steps are needed.
    step_s = measure(BARE, command_of(workload, LEFT_OUT + 20), directory).step_s
    if step_s is None:
        raise SystemExit(f"tools/bench: {workload.stem} does not print its steps")
    steps = steps_for(step_s, seconds)
    command = command_of(workload, steps)
    samples: dict[str, list[Sample]] = {variant: [] for variant in variants}
    whole = True
    try:
        for order in interleaved(variants, passes):
            for variant in order:
                sample = measure(variant, command, directory)
                samples[variant].append(sample)
                step = f", {1000 * sample.step_s:.1f} ms a step" if sample.step_s is not None else ""
                print(f"{workload.stem} {variant}: {sample.wall_s:.2f} s{step}", file=sys.stderr)
    except KeyboardInterrupt:  # what whole passes there are is shown
        complete = min(map(len, samples.values()))
        if not complete:
            raise
        samples = {variant: of_variant[:complete] for variant, of_variant in samples.items()}
        whole = False
    bare = samples[BARE]
    return Compared(
        command[1:],
        steps,
        spread([sample.wall_s for sample in bare]),
        spread(_all(bare, lambda sample: sample.step_s) or []),
        {variant: summed_up(samples[variant], bare) for variant in variants[1:]},
        whole,
    )


def summed_up(traced: list[Sample], bare: list[Sample]) -> Added:
    """What the runs `traced` add to those of the same passes, `bare`."""

    def pair(of: Callable[[Sample], float | None]) -> tuple[list[float], list[float]]:
        return _all(traced, of) or [], _all(bare, of) or []

    cpu, launcher_s, window_s = (
        _all(traced, of)
        for of in (
            lambda sample: sample.cpu_s,
            lambda sample: sample.launcher_s,
            lambda sample: sample.window_s,
        )
    )
    return Added(
        wall=ratios(*pair(lambda sample: sample.wall_s)),
        step=ratios(*pair(lambda sample: sample.step_s)),
        apart_s=differences(*pair(lambda sample: sample.rest_s)),
        cpu=ratios(cpu, _all(bare, lambda sample: sample.cpu_s) or []) if cpu else None,
        launcher_s=spread(launcher_s) if launcher_s else None,
        window_s=spread(window_s) if window_s else None,
    )


def _all(samples: list[Sample], of: Callable[[Sample], float | None]) -> list[float] | None:
    """A figure of every sample; None where one has none."""
    values = [value for sample in samples if (value := of(sample)) is not None]
    return values if len(values) == len(samples) else None
