"""Measure what one traced call, span and process start cost here and now: about 0.2 s, after the command.

A table of costs would be another machine's. Two children are measured, one traced and one bare; they run
at the same time, while the launcher reads the session.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from iotrace.launch import posix
from iotrace.launch.traced_run import traced_environment
from iotrace.session import names
from iotrace.session.manifest import Costs, read_manifest, write_document

_SECONDS = 2.0

# The first line's clock holds what the start cost; `time` is built in, so that asking costs nothing.
_START = """
import time
start_ns = time.process_time_ns()
call = next_call = span = next_span = "null"
"""

# Between two calls a program decodes and computes, and the caches hold something else: a call then costs
# twice what it does in a loop of nothing else, which is measured apart. The least of several medians:
# whatever else runs only adds to it. The second file's name is not traced.
_MEASURE = """
import os, sys
other = b"1" * (2 << 20)
def cold_ns(call):
    other.count(b"0")
    begin_ns = time.perf_counter_ns()
    call()
    return time.perf_counter_ns() - begin_ns
def next_ns(call):
    begin_ns = time.perf_counter_ns()
    for _ in range(100):
        call()
    return (time.perf_counter_ns() - begin_ns) / 100
def added_ns(clock, call, bare):
    def median_ns():
        return sorted(clock(call) - clock(bare) for _ in range(15))[7]
    return min(median_ns() for _ in range(5))
one, two = (os.open(name, os.O_RDONLY) for name in map(os.path.abspath, ("traced.bin", "other.bin")))
traced, other_file = lambda: os.pread(one, 4096, 0), lambda: os.pread(two, 4096, 0)
call, next_call = added_ns(cold_ns, traced, other_file), added_ns(next_ns, traced, other_file)
recorder = getattr(sys.modules.get("iotrace.agent.bootstrap"), "_recorder", None)
if recorder is not None:
    from iotrace.agent.recording.spans import timed
    def nothing():
        pass
    timed_call = timed(recorder, nothing, "nothing", 3)
    span, next_span = added_ns(cold_ns, timed_call, nothing), added_ns(next_ns, timed_call, nothing)
    recorder.spans.clear()
"""

_PRINT = """
costs = start_ns, call, next_call, span, next_span
print('{"start": %d, "call": %s, "next_call": %s, "span": %s, "next_span": %s}' % costs)
"""


class CostMeasurement:
    """Two child processes that measure, for a session that ended.

    Raises:
        SessionError: it cannot be read.
        OSError: a process or a directory cannot be made.
    """

    def __init__(self, session: Path) -> None:
        self._session, self._manifest = session, read_manifest(session)
        posix_on = self._manifest.posix.on
        self._directory = tempfile.TemporaryDirectory(prefix="iotrace-costs-", ignore_cleanup_errors=True)
        directory = Path(self._directory.name)
        for part in (names.PROCESSES, names.POSIX):
            (directory / part).mkdir()
        for name in ("traced.bin", "other.bin"):
            (directory / name).write_bytes(bytes(4096))
        bare = {key: value for key, value in os.environ.items() if key != names.SETTINGS_VARIABLE}
        only = [str(directory / "traced.bin")] if posix_on else [names.OFF]
        capture = posix.plan(sys.executable, only, self._manifest.posix.by)
        traced = traced_environment(bare, capture, directory, {})
        self._traced = _start(_START + _MEASURE + _PRINT, traced, directory)
        self._bare = _start(_START + _PRINT, bare, directory)

    def finish(self) -> Costs | None:
        """Wait for the children; keep the costs in the session and return them, None where one failed."""
        traced, bare = _answer(self._traced), _answer(self._bare)
        self._directory.cleanup()
        if traced is None or bare is None:
            return None
        posix_on, span, next_span = self._manifest.posix.on, traced["span"], traced["next_span"]
        costs = Costs(
            host=self._manifest.host,
            posix_call_ns=max(0, round(traced["call"] or 0)) if posix_on else None,
            next_posix_call_ns=max(0, round(traced["next_call"] or 0)) if posix_on else None,
            span_ns=None if span is None else max(0, round(span)),
            next_span_ns=None if next_span is None else max(0, round(next_span)),
            process_start_ns=max(0, round((traced["start"] or 0) - (bare["start"] or 0))),
        )
        write_document(self._session / names.COSTS, costs)
        return costs


def _start(program: str, environment: dict[str, str], directory: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program],
        env=environment,
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def _answer(child: subprocess.Popen[str]) -> dict[str, float | None] | None:
    with child:  # closes its pipe, however it ends
        try:
            output, _ = child.communicate(timeout=_SECONDS)
            answer: dict[str, float | None] = json.loads(output)
            return answer
        except (subprocess.TimeoutExpired, ValueError):
            child.kill()
            return None
