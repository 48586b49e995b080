"""How far the figures of a rank can be relied on. Each pair of bounds is (caution, bad)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from operator import attrgetter

from iotrace.analysis.host.disturbance import TRACING_COST, alone
from iotrace.analysis.resampling import FEWEST
from iotrace.analysis.results import BAD, CAUTION, TRACING_PERCENT
from iotrace.analysis.rules.disturbances import MIB, SHORTER, Bounds, doubt
from iotrace.analysis.rules.facts.trust import TrustFacts
from iotrace.analysis.rules.loop import CODE
from iotrace.analysis.rules.model import Finding, fires, rule, silent
from iotrace.analysis.verdict.loop_costs import loop_costs
from iotrace.analysis.wait.data_wait import KEPT_UP_PERCENT, bound_fraction
from iotrace.units import bounds, counted, percent

_FIRST = "IO701"  # the code at whose place a doubt is told that is a symptom
_SEEN = {"IO218": "asleep_ms", "IO238": "locked_ms", "IO250": "locked_ms"}  # what looks at threads explain
_MOST = 0.5  # of how steps differ: what code that grows has to explain
_LONG_STEPS = 2.0  # p95 over median, from which it is said
_GROWS: dict[str, object] = {
    "loop_code": [{**CODE, "ms_per_step": 60.0, "grows_ms": [10.0, 110.0]}],
    "culprits": [{"id": "code-of-the-loop", "code": "IO506"}],
}
_UNSURE: dict[str, object] = {
    "host": {"others_cpu_fraction": 0.9, "cpu_busy_fraction": 0.99},
    "wait": {
        "raw_ms": 60.0,
        "raw_wait_fraction_ci95": [0.5, 0.7],
        "causes_ms": {"decode": 60.0},
        "without_cpu_ms": {"decode": 55.0},
        "queueing_ms": 55.0,
    },
    "processes": [{"role": "main", "run_delay_pct_mean": 1.0}],
}
# The loop itself computes for 45 % of its time, others or not.
_DRAWS: dict[str, object] = {
    "loop_ns": 100,
    "steps": 10,
    "iterators": 5,
    "loader_pct": 95.0,
    "restarts_pct": 45.0,
    "parts": [
        {"name": "sampling", "ns": 45, "in_loop": True},
        {"name": "waits", "ns": 50, "in_loop": True},
    ],
}
_VERDICT_BOUNDS = (0.05, 0.20)
_LAST = "IO799"  # what only says that a small figure is unknown
_CODE_AND_PIPES_BYTES, _OF_EACH_PROCESS_BYTES = 10 << 20, 1 << 20


@rule("IO701", "few-steps", "trust")
@fires({"steps": {"count": 12}}, {"steps": {"count": 0, "mean_ms": None}})
@silent({"steps": {"count": 20}})
def few_steps(facts: TrustFacts, *, fewest: int = 20) -> Iterator[Finding]:
    """Few steps were measured: a mean of them says little of the next ones."""
    count = facts.report.steps.count
    if count < fewest:
        text = f"{counted(count, 'step')} measured" if count else "no step was measured"
        yield Finding(level=BAD if count < FEWEST else CAUTION, text=text)


@rule("IO706", "unexplained-wait", "trust")
@fires(
    {"wait": {"raw_ms": 60.0, "raw_wait_fraction": 0.6, "causes_ms": {"unknown": 40.0}, "exposed_ms": 60.0}},
    {"wait": {"raw_ms": None, "raw_wait_fraction": None}},
)
@silent(
    {"wait": {"raw_ms": 60.0, "raw_wait_fraction": 0.6, "causes_ms": {"read": 60.0}, "exposed_ms": 60.0}},
    {"wait": {"raw_ms": 1.0, "raw_wait_fraction": 0.01, "causes_ms": {"unknown": 1.0}}},
    {
        "wait": {
            "raw_ms": 60.0,
            "raw_wait_fraction": 0.6,
            "causes_ms": {"unknown": 50.0, "decode": 10.0},
            "exposed_ms": 60.0,
        },
        "culprits": [{"id": "source-sleeps", "code": "IO218", "evidence": {"asleep_ms": 55.0}}],
    },
    {
        "wait": {"raw_ms": None, "raw_wait_fraction": None},
        "feeding": {"before_ms": 2.0, "before_fraction": 0.02},
    },
)
def unexplained_wait(facts: TrustFacts, *, least: Bounds = (0.2, 0.5)) -> Iterator[Finding]:
    """The wait was not seen, or not all of it is explained, or whether the accelerator idled is not known.

    A lock, a peer or a sleep that was seen explains its part of the wait.
    """
    wait, count, feeding = facts.report.data_wait, facts.report.steps.count, facts.report.feeding
    if feeding is not None and 100 * feeding.before_fraction < KEPT_UP_PERCENT:
        return  # it is no longer than that
    if wait.raw_wait_fraction is None or not wait.raw_ms:
        if count and wait.raw_wait_fraction is None:
            yield Finding(level=CAUTION, text="the data wait was not seen")
        return
    if (bound_fraction(wait) or 0.0) >= _VERDICT_BOUNDS[0]:
        if wait.exposed_ms is None:
            yield Finding(level=CAUTION, text="not known: whether the accelerator had work in the wait")
        elif wait.exposed_source == "kernels" and 2 * (wait.exposed_steps or 0) < count:
            alone = counted(wait.exposed_steps or 0, "profiled step")
            yield Finding(level=CAUTION, text=f"whether the accelerator idles is known only for {alone}")
        unknown = max(0.0, wait.causes_ms.get("unknown", 0.0) - _seen_ms(facts)) / wait.raw_ms
        yield from doubt(unknown, least, f"{percent(unknown)} of the wait is not explained")


def _seen_ms(facts: TrustFacts) -> float:
    """How much of the wait without a cause a finding explains at the least: a lock, a peer, a sleep."""
    wait = facts.report.data_wait
    seen: dict[str, float] = {}
    for each in facts.report.culprits:
        figure = _SEEN.get(each.code or "", "")
        ms = each.evidence.get(figure)
        if isinstance(ms, float):
            seen[figure] = max(seen.get(figure, 0.0), ms)
    seen_ms = sum(seen.values())
    return max(0.0, seen_ms - ((wait.raw_ms or 0.0) - wait.causes_ms.get("unknown", 0.0)))


@rule(TRACING_COST, "tracing-cost", "trust")
@fires(
    {"overhead": {"estimated_pct_of_step": 5.0}},
    {"overhead": {"estimated_pct_of_step": 0.5, "evaluation_pct": 12.0}},
    {"overhead": {"estimated_pct_of_step": 30.0}, "culprits": [{"gain_ms_per_step": 20.0}]},
    {"overhead": None},
)
@silent(
    {"overhead": {"estimated_pct_of_step": 1.0}},
    {"overhead": {"estimated_pct_of_step": 1.0, "evaluation_pct": 1.0}},
)
def tracing_cost(facts: TrustFacts, *, least_pct: Bounds = TRACING_PERCENT) -> Iterator[Finding]:
    """Tracing itself took much of a step, or of the evaluation between the steps.

    The estimate is an upper bound: it raises a doubt. Only what tracing took at least makes figures bad.
    Gains are computed from what the traced run did.
    """
    overhead = facts.report.overhead
    cost = overhead.estimated_pct_of_step if overhead is not None else None
    if overhead is None or cost is None:
        if facts.report.steps.count:
            is_measured = overhead is not None and overhead.span_us is not None
            why = "no loader's batch was seen" if is_measured else "it was not measured after the run"
            yield Finding(level=CAUTION, text=f"tracing cost unknown: {why}", place=_LAST)
        return
    if cost >= least_pct[0]:
        level = BAD if (overhead.least_pct_of_step or 0.0) >= least_pct[1] else CAUTION
        text = f"tracing took {bounds(overhead.least_pct_of_step, cost)} of a step"
        if cost >= least_pct[1] and any(each.gain_ms_per_step for each in facts.report.culprits):
            text += "; gains are those of the traced run"
        yield Finding(
            level=level,
            text=f"{text}: repeat with --io off" if overhead.is_for_calls else text,
        )
    evaluation = overhead.evaluation_pct or 0.0
    if evaluation >= least_pct[0]:
        yield Finding(level=CAUTION, text=f"tracing took up to {evaluation:.0f} % of the evaluation")


@rule("IO708", "steps-vary", "trust")
@fires({"steps": {"mean_ci95_ms": [80.0, 120.0]}})
@silent(
    {"steps": {"mean_ci95_ms": [95.0, 105.0]}},
    {"steps": {"count": 1, "mean_ci95_ms": [80.0, 120.0]}},
    {"steps": {"mean_ci95_ms": [80.0, 120.0]}, **_GROWS},
)
def steps_vary(facts: TrustFacts, *, least: float = 0.1) -> Iterator[Finding]:
    """Steps vary so much that their mean is not well known.

    The bound is half of the mean's 95 % interval, as a share of the mean. Comparisons use that interval.
    """
    steps = facts.report.steps
    if steps.mean_ms and steps.mean_ci95_ms is not None and steps.count >= FEWEST:
        low, high = steps.mean_ci95_ms
        if _grown_ms(facts) >= _MOST * ((steps.p95_ms or high) - (steps.p50_ms or low)) > 0:
            return  # the report says what grows
        text = f"steps vary: mean {steps.mean_ms:.1f} ± {(high - low) / 2:.1f} ms"
        if steps.p50_ms and steps.p95_ms and steps.p95_ms >= _LONG_STEPS * steps.p50_ms:
            text += f" (p95 is {steps.p95_ms / steps.p50_ms:.1f}x the median)"
        if (high - low) / 2 / steps.mean_ms >= least:
            yield Finding(level=CAUTION, text=text)


def _grown_ms(facts: TrustFacts) -> float:
    """How much longer code of the loop takes at the end than at first, where that is told."""
    steady = [each for each in facts.report.loop_code if each.count is None]
    most = max(steady, key=attrgetter("ms_per_step"), default=None)
    is_told = any(each.code == "IO506" for each in facts.report.culprits)
    return most.grows_by_ms if most is not None and is_told else 0.0


@rule("IO709", "drift", "trust")
@fires(
    {"steps": {"drift_pct": 20.0, "drift_ci95_pct": [10.0, 30.0]}},
    {"steps": {"drift_pct": 400.0, "drift_ci95_pct": [300.0, 500.0]}, **_GROWS},  # by more than that
)
@silent(
    {"steps": {"drift_pct": 20.0, "drift_ci95_pct": [-5.0, 45.0]}},
    {"steps": {"drift_pct": 5.0, "drift_ci95_pct": [4.0, 6.0]}},
    {"steps": {"drift_pct": 100.0, "drift_ci95_pct": [80.0, 120.0]}, **_GROWS},
)
def drift(facts: TrustFacts, *, least_pct: float = 10.0, first_from_pct: float = 20.0) -> Iterator[Finding]:
    """Later steps are longer or shorter than earlier ones: the mean of a longer run may be another."""
    change, interval = facts.report.steps.drift_pct, facts.report.steps.drift_ci95_pct
    if change is None or interval is None or abs(change) < least_pct or interval[0] <= 0 <= interval[1]:
        return
    grew = "longer" if change > 0 else "shorter"
    if 0 < change <= 100 * _grown_ms(facts) / _MOST / (facts.report.steps.mean_ms or math.inf):
        return  # the report says what grows
    text = f"later steps are {abs(change):.0f} % {grew} than earlier ones"
    # Steps that grow by as much are a symptom of their own: the first screen has only a few reasons.
    first = interval[0] >= first_from_pct
    yield Finding(level=CAUTION, text=text, place=_FIRST if first else "")


@rule("IO710", "untraced-reads", "trust")
@fires(
    {
        "io": {
            "unseen_because": "maps",
            "coverage": 0.5,
            "processes": [{"is_worker": True, "kernel_bytes": 100 * MIB}],
        }
    },
    {
        "io": {
            "unseen_because": "--io traces data alone",
            "only": ["data"],
            "coverage": 0.0,
            "processes": [{"is_worker": True, "kernel_bytes": 100 * MIB}],
        }
    },
)
@silent(
    {
        "io": {
            "unseen_because": "maps",
            "coverage": 0.5,
            "processes": [{"is_worker": True, "kernel_bytes": MIB}],
        }
    },
    {
        "io": {  # started anew again and again, each reads its code
            "unseen_because": "maps",
            "coverage": 0.1,
            "processes": [{"is_worker": True, "kernel_bytes": MIB // 2}] * 60,
        }
    },
    {"io": {"unseen_because": None, "coverage": 0.5}},
    {
        "io": {
            "unseen_because": "maps",
            "coverage": 0.5,
            "processes": [{"is_worker": True, "kernel_bytes": 100 * MIB}],
        },
        "pipeline": [{"name": "reader", "of": "processes"}, {"name": "augment", "of": "processes"}],
    },
    {  # the loop makes its own batches and decodes nothing: it read code
        "wait": {"raw_ms": 45.0, "causes_ms": {"transform": 44.7, "decode": 0.1, "collate": 0.2}},
        "io": {"unseen_because": "maps", "coverage": 0.0, "processes": [{"kernel_bytes": 100 * MIB}]},
    },
    {
        "feeding": {"before_ms": 50.0, "before_fraction": 0.5, "waits": "pipe at train.py:9"},
        "io": {"unseen_because": "maps", "coverage": 0.0, "processes": [{"kernel_bytes": 100 * MIB}]},
    },
    {
        "culprits": [{"id": "peer-slow", "code": "IO250"}],
        "io": {"unseen_because": "maps", "coverage": 0.0, "processes": [{"kernel_bytes": 100 * MIB}]},
    },
)
def untraced_reads(
    facts: TrustFacts, *, least_coverage: float = 0.9, least_decode: float = 0.05
) -> Iterator[Finding]:
    """The kernel counts more bytes than calls that were traced: what looks like decoding may be reading.

    Silent where less than `least_decode` of the wait is decoding.
    """
    wait = facts.report.data_wait
    if wait.raw_ms and wait.causes_ms and wait.causes_ms.get("decode", 0.0) < least_decode * wait.raw_ms:
        return
    feeding, culprits = facts.report.feeding, facts.report.culprits
    if (feeding is not None and feeding.waits) or any(each.code == "IO250" for each in culprits):
        return  # what comes through a pipe is in no file
    io = facts.report.io
    if io is None or io.unseen_because is None:
        return
    if any(stage.of == "processes" for stage in facts.report.pipeline[1:]):
        return  # items come through pipes, of whose bytes no call is traced
    # The training process reads code and its workers' queues, which are no data.
    makers = [process for process in io.processes if process.is_worker] or io.processes
    coverage = io.coverage if io.data_coverage is None else io.data_coverage
    if coverage is None or coverage >= least_coverage:
        return
    of_steps = io.data_coverage is not None and io.data_coverage_of_steps
    read = [process.steps_kernel_bytes if of_steps else process.kernel_bytes for process in makers]
    missed = (1 - coverage) * sum(filter(None, read))
    if missed >= max(_CODE_AND_PIPES_BYTES, _OF_EACH_PROCESS_BYTES * len(makers)):
        only = f" (--io traces {', '.join(io.only)} alone)" if io.only else ""
        untraced = f"{percent(1 - coverage)} of the bytes read were not traced{only}"
        yield Finding(level=CAUTION, text=f"{untraced}: some of decode may be reading")


@rule("IO711", "class-uncertain", "trust")
@fires(
    {"wait": {"raw_wait_fraction_ci95": [0.04, 0.09]}},
    _UNSURE,
    {**_UNSURE, "account": {**_DRAWS, "parts": [{"name": "iterators", "ns": 45, "in_loop": True}]}},
)
@silent({"wait": {"raw_wait_fraction_ci95": [0.06, 0.09]}}, {**_UNSURE, "account": _DRAWS})
def class_uncertain(facts: TrustFacts, *, widest: float = 0.5) -> Iterator[Finding]:
    """The interval of the wait holds a bound of the verdict's classes: 5 or 20 % of a step.

    If other programs ran, it begins with the wait that is left where no thread queues for a CPU. An interval
    that is wider than `widest` is not printed: it says nothing. Where the verdict judges what loaders cost
    the whole loop, so does this: what the loop itself computes there goes away with no other program.
    """
    wait = facts.report.data_wait
    interval = wait.raw_wait_fraction_ci95 if wait.stall_fraction is None else wait.stall_fraction_ci95
    if not facts.waits_longest or interval is None:
        return
    low, high = interval
    found, costs = alone(facts.report), loop_costs(facts.report)
    if found.kept < SHORTER and found.least_step_ms:
        low = min(low, found.least_wait_ms / found.least_step_ms)
    if costs is not None and costs.fraction > (bound_fraction(wait) or 0.0):
        # The verdict judges the loop: what it computes beside its steps is there without others, too.
        low = costs.computed + low * (1 - costs.computed)
        high = costs.beside + high * (1 - costs.beside)
        if any(low < bound < high for bound in _VERDICT_BOUNDS):
            text = f"loaders cost {100 * low:.0f} to {percent(high)} of the loop without other programs"
            yield Finding(
                level=CAUTION,
                text=text
                if found.kept < SHORTER
                else f"{100 * low:.0f} to {percent(high)} of the loop are its loaders' cost",
            )
        return
    if any(low < bound < high for bound in _VERDICT_BOUNDS):
        share = f"the wait is {100 * low:.0f} to {percent(high)} of a step"
        text = f"{share} (95 %)" if low == interval[0] else f"without other programs {share}"
        if low < interval[0] and high - low > widest:
            text = "not known: how long the loop waits without other programs on its CPUs"
        yield Finding(level=CAUTION, text=text)
