"""Loops that did not go on, and what their processes were in."""

from __future__ import annotations

from typing import Annotated

from iotrace.analysis.results.base import ReportPart, figure


class HungProcess(ReportPart, frozen=True, kw_only=True):
    """A process of a loop that hung, and what it was in."""

    pid: Annotated[int, figure("who", null="host: of older sessions")]
    role: Annotated[str, figure("`training`, `rank N` or `worker N`", null="host: of older sessions")]
    rank: Annotated[int | None, figure("its number", null="no rank of a job with several")] = None
    host: Annotated[str | None, figure("its host", null="of older sessions")] = None
    text: Annotated[str, figure("what it was in, in words", null="the kernel did not say; the call has no file")]
    state: Annotated[str | None, figure("the kernel's letter for its state", null="the kernel did not say; the call has no file")] = None
    call: Annotated[str | None, figure("the system call", null="the kernel did not say; the call has no file")] = None
    file: Annotated[str | None, figure("the file of that call", null="the kernel did not say; the call has no file")] = None
    collective: Annotated[str | None, figure("what a rank was in with the others", null="nothing of that kind, or no stack")] = None
    of: Annotated[int | None, figure("the pid of the loop's training process", null="of older sessions")] = None
    stack: Annotated[list[str] | None, figure("its main thread's Python frames, the innermost first", null="it was not asked, or did not answer")] = None
    stacks: Annotated[str | None, figure("the file that has those of all threads", null="it was not asked, or did not answer")] = None


class HangInfo(ReportPart, frozen=True, kw_only=True):
    """A loop that did not go on."""

    kind: Annotated[str, figure("`hung`, `computing` or `waiting`")]
    waited_seconds: Annotated[float, figure("since the last batch, when it was told")]
    lasted_seconds: Annotated[
        float | None, figure("from the last batch until batches came again, or the run ended, or until now", null="nobody knows when the run ended")
    ] = None
    resumed: Annotated[bool, figure("a batch came after that")]
    text: Annotated[list[str], figure("the sentences: who waits for whom, and which rank differs")]
    processes: list[HungProcess]
