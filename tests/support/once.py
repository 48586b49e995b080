"""What all processes of the suite share: the first that asks makes it, while the others wait."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.runs import Run


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], str]) -> str:
    """What ``make(directory)`` gave in the first of the suite's processes that asked for `name`."""
    root = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    directory = root / f"shared-{name}"
    directory.mkdir(exist_ok=True)
    result = root / f"shared-{name}.txt"
    with (root / f"shared-{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not result.exists():
            result.write_text(make(directory))
    return result.read_text()


def once_run(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], Run]) -> Run:
    """The run that ``make(directory)`` made in the first of the suite's processes that asked for `name`."""

    def made(directory: Path) -> str:
        run = make(directory)
        return json.dumps([run.code, run.stdout, run.stderr, str(run.session)])

    code, stdout, stderr, session = json.loads(once(factory, name, made))
    return Run(code, stdout, stderr, Path(session))
