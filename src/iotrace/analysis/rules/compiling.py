"""Functions that the loop compiles again and again: for new shapes, or as they are made anew."""

from __future__ import annotations

from collections.abc import Iterator

from iotrace.analysis.rules.facts.rank import RankFacts
from iotrace.analysis.rules.model import THE_LOOP, Finding, fires, rule, silent
from iotrace.analysis.rules.recurring import HIGH, LEAST_SECONDS, leads
from iotrace.analysis.wait.loop_events import COMPILATION

_STEPS = {"count": 38, "begun": 40, "mean_ms": 800.0}
_COMPILES = {
    "kind": COMPILATION,
    "count": 32,
    "late": 15,
    "seconds": 24.0,
    "seen_seconds": 24.0,
    "loop_seconds": 32.0,
    "loop_fraction": 0.75,
    "every_steps": 1.0,
    "compiler": "jax.jit",
    "function": "train_step (fit.py:95)",
}


@rule("IO519", "compiles-again-and-again", "loop", turn=THE_LOOP, saves_wait=False, of_run=True)
@fires(
    {"steps": _STEPS, "loop_events": [_COMPILES]},
    {"steps": _STEPS, "loop_events": [{**_COMPILES, "function": None}]},
    {"steps": _STEPS, "loop_events": [{**_COMPILES, "compiler": "torch.compile"}]},
)
@silent(
    # Each of a few shapes once.
    {"steps": _STEPS, "loop_events": [{**_COMPILES, "count": 4, "late": 3}]},
    {"steps": _STEPS, "loop_events": [{**_COMPILES, "count": 8, "late": 1}]},
    {"steps": _STEPS, "loop_events": [{**_COMPILES, "count": 1, "late": 0, "every_steps": None}]},
    {"steps": _STEPS, "loop_events": [{**_COMPILES, "seconds": 0.9, "loop_fraction": 0.03}]},
)
def compiles_again_and_again(
    facts: RankFacts, *, least_of_loop: float = 0.05, fewest: int = 5, fewest_late: int = 3
) -> Iterator[Finding]:
    """The loop compiles a function in step after step, and goes on with that: it takes much of its time.

    `jax.jit` compiles a function for each new shape of its arguments and for each new value of a static one,
    and again where the loop makes the function anew. So does `torch.compile` where it cannot do with one
    graph for all sizes. JAX and torch report when they compile; which function that is, is known of those
    that the loop calls. A few shapes, each compiled once, and whatever is compiled at the loop's beginning
    alone, are no finding.

    Remedy: pad the arguments to few shapes, such as lengths that are multiples of 64; make the compiled
    function once, before the loop. Of `torch.compile`: `dynamic=True`. The gain is a bound: what is padded
    computes more.
    """
    begun = facts.report.steps.begun or facts.report.steps.count
    for each in facts.report.loop_events:
        if each.kind != COMPILATION or each.count < fewest or (each.late or 0) < fewest_late:
            continue
        if each.loop_fraction < least_of_loop or each.seconds < LEAST_SECONDS:
            continue
        what = each.function or "a function of the loop"
        torch = each.compiler == "torch.compile"
        once = "torch.compile(dynamic=True)" if torch else "jit it once"
        account = facts.report.account
        gain_ms = 1e3 * each.seconds / account.steps if account is not None and account.steps else None
        yield Finding(
            text=f"{what} is compiled anew ({each.compiler}) in {each.count} of {begun} steps: "
            f"{each.seconds:.1f} of the loop's {each.loop_seconds:.1f} s",
            remedy=f"pad what {each.function or 'it'} gets to few shapes, or {once}",
            how="it is compiled for each new shape of its arguments: pad them to few (lengths to multiples "
            f"of 64); {once if torch else 'make it before the loop, not in each step'}",
            evidence={"count": float(each.count), "seconds": each.seconds, "late": float(each.late or 0)},
            level="high" if each.loop_fraction >= HIGH else "medium",
            is_main_cause=leads(facts, each),
            gain_ms=gain_ms,
            gain_interval_ms=None if gain_ms is None else [0.0, gain_ms],
        )
