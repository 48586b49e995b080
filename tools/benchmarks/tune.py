"""Does ``iotrace tune`` find what brute force finds, in a third of its runs? Programs that sleep or compute.

Each program runs bare with every setting of a grid, then under tune; the best of both run in turns (A B A B).
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from tools.benchmarks.predict import PROGRAM, output_of

_WORKERS, _PREFETCH = (1, 2, 3, 4, 6, 8), (2, 4, 8)
_PAIRS = 3
_KNOBS = {
    "workers": "workers",
    "prefetch": "prefetch",
    "in_order": "order",
    "persistent_workers": "persistent",
}
# As in `predict`: milliseconds of a sample, a batch, a step; four samples to a batch.
PROGRAMS: dict[str, dict[str, Any]] = {
    "slow store": {"item": 20.0, "step": 15.0},
    "ragged samples": {"item": 6.0, "ragged": 16.0, "step": 15.0},
    "one slow sample in 32": {"slow": 240.0, "every": 8, "item": 8.0, "workers": 2},
    "short epochs": {"epochs": 8, "item": 8.0, "step": 10.0},
    "computing": {"item": 2.0, "burn": 4.0, "step": 10.0},
}
AT_CEILING = {"item": 0.5, "step": 150.0, "workers": 2}


class Found(NamedTuple):
    """Steps in ms; `ratio` is the time of brute force's best over that of tune's: 1 or more is as good."""

    name: str
    own_ms: float
    brute: str
    brute_ms: float
    brute_runs: int
    tuned: str
    runs: int
    ratio: float


def main() -> None:
    parser = argparse.ArgumentParser(prog="tools/bench tune", description=__doc__)
    parser.add_argument("--steps", type=int, default=48, help="of each run that tune makes (48)")
    parser.add_argument("--only", metavar="TEXT", default="", help="programs whose name holds TEXT")
    options = parser.parse_args()
    print("| Program | its own | brute force | runs | tune | runs | brute force / tune |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as made:
        program = Path(made) / "train.py"
        program.write_text(PROGRAM)
        for name, settings in PROGRAMS.items():
            if options.only in name:
                print(_line(_compare(name, settings, program, options.steps)), flush=True)
        told = _tune(program, AT_CEILING, options.steps, "ceiling")
    print(f"at its ceiling: {_runs(told)} runs, {told['stopped']} ({told['verdict']['class']})")
    print(
        f"{datetime.date.today()}, {platform.machine()}, {os.cpu_count()} CPUs, load {os.getloadavg()[1]:.1f}"
    )


def _compare(name: str, settings: dict[str, Any], program: Path, steps: int) -> Found:
    settings = {**settings, "steps": steps}
    grid = [settings, *({**settings, **change} for change in _grid(settings))]
    times = _bare(program, grid)
    best = min(range(len(grid)), key=times.__getitem__)
    told = _tune(program, settings, steps, name.replace(" ", "-"))
    params = {} if told["best"] is None else told["best"]["params"]
    chosen = {_KNOBS[key]: json.loads(value.lower()) for key, value in params.items() if key in _KNOBS}
    tuned = {**settings, **chosen}
    turns = _bare(program, [grid[best], tuned] * _PAIRS)
    ratio = sum(turns[0::2]) / sum(turns[1::2])
    return Found(
        name,
        times[0],
        _text(settings, grid[best]),
        times[best],
        len(grid),
        _text(settings, tuned),
        _runs(told),
        ratio,
    )


def _grid(settings: dict[str, Any]) -> list[dict[str, Any]]:
    """All settings that the programs can feel: no worker, or each number with each way to hand over."""
    persistent = (False, True) if settings.get("epochs", 1) > 1 else (False,)
    keys = ("workers", "prefetch", "order", "persistent")
    each = itertools.product(_WORKERS, _PREFETCH, (True, False), persistent)
    return [{"workers": 0}, *(dict(zip(keys, values, strict=True)) for values in each)]


def _bare(program: Path, settings: list[dict[str, Any]]) -> list[float]:
    """Return the mean step of each setting, in ms, apart from the first and last batches that lie in queues.

    While queues fill, workers are busier than later; once the last index is sent, they have nothing to do.
    """
    apart = max(_WORKERS) * max(_PREFETCH)
    settings = [{**each, "steps": each["steps"] + 2 * apart, "apart": apart} for each in settings]
    times: list[float] = json.loads(output_of([sys.executable, str(program), json.dumps(settings)]))
    return times


def _tune(program: Path, settings: dict[str, Any], steps: int, name: str) -> dict[str, Any]:
    settings = {**settings, "steps": 10 * steps}  # tune ends a run after its steps
    if settings.get("epochs", 1) > 1:
        settings["epochs"] *= 10
    command = [sys.executable, "-m", "iotrace", "tune", "--json", "--steps", str(steps)]
    directory = program.parent / name
    command += ["-o", str(directory), "--", sys.executable, str(program), json.dumps([settings])]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode not in (0, 1):  # 1: there is no advice
        raise SystemExit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _runs(told: dict[str, Any]) -> int:
    return sum(run.get("repeats", 1) or 1 for run in told["runs"]) + 1  # and the ceiling


def _text(before: dict[str, Any], after: dict[str, Any]) -> str:
    changed = [f"{key}={value}" for key, value in after.items() if before.get(key) != value]
    return ", ".join(changed) or "as it is"


def _line(each: Found) -> str:
    return (
        f"| {each.name} | {each.own_ms:.1f} | {each.brute}: {each.brute_ms:.1f} | {each.brute_runs} | "
        f"{each.tuned} | {each.runs} | {each.ratio:.3f} |"
    )


if __name__ == "__main__":
    main()
