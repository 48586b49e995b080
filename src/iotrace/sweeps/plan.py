"""What a sweep runs: the grid, and the order of the runs."""

from __future__ import annotations

from pathlib import Path

import msgspec

from iotrace.errors import UsageError
from iotrace.sweeps.execute import Request
from iotrace.sweeps.grid import PREFETCH, check_placeholders, points


class SweepPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asked for. It is kept with the runs, so that a sweep is resumed as it was begun."""

    command: list[str]
    axes: dict[str, list[str]]
    repeats: int
    steps: int | None
    cache: str
    ceiling: bool
    options: list[str] = []

    @property
    def points(self) -> list[dict[str, str]]:
        """The grid's points, in order."""
        return points(self.axes)

    def requests(self, directory: Path) -> list[Request]:
        """List all runs below `directory`, in their order.

        Repeats are interleaved, so that a slow hour slows every point alike.
        """
        found = []
        if self.cache != "asis":
            found.append(self.request(directory, "scout", self.points[0], 0))
        if self.ceiling:
            found.append(self.request(directory, "ceiling", self.points[0], 0))
        for repeat in range(self.repeats):
            for params in self.points:
                if self.cache == "cold":
                    found.append(self.request(directory, "cold", params, repeat))
                found.append(self.request(directory, "point", params, repeat))
        return found

    def request(self, directory: Path, kind: str, params: dict[str, str], repeat: int) -> Request:
        """Make the request of one run."""
        name = "_".join(f"{key}={value}" for key, value in params.items())
        safe = "".join(c if c.isalnum() or c in "._=-" else "-" for c in f"{kind}_{name}_{repeat}")
        return Request(
            command=self.command,
            params=params,
            kind=kind,
            repeat=repeat,
            directory=directory / "runs" / safe,
            steps=self.steps,
            options=tuple(self.options),
        )


def plan_of(
    command: list[str],
    axes: dict[str, list[str]],
    *,
    repeat: int,
    steps: int | None,
    cache: str,
    ceiling: bool,
    io: list[str],
) -> SweepPlan:
    """Check what was asked and make it a plan.

    Raises:
        UsageError: it cannot be run.
    """
    example = "iotrace sweep --workers 1,4,7 -- python train.py"
    if not command:
        raise UsageError("no command was given", example)
    if not axes:
        raise UsageError("nothing to compare was given", example)
    if "0" in axes.get(PREFETCH, []):
        raise UsageError("--prefetch 0 is no prefetch factor", "give values from 1 up")
    if cache not in ("asis", "warm", "cold") or repeat < 1 or (steps is not None and steps < 2):
        raise UsageError("cache is asis, warm or cold; repeat from 1 up; steps from 2 up", example)
    check_placeholders(command, axes)
    return SweepPlan(
        command=command,
        axes=axes,
        repeats=repeat,
        steps=steps,
        cache=cache,
        ceiling=ceiling,
        options=[word for path in io for word in ("--io", path)],
    )
