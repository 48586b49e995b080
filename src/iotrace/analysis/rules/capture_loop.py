"""What was not recorded of a loop and of its compute: why, and what would record it."""

from __future__ import annotations

from collections.abc import Iterator

from iotrace.analysis.results import MEMORY_BY_OPERATOR
from iotrace.analysis.rules.facts.capture import ANOTHER_DISK, CaptureFacts
from iotrace.analysis.rules.model import Finding, fires, rule, silent

_WRAP = "for batch in iotrace.batches(source)"
_STEPS = "steps and data wait"


@rule("IO064", "profiler-off", "capture")
@fires({"profiler_off": True})
@silent({"profiler_missed": "its window did not open"})
def profiler_off(facts: CaptureFacts) -> Iterator[Finding]:
    """Kernels and operators were not recorded: torch.profiler was switched off.

    Remedy: run it without `--torch-steps off`.
    """
    if facts.profiler_off:
        why, remedy = "torch.profiler was switched off", "run it without --torch-steps off"
        yield Finding(text="compute", why=why, remedy=remedy)


@rule("IO065", "program-profiles", "capture")
@fires({"whose": "0", "program_profiles": "torch.profiler", "program_exports": True})
@silent({"whose": "0", "profiler_error": "CUPTI is busy"})
def program_profiles(facts: CaptureFacts) -> Iterator[Finding]:
    """The program profiles itself, so iotrace did not, and it left no trace that could be kept.

    Remedy: have it call export_chrome_trace.
    """
    if facts.program_profiles is not None:
        own = facts.program_profiles
        why = f"the program profiles itself ({own}) and exported no trace that could be kept"
        remedy = "have it call export_chrome_trace" if facts.program_exports else ""
        yield Finding(text=f"compute of rank {facts.whose}", why=why, remedy=remedy)


@rule("IO066", "profiler-failed", "capture")
@fires(
    {"whose": "0", "profiler_error": "CUPTI is busy"},
    {"whose": "0", "profiler_error": "less than 256 MiB are free", "full_disk": "/scratch/run"},
)
@silent({"whose": "0", "program_profiles": "torch.profiler"})
def profiler_failed(facts: CaptureFacts) -> Iterator[Finding]:
    """torch's profiler failed in a rank, or the disk of the session had no room for its trace.

    Remedy: free some space, or record to another disk with -o.
    """
    if facts.profiler_error is None:
        return
    why, remedy = f"torch's profiler failed: {facts.profiler_error}", ""
    if facts.full_disk:
        why = (
            f"the disk of {facts.full_disk} has no room for a trace of torch.profiler: {facts.profiler_error}"
        )
        remedy = ANOTHER_DISK
    yield Finding(text=f"compute of rank {facts.whose}", why=why, remedy=remedy)


@rule("IO067", "profiler-saw-no-step", "capture")
@fires({"whose": "0", "profiler_missed": "its window opens at a batch, and the loop took none"})
@silent({"profiler_off": True})
def profiler_saw_no_step(facts: CaptureFacts) -> Iterator[Finding]:
    """The window of torch.profiler did not open, or held no step that trained.

    Remedy: open it sooner, by `--torch-steps`.
    """
    if facts.profiler_missed is not None:
        what = f"compute of rank {facts.whose}"
        yield Finding(text=what, why=facts.profiler_missed, remedy=facts.remedy)


@rule("IO075", "device-not-profiled", "capture")
@fires({"whose": "0", "device_spared": True})
@silent({"whose": "0", "profiler_missed": "its window did not open"})
def device_not_profiled(facts: CaptureFacts) -> Iterator[Finding]:
    """torch's profiler recorded only the host, not the device.

    With Intel's devices and ranks on several nodes, a profiler that records the device is known to hang in
    collectives (PTI before oneAPI 2025.1.3).

    Remedy: `--torch-activities all` records the device, too.
    """
    if facts.device_spared:
        why = (
            "torch's profiler recorded only the host: with Intel's devices and ranks on several nodes it "
            "is known to hang in collectives (PTI before oneAPI 2025.1.3)"
        )
        yield Finding(text=f"device of rank {facts.whose}", why=why, remedy="--torch-activities all")


@rule("IO068", "memory-by-operator", "capture")
@fires({"no_memory_events": True})
@silent({"profiler_off": True})
def memory_by_operator(facts: CaptureFacts) -> Iterator[Finding]:
    """torch.profiler recorded without the memory of operators.

    Remedy: `--torch-options memory`.
    """
    if facts.no_memory_events:
        why = "torch.profiler recorded without it"
        yield Finding(text=MEMORY_BY_OPERATOR, why=why, remedy="--torch-options memory")


@rule("IO069", "no-snapshot", "capture")
@fires({"whose": "0", "snapshot": "the program was ended while torch recorded it"})
@silent({"whose": "0", "snapshot": None})
def no_snapshot(facts: CaptureFacts) -> Iterator[Finding]:
    """`--cuda-snapshot` wrote no snapshot of a rank, or less than was asked for."""
    if facts.snapshot is not None:
        what = f"the snapshot of device memory of rank {facts.whose}"
        yield Finding(text=what, why=facts.snapshot, remedy=facts.remedy)


@rule("IO071", "no-loop-seen", "capture")
@fires({"loop_unseen": True, "reason": "no loader was iterated"}, {"failed_before": True, "exit_code": 1})
@silent({"whose": "0", "wait_unknown": "two loops at once"})
def no_loop_seen(facts: CaptureFacts) -> Iterator[Finding]:
    """No loop over batches was seen: no loader delivers them, or the command failed before one did.

    Remedy: where there is a loop, wrap its source by `iotrace.batches`.
    """
    if facts.failed_before:
        why = f"the command failed (exit code {facts.exit_code}) before a batch was delivered"
        yield Finding(text=_STEPS, why=why)
    elif facts.loop_unseen:
        remedy = f"where there is a loop, wrap its source: {_WRAP}"
        yield Finding(text=_STEPS, why=facts.reason, remedy=remedy)


@rule("IO072", "wait-not-known", "capture")
@fires(
    {"whose": "rank 0", "wait_unknown": "two loops at once"},
    {"whose": "rank 0", "wait_unknown": "fit asks in its step", "remedy": "a loop of train_on_batch"},
    {"whose": "rank 0", "no_batch": True},
)
@silent({"loop_unseen": True})
def wait_not_known(facts: CaptureFacts) -> Iterator[Finding]:
    """The data wait of a rank is unknown: the recording does not show its steps.

    Remedy: wrap the loop's source by `iotrace.batches`. Where a library's own loop asks within its step, as
    Keras's `fit` does, there is none to wrap: a loop of `train_on_batch` asks outside.
    """
    name = f"data wait of {facts.whose}"
    if facts.no_batch:
        yield Finding(text=name, why="its loader delivered no batch")
    elif facts.wait_unknown is not None:
        remedy = facts.remedy or f"wrap the loop's source: {_WRAP}"
        yield Finding(text=name, why=facts.wait_unknown, remedy=remedy)


@rule("IO073", "workers-not-seen", "capture")
@fires({"whose": "0", "unseen_pids": [12], "workers_forked": True}, {"whose": "0", "unseen_pids": [12]})
@silent({"whose": "0", "left_pids": [12]})
def workers_not_seen(facts: CaptureFacts) -> Iterator[Finding]:
    """Workers made batches, but left no record: they had no agent.

    Remedy: where they run another interpreter, install iotrace-agent into that one.
    """
    if not facts.unseen_pids:
        return
    what = f"loader workers of rank {facts.whose} (pid {', '.join(map(str, facts.unseen_pids))})"
    if facts.workers_forked:  # they had the agent of the process that they were forked from, if it had one
        yield Finding(text=what, why="they were there before the recording began, or died at once")
        return
    why = "their processes could not load the agent, or were there before the recording began"
    remedy = "where they run another interpreter, install iotrace-agent into that one"
    yield Finding(text=what, why=why, remedy=remedy)
