"""What a sweep found, as plain data: its JSON is the contract (docs/sweep.md has the meanings).

Times are means in ms per measured step. None is unknown, never 0.
"""

from __future__ import annotations

import msgspec

from iotrace.analysis.results import Fix, Trust

SCHEMA_VERSION = 1
TRANSFORMERS = "transformers"  # whose Trainer makes the loader by arguments of its own


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Where the loop's loader comes from: the line that makes it, by the library `builder` if not itself.

    `settings` are those that it had, by the knobs' names. `others` are the lines of other loaders that the
    loop's steps wait for: a setting is set for all of them. Where no DataLoader makes the batches, `pool` is
    the class of the pool that does, or `by_hand` names the settings of a library's stages, each with its
    line: the agent sets these for a run, the program has to be edited.
    """

    site: str | None = None
    builder: str | None = None
    settings: dict[str, str] = {}
    others: list[str] = []
    pool: str = ""
    by_hand: list[str] = []

    def can_set(self, knob: str) -> bool:
        """Whether there is an argument for it, where a library makes the loader."""
        return self.builder != TRANSFORMERS or knob != "in_order"


class SweepRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the command at one point of the grid.

    `status` is ``ok`` or says why there is no figure: ``failed`` (its exit code), ``no steps`` (no loop gave
    any), ``not applied`` (the loader had other workers than asked, or no batches from memory). `inference`:
    no backward pass follows the loop's batches; `loaders` were iterated. `own_workers` are those that the
    program asks for by itself. `disturbed`: other programs or machines took so many CPUs that the times are
    not the command's own (docs/definitions.md, trust); without them a step takes `least_step_ms` at the
    least. `unqueued_step_ms` is left of a step without all queueing for a CPU. `batches` were delivered in
    all; with all that lies between steps one takes `loop_ms`. `cache` is the state of the page cache before
    the run: ``asis``, ``cold``, ``warm``, or ``cannot be`` one of them. `origin` is known of a DataLoader.
    """

    params: dict[str, str]
    kind: str  # "point", "cold", "ceiling" or "scout"
    repeat: int
    session: str
    status: str
    reason: str = ""
    exit_code: int | None = None
    steps: int = 0
    batches: int | None = None
    loop_ms: float | None = None
    step_ms: float | None = None
    step_ci95_ms: list[float] | None = None
    least_step_ms: float | None = None
    unqueued_step_ms: float | None = None
    samples_per_second: float | None = None
    compute_ms: float | None = None
    compute_ci95_ms: list[float] | None = None
    production_ms: float | None = None
    workers: int | None = None
    own_workers: int | None = None
    raw_wait_fraction: float | None = None
    stall_fraction: float | None = None
    causes_ms: dict[str, float] = {}
    costly_file: str = ""
    costly_file_ms: float | None = None
    cpu_pct_mean: float | None = None
    rss_peak_bytes: int | None = None
    others_cpu_fraction: float | None = None
    disturbed: bool = False
    tracing_pct: float | None = None
    ended: bool = False
    loaders: int = 0
    inference: bool = False
    cache: str = "asis"
    seconds: float = 0.0
    origin: Origin | None = None

    @property
    def ok(self) -> bool:
        """Whether its figures can be used."""
        return self.status == "ok"


class PointResult(msgspec.Struct, frozen=True, kw_only=True):
    """All repeats of one point. `stopped_by` is ``compute``, ``workers``, ``cores`` or ``storage``.

    `yours`: the program has these workers without the sweep. `disturbed`: one of the runs was; `alone_ci95`
    is `ci95` up to what the point may do with nobody else on the CPUs.
    `reason` says why `status` is not ``ok``, or else why a stall is unknown though it was asked for.
    """

    params: dict[str, str]
    workers: int | None
    repeats: int
    per_second: float | None
    ci95: list[float] | None
    alone_ci95: list[float] | None
    spread_pct: float | None
    yours: bool
    samples_per_second: float | None
    step_ms: float | None
    compute_ms: float | None
    contention_ms: float | None
    production_ms: float | None
    raw_wait_fraction: float | None
    stall_fraction: float | None
    causes_ms: dict[str, float]
    cpu_pct_mean: float | None
    rss_peak_bytes: int | None
    predicted_per_second: float | None
    stopped_by: str | None
    prep_stall_ms: float | None
    fetch_stall_ms: float | None
    others_cpu_fraction: float | None
    disturbed: bool
    noisy: bool
    ended: bool
    status: str
    reason: str
    sessions: list[str]

    @property
    def rate(self) -> float:
        """Its steps a second; 0 where they are not known."""
        return self.per_second or 0.0

    @property
    def gave_figures(self) -> bool:
        """Whether its steps a second are known."""
        return self.status == "ok" and bool(self.per_second)


class Ceiling(msgspec.Struct, frozen=True, kw_only=True):
    """Training on batches from memory: no loader can be faster. `step_ms` is T1 of DS-Analyzer.

    Where others took CPUs, `ci95` reaches to what it may do without them.
    """

    per_second: float
    step_ms: float
    ci95: list[float] | None
    session: str


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """The fewest workers that are as good as the best."""

    workers: int | None
    params: dict[str, str]
    text: str
    limited_by: str | None
    within_pct_of_best: float
    ci95: list[float] | None


class SweepVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What the sweep says first; its class is ``best`` or ``no-advice``. A gain is measured, no bound.

    `likely`: others took CPUs from the runs; the best point is so beyond the intervals all the same. `code`
    is that of the rule that says why.
    """

    text: str
    kind: str = msgspec.field(name="class")
    why: str | None
    fixes: list[Fix]
    trust: Trust
    likely: bool = False
    code: str | None = None


class SweepResult(msgspec.Struct, frozen=True, kw_only=True):
    """The whole sweep, as far as it has run; `warning_codes` are codes of the rules that warn."""

    schema_version: int
    path: str
    argv: list[str]
    complete: bool
    verdict: SweepVerdict
    points: list[PointResult]
    ceiling: Ceiling | None
    advice: Advice | None
    warnings: list[str]
    warning_codes: list[str] = []
