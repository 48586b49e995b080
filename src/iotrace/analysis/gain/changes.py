"""The changes that are asked about: how each would alter the pipeline that was recorded."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import msgspec
import numpy as np
from msgspec.structs import replace

from iotrace.analysis.gain.pipeline import Floats, Pipeline
from iotrace.analysis.gain.recorded import Recorded
from iotrace.analysis.results import GONE, HALVED, DataWait
from iotrace.analysis.wait.data_wait import MODERATELY_PERCENT
from iotrace.analysis.wait.gain_bound import FILES
from iotrace.analysis.wait.production import PARTS

_MOST_FILES = 3
_SHARES = {GONE: 1.0, HALVED: 0.5}
_SLOW = 3.0  # times the median: a batch that holds a slow sample
_MOST_WORKERS = 2  # for each CPU
_INLINE = "no worker made a batch: what it costs to bring one from there was not measured"


class Change(msgspec.Struct, frozen=True):
    """A change by its names in a report, and the pipeline with it; `withheld`: why nothing is told of it."""

    id: str
    kind: str
    text: str
    change: str
    pipeline: Pipeline
    withheld: str | None = None


def less(found: Recorded, costs: Mapping[str, Floats], share: float = 1.0) -> Pipeline:
    """Take `share` of some parts' costs out of the batches' making; in ns, one entry a batch.

    Reading sleeps and decoding computes, as far as there is sleep and computing; of all other parts each has
    the same share. A wait for a CPU goes with the computing, one for the interpreter's lock with its end.
    """
    pipe = found.pipeline
    parts = dict(zip(PARTS, found.parts_ns.T, strict=True))
    nothing = np.zeros(len(pipe))
    read, decode, *others = (costs.get(name, nothing) for name in PARTS)
    other = sum(others, nothing)
    awake = np.minimum(pipe.cpu_ns + found.delay_ns, found.made_ns)
    asleep = np.maximum(found.made_ns - awake, 0.0)
    read_asleep = np.minimum(parts["read"], asleep)
    decode_awake = np.minimum(parts["decode"], np.maximum(awake - (parts["read"] - read_asleep), 0.0))
    rest = sum((parts[name] for name in PARTS[2:]), nothing)
    rest_asleep = np.maximum(asleep - read_asleep - (parts["decode"] - decode_awake), 0.0)

    def part(cost: Floats, whole: Floats, of: Floats) -> Floats:
        return np.where(whole > 0, of * np.minimum(cost / np.where(whole > 0, whole, 1.0), 1.0), 0.0)

    sleep = part(read, parts["read"], read_asleep)
    sleep = sleep + part(decode, parts["decode"], parts["decode"] - decode_awake)
    sleep = sleep + part(other, rest, np.minimum(rest_asleep, rest))
    compute = np.minimum(np.maximum(read + decode + other - sleep, 0.0), awake)
    on_cpu = np.where(awake > 0, pipe.cpu_ns / np.where(awake > 0, awake, 1.0), 0.0)
    cpu_ns = np.maximum(pipe.cpu_ns - share * compute * on_cpu, 0.0)
    return replace(
        pipe,
        blocked_ns=np.maximum(pipe.blocked_ns - share * sleep, 0.0),
        cpu_ns=cpu_ns,
        latency_ns=pipe.latency_ns - np.maximum(found.held_ns - cpu_ns, 0.0),
    )


def changes_of(found: Recorded, wait: DataWait, step_ms: float, cpus: int) -> Iterator[Change]:
    """Yield the changes that are worth a look, causes first, then files and knobs."""
    least_ms = MODERATELY_PERCENT / 100 * step_ms
    yield from _causes(found, wait, least_ms)
    yield from _files(found, wait, least_ms)
    yield from _knobs(found, cpus)


def _causes(found: Recorded, wait: DataWait, least_ms: float) -> Iterator[Change]:
    nothing = np.zeros(len(found.pipeline))
    for cause in ("read", "decode", "transform", "collate"):
        if wait.causes_ms.get(cause, 0.0) >= least_ms:
            own = {cause: found.parts_ns[:, PARTS.index(cause)]}
            for change, share in _SHARES.items():
                yield Change(cause, "cause", cause, change, less(found, own, share))
    if wait.causes_ms.get("transport", 0.0) >= least_ms:
        pipeline = replace(found.pipeline, latency_ns=nothing, service_ns=nothing)
        yield Change("transport", "cause", "transport", GONE, pipeline)
        if found.pipeline.pinned:
            pipeline = replace(found.pipeline, service_ns=nothing)
            yield Change("pinning", "cause", "receiving and pinning", GONE, pipeline)
    made = found.pipeline.blocked_ns + found.pipeline.cpu_ns
    usual = float(np.median(made))
    slow = made > _SLOW * usual
    if slow.any() and usual > 0:
        factor = np.where(slow, usual / np.where(made > 0, made, 1.0), 1.0)
        pipe = found.pipeline
        pipeline = replace(pipe, blocked_ns=pipe.blocked_ns * factor, cpu_ns=pipe.cpu_ns * factor)
        text = f"slow samples: {slow.sum()} of {len(slow)} batches"
        yield Change("slow-samples", "cause", text, GONE, pipeline)
    if wait.causes_ms.get("startup", 0.0) >= least_ms:
        epochs = tuple(replace(each, setup_ns=0.0, up_ns=0.0) for each in found.pipeline.epochs)
        pipeline = replace(found.pipeline, epochs=epochs)
        yield Change("first-batch", "cause", "the slow first batch of each epoch", GONE, pipeline)


def _files(found: Recorded, wait: DataWait, least_ms: float) -> Iterator[Change]:
    costs = found.waits.made_files
    worth = [file for file in wait.files if file.ms >= least_ms]
    if worth:
        own = {name: found.parts_ns[:, PARTS.index(name)] for name in ("read", "decode")}
        yield Change(FILES, "file", "reading and decoding of all files", GONE, less(found, own))
    for file in worth[:_MOST_FILES]:
        rows = costs.file == costs.names.number(file.path)
        size = len(found.pipeline)
        own = {
            name: np.bincount(costs.owner[rows], costs.parts[rows, column], size).astype(np.float64)
            for column, name in enumerate(("read", "decode"))
        }
        text = f"reading and decoding of {file.path}"
        yield Change(f"{FILES}:{file.path}", "file", text, GONE, less(found, own))
        if file.decode_ms >= least_ms:
            for change, share in _SHARES.items():
                pipeline = less(found, {"decode": own["decode"]}, share)
                yield Change(f"decode:{file.path}", "file", f"decode of {file.path}", change, pipeline)


def _knobs(found: Recorded, cpus: int) -> Iterator[Change]:
    pipe = found.pipeline
    for workers in _workers(pipe, cpus):
        yield _knob("num_workers", str(workers), replace(pipe, workers=workers))
    if not pipe.workers:
        yield replace(_knob("num_workers", "1", pipe), withheld=_INLINE)
        return
    doubled = 2 * pipe.prefetch
    yield _knob("prefetch_factor", str(doubled), replace(pipe, prefetch=doubled))
    if pipe.workers > 1 and pipe.in_order:
        yield _knob("in_order", "False", replace(pipe, in_order=False))
    if any(each.up_ns > 0 for each in pipe.epochs[1:]):
        yield _knob("persistent_workers", "True", persistent(pipe))


def _knob(name: str, value: str, pipeline: Pipeline) -> Change:
    return Change(f"{name}={value}", "knob", f"{name}={value}", value, pipeline)


def persistent(pipe: Pipeline) -> Pipeline:
    """Return the pipeline with workers that later epochs find up."""
    first, *later = (replace(each, shutdown_ns=0.0) for each in pipe.epochs)
    epochs = (first, *(replace(each, setup_ns=0.0, up_ns=0.0) for each in later))
    return replace(pipe, epochs=epochs)


def _workers(pipe: Pipeline, cpus: int) -> list[int]:
    """Other numbers of workers: one more, twice as many, enough to keep up, one for each CPU but one."""
    if not pipe.workers:
        return []
    makes = float(np.mean(pipe.blocked_ns + pipe.cpu_ns))
    takes = float(np.mean(pipe.idle_ns + pipe.compute_ns + pipe.service_ns))
    enough = math.ceil(makes / takes) if takes > 0 else 0
    found = {pipe.workers + 1, 2 * pipe.workers, enough, cpus - 1} - {pipe.workers}
    return sorted(number for number in found if 1 <= number <= max(_MOST_WORKERS * cpus, pipe.workers + 1))
