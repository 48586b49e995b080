"""Forward, backward and optimizer of the measured steps: whose an instant is, and what stays unknown."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from iotrace.analysis.loop.step_phases import StepPhases, collectives_outside_phases, per_step_ms, step_phases
from iotrace.analysis.rank import RankAnalysis
from iotrace.session.names import (
    BACKWARD,
    CLOSURE,
    FORWARD,
    FORWARD_NO_GRAD,
    KIND_PHASE,
    KIND_REDUCTION,
    KIND_TRAINER,
    OPTIMIZER,
)
from iotrace.sources.processes import SPAN_DTYPE
from iotrace.sources.records import Identity
from iotrace.sources.session import Rank
from tests.support.rows import Exposed, Line, PhaseOnDevice, process_of
from tests.unit.test_loop import MAIN, MS, OTHER, Program

_TRAINING_STEP = "[Strategy]SingleDeviceStrategy.training_step"
_ALL_REDUCE = "all_reduce"
_NAMES = [_ALL_REDUCE, FORWARD, FORWARD_NO_GRAD, BACKWARD, OPTIMIZER, CLOSURE, _TRAINING_STEP]
_KINDS = {_TRAINING_STEP: KIND_TRAINER, _ALL_REDUCE: KIND_REDUCTION}
_STEPS = 5
Phase = tuple[str, float, float]  # its name, when it begins and ends in the step, in ms


def figures(
    *steps: list[Phase],
    events: str = "a.......t",
    wait_ms: float | None = 1,
    tid: int = MAIN,
    device_ms: dict[str, float] | None = None,
    exposed_ms: float | None = 0.5,
    waited: list[float] | None = None,
) -> StepPhases:
    """The figures of steps of 10 ms, of which four are measured; those of `steps` by turns are in them."""
    program = Program()
    program.play(events * (_STEPS + 1))
    rows = []
    records: list[Line] = []
    for number in range(_STEPS + 1):
        base_ns = (10 * number + 1) * MS  # the delivery
        for name, start_ms, end_ms in steps[number % len(steps)]:
            start_ns, end_ns = (round(base_ns + at_ms * MS) for at_ms in (start_ms, end_ms))
            row = dict.fromkeys(SPAN_DTYPE.names or (), -1)
            row.update(start_ns=start_ns, duration_ns=end_ns - start_ns)
            row.update(tid=tid, name=_NAMES.index(name))
            row.update(kind=_KINDS.get(name, KIND_PHASE))
            rows.append(tuple(row.values()))
            if device_ms is not None and number != 2:
                records.append(PhaseOnDevice(tid, start_ns, round(device_ms[name] * MS)))
    if device_ms is not None and exposed_ms is not None:
        records += [Exposed(0, 0, number, round(exposed_ms * MS)) for number in range(_STEPS + 1)]
    main = process_of(
        Identity(format=1, pid=MAIN, ppid=0, role="main", clock=(0, 0, 1)),
        [*program.records, *records],
        np.array(rows, SPAN_DTYPE),
        dict(enumerate(_NAMES)),
    )
    session: Any = None
    analysis = RankAnalysis(session, Rank(0, None, 0, main, []))
    if waited is not None:
        waited.append(per_step_ms(analysis, collectives_outside_phases(analysis)))
    return step_phases(analysis, wait_ms)


def means(found: StepPhases) -> list[float | None]:
    ms = found.means_ms
    return [ms.forward, ms.backward, ms.optimizer, ms.other]


ORDINARY: list[Phase] = [(FORWARD, 0, 2), (BACKWARD, 2, 5), (OPTIMIZER, 6, 7)]


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([ORDINARY], [2, 3, 1, 3]),
        ([[(FORWARD, 0, 1), (BACKWARD, 1, 2), *ORDINARY[1:]]], [1, 4, 1, 3]),  # accumulation
        ([ORDINARY[:2], ORDINARY[:2], ORDINARY], [2, 3, 1 / 4, 3.75]),  # ... over steps
        ([[(FORWARD, 1, 3), (BACKWARD, 3, 6), (OPTIMIZER, 0, 8)]], [2, 3, 3, 1]),  # a closure
        # Of a closure that also computes a loss, that is none of the optimizer's, nor is Lightning's step.
        ([[(FORWARD, 1, 3), (BACKWARD, 4, 6), (CLOSURE, 0, 7), (OPTIMIZER, 0, 8)]], [2, 2, 1, 4]),
        ([[(_TRAINING_STEP, 1, 4), (BACKWARD, 4, 6), (CLOSURE, 0, 7), (OPTIMIZER, 0, 8)]], [3, 2, 1, 3]),
        ([[(FORWARD, 0, 4), (BACKWARD, 1, 2), (BACKWARD, 4, 6), (OPTIMIZER, 6, 7)]], [3, 3, 1, 2]),
        ([[*ORDINARY, (FORWARD, 8.5, 10)]], [2.5, 3, 1, 2.5]),  # what lies in a data wait is the wait's
        ([[*ORDINARY, (FORWARD_NO_GRAD, 7, 9)]], [2, 3, 1, 3]),  # a teacher
    ],
)
def test_each_instant_is_counted_once(steps: list[list[Phase]], expected: list[float]) -> None:
    found = figures(*steps)
    assert means(found) == pytest.approx(expected)
    assert (found.source, found.unknown_why) == ("host", None)
    assert sum(expected) + 1 == pytest.approx(10)


def test_waits_in_collectives_count_outside_of_phases_and_data_waits() -> None:
    """From within the backward pass to behind it; then one that lasts into the next data wait."""
    waited: list[float] = []
    found = figures([*ORDINARY, (_ALL_REDUCE, 4, 5.5), (_ALL_REDUCE, 8, 9.5)], waited=waited)
    assert waited == pytest.approx([1.5])
    assert means(found) == pytest.approx([2, 3, 1, 3])
    figures(ORDINARY, waited=waited)
    assert waited[1:] == [0.0]


def test_what_was_not_seen_is_unknown() -> None:
    unseen = "backward passes came without a call of a module that could be seen"
    found = figures(ORDINARY[1:])
    assert (means(found), found.unknown_why) == ([None, 3, 1, None], unseen)
    found = figures(ORDINARY, ORDINARY[1:])
    assert (means(found), found.unknown_why) == ([1, 3, 1, 4], None)  # two steps are few
    found = figures(ORDINARY, ORDINARY[1:], ORDINARY[1:])
    assert (means(found), found.unknown_why) == ([None, 3, 1, None], unseen)
    found = figures(ORDINARY[:2])
    assert means(found) == [2, 3, None, None]
    assert found.unknown_why == "no optimizer of torch.optim made a step in a measured step"
    found = figures(ORDINARY, wait_ms=None)
    assert (means(found), found.unknown_why) == ([2, 3, 1, None], "the data wait is not known")


def test_phases_of_another_thread_are_none_of_the_loops() -> None:
    found = figures(ORDINARY, tid=OTHER)
    assert (means(found), found.source) == ([None] * 4, None)
    assert found.unknown_why is not None
    assert "on the training thread" in found.unknown_why


def test_a_loop_that_only_infers_has_a_forward_and_the_rest() -> None:
    found = figures([(FORWARD_NO_GRAD, 0, 4)], events="a.........")
    assert (means(found), found.unknown_why) == ([4, None, None, 5], None)


@pytest.mark.parametrize("closure", [False, True])
def test_the_times_of_the_device_are_those_of_steps_that_know_all_of_theirs(closure: bool) -> None:
    """The events themselves are those of a stand-in: there is no device here."""
    device_ms = {FORWARD: 2.5, BACKWARD: 4.0, OPTIMIZER: 7.5 if closure else 1.0}
    program: list[Phase] = [(OPTIMIZER, 0, 7), (FORWARD, 1, 3), (BACKWARD, 3, 6)] if closure else ORDINARY
    found = figures(program, device_ms=device_ms)
    assert (means(found), found.source) == ([2.5, 4, 1, 2], "device_events")
    found = figures(program, device_ms=device_ms, exposed_ms=None)
    assert means(found) == [2.5, 4, 1, None]
    assert found.unknown_why == "how long the accelerator stood idle in the data wait is not known"
