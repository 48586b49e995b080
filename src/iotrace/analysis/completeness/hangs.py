"""What hung in a run, of all its hosts, as plain data."""

from __future__ import annotations

from iotrace.analysis.rank import SessionAnalysis
from iotrace.analysis.results import HangInfo, HungProcess
from iotrace.session.hangs import Hang, joined
from iotrace.sources.session import Session


def hangs_in(analysis: SessionAnalysis) -> list[HangInfo]:
    """List what samplers told of processes that hang, those of several hosts as one."""
    session = analysis.session
    hosts = {rank.number: rank.main.host for rank in session.ranks if rank.numbered}
    return [_result(session, each) for each in joined(analysis.hangs, hosts)]


def _result(session: Session, hang: Hang) -> HangInfo:
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
