"""The loop's own calls of collectives, beside its passes: DDP's are a part of the backward pass."""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np

from iotrace.analysis.intervals import holding
from iotrace.analysis.loop.step_phases import collectives_outside_phases, per_step_ms
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.wait.loop_code import code_samples
from iotrace.session.names import KIND_REDUCTION, OF_GRADIENTS
from iotrace.sources.columns import Columns
from iotrace.sources.processes import Process

_MOST = 0.5  # of them, or of the samples in them


class Collectives(msgspec.Struct, frozen=True):
    """How long the training thread waits in its own collectives, in ms a step, for other ranks, too.

    `least_ms` is what these take of the rank that waits least in each: they wait for no late one then. None:
    ranks call unlike many. `calls` are so many a step, most of them of `name`; `code` is what calls most of
    them, as `LoopCode` names it. Empty: none has most.
    """

    ms: float = 0.0
    least_ms: float | None = None
    calls: float = 0.0
    name: str = ""
    code: str = ""


def collectives_of_loop(analysis: RankAnalysis) -> Collectives:
    """Look at those of the measured steps."""
    kept = analysis.kept
    own = collectives_outside_phases(analysis) if len(kept) else None
    ms = 0.0 if own is None else per_step_ms(analysis, own)
    if own is None or not ms:
        return Collectives()
    every = [_called(rank.main) for rank in analysis.session.ranks]
    spans = _called(analysis.rank.main)
    least_ns = None
    if len(every) > 1 and all(len(each) == len(spans) for each in every):
        least_ns = np.min([each["duration_ns"] for each in every], axis=0)
    inside = (holding(*own, spans["start_ns"]) >= 0) & (
        holding(kept["start_ns"], kept["end_ns"], spans["start_ns"]) >= 0
    )
    names = Counter(analysis.rank.main.texts.get(number, "") for number in spans["name"][inside].tolist())
    name, count = names.most_common(1)[0] if names else ("", 0)
    most = code_samples(analysis).within(*own).most()
    return Collectives(
        ms=ms,
        least_ms=None if least_ns is None else float(least_ns[inside].sum()) / len(kept) / 1e6,
        calls=int(inside.sum()) / len(kept),
        name=name if count >= _MOST * int(inside.sum()) else "",
        code=most[0] if most is not None and most[1] >= _MOST else "",
    )


def _called(main: Process) -> Columns:
    """The program's own calls of collectives, in order, of the thread that calls most of them."""
    gradients = [number for number, text in main.texts.items() if text == OF_GRADIENTS]
    spans = main.spans[(main.spans["kind"] == KIND_REDUCTION) & ~np.isin(main.spans["name"], gradients)]
    tids = Counter(spans["tid"].tolist())
    spans = spans[spans["tid"] == max(tids, key=tids.__getitem__, default=-1)]
    found: Columns = spans[np.argsort(spans["start_ns"], kind="stable")]
    return found
