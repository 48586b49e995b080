"""Which session of a directory is the newest."""

from __future__ import annotations

from pathlib import Path

from iotrace.session import names
from iotrace.session.manifest import Manifest, read_document


def newest_session(directory: Path) -> Path | None:
    """Return the session below `directory` that began last; None where there is none."""
    found = [
        (manifest.started_ns, path.parent)
        for path in directory.glob(f"*/{names.MANIFEST}")
        if (manifest := read_document(path, Manifest)) is not None
    ]
    return max(found, default=(0, None))[1]
