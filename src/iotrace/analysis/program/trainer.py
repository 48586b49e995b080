"""Where the time of Lightning's trainer goes: its ranges, by what they are of."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

import numpy as np
import numpy.typing as npt

from iotrace.analysis.intervals import Times, distinct, holding, less_inner
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import TrainerRange, TrainerTimes
from iotrace.session.names import KIND_TRAINER
from iotrace.sources.records import TrainerRun

_KINDS = {
    "Callback": "callback",
    "Strategy": "strategy",
    "LightningModule": "module",
    "LightningDataModule": "data module",
}
# "[Callback]ModelCheckpoint{'monitor': None}.on_train_start", "[_TrainingEpochLoop].train_dataloader_next"
_OF = re.compile(r"\[(\w+)\](.*)\.(\w+)$", re.DOTALL)
_STATE = re.compile(r"\{.*\}", re.DOTALL)  # of a callback's key


def trainer_times(analysis: RankAnalysis) -> TrainerTimes:
    """Sum up the ranges of a rank's trainer, longest first."""
    main, kept = analysis.rank.main, len(analysis.kept)
    runs = main.of_type(TrainerRun)
    seconds = sum(run.end_ns - run.start_ns for run in runs) / 1e9 if runs else None
    spans = main.spans[main.spans["kind"] == KIND_TRAINER]
    lengths_ns, own_ns = spans["duration_ns"], _self_ns(spans)
    starts, ends, _ = analysis.kept.pieces  # ranges count that begin in a measured step, outside evaluations
    inside_ns = np.where(holding(starts, ends, spans["start_ns"]) >= 0, lengths_ns, 0)
    rows: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for row, number in enumerate(spans["name"].tolist()):
        rows[parts_of(main.texts.get(number, "?"))].append(row)
    found = [
        TrainerRange(
            kind=kind,
            owner=owner,
            hook=hook,
            calls=len(own),
            ms_total=int(lengths_ns[own].sum()) / 1e6,
            self_ms_total=int(own_ns[own].sum()) / 1e6,
            ms_max=int(lengths_ns[own].max()) / 1e6,
            ms_per_step=int(inside_ns[own].sum()) / kept / 1e6 if kept else None,
            run_pct=100 * int(lengths_ns[own].sum()) / 1e9 / seconds if seconds else None,
        )
        for (kind, owner, hook), own in rows.items()
    ]
    return TrainerTimes(seconds=seconds, ranges=sorted(found, key=lambda row: -row.ms_total))


def parts_of(name: str) -> tuple[str, str, str]:
    """Split the name of a range into what it is of: kind, owner and hook."""
    match = _OF.match(name)
    if match is None:
        return "loop", "", name
    kind, owner, hook = match.groups()
    if kind not in _KINDS:  # "[_EvaluationLoop].val_next"
        return "loop", kind.strip("_"), hook
    return _KINDS[kind], _STATE.sub("", owner), hook


def _self_ns(spans: npt.NDArray[Any]) -> Times:
    """The length of each range less those of the ranges directly inside it, of the same thread."""
    own = np.zeros(len(spans), np.int64)
    for tid in distinct(spans["tid"]).tolist():
        of_thread = spans["tid"] == tid
        starts, lengths = spans["start_ns"][of_thread], spans["duration_ns"][of_thread]
        own[of_thread] = less_inner(starts, starts + lengths, lengths)
    return np.maximum(own, 0)
