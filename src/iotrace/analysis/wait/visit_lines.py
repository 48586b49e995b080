"""Where the program calls what its samples do with files again and again, by stacks of their threads."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from iotrace.analysis.intervals import Times, distinct, holding, union
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import FEWEST_SAMPLES
from iotrace.analysis.wait.hot_lines import Frame, Stack, own_name, stack_samples
from iotrace.analysis.wait.visits import Visits
from iotrace.session.names import KIND_READ_PATH
from iotrace.sources.records import LoopStacks

_MOSTLY = 0.5  # of the samples


def site_of(analysis: RankAnalysis, found: Sequence[Visits], targets: Times) -> str | None:
    """Name the function and line that most of the visits to these targets are called in; None: none is."""
    calls: Counter[Frame | None] = Counter()
    for visits in found:
        own = np.isin(visits.target, targets)
        busy = union(visits.starts_ns[own], visits.ends_ns[own])
        process = visits.process
        libraries = {
            process.texts.get(number, "").partition(".")[0]
            for number in distinct(process.spans["name"][process.spans["kind"] == KIND_READ_PATH]).tolist()
        }
        for tid in {record.tid for record in process.of_type(LoopStacks)}:
            samples = stack_samples(process, tid)
            if not samples.asked:
                return None
            inside = samples.chosen(holding(*busy, samples.times) >= 0)
            calls.update(_caller(each, libraries) for each in inside.each)
    whole = sum(calls.values())
    most, count = calls.most_common(1)[0] if calls else (None, 0)
    if most is None or whole < FEWEST_SAMPLES or count < _MOSTLY * whole:
        return None
    return f"{own_name(most.function) or most.function} ({most.at(analysis.session.paths)})"


def _caller(stack: Stack, libraries: Iterable[str]) -> Frame | None:
    """Return the program's innermost frame outside of the libraries that read, wherever these lie."""
    lines = [frame for frame in stack.called if frame.line and not _is_of(frame, libraries)]
    return lines[-1]._replace(since=0) if lines else None


def _is_of(frame: Frame, libraries: Iterable[str]) -> bool:
    parts = os.path.splitext(frame.file)[0].split("/")
    return any(library in parts for library in libraries)
