"""How batches come from a loader's workers to the loop: their bytes, their tensors, and what is pickled."""

from __future__ import annotations

from collections.abc import Iterator

from iotrace.analysis.results import Change, Evidence
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
from iotrace.analysis.rules.facts.making import Making
from iotrace.analysis.rules.model import THE_CAUSE, Finding, fires, rule, silent
from iotrace.analysis.wait.taking import MANY_TENSORS
from iotrace.units import size

_LARGE_BATCH = 1 << 20
_MUCH_PICKLED = 64 << 10
_ABOUT = 1.5  # as long: making is slower beside the loop than in its place
_FEW_BATCHES = 20
_FEW_TENSORS = 8  # that a batch of many may become
_AS_MUCH = 1.25  # what comes through pipes is what the batch holds, with what little comes beside it
_SHARING = 'torch.multiprocessing.set_sharing_strategy("file_system")'


_ARRAYS = {
    "cause": "transport",
    "batch_bytes": 43e6,
    "piped_bytes": 44e6,
    "taking_least_ms": 20.0,
    "unqueued": 0.5,
    "core_free": False,
    "ready": 3.0,
}


@rule("IO201", "slow-transport", "loader", id="transport-bound", turn=THE_CAUSE)
@fires(
    {"cause": "transport"},
    {"cause": "transport", "batch_bytes": 4096.0, "made_ms": 20.0},
    {"cause": "transport", "batch_bytes": None, "piped_bytes": 1e6, "core_free": False},
    {**_ARRAYS, "others_may_make_it": False},
    {**_ARRAYS, "wait_ms": 17.0, "causes_ms": {"transport": 17.0}},
    {**_ARRAYS, "batch_bytes": None},
)
@silent(
    {"cause": "transport", "batch_bytes": None, "piped_bytes": 4096.0, "core_free": False},
    {"cause": "transport", "piped_bytes": 1e6, "core_free": False},
    {"cause": "transport", "batch_bytes": None, "piped_bytes": 1e6, "workers": 0},
    {"cause": "transport", "workers": 0},
    {"cause": "transport", "core_free": False},
    {"cause": "transport", "batch_bytes": 4096.0, "made_ms": 20.0, "core_free": False},
    {"cause": "transport", "batch_bytes": 4096.0, "made_ms": 100.0},
    {"cause": "transport", "batch_bytes": 4096.0, "made_ms": 20.0, "batches": 10},
    {"cause": "transport", "wait_ms": 9.0, "causes_ms": {"transport": 9.0}, "ready": 3.9},
    {"cause": "transport", "ready": 3.9, "others_may_make_it": True},
    {"cause": "transport", "wrapped": True, "batch_bytes": None, "piped_bytes": 1e6},
    {**_ARRAYS, "taking_least_ms": None, "others_may_make_it": True},
    {**_ARRAYS, "taking_least_ms": 1.0, "others_may_make_it": True},  # others make the rest
    {**_ARRAYS, "piped_bytes": 4096.0, "taking_least_ms": None},  # tensors, and no CPU is free
    {"cause": "transport", "wait_ms": 19.0, "causes_ms": {"transport": 19.0}, "ready": 3.9},
)
def slow_transport(facts: LoaderFacts) -> Iterator[Finding]:
    """The loop waits for batches to come from the workers, which had made them.

    A batch is put into shared memory, and its handle is sent through a queue. Large batches take long to
    copy; of small ones, handing over may cost more than making them. If no CPU was free, the loop may have
    waited for a CPU to take a batch that was ready. No loader changes that, so nothing is advised.

    Anything but a tensor is pickled, and comes through a pipe: with many Python objects, each is taken apart
    and made again, which takes a CPU in both processes; arrays of NumPy are copied through it. iotrace sees
    it by what the training process reads besides files. That is work, also where no CPU is free: to read
    2 GiB from pipes takes 1 s at the least. Tensors spare at least that, and at most the whole hand-over.

    Remedy: return tensors (`torch.from_numpy`), not arrays or lists of Python objects; send narrower dtypes;
    if batches are made quickly, try it without workers.
    """
    if held_up_by(facts, "transport"):
        yield from ended_by(_less_transport(facts), "transport", facts)


def _less_transport(facts: LoaderFacts) -> Remedy | None:
    """Of pickled batches; else, where a CPU was free, of large batches and of batches soon made.

    None of a pool's items: its processes share no memory for tensors, and may hand on what they like.
    """
    if not facts.about.workers or facts.about.wrapped or facts.handed_over:
        return None
    piped_bytes = facts.piped_bytes or 0.0
    if piped_bytes >= max(_MUCH_PICKLED, MOSTLY * (facts.batch_bytes or 0.0)):
        return _unpickled(facts, piped_bytes)
    if facts.core_free is not True:
        return None
    if facts.batch_bytes is None or facts.batch_bytes < _LARGE_BATCH:
        return _without_workers(facts)
    cast = " and cast them on the accelerator" if facts.accelerated else ""
    text = f"batches of {size(facts.batch_bytes)} come from the workers: send narrower dtypes{cast}"
    return Remedy("send narrower dtypes from the workers", text)


def _unpickled(facts: LoaderFacts, piped_bytes: float) -> Remedy:
    """Tensors instead of what comes pickled.

    Where no CPU was free, the loop may have waited for one as well: for as much of it as the training thread
    did of all that it was ready to run in. Then no more is told but of large batches.
    """
    held, share = facts.batch_bytes or 0.0, 1.0 if facts.core_free is True else facts.unqueued
    are_arrays = held >= _LARGE_BATCH and held <= piped_bytes * _AS_MUCH and piped_bytes <= held * _AS_MUCH
    least_ms = facts.taking_least_ms or 0.0
    text = (
        f"{size(piped_bytes)} a batch come pickled through the workers' pipe: return tensors, which lie in "
        "shared memory, not Python objects or arrays"
    )
    short, said = "return tensors, not lists of Python objects: they are pickled", ""
    if are_arrays:
        collate = f" in {facts.collate}" if facts.collate and facts.collate != "default_collate" else ""
        short = f"return tensors (torch.from_numpy{collate}): arrays are pickled"
        said = f"batches of {size(piped_bytes)} are numpy arrays that travel pickled through a pipe"
        text = f"return tensors{collate} (torch.from_numpy, or default_collate), which lie in shared memory"
    elif facts.taking_is_work:
        said = f"batches of {size(piped_bytes)} are Python objects that travel pickled through a pipe"
    return Remedy(
        short,
        text,
        gains=facts.core_free is True or (facts.taking_is_work and share is not None),
        evidence={"piped_bytes": piped_bytes},
        share=share or 1.0,
        said=said,
        least_ms=least_ms,
    )


def _without_workers(facts: LoaderFacts) -> Remedy | None:
    """Where the loop waits for a batch about as long as it would take to make it; a sweep tells.

    Of a few batches nothing is known: as workers start, the loop waits for all of them.
    """
    handing_ms = facts.causes_ms["transport"]
    if facts.made_ms is None or facts.made_ms > _ABOUT * handing_ms or facts.batches < _FEW_BATCHES:
        return None
    text = (
        f"the loop waits {handing_ms:.1f} ms a step for batches that workers made in {facts.made_ms:.1f} ms: "
        "without workers it may be faster; iotrace sweep --workers 0,1 measures it"
    )
    short = "try num_workers=0: iotrace sweep --workers 0,1"
    change = Change(settings={"num_workers": "0"})
    evidence: Evidence = {"made_ms": facts.made_ms}
    return Remedy(short, text, gains=False, tries=True, change=change, evidence=evidence)


_STATES = Making(with_state=1.0, state_ms=60.0)


@rule("IO252", "state-with-each-batch", "loader", turn=THE_CAUSE, saves_wait=False)
@fires(
    {"making": _STATES, "production_ms": 70.0},
    {"making": _STATES, "production_ms": 70.0, "cause": "transport", "core_free": False, "ready": 3.9},
)
@silent(
    {"making": Making(with_state=0.02, state_ms=60.0), "production_ms": 70.0},  # now and then
    {"making": Making(with_state=1.0, state_ms=2.0), "production_ms": 70.0},
    {"making": _STATES, "production_ms": 70.0, "wait_ms": 1.0, "causes_ms": {"transport": 1.0}},
    {"production_ms": 70.0},
)
def state_with_each_batch(facts: LoaderFacts, *, least: float = 0.1, often: float = 0.5) -> Iterator[Finding]:
    """Workers of torchdata's StatefulDataLoader make and send their state with most batches.

    That is its default (`snapshot_every_n_steps=1`). What a dataset's `state_dict` returns, such as a shuffle
    buffer, is copied and pickled in the worker, and made again in the process that trains: the worker makes
    batches later, and taking one takes longer. What it gains is unknown: the state's way to the loop is no
    figure of its own.

    Remedy: a state as often as checkpoints are saved; a smaller state.
    """
    making, made_ms = facts.making, facts.production_ms
    if making.with_state < often or not made_ms or making.state_ms * making.with_state < least * made_ms:
        return
    if not is_worth(facts.wait_ms, facts):
        return
    text = (
        f"workers{of_loader(facts)} make their state with each batch: {making.state_ms:.1f} of the "
        f"{made_ms:.1f} ms that one takes, and taking it brings that state, too"
    )
    yield finding(
        facts,
        text=text,
        how="set snapshot_every_n_steps of StatefulDataLoader to the steps between checkpoints",
        remedy="StatefulDataLoader(snapshot_every_n_steps=...): as often as checkpoints are saved",
        level=level(facts.wait_ms, facts),
        evidence={"state_ms": making.state_ms, "production_ms": made_ms, **which(facts)},
        is_main_cause=making.state_ms * making.with_state >= MOSTLY * made_ms,
        spares_work=True,
        silences=("IO201",),  # what comes pickled is the state
    )


@rule("IO220", "many-tensors", "loader", turn=THE_CAUSE)
@fires(
    {"cause": "transport", "tensors": 113.0, "batch_bytes": 450e3, "ready": 3.9},
    {
        "cause": "transport",
        "tensors": 113.0,
        "batch_bytes": 450e3,
        "core_free": False,
        "others_may_make_it": True,
    },
)
@silent(
    {"cause": "transport"},  # a batch of few tensors
    {"cause": "transport", "tensors": 20.0, "batch_bytes": 450e3},
    {"cause": "transport", "tensors": 113.0, "batch_bytes": 113e6},  # each of 1 MB
    {"cause": "decode", "tensors": 113.0, "batch_bytes": 450e3},
    {"cause": "transport", "tensors": 113.0, "wait_ms": 3.0, "causes_ms": {"transport": 3.0}},
)
def many_tensors(
    facts: LoaderFacts,
    *,
    fewest_tensors: float = float(MANY_TENSORS),
    most_of_each_bytes: float = float(64 << 10),
) -> Iterator[Finding]:
    """Workers hand over many small tensors in each batch, and the loop waits for that.

    Each tensor lies in shared memory of its own. The loop asks its worker for the file descriptor, by a
    connection with several messages, and maps it: 0.1 to 0.5 ms for each tensor, however small. Batches lie
    ready meanwhile, so neither more workers nor faster samples help.

    Remedy: fewer tensors in a batch: stack, pad or concatenate them in the collate function, and split them
    in the loop. Or another sharing strategy, `file_system`, which needs no connection; it takes about half.
    """
    tensors, handing_ms = facts.tensors or 0.0, facts.causes_ms.get("transport", 0.0)
    if tensors < fewest_tensors or facts.handed_over or not facts.about.workers or facts.about.wrapped:
        return
    if (facts.batch_bytes or 0.0) > most_of_each_bytes * tensors or not is_worth(handing_ms, facts):
        return
    each_ms = handing_ms / tensors / facts.batches_per_step
    yield finding(
        facts,
        text=(
            f"each batch{of_loader(facts)} has {tensors:.0f} tensors, each handed over by itself: "
            f"{handing_ms:.1f} ms of wait a step, {each_ms:.2f} ms a tensor"
        ),
        how=(
            "stack, pad or concatenate them in the collate function, and split them in the loop; or set "
            f"{_SHARING}, which needs no connection to the worker for each tensor"
        ),
        remedy="collate into few tensors, and split them in the loop (set_sharing_strategy"
        '("file_system") alone ends about half)',
        level=level(handing_ms, facts),
        evidence={"tensors": tensors, "transport_ms": handing_ms, **which(facts)},
        gain_ms=handing_ms * (1 - _FEW_TENSORS / tensors),
        most_ms=facts.wait_ms,
        cost_ms=handing_ms,
        is_main_cause=handing_ms >= MOSTLY * facts.wait_ms,
        silences=("IO201", "IO204", "IO206"),
    )


_PIPED = {"cause": "transport", "wrapped": True, "workers": 2, "piped_bytes": 25e6, "piped_ms": 80.0}


@rule("IO237", "piped-items", "loader", turn=THE_CAUSE)
@fires(_PIPED, {**_PIPED, "core_free": False, "others_may_make_it": True, "ready": 0.2})
@silent(
    {**_PIPED, "piped_ms": None},
    {**_PIPED, "cause": "transform"},
    {**_PIPED, "wait_ms": 4.0, "causes_ms": {"transport": 4.0}},
)
def piped_items(facts: LoaderFacts) -> Iterator[Finding]:
    """Processes send large results or items, and the loop waits until they have arrived.

    A ``Pool``, a ``ProcessPoolExecutor`` or a queue of ``multiprocessing`` pickles each, writes it to a pipe,
    reads it again, and unpickles it: one item after the other, by one thread of the process that trains.
    iotrace counts the bytes of each item of 1 MiB or more, and the wait from when it was made until it
    arrived.

    Remedy: send fewer bytes: a narrower dtype, which the loop widens, or a part; or put arrays into shared
    memory, and send where they lie. Threads instead of processes send nothing, where the work lets go of the
    interpreter's lock.
    """
    handing_ms = facts.causes_ms.get("transport", 0.0)
    if facts.piped_ms is None or facts.piped_bytes is None or not held_up_by(facts, "transport"):
        return
    each = size(facts.piped_bytes)
    what = "item" if facts.about.pool.startswith(("multiprocessing.", "queue.")) else "result"
    maker = f" of {facts.about.dataset}" if facts.about.dataset else ""
    gain_ms, mostly = min(facts.bound_ms, handing_ms), handing_ms >= MOSTLY * facts.wait_ms
    yield finding(
        facts,
        text=f"each {what}{maker}, {each}, is pickled and sent through a pipe: {handing_ms:.1f} ms of "
        "wait a step",
        how="send fewer bytes (uint8 or float32, not float64); or put arrays into shared "
        "memory (multiprocessing.shared_memory; tensors by torch.multiprocessing), and send where they lie",
        remedy="send fewer bytes (uint8 or float32, not float64), or through multiprocessing.shared_memory",
        level=level(handing_ms, facts),
        evidence={
            "piped_bytes": facts.piped_bytes,
            "piped_ms": facts.piped_ms,
            "transport_ms": handing_ms,
            **which(facts),
        },
        gain_ms=gain_ms,
        gain_interval_ms=[0.0, gain_ms],
        cost_ms=handing_ms,
        is_main_cause=mostly,
        # Makers that wait for the pipe seem to wait for room in the queue behind them.
        silences=("IO201", "IO204", "IO206", *(("IO234",) if mostly else ())),
    )


_GIVEN = {"cause": "queued", "wrapped": True, "workers": 2, "given_bytes": 24e6, "dataset": "Feeder.prepare"}


@rule("IO239", "large-tasks", "loader", turn=THE_CAUSE)
@fires(_GIVEN)
@silent(
    {**_GIVEN, "given_bytes": None},
    {**_GIVEN, "cause": "transform"},
    {**_GIVEN, "wait_ms": 4.0, "causes_ms": {"queued": 4.0}},
)
def large_tasks(facts: LoaderFacts) -> Iterator[Finding]:
    """Each task of a pool of processes is sent with much data, and the loop waits until it is begun.

    For each task anew, the process that trains pickles what ``submit``, ``map`` or ``apply_async`` is given
    and writes it to a pipe, and a worker unpickles it. That includes arrays among the arguments, and all that
    the object of a bound method or a ``partial`` holds. iotrace counts the bytes that a worker gets with a
    task.

    Remedy: give each worker the data once, by the pool's ``initializer`` or a file that it maps, and each
    task an index.
    """
    before_ms, given = facts.causes_ms.get("queued", 0.0), facts.given_bytes
    if given is None or not held_up_by(facts, "queued"):
        return
    task = facts.about.dataset or "the pool"
    line, taken = (each.rpartition("/")[2] for each in (facts.about.item_site or "", facts.about.site or ""))
    named = f"{task} ({line})" if line else task
    named += f", whose results the loop takes at {taken}," if taken else ""
    gain_ms = min(facts.bound_ms, before_ms)
    yield finding(
        facts,
        text=f"each task of {named} is sent to its process with {size(given)}, pickled anew: {before_ms:.1f} "
        "ms of wait a step before it begins",
        how="what the object of a bound method, a partial or an argument holds goes along: give it to each "
        "worker once (the pool's initializer=, or a file that it maps), and each task an index",
        remedy=f"send {task} an index; data: initializer=",
        level=level(before_ms, facts),
        evidence={"given_bytes": given, "queued_ms": before_ms, **which(facts)},
        gain_ms=gain_ms,
        gain_interval_ms=[0.0, gain_ms],
        most_ms=facts.wait_ms,
        cost_ms=before_ms,
        is_main_cause=before_ms >= MOSTLY * facts.wait_ms,
        silences=("IO204", "IO206"),
    )
