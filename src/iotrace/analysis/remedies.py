"""What mends a cause of the wait, by what was recorded of the loader; None where that tells nothing.

(Reading and decoding are of files: file_advice.py.)
"""

from __future__ import annotations

from collections.abc import Callable

from iotrace.analysis.file_advice import Remedy, decode, opened_again, read
from iotrace.analysis.loader_facts import LoaderFacts
from iotrace.units import percent, size

_MOSTLY = 0.5
_TELLING = 0.2  # of the transform: what the thread did in less of it does not tell what it is
_LARGE_BATCH = 1 << 20
_MANY_SAMPLES = 16
_ABOUT = 1.5  # as long: making is slower beside the loop than in its place


def _transform(facts: LoaderFacts) -> Remedy | None:
    """By what the thread did: it slept, or it computed; waits for a CPU are neither."""
    making_ms = sum(facts.causes_ms.get(cause, 0.0) for cause in ("read", "decode", "transform"))
    if facts.asleep is None or facts.on_cpu is None:
        return None
    # Reading sleeps, too, and decoding computes: what is beyond them is the transform's.
    asleep = max(0.0, facts.asleep - facts.causes_ms.get("read", 0.0) / making_ms)
    on_cpu = max(0.0, facts.on_cpu - facts.causes_ms.get("decode", 0.0) / making_ms)
    share = facts.causes_ms["transform"] / making_ms
    item = facts.item.partition(" ")[0] or facts.about.dataset
    if asleep >= max(on_cpu, _MOSTLY * share):
        return Remedy(
            f"find out why {item or 'the dataset'} sleeps",
            f"its thread sleeps in {percent(min(1.0, asleep / share))} of that: find what it waits for (a "
            "network, a lock, another process, a reader that iotrace does not know)",
        )
    if on_cpu < max(asleep, _TELLING * share):
        delayed = 1 - facts.asleep - facts.on_cpu - facts.threaded
        if delayed < _MOSTLY:
            return None
        return Remedy(
            f"run again with a free CPU for each worker: {item or 'the transform'} waited for a CPU "
            f"{percent(delayed)} of the time",
            f"its thread waited for a CPU in {percent(delayed)} of the time, so what is slow is unknown: "
            "run again with a free CPU for each worker (fewer workers, or no other programs)",
            gains=False,
        )
    opened = opened_again(facts, "transform")
    if opened is not None:
        return opened
    on_device = ", or run it on the accelerator" if facts.accelerated else ""
    return Remedy(
        f"precompute or vectorise {item or 'the transform'}",
        f"do once, ahead of training, what is not random in it; vectorise the rest{on_device}",
    )


def _collate(facts: LoaderFacts) -> Remedy | None:
    """By whose the function is; torch's own only copies."""
    if facts.collate and not facts.collate.startswith("default_"):
        text = f"{facts.collate} is slow: pad, convert and copy less in it"
        return Remedy(f"pad, convert and copy less in {facts.collate}", text)
    if facts.collate != "default_collate" or facts.core_free is not True:
        return None
    if facts.batch_bytes is not None and facts.batch_bytes >= _LARGE_BATCH:
        text = f"a batch of {size(facts.batch_bytes)} is copied: return narrower dtypes"
        return Remedy("return narrower dtypes from the dataset", text)
    if facts.samples is not None and facts.samples >= _MANY_SAMPLES and facts.batch_bytes is not None:
        return Remedy(
            "make a batch at once: Dataset.__getitems__",
            f"{facts.samples:.0f} small samples are stacked one by one: make a batch at once in "
            "the dataset's __getitems__, with a collate_fn that passes it on",
        )
    return None


def _transport(facts: LoaderFacts) -> Remedy | None:
    """Of large batches from workers, where no process waits for a CPU; and of batches soon made."""
    if not facts.about.workers or facts.core_free is None or facts.handed_over:
        return None
    if facts.batch_bytes is None or facts.batch_bytes < _LARGE_BATCH:
        return _without_workers(facts)
    if not facts.core_free:
        return None
    cast = " and cast them on the accelerator" if facts.accelerated else ""
    text = f"batches of {size(facts.batch_bytes)} come from the workers: send narrower dtypes{cast}"
    return Remedy("send narrower dtypes from the workers", text)


def _without_workers(facts: LoaderFacts) -> Remedy | None:
    """Where the loop waits for a batch about as long as it would take to make it; a sweep tells.

    Where processes wait for a CPU, that may be the wait: the change is then called unproven.
    """
    handing_ms = facts.causes_ms["transport"]
    if facts.made_ms is None or facts.about.wrapped or facts.made_ms > _ABOUT * handing_ms:
        return None
    text = (
        f"the loop waits {handing_ms:.1f} ms a step for batches that workers made in {facts.made_ms:.1f} ms: "
        "without workers it may be faster; iotrace sweep --workers 0,1 measures it"
    )
    short = "try num_workers=0: iotrace sweep --workers 0,1"
    if not facts.core_free:
        text += ", and no CPU was free: the wait may be for one, so this is unproven"
        short = "unproven: try num_workers=0 (iotrace sweep --workers 0,1 measures it)"
    return Remedy(short, text, gains=False, evidence={"made_ms": facts.made_ms})


def _queued(facts: LoaderFacts) -> Remedy | None:
    """Only where workers had nothing to do: they take indices in order, and had a CPU."""
    if not facts.about.workers or facts.about.wrapped or facts.core_free is not True or facts.handed_over:
        return None
    if facts.about.in_order is False or facts.about.prefetch_factor is None:
        return None
    change = f"raise prefetch_factor above {facts.about.prefetch_factor}"
    return Remedy(change, f"{change}: workers had nothing to do until a batch was taken")


def _startup(facts: LoaderFacts) -> Remedy | None:
    """Only of workers that a later epoch starts anew."""
    if not facts.about.workers or facts.about.wrapped or facts.epochs < 2 or facts.handed_over:
        return None
    if facts.objects > 1:
        return Remedy(
            "make the DataLoader once, and keep its workers",
            f"{facts.objects} DataLoaders were made in turn, each with new workers: make it once, "
            "with persistent_workers=True",
        )
    if facts.about.persistent_workers is not False:
        return None
    text = f"set persistent_workers=True: workers were started for each of {facts.epochs} epochs"
    return Remedy("DataLoader(persistent_workers=True)", text)


REMEDIES: dict[str, Callable[[LoaderFacts], Remedy | None]] = {
    "read": read,
    "decode": decode,
    "transform": _transform,
    "collate": _collate,
    "transport": _transport,
    "queued": _queued,
    "startup": _startup,
}
