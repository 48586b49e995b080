"""How far the figures of a report can be relied on: the worst of what the rules of trust find."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from iotrace.analysis.resampling import FEWEST
from iotrace.analysis.results import BAD, CAUTION, OK, ClockInfo, RankReport, SessionInfo, Trust
from iotrace.analysis.rules.model import Finding, find_all
from iotrace.analysis.wait.data_wait import bound_fraction
from iotrace.session.manifest import NotCaptured
from iotrace.units import counted

_LEVELS = (OK, CAUTION, BAD)


def trust_of(
    session: SessionInfo,
    ranks: Sequence[RankReport],
    clocks: Sequence[ClockInfo] = (),
    losses: Sequence[NotCaptured] = (),
    withheld: str | None = None,
    fed: Sequence[int] = (),
) -> Trust:
    """Judge the figures of `ranks`, the worst of them for each kind of doubt.

    `withheld`: why no rank is named as late. `fed` are ranks that train on what others send: no loader of
    theirs can be seen, and their steps are as long as the others'.
    """
    if not ranks:
        return Trust(level=BAD, reasons=["no Python process was traced"])
    # A rank that trained nothing has no figures.
    trained = [rank for rank in ranks if rank.steps.count]
    without = [rank for rank in ranks if not rank.steps.count] if trained else []
    ranks = [rank for rank in trained if rank.rank not in fed] or trained or ranks
    from iotrace.analysis.rules.facts.trust import RunFacts

    run = RunFacts(
        session=session,
        losses=losses,
        clocks=clocks,
        step_ms=min((rank.steps.mean_ms for rank in ranks if rank.steps.mean_ms), default=None),
        untrained=without[0].called if without else None,
        withheld=withheld,
    )
    doubts = [*_worst_of_each(ranks), *find_all("run", run)]
    if not doubts:
        return Trust(level=OK, reasons=_facts(ranks))
    doubts = sorted(doubts, key=lambda doubt: (-_LEVELS.index(doubt.level), doubt.place or doubt.rule))
    return Trust(
        level=doubts[0].level,
        reasons=[doubt.text for doubt in doubts],
        codes=[doubt.rule for doubt in doubts],
    )


def trust_of_traces(
    ranks: Sequence[RankReport],
    recorded: Sequence[str],
    complete: bool,
    stepped: bool = True,
    apart: str | None = None,
) -> Trust:
    """Judge figures of bare traces of torch.profiler; `recorded`: what else than times each has.

    `stepped`: they have steps, or else are taken for one each; `apart`: why they are not compared as ranks of
    one job.
    """
    count = min((rank.steps.count for rank in ranks), default=0)
    missing = [what for what in ("shapes", "stacks") if what not in recorded]
    reasons = [] if apart is None else [f"the ranks are not compared: {apart}"]
    reasons.append(counted(count, "step") if count and stepped else "no steps: the whole trace is one")
    reasons += [f"no {' or '.join(missing)} recorded"] if missing else []
    reasons += [] if complete else ["part of a trace was lost"]
    # A profiled step is slower than others, and nothing says by how much.
    level = BAD if stepped and 0 < count < FEWEST else CAUTION
    return Trust(level=level, reasons=[*reasons, "no file is known"])


def _worst_of_each(ranks: Sequence[RankReport]) -> list[Finding]:
    """Find the worst doubt of each rule; of several ranks its rank is named where not all have the same."""
    from iotrace.analysis.rules.facts.trust import TrustFacts

    longest = max(ranks, key=lambda rank: bound_fraction(rank.data_wait) or 0.0)
    by_rule: dict[str, list[tuple[Finding, str]]] = {}
    for rank in ranks:
        for found in find_all("trust", TrustFacts(report=rank, waits_longest=rank is longest)):
            by_rule.setdefault(found.rule, []).append((found, rank.called))
    worst = []
    for code in sorted(by_rule):
        doubt, rank_name = max(by_rule[code], key=lambda pair: _LEVELS.index(pair[0].level))
        alike = sum(other.text == doubt.text for other, _ in by_rule[code]) == len(ranks)
        whose = "" if alike else f"{rank_name}: "
        worst.append(replace(doubt, text=f"{whose}{doubt.text}"))
    return worst


def _facts(ranks: Sequence[RankReport]) -> list[str]:
    facts = [counted(min(rank.steps.count for rank in ranks), "step")]
    costs = [rank.overhead.estimated_pct_of_step for rank in ranks if rank.overhead is not None]
    if known := [cost for cost in costs if cost is not None]:
        facts.append(f"tracing <= {max(max(known), 0.1):.1f} %")
    hosts = [rank.system.host for rank in ranks if rank.system.host is not None]
    free = all(host.has_free_cpus for host in hosts)
    return [*facts, "the machine had free cores" if free else "no other program was busy"]
