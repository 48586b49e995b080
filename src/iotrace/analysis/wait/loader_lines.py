"""The lines that the making of a loader's batches is mostly in: items, collating, choosing samples, starts.

And the file that its workers' first samples are busy with.

Definitions: docs/definitions.md, "loop_code".
"""

from __future__ import annotations

from collections import Counter, defaultdict

import msgspec
import numpy as np

from iotrace.analysis.intervals import Intervals, holding, intersect, subtract, union
from iotrace.analysis.loop.deliveries import LoaderRun
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import FEWEST_SAMPLES, HotLine, LoaderResult
from iotrace.analysis.table import NONE
from iotrace.analysis.wait.hot_lines import Frame, Stack, hot_line, stack_samples
from iotrace.analysis.wait.production import READING, outermost_of
from iotrace.session.names import KIND_COLLATE, KIND_ITEM
from iotrace.sources.paths import Paths
from iotrace.sources.processes import Process
from iotrace.sources.records import LoopStacks, WorkerUp

_MOST = 0.5  # of the samples
_FIRST_TIMES = 5.0  # as long as any other: a first sample in which a worker gets ready
_ASKS_SAMPLER = "._next_index"  # of torch's iterators


def with_hot_lines(analysis: RankAnalysis, loader: LoaderRun, found: LoaderResult) -> LoaderResult:
    """Add the lines that a loader's items, its collate function and its sampler are mostly in."""
    source = analysis.source if loader is analysis.primary and analysis.source is not None else loader
    item, collate = (_line_of(analysis, kind, source) for kind in (KIND_ITEM, KIND_COLLATE))
    code, ms = _start_of(analysis, source)
    file, file_ms, code_of_first = _first_file(analysis, source)
    return msgspec.structs.replace(
        found,
        item_hot=item,
        collate_hot=collate,
        sampling_hot=_line_of_sampler(analysis, source),
        start_code=code,
        start_code_ms=ms,
        first_file=file,
        first_file_ms=file_ms,
        first_code=code_of_first,
    )


def _start_of(analysis: RankAnalysis, run: LoaderRun) -> tuple[str | None, float | None]:
    """Find the program's function that its workers are in until they ask for an index, and how long: ms.

    That is their worker_init_fn, mostly. The time is the median of all workers: what makes the loop wait for
    the last of them may be longer. None where it is not most of what the loop waits for at a start.
    """
    counts: Counter[Frame] = Counter()
    began: list[tuple[float, Counter[Frame]]] = []
    whole = 0
    for process in analysis.rank.workers:
        up = next(iter(process.of_type(WorkerUp)), None)
        if up is None or not (run.deliveries["pid"] == process.pid).any():
            continue
        up_ns = process.clock.to_session_ns(up.mono_ns)
        for tid in {record.tid for record in process.of_type(LoopStacks)}:
            samples = stack_samples(process, tid)
            samples = samples.chosen(samples.times < up_ns)
            if not samples.asked or not len(samples.times):
                continue
            whole += len(samples.times)
            own = Counter(each.own._replace(line=0, since=0) for each in samples.each if each.own is not None)
            began.append((float(up_ns - samples.times[0]) / 1e6 / len(samples.times), own))
            counts += own
    most, count = counts.most_common(1)[0] if counts else (None, 0)
    if most is None or whole < FEWEST_SAMPLES or count < _MOST * whole:
        return None, None
    startup_ns = analysis.explained(run).of_cause("startup")
    took_ms = float(np.median([each_ms * own[most] for each_ms, own in began]))
    if not (startup_ns > 0).any() or took_ms < _MOST * float(startup_ns[startup_ns > 0].mean()) / 1e6:
        return None, None
    return f"{most.function} ({analysis.session.paths.shown(most.file)}:{most.first_line})", took_ms


def _first_file(analysis: RankAnalysis, run: LoaderRun) -> tuple[str | None, float | None, str | None]:
    """Find the file that workers are busy with for most of their first sample alone, how long (ms), where.

    From a call on it until the next one on another file, or the sample's end. None where less than half of
    the workers have such a file in common. The function is that of first samples which take long.
    """
    stacks: list[Stack] = []
    shown, took_ms, workers = analysis.session.paths.shown, defaultdict[str, list[float]](list), 0
    for process in analysis.rank.workers:
        items = outermost_of(process, KIND_ITEM)
        if len(items) < 2 or not (run.deliveries["pid"] == process.pid).any():
            continue
        workers += 1
        begin_ns = int(items["start_ns"].min())
        first_ns = int(items["duration_ns"][np.argmin(items["start_ns"])])
        if first_ns < _FIRST_TIMES * float(np.median(items["duration_ns"])):
            continue
        for tid in {record.tid for record in process.of_type(LoopStacks)}:
            samples = stack_samples(process, tid)
            stacks += samples.chosen(abs(samples.times - begin_ns - first_ns / 2) <= first_ns / 2).each
        calls = analysis.session.calls_of(process)
        inside = holding(np.array([begin_ns]), np.array([begin_ns + first_ns]), calls.start_ns) >= 0
        order = np.flatnonzero(inside)[np.argsort(calls.start_ns[inside], kind="stable")]
        lasted = np.diff(np.append(calls.start_ns[order], begin_ns + first_ns))
        spent = Counter[int]()
        for number, ns in zip(calls.file[order].tolist(), lasted.tolist(), strict=True):
            spent[number] += ns
        number, ns = spent.most_common(1)[0] if spent else (-1, 0)
        if (
            ns >= _MOST * first_ns
            and not ((calls.file == number) & ~inside & (calls.start_ns > begin_ns)).any()
        ):
            took_ms[shown(calls.files[number])].append(ns / 1e6)
    most = max(took_ms, key=lambda file: len(took_ms[file]), default=None)
    code = _innermost(stacks, analysis)
    if most is None or len(took_ms[most]) < _MOST * workers:
        return None, None, code
    return most, float(np.median(took_ms[most])), code


def _innermost(stacks: list[Stack], analysis: RankAnalysis) -> str | None:
    """Name the program's innermost function that most of the samples are in, or in what it calls."""
    depths: dict[Frame, list[int]] = defaultdict(list)
    for stack in stacks:
        own = [frame._replace(line=0, since=0) for frame in stack.called if frame.line]
        for frame in {*own}:
            depths[frame].append(len(own) - own[::-1].index(frame))
    known = {frame: at for frame, at in depths.items() if len(at) >= max(FEWEST_SAMPLES, _MOST * len(stacks))}
    innermost = max(known, key=lambda frame: sum(known[frame]) / len(known[frame]), default=None)
    if innermost is None:
        return None
    return f"{innermost.function} ({analysis.session.paths.shown(innermost.file)}:{innermost.first_line})"


def _line_of(analysis: RankAnalysis, kind: int, run: LoaderRun) -> HotLine | None:
    """Find it in all processes that made batches of a loader, while they made them, outside of read paths.

    What reads and decodes is named by its file.
    """
    found: list[Stack] = []
    whole: list[Stack] = []
    asked = True
    makers = run.deliveries.maker(analysis.rank.main.pid)
    for process in analysis.rank.processes:
        mine = run.deliveries[run.deliveries.made & (makers == process.pid)]
        tids = {record.tid for record in process.of_type(LoopStacks)} if len(mine) else set()
        for tid in tids:
            # The loop's own thread may make something else while a pool's threads make these.
            by_it = mine[(mine["maker_tid"] == NONE) | (mine["maker_tid"] == tid)]
            made = union(by_it["taken_ns"], by_it["prepared_ns"])
            own = intersect(_spans_of(process, tid, kind), made)
            samples = stack_samples(process, tid)
            asked = asked and samples.asked
            inside = holding(*subtract(own, _spans_of(process, tid, *READING)), samples.times) >= 0
            found += samples.chosen(inside).each
            whole += samples.chosen(holding(*own, samples.times) >= 0).each
    paths = analysis.session.paths
    hot = hot_line(found, paths, of_called=True) if asked else None
    return None if hot is None else _with_shares(hot, found, whole, paths)


def _with_shares(hot: HotLine, found: list[Stack], whole: list[Stack], paths: Paths) -> HotLine:
    """Add how often the interpreter's lock was held at the line, and what of all of the time passes there."""

    def at_line(stacks: list[Stack]) -> list[tuple[Stack, int]]:
        counts = Counter(stacks).items()
        return [each for each in counts if any(_is_at(frame, hot, paths) for frame in each[0].called)]

    own, passing = at_line(found), at_line(whole)
    if not own or "-" in hot.line.rpartition(":")[2]:
        return hot
    held = sum(count for stack, count in own if stack.held) / sum(count for _, count in own)
    passes = sum(count for _, count in passing) / len(whole)
    return msgspec.structs.replace(hot, held_fraction=held, passes_fraction=passes)


def _is_at(frame: Frame, hot: HotLine, paths: Paths) -> bool:
    """Whether a frame is at the line, or in the function that is named by its first line."""
    return hot.line in {
        frame._replace(since=0, line=line).at(paths) for line in (frame.line, frame.first_line)
    }


def _line_of_sampler(analysis: RankAnalysis, run: LoaderRun) -> HotLine | None:
    """Find the line of what chooses a loader's samples, in the loop's waits for it."""
    own = run.deliveries
    if not (own["sampled_ns"] > 0).any() or (thread := analysis.loop.thread) is None:
        return None
    samples = stack_samples(analysis.rank.main, thread.tid)
    waits = union(own["wait_start_ns"], own["delivered_ns"])
    found = []
    for stack in samples.chosen(holding(*waits, samples.times) >= 0).each:
        asked = [i for i, frame in enumerate(stack.called) if frame.function.endswith(_ASKS_SAMPLER)]
        if asked:
            found.append(stack._replace(called=stack.called[asked[-1] + 1 :]))
    return hot_line(found, analysis.session.paths, of_called=True) if samples.asked else None


def _spans_of(process: Process, tid: int, *kinds: int) -> Intervals:
    spans = outermost_of(process, *kinds)
    starts = spans["start_ns"][spans["tid"] == tid]
    return union(starts, starts + spans["duration_ns"][spans["tid"] == tid])
