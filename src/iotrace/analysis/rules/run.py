"""How far the figures of the whole run can be relied on."""

from __future__ import annotations

from collections.abc import Iterator

from iotrace.analysis.results import CAUTION
from iotrace.analysis.rules.facts.trust import RunFacts
from iotrace.analysis.rules.model import Finding, fires, rule, silent
from iotrace.units import milliseconds


@rule("IO712", "untrained-rank", "run")
@fires({"untrained": "rank 1"})
@silent({"untrained": None})
def untrained_rank(facts: RunFacts) -> Iterator[Finding]:
    """A rank of the job has no measured step, where others have some."""
    if facts.untrained is not None:
        yield Finding(level=CAUTION, text=f"{facts.untrained}: no step was measured")


@rule("IO713", "data-lost", "run")
@fires({"session": {"ended": False}}, {"losses": [{"what": "spans of pid 7", "why": "a full disk"}]})
@silent({})
def data_lost(facts: RunFacts) -> Iterator[Finding]:
    """Part of what was recorded is lost, or the end of the run was not seen."""
    if facts.losses:
        what = list(dict.fromkeys(each.what for each in facts.losses))
        more = f" and {what[1] if len(what) == 2 else f'{len(what) - 1} other parts'}" if what[1:] else ""
        yield Finding(level=CAUTION, text=f"lost: {what[0]}{more}")
    elif not facts.session.ended:
        yield Finding(level=CAUTION, text="the end of the run was not seen")
    elif not facts.session.complete:
        yield Finding(level=CAUTION, text="part of the data was lost")


@rule("IO714", "clocks", "run")
@fires(
    {"clocks": [{"host": "a", "bound_ns": 0, "set": []}, {"host": "b", "bound_ns": None, "set": []}]},
    {"clocks": [{"host": "a", "bound_ns": 20_000_000, "set": []}], "step_ms": 100.0},
)
@silent({"clocks": [{"host": "a", "bound_ns": 20_000, "set": []}], "step_ms": 100.0})
def clocks(facts: RunFacts, *, least_of_step: float = 0.05) -> Iterator[Finding]:
    """Clocks of hosts were not compared, are not well known, or were set during the run."""
    hosts = {clock.host for clock in facts.clocks}
    if len(hosts) > 1 and any(clock.bound_ns is None for clock in facts.clocks):
        yield Finding(level=CAUTION, text=f"the clocks of {len(hosts)} hosts were not compared")
    bound_ms = max((clock.bound_ns or 0 for clock in facts.clocks), default=0) / 1e6
    if facts.step_ms is not None and bound_ms >= least_of_step * facts.step_ms:
        yield Finding(level=CAUTION, text=f"times of POSIX calls are known to ± {milliseconds(bound_ms)}")
    set_ns = max((abs(item.by_ns) for clock in facts.clocks for item in clock.set), default=0)
    if set_ns:
        text = f"a clock was set by {milliseconds(set_ns / 1e6)} during the run (undone)"
        yield Finding(level=CAUTION, text=text)


@rule("IO715", "late-rank-withheld", "run")
@fires({"withheld": "the clocks of two hosts are not known well enough"})
@silent({"withheld": None})
def late_rank_withheld(facts: RunFacts) -> Iterator[Finding]:
    """No rank is named as late: what was measured does not say which it was."""
    if facts.withheld is not None:
        yield Finding(level=CAUTION, text=facts.withheld)
