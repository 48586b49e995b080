"""What a tuning found, as plain data: its JSON is the contract (docs/tune.md has the meanings)."""

from __future__ import annotations

import msgspec

from iotrace.sweeps.results import Ceiling, PointResult, SweepVerdict

SCHEMA_VERSION = 1


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """A setting that was measured: what was changed of the program's own, and steps per second."""

    params: dict[str, str]
    per_second: float | None
    ci95: list[float] | None


class Best(Setting, frozen=True, kw_only=True):
    """The best setting. `predicted_per_second`: by the model before its first run.

    `ratio_ci95` is how many times as fast as the program's own it is; `apply` says how to type the change.
    """

    predicted_per_second: float | None
    ratio: float | None
    ratio_ci95: list[float] | None
    apply: list[str]


class NoEffect(msgspec.Struct, frozen=True, kw_only=True):
    """A change that is not worth it: its effect on steps per second in %, ``measured`` or ``predicted``."""

    knob: str
    interval_pct: list[float]
    source: str


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """A setting that this place has no room for, with the figure, and the code of the rule."""

    params: dict[str, str]
    why: str
    code: str | None = None


class TuneResult(msgspec.Struct, frozen=True, kw_only=True):
    """The whole search, as far as it has run. `stopped`: why it ended; `warning_codes` are codes of rules."""

    schema_version: int
    path: str
    argv: list[str]
    complete: bool
    stopped: str
    verdict: SweepVerdict
    baseline: Setting | None
    best: Best | None
    at_ceiling: bool
    ceiling: Ceiling | None
    runs: list[PointResult]
    no_effect: list[NoEffect]
    refused: list[Refused]
    warnings: list[str]
    warning_codes: list[str] = []
