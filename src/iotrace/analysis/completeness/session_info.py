"""What a report says of the session itself: how it ended, what failed, what hung."""

from __future__ import annotations

from iotrace.analysis.failures import signal_name
from iotrace.analysis.rank import SessionAnalysis
from iotrace.analysis.results import HangInfo, HungProcess, SessionInfo
from iotrace.session.hangs import Hang, joined
from iotrace.sources.session import Session


def session_info(analysis: SessionAnalysis) -> SessionInfo:
    """Sum up a session; what samplers of several hosts told of processes that hang is one."""
    session = analysis.session
    hosts = {rank.number: rank.main.host for rank in session.ranks if rank.numbered}
    return SessionInfo(
        path=str(session.path),
        argv=session.manifest.argv,
        host=session.manifest.host,
        started_ns=session.manifest.started_ns,
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
                stack=each.stack,
                stacks=None if each.stacks is None else str(session.path / each.stacks),
            )
            for each in hang.processes
        ],
    )
