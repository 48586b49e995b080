"""The traces at hand, and made ones."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

from tools.golden_cases.recording import Make, Recorder
from tools.make_trace import write as make_trace

_ROOT = Path(__file__).parent.parent.parent


def traces() -> dict[str, Make]:
    """How each trace comes into the folder, by name."""
    shared = sorted((_ROOT.parent / "shared" / "traces").glob("*.json.gz"))
    own = sorted((_ROOT / "tests" / "data").glob("*.json.gz"))
    made = {f"made_rank{rank}.json": partial(_make, rank=rank) for rank in range(2)}
    return {path.name: partial(_copy, source=path) for path in [*shared, *own]} | made


def _copy(_: Recorder, path: Path, *, source: Path) -> None:
    shutil.copyfile(source, path)


def _make(_: Recorder, path: Path, *, rank: int) -> None:
    make_trace(path, 4, rank)
