"""What was not recorded of hosts, processes and POSIX calls: why, and what would record it."""

from __future__ import annotations

from collections.abc import Iterator

from iotrace.analysis.rules.facts.capture import CaptureFacts
from iotrace.analysis.rules.model import Finding, fires, rule, silent
from iotrace.session import names
from iotrace.session.liveness import KILLED, RUNNING, UNKNOWN
from iotrace.units import counted, time_span

_STEPS = "steps and data wait"
_LEAVE_OUT = "leave --io-by dftracer out"


@rule("IO051", "telemetry-off", "capture")
@fires({"telemetry_off": True})
@silent({"whose": "n1", "sampler_absent": True})
def telemetry_off(facts: CaptureFacts) -> Iterator[Finding]:
    """Host, processes and devices were not sampled: it was switched off.

    Remedy: leave out `--no-telemetry`.
    """
    if facts.telemetry_off:
        yield Finding(text="telemetry", why="it was switched off", remedy="leave out --no-telemetry")


@rule("IO052", "sampler-not-started", "capture")
@fires({"whose": "n1", "sampler_absent": True})
@silent({"telemetry_off": True})
def sampler_not_started(facts: CaptureFacts) -> Iterator[Finding]:
    """A host was not sampled: its sampler did not start."""
    if facts.sampler_absent:
        yield Finding(text=f"telemetry of {facts.whose}", why="its sampler did not start")


@rule("IO053", "devices-not-read", "capture")
@fires({"whose": "n1", "devices_unread": True, "reason": "libnvidia-ml.so.1 is not there"})
@silent({"whose": "n1", "devices_unread": True})
def devices_not_read(facts: CaptureFacts) -> Iterator[Finding]:
    """No library read the accelerators of a host.

    Nothing is said if the run ended before the search for a library did.

    Remedy: see what `iotrace doctor` says of it on that host.
    """
    if facts.devices_unread and facts.reason:
        remedy = "see what iotrace doctor says of it on that host"
        yield Finding(text=f"gpu on {facts.whose}", why=facts.reason, remedy=remedy)


@rule("IO054", "processes-not-known", "capture")
@fires({"whose": "0", "processes_unknown": True})
@silent({"whose": "0"})
def processes_not_known(facts: CaptureFacts) -> Iterator[Finding]:
    """A host was sampled, but none of a rank's processes is known among the sampled ones."""
    if facts.processes_unknown:
        what = f"telemetry of the processes of rank {facts.whose}"
        yield Finding(text=what, why="none of its processes is known among those that were sampled")


@rule("IO055", "telemetry-gaps", "capture")
@fires({"whose": "n1", "gaps_s": [3.0]}, {"whose": "n1", "gaps_s": [3.0, 9.0]})
@silent({"whose": "n1", "gaps_s": [1.5]})
def telemetry_gaps(facts: CaptureFacts, *, least_seconds: float = 2.0) -> Iterator[Finding]:
    """The sampler did not run for seconds: it was stopped, or the host was too busy."""
    gaps_s = [gap_s for gap_s in facts.gaps_s if gap_s > least_seconds]
    if gaps_s:
        what = f"{len(gaps_s)} gaps, the longest of" if len(gaps_s) > 1 else "a gap of"
        why = f"{what} {max(gaps_s):.1f} s: its sampler was stopped, or the host was too busy"
        yield Finding(text=f"part of the telemetry of {facts.whose}", why=why)


@rule("IO056", "figures-failed", "capture")
@fires({"whose": "gpu 0 on n1", "failed_figures": {"Not Supported": ["power_w"]}})
@silent({"whose": "gpu 0 on n1"})
def figures_failed(facts: CaptureFacts) -> Iterator[Finding]:
    """The driver does not give some figures of a device."""
    if facts.failed_figures:
        why = "; ".join(f"{', '.join(figures)}: {why}" for why, figures in facts.failed_figures.items())
        yield Finding(text=f"part of {facts.whose}", why=why)


@rule("IO057", "nothing-yet", "capture")
@fires({"nothing_yet": "processes"}, {"nothing_yet": "batches"})
@silent({"state": RUNNING})
def nothing_yet(facts: CaptureFacts) -> Iterator[Finding]:
    """The command still runs, and has recorded nothing yet that a report can show.

    Remedy: look again in a moment.
    """
    if facts.nothing_yet is not None:
        what, why = _STEPS, "no batch was delivered yet"
        if facts.nothing_yet == "processes":
            what, why = "the program's processes", "none has begun to record yet"
        remedy = f"look again in a moment: iotrace report {facts.path}"
        yield Finding(text=what, why=why, remedy=remedy)


@rule("IO058", "end-not-seen", "capture")
@fires({"state": RUNNING}, {"state": KILLED}, {"state": UNKNOWN, "whose": "n1", "heard_seconds": 90.0})
@silent({"state": "ended"})
def end_not_seen(facts: CaptureFacts) -> Iterator[Finding]:
    """A launch has no exit code: it still runs, its launcher was killed, or this host cannot tell.

    Remedy: ask on the host where it ran.
    """
    of = f" of task {facts.task} on {facts.whose}" if facts.task else ""
    since = "" if facts.heard_seconds is None else f", last heard of {time_span(facts.heard_seconds)} ago"
    why, remedy = {
        RUNNING: ("the command still runs: these are its figures so far", ""),
        KILLED: ("the launcher was killed before it saw the end of the command", ""),
        UNKNOWN: (
            f"whether it still runs can only be seen on {facts.whose}{since}",
            f"ask there: iotrace report {facts.path}",
        ),
    }.get(facts.state or "", ("", ""))
    if why:
        yield Finding(text=f"the exit code{of}", why=why, remedy=remedy)


@rule("IO059", "no-process", "capture")
@fires({"no_process": True, "python_named": True}, {"no_process": True, "exit_code": 1}, {"no_process": True})
@silent({"nothing_yet": "processes"})
def no_process(facts: CaptureFacts) -> Iterator[Finding]:
    """No process of the command loaded the agent.

    Remedy: run it by a Python >= 3.10 started without -S and without `env -i`.
    """
    if not facts.no_process:
        return
    none = "no Python process was started, or none that loads the agent"
    remedy = "run it by a Python >= 3.10 started without -S and without env -i"
    why = none
    if facts.python_named:
        why = "no Python process of the command could load the agent"
    elif facts.exit_code:
        why, remedy = f"{none}, before the command failed (exit code {facts.exit_code})", ""
    else:
        remedy = f"else {remedy}"
    yield Finding(text="the program's processes", why=why, remedy=remedy)


@rule("IO060", "no-posix-calls", "capture")
@fires({"posix_absent": names.DFTRACER}, {"posix_absent": "recorder"})
@silent({"own_log_ended": True})
def no_posix_calls(facts: CaptureFacts) -> Iterator[Finding]:
    """No process left a record of POSIX calls.

    Remedy: let the command keep LD_PRELOAD in its environment.
    """
    if facts.posix_absent == names.DFTRACER:
        yield Finding(text="posix", why="no process of the command left a file of dftracer")
    elif facts.posix_absent is not None:
        why = "no process recorded a call on a file, though they read data: the recorder was not loaded"
        yield Finding(text="posix", why=why, remedy="let the command keep LD_PRELOAD in its environment")


@rule("IO061", "workers-left", "capture")
@fires({"left_pids": [12, 13], "left_idle": False}, {"left_pids": [12], "buffered_calls": 19})
@silent({"left_pids": [12, 13], "left_idle": True})
def workers_left(facts: CaptureFacts) -> Iterator[Finding]:
    """Workers ended with their program before they wrote all that they did for batches that nobody took."""
    if not facts.left_pids:
        return
    lost = [] if facts.left_idle else ["what they did for batches that nobody took"]
    if facts.buffered_calls:
        lost.append(f"at most about {facts.buffered_calls} POSIX calls of each")
    if lost:
        pids = ", ".join(map(str, facts.left_pids))
        early = f"a signal ended them (pid {pids}), as it does persistent workers and those of a Pool"
        what = f"the last work of {counted(len(facts.left_pids), 'worker')}"
        yield Finding(text=what, why=f"{early}; missing are {' and '.join(lost)}")


@rule("IO062", "own-log-ended", "capture")
@fires({"whose": "main (pid 12)", "own_log_ended": True})
@silent({"posix_absent": names.DFTRACER})
def own_log_ended(facts: CaptureFacts) -> Iterator[Finding]:
    """A process used dftracer itself and ended it: dftracer traces no call after that.

    Remedy: call finalize() at the end of the program.
    """
    if facts.own_log_ended:
        yield Finding(
            text=f"POSIX calls of {facts.whose} after it ended its own dftracer log",
            why="dftracer traces nothing more in a process that has called finalize()",
            remedy="call finalize() at the end of the program",
        )


@rule("IO063", "dftracer-left-out", "capture")
@fires({"not_python": 3}, {"without_stdio": 2})
@silent({"not_python": 0, "without_stdio": 0})
def dftracer_left_out(facts: CaptureFacts) -> Iterator[Finding]:
    """dftracer stayed out of programs that are not Python, or out of C's stdio in forked processes.

    Remedy: leave `--io-by dftracer` out: the recorder sees both.
    """
    if facts.not_python:
        what = f"POSIX calls of programs that are not Python ({counted(facts.not_python, 'start')})"
        yield Finding(text=what, why="dftracer stays out of them", remedy=_LEAVE_OUT)
    if facts.without_stdio:
        forked = counted(facts.without_stdio, "forked process", "forked processes")
        why = "other threads ran at the fork, and dftracer's table of streams has no lock"
        yield Finding(text=f"calls of C's stdio in {forked}", why=why, remedy=_LEAVE_OUT)


@rule("IO074", "refused-at-launch", "capture")
@fires({"refused": "posix", "reason": "switched off by --io off", "remedy": "run it without --io off"})
@silent({"posix_absent": "recorder"})
def refused_at_launch(facts: CaptureFacts) -> Iterator[Finding]:
    """The launcher could not record something, or was told not to, and wrote down why.

    Remedy: what the launcher says.
    """
    if facts.refused is not None:
        yield Finding(text=facts.refused, why=facts.reason, remedy=facts.remedy)
