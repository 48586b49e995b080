"""The settings that a search may try: what a setting asks for, and which ones a program could feel."""

from __future__ import annotations

from collections.abc import Iterator

from iotrace.sweeps.grid import (
    CV2_THREADS,
    IN_ORDER,
    PERSISTENT,
    PIN_MEMORY,
    PREFETCH,
    SHARING,
    THREADS,
    WORKERS,
)
from iotrace.sweeps.model import Seen

Params = dict[str, str]

COUNTS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)
_TRANSPORT = 0.05  # of a step: from there the sharing strategy is tried
_THREADS = 1.2  # cores that the training keeps busy: from there fewer threads are tried
_COMPUTED = 0.2  # of the batches' making: with less computing, threads of cv2 do not matter


def effort(params: Params) -> tuple[int, int, int]:
    """What a setting asks for: changed settings, workers, prefetching."""
    return len(params), int(params.get(WORKERS, 0)), int(params.get(PREFETCH, 0))


def key_of(params: Params) -> str:
    """Name a setting, in whichever order its values stand."""
    return " ".join(f"{name}={params[name]}" for name in sorted(params))


def counts(seen: Seen) -> list[Params]:
    """Every other number of workers."""
    return [{WORKERS: str(count)} for count in COUNTS if count != own_workers(seen)]


def ladders(seen: Seen) -> Iterator[list[Params]]:
    """Yield more and more workers, each twice as many as before, then fewer and fewer."""
    own = own_workers(seen)
    yield [{WORKERS: str(max(own, 1) * 2**power)} for power in range(0 if not own else 1, 7)]
    yield [{WORKERS: str(own // 2**power)} for power in range(1, own.bit_length())]


def own_workers(seen: Seen) -> int:
    """The number of workers of a run."""
    return int(seen.settings.get(WORKERS, 0))


def candidates(seen: Seen) -> Iterator[Params]:
    """Yield what the model knows: each number of workers with each other way to hand over batches."""
    prefetch = int(seen.settings.get(PREFETCH, 2))
    for workers in COUNTS:
        base = {} if workers == own_workers(seen) else {WORKERS: str(workers)}
        yield base
        if not workers:
            continue
        for factor in (2 * prefetch, 4 * prefetch):
            yield {**base, PREFETCH: str(factor)}
        for change in switches(seen):
            yield {**base, **change}


def switches(seen: Seen) -> list[Params]:
    """The switches of a loader that are not set yet, the last entry all of them."""
    found: list[Params] = []
    if seen.settings.get(IN_ORDER) == "True" and seen.can_set(IN_ORDER):
        found.append({IN_ORDER: "False"})
    if seen.epochs > 1 and seen.settings.get(PERSISTENT) == "False":
        found.append({PERSISTENT: "True"})
    return found + ([{**found[0], **found[1]}] if len(found) > 1 else [])


def probes(seen: Seen) -> Iterator[Params]:
    """Yield what the model does not know and this program could feel."""
    pipeline = seen.pipeline
    if seen.torch_threads != 1 and pipeline is not None and pipeline.threads > _THREADS:
        yield {THREADS: "1"}
    if seen.cv2_threads > 1 and (pipeline is None or _computes(seen)):
        yield {CV2_THREADS: "1"}
    if seen.accelerated and pipeline is not None and not pipeline.pinned:
        yield {PIN_MEMORY: "True"}
    if seen.transport_share >= _TRANSPORT:
        yield {SHARING: "file_system"}


def _computes(seen: Seen) -> bool:
    assert seen.pipeline is not None
    computed, slept = float(seen.pipeline.cpu_ns.sum()), float(seen.pipeline.blocked_ns.sum())
    return computed > _COMPUTED * (computed + slept)
