"""Views of a program: how fast it goes, where its trainer's time goes, its model, its device memory."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import msgspec

from iotrace.analysis.results import (
    MemoryDevice,
    MemoryModule,
    MemoryOperator,
    MemoryPoint,
    Model,
    ModelLayer,
    PhaseSpeed,
    RankReport,
    Report,
    Snapshot,
    SpeedPoint,
    TrainerRange,
    total,
)
from iotrace.report.blocks import Field, Table, columns, of_ranks
from iotrace.units import one_decimal, size, three_digits

_NO_MEMORY = "no trace of torch.profiler recorded memory"
_RECORD_MEMORY = "iotrace run --torch-options memory -- CMD"
_NO_BATCH = "no loader delivered a batch"
_NO_TRAINER = "no range of Lightning's trainer was seen"
_NO_MODEL = "no call of a module of torch.nn with gradients was seen"
_RUN = "iotrace run -- CMD, with a program that trains with Lightning, records them"
_TRAINS = "iotrace run -- CMD, with a program that trains by torch, records its layers"
_MOST_HOOKS = 30
_MOST_LAYERS = 60
_DEEPEST = 3


def _count(value: int) -> str:
    """Five digits at most: 556,314 is 556 k."""
    for unit, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= 10 * scale or (value >= scale and scale > 1e3):
            return f"{value / scale:.{0 if value >= 100 * scale else 1}f} {unit}"
    return f"{value:,}"


def speed(report: Report) -> list[Table]:
    """Show how fast each phase takes batches, and how the speed of training changes."""

    def phases(rank: RankReport) -> Table:
        rows = rank.speed.phases if rank.speed else []
        fields, notes = columns(PhaseSpeed), _totals(rank)
        return Table(title="Speed by phase", rows=rows, fields=fields, unknown=_NO_BATCH, notes=notes)

    def evolution(rank: RankReport) -> Table:
        rows = rank.speed.evolution if rank.speed else []
        why, fields = rank.steps.unknown_why or "no step was measured", columns(SpeedPoint)
        return Table(title="Training, measured steps in order", rows=rows, fields=fields, unknown=why)

    return of_ranks(report.ranks, phases, evolution)


def _totals(rank: RankReport) -> list[str]:
    if rank.speed is None:
        return []
    notes = []
    if rank.steps.per_second is not None:
        samples = rank.steps.samples_per_second
        of_samples = "" if samples is None else f", {three_digits(samples)} samples/s"
        notes.append(f"measured steps: {three_digits(rank.steps.per_second)} steps/s{of_samples}")
    parts = []
    if rank.speed.cpu_seconds is not None:
        parts.append(f"CPU {one_decimal(rank.speed.cpu_seconds)} s, of the program and its workers")
    if rank.speed.device_seconds is not None:
        parts.append(f"device busy {three_digits(rank.speed.device_seconds)} s in the profiled steps")
    if parts:
        notes.append("totals: " + " · ".join(parts))
    return notes


def time(report: Report) -> list[Table]:
    """Show where the trainer's time goes: first summed up by what it is of, then each hook."""

    def summed(rank: RankReport) -> Table:
        return Table(
            title="Trainer's time by what it is of (self: without the hooks inside)",
            rows=_by_owner(rank.trainer.ranges) if rank.trainer else [],
            fields=columns(TrainerRange),
            unknown=_NO_TRAINER,
            remedy=_RUN,
        )

    def each(rank: RankReport) -> Table:
        ranges = rank.trainer.ranges if rank.trainer else []
        left = len(ranges) - _MOST_HOOKS
        fields = columns(TrainerRange, None, ["self_ms_total", "kind", "owner"])
        return Table(
            title="Trainer's hooks",
            rows=ranges[:_MOST_HOOKS],
            fields=[*fields, Field("name", "hook", is_text=True)],
            unknown=_NO_TRAINER,
            notes=[f"{left} more hooks: iotrace report --json, ranks[].trainer.ranges"] if left > 0 else [],
        )

    return of_ranks(report.ranks, summed, each)


def _by_owner(ranges: Sequence[TrainerRange]) -> list[TrainerRange]:
    """Sum up ranges by what they are of; their own times, so that nothing counts twice."""
    found: dict[tuple[str, str], list[TrainerRange]] = defaultdict(list)
    for each in ranges:
        found[each.kind, each.owner or each.hook].append(each)
    rows = [
        TrainerRange(
            kind=kind,
            owner=owner,
            hook="",
            calls=sum(each.calls for each in own),
            ms_total=sum(each.ms_total for each in own),
            self_ms_total=sum(each.self_ms_total for each in own),
            ms_max=max(each.ms_max for each in own),
            ms_per_step=total(each.ms_per_step for each in own),
            run_pct=total(each.run_pct for each in own),
        )
        for (kind, owner), own in found.items()
    ]
    return sorted(rows, key=lambda row: -row.self_ms_total)


def model(report: Report) -> list[Table]:
    """Show the layers of the largest model, and each other model as one row."""
    fields = columns(ModelLayer, parameters=_count, multiply_adds=_count, output_shapes=_shapes)

    def layers(rank: RankReport) -> Table:
        if not rank.models:
            return Table(title="Model", rows=[], fields=fields, unknown=_NO_MODEL, remedy=_TRAINS)
        largest = rank.models[0]
        inner = _unwrapped(largest)
        deepest = inner[0].depth + _DEEPEST
        shown = [each for each in inner if each.depth <= deepest and (each.calls or each.parameters != 0)]
        rows = [_indented(layer, inner[0].depth) for layer in shown[:_MOST_LAYERS]]
        return Table(
            title=f"Model: {largest.root}, as one training step called it",
            rows=rows,
            fields=fields,
            notes=_model_notes(largest, len(inner) - len(rows), rank.models[1:]),
        )

    return of_ranks(report.ranks, layers)


def _unwrapped(model: Model) -> list[ModelLayer]:
    """The layers from the innermost module on that holds all parameters: without DDP and other wrappers."""
    layers = model.layers
    if not model.parameters:
        return layers
    whole = [at for at, layer in enumerate(layers) if layer.parameters == model.parameters]
    depths = [layers[at].depth for at in whole]
    chain = [at for at, depth in zip(whole, depths, strict=True) if depths.count(depth) == 1]
    if not chain or len(chain) < len(whole):
        return layers
    inner, name = layers[chain[-1]], layers[chain[-1]].name
    if any(layer.name.startswith(f"{name}.") for layer in layers):
        return [inner, *(layer for layer in layers if layer.name.startswith(f"{name}."))]
    return layers


def _indented(layer: ModelLayer, depth: int) -> ModelLayer:
    last = layer.name.rpartition(".")[2] if layer.depth else layer.name
    return msgspec.structs.replace(layer, name=f"{'  ' * (layer.depth - depth)}{last} ({layer.kind})")


def _model_notes(largest: Model, more: int, others: Sequence[Model]) -> list[str]:
    held, trainable = _count(largest.parameters or 0), _count(largest.trainable or 0)
    notes = [f"whole model: {held} parameters, {trainable} trainable, {size(largest.size_bytes or 0)}"]
    if more + largest.left_out > 0:
        more += largest.left_out
        notes.append(f"{more} more layers, deeper or not called: iotrace report --json, ranks[].models")
    if others:
        counts = Counter(f"{other.root} ({_count(other.parameters or 0)} parameters)" for other in others)
        named = ", ".join(name if count == 1 else f"{count} x {name}" for name, count in counts.items())
        notes.append(f"also called outside of it: {named}")
    return notes


def _shapes(shapes: list[list[int]]) -> str:
    """The first shape, and how many others there are."""
    if not shapes:
        return "no tensor"
    first = str(shapes[0]).replace(" ", "")
    return first if len(shapes) == 1 else f"{first} +{len(shapes) - 1}"


def memory(report: Report) -> list[Table]:
    """Show each device's memory in the profiled steps, over time too, and who was given most."""

    def devices(rank: RankReport) -> Table:
        rows = rank.memory.devices if rank.memory else []
        return Table(
            title="Memory by device, in the profiled steps",
            rows=rows,
            fields=columns(MemoryDevice),
            notes=[
                f"{one.device} at its peak, by who was given it: "
                + " · ".join(f"{name} {size(held)}" for name, held in one.peak_by_phase_bytes.items() if held)
                for one in rows
                if one.peak_by_phase_bytes
            ],
            unknown=_NO_MEMORY,
            remedy=_RECORD_MEMORY,
        )

    def operators(rank: RankReport) -> Table:
        rows, fields = rank.memory.operators if rank.memory else [], columns(MemoryOperator)
        title = "Operators that were given most, themselves"
        return Table(title=title, rows=rows, fields=fields, unknown=_NO_MEMORY)

    def modules(rank: RankReport) -> Table:
        rows, fields = rank.memory.modules if rank.memory else [], columns(MemoryModule)
        title = "Modules that were given most, themselves, forward and backward"
        return Table(title=title, rows=rows, fields=fields, unknown=_NO_MEMORY)

    def evolution(rank: RankReport) -> Table:
        kinds = ("forward", "backward", "optimizer", "other", "before")
        return Table(
            title="Memory held over time, by who was given it",
            rows=rank.memory.evolution if rank.memory else [],
            fields=columns(MemoryPoint, dict(zip(kinds, kinds, strict=True))),
            unknown=_NO_MEMORY if rank.memory is None else "the trace does not tell addresses",
        )

    return of_ranks(report.ranks, devices, operators, modules, evolution)


def snapshot(report: Report) -> list[Table]:
    """Show where lies what the allocator recorded, for torch's viewer of memory."""

    def make(rank: RankReport) -> Table:
        return Table(
            title="Snapshots of device memory, for pytorch.org/memory_viz",
            rows=rank.snapshots,
            fields=columns(Snapshot),
            unknown="none was written; it takes a device of CUDA or HIP",
            remedy="iotrace run --cuda-snapshot 5:3 -- CMD",
        )

    return of_ranks(report.ranks, make)
