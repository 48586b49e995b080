"""What was recorded and is lost, or lacks in bare traces."""

from __future__ import annotations

from collections.abc import Iterator

from iotrace.analysis.rules.facts.capture import ANOTHER_DISK, CaptureFacts
from iotrace.analysis.rules.model import Finding, fires, rule, silent
from iotrace.session import names
from iotrace.units import counted

BUFFERED_CALLS = 19  # dftracer holds calls back in a buffer of 4 KiB


@rule("IO081", "damaged", "capture")
@fires(
    {"whose": "main (pid 12)", "damage": "records.jsonl was cut in its last line"},
    {"whose": "main (pid 12)", "damage": "the hook of torch failed", "full_disk": "/scratch/run"},
)
@silent({"whose": "main (pid 12)", "end_lost": True})
def damaged(facts: CaptureFacts) -> Iterator[Finding]:
    """A part of what was recorded is cut, cannot be read, or had no room on the disk of the session.

    Remedy: where the disk was full, free some space, or record to another disk with -o.
    """
    if facts.damage is not None and facts.full_disk:
        why = f"the disk of {facts.full_disk} was full: {facts.damage}"
        yield Finding(text=f"part of {facts.whose}", why=why, remedy=ANOTHER_DISK)
    elif facts.damage is not None:
        yield Finding(text=f"part of {facts.whose}", why=facts.damage)


@rule("IO082", "end-lost", "capture")
@fires(
    {"whose": "main (pid 12)", "end_lost": True, "left_idle": False},
    {"whose": "worker 0 (pid 13)", "end_lost": True, "buffered_calls": 19},
)
@silent({"whose": "worker 0 (pid 13)", "end_lost": True, "left_idle": True})
def end_lost(facts: CaptureFacts) -> Iterator[Finding]:
    """A process was killed, or ended without its exit handlers: what it had not written is lost.

    A process that had nothing to do has lost at most the calls that dftracer held back.
    """
    if not facts.end_lost or (facts.left_idle and not facts.buffered_calls):
        return
    lost = "up to 1 s of its records is lost"
    if facts.left_idle or facts.lost_calls_alone:
        did = "had nothing to do" if facts.left_idle else "recorded no data"
        lost = f"it {did}, so only about {BUFFERED_CALLS} of its POSIX calls may be lost"
    why = f"it was killed, or ended without its exit handlers: {lost}"
    yield Finding(text=f"the end of {facts.whose}", why=why)


@rule("IO083", "failed-to-start-a-program", "capture")
@fires({"whose": "main (pid 12)", "failed_to_start": True})
@silent({"whose": "main (pid 12)", "own_log_ended": True})
def failed_to_start(facts: CaptureFacts) -> Iterator[Finding]:
    """dftracer ended in a process whose child could not run its program.

    Remedy: find out which program it is, by the error that subprocess raises.
    """
    if facts.failed_to_start:
        yield Finding(
            text=f"POSIX calls of {facts.whose} after it failed to start a program",
            why="dftracer ends in a process whose child cannot run its program",
            remedy="find out which program it is, by the error that subprocess raises",
        )


@rule("IO084", "namesakes", "capture")
@fires({"whose": "n1", "namesake": 12})
@silent({"whose": "n1", "unseen_pids": [12]})
def namesakes(facts: CaptureFacts) -> Iterator[Finding]:
    """Several machines or containers have the same name, and had a process with the same number at once.

    Remedy: give each a host name of its own.
    """
    if facts.namesake is not None:
        what = f"POSIX calls of the processes {facts.namesake} on {facts.whose}"
        why = (
            "several machines or containers have this name, and had a process with this number at the same "
            "time"
        )
        yield Finding(text=what, why=why, remedy="give each a host name of its own")


@rule("IO085", "sampler-ended", "capture")
@fires({"whose": "n1", "sampler_ended_by": "SIGKILL"}, {"whose": "n1", "unsampled_s": 9.0})
@silent({"whose": "n1", "unsampled_s": 1.0})
def sampler_ended(facts: CaptureFacts, *, late_seconds: float = 3.0) -> Iterator[Finding]:
    """The sampler was killed or stopped before the command ended.

    It writes once a second, and a busy host may make it late. If its launcher saw that it was killed, that
    counts.
    """
    if facts.sampler_ended_by is not None or facts.unsampled_s > late_seconds:
        how = f"killed by {facts.sampler_ended_by}" if facts.sampler_ended_by else "killed or stopped"
        lost = f", and the last {facts.unsampled_s:.1f} s are not sampled" if facts.unsampled_s > 0 else ""
        yield Finding(text=f"the end of the telemetry of {facts.whose}", why=f"its sampler was {how}{lost}")


@rule("IO086", "own-error", "capture")
@fires({"whose": "main (pid 12)", "agent_error": "KeyError: 'x'"}, {"more_errors": 2})
@silent({"whose": "main (pid 12)", "damage": "records.jsonl was cut in its last line"})
def own_error(facts: CaptureFacts) -> Iterator[Finding]:
    """iotrace's own code failed in a process: figures that depend on it are missing.

    Remedy: please report the error.
    """
    if facts.agent_error is not None:
        why = f"iotrace's own code failed there: {facts.agent_error}"
        remedy = "figures that depend on it are missing; please report the error"
        yield Finding(text=f"part of {facts.whose}", why=why, remedy=remedy)
    if facts.more_errors:
        rest = counted(facts.more_errors, "more error")
        why = f"{rest} of iotrace's own code: see {names.LOG} of each"
        yield Finding(text="part of its processes", why=why)


@rule("IO091", "bare-traces", "capture")
@fires({"bare_traces": True})
@silent({"no_steps": "the program did not mark them"})
def bare_traces(facts: CaptureFacts) -> Iterator[Finding]:
    """A profiler's trace alone holds no causes of the data wait, no files, no I/O.

    Remedy: record with `iotrace run`.
    """
    if facts.bare_traces:
        what, why = "causes of the data wait, files, I/O", "traces of a profiler alone hold none"
        yield Finding(text=what, why=why, remedy="record with: iotrace run -- CMD")


@rule("IO092", "ranks-not-compared", "capture")
@fires({"not_compared": "they are of several jobs"})
@silent({"ranks_missing": "ranks 2 and 3"})
def ranks_not_compared(facts: CaptureFacts) -> Iterator[Finding]:
    """Traces of a job's ranks cannot be compared.

    Remedy: give the traces of one job's ranks.
    """
    if facts.not_compared is not None:
        what, remedy = "the comparison of ranks", "give the traces of one job's ranks"
        yield Finding(text=what, why=facts.not_compared, remedy=remedy)


@rule("IO095", "ranks-not-given", "capture")
@fires({"ranks_missing": "ranks 2 and 3"})
@silent({"not_compared": "they are of several jobs"})
def ranks_not_given(facts: CaptureFacts) -> Iterator[Finding]:
    """Traces of some ranks of a job were not given: who the others waited for may be one of them.

    Remedy: give the traces of all ranks.
    """
    if facts.ranks_missing is not None:
        why = "no trace of them was given: who the others waited for may be one of them"
        yield Finding(text=facts.ranks_missing, why=why, remedy="give the traces of all ranks")


@rule("IO093", "steps-not-marked", "capture")
@fires({"whose": "rank0.json", "no_steps": "the program did not mark them"})
@silent({"whose": "rank0.json", "damage": "it was cut"})
def steps_not_marked(facts: CaptureFacts) -> Iterator[Finding]:
    """A trace does not say where steps begin.

    Remedy: call profiler.step().
    """
    if facts.no_steps is not None:
        yield Finding(text=f"steps of {facts.whose}", why=facts.no_steps, remedy="call profiler.step()")


@rule("IO094", "unknown-events", "capture")
@fires({"whose": "rank0.json", "unknown_events": ["npu_kernel (12)"]})
@silent({"whose": "rank0.json", "unknown_events": []})
def unknown_events(facts: CaptureFacts) -> Iterator[Finding]:
    """A trace holds events of categories that no figure counts: an unknown device may write them."""
    if facts.unknown_events:
        why = f"iotrace does not know their categories: {', '.join(facts.unknown_events)}"
        yield Finding(text=f"events of {facts.whose} that no figure counts", why=why)
