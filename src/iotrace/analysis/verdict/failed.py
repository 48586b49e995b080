"""The verdict over a run that failed: what ended it, where, and why that may be."""

from __future__ import annotations

from collections.abc import Sequence
from signal import Signals

from msgspec.structs import replace

from iotrace.analysis.results import (
    BAD,
    CAUTION,
    OK,
    Failure,
    HangInfo,
    HungProcess,
    RankReport,
    SessionInfo,
    Trust,
)
from iotrace.session.hangs import HUNG, WAITS_FOR_WORK, WAITS_FOR_WORKERS, span

_CRASHES = ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE")
INTERRUPTED = "INTERRUPTED"
HUNG_BANNER = "HUNG"
_BY_KEY = 130
_LONGEST = 160  # of a message; all of it stands in `session.failures`
_UNCAUGHT = 1  # what Python leaves with when nothing caught an exception


def cause_of(session: SessionInfo) -> Failure | None:
    """Choose the failure that explains the exit code; None where none was seen.

    An exception in a process that only helps does not end the run, nor does one in a thread; nor one that
    Python printed in a program that then left with a code of its own.
    """
    for failure in session.failures:
        if failure.role == "helper" or failure.thread is not None:
            continue
        if failure.worker is not None:
            return _raised_by_loop(session, failure)
        if failure.type.startswith("SIG") or session.signal is not None:
            return failure
        if session.exit_code == _UNCAUGHT:
            return failure
    return None


def _raised_by_loop(session: SessionInfo, first: Failure) -> Failure:
    """Of several workers' exceptions, take that of the batch that the loop asked for: it raised this one."""
    of_rank = [each for each in session.failures if each.rank == first.rank and each.batch is not None]
    asked = {(each.epoch, each.batch) for each in of_rank if each.worker is None and each.thread is None}
    raised = (each for each in of_rank if each.worker is not None and (each.epoch, each.batch) in asked)
    return next(raised, first)


def banner_of(session: SessionInfo) -> str:
    """Name the kind of failure: a hang before it, a key or SIGINT, another signal, anything else."""
    if hung_until_end(session) is not None:
        return HUNG_BANNER
    cause = cause_of(session)
    if session.signal == "SIGINT" or session.exit_code == _BY_KEY:
        return INTERRUPTED
    if cause is not None and cause.type == "KeyboardInterrupt":
        return INTERRUPTED
    return "FAILED" if session.signal is None else "KILLED"


def what_failed(session: SessionInfo, ranks: Sequence[RankReport]) -> str:
    """Say how the command ended, after how many steps, and in which process that began.

    Of a run that hung until then: who was in what.
    """
    hang = hung_until_end(session)
    if hang is not None:
        return f"then ended: {stuck_text(hang)}"
    return _how_ended(session, ranks)


def _how_ended(session: SessionInfo, ranks: Sequence[RankReport]) -> str:
    cause = cause_of(session)
    ended = f"exit code {session.exit_code}"
    if session.signal is not None:
        ended = f"by {session.signal} ({ended})"
    when = _when(cause.after_steps) if cause is not None else _when(_steps(ranks))
    if cause is None or session.signal is not None:
        return f"{ended}{when}"
    several = len(ranks) > 1 or bool(cause.rank)
    where = ""
    if cause.worker is not None:
        where = (
            f" in worker {cause.worker}{f' of rank {cause.rank}' if several else ''} (pid {cause.process})"
        )
    elif several and cause.rank is not None:
        where = f" on rank {cause.rank}{'' if cause.process is None else f' (pid {cause.process})'}"
    if cause.is_exit:
        pid = "" if cause.process is None else f" (pid {cause.process})"
        return f"{ended}{when}: rank {cause.rank}{pid} ended with {cause.type}"
    return f"{ended}{when}: {_name(cause)}{where}"


def why_failed(session: SessionInfo, ranks: Sequence[RankReport]) -> str:
    """Say what the exception was about, or what is known of the signal; of a hang how long it lasted."""
    hang = hung_until_end(session)
    if hang is not None:
        return f"no batch for {lasted_text(hang)}; then {_how_ended(session, ranks)}: {_why_ended(session)}"
    return _why_ended(session)


def _why_ended(session: SessionInfo) -> str:
    cause = cause_of(session)
    by_signal = session.signal or (cause.type if cause is not None and cause.type.startswith("SIG") else None)
    if by_signal is not None:
        why, hang = _why_signal(by_signal, session.oom_kills), last_hang(session)
        told = hang is not None and hung_until_end(session) is None
        return f"before it no batch came for {lasted_text(hang)}; {why}" if hang and told else why
    if cause is None:
        thread = next((each for each in session.failures if each.thread is not None), None)
        if thread is not None:
            return f"unknown; before it, thread {thread.thread} ended: {_name(thread)}: {_about(thread)}"
        helper = next((each for each in session.failures if each.role == "helper"), None)
        if helper is None:
            return f"unknown: no exception was left uncaught; {_of_code(session)}"
        return f"unknown; a process that it started failed: {_name(helper)} (pid {helper.process})"
    if cause.is_exit:
        threads = [each for each in session.failures if each.thread and each.process == cause.process]
        if threads:
            return f"before it, thread {threads[0].thread} ended: {_name(threads[0])}: {_about(threads[0])}"
        return "no exception was seen: os._exit, sys.exit or compiled code; the program's output may say why"
    parts = [_about(cause)]
    if cause.batch is not None:
        parts.append(f"batch {cause.batch}")
    if cause.sample is not None:
        parts.append(f"sample {cause.sample}")
    if cause.read_last is not None and cause.file is None and cause.sample is not None:
        parts.append(f"after it read {cause.read_last}")
    if session.oom_kills:
        parts.append(_out_of_memory(session.oom_kills))
    return ", ".join(parts)


def last_hang(session: SessionInfo) -> HangInfo | None:
    """Return the hang that the run was in at its end, or is in; None where it went on, or did not hang."""
    return next((each for each in reversed(session.hangs) if not each.resumed), None)


def hung_until_end(session: SessionInfo) -> HangInfo | None:
    """Return the hang in which a run was until it ended; None where it did not hang, went on, or goes on."""
    hang = last_hang(session)
    return hang if hang is not None and hang.kind == HUNG and session.exit_code else None


def lasted_text(hang: HangInfo) -> str:
    """Say how long no batch came, as far as it is known."""
    if hang.lasted_seconds is None:
        return f"{hang.waited_seconds:.0f} s or more"
    return span(round(1e9 * hang.lasted_seconds))


def stuck_process(hang: HangInfo) -> tuple[HungProcess | None, int | None]:
    """Return who does not only wait for others, and its rank, None where the job has one."""
    waits = (WAITS_FOR_WORK, WAITS_FOR_WORKERS)
    order = sorted(hang.processes, key=lambda each: each.text in waits or each.collective is not None)
    if not order:
        return None, None
    first = order[0]
    same = (each for each in hang.processes if each.rank is not None and each.host == first.host)
    return first, next((each.rank for each in same if each.pid in (first.pid, first.of)), None)


def stuck_text(hang: HangInfo) -> str:
    """Say who is stuck in what, without the frame that ends the sentence of a process."""
    first, rank = stuck_process(hang)
    if first is None:
        return f"no batch for {lasted_text(hang)}"
    text = first.text
    for frame in first.stack or ():
        text = text.replace(f", {frame[:1].lower()}{frame[1:]}", "", 1)
    whose = "" if rank is None or first.rank is not None else f"rank {rank}'s "
    return f"{whose}{first.role} {text}"


def _of_code(session: SessionInfo) -> str:
    """Say which signal an exit code may stand for, and what the kernel counted."""
    number = (session.exit_code or 0) - 128
    if number not in {each.value for each in Signals}:
        return "the program's output may say why"
    name = Signals(number).name
    known = f"{session.exit_code} is a shell's code for {name}"
    return (
        f"{known}: {_out_of_memory(session.oom_kills)}" if name == "SIGKILL" and session.oom_kills else known
    )


def _about(failure: Failure) -> str:
    """Say where an exception was raised, and its message."""
    message = failure.message if len(failure.message) <= _LONGEST else f"{failure.message[:_LONGEST]}..."
    quote = "" if message.startswith(("'", '"')) else '"'
    said = f"{quote}{message}{quote}" if message else ""
    return (
        ": ".join(part for part in (failure.file or failure.at, said) if part) or "unknown: it has no message"
    )


def trust_after(trust: Trust, ranks: Sequence[RankReport]) -> Trust:
    """Add that the last step is not whole, where steps were measured.

    What ended the run is certain, however few its steps were: its trust is no worse than a caution.
    """
    if not any(rank.steps.count for rank in ranks):
        return replace(trust, level=CAUTION) if trust.level == BAD else trust
    reasons = [*(trust.reasons if trust.level != OK else []), "the last step is not whole"]
    return replace(trust, level=CAUTION, reasons=reasons)


def _name(failure: Failure) -> str:
    return failure.type.rpartition(".")[2]


def _when(steps: int | None) -> str:
    if steps is None:
        return ""
    if steps == 0:
        return " before the first step ended"
    return f" after {steps} step{'s' if steps > 1 else ''}"


def _steps(ranks: Sequence[RankReport]) -> int | None:
    """Count the ended steps of the rank that has most; None where no loop was seen."""
    begun = [rank.steps for rank in ranks if rank.loaders or rank.steps.begun or rank.steps.count]
    counts = [
        each.count + each.excluded.first + each.excluded.warmup + each.excluded.profiled for each in begun
    ]
    return max(counts, default=None)


def _why_signal(name: str, oom_kills: int | None) -> str:
    if name == "SIGINT":
        return "Ctrl-C, or a signal from elsewhere"
    if name in _CRASHES:
        also = "; or /dev/shm was full" if name == "SIGBUS" else ""
        return f"a crash in compiled code: python -X faulthandler names the line{also}"
    if name == "SIGKILL" and oom_kills:
        return _out_of_memory(oom_kills)
    if name == "SIGKILL":
        none = "; the kernel counted no out-of-memory kill" if oom_kills == 0 else ""
        return f"unknown who sent it{none}"
    return "unknown who sent it; a batch system does at its time limit"


def _out_of_memory(count: int) -> str:
    return f"out of memory: the kernel ended {count} process{'es' if count > 1 else ''} of this control group"
