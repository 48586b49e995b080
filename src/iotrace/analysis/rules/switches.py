"""What a program left on or out that makes all steps longer: switches for debugging, `no_sync`."""

from __future__ import annotations

from collections.abc import Iterator

from iotrace.analysis.rules.facts.rank import RankFacts
from iotrace.analysis.rules.model import THE_LOOP, Finding, fires, rule, silent
from iotrace.analysis.rules.recurring import HIGH
from iotrace.units import percent

# What each is, and what it does.
_SWITCHES = {
    "anomaly": (
        "torch's anomaly detection",
        "keeps the stacks of forward operations, checks gradients",
    ),
    "launch_blocking": ("CUDA_LAUNCH_BLOCKING=1", "has the loop wait for each kernel"),
    "distributed_detail": ("TORCH_DISTRIBUTED_DEBUG=DETAIL", "has ranks compare each collective first"),
    "deterministic": ("torch.use_deterministic_algorithms", "has torch take slower operations"),
}
_CHOSEN = ("deterministic",)  # often on purpose: no cause that a verdict names
REDUCES_OFTEN = "IO514"
_SYNCS = {"reduced": 1.0, "updated": 0.125, "unused_ms": 60.0}
_PHASES = {"forward": 30.0, "backward": 50.0, "optimizer": 10.0, "other": 6.0}


@rule("IO513", "debug-switch", "loop", turn=THE_LOOP, saves_wait=False)
@fires(
    {"phases_ms": _PHASES, "switches": {"anomaly": "train.py:9"}},
    {"phases_ms": _PHASES, "switches": {"launch_blocking": ""}},
    {"switches": {"distributed_detail": "", "deterministic": "train.py:3"}},
)
@silent({"phases_ms": _PHASES})
def debug_switch(facts: RankFacts) -> Iterator[Finding]:
    """A switch for debugging was on when the program first trained.

    Anomaly detection, CUDA_LAUNCH_BLOCKING=1, TORCH_DISTRIBUTED_DEBUG=DETAIL and deterministic algorithms
    make steps longer, by much or by little: that depends on the model, and no run shows it by itself. The
    line is named where it is the only one in the program's modules.

    Remedy: turn it off unless you look for an error, and compare the runs.
    """
    phases = facts.report.phases_ms
    computing_ms = (phases.forward or 0.0) + (phases.backward or 0.0)
    for name, place in facts.switches.items():
        if name not in _SWITCHES:
            continue
        called, does = _SWITCHES[name]
        unless = "if results may vary" if name in _CHOSEN else "unless you look for an error"
        chosen, at = name in _CHOSEN, f" ({place})" if place else ""
        yield Finding(
            text=f"{called} is on{at}: it {does}; what that costs was not measured",
            remedy=f"turn off {called}{at}, {unless}: it {does}; the cost was not measured",
            level="low" if chosen else "medium",
            evidence={"computing_ms": computing_ms},
            is_main_cause=not chosen and computing_ms > (facts.report.data_wait.raw_ms or 0.0),
        )


@rule(REDUCES_OFTEN, "reduces-in-each-step", "loop", turn=THE_LOOP, saves_wait=False)
@fires(_SYNCS)
@silent(
    {**_SYNCS, "reduced": 0.125},  # with no_sync
    {**_SYNCS, "updated": 1.0},  # optimizers that take turns, or one step an update
    {**_SYNCS, "unused_ms": 2.0},
    {},
)
def reduces_in_each_step(
    facts: RankFacts, *, nearly: float = 0.9, most_updates: float = 0.6, least_of_step: float = 0.05
) -> Iterator[Finding]:
    """DDP reduces gradients among ranks in each step, and an optimizer steps in some of them alone.

    Gradients are accumulated over several steps: ranks need each other's in the last one of an update. DDP
    sends them all in each backward pass, unless that is in `no_sync()`. The time is from a rank's last
    gradient until all are reduced; it holds the wait for later ranks. What a step gains was not measured.

    Remedy: `model.no_sync()` for the forward and backward passes of all steps but the last one of an update.
    """
    step_ms = facts.report.steps.mean_ms
    if not step_ms or facts.reduced < nearly or facts.updated > most_updates:
        return
    if facts.unused_ms < least_of_step * step_ms:
        return
    yield Finding(
        text=f"DDP reduces gradients in each step, an optimizer steps in {percent(facts.updated)} of them: "
        f"{facts.unused_ms:.0f} ms a step in the others",
        remedy="model.no_sync() in all steps but the last one of an update",
        how="call the model, and backward, in model.no_sync() in all steps but the last one of an update",
        evidence={"unused_ms": facts.unused_ms, "updated": facts.updated},
        cost_ms=facts.unused_ms,
        level="high" if facts.unused_ms >= HIGH * step_ms else "medium",
        is_main_cause=facts.unused_ms > (facts.report.data_wait.raw_ms or 0.0),
    )
