"""What it costs a loop that iterators are made, beyond its own loader's: spawned workers, validation."""

from __future__ import annotations

from collections.abc import Iterator

from iotrace.analysis.results import (
    FIRST_START,
    ITERATORS,
    SKIPPED,
    VALIDATION_ITERATORS,
    Account,
    SpawnedWorkers,
)
from iotrace.analysis.rules.facts.rank import RankFacts
from iotrace.analysis.rules.model import THE_CAUSE, Finding, fires, rule, silent
from iotrace.analysis.wait.data_wait import MODERATELY_PERCENT
from iotrace.units import counted, duration, size

BATCHES_SKIPPED = "IO222"
_HIGH_PERCENT = 20.0
_S = 10**9
_PARTS = [
    {"name": "first start", "ns": 8 * _S},
    {"name": "training", "ns": 2 * _S, "in_loop": True},
    {"name": "iterators", "ns": 0, "in_loop": True},
]
_SPAWNED = {"count": 2, "script": "/job/train.py", "import_ns": 7 * _S, "needed_ns": 2 * _S, "unpickle_ns": 0}
_TORCH = {**_SPAWNED, "needed_ns": 6 * _S, "packages": {"torch": 6 * _S, "zarr": _S}, "forkserver": True}
_ACCOUNT = {"loop_ns": 2 * _S, "steps": 100, "parts": _PARTS, "spawned": _SPAWNED}
_LARGE = {**_SPAWNED, "import_ns": 2 * _S, "unpickle_ns": _S, "pickle_ns": 2 * _S, "pickled_bytes": 400 << 20}
_EVALUATES = {
    "loop_ns": 6 * _S,
    "steps": 200,
    "parts": [
        {"name": "training", "ns": 3 * _S, "in_loop": True},
        {"name": "validation iterators", "ns": 3 * _S, "in_loop": True, "times": 10},
    ],
}
_BOTH = {
    "loop_ns": 8 * _S,
    "steps": 200,
    "parts": [
        {"name": "training", "ns": 3 * _S, "in_loop": True},
        {"name": "iterators", "ns": 2 * _S, "in_loop": True, "times": 9},
        {"name": "validation iterators", "ns": 3 * _S, "in_loop": True, "times": 10},
    ],
}
_VALIDATES = {
    "id": 1,
    "kind": "validation",
    "dataset": "Images",
    "workers": 2,
    "persistent_workers": False,
    "epochs": 10,
}


@rule("IO207", "script-imported-again", "loop", turn=THE_CAUSE, saves_wait=False, of_run=True)
@fires(
    {"account": _ACCOUNT},
    {"account": {**_ACCOUNT, "spawned": _TORCH}},
    {"account": {**_ACCOUNT, "spawned": {**_TORCH, "packages": {"scipy": 5 * _S}, "needed_ns": 2 * _S}}},
)
@silent(
    {"account": {**_ACCOUNT, "spawned": None}},
    {"account": {**_ACCOUNT, "spawned": {**_SPAWNED, "import_ns": 2 * _S}}},
    {"account": {**_ACCOUNT, "loop_ns": 1000 * _S}},
)
def script_imported_again(facts: RankFacts) -> Iterator[Finding]:
    """Each spawned worker imports the training script again, with all that it imports and runs.

    A spawned process begins as a new Python, and so does one of a fork server: it runs the script as
    `__mp_main__` before it gets the dataset. Each time it starts, every worker pays for what the script's
    outermost level does, besides importing torch and numpy. The gain is a bound: spawned workers need torch,
    numpy and what their dataset imports.

    Remedy: where most of that is the script's own work, or packages beyond torch and numpy, move what workers
    do not need below `if __name__ == "__main__":` or into functions. Else fork the workers, if no thread or
    device context forbids it: forked workers import nothing. Keep them (`persistent_workers`).
    """
    account = facts.report.account
    spawned = None if account is None else account.spawned
    if account is None or spawned is None:
        return
    starts = 1 + account.restarted
    starts_ns = account.part_ns(FIRST_START) + account.restarts_ns
    if not account.is_worth(min(spawned.needless_ns * starts, starts_ns)):
        return
    remedy, how = _import_less(spawned, is_again=spawned.count > 1 or account.restarted > 0)
    spared_ns = spawned.import_ns if spawned.is_needed else spawned.needless_ns  # where they are forked: all
    yield _finding(
        account,
        min(spared_ns * starts, starts_ns),
        text=(
            f"{counted(spawned.count, f'{spawned.started} worker')} imported {spawned.imports} again: "
            f"{duration(spawned.import_ns)} each, {duration(spawned.needless_ns)} beyond torch and numpy"
        ),
        how=how + _once(account),
        remedy=remedy + _once(account),
        evidence={
            "import_ms": spawned.import_ns / 1e6,
            "needed_ms": spawned.needed_ns / 1e6,
            "starts": float(starts),
        },
    )


def _once(account: Account) -> str:
    """Say that it is of the first start alone, where workers are kept: steps do not get shorter."""
    return "" if account.restarted else " (once, at the start)"


def _import_less(spawned: SpawnedWorkers, *, is_again: bool) -> tuple[str, str]:
    """Say what spares most of it: `is_again`, a fork server imports once what several workers need."""
    name, forbids = (spawned.script or "the script").rpartition("/")[2], "no thread and no device context"
    if spawned.is_needed:
        each = f"each imports {spawned.imports} ({duration(spawned.import_ns)})"
        how = f"fork the workers, where {forbids} forbids it: {each}"
        if spawned.forkserver and is_again:
            how += "; or let the server import that once: multiprocessing.set_forkserver_preload"
        return f"fork the workers, where threads and CUDA allow it: {each}", how
    if spawned.runs_script:
        return (
            f'move work of {name} below if __name__ == "__main__", or fork the workers',
            f'move what workers do not need in {name} below `if __name__ == "__main__":`, or into functions; '
            f"or fork workers, where {forbids} forbids it",
        )
    return (
        f'import below if __name__ == "__main__" what the dataset does not use of {spawned.beyond}; '
        "or fork workers",
        f"import what the dataset does not need ({spawned.beyond} in {name}) below "
        f'`if __name__ == "__main__":`, or in functions; or fork workers, where {forbids} forbids it',
    )


@rule("IO208", "dataset-unpickled", "loop", turn=THE_CAUSE, saves_wait=False, of_run=True)
@fires(
    {"account": {**_ACCOUNT, "spawned": _LARGE}},
    {"account": {**_ACCOUNT, "spawned": _LARGE, "restarted": 3, "iterators": 3}},
)
@silent(
    {"account": _ACCOUNT},
    {"account": {**_ACCOUNT, "spawned": {**_LARGE, "unpickle_ns": 1000, "pickle_ns": 1000}}},
)
def dataset_unpickled(facts: RankFacts) -> Iterator[Finding]:
    """The dataset is pickled for each spawned worker, which unpickles it.

    Workers are started one after the other: each waits for its own copy. Many small Python objects, such as a
    list of dictionaries, take longest. The gain is a bound: all of the pickling and unpickling that the loop
    waited for.

    Remedy: hold the data in arrays, in a file that workers open, or in shared memory; keep the workers.
    """
    account = facts.report.account
    spawned = None if account is None else account.spawned
    if account is None or spawned is None:
        return
    starts_ns = account.part_ns(FIRST_START) + account.restarts_ns
    cost_ns = min(spawned.pickle_ns + spawned.unpickle_ns * (1 + account.restarted), starts_ns)
    if not account.is_worth(cost_ns):
        return
    each_bytes = spawned.pickled_bytes / max(1, spawned.count)
    once = _once(account)
    yield _finding(
        account,
        cost_ns,
        text=(
            f"{size(each_bytes)} were pickled for each of {counted(spawned.count, 'spawned worker')}, which "
            f"unpickled them in {duration(spawned.unpickle_ns)}; pickling took {duration(spawned.pickle_ns)} "
            "in all"
        ),
        how=f"hold the dataset's data in arrays, in a file that workers open, or in shared memory{once}",
        remedy=f"hold the dataset in arrays, a file or shared memory: spawned workers unpickle it{once}",
        evidence={
            "starts": float(1 + account.restarted),
            "pickled_bytes": float(spawned.pickled_bytes),
            "pickle_ms": spawned.pickle_ns / 1e6,
            "unpickle_ms": spawned.unpickle_ns / 1e6,
        },
    )


@rule("IO209", "validation-restarts", "loop", turn=THE_CAUSE, saves_wait=False, of_run=True)
@fires(
    {"account": _EVALUATES, "loaders": [_VALIDATES]},
    {"account": _BOTH, "loaders": [_VALIDATES, {**_VALIDATES, "id": 0, "kind": "training"}]},
)
@silent(
    {"account": _EVALUATES, "loaders": [{**_VALIDATES, "persistent_workers": True}]},
    {"account": {**_EVALUATES, "loop_ns": 100 * _S}, "loaders": [_VALIDATES]},
    {"account": _EVALUATES, "loaders": [{**_VALIDATES, "epochs": 1}]},
)
def validation_restarts(facts: RankFacts) -> Iterator[Finding]:
    """Each validation starts its workers anew and ends them.

    The more often a loop validates, and the fewer batches a validation has, the larger the share of these
    starts. The gain is a bound: all time in which iterators of validations were made and ended, and made
    first batches. If the training's workers are started anew, too, the text says what both changes gain
    together.

    Remedy: `persistent_workers=True` for the DataLoader of the validation.
    """
    account = facts.report.account
    if account is None:
        return
    restart = [each for each in facts.report.loaders if _is_restarted(each.kind, each.workers, each.epochs)]
    restart = [each for each in restart if each.persistent_workers is False]
    cost_ns = account.part_ns(VALIDATION_ITERATORS)
    if not restart or not account.is_worth(cost_ns):
        return
    most, both = max(restart, key=lambda each: each.epochs), _with_training(facts, account)
    yield _finding(
        account,
        cost_ns,
        text=(
            f"{counted(most.epochs, 'validation')} with {counted(most.workers, 'new worker')} each: starting "
            f"and ending them, and their first batches, took {duration(cost_ns)} of the loop's "
            f"{duration(account.loop_ns)}"
        ),
        how=f"set persistent_workers=True on the DataLoader of the validation ({most.dataset}){both}",
        remedy=f"DataLoader(persistent_workers=True) of the validation ({most.dataset}){both}",
        evidence={"validations": float(most.epochs), "workers": float(most.workers)},
    )


def _with_training(facts: RankFacts, account: Account) -> str:
    """Say what both changes gain where the training's workers are started anew, too: all of these starts."""
    restart = (each for each in facts.report.loaders if each.kind == "training" and each.workers)
    is_too = any(each.persistent_workers is False and each.epochs > 1 for each in restart)
    left_ns = account.judged_ns - account.restarts_ns
    if not is_too or not account.is_worth(account.part_ns(ITERATORS)) or left_ns <= 0:
        return ""
    return f": with that of training about {account.judged_ns / left_ns:.1f}x"


def _is_restarted(kind: str, workers: int, epochs: int) -> bool:
    return kind not in ("training", "other") and workers > 0 and epochs > 1


def _finding(
    account: Account,
    cost_ns: int,
    *,
    text: str,
    how: str,
    remedy: str,
    evidence: dict[str, float],
) -> Finding:
    cost_ms = cost_ns / account.steps / 1e6
    share_pct = 100 * cost_ns / max(1, account.judged_ns)
    return Finding(
        text=text,
        how=how,
        remedy=remedy,
        evidence={**evidence, "cost_ms": cost_ms},
        cost_ms=cost_ms,
        gain_ms=cost_ms,
        level="high" if share_pct > _HIGH_PERCENT else "medium",
    )


_TRAINS = {"name": "training", "ns": 6 * _S, "in_loop": True}
_SKIPS = {
    "loop_ns": 10 * _S,
    "steps": 80,
    "parts": [_TRAINS, {"name": "skipped batches", "ns": 4 * _S, "in_loop": True, "times": 150}],
}


@rule(BATCHES_SKIPPED, "batches-skipped", "loop", turn=THE_CAUSE, saves_wait=False, of_run=True)
@fires({"account": _SKIPS}, {"account": {**_SKIPS, "loop_ns": 60 * _S}})
@silent(
    {"account": {**_SKIPS, "loop_ns": 1000 * _S}},
    {"account": {**_SKIPS, "parts": [_TRAINS]}},
    {"account": _EVALUATES},
)
def batches_skipped(facts: RankFacts, *, least_percent: float = MODERATELY_PERCENT) -> Iterator[Finding]:
    """The loop takes many batches before one step, and calls no model on them.

    A program that resumes often takes the batches that it trained on before, to go on after them: its workers
    read, decode and transform all of them for nothing. Or it looks at data, as for its mean.

    Remedy: skip them in the sampler or batch sampler, where the indices come from, as torchdata's
    `StatefulDataLoader` does; or keep what was computed from them in a file.
    """
    account = facts.report.account
    part = None if account is None else account.part(SKIPPED)
    if account is None or part is None or not part.ns or 100 * part.ns < least_percent * account.loop_ns:
        return
    yield Finding(
        text=(
            f"the loop takes {counted(part.times or 0, 'batch', 'batches')} that it does not train on, in "
            f"{duration(part.ns)} of its {duration(account.loop_ns)}: the loader makes them all the same"
        ),
        remedy=(
            "if the run resumes, skip them in the sampler, before samples are read (StatefulDataLoader "
            "does); or keep what is computed from them"
        ),
        evidence={"batches": part.times or 0, "seconds": part.ns / 1e9},
        level="high" if 100 * part.ns > _HIGH_PERCENT * account.loop_ns else "medium",
        is_main_cause=True,
    )
