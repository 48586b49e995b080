"""Lightning's phases in time: sanity check, training, validation, test, predict."""

from __future__ import annotations

import msgspec

from iotrace.analysis.loop.deliveries import PHASES
from iotrace.session import names
from iotrace.sources.records import IteratorStart, TrainerRun
from iotrace.sources.session import Rank


class Phase(msgspec.Struct, frozen=True):
    """A stretch ``[start_ns, end_ns)`` of one phase, in the session's time."""

    name: str
    start_ns: int
    end_ns: int


def phases_of(rank: Rank) -> list[Phase]:
    """Find the phases of a rank, in order; empty where no trainer names them.

    A phase begins where a loader is first asked in it. It ends where the next one begins, or with the
    trainer's run, or, where the end of that was not seen, with its last batch.
    """
    real = rank.main.clock.to_session_ns
    asked: list[tuple[int, int, str]] = []
    for record in rank.main.of_type(IteratorStart):
        if record.phase:
            asked.append((record.mono_ns, record.mono_ns, PHASES.get(record.phase, record.phase)))
    batches = rank.main.rows(names.BATCH_ROW)
    named = {number: PHASES.get(text, text) for number, text in rank.main.texts.items() if text}
    columns = (batches[field].tolist() for field in ("wait_start_ns", "delivered_ns", "phase"))
    asked += [
        (start, end, named[phase]) for start, end, phase in zip(*columns, strict=True) if phase in named
    ]
    run_ends = sorted(run.end_ns for run in rank.main.of_type(TrainerRun))
    found: list[Phase] = []
    start_ns = last_ns = 0
    name: str | None = None
    for mono_ns, end_ns, phase in sorted(asked):
        run_end = next((end for end in run_ends if name is not None and last_ns <= end <= mono_ns), None)
        if phase != name or run_end is not None:
            if name is not None:
                found.append(Phase(name, real(start_ns), real(mono_ns if run_end is None else run_end)))
            start_ns, name = mono_ns, phase
        last_ns = end_ns
    if name is not None:
        run_end = next((end for end in run_ends if end >= last_ns), last_ns)
        found.append(Phase(name, real(start_ns), real(run_end)))
    return found
