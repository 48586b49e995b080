"""Name the file that makes a loop wait as most of what is decoded or fetched of it is wasted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from iotrace.analysis.culprits import leads, worth_telling
from iotrace.analysis.results import (
    Amplification,
    ChunkedArray,
    Culprit,
    Evidence,
    FileGroup,
    RankReport,
    Recommendation,
    RowGroups,
    WholeReads,
)
from iotrace.units import digits


def amplified(report: RankReport) -> list[Culprit]:
    """Name the array or the files that hold the loop up, most of which is decoded in vain, or again.

    It has no remedy of its own: the advice on its file has.
    """
    costs = {cost.path: cost.ms for cost in report.data_wait.files}
    found = [
        (cost_ms, culprit)
        for group in report.file_groups
        for cost_ms, culprit in (*_of_layout(group, costs), (group.ms, _of_whole_reads(group.whole_reads)))
        if cost_ms is not None and culprit is not None
    ]
    if not found:
        return []
    cost_ms, culprit = max(found, key=lambda pair: pair[0])
    if not worth_telling(cost_ms, report):
        return []
    return [replace(culprit, wait_ms=cost_ms, leads=leads(cost_ms, report))]


def with_waste_first(advice: list[Recommendation], culprits: Sequence[Culprit]) -> list[Recommendation]:
    """Put what spares needless work first where that leads: more workers would do more of it at once."""
    if not any(each.id == "read-amplification" and each.leads for each in culprits):
        return advice
    most_ms = max((item.gain_ms_per_step or 0.0 for item in advice), default=0.0)

    def comes_later(item: Recommendation) -> bool:
        return (
            not {"predicted_bytes", "predicted_reads"} & {*item.evidence}
            or (item.gain_ms_per_step or 0.0) < most_ms
        )

    return sorted(advice, key=comes_later)


def _of_layout(
    group: FileGroup, costs: Mapping[str, float | None]
) -> Iterator[tuple[float | None, Culprit | None]]:
    if group.amplification is None:
        return
    for array in group.amplification.arrays:
        yield costs.get(array.path), _of_array(array)
    yield _of_row_groups(group.amplification.row_groups, costs)
    yield group.ms, _of_map(group.amplification)


def _of_whole_reads(found: WholeReads | None) -> Culprit | None:
    if found is None:
        return None
    what = "it is" if found.files == 1 else "each of its files is"
    return _culprit(
        f"{what} read and decoded whole {digits(found.times_per_pass, 2)} times an epoch",
        whole_reads=found.times,
        predicted_reads=found.files * found.readers,
    )


def _of_array(array: ChunkedArray) -> Culprit | None:
    if array.predicted_bytes is None:
        return None
    ratio = digits(array.decoded_at_least_bytes / array.used_bytes, 2)
    return _culprit(
        f"its chunks do not fit what a sample reads: {ratio} bytes are decoded for each byte used",
        decoded_bytes=array.decoded_at_least_bytes,
        used_bytes=array.used_bytes,
        predicted_bytes=array.predicted_bytes,
    )


def _of_row_groups(
    files: Sequence[RowGroups], costs: Mapping[str, float | None]
) -> tuple[float, Culprit | None]:
    """Of Parquet files of one directory together: each may cost little."""
    told = [each for each in files if each.predicted_bytes is not None and each.passes is not None]
    kept = [each for each in told if each.keep]
    known = max(([each for each in told if not each.keep], kept), key=lambda own: _cost_ms(own, costs))
    if not known:
        return 0.0, None
    decoded = sum(each.decoded_bytes for each in known)
    once = sum(each.distinct_bytes for each in known) * max(each.passes or 1 for each in known)
    times = digits(decoded / once, 2)
    culprit = _culprit(
        f"it is read and decoded whole {times} times an epoch"
        if known is kept
        else f"its row groups do not fit what a sample reads: each is decoded {times} times an epoch",
        decoded_bytes=decoded,
        distinct_bytes=once,
        predicted_bytes=sum(each.predicted_bytes or 0 for each in known),
    )
    return _cost_ms(known, costs), culprit


def _cost_ms(files: Sequence[RowGroups], costs: Mapping[str, float | None]) -> float:
    return sum(costs.get(each.path) or 0.0 for each in files)


def _of_map(found: Amplification) -> Culprit | None:
    if found.mapped is None or found.mapped.predicted_bytes is None or not found.fetched_per_used:
        return None
    ratio = digits(found.fetched_per_used, 2)
    return _culprit(
        f"pages are read around those it needs: {ratio} bytes are fetched for each byte used",
        fetched_bytes=found.fetched_bytes or 0,
        used_bytes=found.used_bytes or 0,
        predicted_bytes=found.mapped.predicted_bytes,
    )


def _culprit(text: str, **evidence: float) -> Culprit:
    figures: Evidence = {name: float(value) for name, value in evidence.items()}
    return Culprit(id="read-amplification", text=text, evidence=figures, wait_ms=0.0, leads=False)
