"""The program's functions that a library calls to make batches, as stages; what says how many work."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
from msgspec.structs import replace

from iotrace.analysis.intervals import Coverage, Times, distinct
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import PipelineStage
from iotrace.analysis.wait.locks import Locked, locks_of
from iotrace.analysis.wait.page_faults import bounds, holder
from iotrace.analysis.wait.production import outermost
from iotrace.session.names import KIND_CALLBACK
from iotrace.sources.columns import Columns
from iotrace.sources.records import Stage

_MOST_STAGES = 16
_TID = (1 << 32) - 1  # of a maker
_FULL = 0.8  # of all threads: none is free for one more
_BEYOND = 0.9  # of the threads that work at once on average: more are set


def called_by(library: str, analysis: RankAnalysis, start_ns: int, end_ns: int) -> list[PipelineStage]:
    """Make a stage of each function of the program that a library calls, the last one first.

    What a library does itself in a task that calls functions is a stage of its name. Coroutines share one
    thread: what they compute is not known.
    """
    awaited, steps, locks = analysis.kept.awaited, len(analysis.kept), locks_of(analysis)
    waited: dict[tuple[str, bool], Counter[str]] = defaultdict(Counter)
    found: dict[tuple[str, bool], tuple[list[Columns], list[Times], list[Columns]]] = {}
    for process in analysis.rank.processes:
        spans = process.spans[process.spans["kind"] == KIND_CALLBACK]
        if not len(spans):
            continue
        own_ns, inside = _own_time(spans)
        for number in distinct(spans["name"]).tolist():
            chosen = spans["name"] == number
            name = process.texts.get(number, "") or library
            known = found.setdefault((name, process is analysis.rank.main), ([], [], []))
            known[0].append(spans[chosen])
            known[1].append(own_ns[chosen])
            known[2].append(spans[np.isin(inside, np.flatnonzero(chosen))])
            for lock, locked in locks.items():
                own_wait_ns = _waited_ns(locked, process.pid, known[0][-1], known[2][-1])
                waited[name, process is analysis.rank.main][lock] += own_wait_ns
    stages: list[tuple[int, PipelineStage]] = []
    for (name, in_main), (of_all, own, within) in found.items():
        spans, own_ns = Columns.joined(of_all), np.concatenate(own)
        starts, ends = bounds(spans)
        measured = (starts < end_ns) & (ends > start_ns)
        starts, ends, spans, own_ns = starts[measured], ends[measured], spans[measured], own_ns[measured]
        if not len(spans) or not own_ns.sum():
            continue
        waits = awaited["wait_start_ns"], awaited["delivered_ns"]
        waited_ns = int(Coverage(starts, ends).within(*waits).sum())
        waited_ns -= int(Coverage(*bounds(Columns.joined(within))).within(*waits).sum())
        inside_ns = np.minimum(ends, end_ns) - np.maximum(starts, start_ns)
        busy_ns = float((inside_ns * own_ns / np.maximum(ends - starts, 1)).sum())
        timed = bool((spans["cpu_ns"] >= 0).all())
        of = "coroutines" if not timed else "threads" if in_main else "processes"
        stage = PipelineStage(
            name=name,
            makers=_most_at_once(starts, ends),
            of=of,
            busy=busy_ns / (end_ns - start_ns),
            items=len(spans),
            item_ms=int(own_ns.sum()) / len(spans) / 1e6,
            on_cpu_fraction=min(1.0, int(spans["cpu_ns"].sum()) / int((ends - starts).sum()))
            if timed
            else None,
            locks_ms={lock: ns / len(spans) / 1e6 for lock, ns in waited[name, in_main].items() if ns},
            puts=library,
            wait_ms=max(0, waited_ns) / steps / 1e6,
        )
        stages.append((int(ends.min()), stage))
    return [stage for _, stage in sorted(stages, key=lambda each: -each[0])][:_MOST_STAGES]


def _waited_ns(locked: Locked, pid: int, calls: Columns, within: Columns) -> int:
    """Sum up the waits for a lock in the calls of a function, but for those in others `within` them."""
    mine = locked.maker >> 32 == pid
    starts, tids = locked.start_ns[mine], locked.maker[mine] & _TID
    inside = holder(calls, starts, tids) >= 0
    if len(within):
        inside &= holder(within, starts, tids) < 0
    return int(locked.waited_ns[mine][inside].sum())


def _own_time(spans: Columns) -> tuple[Times, Times]:
    """How long each call was in no other call of its thread, in ns; the row of the one that holds it (-1)."""
    own_ns, inside = spans["duration_ns"].copy(), np.full(len(spans), -1)
    rows = np.flatnonzero(spans["cpu_ns"] >= 0)  # coroutines overlap, and hold none
    before: Times | None = None
    while len(rows):
        level = outermost(spans[rows], np.ones(len(rows), np.bool_))
        now = rows[level]
        if before is not None:
            of = holder(spans[before], spans["start_ns"][now], spans["tid"][now])
            held = of >= 0
            inside[now[held]] = before[of[held]]
            np.subtract.at(own_ns, before[of[held]], spans["duration_ns"][now[held]])
        before, rows = now, rows[~level]
    return np.maximum(own_ns, 0), inside


def _most_at_once(starts: Times, ends: Times) -> int:
    changes = np.concatenate((np.ones(len(starts), np.int64), np.full(len(ends), -1)))
    order = np.lexsort((changes, np.concatenate((starts, ends))))
    return int(np.cumsum(changes[order]).max())


def with_settings(analysis: RankAnalysis, stages: list[PipelineStage]) -> list[PipelineStage]:
    """Add where each stage's function is, how many may work at once, and what sets that.

    Several lines that set it differently say nothing: which of them made these batches is not known.
    """
    told = [record for process in analysis.rank.processes for record in process.of_type(Stage)]
    # In a worker the library sets what it was given anew.
    of_main = analysis.rank.main.of_type(Stage)
    for_all = _together([each for each in of_main if not each.name and each.setting])
    shared = sum(stage.busy for stage in stages if stage.of != "coroutines")
    found = []
    for stage in stages:
        own = [each for each in told if each.name == stage.name and each.name]
        site = next((each.site for each in own if each.site), None)
        limit = _only([each for each in of_main if each.name == stage.name and each.name and each.setting])
        makers = stage.makers
        if limit is not None and 0 < limit.value < _BEYOND * stage.busy:
            limit = None  # several datasets have it at once: another setting says how many
        if limit is not None and limit.value > 0:
            makers = limit.value
        if for_all is not None and stage.of != "coroutines" and for_all[0].library == stage.puts:
            few = for_all[1] if for_all[1] > 0 else makers
            if limit is None or limit.value < 0 or (few < makers and shared >= _FULL * few):
                limit, makers = for_all[0], few
        found.append(
            replace(
                stage,
                makers=max(makers, 1),
                site=shown_site(analysis, site) or stage.site,
                setting=limit.setting if limit is not None else None,
                setting_value=limit.value if limit is not None and limit.value >= 0 else None,
                set_at=shown_site(analysis, None if limit is None else limit.set_at),
            )
        )
    return found


def _together(records: list[Stage]) -> tuple[Stage, int] | None:
    """Return the last setting for all functions, and how many calls work at once by all of these."""
    last: Stage | None = None
    at_once = 1
    for setting in dict.fromkeys(each.setting for each in records):
        last = _only([each for each in records if each.setting == setting])
        if last is None:
            return None
        at_once = at_once * last.value if at_once > 0 and last.value > 0 else -1
    return None if last is None else (last, at_once)


def _only(records: list[Stage]) -> Stage | None:
    known = {(each.setting, each.value, each.set_at): each for each in records}
    return next(iter(known.values())) if len(known) == 1 else None


def shown_site(analysis: RankAnalysis, site: str | None) -> str | None:
    """Write a function's or a setting's line as paths are shown."""
    if not site:
        return None
    file, _, line = site.rpartition(":")
    return f"{analysis.session.paths.shown(file)}:{line}"
