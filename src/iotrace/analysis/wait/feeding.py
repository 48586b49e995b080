"""What a loop that no loader feeds does before its forward passes, where a wait for data lies.

Definitions: docs/definitions.md, "feeding".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from iotrace.analysis.intervals import Intervals, distinct, holding, intersect, length, subtract, union
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import Feeding
from iotrace.analysis.wait.locks import waits_within
from iotrace.analysis.wait.loop_code import CodeSamples
from iotrace.analysis.wait.loop_events import CHECKPOINT, EVALUATION, Events
from iotrace.session.names import BACKWARD, FORWARD, FORWARD_NO_GRAD, KIND_READ_PATH, OPTIMIZER

_MOST_STEPS = 0.8  # that have a forward pass
_NO_BATCH = (EVALUATION, CHECKPOINT)
_MOST = 0.5  # of a function's time is a wait
_MUCH, _OTHERS = 0.25, 0.1  # of the loop's time; of that thread's


def _before_forward(analysis: RankAnalysis) -> Intervals:
    """From the end of what the thread did before of forward, backward and optimizer to each forward pass."""
    texts, spans = analysis.rank.main.texts, analysis.phase_spans
    named = {text: number for number, text in texts.items()}
    spans = spans[np.isin(spans["name"], [named.get(each, -1) for each in (FORWARD, BACKWARD, OPTIMIZER)])]
    spans = spans[np.argsort(spans["start_ns"], kind="stable")]
    over = np.maximum.accumulate(np.append(np.iinfo(np.int64).min, spans["start_ns"] + spans["duration_ns"]))
    forward = spans["name"] == named.get(FORWARD, -1)
    return over[:-1][forward], spans["start_ns"][forward]


def _without_gradients(analysis: RankAnalysis) -> Intervals:
    """When models were called without gradients, such as one that gives targets: no batch is made then."""
    numbers = [number for number, text in analysis.rank.main.texts.items() if text == FORWARD_NO_GRAD]
    spans = analysis.phase_spans
    spans = spans[np.isin(spans["name"], numbers)]
    return union(spans["start_ns"], spans["start_ns"] + spans["duration_ns"])


def feeding_of(analysis: RankAnalysis, samples: CodeSamples, events: Sequence[Events] = ()) -> Feeding | None:
    """Look at what the loop does before the forward passes of its steps, where no loader feeds it.

    Its batches come to it then, or with them what else it does; of `events` evaluations and checkpoints are
    none of that. None where a loader does, or where steps have no forward pass.
    """
    kept, thread = analysis.kept, analysis.loop.thread
    if not analysis.loop.unknown_why or analysis.loop.marked or not len(kept) or thread is None:
        return None
    if len(thread.asked) or len(thread.handed) or thread.handing or thread.unhanded:
        return None
    starts, ends, (begun, until) = kept["start_ns"], kept["end_ns"], _before_forward(analysis)
    at = holding(starts, ends, until)
    begun, until, at = (each[at >= 0] for each in (begun, until, at))
    begun = np.minimum(np.maximum(begun, starts[at]), until)
    if len(distinct(at)) < _MOST_STEPS * len(kept):
        return None
    own = subtract(union(begun, until), _without_gradients(analysis))
    for each in events:
        if each.kind in _NO_BATCH:
            own = subtract(own, (each.starts, each.ends))
    before, before_ns, steps = samples.within(*own), length(own), len(kept)
    number, most = before.most_common(), before.most()
    return Feeding(
        before_ms=before_ns / steps / 1e6,
        before_fraction=before_ns / int((ends - starts).sum()),
        function=None if most is None else most[0],
        function_ms=None if most is None else most[1] * before_ns / steps / 1e6,
        least=before.is_least,
        hot=None if number is None else before.of(number).hot(analysis.session.paths),
        asleep=analysis.inputs.asleep or None,
        waits=waits_within(analysis, thread.tid, own, _MOST * most[1] * before_ns) if most else None,
        **_beside(analysis, thread.tid, own),
    )


def _beside(analysis: RankAnalysis, tid: int, within: Intervals) -> dict[str, Any]:
    """Find the read path that one other thread of the process is in for much of these intervals."""
    spans = analysis.rank.main.spans
    spans = spans[(spans["kind"] == KIND_READ_PATH) & (spans["tid"] != tid)]
    times: dict[int, int] = {}
    for other in distinct(spans["tid"]).tolist():
        own = spans[spans["tid"] == other]
        busy = intersect(union(own["start_ns"], own["start_ns"] + own["duration_ns"]), within)
        times[other] = length(busy)
    most = max(times, key=lambda other: times[other], default=None)
    if most is None or not times[most] or times[most] < _MUCH * length(within):
        return {}
    if sum(times.values()) > (1 + _OTHERS) * times[most]:
        return {}
    own = spans[spans["tid"] == most]
    names = distinct(own["name"]).tolist()
    name = max(names, key=lambda number: int(own["duration_ns"][own["name"] == number].sum()))
    return {
        "beside": analysis.rank.main.texts.get(name),
        "beside_fraction": times[most] / length(within),
    }
