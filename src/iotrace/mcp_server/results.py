"""What a tool is; what each is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta

from iotrace.mcp_server.answers import Number, Paged, Recorded

Session = Annotated[str, Meta(description="a session's name, from list_sessions")]
Cursor = Annotated[str | None, Meta(description="next_cursor of the answer before")]
Bytes = Annotated[int, Meta(ge=1024, le=65536, description="the most bytes of an answer")]
Rows = Annotated[int, Meta(ge=1, le=200, description="the most rows of an answer")]


class Asked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every tool may be asked beside its own."""

    most_bytes: Bytes = 4096


class AskedRows(Asked, frozen=True, kw_only=True):
    cursor: Cursor = None
    most_rows: Rows = 50


class AskedSessions(AskedRows, frozen=True, kw_only=True):
    directory: Annotated[str, Meta(description="a directory below the server's")] = "."


class SessionRow(msgspec.Struct, frozen=True, kw_only=True):
    session: str
    started_utc: str | None = None
    seconds: float | None = None
    state: str | None = None
    exit_code: int | None = None
    verdict: Recorded | None = None
    command: Recorded | None = None
    problem: Recorded | None = None


class Sessions(Paged, frozen=True, kw_only=True):
    sessions: list[SessionRow]


class AskedSession(Asked, frozen=True, kw_only=True):
    session: Session


class Trust(msgspec.Struct, frozen=True, kw_only=True):
    level: Annotated[str, Meta(description="ok; caution; bad: the figures say little")]
    reasons: list[Recorded]


class FixRow(msgspec.Struct, frozen=True, kw_only=True):
    number: Annotated[int, Meta(description="what patch and try_fix take as fix")]
    rule: Annotated[str | None, Meta(description="what explain takes")]
    text: Recorded
    gain: Number
    speedup: Number
    command: Recorded | None = None
    settings: Annotated[dict[str, str], Meta(description="arguments of DataLoader that it changes")] = {}


class VerdictAnswer(msgspec.Struct, frozen=True, kw_only=True):
    session: str
    kind: Annotated[str, Meta(description="input-bound, not-input-bound, failed, ...")]
    text: Recorded
    why: Recorded | None
    trust: Trust
    step: Number
    steps: Annotated[int, Meta(description="measured steps")]
    data_wait: Number
    wait_fraction: Annotated[Number, Meta(description="share of the measured steps that waits for data")]
    causes: Annotated[dict[str, float], Meta(description="measured: ms of data wait a step, by cause")]
    fixes: Annotated[
        list[FixRow], Meta(description="in the order in which they are worth trying; gains do not add up")
    ]
    fixes_total: int
    loader: Annotated[Recorded | None, Meta(description="the line that makes the training loader")]
    not_captured: list[Recorded]


class AskedView(AskedRows, frozen=True, kw_only=True):
    session: Session
    view: Annotated[str, Meta(description="the name of a view; an unknown one is answered with their names")]
    rank: Annotated[int | None, Meta(description="rows of this rank alone")] = None


class Column(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    unit: str = ""
    meaning: str = ""


class View(Paged, frozen=True, kw_only=True):
    """Rows of one table, in the order of its columns; the cursor goes on to the next table."""

    session: str
    view: str
    kind: Annotated[str, Meta(description="measured; predicted: rows of a model")]
    table: Recorded
    rank: int | None
    columns: list[Column]
    rows: Annotated[list[list[Any]], Meta(description="cells; a text is recorded data, null unknown")]
    unknown: Annotated[Recorded | None, Meta(description="why there are no rows")] = None


class AskedRule(AskedRows, frozen=True, kw_only=True):
    rule: Annotated[str, Meta(description="a rule's code or name, as IO204")]


class Rule(Paged, frozen=True, kw_only=True):
    code: str
    name: str
    about: str
    texts: Annotated[list[str], Meta(description="what it means, its bounds, its remedy, an example")]


class AskedRank(AskedRows, frozen=True, kw_only=True):
    session: Session
    rank: Annotated[int | None, Meta(description="default: the rank that the verdict is about")] = None


class BatchRow(msgspec.Struct, frozen=True, kw_only=True):
    batch: int
    epoch: int
    wait_ms: Annotated[float, Meta(description="measured: what the loop waited for it, ms")]
    delay_ms: Annotated[float | None, Meta(description="measured: how long it lay ready, ms")]
    worker: int | None
    cause: str
    files: list[Recorded]


class Batches(Paged, frozen=True, kw_only=True):
    session: str
    rank: int
    batches: list[BatchRow]


class AskedFile(AskedRows, frozen=True, kw_only=True):
    session: Session
    path: Annotated[
        str, Meta(description="a part of the file's recorded path; empty: all, the costliest first")
    ] = ""
    rank: int | None = None


class FileRow(msgspec.Struct, frozen=True, kw_only=True):
    path: Recorded
    wait_ms: Annotated[float | None, Meta(description="measured: data wait a step that is charged to it, ms")]
    read_ms: float | None
    decode_ms: float | None
    opens: int | None = None
    reads: int | None = None
    read_bytes: int | None = None
    reread_fraction: float | None = None


class Files(Paged, frozen=True, kw_only=True):
    session: str
    rank: int
    files: list[FileRow]


class AskedSource(AskedRows, frozen=True, kw_only=True):
    session: Session
    around: Annotated[int, Meta(ge=0, le=100, description="lines before and behind")] = 8


class SourceLine(msgspec.Struct, frozen=True, kw_only=True):
    line: int
    text: Recorded


class SourceLines(Paged, frozen=True, kw_only=True):
    session: str
    file: Recorded
    loader_line: int
    changed_since: Annotated[
        bool, Meta(description="the file was written after the run began: the line may be another")
    ]
    lines: list[SourceLine]


class AskedCompare(Asked, frozen=True, kw_only=True):
    before: Session
    after: Session


class ChangedPart(msgspec.Struct, frozen=True, kw_only=True):
    what: Recorded
    by: Number


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    before: str
    after: str
    comparable: bool
    differs: Annotated[list[Recorded], Meta(description="what makes the work of both another")]
    verdict: str
    text: Recorded
    step_before: Number
    step_after: Number
    change: Number
    parts: list[ChangedPart]
    trust: list[Trust]


class CheckRow(msgspec.Struct, frozen=True, kw_only=True):
    check: str
    status: Literal["ok", "warning", "missing", "unknown"]
    what: Recorded
    why: Recorded | None = None
    remedy: Recorded | None = None


class Doctor(Paged, frozen=True, kw_only=True):
    captured: list[str]
    not_captured: list[str]
    checks: list[CheckRow]


class AskedPatch(AskedRows, frozen=True, kw_only=True):
    session: Session
    fix: Annotated[int, Meta(ge=1, description="the number of a fix of the verdict")] = 1


class PatchLines(Paged, frozen=True, kw_only=True):
    session: str
    fix: Recorded
    proven: Annotated[bool, Meta(description="false: what it gains is not measured; try_fix measures it")]
    why_not: Annotated[Recorded | None, Meta(description="why there is no diff")]
    command: Annotated[Recorded | None, Meta(description="words that the command sets it by")]
    diff: Annotated[list[Recorded], Meta(description="lines of a unified diff, as git apply -p1 takes them")]


class AskedRun(Asked, frozen=True, kw_only=True):
    command: Annotated[list[str], Meta(min_length=1, description="the program and its arguments, no shell")]
    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][\w.-]{0,99}$", description="the new session's name")]
    minutes: Annotated[float, Meta(gt=0, le=600, description="end it after so long")] = 30.0


class AskedTry(Asked, frozen=True, kw_only=True):
    session: Session
    fix: Annotated[int, Meta(ge=1, description="the number of a fix of the verdict")] = 1
    minutes: Annotated[float, Meta(gt=0, le=600, description="start no run that would end later")] = 30.0


class AskedSweep(Asked, frozen=True, kw_only=True):
    command: Annotated[list[str], Meta(min_length=1, description="the program and its arguments, no shell")]
    workers: Annotated[
        list[int], Meta(min_length=1, max_length=16, description="numbers of workers to compare")
    ]
    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][\w.-]{0,99}$", description="the new directory's name")]
    minutes: Annotated[float, Meta(gt=0, le=600, description="end it after so long")] = 60.0


class CopyOfData(msgspec.Struct, frozen=True, kw_only=True):
    path: Recorded
    copy: Annotated[Recorded, Meta(description="equal values, stored otherwise; put it in the place of path")]
    how: str


class TrialFound(msgspec.Struct, frozen=True, kw_only=True):
    proven: Annotated[bool, Meta(description="true: the runs are faster beyond chance")]
    kind: Annotated[str, Meta(description="proven, does-not-help, slower, not-proven, failed")]
    fix: Recorded
    text: Recorded
    why: Recorded | None
    faster: Annotated[Number | None, Meta(description="measured, of pairs of runs")]
    told: Annotated[Number | None, Meta(description="what the report told before")]
    settings: Annotated[dict[str, str], Meta(description="arguments of DataLoader that were tried")]
    data: list[CopyOfData]


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    exit_code: int | None
    ended_early: Annotated[bool, Meta(description="it took too long and was ended")]
    result: Annotated[str, Meta(description="name of the session or directory that it wrote; empty: none")]
    trial: Annotated[TrialFound | None, Meta(description="of try_fix: what came of it")] = None
    output: Annotated[list[Recorded], Meta(description="the last lines of its output")]


class Tool(NamedTuple):
    """A tool: what it takes, what it answers, and what does it. `runs`: it starts the user's program."""

    name: str
    says: str
    asked: type[Asked]
    answers: type[msgspec.Struct]
    call: Callable[[Any], Any]
    runs: bool = False
