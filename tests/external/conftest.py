"""Left out by default: these need trackers with their servers, Hydra and uv (900 MB)."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return None if config.getoption("--external") else True
