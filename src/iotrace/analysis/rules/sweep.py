"""How far the advice of a sweep or a search can be relied on."""

from __future__ import annotations

from collections.abc import Iterator

from iotrace.analysis.results import CAUTION
from iotrace.analysis.rules.facts.sweep import SweepFacts
from iotrace.analysis.rules.model import Finding, fires, rule, silent
from iotrace.units import counted, percent

_FIRST = "IO900"  # the place of what matters most


@rule("IO901", "sweep-beside-others", "sweep")
@fires({"disturbed": 4, "taken_fraction": 0.58}, {"disturbed": 1})
@silent({"disturbed": 0, "taken_fraction": 0.03})
def beside_others(facts: SweepFacts) -> Iterator[Finding]:
    """Other programs took CPUs from runs of the sweep.

    Points whose intervals do not overlap are still ranked, as likely. Where others took much more at one
    point than at another, these intervals reach to what each point may do alone.

    Remedy: repeat the sweep with fewer other programs, and with more runs a point.
    """
    if facts.disturbed:
        taken = "" if facts.taken_fraction is None else f"up to {percent(facts.taken_fraction)} of "
        where = f"{facts.disturbed} of {counted(facts.runs, 'run')}"
        yield Finding(level=CAUTION, text=f"other programs took {taken}the CPUs in {where}")


@rule("IO902", "above-ceiling", "sweep")
@fires({"above": "4 workers: 20 steps/s against 11"})
@silent({"above": None})
def above_ceiling(facts: SweepFacts) -> Iterator[Finding]:
    """A point is faster than training on batches from memory, which no loader can beat.

    One of the two was measured wrong: something held it up, or the program differs from run to run.

    Remedy: repeat the sweep with more runs a point.
    """
    if facts.above is not None:
        yield Finding(level=CAUTION, text=f"faster than batches from memory: {facts.above}")


@rule("IO903", "sweep-others-unknown", "sweep")
@fires({"others_unknown": True})
@silent({"others_unknown": False})
def others_unknown(facts: SweepFacts) -> Iterator[Finding]:
    """It is not known whether other programs used the CPUs."""
    if facts.others_unknown:
        yield Finding(level=CAUTION, text="not known: whether other programs were busy")


@rule("IO904", "single-runs", "sweep")
@fires({"fewest_repeats": 1})
@silent({"fewest_repeats": 2}, {"fewest_repeats": None})
def single_runs(facts: SweepFacts) -> Iterator[Finding]:
    """A point was run once: how much its runs differ is not known.

    Remedy: `--repeat 5`; `--resume` keeps the runs that there are.
    """
    if facts.fewest_repeats == 1:
        yield Finding(level=CAUTION, text="1 run a point: how much runs differ is not known")


@rule("IO905", "runs-differ", "sweep")
@fires({"spread_pct": 25.0})
@silent({"spread_pct": 3.0})
def runs_differ(facts: SweepFacts, *, least_pct: float = 10.0) -> Iterator[Finding]:
    """Runs of one point differ much from each other."""
    if facts.spread_pct is not None and facts.spread_pct > least_pct:
        yield Finding(level=CAUTION, text=f"runs of one point differ by up to {facts.spread_pct:.0f} %")


@rule("IO906", "few-steps-in-a-run", "sweep")
@fires({"fewest_steps": 8})
@silent({"fewest_steps": 20}, {"fewest_steps": None})
def few_steps_in_a_run(facts: SweepFacts, *, fewest: int = 20) -> Iterator[Finding]:
    """A run measured few steps.

    Remedy: more `--steps`.
    """
    if facts.fewest_steps is not None and facts.fewest_steps < fewest:
        text = f"{counted(facts.fewest_steps, 'measured step')} in a run: give more --steps"
        yield Finding(level=CAUTION, text=text)


@rule("IO907", "sweep-tracing-cost", "sweep")
@fires({"tracing_pct": 6.0})
@silent({"tracing_pct": 0.4})
def tracing_cost(facts: SweepFacts, *, least_pct: float = 2.0) -> Iterator[Finding]:
    """Tracing itself took much of a step."""
    if facts.tracing_pct is not None and facts.tracing_pct >= least_pct:
        yield Finding(level=CAUTION, text=f"tracing took up to {facts.tracing_pct:.0f} % of a step")


@rule("IO908", "points-missing", "sweep")
@fires({"missing": 1})
@silent({"missing": 0})
def points_missing(facts: SweepFacts) -> Iterator[Finding]:
    """A point gave no figures: it may have been the best."""
    if facts.missing:
        text = f"{facts.missing} of {counted(facts.points, 'point')} gave no figures"
        yield Finding(level=CAUTION, text=text)


@rule("IO909", "not-proven", "sweep")
@fires({"is_proven": False})
@silent({"is_proven": True}, {"is_proven": True, "is_whole": False})
def not_proven(facts: SweepFacts) -> Iterator[Finding]:
    """The best setting of a search and the program's own were not run in turns.

    Remedy: a larger `--budget`; `--resume` goes on with the runs that there are.
    """
    if not facts.is_proven:
        text = "no pair was run as proof: how much runs differ is not known"
        yield Finding(level=CAUTION, text=text, place=_FIRST)


@rule("IO910", "search-cut-short", "sweep")
@fires({"is_whole": False})
@silent({"is_whole": True}, {"is_whole": False, "is_proven": False})
def search_cut_short(facts: SweepFacts) -> Iterator[Finding]:
    """A search was cut short: settings that it did not try may be better.

    Remedy: a larger `--budget`; `--resume` goes on with the runs that there are.
    """
    if facts.is_proven and not facts.is_whole:
        yield Finding(level=CAUTION, text="the search did not end")
