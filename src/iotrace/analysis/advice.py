"""What to change, for how much: recommendations from a rank's figures."""

from __future__ import annotations

from iotrace.analysis.results import DataWait, LoaderResult, RankReport, Recommendation
from iotrace.analysis.wait.data_wait import MODERATELY_PERCENT

_REMEDIES = {
    "read": "keep the data on faster or local storage, read larger pieces, or let more workers read at once",
    "decode": "store it with lighter compression, or with chunks that match what one sample reads",
    "transform": "move the work into preparation done once, vectorise it, or run it on the accelerator",
    "collate": "return arrays that need no padding, or collate into a preallocated tensor",
    "transport": "send smaller batches (narrower dtypes, cast on the accelerator), and pin memory on CUDA",
    "queued": "raise prefetch_factor: workers had nothing to do until a batch was taken",
    "startup": "set persistent_workers=True: workers are started anew for every epoch",
}


def recommend(rank: RankReport) -> list[Recommendation]:
    """Recommend changes, largest gain first; none where the wait is below 5 % of the step."""
    wait = rank.data_wait
    step_ms = rank.steps.mean_ms
    if not wait.raw_ms or not step_ms or 100 * wait.raw_ms / step_ms < MODERATELY_PERCENT:
        return []
    found = []
    for cause, cause_ms in wait.causes_ms.items():
        if cause in _REMEDIES and 100 * cause_ms / step_ms >= MODERATELY_PERCENT:
            found.append(_for_cause(cause, cause_ms, step_ms, wait))
    found.sort(key=lambda item: -(item.gain_ms_per_step or 0.0))
    primary = next(loader for loader in rank.loaders if loader.primary)
    if wait.too_few_workers:
        found.insert(0, _more_workers(primary, wait, step_ms))
    if 100 * (wait.behind_ready_ms or 0.0) / step_ms >= MODERATELY_PERCENT:
        found.append(_out_of_order(wait.behind_ready_ms or 0.0))
    return found


def _out_of_order(behind_ready_ms: float) -> Recommendation:
    """Advise where the consumer waits for the next batch in order while later ones lie ready."""
    return Recommendation(
        id="waiting-in-order",
        severity="medium",
        text=(
            f"{behind_ready_ms:.1f} ms of wait a step passed while a later batch lay ready: "
            "DataLoader(in_order=False) delivers that one, where the order of samples may change"
        ),
        evidence={"behind_ready_ms": behind_ready_ms},
        gain_ms_per_step=None,
    )


def _for_cause(cause: str, cause_ms: float, step_ms: float, wait: DataWait) -> Recommendation:
    share = ""
    if cause in ("read", "decode") and wait.files:
        costly = max(wait.files, key=lambda file: file.read_ms if cause == "read" else file.decode_ms)
        file_ms = costly.read_ms if cause == "read" else costly.decode_ms
        share = f" ({file_ms:.1f} ms of it in {costly.path})"
    percent = 100 * cause_ms / step_ms
    return Recommendation(
        id=f"{cause}-bound",
        severity="high" if percent > 20 else "medium",
        text=f"{cause} costs {cause_ms:.1f} ms of wait a step{share}: {_REMEDIES[cause]}",
        evidence={f"{cause}_ms": cause_ms},
        gain_ms_per_step=cause_ms,
    )


def _more_workers(primary: LoaderResult, wait: DataWait, step_ms: float) -> Recommendation:
    compute_ms, production_ms = step_ms - (wait.raw_ms or 0.0), primary.production_ms or 0.0
    workers = float(primary.workers)
    return Recommendation(
        id="too-few-workers",
        severity="high" if 100 * (wait.raw_ms or 0.0) / step_ms > 20 else "medium",
        text=(
            f"a batch takes {production_ms:.0f} ms to make, a step {compute_ms:.0f} ms to compute, and the "
            f"cores are not all busy: raise num_workers above {primary.workers}"
        ),
        evidence={"production_ms": production_ms, "compute_ms": compute_ms, "workers": workers},
        gain_ms_per_step=None,
    )
