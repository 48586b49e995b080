"""A program's models as tables of layers, from the records of one forward pass of each."""

from __future__ import annotations

import re
from itertools import islice, takewhile
from math import prod

from iotrace.analysis.results import Model, ModelLayer, Snapshot, total
from iotrace.sources import records
from iotrace.sources.processes import Process

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
