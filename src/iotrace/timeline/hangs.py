"""What kept a run as slices: from the last batch before a hang until it went on, or its command ended."""

from __future__ import annotations

from collections.abc import Sequence

from iotrace.analysis.rank import RankAnalysis
from iotrace.session.hangs import Hang
from iotrace.timeline.model import Slice

_LONGEST_NAME = 120


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
