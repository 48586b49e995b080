"""The fixture of every row."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.harness import Trial


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    """An empty directory, in which a program can be run bare and traced."""
    return Trial(tmp_path)
