"""The result of a sweep or a search, kept in its directory for who looks at it later."""

from __future__ import annotations

from pathlib import Path

from iotrace.session.manifest import read_document, write_document
from iotrace.sweeps.results import SweepResult
from iotrace.sweeps.tune.results import TuneResult


def keep(result: SweepResult | TuneResult) -> None:
    """Write `result` into its directory."""
    write_document(Path(result.path) / _name(type(result)), result)


def kept(directory: Path) -> SweepResult | TuneResult | None:
    """Read the result in `directory`; None where no sweep and no search ended there."""
    return read_document(directory / _name(SweepResult), SweepResult) or read_document(
        directory / _name(TuneResult), TuneResult
    )


def _name(kind: type[SweepResult] | type[TuneResult]) -> str:
    return "sweep-result.json" if kind is SweepResult else "tune-result.json"
