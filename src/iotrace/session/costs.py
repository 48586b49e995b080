"""Keep what tracing costs on the machine of a run, as measured after it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from iotrace.session import names
from iotrace.session.manifest import read_document, write_document


class Costs(msgspec.Struct, frozen=True):
    """CPU time that tracing adds, on `host`; None where a source was off and could not be measured.

    `posix_call_ns`: to a traced read of 4 KiB after other work; `next_posix_call_ns`: to one that follows
    another. `span_ns`: to a timed call. `process_start_ns`: to the start of a Python process, with all
    sources of the run.
    """

    host: str
    posix_call_ns: int | None = None
    next_posix_call_ns: int | None = None
    span_ns: int | None = None
    process_start_ns: int | None = None


def write_costs(session: Path, costs: Costs) -> None:
    """Write `costs` into the session, if it can still be written."""
    write_document(session / names.COSTS, costs)


def read_costs(session: Path) -> Costs | None:
    """Read the costs of the session's first launcher; None where they were not measured or are damaged."""
    return read_document(session / names.COSTS, Costs)
