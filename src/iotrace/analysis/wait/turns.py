"""Whether workers make samples one after the other, as behind a lock that they share."""

from __future__ import annotations

import numpy as np

from iotrace.analysis.intervals import Times
from iotrace.analysis.loop.deliveries import LoaderRun
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.wait.production import outermost_of
from iotrace.session.names import KIND_CALLBACK, KIND_COLLATE, KIND_ITEM

_FEWEST_ENDS, _ENOUGH_ENDS = 16, 64
_FASTER = 0.6  # of the time that all samples take in turns: what fewer ends show
# Of the quickest sample: of two workers that sleep as long each, one ends sooner behind the other.
_SOON = 0.75
_IN_TURNS, _AT_ONCE = 0.06, 0.15  # of the ends: so many come soon, at most and at least
_AS_USUAL = 0.4  # of the time between two ends: quicker samples tell nothing of the others


def take_turns(analysis: RankAnalysis, run: LoaderRun) -> bool | None:
    """Whether samples of several workers exclude each other: none ends soon behind one of another worker.

    The one that waited has all of its turn left then, which is no shorter than the quickest sample of all.
    Where putting samples together takes longer than making them, that is what is looked at. Where a library
    calls functions of the program in threads, the calls of the one that takes longest are.
    """
    if run.description.library and analysis.has_callbacks:
        return _calls_in_turns(analysis)
    pids = {*run.deliveries.maker(analysis.rank.main.pid)[run.deliveries.made].tolist()}
    makers = [process for process in analysis.rank.processes if process.pid in pids]
    kinds = ([outermost_of(process, kind) for process in makers] for kind in (KIND_ITEM, KIND_COLLATE))
    spans = max(kinds, key=lambda own: sum(int(each["duration_ns"].sum()) for each in own))
    if len(spans) < 2:
        return None
    of = np.repeat(np.arange(len(spans)), [len(items) for items in spans])
    lengths = np.concatenate([items["duration_ns"] for items in spans])
    return in_turns(of, lengths, lengths + np.concatenate([items["start_ns"] for items in spans]))


def _calls_in_turns(analysis: RankAnalysis) -> bool | None:
    main = analysis.rank.main
    calls = main.spans[(main.spans["kind"] == KIND_CALLBACK) & (main.spans["cpu_ns"] >= 0)]
    if not len(calls):
        return None
    took = np.bincount(calls["name"], weights=calls["duration_ns"])
    calls = calls[calls["name"] == took.argmax()]
    return in_turns(calls["tid"], calls["duration_ns"], calls["start_ns"] + calls["duration_ns"])


def in_turns(makers: Times, lengths: Times, ends: Times) -> bool | None:
    """Judge samples by who made them, how long they took and when they ended, in ns; None: it is not told."""
    order = np.argsort(ends, kind="stable")
    apart = np.diff(ends[order])[np.diff(makers[order]) != 0]
    if len(apart) < _FEWEST_ENDS:
        return None
    # Behind a lock that is fair all wait for all others, and none is quick; then ends are evenly apart.
    is_even = np.percentile(apart, 5) >= _SOON * apart.mean()
    # A turn is as long as the quickest sample: it waited for none.
    turn_ns, usual_ns = int(lengths.min()), float(np.percentile(lengths, 1))
    if len(apart) < _ENOUGH_ENDS:
        at_once = int(np.ptp(ends)) < _FASTER * turn_ns * (len(ends) - 1)
        return False if at_once and not is_even else None
    if (apart < _SOON * turn_ns).mean() <= _IN_TURNS and turn_ns >= _AS_USUAL * np.median(apart):
        return True
    return None if is_even or (apart < _SOON * usual_ns).mean() < _AT_ONCE else False
