"""What a report says of the session itself: how it ended, what failed, what hung, its hosts' clocks."""

from __future__ import annotations

from iotrace.analysis.failures import signal_name
from iotrace.analysis.rank import SessionAnalysis
from iotrace.analysis.results import ClockInfo, ClockSet, HangInfo, HungProcess, SessionInfo
from iotrace.session.hangs import Hang, joined
from iotrace.session.names import RECORDER
from iotrace.sources.session import Rank, Session


def session_info(analysis: SessionAnalysis) -> SessionInfo:
    """Sum up a session; what samplers of several hosts told of processes that hang is one."""
    session = analysis.session
    hosts = {rank.number: rank.main.host for rank in session.ranks if rank.numbered}
    return SessionInfo(
        path=str(session.path),
        argv=session.manifest.argv,
        host=session.manifest.host,
        started_ns=session.manifest.started_ns,
        commit=session.manifest.commit or None,
        exit_code=session.exit_code,
        signal=None if session.signal is None else signal_name(session.signal),
        oom_kills=session.oom_kills,
        failures=[failure for _, failure in analysis.timed_failures],
        state=session.state,
        ended=session.ended,
        complete=session.ended and not analysis.data_loss,
        iotrace_version=session.manifest.iotrace_version,
        hangs=[_hang(session, each) for each in joined(analysis.hangs, hosts)],
    )


def _hang(session: Session, hang: Hang) -> HangInfo:
    return HangInfo(
        kind=hang.kind,
        waited_seconds=hang.waited_ns / 1e9,
        lasted_seconds=None if hang.lasted_ns is None else hang.lasted_ns / 1e9,
        resumed=hang.resumed,
        text=[line.strip() for line in hang.text],
        processes=[
            HungProcess(
                pid=each.pid,
                role=each.role,
                rank=each.rank,
                host=each.host or hang.host,
                text=each.text,
                state=each.state,
                call=each.call,
                file=each.file,
                collective=each.collective or None,
                of=each.of,
                stack=each.stack,
                stacks=None if each.stacks is None else str(session.path / each.stacks),
            )
            for each in hang.processes
        ],
    )


def clock_bound_ns(session: Session, rank: Rank) -> int | None:
    """Find how far the rank's times are from the reference's; None where its host was compared with none."""
    main = rank.main
    if main.clock_domain == session.clocks.reference:
        return main.clock.bound_ns
    link = session.clocks.links.get(main.clock_domain)
    return None if link is None else link.bound_ns + main.clock.bound_ns


def clocks_of(session: Session) -> list[ClockInfo]:
    """List what is known of each host's clock beside the reference's."""
    clocks = []
    for host in dict.fromkeys(process.host for process in session.processes):
        own = [process for process in session.processes if process.host == host]
        others = {process.clock_domain for process in own} - {session.clocks.reference}
        links = [session.clocks.links.get(domain) for domain in sorted(others)]
        known = [link for link in links if link is not None]
        link = max(known, key=lambda each: each.bound_ns, default=None)
        related = len(known) == len(links)
        why = next(
            (session.clocks.unrelated[each] for each in others if each in session.clocks.unrelated), None
        )
        clock = own[0].clock
        off_ns = link.bound_ns if link is not None else 0
        bounds_ns = {"agent": off_ns + max(process.clock.bound_ns for process in own)}
        if any(len(session.calls_of(process)) for process in own):
            if session.posix_by == RECORDER:
                bounds_ns["recorder"] = bounds_ns["agent"]  # by the same clock
            else:  # whole microseconds of CLOCK_REALTIME
                unsure_ns = max(session.calls.unsure_ns.get(process.identity.node, 0) for process in own)
                bounds_ns["dftracer"] = off_ns + 1000 + unsure_ns
        clocks += [
            ClockInfo(
                source=source,
                host=host,
                kind=("exact" if link is None else link.kind) if related else "assumed",
                offset_ns=0 if link is None else link.map.shift_ns,
                drift_ppb=None if link is None else link.map.drift_ppb,
                bound_ns=bound_ns if related else None,
                why=link.why if link is not None else why,
                set=[ClockSet(at_ns=clock.at_ns(step), by_ns=step.by_ns) for step in clock.steps],
            )
            for source, bound_ns in bounds_ns.items()
        ]
    return clocks
