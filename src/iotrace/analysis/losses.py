"""What a session does not hold, why, and what would help: told, never passed over."""

from __future__ import annotations

from iotrace.analysis.batches import loaders_of
from iotrace.session import names
from iotrace.session.manifest import NotCaptured
from iotrace.sources.records import (
    OwnLog,
    Process,
    Produced,
    Tick,
    TorchProgram,
    TorchProgramTrace,
    TorchWindow,
    Worker,
)
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
    for rank in session.ranks:
        what = f"part of the torch.profiler traces of rank {rank.number}"
        found += [NotCaptured(what, problem) for problem in rank.main.windows.problems]
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
    found = list(dict.fromkeys(item for launch in session.launches for item in launch.manifest.not_captured))
    if not session.processes:
        found.append(
            NotCaptured(
                "the program's processes",
                "no Python process of the command could load the agent",
                "run it by a Python >= 3.10 started without -S and without env -i",
            )
        )
    elif not any(loaders_of(rank) for rank in session.ranks):
        found.append(NotCaptured("steps and data wait", "no torch.utils.data.DataLoader was iterated", ""))
    if session.posix_on and not session.calls.pids:
        found.append(NotCaptured("posix", "no process of the command left a file of dftracer's"))
    found += _after_own_logs(session)
    found += _unseen_workers(session)
    found += _untraced_compute(session)
    if session.accelerators:
        found.append(NotCaptured("gpu", "this version does not read NVML", ""))
    for launch in session.launches:
        if launch.outcome is None:
            whose = (
                f" of task {launch.manifest.task} on {launch.manifest.host}" if launch.manifest.task else ""
            )
            why = "the launcher did not see the end of the command, or it still runs"
            found.append(NotCaptured(f"the exit code{whose}", why))
    return found + losses(session)


def _after_own_logs(session: Session) -> list[NotCaptured]:
    """Processes that used dftracer themselves, and ended it: it traces no call after that."""
    return [
        NotCaptured(
            f"POSIX calls of {_name(process)} after it ended its own dftracer log",
            "dftracer traces nothing more in a process that has called finalize()",
            "call finalize() at the end of the program",
        )
        for process in session.processes
        if session.posix_on and any(log.ended for log in process.of_type(OwnLog))
    ]


def _untraced_compute(session: Session) -> list[NotCaptured]:
    """Ranks without a trace of torch's profiler, and why; windows that were cut short or lost."""
    if session.manifest.torch.get(names.TORCH_STEPS, names.OFF) == names.OFF:
        return [NotCaptured("compute", "torch.profiler was switched off", "leave --torch-steps off away")]
    found = []
    for rank in session.ranks:
        windows = rank.main.of_type(TorchWindow)
        programs = rank.main.of_type(TorchProgram)
        kept = [trace for trace in rank.main.of_type(TorchProgramTrace) if trace.path]
        what = f"compute of rank {rank.number}"
        if any(window.event == "exported" for window in windows) or kept:
            continue
        errors = [window.why for window in windows if window.event == "error"]
        if programs:
            why = f"the program profiles itself ({programs[0].what}) and exported no trace that could be kept"
            found.append(NotCaptured(what, why, "have it call export_chrome_trace"))
        elif errors:
            found.append(NotCaptured(what, f"torch's profiler failed: {errors[0]}"))
        elif any(window.event == "active" for window in windows):
            found.append(NotCaptured(what, "the program died while torch's profiler recorded"))
        elif loaders_of(rank):
            why = "the training loader delivered too few batches for a window of torch.profiler"
            found.append(NotCaptured(what, why, "begin it sooner, as in --torch-steps 1:1:3"))
    return found


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
                    "their processes could not load the agent",
                    "start workers with an interpreter that has iotrace-agent installed",
                )
            )
    return found
