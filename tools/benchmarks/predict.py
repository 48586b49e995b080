"""What do predictions miss? Changes that `report --view gain` predicts, against runs with the change.

Each program runs traced once; then bare with and without the change in turns (A B A B) by its own clock.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

_MOST_APART = 0.03  # of A: what its two runs may differ
_TRIES = 2
_CLEAR = 0.05  # of the step: below it no change has a sign
_MINUTE_S = 60

# A loop over a loader, timed by a clock of its own; costs in ms. One process runs it with each setting of a
# list: torch is imported once.
PROGRAM = """
import json, sys, time
import torch
from torch.utils.data import DataLoader, Dataset
torch.set_num_threads(1)
DEFAULTS = dict(workers=1, prefetch=2, order=True, persistent=False, epochs=1, steps=64, item=10.0, step=20.0,
    slow=0.0, every=0, collate=0.0, burn=0.0, ragged=0.0, kib=1, apart=0)
def burn(ms):
    until = time.thread_time() + ms / 1e3
    while time.thread_time() < until:
        pass
class Items(Dataset):
    def __init__(self, a):
        self.a = a
    def __len__(self):
        return 4 * self.a["steps"] // self.a["epochs"]
    def __getitem__(self, index):
        a = self.a
        slow = a["every"] and index % (4 * a["every"]) == 4
        ragged = a["ragged"] * (index * 7919 % 101) / 50
        time.sleep((a["slow"] if slow else a["item"] + ragged) / 1e3)
        burn(a["burn"])
        return torch.zeros(a["kib"] * 256)
def main(a):
    a = {**DEFAULTS, **a}
    def collate(items):
        time.sleep(a["collate"] / 1e3)
        return torch.utils.data.default_collate(items)
    many = dict(prefetch_factor=a["prefetch"], persistent_workers=a["persistent"], in_order=a["order"])
    loader = DataLoader(Items(a), batch_size=4, num_workers=a["workers"], collate_fn=collate,
        **(many if a["workers"] else {}))
    weight = torch.nn.Parameter(torch.ones(1))
    times = []
    for epoch in range(a["epochs"]):
        for batch in loader:
            times.append(time.monotonic())
            (weight * batch.mean()).sum().backward()
            weight.grad = None
            time.sleep(a["step"] / 1e3)
    first, last = max(2 + a["workers"], a["apart"]), len(times) - 1 - a["apart"]
    return 1e3 * (times[last] - times[first]) / (last - first)
print(json.dumps([main(each) for each in json.loads(sys.argv[1])]))
"""


class Intervention(NamedTuple):
    """A change: the program before, what is changed of it, and the row of the gains that means it."""

    name: str
    before: dict[str, Any]
    change: dict[str, Any]
    row: str
    how: str = "gone"
    contended: bool = False


_SLOW = {"slow": 240.0, "every": 8, "workers": 2, "item": 8.0}
_EPOCHS = {"epochs": 8, "steps": 64}
INTERVENTIONS = [
    Intervention("transform gone, 1 worker", {}, {"item": 0.0}, "transform"),
    Intervention("transform halved, 1 worker", {}, {"item": 5.0}, "transform", "halved"),
    Intervention("transform gone, 2 workers", {"workers": 2, "item": 16.0}, {"item": 0.0}, "transform"),
    Intervention(
        "transform halved, 2 workers", {"workers": 2, "item": 16.0}, {"item": 8.0}, "transform", "halved"
    ),
    Intervention("transform gone, no worker", {"workers": 0}, {"item": 0.0}, "transform"),
    Intervention("transform halved, no worker", {"workers": 0}, {"item": 5.0}, "transform", "halved"),
    Intervention("transform gone, ragged", {"ragged": 10.0}, {"item": 0.0, "ragged": 0.0}, "transform"),
    Intervention("collate gone", {"collate": 30.0, "item": 4.0}, {"collate": 0.0}, "collate"),
    Intervention("collate halved", {"collate": 60.0, "item": 4.0}, {"collate": 30.0}, "collate", "halved"),
    Intervention("collate gone, no worker", {"workers": 0, "collate": 30.0}, {"collate": 0.0}, "collate"),
    Intervention("1 to 2 workers", {}, {"workers": 2}, "num_workers=2"),
    Intervention("1 to 2 workers, still too few", {"item": 24.0}, {"workers": 2}, "num_workers=2"),
    Intervention("1 to 4 workers", {"item": 20.0}, {"workers": 4}, "num_workers=4"),
    Intervention("1 to 5 workers", {"item": 24.0}, {"workers": 5}, "num_workers=5"),
    Intervention("2 to 3 workers", {"workers": 2, "item": 16.0}, {"workers": 3}, "num_workers=3"),
    Intervention("2 to 4 workers", {"workers": 2, "item": 20.0}, {"workers": 4}, "num_workers=4"),
    Intervention("2 to 1 worker", {"workers": 2, "item": 16.0}, {"workers": 1}, "num_workers=1"),
    Intervention("2 to 4 workers, ragged", {"workers": 2, "ragged": 16.0}, {"workers": 4}, "num_workers=4"),
    Intervention("2 to 4 workers, slow samples", _SLOW, {"workers": 4}, "num_workers=4"),
    Intervention(
        "prefetch 1 to 2", {"prefetch": 1, "ragged": 8.0, "workers": 2}, {"prefetch": 2}, "prefetch_factor=2"
    ),
    Intervention("prefetch 2 to 4, slow samples", _SLOW, {"prefetch": 4}, "prefetch_factor=4"),
    Intervention(
        "prefetch 2 to 4, alike", {"workers": 2, "item": 16.0}, {"prefetch": 4}, "prefetch_factor=4"
    ),
    Intervention("in_order off, slow samples", _SLOW, {"order": False}, "in_order=False"),
    Intervention("in_order off, alike", {"workers": 2, "item": 16.0}, {"order": False}, "in_order=False"),
    Intervention("slow samples gone", _SLOW, {"every": 0}, "slow-samples"),
    Intervention(
        "persistent workers, 8 epochs",
        {**_EPOCHS, "workers": 2},
        {"persistent": True},
        "persistent_workers=True",
    ),
    Intervention("persistent workers, 1 worker", _EPOCHS, {"persistent": True}, "persistent_workers=True"),
    Intervention(
        "computing: transform gone", {"item": 1.0, "burn": 12.0}, {"item": 0.0, "burn": 0.0}, "transform"
    ),
    Intervention(
        "computing: 1 to 2 workers",
        {"item": 1.0, "burn": 12.0},
        {"workers": 2},
        "num_workers=2",
        contended=True,
    ),
    Intervention(
        "half computing: 1 to 2 workers",
        {"item": 10.0, "burn": 6.0},
        {"workers": 2},
        "num_workers=2",
        contended=True,
    ),
]


class Outcome(NamedTuple):
    """Steps in ms; `withheld` says why nothing was predicted, `uneven` that the two A differed too much."""

    name: str
    contended: bool
    before: float | None
    measured: float | None
    predicted: float | None
    interval: list[float] | None
    withheld: str | None
    uneven: bool

    @property
    def error(self) -> float | None:
        """By what share of the measured step the prediction missed it."""
        if self.predicted is None or self.measured is None or self.uneven:
            return None
        return self.predicted / self.measured - 1


def main() -> None:
    parser = argparse.ArgumentParser(prog="tools/bench predict", description=__doc__)
    parser.add_argument("--only", metavar="TEXT", default="", help="Interventions whose name holds TEXT.")
    parser.add_argument("--json", metavar="FILE", type=Path, help="Also write the outcomes.")
    parser.add_argument("--real", action="store_true", help="The project's workloads instead.")
    parser.add_argument("--steps", type=int, default=80, help="Of the workloads (80).")
    options = parser.parse_args()
    outcomes = []
    if options.real:
        from tools.benchmarks.predict_real import outcomes_of

        for outcome in outcomes_of(options.only, options.steps):
            outcomes.append(outcome)
            print(line_of(outcome), flush=True)
    with tempfile.TemporaryDirectory() as made:
        program = Path(made) / "program.py"
        program.write_text(PROGRAM)
        asked = [] if options.real else INTERVENTIONS
        for number, each in enumerate(one for one in asked if options.only in one.name):
            outcomes.append(_outcome(each, program, Path(made) / str(number)))
            print(line_of(outcomes[-1]), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps([each._asdict() for each in outcomes], indent=1))
    print(_summary(outcomes))


def _outcome(each: Intervention, program: Path, directory: Path) -> Outcome:
    """Predict, then measure in turns until the two runs without the change agree."""
    directory.mkdir()
    command = [sys.executable, str(program)]
    rank = traced([*command, json.dumps([each.before])], directory / "session")
    changes = (each.how, each.row.rpartition("=")[2])
    rows = [row for row in rank["gain"] if row["id"] == each.row and row["change"] in changes]
    turns = json.dumps([each.before, {**each.before, **each.change}] * 2)
    return judged(
        each.name, each.contended, rank, rows, lambda: list(json.loads(output_of([*command, turns])))
    )


def traced(command: list[str], session: Path) -> dict[str, Any]:
    """Run a command traced; return what the report says of its rank."""
    iotrace = [sys.executable, "-m", "iotrace"]
    output_of([*iotrace, "run", "--quiet", "--torch-steps", "off", "-o", str(session), "--", *command])
    report = json.loads(output_of([*iotrace, "report", str(session), "--json"], whole=True))
    found: dict[str, Any] = report["ranks"][0]
    return found


def judged(
    name: str,
    contended: bool,
    rank: dict[str, Any],
    rows: list[dict[str, Any]],
    measure: Callable[[], list[float]],
) -> Outcome:
    """Hold a prediction against the steps in ms, A B A B, that `measure` returns."""
    withheld = rank["gain_withheld"] or (rows[0]["withheld"] if rows else "no row of it")
    times: list[float] = []
    uneven = True
    for _ in range(_TRIES):
        times = measure()
        uneven = abs(times[2] / times[0] - 1) > _MOST_APART
        if not uneven:
            break
    before, measured = (times[0] + times[2]) / 2, (times[1] + times[3]) / 2
    # Tracing has its own cost: the ratio that is predicted is held against the ratio that is measured.
    scale = before / rank["steps"]["mean_ms"] if rank["steps"]["mean_ms"] else 1.0
    predicted = rows[0]["predicted_ms_per_step"] if rows and not withheld else None
    interval = rows[0]["interval_ms"] if predicted is not None else None
    return Outcome(
        name,
        contended,
        before,
        measured,
        None if predicted is None else predicted * scale,
        None if interval is None else [end * scale for end in interval],
        withheld,
        uneven,
    )


def output_of(command: list[str], whole: bool = False) -> str:
    """Run a command to its end; return its last line, or the whole output."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=5 * _MINUTE_S)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[:6])} failed:\n{done.stderr[-2000:]}")
    return done.stdout if whole else done.stdout.strip().splitlines()[-1]


def line_of(each: Outcome) -> str:
    told = each.withheld or ""
    if each.predicted is not None and each.interval is not None:
        told = f"{each.predicted:.1f} ({each.interval[0]:.1f} to {each.interval[1]:.1f})"
    error = (
        f"{100 * each.error:+.1f} %" if each.error is not None else "withheld" if each.withheld else "uneven"
    )
    return f"| {each.name} | {each.before:.1f} | {each.measured:.1f} | {told} | {error} |"


def _summary(outcomes: list[Outcome]) -> str:
    told = [each for each in outcomes if each.error is not None]
    errors = sorted(abs(each.error) for each in told if each.error is not None)
    wrong = [each.name for each in told if _wrong_sign(each)]
    inside = sum(
        each.interval is not None and each.interval[0] <= (each.measured or 0) <= each.interval[1]
        for each in told
    )
    withheld = sum(each.withheld is not None for each in outcomes)
    lines = [
        f"{datetime.date.today()}, {platform.machine()}, {os.cpu_count()} CPUs, "
        f"load {os.getloadavg()[1]:.1f}",
        f"{len(outcomes)} interventions: {len(told)} predicted, {withheld} withheld, "
        f"{sum(each.uneven and each.withheld is None for each in outcomes)} uneven",
    ]
    if errors:
        ninth = errors[min(len(errors) - 1, round(0.9 * (len(errors) - 1)))]
        lines.append(
            f"median error {100 * statistics.median(errors):.1f} %, nine of ten within {100 * ninth:.1f} %, "
            f"{inside} of {len(told)} inside their interval, wrong sign: {', '.join(wrong) or 'none'}"
        )
    return "\n".join(lines)


def _wrong_sign(each: Outcome) -> bool:
    assert each.before is not None
    assert each.measured is not None
    assert each.predicted is not None
    was, told = each.measured / each.before - 1, each.predicted / each.before - 1
    return abs(was) > _CLEAR and was * told < 0


if __name__ == "__main__":
    main()
