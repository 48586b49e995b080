"""Tables of a report that a screen, Markdown and the page share, as blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from iotrace.analysis.results import ProcessUse, RankReport, RegionResult, Report, SessionInfo
from iotrace.analysis.results.base import figure
from iotrace.report.blocks import Field, Table, columns
from iotrace.report.screen import shown_path
from iotrace.units import fixed, one_decimal, percent, size

_OF_FILES = ("read", "decode", "transform")


class _Cause(msgspec.Struct, frozen=True, kw_only=True):
    """A cause of the wait, of a mean step."""

    cause: Annotated[str, figure("its name", said="cause", place=1)]
    ms: Annotated[float, figure("what it costs", said="ms", place=2)]
    share: Annotated[float, figure("the part of the wait", "0 to 1", said="of the wait", place=3)]
    meaning: Annotated[str, figure("what it is", said="what it means", place=4)]


def causes(rank: RankReport) -> Table:
    """Each cause of the wait, the costliest first: what it costs, its share, its meaning."""
    wait = rank.data_wait
    shown = sorted(wait.causes_ms.items(), key=lambda pair: -pair[1]) if wait.raw_ms else []
    rows = [
        _Cause(cause=cause, ms=ms, share=ms / wait.raw_ms, meaning=CAUSES.get(cause, ""))
        for cause, ms in shown
        if wait.raw_ms and ms >= 0.005 * wait.raw_ms
    ]
    fields = columns(_Cause, ms=lambda ms: fixed(ms, rows[0].ms))
    return Table(title="The wait by cause, mean of a step", rows=rows, fields=fields)


class _Worst(msgspec.Struct, frozen=True, kw_only=True):
    """A batch that was waited for long; `command` opens the timeline there."""

    batch: Annotated[int, figure("its index in the epoch", said="batch", place=1)]
    wait_ms: Annotated[float, figure("its wait", said="waited, ms", place=2)]
    cause: Annotated[str, figure("the largest of its causes", said="mostly", place=3)]
    file: Annotated[str, figure("the costliest file of its wait", said="file", place=4)]
    made_by: Annotated[str, figure("who made it", said="made by", place=5)]
    epoch: Annotated[int, figure("the epoch", said="epoch", place=6)]
    command: Annotated[str, figure("opens the timeline there", said="look at it", place=7)]


def worst_batches(rank: RankReport, session: SessionInfo) -> Table:
    """The batches that were waited for longest, with the command that shows each.

    The command shows the longest wait for a batch of that number: of another epoch it is none. A file is
    named only of a batch that was waited for because of files.
    """
    path, rows = shown_path(session.path), list[_Worst]()
    for worst in rank.data_wait.worst_batches:
        files = worst.files if worst.cause in _OF_FILES else []
        is_first = worst.batch not in [row.batch for row in rows]
        rows.append(
            _Worst(
                batch=worst.batch,
                wait_ms=worst.wait_ms,
                cause=worst.cause,
                file="".join(files[:1]) + (" and others" if len(files) > 1 else ""),
                made_by=worst.made_by,
                epoch=worst.epoch,
                command=f"iotrace open {path} --batch {worst.batch}" if is_first else "",
            )
        )
    fields = columns(_Worst, wait_ms=lambda ms: fixed(ms, rows[0].wait_ms))
    title = "The longest waits for one batch, of the measured steps"
    return Table(title=title, rows=rows, fields=fields)


def regions(rank: RankReport) -> Table:
    """The parts of a program that its author named, over the whole run."""
    title = "Regions, over the whole run; wait: mean of a step"
    return Table(title=title, rows=rank.regions, fields=columns(RegionResult, wait_ms=one_decimal))


class _Process(ProcessUse, frozen=True, kw_only=True):
    """A process of a rank."""

    rank: int


def processes(report: Report) -> Table:
    """CPU and memory of each process of each rank."""
    rows = [
        _Process(rank=rank.rank, **msgspec.structs.asdict(each))
        for rank in report.ranks
        for each in rank.system.processes
        if each.rss_peak_bytes is not None or each.cpu_pct_mean is not None
    ]
    fields: Sequence[Field] = (
        *([Field("rank", "rank")] if len(report.ranks) > 1 else []),
        Field("role", "process", is_text=True),
        Field("pid", "pid"),
        Field("cpu_pct_mean", "CPU", lambda cpu_pct: percent(cpu_pct / 100), absent="unknown"),
        Field("rss_peak_bytes", "memory, at most", size, absent="unknown"),
        Field("rss_growth_bytes", "grew by", size, absent="unknown"),
    )
    return Table(title="Processes over the measured steps", rows=rows, fields=fields)


# The causes of waits, explained; docs/definitions.md has the whole of each.
CAUSES = {
    "startup": "Workers were being started.",
    "queued": "No worker had begun the batch: all were busy with others.",
    "read": "In calls to the file system: open, read, page faults of memory maps.",
    "decode": "In a library that reads files (h5py, zarr, PIL ...), outside of its reads: decompressing.",
    "transform": "In the rest of the dataset's own code.",
    "collate": "Putting samples together to a batch.",
    "sampling": "Choosing the samples of a batch: the sampler works in the loop itself.",
    "transport": "Handing the batch over from the worker to the loop.",
    "unknown": "Nothing that was recorded explains it.",
}
