"""One input to one part of the result: what a process of its own does."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from iotrace.merge.input_files import CHROME, SESSION, InputFile
from iotrace.merge.rewrite import FlowCheck, Rewriter, Sink
from iotrace.merge.selection import Selection, are_in, chosen
from iotrace.merge.survey import make_reader
from iotrace.sources.byte_stream import Progress, blocks, silent, without_collecting
from iotrace.sources.chrome.batch import Batch, Times
from iotrace.sources.clocks.session_clock import ClockMap
from iotrace.timeline.writers.chrome_json import ChromePart
from iotrace.timeline.writers.id_map import Raw, Tracks
from iotrace.timeline.writers.lanes import Spill

_LARGEST_METADATA = 1 << 20
_READING_SHARE = 0.85  # of the time for an input; lanes and the order of packets take the rest


@dataclass
class Job:
    """Everything that a process needs to know to convert one input."""

    file: InputFile
    index: int
    inputs: int
    shared: dict[Raw, int]
    clock: ClockMap  # from the input's stamps to the merged clock
    base_ns: int
    selection: Selection
    pool: dict[str, str]
    directory: Path
    native: bool
    process_tables: bool = False
    device_tracks: bool = False

    @property
    def part(self) -> Path:
        """Where the part of the result is written."""
        return self.directory / f"part-{self.index}"


@dataclass
class Result:
    """What became of one input."""

    tracks: Tracks
    read: Counter[str]
    written: Counter[str]
    first_ns: int | None
    last_ns: int | None
    moved: int
    unbound: int
    backwards: int
    lost_events: int
    metadata: dict[str, Any]
    categories: set[str] = field(default_factory=set)  # those met, where some are to be left out
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@without_collecting()
def convert(job: Job, progress: Progress = silent) -> Result:
    """Read the input, write its part. `progress` hears how far that has come, in bytes of the file."""
    spill = Spill(job.directory / f"rows-{job.index}")
    flows = FlowCheck(job.directory / f"flows-{job.index}")
    try:
        return _convert(job, spill, flows, progress)
    finally:
        spill.close()
        flows.close()
        for name in ("rows", "flows"):
            (job.directory / f"{name}-{job.index}").unlink(missing_ok=True)


def _convert(job: Job, spill: Spill, flows: FlowCheck, progress: Progress) -> Result:
    tracks = Tracks(job.index, job.inputs, job.shared)
    sink = _sink(job)
    rewriter = Rewriter(tracks, sink, spill, flows, job.clock, job.base_ns, job.selection, _chosen_pairs(job))
    problems: list[str] = []
    size = job.file.path.stat().st_size if job.file.path.is_file() else 0

    def ordered(rows: int) -> None:
        progress(int(size * (_READING_SHARE + (1 - _READING_SHARE) * rows / spill.rows)))

    reader, batches = _reading(job, problems, lambda position: progress(int(_READING_SHARE * position)))
    for batch in batches:
        rewriter.take(batch)
    moved, unbound = sink.finish(spill, tracks, not job.selection.everything, ordered)
    if unbound and not job.selection.everything:
        rewriter.written["f"] -= unbound
    elif unbound:
        what = "flow end is in no slice, shown as an instant"
        if unbound > 1:
            what = "flow ends are in no slice, shown as instants"
        problems.append(f"{unbound} {what}")
    problems += getattr(reader, "problems", [])
    problems += [f"{what} ({count})" for what, count in rewriter.mended.items()]
    notes: list[str] = []
    return Result(
        tracks=tracks,
        read=rewriter.read,
        written=rewriter.written,
        first_ns=rewriter.first_ns,
        last_ns=rewriter.last_ns,
        moved=moved,
        unbound=unbound,
        backwards=flows.backwards(),
        lost_events=getattr(reader, "lost_events", 0),
        metadata=_metadata(reader, notes),
        categories=rewriter.categories,
        problems=[f"{job.file.label}: {problem}" for problem in problems],
        notes=[f"{job.file.label}: {note}" for note in notes],
    )


def _sink(job: Job) -> Sink:
    if not job.native:
        return ChromePart(job.part, job.base_ns)
    from iotrace.timeline.writers.native import NativePart

    return NativePart(job.part, job.index, job.process_tables)


def _chosen_pairs(job: Job) -> Times | None:
    """The begins and ends that are wanted, found in a pass of their own: an end says nothing of its begin."""
    if job.selection.everything or job.file.kind != CHROME or not are_in(job.file.path):
        return None
    _, batches = _reading(job, [], silent)
    return chosen(batches, job.clock, job.selection)


def _reading(job: Job, problems: list[str], progress: Progress) -> tuple[Any, Iterator[Batch]]:
    """The reader of the input, and its batches."""
    if job.file.kind == SESSION:
        from iotrace.merge.analysed_input import session_batches  # it imports the analysis, which is slow

        return None, session_batches(job.file)
    reader: Any = make_reader(job.file, job.pool)
    batches: Iterator[Batch] = reader.batches(blocks(job.file.path, problems, progress))
    if job.device_tracks:
        from iotrace.merge.analysed_input import device_batches  # it imports the analysis, too

        batches = chain(batches, device_batches(job.file.path, job.inputs > 2))
    return reader, batches


def _metadata(reader: Any, notes: list[str]) -> dict[str, Any]:
    """The keys next to the events; a key as large as a file of its own is left out, with a note."""
    metadata = {}
    for key, value in getattr(reader, "metadata", {}).items():
        text = json.dumps({key: value}, ensure_ascii=False)
        if len(text) < _LARGEST_METADATA:  # half a character of UTF-16 is JSON, and no Unicode
            metadata.update(json.loads(text.encode(errors="replace")))
        else:
            metadata[key] = "(left out: too large)"
            notes.append(f"{key}, {len(text) / 1e6:.1f} MB besides its events, is left out")
    return metadata
