"""What failed, and what followed: made-up records, tracebacks as Python and torch print them."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest

from iotrace.analysis.failures import parse
from iotrace.analysis.rank import SessionAnalysis
from iotrace.analysis.results import Failure, SessionInfo
from iotrace.analysis.verdict.failed import cause_of, what_failed, why_failed
from iotrace.session import names
from iotrace.session.manifest import Manifest, Outcome, PosixState
from iotrace.sources.records import (
    Distributed,
    Failure as Recorded,
    Identity,
    IteratorEnd,
    IteratorStart,
    Text,
    Worker,
)
from iotrace.sources.session import open_session
from iotrace.timeline.calls import ENDING, failure_name, failure_slices
from iotrace.viewer.view import FAILURE, WORST, of_interest, view_of_session
from tests.support.results import unknown
from tests.support.rows import BatchRecord, Line, lines_of

MS = 1_000_000
ORIGINAL = """Traceback (most recent call last):
  File "/env/lib/python3.11/site-packages/torch/utils/data/_utils/fetch.py", line 54, in fetch
    data = [self.dataset[idx] for idx in possibly_batched_index]
            ~~~~~~~~~~~~^^^^^
  File "/home/me/train.py", line 8, in __getitem__
    return self.file["x"][index]
  File "h5py/_objects.pyx", line 54, in h5py._objects.with_phil.wrapper
OSError: Can't read data (filter returned failure during read)
"""
RAISED_AGAIN = f"""Traceback (most recent call last):
  File "/home/me/train.py", line 19, in <module>
    for batch in loader:
  File "/env/lib/python3.11/site-packages/torch/_utils.py", line 794, in reraise
    raise exception
OSError: Caught OSError in DataLoader worker process 1.
Original {ORIGINAL}
"""
DEAD_WORKER = """Traceback (most recent call last):
  File "/home/me/train.py", line 19, in <module>
    for batch in loader:
  File "/env/lib/python3.11/site-packages/torch/utils/data/_utils/signal_handling.py", line 73, in handler
    _error_if_any_worker_fails()
RuntimeError: DataLoader worker (pid 11) is killed by signal: Killed.

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/home/me/train.py", line 19, in <module>
    for batch in loader:
  File "/env/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 1275, in _try_get_data
    raise RuntimeError(
RuntimeError: DataLoader worker (pid(s) 11) exited unexpectedly
"""
TIMED_OUT = """Traceback (most recent call last):
  File "/home/me/train.py", line 9, in <module>
    for batch in loader:
  File "/env/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 1308, in _get_data
    raise RuntimeError(
RuntimeError: DataLoader timed out after 3 seconds
"""
SPAWNED = """Traceback (most recent call last):
  File "/env/lib/python3.11/site-packages/torch/multiprocessing/spawn.py", line 220, in join
    raise ProcessRaisedException(msg, error_index, failed_process.pid)
torch.multiprocessing.spawn.ProcessRaisedException:

-- Process 1 terminated with the following error:
Traceback (most recent call last):
  File "/home/me/train.py", line 11, in main
    raise KeyError("weights")
KeyError: 'weights'

"""
TORCHRUN = """Traceback (most recent call last):
  File "/env/lib/python3.11/site-packages/torch/distributed/launcher/api.py", line 317, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
======================================================
train.py FAILED
------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-22_10:57:59
  host      : node1
  rank      : 1 (local_rank: 1)
  exitcode  : -{signal} (pid: 12)
  error_file: <N/A>
  traceback : Signal {signal} received by PID 12
======================================================
"""
GROUP = """  + Exception Group Traceback (most recent call last):
  |   File "/home/me/train.py", line 3, in <module>
  |     raise ExceptionGroup("two", [ValueError(1)])
  | ExceptionGroup: two (1 sub-exception)
  +-+---------------- 1 ----------------
    | ValueError: 1
    +------------------------------------
"""
SYNTAX = """Traceback (most recent call last):
  File "/home/me/train.py", line 1, in <module>
    import model
  File "/home/me/model.py", line 1
    x = (
        ^
SyntaxError: '(' was never closed
"""


@pytest.mark.parametrize(
    ("text", "error", "message", "innermost"),
    [
        (ORIGINAL, "OSError", "Can't read data (filter returned failure during read)", "h5py/_objects.pyx"),
        (
            RAISED_AGAIN,
            "OSError",
            "Can't read data (filter returned failure during read)",
            "h5py/_objects.pyx",
        ),
        (TIMED_OUT, "RuntimeError", "DataLoader timed out after 3 seconds", "/env/lib"),
        (SPAWNED, "KeyError", "'weights'", "/home/me/train.py"),
        (
            TORCHRUN,
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError",
            "train.py FAILED",
            "/env",
        ),
        (GROUP, "ExceptionGroup", "two (1 sub-exception)", "/home/me/train.py"),
        (SYNTAX, "SyntaxError", "'(' was never closed", "/home/me/model.py"),
        ("KeyboardInterrupt\n", "KeyboardInterrupt", "", ""),
        ("Traceback (most recent call last):\n  ...\n", "Cut", "", ""),
    ],
)
def test_a_traceback_is_read_down_to_what_raised_first(
    text: str, error: str, message: str, innermost: str
) -> None:
    found = parse(text, "Cut")
    assert (found.error, found.message) == (error, message)
    assert (found.frames[-1][0] if found.frames else "").startswith(innermost)


def loop(delivered: int, failed_ms: int | None = None) -> list[Line]:
    """A loop over a loader with the worker 11: a batch each 10 ms, then perhaps an exception."""
    records: list[Line] = [IteratorStart(0, 0, "Volumes", 2, 0, 0, 0, pids=[10, 11])]
    for index in range(delivered):
        records.append(BatchRecord(0, 0, 0, index, 1, index * 10 * MS, (index * 10 + 4) * MS, True, index))
    if failed_ms is not None:
        records.append(IteratorEnd(0, 0, "OSError", failed_ms * MS, failed_ms * MS, delivered))
    return records


def raised(text: str, ms: int, **known: int) -> Recorded:
    return Recorded(ms * MS, "Error", text, **known)


def found(
    path: Path, outcome: Outcome, processes: dict[int, list[Line]], spans: dict[int, bytes] | None = None
) -> list[Failure]:
    """The failures of a session whose first process started all others."""
    first = next(iter(processes))
    for pid, records in processes.items():
        directory = path / names.PROCESSES / f"{pid}-0"
        directory.mkdir(parents=True)
        who = Identity(1, pid, first, "main" if pid == first else "forked", (0, 0, 1), prefixes=["/env"])
        (directory / names.PROCESS).write_bytes(msgspec.json.encode(who))
        (directory / names.RECORDS).write_bytes(lines_of(records))
        (directory / names.SPANS).write_bytes((spans or {}).get(pid, b""))
    manifest = Manifest(names.FORMAT_VERSION, "0", ["python"], "/home/me", "host", 0, 1, PosixState(False))
    (path / names.MANIFEST).write_bytes(msgspec.json.encode(manifest))
    (path / names.OUTCOME).write_bytes(msgspec.json.encode(outcome))
    return [failure for _, failure in SessionAnalysis(open_session(path)).timed_failures]


def told(failures: list[Failure]) -> list[tuple[int | None, str, int | None, int | None]]:
    return [(each.process, each.type, each.rank, each.worker) for each in failures]


BROKEN = Outcome(1, 0, 0)


def test_an_exception_of_a_worker_is_the_cause_of_the_loops(tmp_path: Path) -> None:
    worker = [Worker(1), raised(ORIGINAL, 150, generation=0, index=18, taken_ns=140 * MS)]
    main = [*loop(18, 180), raised(RAISED_AGAIN, 300)]
    cause, consequence = found(tmp_path, BROKEN, {7: main, 11: worker})
    assert told([cause, consequence]) == [(11, "OSError", 0, 1), (7, "OSError", 0, None)]
    assert (cause.at, cause.batch, cause.epoch) == ("train.py:8 in __getitem__", 18, 0)
    assert cause.after_steps == 17
    assert cause.stack == ORIGINAL.rstrip()


def test_of_several_workers_the_one_whose_batch_the_loop_asked_for_ended_the_run(tmp_path: Path) -> None:
    """The worker of a later batch failed before it, on the same file."""
    early = [Worker(0), raised(ORIGINAL, 145, generation=0, index=19, taken_ns=140 * MS)]
    worker = [Worker(1), raised(ORIGINAL, 150, generation=0, index=18, taken_ns=140 * MS)]
    failures = found(
        tmp_path, BROKEN, {7: [*loop(18, 180), raised(RAISED_AGAIN, 300)], 10: early, 11: worker}
    )
    assert [each.batch for each in failures] == [19, 18, 18]
    session = unknown(SessionInfo, exit_code=1, failures=failures)
    cause = cause_of(session)
    assert cause is not None
    assert (cause.process, cause.worker, cause.batch) == (11, 1, 18)


@pytest.mark.parametrize("main", [loop(18), [*loop(18, 180), *loop(20)[1:]]])
def test_what_a_program_goes_on_after_is_no_failure(tmp_path: Path, main: list[Line]) -> None:
    """A batch that the loop never asked for, one that it skipped; then the loop's own failure."""
    worker = [Worker(1), raised(ORIGINAL, 150, generation=0, index=18, taken_ns=140 * MS)]
    failures = found(tmp_path, BROKEN, {7: [*main, raised(TIMED_OUT, 300)], 11: worker})
    assert told(failures) == [(7, "RuntimeError", 0, None)]


@pytest.mark.parametrize(
    ("library", "at_ms", "text", "file"),
    [
        ("h5py.Dataset.__getitem__", 144, ORIGINAL, "x.h5"),
        ("h5py.Dataset.__getitem__", 130, ORIGINAL, None),  # for an earlier batch
        ("PIL.ImageFile.load", 144, ORIGINAL, None),
        ("PIL.ImageFile.load", 144, ORIGINAL.replace("read data", "read x.h5"), "x.h5"),
        ("numpy.load", 144, ORIGINAL.replace("h5py/_objects.pyx", "/env/numpy/core/shape_base.py"), None),
        ("numpy.load", 144, ORIGINAL.replace("h5py/_objects.pyx", "/env/numpy/lib/format.py"), "x.h5"),
    ],
)
def test_the_file_is_named_where_the_exception_came_out_of_what_read_it(
    tmp_path: Path, library: str, at_ms: int, text: str, file: str | None
) -> None:
    span = [at_ms * MS, 3 * MS, 0, -1, 1, 0, 1, names.KIND_READ_PATH, 0, 0, 0, 0, -1]
    worker = [Text(0, library), Text(1, "/home/me/x.h5"), Worker(1)]
    worker.append(raised(text, 150, generation=0, index=18, taken_ns=140 * MS))
    spans = {11: struct.pack(names.SPAN_FORMAT, *span)}
    cause, *_ = found(tmp_path, BROKEN, {7: loop(18, 180), 11: worker}, spans)
    assert cause.file == file


def test_what_a_sample_read_last_is_told_though_the_exception_is_not_about_it(tmp_path: Path) -> None:
    """Not what the sample before it read; the item's span ends as the exception leaves it."""

    def span(start_ms: int, end_ms: int, kind: int, file: int) -> bytes:
        fields = [start_ms * MS, (end_ms - start_ms) * MS, 0, file, 1, 0, file, kind, 0, 0, 0, 0, -1]
        return struct.pack(names.SPAN_FORMAT, *fields)

    text = ORIGINAL.replace("h5py/_objects.pyx", "/home/me/train.py")
    texts: list[Line] = [Text(0, "numpy.load"), Text(1, "/home/me/x.npz"), Text(2, "/home/me/y.npz")]
    for last, read in ((span(146, 148, names.KIND_READ_PATH, 2), "y.npz"), (b"", None)):
        rows = span(140, 145, names.KIND_ITEM, -1) + span(141, 144, names.KIND_READ_PATH, 1)
        worker = [*texts, Worker(1), raised(text, 150, generation=0, index=18, taken_ns=140 * MS, sample=5)]
        spans = {11: rows + span(145, 149, names.KIND_ITEM, -1) + last}
        cause, *_ = found(tmp_path / str(read), BROKEN, {7: loop(18, 180), 11: worker}, spans)
        assert (cause.file, cause.read_last) == (None, read)


def test_a_worker_that_died_is_named_and_the_last_of_several_errors_counts(tmp_path: Path) -> None:
    main = [*loop(18), raised(SYNTAX, 20), raised(f"\x1b[31m{DEAD_WORKER}\x1b[0m", 300)]
    (failure,) = found(tmp_path, BROKEN, {7: main, 11: [Worker(1)]})
    assert told([failure]) == [(11, "RuntimeError", 0, 1)]
    assert "\x1b" not in failure.stack
    assert failure.message == "DataLoader worker (pid 11) is killed by signal: Killed."


def test_a_spawned_process_is_named_not_the_one_that_started_it(tmp_path: Path) -> None:
    failures = found(
        tmp_path, BROKEN, {7: [raised(SPAWNED, 300, of_pid=12)], 12: [Distributed(1, 2), *loop(9)]}
    )
    assert [(each.process, each.type, each.at) for each in failures] == [
        (12, "KeyError", "train.py:11 in main")
    ]


@pytest.mark.parametrize(("signal", "first"), [(9, "SIGKILL"), (11, "SIGSEGV"), (15, "RuntimeError")])
def test_a_rank_that_was_killed_comes_before_what_the_others_raise(
    tmp_path: Path, signal: int, first: str
) -> None:
    """torchrun ends the other ranks by SIGTERM."""
    torchrun = [raised(TORCHRUN.replace("{signal}", str(signal)), 900)]
    killed = [Distributed(1, 2), *loop(9)]
    other = [Distributed(0, 2), *loop(9), raised(TIMED_OUT, 300)]
    failures = found(tmp_path, BROKEN, {7: torchrun, 12: killed, 13: other})
    assert (failures[0].type, failures[0].process) == (first, 12 if first.startswith("SIG") else 13)
    assert failures[-1].type.endswith("ChildFailedError")


def test_a_rank_that_ended_with_a_code_of_its_own_is_named_with_it(tmp_path: Path) -> None:
    torchrun = [raised(TORCHRUN.replace("-{signal}", "7"), 900)]
    ranks = {12: [Distributed(1, 2), *loop(9)], 13: [Distributed(0, 2), *loop(9), raised(TIMED_OUT, 300)]}
    failures = found(tmp_path / "exits", BROKEN, {7: torchrun, **ranks})
    assert (failures[0].type, failures[0].process, failures[0].rank) == ("exit code 7", 12, 1)
    session = unknown(SessionInfo, exit_code=1, failures=failures)
    assert what_failed(session, []).endswith(": rank 1 (pid 12) ended with exit code 7")
    assert why_failed(session, []).startswith("no exception was seen")
    ranks[12].append(Recorded(150 * MS, "Error", SYNTAX, thread="feeder"))
    failures = found(tmp_path / "thread", BROKEN, {7: torchrun, **ranks})
    assert failures[0].is_exit
    why = why_failed(unknown(SessionInfo, exit_code=1, failures=failures), [])
    assert why.startswith("before it, thread feeder ended: SyntaxError")
    # It raised an exception: that says more than the code.
    ranks[12].append(raised(SYNTAX, 200))
    failures = found(tmp_path / "raises", BROKEN, {7: torchrun, **ranks})
    assert not any(each.is_exit for each in failures)
    assert failures[0].type == "SyntaxError"


@pytest.mark.parametrize(("main", "role"), [([], "helper"), ([raised(TIMED_OUT, 400)], "process")])
def test_a_process_whose_failure_its_parent_bore_helps(tmp_path: Path, main: list[Line], role: str) -> None:
    first, *_ = found(tmp_path, BROKEN, {7: main, 8: [raised(SYNTAX, 300)]})
    assert (first.process, first.role) == (8, role)


def test_a_command_that_a_signal_ended(tmp_path: Path) -> None:
    failures = found(tmp_path, Outcome(137, 0, 0, signal=9, oom_kills=1), {7: loop(18)})
    assert told(failures) == [(7, "SIGKILL", 0, None)]


@pytest.mark.parametrize(
    ("about", "name"),
    [
        ({"worker": 0, "file": "data/part2.h5"}, "failed: part2.h5 · worker 0 · OSError"),
        ({"role": "rank"}, "failed: training process · OSError"),
        ({"role": "rank", "thread": "feeder"}, "failed: thread feeder of training process · OSError"),
        ({}, "failed: process · OSError"),
    ],
)
def test_the_slice_of_a_failure_begins_with_the_file_and_who_failed(about: dict[str, Any], name: str) -> None:
    assert failure_name(unknown(Failure, type="OSError", message="no", **about)) == name


@pytest.mark.parametrize("ended_ms", [1_000, 60_000])
def test_a_failure_is_selected_however_long_its_command_took_to_end(tmp_path: Path, ended_ms: int) -> None:
    """Perfetto zooms out to five times a selected slice that is more than half of the screen."""
    found(tmp_path, Outcome(1, ended_ms * MS, 0), {7: [*loop(18, 180), raised(TIMED_OUT, 300)]})
    analysis = SessionAnalysis(open_session(tmp_path))
    view = view_of_session(analysis, FAILURE)
    first, *rest = failure_slices(analysis.ranks[0], analysis.timed_failures)
    assert view.selected_ns == (first.start_ns, first.end_ns - first.start_ns)
    assert view.shown_ns is not None
    start_ns, end_ns = view.shown_ns
    assert start_ns <= first.start_ns < first.end_ns <= end_ns <= ended_ms * MS
    assert ended_ms < 5_000 or 2 * (first.end_ns - first.start_ns) <= end_ns - start_ns
    assert [each.name for each in rest] == ([ENDING] if ended_ms > 5_300 else [])
    assert [first, *rest][-1].end_ns == ended_ms * MS


def test_a_session_that_failed_is_opened_at_its_failure(tmp_path: Path) -> None:
    worker = [Worker(1), raised(ORIGINAL, 150, generation=0, index=18, taken_ns=140 * MS)]
    main = [*loop(18, 180), raised(RAISED_AGAIN, 300)]
    found(tmp_path / "failed", BROKEN, {7: main, 11: worker})
    found(tmp_path / "well", Outcome(0, 0, 0), {7: loop(18, 180)})
    looked = {
        name: of_interest(SessionAnalysis(open_session(tmp_path / name))) for name in ("failed", "well")
    }
    assert looked == {"failed": FAILURE, "well": WORST}
