"""When a rank hung: from its last batch until it went on, or its command ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from iotrace.analysis.rank import RankAnalysis
from iotrace.session.hangs import BlockedProcess, Hang


def hangs_of_rank(
    analysis: RankAnalysis, hangs: Sequence[Hang]
) -> Iterator[tuple[Hang, BlockedProcess, int, int]]:
    """Yield those of `hangs` that the rank was in: what it was in, from when to when in ns of the session."""
    if not hangs:
        return
    session, main = analysis.session, analysis.rank.main
    ends_ns = [each.outcome.ended_ns for each in session.launches if each.outcome is not None]
    for hang in hangs:
        about = [each for each in hang.processes if each.pid == main.pid]
        known = (None, main.host or hang.host)
        own = next((each for each in about if (each.host or hang.host) in known), None)
        if own is None:
            continue
        told_ns = main.clock.to_session_ns(hang.mono_ns)
        end_ns = max([told_ns, *ends_ns])
        if hang.resumed_ns is not None:
            end_ns = main.clock.to_session_ns(hang.resumed_ns)
        yield hang, own, told_ns - hang.waited_ns, end_ns
