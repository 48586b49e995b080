"""Whether calls that train without torch, such as ``partial_fit``, are turns of a loop that feeds itself.

What the loop does between two of them is its wait for input where it does hardly anything else there.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from iotrace.analysis.intervals import Times, holding
from iotrace.analysis.loop.deliveries import FIELDS, Deliveries, LoaderRun, Pass
from iotrace.analysis.results import ASKS_WITHIN
from iotrace.analysis.table import NONE
from iotrace.session import names
from iotrace.sources.columns import Columns
from iotrace.sources.records import IteratorStart, LoopStacks, StepCall
from iotrace.sources.session import Rank

_FEWEST = 3  # turns
_FEWEST_SAMPLES = 50
_MOST = 0.5  # of the turns: what follows more of them is a part of a turn
_ELSE = 0.01  # of the loop's samples: so much beside its input


def turns_of(rank: Rank, first: int = 0) -> tuple[list[LoaderRun], str]:
    """Make a source of what the loop does between its calls; say why that is no wait, unless it is.

    Sources are numbered from `first` on.

    A loop may make several such calls in a turn: the first of those that it makes most often begins it. Where
    none trains, those that compute do; else they evaluate, several of them behind each other.
    """
    rows, main = rank.main.rows(names.TURN_ROW), rank.main
    sites = {each.site: each for each in main.of_type(StepCall)}
    rows = rows[np.isin(rows["site"], np.array([*sites], np.int64))]
    site, why = _site(rows, sites)
    if site is None:
        return [], why
    starts, ends = (main.clock.times_to_session_ns(rows[field]) for field in ("start_ns", "end_ns"))
    since = np.append(starts[:1], ends[:-1])
    own = np.flatnonzero(rows["site"] == site.site)
    source = _source(rank, first, site, since[own], starts[own], np.zeros(len(own), np.int64))
    found = [source]
    for number in np.unique(rows["site"]).tolist() if site.kind == "trains" else ():
        calls = np.flatnonzero(rows["site"] == number)
        passes = np.searchsorted(own, calls)
        several = passes[1:][passes[1:] == passes[:-1]]
        if sites[number].kind == "computes" and len(several) and len(np.unique(several)) <= _MOST * len(own):
            calls, passes = calls[np.isin(passes, several)], passes[np.isin(passes, several)]
            at = first + len(found)
            found.append(_source(rank, at, sites[number], since[calls], starts[calls], passes, 0))
    last = ends[-1:] if own[-1] == len(rows) - 1 else starts[own[-1] + 1 :][:1]
    loop = int(starts[own[0]]), int(last[0])
    why, called = _why_no_wait(rank, site, since[own][1:], starts[own][1:], loop)
    if called:
        asked = since[own] + ((starts[own] - since[own]) * called).astype(np.int64)
        found[0] = _source(rank, first, site, asked, starts[own], np.zeros(len(own), np.int64))
    return found, why


def _site(rows: Columns, sites: dict[int, StepCall]) -> tuple[StepCall | None, str]:
    """Choose the calls that begin the turns; say why, where there are calls and none of them does."""
    for kind in ("trains", "computes", "within"):
        of_kind = [number for number, each in sites.items() if each.kind in (kind, "fast")]
        numbers, counts = np.unique(rows["site"][np.isin(rows["site"], of_kind)], return_counts=True)
        if len(numbers) and counts.max() >= _FEWEST:
            site = sites[int(numbers[counts.argmax()])]
            if site.kind != "fast":
                return site, ""
            return (
                None,
                f"to record each call of {site.called} would slow the program down: they come too fast",
            )
    return None, ""


def _source(
    rank: Rank, number: int, site: StepCall, asked_ns: Times, begun_ns: Times, epochs: Times, grad: int = 1
) -> LoaderRun:
    about = IteratorStart(
        iterator=site.site,
        loader=number,
        library=ASKS_WITHIN if site.kind == "within" else "",
        dataset=site.by or site.called,
        workers=0,
        epoch=0,
        generation=0,
        mono_ns=site.mono_ns,
        wrapped=True,
        site=f"{site.file}:{site.feeds[0] if site.feeds else site.line}",
        tid=rank.main.pid,
    )
    return own_source(rank, about, asked_ns, begun_ns, epochs, grad)


def own_source(
    rank: Rank, about: IteratorStart, asked_ns: Times, begun_ns: Times, epochs: Times, grad: npt.ArrayLike
) -> LoaderRun:
    """Make a source of what a thread of the loop does itself, from each of `asked_ns` to `begun_ns`."""
    main, turns, tid = rank.main, len(begun_ns), about.tid or rank.main.pid
    columns: dict[str, npt.ArrayLike] = dict.fromkeys(FIELDS, NONE)
    columns |= dict.fromkeys(("handed_over", "followed_by_backward"), 0)
    columns |= {"number": np.arange(turns), "index": np.arange(turns), "iterator": about.iterator}
    columns |= {"loader": about.loader, "epoch": epochs, "grad": grad}
    columns |= dict.fromkeys(("wait_start_ns", "taken_ns"), asked_ns)
    columns |= dict.fromkeys(("delivered_ns", "prepared_ns"), begun_ns)
    columns |= dict.fromkeys(("tid", "inline_tid"), tid)
    passes = {}
    for epoch in np.unique(epochs).tolist():
        own = np.flatnonzero(epochs == epoch)
        first, last = int(asked_ns[own[0]]), int(begun_ns[own[-1]])
        passes[about.iterator, epoch] = Pass(first, first, last, len(own), None, None, tid)
    return LoaderRun(about.loader, about, Deliveries(Columns(turns, columns), main.texts), passes)


def _why_no_wait(
    rank: Rank, site: StepCall, starts: Times, ends: Times, loop: tuple[int, int]
) -> tuple[str, float]:
    """Say why what lies between the calls is not known to be a wait; empty where it is.

    Also returns the share of it in which the loop still is in the line of the call, and has called already:
    as JAX does where the arrays that a step replaces are freed, which waits for the device.
    """
    if site.kind == "within":
        return (
            f"{site.called} asks for its batches in its compiled step, where TensorFlow alone sees the wait",
            0.0,
        )
    between = f"what the loop does between its calls of {site.called} may be no wait for data"
    if not site.feeds:
        return f"{between}: no line of it makes what the call is given, as far as can be read", 0.0
    times, lines = _lines(rank, site)
    inside = (times >= loop[0]) & (times < loop[1])
    times, lines = times[inside], lines[inside]
    if len(times) < _FEWEST_SAMPLES:
        return f"{between}: it ran too short to tell", 0.0
    idle = lines[holding(starts, ends, times) >= 0]
    called = np.count_nonzero(idle == site.line) if site.line not in site.feeds else 0
    other = idle[~np.isin(idle, np.array([*site.feeds, site.line], np.int64))]
    if len(other) <= _ELSE * len(times):
        return "", called / len(idle) if called > _ELSE * len(times) else 0.0
    numbers, counts = np.unique(other[other > 0], return_counts=True)
    where = f", most in line {numbers[counts.argmax()]}" if len(numbers) else ""
    feeding = int(np.isin(idle, np.array(site.feeds, np.int64)).sum())
    return (
        f"{between}: lines that make its data take {100 * feeding / len(times):.0f} % of the loop, "
        f"others {100 * len(other) / len(times):.0f} %{where}"
    ), 0.0


def _lines(rank: Rank, site: StepCall) -> tuple[Times, Times]:
    """When the loop was sampled, and in which line of its function it was; 0: in none."""
    times: list[int] = []
    lines: list[int] = []
    for record in rank.main.of_type(LoopStacks):
        of_loop = {
            number
            for number, (file, _, first) in enumerate(record.functions)
            if (file, first) == (site.file, site.first_line)
        }
        known = [next((line for at, line in stack if at in of_loop), 0) for stack in record.stacks]
        if record.tid == rank.main.pid and len(record.times_ns) == len(record.numbers):
            times += record.times_ns
            lines += [known[number] if 0 <= number < len(known) else 0 for number in record.numbers]
    return np.array(rank.main.clock.times_to_session_ns(times), np.int64), np.array(lines, np.int64)
