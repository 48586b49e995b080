"""Waiting for what a test asserts about: a condition with a deadline that a busy machine keeps."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Value = TypeVar("Value")

# A machine may be several times slower than the one that a test was written on.
PATIENCE_S = 120.0


def eventually(condition: Callable[[], Value], within_s: float = PATIENCE_S) -> Value:
    """Return the first true value of ``condition()``."""
    deadline = time.monotonic() + within_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {within_s:.0f} s"
        time.sleep(0.05)


def runs(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rsplit(b")", 1)[1].split()[0] not in (b"Z", b"X")
    except (FileNotFoundError, ProcessLookupError):
        return False


# For the text of a program that runs until it has been sampled: how often the sidecar of its session has been
# round by now.
TURNS = """
def turns():
    import glob
    paths = glob.glob("session-*/telemetry/*/records.jsonl")
    return sum(open(path).read().count('"type":"system"') for path in paths)
"""
