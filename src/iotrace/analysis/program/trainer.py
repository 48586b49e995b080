"""Where the time of Lightning's trainer goes: its ranges, by what they are of.

A program's models as tables of layers, from the records of one forward pass of each.

How fast the loop goes: batches a second of training, validation and the rest, and how that changes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from itertools import islice, takewhile
from math import prod

import numpy as np

from iotrace.analysis.intervals import Times, distinct, holding, less_inner
from iotrace.analysis.loop.deliveries import PHASES, Deliveries, LoaderRun
from iotrace.analysis.loop.loaders import production_ms
from iotrace.analysis.loop.step_table import number_of
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import (
    Model,
    ModelLayer,
    PhaseSpeed,
    Snapshot,
    Speed,
    SpeedPoint,
    TrainerRange,
    TrainerTimes,
    total,
)
from iotrace.analysis.table import NONE
from iotrace.session.names import KIND_TRAINER
from iotrace.sources import records
from iotrace.sources.columns import Columns
from iotrace.sources.processes import Process
from iotrace.sources.records import Tick, TrainerRun
from iotrace.sources.session import Rank

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


def _self_ns(spans: Columns) -> Times:
    """The length of each range less those of the ranges directly inside it, of the same thread."""
    own = np.zeros(len(spans), np.int64)
    for tid in distinct(spans["tid"]).tolist():
        of_thread = spans["tid"] == tid
        starts, lengths = spans["start_ns"][of_thread], spans["duration_ns"][of_thread]
        own[of_thread] = less_inner(starts, starts + lengths, lengths)
    return np.maximum(own, 0)


_LINEAR = re.compile(r"Linear$")
_CONVOLUTION = re.compile(r"Conv(Transpose)?(\d)d$")


def models_of(process: Process) -> list[Model]:
    """Make a table of each model that the process trained, the one with most parameters first."""
    found = [_model(record) for record in process.of_type(records.Model) if record.modules]
    return sorted(found, key=lambda model: -(model.parameters or 0))


def snapshots_of(process: Process) -> list[Snapshot]:
    """List the snapshots of memory that the process wrote."""
    return [
        Snapshot(
            path=record.path,
            size_bytes=record.bytes,
            at_seconds=(process.clock.to_session_ns(record.mono_ns) - process.began_ns) / 1e9,
        )
        for record in process.of_type(records.MemorySnapshot)
    ]


def _model(record: records.Model) -> Model:
    layers = []
    for at, row in enumerate(record.modules):
        inside = [row, *_inside(record.modules, at)]
        name = row.name or record.root
        layers.append(
            ModelLayer(
                name=name,
                kind=row.kind,
                depth=row.name.count(".") + 1 if row.name else 0,
                calls=row.calls,
                input_shapes=row.given,
                output_shapes=row.returned,
                parameters=total(each.parameters for each in inside),
                trainable=total(each.trainable for each in inside),
                size_bytes=total(each.size_bytes for each in inside),
                multiply_adds=total(_multiply_adds(each) for each in inside),
            )
        )
    whole = layers[0]
    return Model(
        root=record.root,
        parameters=whole.parameters,
        trainable=whole.trainable,
        size_bytes=whole.size_bytes,
        multiply_adds=whole.multiply_adds,
        left_out=record.left_out,
        layers=layers,
    )


def _inside(modules: list[records.ModuleRow], at: int) -> list[records.ModuleRow]:
    """The modules within one, which follow it."""
    name = modules[at].name
    if not name:
        return modules[:at] + modules[at + 1 :]
    later = islice(modules, at + 1, None)
    return [*takewhile(lambda row: row.name.startswith(f"{name}."), later)]


def _multiply_adds(row: records.ModuleRow) -> int | None:
    """Count what a layer multiplies and adds in its calls, as if all were alike; 0 of layers of other kinds.

    A linear layer: its weights for each row that it returns. A convolution: its weights for each sample and
    place that it returns; a transposed one for each that it is given.
    """
    convolution = _CONVOLUTION.search(row.kind)
    if (convolution is None and _LINEAR.search(row.kind) is None) or not row.calls:
        return 0
    shapes = row.returned
    if convolution is not None and convolution[1]:
        shapes = row.given
    if not shapes or row.weight is None:
        return None
    shape = shapes[0]
    if convolution is None:
        return row.calls * row.weight * prod(shape[:-1])
    spatial = int(convolution[2])
    samples = prod(shape[: len(shape) - spatial - 1])
    return row.calls * row.weight * samples * prod(shape[len(shape) - spatial :])


_MOST_POINTS = 20


def speed_of(analysis: RankAnalysis) -> Speed | None:
    """Compute the speed of each phase of a rank; None where no batch was delivered."""
    by_phase: dict[str, list[tuple[LoaderRun, Deliveries]]] = defaultdict(list)
    for loader in analysis.loaders:
        if loader.number in analysis.within:  # another loader asks it
            continue
        own, texts = loader.deliveries, loader.deliveries.texts
        named: dict[str, list[int]] = defaultdict(list)
        for number in distinct(own["phase"]).tolist():
            phase = texts.get(number)
            named[PHASES.get(phase, phase) if phase else loader.kind].append(number)
        for phase, numbers in named.items():
            by_phase[phase].append((loader, own[np.isin(own["phase"], numbers)]))
    if not by_phase:
        return None
    order = [*PHASES.values(), *by_phase]
    busy_us = analysis.compute.accelerator.busy_us if analysis.compute.accelerator is not None else None
    return Speed(
        phases=[_phase(phase, by_phase[phase]) for phase in dict.fromkeys(order) if phase in by_phase],
        cpu_seconds=_cpu_seconds(analysis.rank),
        device_seconds=None if busy_us is None else busy_us / 1e6,
        device_steps=analysis.compute.breakdown_steps if busy_us is not None else None,
        evolution=_evolution(analysis),
    )


def _phase(phase: str, parts: list[tuple[LoaderRun, Deliveries]]) -> PhaseSpeed:
    """Sum up a phase over its loaders.

    A cycle lasts from one ask to the next of the same pass: what follows the last batch of a pass that was
    left is of no loader.
    """
    own = Deliveries.joined(deliveries for _, deliveries in parts)
    own = own[np.lexsort((own["epoch"], own["iterator"], own["loader"]))]
    keys = np.stack([own[field] for field in ("loader", "iterator", "epoch")], axis=1)
    is_first = np.append(True, (keys[1:] != keys[:-1]).any(axis=1))[: len(own)]
    following = np.append(own["wait_start_ns"][1:], NONE)[: len(own)]
    passes = {(loader.number, *key): each for loader, _ in parts for key, each in loader.passes.items()}
    for last in np.flatnonzero(np.append(is_first[1:], True)[: len(own)]).tolist():
        known = passes.get(tuple(keys[last].tolist()))
        following[last] = NONE if known is None or known.exhausted_ns is None else known.exhausted_ns[0]
    # The first batch of a pass waits for its workers' start.
    waited = int((~is_first).sum())
    closed = ~is_first & (following != NONE)
    cycles, seconds = int(closed.sum()), int((following - own["wait_start_ns"])[closed].sum()) / 1e9
    samples, samples_known = own["samples"], own.known("samples")
    samples_per_s = int(samples[closed].sum()) / seconds if seconds and samples_known[closed].all() else None
    productions = [
        max(1, loader.description.workers) * 1e3 / made_ms
        for loader, deliveries in parts
        if (made_ms := production_ms(deliveries)) and not loader.description.library
    ]
    return PhaseSpeed(
        phase=phase,
        batches=len(own),
        samples=int(samples.sum()) if samples_known.all() else None,
        cycles=cycles,
        seconds=seconds,
        batches_per_second=cycles / seconds if seconds else None,
        samples_per_second=samples_per_s,
        wait_ms=int(own.wait_ns[~is_first].sum()) / waited / 1e6 if waited else None,
        production_per_second=productions[0] if len(productions) == len(parts) == 1 else None,
    )


def _cpu_seconds(rank: Rank) -> float | None:
    """Sum up the CPU time of a rank's processes, from the start of each to its last account."""
    accounts = [process.of_type(Tick) for process in rank.processes]
    used_ns = total(ticks[-1].cpu_ns if ticks else None for ticks in accounts)
    return None if used_ns is None else used_ns / 1e9


def _evolution(analysis: RankAnalysis) -> list[SpeedPoint]:
    kept = analysis.kept
    if not len(kept):
        return []
    each = -(-len(kept) // _MOST_POINTS)
    begin_ns = analysis.loop.steps[0].start_ns
    points = []
    for first in range(0, len(kept), each):
        steps = kept[first : first + each]
        length_ns = int(steps.duration_ns.sum())
        if length_ns:
            points.append(
                SpeedPoint(
                    first_step=number_of(analysis.loop.steps, steps[0]),
                    steps=len(steps),
                    at_seconds=(steps[0].start_ns - begin_ns) / 1e9,
                    steps_per_second=1e9 * len(steps) / length_ns,
                    wait_fraction=min(1.0, int(steps.wait_ns.sum()) / length_ns),
                )
            )
    return points
