"""What ``iotrace compare`` and ``iotrace check`` find, as plain data: their JSON is the contract.

Pairs are [before, after], of the first and the second session. Unknown is None.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from iotrace.analysis.results import Trust

COMMIT = "commit"  # what differs around the program where it does
DATA = "data"  # what differs where the second reads other files for the same work
PROGRAM = "program"  # where it is another file with the same arguments
REST = "the rest of the step"
OTHER = "other"
OF_TRAINING = ("forward", "backward", "optimizer")
_HALF = 0.5
_MOSTLY = 0.6  # of a change that is called other: what named parts have to have of it


class Changed(msgspec.Struct, frozen=True, kw_only=True):
    """What takes more or less of a step than before, by how much.

    `replaced_by`: the file that the second reads in place of `file`, where it is another one. `code` is the
    line, and its function, that most of it is in, on the side that takes more. `unsure`: other programs
    beside the runs may have done that.
    """

    what: str
    by_ms: float
    ci95_ms: list[float] | None
    cause: str | None
    file: str | None
    replaced_by: str | None = None
    code: str | None = None
    unsure: bool = False


class StageChange(msgspec.Struct, frozen=True, kw_only=True):
    """What a stage costs a sample, in one file (None: in all of both); `quiet`: as others took few CPUs.

    `cost_ms` is as it was measured; of CPU times the change is the one at the same speed of the CPUs. Runs
    of one program differ by more than `noise_pct` once in a hundred times. `decoded_bytes` is what decoding
    returned for a sample: a count, with a noise of its own; None of other stages, and where it is unknown.
    `replaced_by`: the file that the second reads in place of `file`, where it is another one.
    """

    what: str
    stage: str
    file: str | None
    clock: str
    quiet: bool
    cost_ms: list[float]
    change_pct: float
    ci95_pct: list[float]
    share: float
    noise_pct: float
    decoded_bytes: list[float] | None = None
    decoded_change_pct: float | None = None
    decoded_noise_pct: float | None = None
    replaced_by: str | None = None

    @property
    def short(self) -> str:
        """Name it in a column: of two files without the directories that both lie in."""
        _, brace, rest = self.what.partition("{")
        if self.replaced_by is None or not brace:
            return self.what
        if not rest.endswith("}"):
            return f"{self.stage} of {{{rest}"
        parts = [name.partition(".") for name in rest[:-1].split(" -> ")]
        if parts[0][0] == parts[-1][0]:  # the same name with other endings
            return f"{self.stage} of {parts[0][0]}.*"
        return f"{self.stage} of {rest[:-1]}"


class PartChange(msgspec.Struct, frozen=True, kw_only=True):
    """A part beside the loader that takes more or less than before; `times`: how often, where known.

    `bounded`: the smaller of `step_ms` is an upper bound. `unsure`: other programs may have changed it as
    much. `ci95_ms` is the interval of the change of what was sampled; None of what was timed. `within`: it
    is a part of forward, backward or optimizer.
    """

    what: str
    step_ms: list[float]
    times: list[int] | None
    bounded: bool = False
    ci95_ms: list[float] | None = None
    unsure: bool = False
    within: bool = False

    @property
    def by_ms(self) -> float:
        """The change, ms a step; at the least, where it is bounded."""
        return self.step_ms[1] - self.step_ms[0]

    @property
    def shown(self) -> str:
        """Both times, ms a step."""
        if self.times is not None and 0 in self.times and any(self.times):  # it may have been once, or last
            return " -> ".join(f"{ms:.1f}" if ms else "none seen" for ms in self.step_ms)
        least = ["below " if self.bounded and one == min(self.step_ms) else "" for one in self.step_ms]
        return f"{least[0]}{self.step_ms[0]:.1f} -> {least[1]}{self.step_ms[1]:.1f}"


class EpochChange(msgspec.Struct, frozen=True, kw_only=True):
    """An epoch of the same data with more or fewer batches than before; all epochs ran to their end.

    `seconds` are of the loop and the first start of its workers, `samples` those of a batch. `times`: how
    often an epoch had each sample, where that differs. `verdict` is as that of a comparison; `likely`: others
    shared the CPUs.
    """

    verdict: str
    batches: list[int]
    samples: list[int | None]
    seconds: list[float]
    change_pct: float
    times: list[int] | None = None
    likely: bool = False


class StartupPartChange(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the start-up that takes more or less than before."""

    what: str
    seconds: list[float]


class StartupChange(msgspec.Struct, frozen=True, kw_only=True):
    """The time before the loop, where parts of it changed by more than such times differ from run to run."""

    seconds: list[float]
    parts: list[StartupPartChange]


class WholeRun(msgspec.Struct, frozen=True, kw_only=True):
    """The whole loop and the first start of its workers, per step; `parts_ms` are those of the account.

    `starting_ms` is what starting workers, making iterators and their first batches take of it. `verdict` is
    ``faster`` or ``slower`` where that has most of the change, which is more than such times differ from run
    to run, or where those of `changed` that are a tenth of the whole have it; else None. `changed` are the
    parts beside the steps that changed by more than that, and by 2 % of the whole; beside others those that
    happen as often as before are `unsure`. `likely`: others shared the CPUs.
    """

    verdict: str | None
    step_ms: list[float]
    change_pct: float
    parts_ms: dict[str, list[float]]
    starting_ms: list[float]
    changed: list[PartChange] = []
    likely: bool = False

    @property
    def by_ms(self) -> float:
        """The change, ms a step."""
        return self.step_ms[1] - self.step_ms[0]


class Differing(msgspec.Struct, frozen=True, kw_only=True):
    """A setting, or something around the program, with its two values.

    `read_bytes`: of data, what traced reads of it returned in the whole run; None where that is unknown, or
    the runs were not equally long.
    """

    what: str
    values: list[str]
    read_bytes: list[int] | None = None


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two sessions."""

    path: str
    recorded: str | None
    steps: int
    trust: Trust


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """`verdict`: ``faster``, ``slower``, ``no-difference``, ``unknown``; `differs`: why not comparable.

    `alone_pct` is the interval of the change with nobody else on the CPUs: wider than `ci95_pct` where
    others took some. `likely`: that interval holds 0, and what a sample costs in CPU
    time, which no neighbour changes much, speaks for the verdict. `remedy` says what would make clear what
    is not.

    `refused` says why nothing of both can be compared, and what could be. `samples`: how many a step of each
    side takes on all ranks, where that differs: then all times of the second are for as many samples as a
    step of the first takes.

    `rank` stands for the job, of `ranks` on each side; `is_late`: as others wait for it. `rest_ms` is what a
    step does besides waiting: its phases, or the rest of it as one. `code` are functions of the loop's own
    that took more or less. `first` says what the first report named first, where the second does not;
    of a second that is slower the other way round.
    """

    schema_version: int
    sessions: list[Side]
    comparable: bool
    differs: list[str]
    verdict: str
    text: str
    rank: int
    ranks: list[int]
    step_ms: list[float]
    change_pct: float
    ci95_pct: list[float] | None
    wait_ms: list[float] | None
    causes_ms: dict[str, list[float]]
    rest_ms: dict[str, list[float]]
    changed: list[Changed]
    stages: list[StageChange]
    settings: list[Differing]
    environment: list[Differing]
    alone_pct: list[float] | None = None
    likely: bool = False
    remedy: str | None = None
    cpu_slower_pct: float | None = None  # a fixed piece of work, in the second; taken out of CPU times
    whole_run: WholeRun | None = None
    epoch: EpochChange | None = None
    code: list[PartChange] = []
    startup: StartupChange | None = None
    refused: str | None = None
    samples: list[int] | None = None
    is_late: bool = False
    first: str | None = None

    @property
    def unit(self) -> str:
        """What the times are of."""
        return unit_of(self.samples)

    @property
    def causes(self) -> list[Changed | PartChange]:
        """What changed, the largest first; without what is called other where named parts have most of it.

        Where epochs are compared, it is parts of a step alone: what comes once an epoch is in the epoch. No
        part that takes longer makes a run faster, nor the other way round.
        """
        beside = [] if self.whole_run is None or self.epoch is not None else self.whole_run.changed
        named = [*beside, *self.code]
        within = [each for each in self.code if each.within]
        besides = [each for each in named if each not in within]
        unnamed = [
            each
            for each in self.changed
            if (each.what in (OTHER, REST) and _explained(each, besides))
            or (each.what in OF_TRAINING and _explained(each, within))
        ]
        found: list[Changed | PartChange] = [*named, *(each for each in self.changed if each not in unnamed)]
        if self.verdict in ("faster", "slower"):
            found = [each for each in found if (each.by_ms < 0) == (self.verdict == "faster")]
        return sorted(found, key=lambda each: -abs(each.by_ms))

    @property
    def unexplained_ms(self) -> float | None:
        """How much longer a step takes, where `causes` have less than half of that; None where they have.

        Of runs that differ for certain: a small part of the change alone is not why.
        """
        if self.verdict not in ("faster", "slower") or self.epoch is not None:
            return None
        by_ms = self.step_ms[1] - self.step_ms[0]
        if (by_ms < 0) != (self.verdict == "faster") and self.whole_run is not None:  # which was judged
            by_ms = self.whole_run.by_ms
        explained_ms = sum(each.by_ms for each in self.causes)
        return by_ms if abs(explained_ms) < _HALF * abs(by_ms) else None


def unit_of(samples: Sequence[int] | None) -> str:
    """Name what times are of where a step of the two sides takes so many samples."""
    return "a step" if samples is None else f"for {samples[0]} samples"


def _explained(change: Changed, named: Sequence[PartChange]) -> bool:
    return sum(part.by_ms for part in named) / change.by_ms >= _MOSTLY if change.by_ms else False


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """A condition of ``--fail-if``: whether it holds; None where its figure is unknown."""

    condition: str
    holds: bool | None
    where: str | None
    value: float | None


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is worse, or of which that is not clear: a stage, a file, a setting, the step."""

    what: str
    text: str
    code: str | None = None  # of its rule


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the session passes: nothing is worse, and no condition holds.

    `session` and `baseline` are those in the middle, by the length of their steps, where there are several:
    of them are the fields of the comparison, each None without a baseline; its stages are of all. A growth
    of `finds_pct` of the first of these is found, a smaller one is not clear.
    `warnings`: sessions and baselines that were measured beside other programs, or say little by themselves;
    `warning_codes` are of the rules that say so.
    """

    schema_version: int
    ok: bool
    text: str
    worse: list[Finding]
    untold: list[Finding]
    conditions: list[Condition]
    session: str
    baseline: str | None
    comparable: bool | None
    step_ms: list[float] | None
    change_pct: float | None
    ci95_pct: list[float] | None
    causes_ms: dict[str, list[float]] | None
    changed: list[Changed] | None
    comparison: Comparison | None
    sessions: list[str] = []
    baselines: list[str] = []
    finds_pct: float | None = None
    warnings: list[str] = []
    warning_codes: list[str] = []


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """How a run compares with those before it; `kind` is empty where nothing is to be said.

    `against` are the sessions that it was compared with: those since the last change; `middle` is the one of
    them whose parts of a step are told.
    """

    kind: str = ""
    text: str = ""
    against: list[str] = []
    middle: str = ""
