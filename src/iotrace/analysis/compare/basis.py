"""What a comparison rests on: the part of a report that it reads, of a session or of a kept JSON.

Both ways give the same figures. A field that a kept report does not have is None or empty here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from iotrace.analysis.results import (
    SCHEMA_VERSION,
    Account,
    HostUse,
    HotLine,
    LoopEvents,
    StageCost,
    StepBlocks,
    Trust,
)
from iotrace.errors import SessionError

_AGAIN = "make it again with: iotrace check SESSION --save-baseline FILE"


class Ran(msgspec.Struct, frozen=True):
    """How the session was run."""

    path: str
    argv: list[str] = []
    host: str | None = None
    started_ns: int | None = None
    commit: str | None = None
    exit_code: int | None = None
    ended: bool = True
    state: str = "ended"
    iotrace_version: str | None = None


class Steps(msgspec.Struct, frozen=True):
    count: int
    unknown_why: str | None = None
    mean_ms: float | None = None
    per_second: float | None = None
    samples_per_second: float | None = None
    thread_cpu_ms: float | None = None


class File(msgspec.Struct, frozen=True):
    path: str
    ms: float
    read_ms: float | None = None
    decode_ms: float | None = None


class DataWait(msgspec.Struct, frozen=True):
    raw_ms: float | None = None
    causes_ms: dict[str, float] = {}
    files: list[File] = []
    without_cpu_ms: dict[str, float] | None = None
    making_least_ms: float | None = None
    taking_least_ms: float | None = None
    queueing_ms: float | None = None


class Loader(msgspec.Struct, frozen=True):
    """The settings of a loader that change how fast it is, under DataLoader's names; what it handed over."""

    primary: bool
    dataset: str
    library: str | None = None
    pool: str | None = None
    workers: int | None = None
    batch_size: int | None = None
    batches: int | None = None
    epochs: int | None = None
    epochs_ended: int | None = None
    prefetch_factor: int | None = None
    persistent_workers: bool | None = None
    pin_memory: bool | None = None
    in_order: bool | None = None
    start_method: str | None = None
    item_hot: HotLine | None = None
    collate_hot: HotLine | None = None
    sampling_hot: HotLine | None = None

    def hot(self, cause: str) -> HotLine | None:
        """The line that most of a cause is in; None of one that is no code of the program, or not known."""
        return {"transform": self.item_hot, "collate": self.collate_hot, "sampling": self.sampling_hot}.get(
            cause
        )


class FileRead(msgspec.Struct, frozen=True):
    path: str
    reads: int = 0
    maps: int = 0
    read_bytes: int | None = None
    reread_fraction: float | None = None


class Io(msgspec.Struct, frozen=True):
    files: list[FileRead] = []


class ProcessUse(msgspec.Struct, frozen=True):
    storage_read_bytes: int | None = None
    role: str = ""
    cpu_pct_mean: float | None = None
    run_delay_pct_mean: float | None = None
    pool_delay_pct_mean: float | None = None


class Overhead(msgspec.Struct, frozen=True):
    estimated_pct_of_step: float | None = None


class Gpu(msgspec.Struct, frozen=True):
    name: str


class System(msgspec.Struct, frozen=True):
    cpus: int | None = None
    gpus: list[Gpu] = []
    processes: list[ProcessUse] = []
    host: HostUse | None = None


class Concluded(msgspec.Struct, frozen=True):
    """A culprit."""

    code: str | None = None
    text: str = ""
    evidence: dict[str, Any] = {}


class Code(msgspec.Struct, frozen=True):
    """A function that the loop is in, or a line of it."""

    function: str
    samples: int
    ms_per_step: float
    within: bool = False


class StartupPart(msgspec.Struct, frozen=True):
    name: str
    seconds: float


class Startup(msgspec.Struct, frozen=True):
    parts: list[StartupPart] = []


class Rank(msgspec.Struct, frozen=True):
    rank: int
    steps: Steps
    data_wait: DataWait
    system: System
    host: str | None = None
    world_size: int | None = None
    account: Account | None = None
    overhead: Overhead | None = None
    loop_events: list[LoopEvents] = []
    loop_code: list[Code] = []
    startup: Startup | None = None
    culprits: list[Concluded] = []
    blocks: StepBlocks | None = None
    phases_ms: dict[str, float | None] = {}
    stages: list[StageCost] = []
    loaders: list[Loader] = []
    io: Io | None = None

    @property
    def main(self) -> ProcessUse | None:
        """The training process."""
        return next((each for each in self.system.processes if each.role == "main"), None)

    @property
    def primary(self) -> Loader | None:
        """The loader that the training loop waits for."""
        return next((loader for loader in self.loaders if loader.primary), None)


class Process(msgspec.Struct, frozen=True):
    python: str = ""
    versions: dict[str, str] = {}


class Advised(msgspec.Struct, frozen=True):
    """A fix."""

    text: str
    code: str | None = None


class Verdict(msgspec.Struct, frozen=True):
    text: str
    trust: Trust
    cause: str | None = None
    rank: int | None = None
    fixes: list[Advised] = []


class Job(msgspec.Struct, frozen=True):
    """How the ranks' loops stand beside each other."""

    late_rank: int | None = None


class Basis(msgspec.Struct, frozen=True):
    """A session as a comparison sees it."""

    schema_version: int
    session: Ran
    verdict: Verdict
    ranks: list[Rank]
    processes: list[Process] = []
    lockstep: Job | None = None

    @property
    def late_rank(self) -> int | None:
        """The rank that the others wait for; None where none is known to be late."""
        return None if self.lockstep is None else self.lockstep.late_rank

    @property
    def path(self) -> str:
        """The session's path."""
        return self.session.path


def basis_of(document: Any, path: Path | None = None) -> Basis:
    """Take what a comparison reads from a report, as plain data; `path` is what it is called now."""
    basis = msgspec.convert(document, Basis)
    return basis if path is None else replace(basis, session=replace(basis.session, path=str(path)))


def parse_report(data: bytes, path: Path) -> Any:
    """Decode a report that ``--json`` or ``--save-baseline`` wrote to `path`, as plain data.

    Raises:
        SessionError: it is none, or one of another schema version.
    """
    try:
        document = msgspec.json.decode(data)
        version = document.get("schema_version") if isinstance(document, dict) else None
        if isinstance(version, int) and version != SCHEMA_VERSION:
            message = f"{path} has schema version {version}; this iotrace reads {SCHEMA_VERSION}"
            raise SessionError(message, _AGAIN)
        basis_of(document)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise SessionError(f"{path} holds no report of iotrace: {error}", _AGAIN) from error
    return document


def middle_of(sides: Sequence[Basis]) -> Basis:
    """Choose the session whose step is of middle length: the later of two."""
    measured = [(max(rank.steps.mean_ms or 0.0 for rank in side.ranks), side) for side in sides]
    return sorted(measured, key=lambda pair: pair[0])[len(sides) // 2][1]


def same_rank(side: Basis, rank: Rank) -> Rank:
    """Return the rank of another session that has the number of `rank`.

    Raises:
        SessionError: it was not measured there.
    """
    found = next((own for own in side.ranks if own.rank == rank.rank and own.steps.count), None)
    if found is None:
        raise SessionError(f"rank {rank.rank} has no measured steps in {side.path}")
    return found


def rank_pair(one: Basis, other: Basis) -> tuple[Rank, Rank]:
    """Choose the rank that stands for the job: of those in both with steps, the one that tells why.

    Ranks step together, so a rank's step is the job's. It is the one that the others wait for, in the first
    or else in the second; where none is late, the one that waits longest. It is the same rank on both sides.

    Raises:
        SessionError: no rank was measured in both.
    """
    for side in (one, other):
        if not any(rank.steps.count for rank in side.ranks):
            raise SessionError(f"{side.path} has no measured steps", "run it longer, then compare again")
    numbered = {rank.rank: rank for rank in other.ranks if rank.steps.count}
    pairs = [(rank, numbered[rank.rank]) for rank in one.ranks if rank.steps.count and rank.rank in numbered]
    if not pairs:
        raise SessionError(f"no rank has measured steps in both {one.path} and {other.path}")
    for late in (one.late_rank, other.late_rank):
        for pair in pairs:
            if pair[0].rank == late:
                return pair
    return max(pairs, key=lambda pair: max(each.data_wait.raw_ms or 0.0 for each in pair))
