"""Left out by default: these need the trackers' servers and clients (850 MB)."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return None if config.getoption("--sinks") else True
