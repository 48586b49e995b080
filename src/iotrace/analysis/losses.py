"""What a session does not hold, why, and what would help: told, never passed over."""

from __future__ import annotations

from iotrace.analysis.batches import loaders_of
from iotrace.analysis.steps import loop_of
from iotrace.session.manifest import NotCaptured
from iotrace.sources.records import Process, Produced, Tick, Worker
from iotrace.sources.session import Session


def losses(session: Session) -> list[NotCaptured]:
    """What was captured in part only, by process."""
    found = []
    for process in session.processes:
        name = _name(process)
        if not process.ended and len(process.records) and _recorded_data(process):
            found.append(
                NotCaptured(
                    f"the end of {name}",
                    "it was killed, or left without its exit handlers: up to 1 s of its records is lost",
                )
            )
        found += [NotCaptured(f"part of {name}", problem) for problem in process.problems]
    found += [NotCaptured("part of posix", problem) for problem in session.calls.problems]
    return found


def _recorded_data(process: Process) -> bool:
    return bool(len(process.spans) or process.of_type(Tick) or process.of_type(Produced))


def _name(process: Process) -> str:
    worker = next(iter(process.of_type(Worker)), None)
    role = f"worker {worker.worker}" if worker else process.identity.role
    return f"{role} (pid {process.pid})"


def not_captured(session: Session) -> list[NotCaptured]:
    """Everything that a reader might expect and not find, losses included."""
    found = list(session.manifest.not_captured)
    if not session.processes:
        found.append(
            NotCaptured(
                "the program's processes",
                "no Python process of the command could load the agent",
                "run it by a Python >= 3.10 started without -S and without env -i",
            )
        )
    found += _unseen_loops(session)
    if session.manifest.posix.on and not session.calls.pids:
        found.append(NotCaptured("posix", "no process of the command left a file of dftracer's"))
    found += _unseen_workers(session)
    found.append(
        NotCaptured("compute", "this version does not record torch.profiler", "use torch.profiler beside it")
    )
    if session.manifest.accelerators:
        found.append(
            NotCaptured(
                "gpu", "this version does not read NVML nor device time: the exposed wait is unknown", ""
            )
        )
    if session.outcome is None:
        found.append(
            NotCaptured("the exit code", "the launcher did not see the end of the command, or it still runs")
        )
    return found + losses(session)


_WRAP = "for batch in iotrace.batches(source)"


def _unseen_loops(session: Session) -> list[NotCaptured]:
    """Loops of which neither a DataLoader nor the program tells enough."""
    loops = [loop_of(rank, loaders_of(rank)) for rank in session.ranks]
    if loops and not any(loop.marked or loop.primary for loop in loops):
        why = "no torch.utils.data.DataLoader was iterated"
        return [NotCaptured("steps and data wait", why, f"wrap the loop's source: {_WRAP}")]
    return [
        NotCaptured(
            f"data wait of rank {rank.number}",
            "its steps are marked by iotrace.step, and nothing tells what its loop takes batches from",
            f"wrap the loop's source: {_WRAP}",
        )
        for rank, loop in zip(session.ranks, loops, strict=True)
        if loop.marked and loop.primary is None
    ]


def _unseen_workers(session: Session) -> list[NotCaptured]:
    found = []
    for rank in session.ranks:
        seen = {process.pid for process in session.processes}
        told = {delivery.pid for loader in loaders_of(rank) for delivery in loader.deliveries if delivery.pid}
        if told - seen:
            pids = ", ".join(map(str, sorted(told - seen)))
            found.append(
                NotCaptured(
                    f"loader workers of rank {rank.number} (pid {pids})",
                    "their processes could not load the agent, or were there before the recording began",
                    "start workers with an interpreter that has iotrace-agent installed",
                )
            )
    return found
