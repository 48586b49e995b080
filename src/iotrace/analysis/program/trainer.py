"""Where the time of Lightning's trainer goes: its ranges, by what they are of."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from iotrace.analysis.intervals import distinct, holding, less_inner
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


class _Sums(msgspec.Struct):
    calls: int = 0
    total_ns: int = 0
    self_ns: int = 0
    max_ns: int = 0
    in_steps_ns: int = 0


def trainer_times(analysis: RankAnalysis) -> TrainerTimes | None:
    """Sum up the ranges of a rank's trainer, longest first; None where no trainer ran."""
    main = analysis.rank.main
    runs = main.of_type(TrainerRun)
    spans = main.spans[main.spans["kind"] == KIND_TRAINER]
    if not len(spans):
        return None
    seconds = sum(run.end_ns - run.start_ns for run in runs) / 1e9 if runs else None
    inside = _in_steps(spans, analysis)
    found: dict[tuple[str, str, str], _Sums] = {}
    for number, length_ns, own_ns, is_inside in zip(
        spans["name"].tolist(), spans["duration_ns"].tolist(), _self_ns(spans), inside.tolist(), strict=True
    ):
        sums = found.setdefault(parts_of(main.texts.get(number, "?")), _Sums())
        sums.calls += 1
        sums.total_ns += length_ns
        sums.self_ns += own_ns
        sums.max_ns = max(sums.max_ns, length_ns)
        sums.in_steps_ns += length_ns if is_inside else 0
    kept = len(analysis.kept)
    rows = [
        TrainerRange(
            kind=kind,
            owner=owner,
            hook=hook,
            calls=sums.calls,
            ms_total=sums.total_ns / 1e6,
            self_ms_total=sums.self_ns / 1e6,
            ms_max=sums.max_ns / 1e6,
            ms_per_step=sums.in_steps_ns / kept / 1e6 if kept else None,
            run_pct=100 * sums.total_ns / 1e9 / seconds if seconds else None,
        )
        for (kind, owner, hook), sums in found.items()
    ]
    return TrainerTimes(seconds=seconds, ranges=sorted(rows, key=lambda row: -row.ms_total))


def parts_of(name: str) -> tuple[str, str, str]:
    """Split the name of a range into what it is of: kind, owner and hook."""
    match = _OF.match(name)
    if match is None:
        return "loop", "", name
    kind, owner, hook = match.groups()
    if kind not in _KINDS:  # "[_EvaluationLoop].val_next"
        return "loop", kind.strip("_"), hook
    return _KINDS[kind], _STATE.sub("", owner), hook


def _in_steps(spans: npt.NDArray[Any], analysis: RankAnalysis) -> npt.NDArray[np.bool_]:
    """Mark the ranges that begin in a measured step, outside its evaluation passes."""
    starts, ends, _ = analysis.kept.pieces
    found: npt.NDArray[np.bool_] = holding(starts, ends, spans["start_ns"]) >= 0
    return found


def _self_ns(spans: npt.NDArray[Any]) -> list[int]:
    """The length of each range less those of the ranges directly inside it, of the same thread."""
    own = np.zeros(len(spans), np.int64)
    for tid in distinct(spans["tid"]).tolist():
        of_thread = spans["tid"] == tid
        starts, lengths = spans["start_ns"][of_thread], spans["duration_ns"][of_thread]
        own[of_thread] = less_inner(starts, starts + lengths, lengths)
    found: list[int] = np.maximum(own, 0).tolist()
    return found
