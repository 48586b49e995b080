"""What the loop computes of batches whose samples are filled up to one length."""

from __future__ import annotations

from collections.abc import Iterator

from iotrace.analysis.results import RankReport
from iotrace.analysis.rules.facts.rank import RankFacts
from iotrace.analysis.rules.model import THE_LOOP, Finding, fires, rule, silent
from iotrace.units import percent

_HIGH = 0.2  # of a step
_PADDED = {
    "id": 0,
    "kind": "training",
    "primary": True,
    "dataset": "Text",
    "workers": 1,
    "padded_fraction": 0.7,
    "padded_squares_fraction": 0.85,
}
_COMPUTES = {"forward": 50.0, "backward": 30.0, "optimizer": 2.0, "other": 2.0}


@rule("IO512", "padded-batches", "loop", turn=THE_LOOP, saves_wait=False)
@fires({"loaders": [_PADDED], "phases_ms": _COMPUTES})
@silent(
    {"loaders": [{**_PADDED, "padded_fraction": 0.1}], "phases_ms": _COMPUTES},
    {"loaders": [{**_PADDED, "padded_fraction": None}], "phases_ms": _COMPUTES},
    {"loaders": [{**_PADDED, "kind": "validation", "primary": False}], "phases_ms": _COMPUTES},
    {"loaders": [_PADDED], "phases_ms": {**_COMPUTES, "forward": 2.0, "backward": 3.0}},
)
def padded_batches(
    facts: RankFacts, *, least_padded: float = 0.3, least_of_step: float = 0.1
) -> Iterator[Finding]:
    """Most of a batch is padding: samples of unequal lengths are filled up to the longest.

    The collate function's samples and its batch show both lengths; or an attention mask does. What a layer
    computes for each position shrinks with the padding, attention with the square of the length. A model
    that leaves padding out, as packed sequences do, gains nothing: that is the interval's lower end.

    Remedy: put samples of similar lengths into one batch, by a batch sampler that sorts within large groups.
    """
    loader = next((each for each in facts.report.loaders if each.primary), None)
    padded = None if loader is None else loader.padded_fraction
    step_ms, compute_ms = facts.report.steps.mean_ms or 0.0, _compute_ms(facts.report)
    if padded is None or padded < least_padded or padded * compute_ms < max(1e-3, least_of_step * step_ms):
        return
    squares = max(padded, (None if loader is None else loader.padded_squares_fraction) or padded)
    yield Finding(
        text=f"{percent(padded)} of what the batches hold is padding; unless the model skips it (packed "
        f"sequences), much of forward and backward is for it: they take {compute_ms:.1f} of {step_ms:.1f} ms",
        how=(
            "samples of similar lengths in one batch need little padding: a batch_sampler that sorts by "
            "length within groups of many batches"
        ),
        remedy=(
            "unless the model skips padding, put samples of similar lengths into one batch: "
            "DataLoader(batch_sampler=...) by length"
        ),
        evidence={"padded_fraction": padded, "compute_ms": compute_ms},
        level="high" if padded * compute_ms >= _HIGH * step_ms else "medium",
        # A wait that is longer comes first: it is certain.
        is_main_cause=padded * compute_ms >= (facts.report.data_wait.raw_ms or 0.0),
        gain_ms=padded * compute_ms,
        gain_interval_ms=[0.0, squares * compute_ms],
    )


def _compute_ms(report: RankReport) -> float:
    """Forward and backward; where a device works beside the loop, the step without its waits."""
    phases, wait_ms = report.phases_ms, report.data_wait.raw_ms or 0.0
    if report.accelerator is not None and report.accelerator.span_us:
        return max(0.0, (report.steps.mean_ms or 0.0) - wait_ms)
    return (phases.forward or 0.0) + (phases.backward or 0.0)
