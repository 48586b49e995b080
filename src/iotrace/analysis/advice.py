"""What to change, for how much. A rule is silent unless what was seen makes its remedy true for this loader.

Each rule names its guard first, and rests on the figures that stand in `evidence`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath

from iotrace.analysis.loader_facts import FileFacts, LoaderFacts
from iotrace.analysis.results import Recommendation
from iotrace.analysis.wait.data_wait import MODERATELY_PERCENT, UNMADE
from iotrace.units import percent, size

_HIGH_PERCENT = 20.0
_MOST_OF_COST = 0.5  # of a cause: what one file has to cost to be named, and its format to be told
_MOSTLY = 0.5
_TELLING = 0.2  # of the transform: what the thread did in less of it does not tell what it is
_SMALL_READ = 64 << 10
_LARGE_BATCH = 1 << 20
_MANY_SAMPLES = 16
_FROM_STORAGE = 0.5  # of the bytes read
_INFLATED, _READ_IN_VAIN = 1.2, 1.5  # delivered / read, and the other way round
_CHUNKED = frozenset({".h5", ".hdf5", ".he5", ".nc", ".nc4", ".cdf", ".zarr"})
_IMAGES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"})
_WHOLE = frozenset({*_IMAGES, ".mp4", ".avi", ".mkv", ".mp3", ".flac", ".wav", ".ogg", ".gz", ".zip"})


def recommend(loaders: list[LoaderFacts]) -> list[Recommendation]:
    """Recommend changes to loaders of one rank, largest gain first; none for waits below 5 % of the step."""
    worth = sum(facts.wait_ms for facts in loaders)
    if not loaders or 100 * worth / loaders[0].step_ms < MODERATELY_PERCENT:
        return []
    first, found, last = [], [], []
    for facts in loaders:
        first += _made(_too_few_workers(facts))
        last += _made(_waiting_in_order(facts))
        for cause, remedy in _REMEDIES.items():
            if 100 * facts.causes_ms.get(cause, 0.0) / facts.step_ms >= MODERATELY_PERCENT:
                found += _made(_for_cause(facts, cause, remedy(facts)))
    found.sort(key=lambda item: -(item.gain_ms_per_step or 0.0))
    return [*first, *found, *last]


def _made(item: Recommendation | None) -> list[Recommendation]:
    return [] if item is None else [item]


def _for_cause(facts: LoaderFacts, cause: str, remedy: str) -> Recommendation | None:
    if not remedy:
        return None
    cause_ms = facts.causes_ms[cause]
    file = _costly(facts, cause)
    share = f" ({_cost(file, cause):.1f} ms of it in {file.path})" if file is not None else ""
    return Recommendation(
        id=f"{cause}-bound",
        severity=_severity(cause_ms, facts),
        text=f"{cause}{_of(facts)} costs {cause_ms:.1f} ms of wait a step{share}: {remedy}",
        evidence={f"{cause}_ms": cause_ms, **_which(facts)},
        gain_ms_per_step=cause_ms,
        remedy=remedy,
        fix=_fix(f"{cause}-bound", facts),
    )


def _severity(cost_ms: float, facts: LoaderFacts) -> str:
    return "high" if 100 * cost_ms / facts.step_ms > _HIGH_PERCENT else "medium"


def _of(facts: LoaderFacts) -> str:
    """Name the loader where the loop waits for several."""
    return f" of the loader of {facts.name} (loader {facts.number})" if facts.of_several else ""


def _fix(name: str, facts: LoaderFacts) -> str:
    """What the verdict calls this change: by its loader, too, where the loop waits for several."""
    return f"{name}:{facts.number}" if facts.of_several else name


def _which(facts: LoaderFacts) -> dict[str, float]:
    return {"loader": float(facts.number)} if facts.of_several else {}


def _cost(file: FileFacts, cause: str) -> float:
    return {"read": file.read_ms, "decode": file.decode_ms}.get(cause, 0.0)


def _costly(facts: LoaderFacts, cause: str) -> FileFacts | None:
    """The file that costs most of a cause; None where no file costs any."""
    files = [file for file in facts.files if _cost(file, cause) > 0]
    return max(files, key=lambda file: _cost(file, cause), default=None)


def _suffix(file: FileFacts) -> str:
    """What names a file's format; of a part of a store that of the store."""
    parts = PurePath(file.path).parts
    if any(part.endswith(".zarr") for part in parts):
        return ".zarr"
    return PurePath(file.path).suffix.lower()


def _formats(facts: LoaderFacts, cause: str) -> set[str]:
    """The formats that the cause is spent on, but for a small rest."""
    whole_ms = sum(_cost(file, cause) for file in facts.files)
    costs: dict[str, float] = {}
    for file in facts.files:
        costs[_suffix(file)] = costs.get(_suffix(file), 0.0) + _cost(file, cause)
    return {suffix for suffix, cost_ms in costs.items() if cost_ms >= 0.1 * whole_ms > 0}


def _read(facts: LoaderFacts) -> str:
    """Small pieces are made larger where the format allows; storage is to blame where bytes came from it."""
    cost_ms = facts.causes_ms["read"]
    file, remedies = _costly(facts, "read"), []
    if file is not None and file.read_ms >= _MOST_OF_COST * cost_ms and file.reads and file.read_bytes:
        piece = file.read_bytes / file.reads
        if piece < _SMALL_READ and _suffix(file) not in _WHOLE:
            remedies.append(f"read it in larger pieces ({size(piece)} each now)")
    read_bytes = sum(each.read_bytes or 0 for each in facts.files)
    per_step = _per_step(facts, read_bytes)
    if facts.storage_bytes and per_step and facts.storage_bytes >= _FROM_STORAGE * per_step:
        remedies.append(
            f"keep the data on faster or local storage ({size(facts.storage_bytes)} a step come from it)"
        )
    return ", or ".join(remedies)


def _per_step(facts: LoaderFacts, of_run: float) -> float | None:
    """A sum over the run as a mean per measured step."""
    return of_run / facts.batches * facts.batches_per_step if facts.batches else None


def _decode(facts: LoaderFacts) -> str:
    """By format: chunks and compression where there are any, else decoding once."""
    formats, file = _formats(facts, "decode"), _costly(facts, "decode")
    if formats and formats <= _CHUNKED and file is not None:
        return _chunked(file)
    if formats == {".npy"}:
        return ""  # nothing to decode: what this time is, is not known
    if formats and formats <= _IMAGES:
        return "store the images at the size that training takes, or decode them once and keep the arrays"
    if formats == {".npz"}:
        return "store the arrays uncompressed, as by numpy.save"
    if formats == {".csv"}:
        return "store the table in a binary format, such as Parquet"
    return "decode it once, ahead of training, and keep the result where there is room"


def _chunked(file: FileFacts) -> str:
    read, made = file.read_bytes, file.delivered_bytes
    if read and made and made > _INFLATED * read:
        return f"store it with lighter compression, or none ({size(read)} read give {size(made)})"
    if read and made and read > _READ_IN_VAIN * made:
        return f"store it in chunks that match what one sample reads ({size(read)} are read for {size(made)})"
    return "if it is compressed, store it with lighter compression; if it is chunked, let a sample be a chunk"


def _transform(facts: LoaderFacts) -> str:
    """By what the thread did: it slept, or it computed; waits for a CPU are neither."""
    making_ms = sum(facts.causes_ms.get(cause, 0.0) for cause in ("read", "decode", "transform"))
    if facts.asleep is None or facts.on_cpu is None:
        return ""
    # Reading sleeps, too, and decoding computes: what is beyond them is the transform's.
    asleep = max(0.0, facts.asleep - facts.causes_ms.get("read", 0.0) / making_ms)
    on_cpu = max(0.0, facts.on_cpu - facts.causes_ms.get("decode", 0.0) / making_ms)
    share = facts.causes_ms["transform"] / making_ms
    if asleep >= max(on_cpu, _TELLING * share):
        return (
            f"its thread sleeps in {percent(min(1.0, asleep / share))} of that: find what it waits for (a "
            "network, a lock, another process, a reader that iotrace does not know)"
        )
    if on_cpu < max(asleep, _TELLING * share):
        return ""
    on_device = ", or run it on the accelerator" if facts.accelerated else ""
    return f"do once, ahead of training, what is not random in it; vectorise the rest{on_device}"


def _collate(facts: LoaderFacts) -> str:
    """By whose the function is; torch's own only copies."""
    if facts.collate and not facts.collate.startswith("default_"):
        return f"{facts.collate} is slow: pad, convert and copy less in it"
    if facts.collate != "default_collate" or facts.core_free is not True:
        return ""
    if facts.batch_bytes is not None and facts.batch_bytes >= _LARGE_BATCH:
        return f"a batch of {size(facts.batch_bytes)} is copied: return narrower dtypes"
    if facts.samples is not None and facts.samples >= _MANY_SAMPLES and facts.batch_bytes is not None:
        return (
            f"{facts.samples:.0f} small samples are stacked one by one: make a batch at once in "
            "the dataset's __getitems__, with a collate_fn that passes it on"
        )
    return ""


def _transport(facts: LoaderFacts) -> str:
    """Only of large batches from workers, and not where processes wait for a CPU."""
    if not facts.workers or facts.core_free is not True or facts.handed_over:
        return ""
    if facts.batch_bytes is None or facts.batch_bytes < _LARGE_BATCH:
        return ""
    cast = " and cast them on the accelerator" if facts.accelerated else ""
    return f"batches of {size(facts.batch_bytes)} come from the workers: send narrower dtypes{cast}"


def _queued(facts: LoaderFacts) -> str:
    """Only where workers had nothing to do: they take indices in order, and had a CPU."""
    if not facts.workers or not facts.has_settings or facts.core_free is not True or facts.handed_over:
        return ""
    if facts.in_order is False or facts.prefetch_factor is None:
        return ""
    return (
        f"raise prefetch_factor above {facts.prefetch_factor}: workers had nothing to do until a batch "
        "was taken"
    )


def _startup(facts: LoaderFacts) -> str:
    """Only of workers that a later epoch starts anew."""
    if not facts.workers or not facts.has_settings or facts.epochs < 2 or facts.handed_over:
        return ""
    if facts.objects > 1:
        return (
            f"{facts.objects} DataLoaders were made in turn, each with new workers: make it once, "
            "with persistent_workers=True"
        )
    if facts.persistent_workers is not False:
        return ""
    return f"set persistent_workers=True: workers were started for each of {facts.epochs} epochs"


_REMEDIES: dict[str, Callable[[LoaderFacts], str]] = {
    "read": _read,
    "decode": _decode,
    "transform": _transform,
    "collate": _collate,
    "transport": _transport,
    "queued": _queued,
    "startup": _startup,
}


def _too_few_workers(facts: LoaderFacts) -> Recommendation | None:
    """Where they make batches slower than the loop takes them, and there is a CPU for another one."""
    if not facts.has_settings or facts.production_ms is None or facts.core_free is not True:
        return None
    if 100 * facts.wait_ms / facts.step_ms < MODERATELY_PERCENT or facts.unmade_fraction < UNMADE:
        return None
    sleeps = facts.asleep is not None and facts.asleep >= _MOSTLY
    if not sleeps and (facts.cpus is None or facts.workers + 1 >= facts.cpus):
        return None
    compute_ms = facts.step_ms - facts.wait_ms
    made_ms = facts.production_ms * facts.batches_per_step
    if facts.workers and made_ms / facts.workers <= compute_ms:
        return None
    shards = "; its IterableDataset has to share its samples among them" if facts.iterable else ""
    room = "they mostly sleep" if sleeps else "the cores are not all busy"
    return Recommendation(
        id="too-few-workers",
        severity=_severity(facts.wait_ms, facts),
        text=(
            f"a batch{_of(facts)} takes {facts.production_ms:.0f} ms to make, the rest of a step "
            f"{compute_ms:.0f} ms, and {room}: raise num_workers above {facts.workers}{shards}"
        ),
        evidence={
            "production_ms": facts.production_ms,
            "compute_ms": compute_ms,
            "workers": float(facts.workers),
            **_which(facts),
        },
        gain_ms_per_step=min(facts.wait_ms * facts.unmade_fraction, _beyond_the_cores(facts, made_ms)),
        remedy=f"raise num_workers above {facts.workers}{shards}",
        fix=_fix("too-few-workers", facts),
    )


def _beyond_the_cores(facts: LoaderFacts, made_ms: float) -> float:
    """What a step may win before the computing that its batches need keeps all cores busy."""
    busy_ms = made_ms * (facts.on_cpu or 0.0) / (facts.cpus or 1)
    return max(0.0, facts.step_ms - busy_ms)


def _waiting_in_order(facts: LoaderFacts) -> Recommendation | None:
    """Where torch can deliver out of order, and the consumer waits for a batch while a later one is ready."""
    behind_ms = facts.behind_ready_ms or 0.0
    if 100 * behind_ms / facts.step_ms < MODERATELY_PERCENT:
        return None
    if facts.in_order is not True or facts.workers < 2 or not facts.has_settings or facts.handed_over:
        return None
    return Recommendation(
        id="waiting-in-order",
        severity="medium",
        text=(
            f"{behind_ms:.1f} ms of wait a step{_of(facts)} passed while a later batch lay ready: "
            "DataLoader(in_order=False) delivers that one, where the order of samples may change"
        ),
        evidence={"behind_ready_ms": behind_ms, **_which(facts)},
        gain_ms_per_step=behind_ms,
        remedy="DataLoader(in_order=False), where the order of samples may change",
        fix=_fix("waiting-in-order", facts),
    )
