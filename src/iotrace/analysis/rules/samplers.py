"""Who chooses the samples of a batch: samplers, which work in the loop."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from iotrace.analysis.results import SamplerWork
from iotrace.analysis.rules.causes import (
    MOSTLY,
    Remedy,
    ended_by,
    finding,
    held_up_by,
    is_worth,
    level,
    of_loader,
    which,
)
from iotrace.analysis.rules.facts.loader import LoaderFacts
from iotrace.analysis.rules.facts.making import EveryFile, Making
from iotrace.analysis.rules.model import THE_CAUSE, Finding, fires, rule, silent

_WITHOUT_REPLACEMENT = "WeightedRandomSampler(replacement=False)"
_DRAWN_ONCE = Making(draw_ms=1300.0)
_SORTS = SamplerWork(function="Buckets.__iter__ (train.py:9)", passes=5, ms=900.0, files=1.0)
_MEASURES = replace(_SORTS, inner="length (train.py:4)", files=8000.0)
_EVERY_FILE = EveryFile(also_read=1.0, opens_per_pass=1.0, opens_per_sample=1.0)
_ALL_FILES = Making(every_file=_EVERY_FILE, ranks=2)
_BY_INDEX: dict[str, object] = {"iterable": False}
_SEQUENTIAL: dict[str, object] = {**_BY_INDEX, "torch_sampler": "SequentialSampler()"}


def _files(**changed: float) -> Making:
    return Making(every_file=replace(_EVERY_FILE, **changed), ranks=2)


@rule("IO217", "slow-sampling", "loader", id="sampling-bound", turn=THE_CAUSE)
@fires(
    {"cause": "sampling"},
    {"cause": "sampling", "sampler": "Buckets"},
    {"cause": "sampling", "making": _DRAWN_ONCE, "torch_sampler": _WITHOUT_REPLACEMENT},
    {"cause": "sampling", "making": _DRAWN_ONCE, "torch_sampler": "RandomSampler(replacement=False)"},
    {"cause": "sampling", "making": _DRAWN_ONCE, "about": {"sampler": "Buckets"}, "draws": _MEASURES},
    {"cause": "sampling", "making": _DRAWN_ONCE, "sampler": "Buckets"},
)
@silent(
    {"cause": "transport"},
    {"cause": "sampling", "wait_ms": 4.0, "causes_ms": {"sampling": 4.0}},
    {"causes_ms": {"transform": 40.0, "sampling": 10.0}},
    {"making": _DRAWN_ONCE, "causes_ms": {"transform": 40.0, "sampling": 1.0}},
)
def slow_sampling(facts: LoaderFacts) -> Iterator[Finding]:
    """The loop waits while it chooses the samples of a batch itself.

    A sampler works in the process that trains, whatever the number of workers: DataLoader asks it for the
    next indices each time that the loop takes a batch. A sampler that draws an epoch's samples at once makes
    the first batch of each epoch late.

    Remedy: sort and shuffle once an epoch, in the sampler's `__iter__` before it yields; or with arrays. If
    it draws once an epoch already, draw with replacement, or with arrays. `WeightedRandomSampler` without
    replacement looks at all weights, however few samples it draws.
    """
    is_own = facts.about.sampler is not None  # torch's own leave little to change
    if held_up_by(facts, "sampling") and (is_own or facts.causes_ms["sampling"] >= MOSTLY * facts.wait_ms):
        if facts.making.draw_ms is not None:
            yield from _drawn_at_once(facts, facts.making.draw_ms)
            return
        name = facts.about.sampler or facts.about.torch_sampler or "its sampler"
        remedy = Remedy(
            f"let {name} choose faster, such as once an epoch: it works in the loop",
            f"{name} chooses the samples of each batch in the training process, where no worker helps: sort "
            "and shuffle once, before it yields the first batch of an epoch, or with arrays",
        )
        yield from ended_by(remedy, "sampling", facts)


@rule("IO219", "samples-drawn-with-the-iterator", "loader", turn=THE_CAUSE, saves_wait=False, of_run=True)
@fires(
    {"about": {"persistent_workers": True, "workers": 2, "sampler": "Balanced"}, "restart_ms": 40.0},
    {
        "about": {"persistent_workers": True, "workers": 2, "sampler": "Buckets"},
        "draws": _MEASURES,
        "steps": 100,
    },
    {
        "about": {"persistent_workers": False, "workers": 2, "sampler": "Buckets"},
        "draws": _SORTS,
        "steps": 100,
    },
)
@silent(
    {"about": {"persistent_workers": True, "workers": 2, "sampler": "Balanced"}, "restart_ms": 1.0},
    {
        "about": {"persistent_workers": True, "workers": 2, "sampler": "Kept"},
        "restart_ms": 40.0,
        "sees_draws": True,
    },
    {"about": {"persistent_workers": True, "workers": 2}, "restart_ms": 40.0},
    {"about": {"persistent_workers": False, "workers": 2, "sampler": "Balanced"}, "restart_ms": 40.0},
    {
        "about": {"persistent_workers": True, "workers": 2, "sampler": "Buckets"},
        "draws": _MEASURES,
        "steps": 10_000,
    },
    {
        "about": {"workers": 0, "sampler": "Buckets"},
        "draws": _MEASURES,
        "steps": 100,
    },  # IO217: its loop waits
)
def drawn_with_the_iterator(facts: LoaderFacts) -> Iterator[Finding]:
    """Making an iterator takes long, as its sampler is asked for the first samples there.

    A loop that makes an iterator each epoch waits there for a sampler that measures files, or draws all
    samples of the epoch, at once. Samples of the thread's stack name its function. Without them that time was
    not measured alone: workers that begin a new pass take a part of it.

    Remedy: keep what is the same in each epoch, such as lengths of files, and draw with arrays; for
    `WeightedRandomSampler`, search in a cumulative sum of the weights.
    """
    about, work = facts.about, facts.draws
    name = about.sampler or about.torch_sampler or ""
    if work is not None and about.workers and facts.steps:
        cost_ms = work.ms * work.passes / facts.steps
        if is_worth(cost_ms, facts):
            yield _measured_draw(facts, work, cost_ms)
        return
    # What torch's own samplers do has no lines of the program.
    is_torchs = name.startswith("WeightedRandomSampler")
    may_draw = is_torchs or (about.sampler is not None and not facts.sees_draws)
    if not (may_draw and about.persistent_workers and about.workers and is_worth(facts.restart_ms, facts)):
        return
    short, text = _faster_draw(facts)
    yield finding(
        facts,
        text=f"making an iterator of persistent workers takes {facts.restart_ms:.1f} ms a step: {name} is "
        "asked for the first samples there",
        how=f"where it draws all samples of an epoch then: {text}",
        remedy=f"try {'' if short[0].isupper() else 'to '}{short}",
        level=level(facts.restart_ms, facts),
        evidence={"restart_ms": facts.restart_ms, **which(facts)},
        cost_ms=facts.restart_ms,
        tries=True,
    )


def _measured_draw(facts: LoaderFacts, work: SamplerWork, cost_ms: float) -> Finding:
    """Say what the sampler does before each epoch, by its own function."""
    short, text = _faster_draw(facts)
    return finding(
        facts,
        text=work.said,
        how=text,
        remedy=short,
        level=level(cost_ms, facts),
        evidence={"draw_ms": work.ms, "epochs": float(work.passes), **which(facts)},
        cost_ms=cost_ms,
        gain_ms=cost_ms,
    )


@rule("IO221", "each-rank-draws-all", "loader", turn=THE_CAUSE, saves_wait=False)
@fires(
    {"about": {**_BY_INDEX, "torch_sampler": "RandomSampler(replacement=False)"}, "making": _ALL_FILES},
    {"about": {**_BY_INDEX, "torch_sampler": "SequentialSampler()"}, "making": _ALL_FILES},
)
@silent(
    {"about": {**_BY_INDEX, "torch_sampler": "DistributedSampler()"}, "making": _ALL_FILES},
    {"about": {**_BY_INDEX, "torch_sampler": "RandomSampler(replacement=True)"}, "making": _ALL_FILES},
    {"about": {**_SEQUENTIAL, "sampler": "BatchSamplerShard"}, "making": _ALL_FILES},
    {"about": {**_SEQUENTIAL, "iterable": True}, "making": _ALL_FILES},
    {"about": _SEQUENTIAL, "making": replace(_ALL_FILES, ranks=1)},
    {"about": _SEQUENTIAL, "making": _files(also_read=0.0)},  # files of its own
    {"about": _SEQUENTIAL, "making": _files(opens_per_pass=0.5)},  # its share
    {"about": _SEQUENTIAL, "making": _files(opens_per_pass=9.0)},  # parts of files
    {"about": _SEQUENTIAL, "making": _files(opens_per_sample=0.1)},
    {"about": _SEQUENTIAL, "making": Making(ranks=2)},
)
def each_rank_draws_all(facts: LoaderFacts, *, alike: float = 0.05) -> Iterator[Finding]:
    """In each pass each rank reads all files, one for each sample: none takes a share of its own.

    Its sampler is one of torch's that knows nothing of ranks. The loop does not wait for that. But a pass has
    N times as many steps with N ranks, if each sample is meant for one rank in each pass.

    Remedy: `DistributedSampler`; none if each rank should see all samples.
    """
    about, making = facts.about, facts.making
    if making.ranks < 2 or about.iterable is not False or about.sampler is not None:
        return
    if about.torch_sampler not in ("RandomSampler(replacement=False)", "SequentialSampler()"):
        return
    files = making.every_file
    if files is None or files.also_read < 1 - alike:
        return
    if abs(files.opens_per_pass - 1) > alike or abs(files.opens_per_sample - 1) > alike:
        return
    name = about.torch_sampler.partition("(")[0]
    yield finding(
        facts,
        text=f"each of {making.ranks} ranks reads the same files in each pass, all of them, one a sample: "
        f"{name}{of_loader(facts)} gives no rank a share of its own",
        how="DistributedSampler gives each rank its share, if a sample is meant for one rank in each pass",
        remedy="DistributedSampler, unless each rank should draw all samples, as it does",
        level="low",
        evidence={"ranks": making.ranks, **which(facts)},
    )


def _faster_draw(facts: LoaderFacts) -> tuple[str, str]:
    """Say in short, and as a sentence, how a sampler draws an epoch's samples faster."""
    about, work = facts.about, facts.draws
    name = about.sampler or about.torch_sampler or "its sampler"
    if work is not None and work.reads:
        short = f"let {name} keep the first epoch's lengths (a cache), not read all files"
        return (
            short,
            "keep what it finds in the files in the first epoch, such as lengths, or store it beside them",
        )
    short = f"let {name} do less in __iter__: keep lengths, draw with arrays"
    text = "keep what is the same in each epoch, such as lengths of files, and draw with arrays"
    if about.sampler is None and about.torch_sampler == _WITHOUT_REPLACEMENT:
        short = "WeightedRandomSampler(..., replacement=True), or draw the indices with numpy"
        text = "without replacement it looks at all weights: draw with replacement, or by a search in a "
        text += "cumulative sum of the weights that is made once"
    elif about.sampler is None and (about.torch_sampler or "").startswith("WeightedRandomSampler"):
        short = "draw the indices with numpy: a search in a cumulative sum of the weights, made once"
        text = "it looks at all weights each time: search in a cumulative sum that is made once"
    elif about.sampler is None and about.torch_sampler is not None:
        short, text = "a sampler that yields indices of an array", "torch's makes a list of them all"
    return short, text


def _drawn_at_once(facts: LoaderFacts, draw_ms: float) -> Iterator[Finding]:
    """Name what draws the samples of a whole epoch before its first batch, and how it draws faster."""
    name = facts.about.sampler or facts.about.torch_sampler or "its sampler"
    short, text = _faster_draw(facts)
    remedy = Remedy(short, f"{name} draws an epoch's samples at once, in the training process: {text}")
    for each in ended_by(remedy, "sampling", facts):
        yield replace(
            each,
            text=facts.draws.said
            if facts.draws is not None
            else f"{name}{of_loader(facts)} draws an epoch's samples at once, in the loop: {draw_ms:.0f} ms "
            "before each epoch's first batch",
            how=remedy.text,
            is_main_cause=facts.causes_ms["sampling"] >= MOSTLY * facts.wait_ms,
            evidence={**each.evidence, "draw_ms": draw_ms},
        )
