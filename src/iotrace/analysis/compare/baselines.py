"""Baselines as they are kept: one session or report, or a directory of several."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec

from iotrace.errors import SessionError, UsageError
from iotrace.session import names
from iotrace.session.listing import sessions_in


def kept_at(path: Path, leave_out: Sequence[Path] = ()) -> list[Path]:
    """List the sessions and reports in a directory of several, but for those to `leave_out`; else the path.

    Raises:
        SessionError: the directory holds none.
    """
    if not path.is_dir() or (path / names.MANIFEST).exists():
        return [path]
    own = {each.resolve() for each in leave_out}
    found = [*sessions_in(path), *path.glob("*.json")]
    kept = sorted(each for each in found if each.resolve() not in own)
    if not kept:
        raise SessionError(
            f"{path} holds no baseline", f"make one with: iotrace check SESSION --save-baseline {path}/"
        )
    return kept


def save(reports: Sequence[Any], target: str) -> None:
    """Keep `reports`: into a directory, where `target` is one or ends in ``/``, else as that file.

    Raises:
        UsageError: several reports, and one file.
    """
    directory = Path(target)
    if not target.endswith("/") and not directory.is_dir():
        if len(reports) > 1:
            raise UsageError(
                f"{target} would be one file for {len(reports)} sessions",
                f"name a directory: --save-baseline {target}/",
            )
        directory.write_bytes(_encoded(reports[0]))
        return
    directory.mkdir(parents=True, exist_ok=True)
    for report in reports:
        (directory / _name_of(report["session"])).write_bytes(_encoded(report))


def _name_of(session: Any) -> str:
    """Name a report by when it was recorded, and what the session was called."""
    started_ns = session.get("started_ns") or 0
    began = datetime.fromtimestamp(started_ns // 10**9, timezone.utc)
    return f"{began:%Y%m%dT%H%M%SZ}-{Path(session['path']).name}.json"


def _encoded(report: Any) -> bytes:
    return msgspec.json.encode(report) + b"\n"
