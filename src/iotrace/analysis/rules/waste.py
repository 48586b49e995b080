"""Files that cost more than they need: what is read or decoded in vain, few files dearer than the others."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

from iotrace.analysis.results import (
    Amplification,
    ChunkedArray,
    Evidence,
    FileGroup,
    RowGroups,
    WholeReads,
)
from iotrace.analysis.rules.causes import per_epoch
from iotrace.analysis.rules.chunks import read_whole_again, spares_decoding
from iotrace.analysis.rules.facts.rank import RankFacts
from iotrace.analysis.rules.model import Finding, fires, rule, silent
from iotrace.analysis.storage.read_by_each import ReadByEach
from iotrace.analysis.wait.data_wait import MODERATELY_PERCENT
from iotrace.units import digits, percent, size

READ_BY_EACH_WORKER = "IO411"
_FIRST = "IO300"  # before who takes CPUs: what is not done needs none
_WHOLE = {
    "path": "d/",
    "ms": 50.0,
    "whole_reads": {"files": 3, "times": 900, "times_per_pass": 90.0, "readers": 2},
}


@rule("IO403", "read-amplification", "rank")
@fires({"file_groups": [_WHOLE]})
@silent({"file_groups": [{**_WHOLE, "whole_reads": None}]}, {"file_groups": [{**_WHOLE, "ms": 4.0}]})
def read_amplification(facts: RankFacts) -> Iterator[Finding]:
    """Most of what is read or decoded of an array or of files is wasted, or was read before.

    Chunks, row groups and pages are decoded or fetched whole, however little of them a sample takes; and a
    file that each sample reads whole is decoded again each time. What other chunks would decode is computed
    from the accesses that were seen.

    Remedy: that of slow reads or slow decoding (IO101, IO102), before more workers, which would do more of
    the needless work at once.
    """
    costs = {cost.path: cost.ms for cost in facts.report.data_wait.files}
    loader = facts.report.primary
    per = per_epoch(loader.epochs, loader.epochs_ended) if loader is not None else "an epoch"
    found = [
        (cost_ms, seen)
        for group in facts.report.file_groups
        for cost_ms, seen in (
            *_of_layout(group, costs, per),
            (group.ms, _of_whole_reads(group.whole_reads, per)),
        )
        if cost_ms is not None and seen is not None
    ]
    cost_ms, (text, evidence) = max(found, key=lambda pair: pair[0], default=(0.0, ("", {})))
    if facts.is_significant(cost_ms):
        is_main_cause = facts.is_main_cause(cost_ms)
        yield Finding(
            text=text, evidence=evidence, cost_ms=cost_ms, is_main_cause=is_main_cause, spares_work=True
        )


_DEAR = {
    "path": "d/",
    "ms": 50.0,
    "few": {"paths": ["d/7.png", "d/27.png", "d/47.png"], "of": 60, "fraction": 0.85},
}


_ALONE = {**_DEAR, "path": "d/7.png", "few": {"paths": ["d/7.png"], "of": 24, "fraction": 0.82}}


@rule("IO409", "few-files", "rank")
@fires({"file_groups": [_DEAR]}, {"file_groups": [_ALONE]})
@silent({"file_groups": [{**_DEAR, "few": None}]}, {"file_groups": [{**_DEAR, "ms": 4.0}]})
def few_files(facts: RankFacts) -> Iterator[Finding]:
    """Few files of a directory take most of the time that all of them take.

    A tenth of the files or fewer take half of it or more, each of them three times as long as the median of
    the others. That is of the making of all batches; they are charged the same share of the wait.

    Remedy: that of slow reads or slow decoding (IO101, IO102), only for these files: such as images that are
    much larger than the others, or a file with another compression.
    """
    dear = [
        (each.few.fraction * each.cost_ms, each, each.few) for each in facts.report.file_groups if each.few
    ]
    for cost_ms, group, few in sorted(dear, key=lambda each: -each[0])[:1]:
        if facts.is_significant(cost_ms):
            files = len(few.paths)
            named = ", ".join([*map(os.path.basename, few.paths[:3]), *["…"][: files - 3 > 0]])
            take = f"take{'s' if files == 1 else ''} {percent(few.fraction)} of its time"
            yield Finding(
                text=f"{files} of {few.of} files in {_directory(group)} {take} ({named})",
                evidence={"files": float(files), "of": float(few.of), "fraction": few.fraction},
                cost_ms=cost_ms,
                is_main_cause=facts.is_main_cause(cost_ms),
            )


def _directory(group: FileGroup) -> str:
    """The group, or the directory of a file that stands alone in its group."""
    alone = group.few is not None and group.few.paths == [group.path]
    return f"{os.path.dirname(group.path)}/" if alone else group.path


_BY_EACH = {"files": 200, "workers": 2, "share": 1.0}
_TWICE = {"files": 8, "workers": 2, "share": 1.0, "asked": False}
_DROPPED = {**_TWICE, "asked": True, "dropped": "json.loads", "times": 4.0}
_ONE_FILE = {"files": 1, "workers": 2, "share": 1.0, "stream": "d/all.tsv.gz", "stream_bytes": 26 << 20}


@rule(READ_BY_EACH_WORKER, "read-by-each-worker", "rank")
@fires(
    {"read_by_each": _BY_EACH},
    {"read_by_each": _ONE_FILE},
    {"read_by_each": _TWICE, "causes_ms": {"transform": 60.0}},
    {"read_by_each": _DROPPED, "causes_ms": {"transform": 60.0}},
)
@silent(
    {"read_by_each": {**_BY_EACH, "share": 0.5}},
    {"read_by_each": {**_BY_EACH, "files": 4}},
    {"read_by_each": {**_ONE_FILE, "share": 0.5}},
    {"read_by_each": {**_ONE_FILE, "stream": ""}},
    {"read_by_each": _BY_EACH, "causes_ms": {"transform": 60.0}},
    {"read_by_each": {**_BY_EACH, "asked": True}, "causes_ms": {"transform": 60.0}},
    {"read_by_each": {**_TWICE, "share": 0.5}, "causes_ms": {"transform": 60.0}},
)
def read_by_each_worker(
    facts: RankFacts, *, least_files: int = 16, least_share: float = 0.8
) -> Iterator[Finding]:
    """Each worker reads and decodes all of the data in each epoch.

    A worker has its own copy of an iterable dataset. If the dataset reads everything and passes on only every
    Nth sample, it reads and decodes the others for nothing. iotrace saw that each worker read the same files,
    about once each; the cost is what all workers but one spend on it. For a single file that is read as a
    stream, such as a `.gz`, it saw that each worker read the same bytes.

    Where no worker looks at its number (`get_worker_info().id`), none knows which part is its own: each gives
    all samples, and an epoch has each one as often as there are workers. A `worker_init_fn` gets the number,
    too, and may divide them. That makes epochs shorter, not steps.

    Workers may also look at their number, make all samples, and drop those of other workers. With N workers,
    a function of the sample then runs N times for each sample that is given.

    Remedy: choose a worker's files before they are read, by `torch.utils.data.get_worker_info()`; in a job of
    several ranks by the rank, too. A single file has to be split first.
    """
    found, causes_ms = facts.read_by_each, facts.report.data_wait.causes_ms
    if found is None or found.share < least_share:
        return
    if found.asked is False:
        yield _given_by_each(found)
        return
    if found.dropped:
        yield _dropped_by_each(found)
        return
    if found.files < least_files and not found.stream:
        return
    what = f"{found.files} files"
    remedy = "let each worker read its own files: torch.utils.data.get_worker_info()"
    how = "choose a worker's files before they are read, by torch.utils.data.get_worker_info()"
    if found.stream:
        name = os.path.basename(found.stream)
        what = f"{size(found.stream_bytes)} of {name}"
        remedy = f"split {name}: a part for each worker, chosen by torch.utils.data.get_worker_info()"
        how = f"split {name} into parts, and let each worker read its own: torch.utils.data.get_worker_info()"
    spent_ms = causes_ms.get("read", 0.0) + causes_ms.get("decode", 0.0)
    cost_ms = found.share * spent_ms * (1 - 1 / found.workers)
    if 100 * cost_ms >= MODERATELY_PERCENT * (facts.report.steps.mean_ms or 0.0) > 0:
        yield Finding(
            text=f"each of {found.workers} workers reads and decodes the same {what} each epoch",
            remedy=remedy,
            how=how,
            evidence={"files": float(found.files), "workers": float(found.workers), "share": found.share},
            cost_ms=cost_ms,
            gain_ms=cost_ms,
            is_main_cause=True,
            spares_work=True,
            silences=("IO204",),
            place=_FIRST,
        )


def _given_by_each(found: ReadByEach) -> Finding:
    """Say that each worker gives all samples, as none knows which are its own."""
    what = f"{found.files} files" if found.files > 1 else "file"
    unless = ", unless worker_init_fn divides them" if found.init else ""
    return Finding(
        text=f"each of {found.workers} workers reads the same {what} each epoch, and none asks for its "
        f"number (get_worker_info): an epoch has each sample {found.workers} times{unless}",
        remedy=(
            f"divide the files by get_worker_info().id and num_workers: an epoch then has 1/{found.workers} "
            "of the batches"
        ),
        evidence={
            "files": float(found.files),
            "workers": float(found.workers),
            "share": found.share,
            **({} if found.init else {"times": float(found.workers)}),
        },
        is_main_cause=True,
        spares_work=True,
        silences=("IO204",),
        place=_FIRST,
    )


def _dropped_by_each(found: ReadByEach) -> Finding:
    """Say that each worker makes all samples, and drops what is the others'."""
    runs = f"{found.dropped} runs {found.times:.1f} times for each sample"
    return Finding(
        text=f"{runs} that a worker gives, once for each worker of the job, and each reads all of the data: "
        "it makes all samples, and drops the others'",
        remedy=f"skip what is not a worker's own before the work on it ({runs}): by its number, and the rank",
        evidence={"workers": float(found.workers), "times": found.times},
        is_main_cause=True,
        spares_work=True,
        silences=("IO204",),
        place=_FIRST,
    )


Seen = tuple[str, Evidence]


def _of_layout(
    group: FileGroup, costs: Mapping[str, float | None], per: str
) -> Iterator[tuple[float | None, Seen | None]]:
    if group.amplification is None:
        return
    arrays = group.amplification.arrays
    for array in arrays:
        if read_whole_again([array]):
            yield costs.get(array.path), _of_whole_array(array)
    yield _of_chunks([each for each in arrays if not read_whole_again([each])], costs)
    yield _of_row_groups(group.amplification.row_groups, costs, per)
    yield group.ms, _of_map(group.amplification)


def _of_whole_reads(found: WholeReads | None, per: str) -> Seen | None:
    if found is None:
        return None
    what = "it is" if found.files == 1 else "each of its files is"
    return _seen(
        f"{what} read and decoded whole {digits(found.times_per_pass, 2)} times {per}",
        whole_reads=found.times,
        predicted_reads=found.files * found.readers,
    )


def _of_whole_array(array: ChunkedArray) -> Seen | None:
    name = array.dataset.lstrip("/") or "it"
    return _seen(
        f"accesses read all of {name} ({size(array.array_bytes)}) each time",
        whole_reads=array.complete,
        predicted_reads=array.complete_once,
    )


def _of_chunks(
    arrays: Sequence[ChunkedArray], costs: Mapping[str, float | None]
) -> tuple[float, Seen | None]:
    """Of the arrays of one store together: each may cost little."""
    unfit = [each for each in arrays if spares_decoding(each) and each.predicted_bytes is not None]
    if not unfit:
        return 0.0, None
    least_bytes, used_bytes = (
        sum(getattr(each, name) for each in unfit) for name in ("decoded_at_least_bytes", "used_bytes")
    )
    ratio = digits(least_bytes / used_bytes, 2)
    if any(each.decoded_at_most_bytes != each.decoded_at_least_bytes for each in unfit):
        ratio = f"at least {ratio}"
    seen = _seen(
        f"its chunks do not fit what a sample reads: {ratio} bytes are decoded for each byte used",
        decoded_bytes=least_bytes,
        used_bytes=used_bytes,
        predicted_bytes=sum(each.predicted_bytes or 0 for each in unfit),
    )
    # Several arrays may be of one path, whose cost is one.
    return sum(costs.get(path) or 0.0 for path in {each.path for each in unfit}), seen


def _of_row_groups(
    files: Sequence[RowGroups], costs: Mapping[str, float | None], per: str
) -> tuple[float, Seen | None]:
    """Of Parquet files of one directory together: each may cost little."""
    told = [each for each in files if each.predicted_bytes is not None and each.passes is not None]
    kept = [each for each in told if each.keep]
    known = max(([each for each in told if not each.keep], kept), key=lambda own: _cost_ms(own, costs))
    if not known:
        return 0.0, None
    decoded = sum(each.decoded_bytes for each in known)
    once = sum(each.distinct_bytes for each in known) * max(each.passes or 1 for each in known)
    times = digits(decoded / once, 2)
    seen = _seen(
        f"it is read and decoded whole {times} times {per}"
        if known is kept
        else f"its row groups do not fit what a sample reads: each is decoded {times} times {per}",
        decoded_bytes=decoded,
        distinct_bytes=once,
        predicted_bytes=sum(each.predicted_bytes or 0 for each in known),
    )
    return _cost_ms(known, costs), seen


def _cost_ms(files: Sequence[RowGroups], costs: Mapping[str, float | None]) -> float:
    return sum(costs.get(each.path) or 0.0 for each in files)


def _of_map(found: Amplification) -> Seen | None:
    if found.mapped is None or found.mapped.predicted_bytes is None or not found.fetched_per_used:
        return None
    ratio = digits(found.fetched_per_used, 2)
    return _seen(
        f"pages are read around those it needs: {ratio} bytes are fetched for each byte used",
        fetched_bytes=found.fetched_bytes or 0,
        used_bytes=found.used_bytes or 0,
        predicted_bytes=found.mapped.predicted_bytes,
    )


def _seen(text: str, **evidence: float) -> Seen:
    return text, {name: float(value) for name, value in evidence.items()}
