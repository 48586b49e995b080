"""The result of a sweep or a search, kept in its directory for who looks at it later."""

from __future__ import annotations

from pathlib import Path

from iotrace.session import names
from iotrace.session.manifest import read_document, write_document
from iotrace.sweeps.results import SweepResult
from iotrace.sweeps.tune.results import TuneResult


def keep(result: SweepResult | TuneResult) -> None:
    """Write `result` into its directory."""
    name = names.SWEEP_RESULT if isinstance(result, SweepResult) else names.TUNE_RESULT
    write_document(Path(result.path) / name, result)


def kept(directory: Path) -> SweepResult | TuneResult | None:
    """Read the result in `directory`; None where no sweep and no search ended there."""
    found = read_document(directory / names.SWEEP_RESULT, SweepResult)
    return found or read_document(directory / names.TUNE_RESULT, TuneResult)
