"""Switches for debugging that were left on: each makes all steps longer."""

from __future__ import annotations

from collections.abc import Iterator

from iotrace.analysis.rules.facts.rank import RankFacts
from iotrace.analysis.rules.model import THE_LOOP, Finding, fires, rule, silent

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

    Remedy: turn it off where nobody looks for an error, and compare the runs.
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
