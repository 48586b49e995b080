"""What the rules of a loader share: a cause of its wait, what ends it, and what that gains."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import msgspec

from iotrace.analysis.results import Change, Evidence, FileGroup, cost_of_file_ms
from iotrace.analysis.rules.facts.loader import FileFacts, LoaderFacts
from iotrace.analysis.rules.model import Finding
from iotrace.analysis.wait.data_wait import MODERATELY_PERCENT
from iotrace.analysis.wait.gain_bound import FILES, RESIZED
from iotrace.analysis.wait.production import PARTS

MOSTLY = (
    0.5  # of a cause: what one file or group has to cost to be named; of the time, what a thread mostly did
)
_HIGH_PERCENT = 20.0
TELLING = 0.2  # of the transform: what the thread did in less of it does not tell what it is


class Remedy(msgspec.Struct, frozen=True):
    """A change: in short, and as a sentence with its evidence.

    `gone` is what it spares, as `LoaderFacts.gains_ms` names it; empty: its cause. `most` is that with what
    it may spare, too; empty: no more. Without `gains` it only shows more; `tries`: it may gain nothing.
    `share` of that is spared, about, where that is not all, and `least_ms` at the least, where that is known;
    `at_most`: no more is known. `command` makes it;
    `change` is what `iotrace try` does. `spares_work`: less is read or decoded. `said`: what costs the time,
    where that is no matter of a file.
    """

    short: str
    text: str
    gone: str = ""
    most: str = ""
    gains: bool = True
    tries: bool = False
    at_most: bool = False
    spares_work: bool = False
    share: float = 1.0
    least_ms: float | None = None
    command: str = ""
    change: Change | None = None
    evidence: Evidence = {}
    said: str = ""


def ended_by(remedy: Remedy | None, cause: str, facts: LoaderFacts) -> Iterator[Finding]:
    """Yield that a cause of the wait can be ended, where that gains 5 % of a step or more."""
    if remedy is None:
        return
    cause_ms = cost_ms(facts, cause)
    gain_ms, predicted = predicted_gain(facts, _row_of(facts, cause, remedy), _gain_ms(facts, cause, remedy))
    if cause == "startup" and predicted and gain_ms < cause_ms:  # which was measured, beside the waits, too
        gain_ms = cause_ms
        low_ms, high_ms = predicted["gain_interval_ms"]
        predicted["gain_interval_ms"] = [low_ms, max(high_ms, cause_ms)]
    all_ms = gain_ms
    if remedy.share < 1:  # no replay is of so much
        gain_ms, predicted = gain_ms * remedy.share, {}
    if remedy.least_ms is not None:
        gain_ms = max(gain_ms, min(remedy.least_ms, all_ms))
        predicted["gain_interval_ms"] = [min(remedy.least_ms, all_ms), all_ms]
    if not is_worth(gain_ms, facts):
        return
    most, is_bound = costliest(facts, cause), remedy.tries or remedy.at_most
    share = ""
    if most is not None:
        of_file = f"{cost_of_file_ms(most, cause):.1f}"
        share = f" ({'all' if of_file == f'{cause_ms:.1f}' else f'{of_file} ms'} of it in {most.path})"
    where = f" in {facts.item}" if cause == "transform" and facts.item else ""
    costs = f"{cause}{of_loader(facts)}{where} costs {cause_ms:.1f} ms of wait a step{share}"
    if cause == "startup":
        costs = f"starting and ending workers{of_loader(facts)} takes {cause_ms:.1f} ms a step"
        if facts.first_samples_ms:
            each = f"{facts.making.first_item_ms:.0f} ms each, others {facts.making.item_ms:.2g} ms"
            costs += f", {facts.first_samples_ms:.1f} of it their first samples ({each})"
            costs += f", most of that in {facts.first_code}" if facts.first_code else ""
    said_ms = _charged_ms(facts, cause, remedy) * remedy.share if remedy.gone == RESIZED else cause_ms
    if remedy.said:
        costs = f"{remedy.said}{of_loader(facts)}: {said_ms:.1f} ms of wait a step"
    yield finding(
        facts,
        text=costs,
        how=remedy.text,
        remedy=remedy.short,
        level=level(cause_ms, facts),
        evidence={
            f"{cause}_ms": cause_ms,
            **which(facts),
            **_spared(facts, cause, remedy),
            **remedy.evidence,
        },
        gain_ms=gain_ms if remedy.gains else None,
        most_ms=_most_ms(facts, cause, remedy, gain_ms) if remedy.gains else None,
        spares=facts.spared.get(remedy.most or remedy.gone or cause),
        command=remedy.command,
        change=remedy.change,
        cost_ms=_spared_ms(facts, cause, remedy),
        tries=remedy.tries,
        spares_work=remedy.spares_work,
        first=bool(remedy.said) and remedy.gone == RESIZED,
        is_main_cause=(cause == "startup" and facts.first_samples_ms >= MOSTLY * facts.wait_ms)
        or (bool(remedy.said) and said_ms >= TOLD * facts.wait_ms),
        **(predicted if remedy.gains and not is_bound else {}),
        **({"gain_interval_ms": [0.0, gain_ms]} if remedy.gains and is_bound else {}),
    )


def held_up_by(facts: LoaderFacts, cause: str) -> bool:
    """Whether a cause costs 5 % of a step or more, and the waits for all loaders as much.

    Workers that are started anew hold the loop up outside its waits, too.
    """
    return (facts.is_waited_for or cause == "startup") and is_worth(cost_ms(facts, cause), facts)


def finding(facts: LoaderFacts, **known: Any) -> Finding:
    """Make a finding on a loader; of several its number tells which."""
    return Finding(loader=facts.number if facts.of_several else None, **known)


def call_with(setting: str, facts: LoaderFacts) -> str:
    """Write the change of a loader's setting as a call; of one of several loaders with its name."""
    return f"DataLoader({setting})" + (f" of {facts.called}" if facts.called else "")


def is_worth(saved_ms: float, facts: LoaderFacts) -> bool:
    """Whether that much is 5 % of a step or more."""
    return 100 * saved_ms / facts.step_ms >= MODERATELY_PERCENT


def per_epoch(begun: int, ended: int | None) -> str:
    """Say what happened so often, on average, in each pass: of an epoch nothing is known where none ended."""
    if ended or (ended is None and begun > 1):
        return "an epoch"
    return "in the run" if begun <= 1 else "in a pass (no pass ended)"


def level(spent_ms: float, facts: LoaderFacts) -> str:
    """Return how much that is of a step: ``high`` above 20 %."""
    return "high" if 100 * spent_ms / facts.step_ms > _HIGH_PERCENT else "medium"


def of_loader(facts: LoaderFacts) -> str:
    """Name the loader where the loop waits for several."""
    return f" of the loader of {facts.about.named} (loader {facts.number})" if facts.of_several else ""


def which(facts: LoaderFacts) -> Evidence:
    """Return the loader's number where the loop waits for several."""
    return {"loader": float(facts.number)} if facts.of_several else {}


def predicted_gain(facts: LoaderFacts, name: str, bound_ms: float) -> tuple[float, dict[str, Any]]:
    """What a change saves: its bound; where the model of the loader speaks, its prediction and interval."""
    row = facts.predicted.get(name)
    if row is None or row.gain_ms_per_step is None or row.interval_ms is None:
        return bound_ms, {}
    interval_ms = [facts.step_ms - most_ms for most_ms in reversed(row.interval_ms)]
    return row.gain_ms_per_step, {"gain": row.id, "gain_interval_ms": interval_ms}


def cost_ms(facts: LoaderFacts, cause: str) -> float:
    """What a cause takes of a step: of its wait, and to end workers, start others and get these ready."""
    beyond_ms = facts.restart_ms + facts.first_samples_ms if cause == "startup" else 0.0
    return facts.causes_ms.get(cause, 0.0) + beyond_ms


def _gain_ms(facts: LoaderFacts, cause: str, remedy: Remedy) -> float:
    """A bound of what a step loses: of a replay without the cause, or without reading and decoding a file.

    Where none was replayed, what is spared of the making; of what is no part of it the whole wait. Several
    makers spare as much at once: as many batches are on their way as before, so that a step takes less by
    that share of the making, and no more. Where batches lie ready, their makers are quick enough: then it is
    what the cause is charged with, as in the first batch of an epoch.
    """
    if cause == "startup":  # which no replay tells: the loop itself does it
        return cost_ms(facts, cause)
    if (
        cause == "sampling"
    ):  # while it chooses, no index is sent; workers then get ahead, and hand over as slowly
        return max(0.0, facts.bound_ms - facts.causes_ms.get("transport", 0.0))
    replayed_ms = facts.gains_ms.get(remedy.gone or cause)
    making_ms = sum(facts.causes_ms.get(part, 0.0) for part in PARTS)
    if replayed_ms is None and cause in PARTS and facts.made_ms is not None and making_ms:
        charged_ms, longest_ms = _charged_ms(facts, cause, remedy), min(facts.made_ms, facts.step_ms)
        replayed_ms = longest_ms * min(1.0, charged_ms / making_ms)
        if (facts.ready or 0.0) >= 1:
            replayed_ms = min(replayed_ms, charged_ms)
    bound_ms = facts.bound_ms
    if cause in PARTS and facts.piped_ms is not None:  # what is made sooner comes through the pipe as slowly
        bound_ms -= min(bound_ms, facts.causes_ms.get("transport", 0.0))
    return min(bound_ms, facts.wait_ms if replayed_ms is None else replayed_ms)


def _most_ms(facts: LoaderFacts, cause: str, remedy: Remedy, gain_ms: float) -> float | None:
    """What of the wait goes with a change at most; None: all of it may."""
    if cause == "startup":  # measured beside the waits
        return gain_ms
    if cause == "sampling":
        return facts.bound_ms
    return facts.most_ms.get(remedy.most or remedy.gone or cause)


def _spared_ms(facts: LoaderFacts, cause: str, remedy: Remedy) -> float | None:
    """The wait of what a remedy spares: its file, all files, or its cause; None where none was replayed."""
    if not remedy.gains or (remedy.gone or cause) not in facts.gains_ms:
        return None
    return _charged_ms(facts, cause, remedy) * remedy.share


def _spared(facts: LoaderFacts, cause: str, remedy: Remedy) -> Evidence:
    """The wait that is charged to what a change of the files spares, where that is no single cause."""
    return {"spared_ms": _charged_ms(facts, cause, remedy)} if remedy.gone in (FILES, RESIZED) else {}


def making_ms(facts: LoaderFacts, cause: str) -> float | None:
    """What a cause takes of the making of a step's batches, about; None: unknown."""
    return share_of_making_ms(facts, facts.causes_ms.get(cause, 0.0))


def share_of_making_ms(facts: LoaderFacts, charged_ms: float) -> float | None:
    """What takes so much of the wait takes of the making of a step's batches, about; None: unknown."""
    whole_ms = sum(facts.causes_ms.get(part, 0.0) for part in PARTS)
    if facts.made_ms is None or not whole_ms:
        return None
    return facts.made_ms * min(1.0, charged_ms / whole_ms)


def _charged_ms(facts: LoaderFacts, cause: str, remedy: Remedy) -> float:
    """The wait that is charged to what a remedy spares."""
    of_files, _, path = remedy.gone.partition(":")
    if path:
        return sum(file.read_ms + file.decode_ms for file in facts.files if file.path == path)
    if of_files in (FILES, RESIZED):
        spared = ("read", "decode") if of_files == FILES else ("read", "decode", "transform")
        return sum(facts.causes_ms.get(each, 0.0) for each in spared)
    return cost_ms(facts, cause)


def _row_of(facts: LoaderFacts, cause: str, remedy: Remedy) -> str:
    """The id of the gain's row that stands for a remedy."""
    knobs = {
        "startup": "persistent_workers=True",
        "queued": f"prefetch_factor={2 * (facts.about.prefetch_factor or 0)}",
    }
    # The model's workers are as slow in their first samples, kept or not.
    if cause == "startup" and facts.first_samples_ms:
        return ""
    return remedy.gone or knobs.get(cause, cause)


def costly(facts: LoaderFacts, cause: str) -> FileFacts | None:
    """The file that costs most of a cause; None where no file costs any."""
    most = max(facts.files, key=lambda file: cost_of_file_ms(file, cause), default=None)
    return most if most is not None and cost_of_file_ms(most, cause) > 0 else None


def costliest(facts: LoaderFacts, cause: str) -> FileFacts | FileGroup | None:
    """The file that costs most of a cause, or the group where that is most of it and the file is not."""
    file, whole_ms = costly(facts, cause), facts.causes_ms.get(cause, 0.0)
    if file is None or cost_of_file_ms(file, cause) >= MOSTLY * whole_ms:
        return file
    group = max(facts.groups, key=lambda each: cost_of_file_ms(each, cause), default=None)
    return file if group is None or cost_of_file_ms(group, cause) < MOSTLY * whole_ms else group


TOLD = 0.25  # of the wait: what a verdict names before its cause


def leading(spent_ms: float, facts: LoaderFacts, alone: float = math.inf) -> dict[str, Any]:
    """Of what takes most of the dataset's own code that code is not to be made faster, or by more workers.

    From `alone`, a share of the wait, on more workers are no advice: each would do that anew.
    """
    leads = spent_ms >= max(MOSTLY * facts.causes_ms.get("transform", 0.0), TOLD * facts.wait_ms)
    silences = ("IO103", "IO204") if spent_ms >= alone * facts.wait_ms else ("IO103",)
    return {"is_main_cause": leads, "spares_work": True, "silences": silences if leads else ()}
