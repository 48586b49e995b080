"""What to change, for how much. A rule is silent unless what was seen makes its remedy true for this loader.

Each rule names its guard first, and rests on the figures that stand in `evidence`.
"""

from __future__ import annotations

import math
from typing import Any

from msgspec.structs import replace

from iotrace.analysis.file_advice import Remedy, costliest
from iotrace.analysis.loader_facts import LoaderFacts
from iotrace.analysis.remedies import REMEDIES
from iotrace.analysis.results import Recommendation
from iotrace.analysis.verdict.reason import cost_ms
from iotrace.analysis.wait.data_wait import MODERATELY_PERCENT, UNMADE
from iotrace.analysis.wait.gain_bound import FILES

_HIGH_PERCENT = 20.0
_MOSTLY = 0.5
_HANDING_OVER_MS = 1.0  # what it may cost to bring a batch from another process
_MOST_WORKERS = 2  # for each CPU: more of them, asleep, are for a sweep to find


def recommend(loaders: list[LoaderFacts]) -> list[Recommendation]:
    """Recommend changes to loaders of one rank, largest gain first; none for waits below 5 % of the step.

    Workers that are started anew hold the loop up outside its waits, too.
    """
    worth = sum(facts.bound_ms for facts in loaders)
    waits = bool(loaders) and 100 * worth / loaders[0].step_ms >= MODERATELY_PERCENT
    first, found, last = [], [], []
    for facts in loaders:
        if waits:
            first += _made(_too_few_workers(facts) or _made_by_the_loop(facts), facts)
            last += _made(_waiting_in_order(facts), facts)
        for cause, remedy in REMEDIES.items():
            if (waits or cause == "startup") and _worth(_cost_ms(facts, cause), facts):
                found += _made(_for_cause(facts, cause, remedy(facts)), facts)
    found.sort(key=lambda item: -(item.gain_ms_per_step or 0.0))
    return [*first, *found, *last]


def _made(item: Recommendation | None, facts: LoaderFacts) -> list[Recommendation]:
    """Make a list of it; a change to one of several loaders says to which, in its name and in its words."""
    if item is None:
        return []
    item = replace(item, fix=f"{item.id}:{facts.number}" if facts.of_several else item.id)
    call, closed, rest = item.remedy.partition(")")
    if not facts.called or not call.startswith("DataLoader("):
        return [item]
    return [replace(item, remedy=f"{call}{closed} of {facts.called}{rest}")]


def _for_cause(facts: LoaderFacts, cause: str, remedy: Remedy | None) -> Recommendation | None:
    if remedy is None:
        return None
    cause_ms = _cost_ms(facts, cause)
    most = costliest(facts, cause)
    share = f" ({cost_ms(most, cause):.1f} ms of it in {most.path})" if most is not None else ""
    where = f" in {facts.item}" if cause == "transform" and facts.item else ""
    gain_ms, predicted = _told(facts, _row_of(facts, cause, remedy), _gain_ms(facts, cause, remedy))
    if not _worth(gain_ms, facts):
        return None
    costs = f"{cause}{_of(facts)}{where} costs {cause_ms:.1f} ms of wait a step{share}"
    if cause == "startup":
        costs = f"starting and ending workers{_of(facts)} takes {cause_ms:.1f} ms a step"
    return Recommendation(
        id=f"{cause}-bound",
        severity=_severity(cause_ms, facts),
        text=f"{costs}: {remedy.text}",
        evidence={f"{cause}_ms": cause_ms, **_which(facts), **remedy.evidence},
        gain_ms_per_step=gain_ms if remedy.gains else None,
        remedy=remedy.short,
        command=remedy.command,
        cost_ms_per_step=_spared_ms(facts, cause, remedy),
        **(predicted if remedy.gains else {}),
    )


def _worth(cost_ms: float, facts: LoaderFacts) -> bool:
    return 100 * cost_ms / facts.step_ms >= MODERATELY_PERCENT


def _cost_ms(facts: LoaderFacts, cause: str) -> float:
    """What a cause takes of a step: of its wait, and to end workers and start others."""
    return facts.causes_ms.get(cause, 0.0) + (facts.restart_ms if cause == "startup" else 0.0)


def _gain_ms(facts: LoaderFacts, cause: str, remedy: Remedy) -> float:
    """A bound of what a step loses: of a replay without the cause, or without reading and decoding a file."""
    if cause == "startup":
        return _cost_ms(facts, cause)
    return min(facts.bound_ms, facts.gains_ms.get(remedy.gone or cause, facts.wait_ms))


def _spared_ms(facts: LoaderFacts, cause: str, remedy: Remedy) -> float | None:
    """The wait of what a remedy spares: its file, all files, or its cause; None where none was replayed."""
    if not remedy.gains or (remedy.gone or cause) not in facts.gains_ms:
        return None
    of_files, _, path = remedy.gone.partition(":")
    if path:
        return sum(file.read_ms + file.decode_ms for file in facts.files if file.path == path)
    if of_files == FILES:
        return sum(facts.causes_ms.get(each, 0.0) for each in ("read", "decode"))
    return _cost_ms(facts, cause)


def _row_of(facts: LoaderFacts, cause: str, remedy: Remedy) -> str:
    """The id of the gain's row that stands for a remedy."""
    knobs = {
        "startup": "persistent_workers=True",
        "queued": f"prefetch_factor={2 * (facts.about.prefetch_factor or 0)}",
    }
    return remedy.gone or knobs.get(cause, cause)


def _told(facts: LoaderFacts, name: str, bound_ms: float) -> tuple[float, dict[str, Any]]:
    """What a change saves: its bound; where the model of the loader speaks, its prediction and interval."""
    row = facts.predicted.get(name)
    if row is None or row.gain_ms_per_step is None or row.interval_ms is None:
        return bound_ms, {}
    interval_ms = [facts.step_ms - most_ms for most_ms in reversed(row.interval_ms)]
    return row.gain_ms_per_step, {"gain": row.id, "gain_interval_ms": interval_ms}


def _severity(cost_ms: float, facts: LoaderFacts) -> str:
    return "high" if 100 * cost_ms / facts.step_ms > _HIGH_PERCENT else "medium"


def _of(facts: LoaderFacts) -> str:
    """Name the loader where the loop waits for several."""
    return f" of the loader of {facts.about.dataset} (loader {facts.number})" if facts.of_several else ""


def _which(facts: LoaderFacts) -> dict[str, float]:
    return {"loader": float(facts.number)} if facts.of_several else {}


def _too_few_workers(facts: LoaderFacts) -> Recommendation | None:
    """Where they make batches slower than the loop takes them, and another one has a CPU, or needs none."""
    about = facts.about
    if about.wrapped or facts.production_ms is None:
        return None
    if not _worth(facts.bound_ms, facts) or facts.unmade_fraction < UNMADE:
        return None
    # In calls of libraries with threads of their own, somebody sleeps where the process does; or has no CPU.
    asleep_there = facts.threaded - facts.threaded_cpu if facts.core_free else 0.0
    sleeps = (facts.asleep or 0.0) + asleep_there >= _MOSTLY
    if not sleeps and (facts.core_free is not True or facts.cpus is None or about.workers + 1 >= facts.cpus):
        return None
    compute_ms = facts.step_ms - facts.bound_ms
    made_ms = facts.production_ms * facts.batches_per_step
    if about.workers and made_ms / about.workers <= compute_ms:
        return None
    enough = _enough_workers(facts, made_ms, compute_ms, sleeps)
    bound_ms = min(_won_by_order(facts, enough), _beyond_the_cores(facts, made_ms))
    gain_ms, predicted = _told(facts, f"num_workers={enough}", bound_ms)
    if not _worth(gain_ms, facts):
        return None
    shards = "; its IterableDataset has to share its samples among them" if about.iterable else ""
    room = "they mostly sleep" if sleeps else "the cores are not all busy"
    more = f"raise num_workers above {about.workers}"
    change = "more workers: iotrace sweep finds how many"
    if enough is not None:
        more += f", to {enough}"
        change = f"DataLoader(num_workers={enough})" + (", samples shared out" if about.iterable else "")
    return Recommendation(
        id="too-few-workers",
        severity=_severity(facts.bound_ms, facts),
        text=(
            f"a batch{_of(facts)} takes {facts.production_ms:.0f} ms to make, the rest of a step "
            f"{compute_ms:.0f} ms, and {room}: {more}{shards}"
        ),
        evidence={
            "production_ms": facts.production_ms,
            "compute_ms": compute_ms,
            "workers": float(about.workers),
            **_which(facts),
        },
        gain_ms_per_step=gain_ms,
        remedy=change,
        **predicted,
    )


def _made_by_the_loop(facts: LoaderFacts) -> Recommendation | None:
    """Of a loader that is none of torch's: its batches are computed on the thread that trains."""
    if not facts.about.wrapped or facts.about.workers or facts.handed_over or facts.core_free is not True:
        return None
    if facts.production_ms is None or (facts.on_cpu or 0.0) < _MOSTLY or facts.unmade_fraction < UNMADE:
        return None
    compute_ms = facts.step_ms - facts.bound_ms
    gain_ms = min(facts.bound_ms, compute_ms)  # while one computes, the other waits
    if not _worth(gain_ms, facts) or gain_ms < _HANDING_OVER_MS:
        return None
    return Recommendation(
        id="made-by-the-loop",
        severity=_severity(facts.bound_ms, facts),
        text=(
            f"the loop itself makes each batch{_of(facts)}, in {facts.production_ms:.1f} ms, and then "
            f"computes for {compute_ms:.1f} ms: make the next batch meanwhile, in another process (in a "
            "thread, if what makes it leaves the interpreter's lock)"
        ),
        evidence={"production_ms": facts.production_ms, "compute_ms": compute_ms, **_which(facts)},
        gain_ms_per_step=gain_ms,
        remedy="make the next batch in another process meanwhile",
    )


def _enough_workers(facts: LoaderFacts, made_ms: float, compute_ms: float, sleeps: bool) -> int | None:
    """How many make batches as fast as the loop takes them; of those that compute as many as have a core.

    None where that is known of neither.
    """
    cpus = facts.cpus or 0
    needed = math.ceil(made_ms / compute_ms) if compute_ms > 0 else None
    if not sleeps:
        return cpus - 1 if needed is None else min(needed, cpus - 1)
    return needed if needed is not None and facts.about.workers < needed <= _MOST_WORKERS * cpus else None


def _beyond_the_cores(facts: LoaderFacts, made_ms: float) -> float:
    """What a step may win before the computing that its batches need keeps all cores busy."""
    busy_ms = made_ms * ((facts.on_cpu or 0.0) + facts.threaded_cpu) / (facts.cpus or 1)
    return max(0.0, facts.step_ms - busy_ms)


def _won_by_order(facts: LoaderFacts, workers: int | None) -> float:
    """What a step may win if `workers` (None: any number) always have work: all but their start and work."""
    won_ms = facts.wait_ms - facts.causes_ms.get("startup", 0.0)
    if workers and facts.made_ms is not None:
        won_ms = min(won_ms, facts.step_ms - facts.made_ms / workers)
    return max(0.0, min(won_ms, facts.bound_ms))


def _waiting_in_order(facts: LoaderFacts) -> Recommendation | None:
    """Where torch can deliver out of order, and the consumer waits for a batch while a later one is ready."""
    about, behind_ms = facts.about, facts.behind_ready_ms or 0.0
    won_ms, predicted = _told(facts, "in_order=False", _won_by_order(facts, about.workers))
    if not _worth(min(behind_ms, won_ms), facts):
        return None
    if about.in_order is not True or about.workers < 2 or about.wrapped or facts.handed_over:
        return None
    return Recommendation(
        id="waiting-in-order",
        severity="medium",
        text=(
            f"{behind_ms:.1f} ms of wait a step{_of(facts)} passed while a later batch lay ready: "
            "DataLoader(in_order=False) delivers that one, where the order of samples may change"
        ),
        evidence={"behind_ready_ms": behind_ms, **_which(facts)},
        gain_ms_per_step=won_ms,
        remedy="DataLoader(in_order=False), if order may change",
        **predicted,
    )
