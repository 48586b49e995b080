"""Programs' own logs of dftracer's: which of their lines are calls of the session."""

from __future__ import annotations

import json
from pathlib import Path

from iotrace.sources.dftracer.call_reader import OwnLogs, read_posix

SINCE_NS = 1_000_000


def log(path: Path, *calls: tuple[int, int]) -> None:
    """A file with a call by each (pid, us), and a mark of the program's own."""
    name = {
        "name": "FH",
        "cat": "dftracer",
        "pid": 1,
        "tid": 1,
        "ph": 4,
        "args": {"name": "a.h5", "value": "f"},
    }
    lines = [name] + [
        {"name": "read", "cat": "POSIX", "pid": pid, "tid": pid, "ts": at_us, "dur": 1, "ph": 1}
        | {"args": {"ret": 8, "fhash": "f"}}
        for pid, at_us in calls
    ]
    lines.append(
        {"name": "work", "cat": "COMPUTE", "pid": 1, "tid": 1, "ts": 2000, "dur": 1, "ph": 1, "args": {}}
    )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_calls_of_the_sessions_processes_since_the_log_began_count(tmp_path: Path) -> None:
    (tmp_path / "posix").mkdir()
    log(tmp_path / "posix" / "io-1-preload.pfw", (1, 500))
    log(tmp_path / "trace[x]-2-app.pfw", (1, 900), (1, 1000), (2, 1500))
    log(tmp_path / "trace[x]-3-app.pfw", (99, 1500))  # of an earlier run
    log(tmp_path / "tracex-4-app.pfw", (1, 1600))
    own = OwnLogs({str(tmp_path / "trace[x]"): SINCE_NS}, frozenset({1, 2}))
    calls = read_posix(tmp_path / "posix", own_logs=own)
    assert list(zip(calls.pid.tolist(), calls.start_ns.tolist(), strict=True)) == [
        (1, 500_000),
        (1, 1_000_000),
        (2, 1_500_000),
    ]
    assert calls.names == ["read"]
    assert calls.files == ["a.h5"]
    assert calls.problems == []


def test_a_log_that_is_gone_is_a_problem(tmp_path: Path) -> None:
    own = OwnLogs({str(tmp_path / "trace"): SINCE_NS}, frozenset({1}))
    (problem,) = read_posix(tmp_path, own_logs=own).problems
    assert "is missing" in problem
