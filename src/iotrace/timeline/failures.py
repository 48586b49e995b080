"""What ended a run as slices: from each failure to the end of its command."""

from __future__ import annotations

import math

from iotrace.analysis.failures import timed_failures
from iotrace.analysis.rank import RankAnalysis, SessionAnalysis
from iotrace.analysis.results import Failure
from iotrace.timeline.model import Slice, file_label, known

_LONGEST_NAME = 120


def failure_slices(analysis: RankAnalysis) -> list[Slice]:
    """Make a slice of each failure of the rank: from then on to the end of its command."""
    session, rank = analysis.session, analysis.rank
    ends_ns = [each.outcome.ended_ns for each in session.launches if each.outcome is not None]
    found = []
    if "timed_failures" not in vars(session):  # they are of all ranks, each of which asks
        vars(session)["timed_failures"] = timed_failures(SessionAnalysis(session))
    for at_ns, failure in vars(session)["timed_failures"]:
        if failure.rank not in (None, rank.number) or not math.isfinite(at_ns):
            continue
        about = {"message": failure.message, "at": failure.at, "file": failure.file, "batch": failure.batch}
        args = known(**about, worker=failure.worker, pid=failure.process)
        end_ns = max([int(at_ns), *ends_ns])
        found.append(Slice(int(at_ns), end_ns, failure_name(failure), "failure", args))
    return found


def failure_name(failure: Failure) -> str:
    """Name a failure by its file, who failed, and how: a narrow slice shows the left of its name."""
    who = "training process" if failure.role == "rank" else failure.role or "process"
    who = f"worker {failure.worker}" if failure.worker is not None else who
    who = f"thread {failure.thread} of {who}" if failure.thread is not None else who
    parts = [*([file_label(failure.file)] if failure.file else []), who, failure.type]
    return f"failed: {' · '.join(parts)}"[:_LONGEST_NAME]
