"""Why a rank waits: the cause and the file that most of its wait is due to, or what keeps CPUs from it.

The changes that a verdict names, with a bound of what each saves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from iotrace.analysis.results import (
    Culprit,
    DataWait,
    FileCost,
    FileGroup,
    HotLine,
    LoaderResult,
    RankReport,
    Recommendation,
    busiest,
    cost_of_file_ms,
)
from iotrace.analysis.rules.model import THE_LOOP, rule_of
from iotrace.analysis.verdict.device import each_step
from iotrace.analysis.wait.data_wait import (
    KEPT_UP_PERCENT,
    MODERATELY_PERCENT,
    bound_fraction,
    device_waits,
    taking_is_work,
)
from iotrace.units import percent

MOSTLY = 0.5  # of a wait or a cause: what one thing has to cost to be named for it
SEVERAL = 1.5  # batches a step: less is one that is left out now and then
_OF_HOST = ("IO305", "IO306")  # rules on what other machines and programs took: nothing in the program
_MAKING = ("read", "decode", "transform", "collate")
_TOGETHER = (("decode", "read"), ("decode", "transform", "read"))  # what one change of files spares
_MORE = 1.1  # times what a change is charged with: a gain beyond it is no share of the wait
_LITTLE = 0.1  # of a wait
_MUCH_OF_IT = 0.25  # of the transform: reading and decoding that is told with it
_FEW_CPUS = 0.2  # of those that the training takes, or of one
_MANY_STEPS = 20
_BUILT_IN = (
    "list",
    "tuple",
    "range",
    "dict",
    "generator",
    "map",
    "zip",
)  # types that have no code of a program
_FEW, _OPENING, _NEARLY = 0.1, 0.25, 0.8  # of steps: few; few that begin a pass each; nearly all
_SLOW = {"read": "slow to read", "decode": "slow to decode"}
_CAUSES = {
    "read": "reading",
    "decode": "decoding",
    "transform": "the dataset's own code (transform)",
    "collate": "putting samples together (collate)",
    "sampling": "choosing samples in the training process (sampling)",
    "transport": "handing batches over from the workers (transport)",
    "queued": "workers that had nothing to do (queued)",
    "startup": "starting workers anew (startup)",
}


def waits_text(rank: RankReport, fraction: float) -> str:
    """Say who waits for data, and for how much of a step."""
    wait, step_ms, each = rank.data_wait, rank.steps.mean_ms or 0.0, each_step(rank)
    if device_waits(wait):
        share = "no step" if not wait.exposed_ms else f"{percent(fraction)} of {each}"
        waited = f"{wait.exposed_ms or 0.0:.1f} of {step_ms:.1f} ms"
        return f"the device waits for data in {share} ({waited})"
    few = _few_steps(rank) if each == "each step" else None
    share = each if few is None else "the steps' time"
    of = f"({wait.raw_ms or 0.0:.1f} of {step_ms:.1f} ms{'' if few is None else ' a step'})"
    return f"{percent(fraction)} of {share} waits for data {of}" + ("" if few is None else f", in {few}")


def _few_steps(rank: RankReport) -> str | None:
    """Name the few steps that hold nearly all of the wait; None where many do."""
    wait, of = rank.data_wait, rank.steps.count
    count, first = wait.long_wait_steps, wait.long_wait_first or 0
    if count is None or of < _MANY_STEPS:
        return None
    opens = first >= _NEARLY * count
    if count > (_OPENING if opens else _FEW) * of:
        return None
    return f"{count} of {of} steps" + (", the first of each epoch" if opens and count > 1 else "")


def ready_text(rank: RankReport) -> str | None:
    """Say that batches lie ready, where that was seen."""
    primary, wait = rank.primary, rank.data_wait
    most_ms = wait.raw_ms if wait.exposed_ms is None else wait.exposed_ms
    gain = f"a faster loader can save at most {most_ms:.1f} ms a step"
    if device_waits(wait) and 100 * (wait.raw_wait_fraction or 0.0) >= MODERATELY_PERCENT:
        return f"the loop waits {wait.raw_ms:.1f} ms, but the device has work meanwhile: {gain}"
    device = rank.accelerator
    if device is not None and device.span_us:
        gain += f"; the device is busy {percent(device.busy_us / device.span_us)} of the traced steps"
    if competes(rank):
        gain = "no CPU was free"
        if not _computes_little(rank):
            gain += ": a loader that computes less may speed up the rest"
    elif any(stage.of == "threads" for stage in rank.pipeline) and not _computes_little(rank):
        gain = "its threads share Python's interpreter with the loop: less code in them may speed it up"
    if primary is None or (primary.ready_in_turn_mean or 0.0) < 0.5:
        return gain
    if 100 * (bound_fraction(wait) or 0.0) >= KEPT_UP_PERCENT and rank.system.host is not None:
        from iotrace.analysis.host.disturbance import disturbances

        others = next(disturbances(rank.system.host), None)
        gain = f"to take one costs it {wait.causes_ms.get('transport', 0.0):.1f} ms a step"
        if others is not None:
            gain = f"it may wait for a CPU to take one: {others}"
    return f"the loader keeps up: {_found_ready(rank, primary)}; {gain}"


def _computes_little(rank: RankReport) -> bool:
    """Whether a loader is known to take few CPUs from the training: less work in it frees little."""
    if rank.pipeline:
        return sum(stage.busy for stage in rank.pipeline) < _FEW_CPUS
    processes = rank.system.processes
    workers = [each.cpu_pct_mean for each in processes if each.role.startswith("worker")]
    training = next((each.cpu_pct_mean for each in processes if each.role == "main"), None)
    if not workers or not training:
        return False
    return sum(math.inf if each is None else each for each in workers) < _FEW_CPUS * training


def unit_of(rank: RankReport) -> str:
    """Name what the loop is handed: several a step from a queue or a pool are items of it."""
    of_pool = rank.primary is not None and rank.primary.pool
    return "items" if of_pool and (rank.steps.batches or 0.0) >= SEVERAL else "batches"


def _found_ready(rank: RankReport, loader: LoaderResult) -> str:
    """Say how many batches lay ready, on average, each time that the loop came for one."""
    unit = unit_of(rank)
    makes = "" if unit == "batches" else f" ({rank.steps.batches:.3g} make a step)"
    return f"the loop finds {loader.ready_in_turn_mean:.1f} {unit} ready{makes}"


def competes_with_workers(rank: RankReport) -> bool:
    """Whether the training computes on CPUs, and workers make its batches beside it."""
    has_workers = rank.primary is not None and bool(rank.primary.workers)
    return has_workers and rank.data_wait.exposed_source == "cpu"


def competes(rank: RankReport) -> bool:
    """Whether workers took CPUs from a training on the CPU: cheaper ones make its compute shorter, too.

    By 200 of 350 ms a step, as was seen: then the wait is no bound of what a faster loader gains.
    """
    if not competes_with_workers(rank):
        return False
    host = rank.system.host
    return host is not None and host.cpu_busy_fraction is not None and not host.has_free_cpus


def reason_of(rank: RankReport, without: Culprit | None = None) -> dict[str, str | None]:
    """Name the file and the cause that most of a rank's wait is due to; who kept CPUs from it comes first.

    What nobody who runs the job can change is told `beside` them. `without` is a culprit that is left out.
    """
    found = _cause_of(rank)
    leading = [each for each in rank.culprits if each.leads and each is not without]
    if found["why"] is None:
        return found
    if not leading:
        others = None if rank.system.host is None else _of_others(rank)
        beside = None if others is None else f"{others}: without that the loop may hardly wait"
        return {**found, "beside": beside}
    # What the loop does for most of its time comes before what most of its wait is due to.
    mended = sorted((each for each in leading if each.remedy), key=lambda each: not _is_of_loop(each))
    culprit = mended[0] if mended else leading[0]
    why = culprit.text if culprit.remedy else found["why"]
    first = leading[0]
    # What others took belongs to the trust, unless the loop may hardly wait without them.
    is_told = not first.remedy and (first.code not in _OF_HOST or _of_others(rank) is not None)
    beside = first.text if is_told else None
    return {**found, "why": why, "beside": beside, "culprit": culprit.id}


# Who makes the batches of libraries where no region of the program could tell more.
_MAKERS = {
    "dali": "DALI's threads in C++",
    "ray": "Ray's tasks, which are other processes,",
    "tensorflow": "TensorFlow's threads in C++",
}


def _is_of_loop(culprit: Culprit) -> bool:
    return culprit.code is not None and rule_of(culprit.code).turn == THE_LOOP


def _of_others(rank: RankReport) -> str | None:
    """Say what others took of the CPUs, where that may have made the whole wait."""
    from iotrace.analysis.host.disturbance import disturbances, may_be_all_of_wait

    return next(disturbances(rank.system.host), None) if may_be_all_of_wait(rank) else None


def _cause_of(rank: RankReport) -> dict[str, str | None]:
    wait = rank.data_wait
    raw_ms, causes = wait.raw_ms or 0.0, wait.causes_ms
    cause = max(causes, key=lambda name: causes[name], default=None)
    primary = _most_awaited(rank)
    if not raw_ms or cause is None or causes[cause] <= 0:
        return {"why": None}
    share = percent(causes[cause] / raw_ms)
    if cause == "unknown":
        why = f"unknown: {share} of the wait is not explained by what was seen"
        unseen = None if primary is None else _unseen(rank, primary)
        if unseen is not None:
            why = f"unknown who made {percent(1 - (unseen.made_fraction or 0.0))} of the items from the "
            why += f"{unseen.pool}: iotrace follows threads and processes, no coroutines"
        elif primary is not None and primary.library in _MAKERS:
            why = f"unknown what {_MAKERS[primary.library]} did in {share} of the wait"
        elif primary is not None and primary.wrapped:
            why = f"unknown what the source did in {share} of the wait; iotrace.region in it shows that"
        return {"why": why, "cause": cause}
    candidates: tuple[Sequence[FileCost | FileGroup], ...] = (wait.files, rank.file_groups)
    for files in candidates if cause in _SLOW else ():
        most = max(files, key=lambda file: cost_of_file_ms(file, cause), default=None)
        if most is not None and cost_of_file_ms(most, cause) >= MOSTLY * causes[cause]:
            share = percent(cost_of_file_ms(most, cause) / raw_ms)
            count = (most.members_read or most.members) if isinstance(most, FileGroup) else None
            members = f" ({count} files)" if count else ""
            why = f"{most.path}{members} is {_SLOW[cause]}: {share} of the wait"
            used = next((each.amplification for each in rank.file_groups if each.path == most.path), None)
            if cause == "decode" and used is not None and used.is_picked:
                why = f"picking rows from {most.path} by a list or a mask takes {share} of the wait"
            return {"why": why, "file": most.path, "cause": cause}
    what = _CAUSES[cause]
    hot: HotLine | None = None
    stage = next((stage for stage in rank.pipeline if stage.slowest), None)
    slowest = "" if stage is None else stage.name
    at = f" ({stage.site})" if stage is not None and stage.site else ""
    if stage is not None and cause in ("decode", "transform") and stage.wait_ms < causes[cause]:
        share = percent(stage.wait_ms / raw_ms)  # other stages have the rest
    if cause == "decode" and slowest:
        what = f"{what} in {slowest}{at}"
    if cause == "transform" and primary is not None:
        named = "the source" if primary.dataset in _BUILT_IN else primary.dataset
        what = f"{slowest}{at or ' (transform)'}" if slowest else f"the own code of {named} (transform)"
        works = None if slowest else busiest(rank.pipeline)
        if works is not None and not primary.item:
            where = f" ({works.site.rpartition('/')[2]})" if works.site else ""
            what = f"the stages' own code, most of it {works.name}{where},"
        # Where stages make the items, the loop's own stack only waits for them.
        what, hot = primary.item or what, None if slowest and not primary.item else primary.item_hot
    if cause == "collate" and primary is not None:
        what, hot = primary.collate or what, primary.collate_hot
    if cause == "sampling" and primary is not None:
        hot = primary.sampling_hot
    start = primary.start_said if cause == "startup" and primary is not None else ""
    locked_ms = wait.sending_locked_ms or 0.0
    if cause == "transport" and primary is not None and locked_ms >= MOSTLY * causes[cause]:
        held = "the workers' own code" if primary.item_hot is None else primary.item_hot.placed(primary.item)
        why = f"{held} keeps the worker's interpreter: batches wait {locked_ms:.1f} ms a step to be sent"
        return {"why": why, "cause": cause}
    if cause == "transport" and primary is not None and (primary.ready_in_turn_mean or 0.0) >= 1:
        made_ms = sum(causes.get(each, 0.0) for each in _MAKING)
        little = made_ms < _LITTLE * raw_ms
        making = "not making them" if little else f"making them {percent(made_ms / raw_ms)}"
        share += f" of the wait, {making}: {_found_ready(rank, primary)}"
        delay_ms = rank.steps.thread_run_delay_ms
        if competes(rank) and delay_ms is not None and delay_ms >= MOSTLY * raw_ms:
            share += f"; the loop queued for a CPU for up to {min(delay_ms, raw_ms):.1f} ms of it"
        return {"why": f"{what} takes {share}", "cause": cause}
    where = start if hot is None else hot.beside(what)
    # Where all of a sample passes in one line, what is read and decoded does, too.
    files_ms = causes.get("read", 0.0) + causes.get("decode", 0.0)
    passes = 0.0 if hot is None or cause != "transform" else hot.passes_fraction or 0.0
    if passes >= _NEARLY and files_ms >= _MUCH_OF_IT * causes[cause]:
        share = percent((causes[cause] + files_ms) / raw_ms)
        where = f", reading and decoding included{where}"
    return {"why": f"{what} takes {share} of the wait{where}", "cause": cause}


def lies_ready(rank: RankReport) -> bool:
    """Whether its batches lie ready, and no CPU is free to take one: nothing in the loader mends that."""
    primary = _most_awaited(rank)
    if taking_is_work(rank.data_wait):
        return False
    return competes(rank) and primary is not None and (primary.ready_in_turn_mean or 0.0) >= 1


def _most_awaited(rank: RankReport) -> LoaderResult | None:
    """The loader that the steps wait for longest: of several, the first that is asked may be quick."""
    most = max(rank.data_wait.by_loader, key=lambda wait: wait.raw_ms, default=None)
    awaited = (loader for loader in rank.loaders if most is not None and loader.id == most.loader)
    return next(awaited, rank.primary)


def _unseen(rank: RankReport, awaited: LoaderResult) -> LoaderResult | None:
    """Find the queue or pool that the loop's items come from where most are made by nobody who is seen.

    A region in their making would tell nothing: when they were made is not known.
    """
    for each in rank.loaders:
        feeds = each.id == awaited.id or each.within == awaited.id
        if feeds and each.pool and each.made_fraction is not None and each.made_fraction < MOSTLY:
            return each
    return None


def making_ms(rank: RankReport) -> float | None:
    """Return how long a rank's workers take to make a step's batches; None: it has none, or unknown."""
    loader = rank.primary
    if loader is None or not loader.workers or loader.wrapped or loader.library or not loader.production_ms:
        return None
    return loader.production_ms * (rank.steps.batches or 1.0) / loader.workers


def of_another(item: Recommendation, rank: RankReport, cause: str | None) -> str:
    """Say which cause a fix is about, where it is not the one that the verdict names."""
    if item.id == "startup-bound" and cause != "startup":  # most of it lies outside the wait
        return f" (restarts: {item.evidence['startup_ms']:.1f} ms a step)"
    if cause is not None and "loop_seconds" in item.evidence:
        return f" ({percent(item.evidence['seconds'] / item.evidence['loop_seconds'])} of the loop)"
    own, wait = item.id.removesuffix("-bound"), rank.data_wait
    if is_of_lists(item) or not wait.raw_ms or cause in (None, own) or own not in wait.causes_ms:
        return ""
    spared_ms = item.evidence.get("spared_ms")
    for parts in _TOGETHER:  # what else it makes cheaper
        every_ms = sum(wait.causes_ms.get(part, 0.0) for part in parts)
        if own in parts and spared_ms is not None and math.isclose(every_ms, spared_ms, rel_tol=1e-6):
            return f" ({', '.join(parts)}: at most {_share(every_ms, item, wait)})"
    return f" ({own}: {_share(wait.causes_ms[own], item, wait)})"


def _share(spared_ms: float, item: Recommendation, wait: DataWait) -> str:
    """Say what share that is: of the wait, or of the making where its end gains more than that of the wait.

    Batches are made while the loop computes, too: what makes all of them quicker spares more than it is
    charged with.
    """
    making_ms = sum(wait.causes_ms.get(part, 0.0) for part in _MAKING)
    if making_ms < spared_ms or (item.gain_ms_per_step or 0.0) <= _MORE * spared_ms:
        return f"{percent(spared_ms / (wait.raw_ms or math.inf))} of the wait"
    return f"{percent(spared_ms / making_ms)} of making a batch"


def is_of_lists(item: Recommendation) -> bool:
    """Whether it is about lists and the line that is slow as it takes them: no single cause."""
    return "at_line_ms" in item.evidence
