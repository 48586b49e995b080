"""The result of a sweep or a search, kept in its directory for who looks at it later."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec

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
    if found is not None:
        return _moved(found, directory)
    search = read_document(directory / names.TUNE_RESULT, TuneResult)
    return None if search is None else _moved(search, directory)


_Result = TypeVar("_Result", SweepResult, TuneResult)


def _moved(result: _Result, directory: Path) -> _Result:
    """Return `result` with the paths of its sessions below `directory`: it may have been moved, or copied."""
    before, after = result.path, str(directory.resolve())
    if Path(before).resolve() == directory.resolve():
        return result

    def renamed(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: renamed(own) for name, own in value.items()}
        if isinstance(value, list):
            return [renamed(own) for own in value]
        if isinstance(value, str) and (value == before or value.startswith(f"{before}/")):
            return after + value[len(before) :]
        return value

    return msgspec.convert(renamed(msgspec.to_builtins(result)), type(result))
