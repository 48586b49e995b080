"""What ended a run as slices, each failure and what its command took to end; what kept it, each hang."""

from __future__ import annotations

import math
from collections.abc import Sequence

from iotrace.analysis.failures import shown_until
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import Failure
from iotrace.session.hangs import Hang
from iotrace.timeline.model import Slice, file_label, known

ENDING = "until the command ended"
_LONGEST_NAME = 120


def failure_slices(analysis: RankAnalysis, failed: Sequence[tuple[float, Failure]]) -> list[Slice]:
    """Make slices of those of a session's failures that are of the rank, or of none.

    Of a command that took long to end the rest is a slice of its own: Perfetto shows all of a selected slice.
    """
    found: list[Slice] = []
    behind_ns = end_ns = 0
    for at_ns, failure in failed:
        if failure.rank not in (None, analysis.rank.number) or not math.isfinite(at_ns):
            continue
        about = {"message": failure.message, "at": failure.at, "file": failure.file, "batch": failure.batch}
        args = known(**about, worker=failure.worker, pid=failure.process)
        until_ns, end_ns = shown_until(analysis.session, int(at_ns))
        found.append(Slice(int(at_ns), until_ns, failure_name(failure), "failure", args))
        behind_ns = max(behind_ns, until_ns)
    if behind_ns < end_ns:
        found.append(Slice(behind_ns, end_ns, ENDING, "failure"))
    return found


def failure_name(failure: Failure) -> str:
    """Name a failure by its file, who failed, and how: a narrow slice shows the left of its name."""
    who = "training process" if failure.role == "rank" else failure.role or "process"
    who = f"worker {failure.worker}" if failure.worker is not None else who
    who = f"thread {failure.thread} of {who}" if failure.thread is not None else who
    parts = [*([file_label(failure.file)] if failure.file else []), who, failure.type]
    return f"failed: {' · '.join(parts)}"[:_LONGEST_NAME]


def hang_slices(analysis: RankAnalysis, hangs: Sequence[Hang]) -> list[Slice]:
    """Make a slice of each hang of the rank: from its last batch until it went on, or its command ended."""
    session, main = analysis.session, analysis.rank.main
    ends_ns = [each.outcome.ended_ns for each in session.launches if each.outcome is not None]
    found = []
    for hang in hangs:
        about = [each for each in hang.processes if each.pid == main.pid]
        hosts = (None, main.host) if main.host else (None, hang.host)
        own = next((each for each in about if (each.host or hang.host) in hosts), None)
        if own is None:
            continue
        told_ns = main.clock.to_session_ns(hang.mono_ns)
        end_ns = max([told_ns, *ends_ns])
        if hang.resumed_ns is not None:
            end_ns = main.clock.to_session_ns(hang.resumed_ns)
        args = {str(number): text.strip() for number, text in enumerate(hang.text)}
        name = f"{hang.kind}: {own.text}"[:_LONGEST_NAME]
        found.append(Slice(told_ns - hang.waited_ns, end_ns, name, "hang", dict(args)))
    return found
