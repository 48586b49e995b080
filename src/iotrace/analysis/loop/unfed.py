"""Evaluations that no loader feeds: the loop calls the model without gradients, on data that it takes itself.

Definitions: docs/definitions.md, "Steps".
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from iotrace.analysis.intervals import Times, distinct, grouped, holding
from iotrace.analysis.loop.deliveries import LoaderRun
from iotrace.analysis.wait.hot_lines import Frame, stack_samples
from iotrace.session import names
from iotrace.sources.processes import Process

_FEWEST = 2  # calls of an evaluation, and evaluations of a loop
_MOST = 0.5  # of the steps: what follows more of them is a part of a step, such as a moving average


class Called(msgspec.Struct, frozen=True):
    """Samples of a thread, in order: when, and what function of the program its loop had called; -1: none."""

    times_ns: Times
    functions: Times

    def last_in(self, start_ns: int, end_ns: int, until_ns: int) -> int:
        """When the thread was last seen in the function that it was in between two times; else their end.

        Most samples between them are in it, and no other lies between `end_ns` and that.
        """
        first, last, behind = np.searchsorted(self.times_ns, (start_ns, end_ns, until_ns)).tolist()
        own = self.functions[first:last]
        most = int(np.bincount(own + 1).argmax()) - 1 if len(own) else -1
        if most < 0 or 2 * (own == most).sum() <= len(own):
            return end_ns
        goes_on = int(np.argmin(np.append(self.functions[last:behind] == most, False)))
        return int(self.times_ns[last + goes_on - 1]) if goes_on else end_ns


def called_by(main: Process, tid: int) -> Called:
    """Read which functions of the program a thread's loop had called when its stack was sampled."""
    samples = stack_samples(main, tid)
    numbers: dict[Frame, int] = {}
    # Of a function all lines.
    own = [None if each.own is None else each.own._replace(line=0, since=0) for each in samples.stacks]
    known = [-1 if each is None else numbers.setdefault(each, len(numbers)) for each in own]
    return Called(samples.times, np.array(known, np.int64)[samples.numbers])


def calls_without_gradients(main: Process, tid: int) -> Times:
    """When a thread called a model without gradients, in order; the result has the shape (calls, 2)."""
    numbers = [number for number, text in main.texts.items() if text == names.FORWARD_NO_GRAD]
    own = (main.spans["kind"] == names.KIND_PHASE) & (main.spans["tid"] == tid)
    spans = main.spans[own & np.isin(main.spans["name"], numbers)]
    bounds = np.stack((spans["start_ns"], spans["start_ns"] + spans["duration_ns"]), axis=1)
    return bounds[np.argsort(bounds[:, 0], kind="stable")].astype(np.int64)


def unfed_evaluations(
    cuts_ns: Times,
    rounds_ns: Times,
    calls: Times,
    fed: Sequence[tuple[int, int]],
    loaders: list[LoaderRun],
    called: Called | None = None,
) -> Times:
    """Find the evaluations among `calls`: behind all that a step trains, several calls, in few of the steps.

    Each begins where its step has trained, or where a pass over a loader ended then. It ends with its last
    call, or where the function that makes these was last seen, by `called`: what it makes of the results is a
    part of it, such as images. Calls in `fed`, the passes over loaders that evaluate, are none of these. What
    follows the last cut is in its step. The result has the shape (evaluations, 2).
    """
    nothing = np.empty((0, 2), np.int64)
    if not len(cuts_ns) or not len(calls) or not len(rounds_ns):
        return nothing
    fed_ns = np.array(sorted(fed), np.int64).reshape(-1, 2)
    calls = calls[holding(fed_ns[:, 0], fed_ns[:, 1], calls[:, 0]) < 0]
    step = np.searchsorted(cuts_ns, calls[:, 0], side="right") - 1
    trained = np.searchsorted(rounds_ns, calls[:, 0], side="right")
    until = np.append(np.searchsorted(rounds_ns, cuts_ns[1:], side="right"), len(rounds_ns))
    since = np.searchsorted(rounds_ns, cuts_ns, side="right")
    behind = (step >= 0) & (trained == until[step]) & (trained > since[step])
    calls, step, trained = calls[behind], step[behind], trained[behind]
    if not len(calls):
        return nothing
    _, first, of = grouped(step)
    counts = np.bincount(of)
    many = counts >= _FEWEST
    if many.sum() < _FEWEST or len(distinct(step)) > _MOST * len(cuts_ns):
        return nothing
    last = np.zeros(len(counts), np.int64)
    np.maximum.at(last, of, calls[:, 1])
    begun = rounds_ns[trained[first] - 1]
    ended = [
        each.exhausted_ns[1]
        for loader in loaders
        for each in loader.passes.values()
        if each.exhausted_ns is not None
    ]
    over = np.append(np.iinfo(np.int64).min, np.sort(np.array(ended, np.int64)))
    begun = np.maximum(begun, over[np.searchsorted(over, calls[first, 0], side="right") - 1])
    found = np.stack((begun, last), axis=1)[many]
    if called is not None:
        ends = np.append(cuts_ns[1:], np.iinfo(np.int64).max)[step[first][many]].tolist()
        found[:, 1] = [
            called.last_in(start_ns, end_ns, until_ns)
            for (start_ns, end_ns), until_ns in zip(found.tolist(), ends, strict=True)
        ]
    return found
