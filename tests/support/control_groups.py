"""A control group of version 1 with a limit, in which a test starts its programs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def limited(controller: str, limit: str, value: int) -> Iterator[Path]:
    """Make a group of `controller` whose file `limit` holds `value`; this process's children enter it."""
    groups = Path("/sys/fs/cgroup") / controller
    group = groups / f"iotrace-tests-{os.getpid()}"
    try:
        group.mkdir()
        (group / limit).write_text(str(value))
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    own = Path("/proc/self/cgroup").read_text().splitlines()
    before = next(line for line in own if f":{controller}:" in line)
    try:
        (group / "cgroup.procs").write_text("0")
        yield group
    finally:
        (groups / before.rpartition(":")[2].lstrip("/") / "cgroup.procs").write_text("0")
        group.rmdir()
