"""States of sweeps to go on with: the recorded one, and others made of it with other figures and other plans.

Nothing is missing in any of them: ``iotrace sweep --resume`` runs nothing and says what it makes of the runs.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tools.golden_cases.recording import Make, Recorder

State = dict[str, Any]
_SCALES = {"cold": 1.6, "scout": 1.1}


def sweep_states() -> dict[str, Make]:
    """How each state is made, by name."""
    made: dict[str, Callable[[State], None]] = {
        "quiet": lambda state: None,
        "noisy": partial(_set, disturbed=True, others_cpu_fraction=0.6),
        "compute": partial(_set, raw_wait_fraction=0.02),
        "cores": partial(_set, cpu_pct_mean=195.0),
        "storage": _storage,
        "ended": partial(_set, ended=True),
        "no_ceiling": _no_ceiling,
        "repeats": _repeats,
        "repeats_differ": partial(_repeats, spread=0.3),
        "cold": _cold,
        "warm": _warm,
        "prefetch": _prefetch,
        "equal": _equal,
        "many_workers": _many_workers,
    }
    return {f"{name}.json": partial(_make, change=change) for name, change in made.items()}


def resume_arguments(state: State) -> list[str]:
    """The arguments of ``iotrace sweep`` that go on with `state`, without its directory."""
    plan = state["plan"]
    found = ["sweep", "--resume", "--repeat", str(plan["repeats"]), "--steps", str(plan["steps"])]
    for name, values in plan["axes"].items():
        found += [f"--{name}", ",".join(values)]
    found += ["--cache", plan["cache"], *plan["options"]]
    return [*found, *([] if plan["ceiling"] else ["--no-ceiling"])]


def _make(recorder: Recorder, path: Path, *, change: Callable[[State], None]) -> None:
    recorded = recorder.recorded.path / "sweeps" / "sleeper" / "sweep.json"
    state: State = json.loads(recorded.read_text())
    _set(state, others_cpu_fraction=0.03, disturbed=False, own_workers=1)
    for run in state["runs"]:
        run["step_ci95_ms"] = run["step_ms"] and [0.97 * run["step_ms"], 1.03 * run["step_ms"]]
    change(state)
    path.write_text(json.dumps(state, indent=2))


def _points(state: State) -> list[dict[str, Any]]:
    return [run for run in state["runs"] if run["kind"] == "point"]


def _set(state: State, **figures: Any) -> None:
    for run in state["runs"]:
        run.update(figures)


def _scaled(run: dict[str, Any], factor: float, **changes: Any) -> dict[str, Any]:
    """A copy of a run whose steps take `factor` times as long."""
    made: dict[str, Any] = {**copy.deepcopy(run), **changes}
    for name, power in (("step_ms", 1), ("compute_ms", 1), ("production_ms", 1), ("samples_per_second", -1)):
        made[name] = made[name] and made[name] * factor**power
    made["step_ci95_ms"] = [end * factor for end in made["step_ci95_ms"]]
    return made


def _storage(state: State) -> None:
    slow = _points(state)[-1]
    slow["production_ms"] *= 4
    slow["causes_ms"].update(read=20.0, transform=1.0)
    slow.update(costly_file="data/big.h5", costly_file_ms=15.0)


def _no_ceiling(state: State) -> None:
    state["plan"]["ceiling"] = False
    state["runs"] = _points(state)


def _repeats(state: State, spread: float = 0.02) -> None:
    state["plan"]["repeats"] = 3
    for number in (1, 2):
        more = [
            _scaled(run, 1 + spread * number, repeat=number) for run in _points(state) if not run["repeat"]
        ]
        state["runs"] += more


def _cold(state: State) -> None:
    state["plan"]["cache"] = "cold"
    points = _points(state)
    state["runs"].append(_scaled(points[0], _SCALES["scout"], kind="scout"))
    for run, cache in zip(points, ("cold", "cannot be cold"), strict=True):
        state["runs"].append(_scaled(run, _SCALES["cold"], kind="cold", cache=cache))
        run["cache"] = "warm"


def _warm(state: State) -> None:
    state["plan"]["cache"] = "warm"
    points = _points(state)
    state["runs"].append(_scaled(points[0], _SCALES["scout"], kind="scout"))
    for run, cache in zip(points, ("warm", "cannot be warm"), strict=True):
        run["cache"] = cache


def _prefetch(state: State) -> None:
    state["plan"]["axes"]["prefetch"] = ["2", "8"]
    runs = []
    for run in state["runs"]:
        for prefetch, factor in (("2", 1.0), ("8", 0.9)):
            if run["kind"] == "point" or prefetch == "2":
                runs.append(_scaled(run, factor, params={**run["params"], "prefetch": prefetch}))
    state["runs"] = runs


def _equal(state: State) -> None:
    one, other = _points(state)
    other.update({name: one[name] for name in ("step_ms", "step_ci95_ms", "samples_per_second")})


def _many_workers(state: State) -> None:
    """More workers than cores, and none."""
    state["plan"]["axes"]["workers"] = ["0", "1", "2", "64"]
    one, two = _points(state)
    none = _scaled(one, 2.2, params={"workers": "0"}, workers=0)
    state["runs"] += [none, _scaled(two, 1.3, params={"workers": "64"}, workers=64)]
    for run in state["runs"]:
        if run["kind"] == "ceiling":  # it is run at the first point
            run["params"] = {"workers": "0"}
