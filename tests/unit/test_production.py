"""Composing a batch's production from made-up spans and calls."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from iotrace.analysis.loop.deliveries import Delivery
from iotrace.analysis.wait.called_files import with_called
from iotrace.analysis.wait.explain import composed as whole_parts, explain
from iotrace.analysis.wait.file_costs import FileNames
from iotrace.analysis.wait.production import PARTS, compose
from iotrace.analysis.wait.read_ahead import threads_reading_ahead
from iotrace.session.names import KIND_COLLATE, KIND_ITEM, KIND_READ_PATH
from iotrace.sources.clocks.session_clock import Clock
from iotrace.sources.paths import Paths
from iotrace.sources.posix_calls import PosixCalls
from iotrace.sources.processes import SPAN_DTYPE, Process
from iotrace.sources.records import Identity
from iotrace.sources.session import Rank
from tests.support.tables import deliveries_of

PID = 7


def spans(*rows: dict[str, int]) -> np.ndarray[Any, Any]:
    table = np.zeros(len(rows), dtype=SPAN_DTYPE)
    for place, row in enumerate(rows):
        table["file"][place] = -1
        table["tid"][place] = PID
        for name, value in row.items():
            table[name][place] = value
        if "cpu_ns" not in row:
            table["cpu_ns"][place] = row["duration_ns"]
    return table


def calls(*rows: tuple[int, int, int]) -> PosixCalls:
    """Rows of start, end, file."""
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    zero = np.zeros(len(table), dtype=np.int64)
    return PosixCalls(
        start_ns=table[:, 0],
        end_ns=table[:, 1],
        pid=zero + PID,
        tid=zero + PID,
        name=zero,
        file=table[:, 2],
        result=zero,
        offset=zero,
        count=zero,
        node=zero,
        calls=zero + 1,
        names=["read"],
        files=["/d/a.h5", "/d/b.h5"],
        nodes=["host"],
        pids=frozenset({PID}),
        problems=[],
    )


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(tmp_path, "/d", ["/d/a.h5", "/d/b.h5"])


def process_of(table: np.ndarray[Any, Any]) -> Process:
    identity = Identity(format=1, pid=PID, ppid=1, role="forked", clock=[0, 0, 1])
    return Process(identity, Clock([[0, 0, 1]]), [], table, {0: "/d/a.h5", 1: "/d/b.h5"})


def composed(
    paths: Paths,
    table: np.ndarray[Any, Any],
    posix: PosixCalls,
    end: int = 100,
    mapped_files: Sequence[str] = (),
    elsewhere: PosixCalls | None = None,
) -> tuple[dict[str, float], dict[str, list[float]]]:
    process = process_of(table)
    if elsewhere is not None:
        process = with_called(process, elsewhere, paths)
    made = compose(process, posix, paths, np.array([0]), np.array([end]), mapped_files)
    return dict(zip(PARTS, made.parts[0].tolist(), strict=True)), made.files.by_owner(1)[0]


def test_each_instant_belongs_to_the_first_that_holds_it(paths: Paths) -> None:
    table = spans(
        {"start_ns": 5, "duration_ns": 80, "kind": KIND_ITEM},
        {"start_ns": 10, "duration_ns": 50, "kind": KIND_READ_PATH, "file": 0},
        {"start_ns": 85, "duration_ns": 10, "kind": KIND_COLLATE},
    )
    parts, files = composed(paths, table, calls((20, 35, 0)))
    assert parts == {"read": 15, "decode": 35, "transform": 30, "collate": 10, "unknown": 10}
    assert files == {"a.h5": [15, 35, 25]}


def test_blocked_time_that_the_tracer_missed_is_read(paths: Paths) -> None:
    row = {"start_ns": 0, "duration_ns": 100, "cpu_ns": 40, "kind": KIND_READ_PATH, "file": 1}
    parts, files = composed(paths, spans({**row, "voluntary_switches": 3}), calls())
    assert (parts["read"], parts["decode"]) == (60, 40)
    assert files == {"b.h5": [60, 40, 0]}
    preempted, _ = composed(paths, spans({**row, "involuntary_switches": 3}), calls())
    assert (preempted["read"], preempted["decode"]) == (0, 100)


def test_waiting_for_a_cpu_is_no_reading(paths: Paths) -> None:
    row = {"start_ns": 0, "duration_ns": 100, "cpu_ns": 40, "kind": KIND_READ_PATH, "voluntary_switches": 3}
    for delay_ns, read in ((0, 60), (50, 10), (60, 0)):
        parts, _ = composed(paths, spans({**row, "run_delay_ns": delay_ns}), calls())
        assert (parts["read"], parts["decode"]) == (read, 100 - read)


def test_of_a_library_with_threads_the_calls_are_all_the_reading(paths: Paths) -> None:
    row = {"start_ns": 0, "duration_ns": 100, "cpu_ns": 40, "kind": KIND_READ_PATH, "voluntary_switches": 3}
    parts, _ = composed(paths, spans({**row, "run_delay_ns": -1}), calls((10, 30, 0)))
    assert (parts["read"], parts["decode"]) == (20, 80)
    remote, _ = composed(paths, spans({**row, "run_delay_ns": -1}), calls())
    assert (remote["read"], remote["decode"]) == (60, 40)


def test_frames_that_lie_in_a_buffer_are_not_read(paths: Paths) -> None:
    """Calls read the file of other spans; the same, of another file, without a byte, and of a mapped file."""
    row = {"start_ns": 0, "duration_ns": 100, "cpu_ns": 40, "kind": KIND_READ_PATH, "voluntary_switches": 3}
    table = spans({**row, "run_delay_ns": -1, "file": 1})
    read, other = (replace(calls((500, 510, file)), result=np.array([4096])) for file in (1, 0))
    mapped = replace(calls((490, 495, 1), (500, 510, 1)), names=["mmap", "read"], name=np.array([0, 1]))
    mapped = replace(mapped, result=np.array([-1, 4096]))
    for elsewhere, ns in ((read, 0), (other, 60), (calls((500, 510, 1)), 60), (mapped, 60)):
        parts, files = composed(paths, table, calls(), elsewhere=elsewhere)
        assert (parts["read"], parts["decode"]) == (ns, 100 - ns)
        assert files == {"b.h5": [ns, 100 - ns, 0]}
    own, _ = composed(paths, spans({**row, "run_delay_ns": 0, "file": 1}), calls(), elsewhere=read)
    assert own["read"] == 60  # a thread that reads itself: what the tracer does not see is read


def test_a_store_is_read_by_calls_where_its_files_are(paths: Paths) -> None:
    table = spans({"start_ns": 0, "duration_ns": 100, "kind": KIND_READ_PATH, "file": 0})
    process = replace(process_of(table), texts={0: "/d/a.zarr"})
    chunk = replace(calls((0, 9, 0)), result=np.array([4096]), files=["/d/a.zarr/c/0"])
    assert with_called(process, chunk, paths).called == {0}
    assert not with_called(process, replace(chunk, files=["/d/a.zarr2"]), paths).called
    assert not with_called(replace(process, texts={0: "s3://bucket/a.zarr"}), chunk, paths).called


def test_blocked_time_inside_a_call_is_not_counted_twice(paths: Paths) -> None:
    row = {"start_ns": 0, "duration_ns": 100, "cpu_ns": 40, "kind": KIND_READ_PATH, "voluntary_switches": 1}
    parts, _ = composed(paths, spans(row), calls((10, 70, 0)))
    assert (parts["read"], parts["decode"]) == (60, 40)


def test_files_read_at_once_share_the_instant(paths: Paths) -> None:
    parts, files = composed(paths, spans(), calls((0, 40, 0), (20, 60, 1)))
    assert parts["read"] == 60
    assert files == {"a.h5": [30, 0, 0], "b.h5": [30, 0, 0]}


def test_a_call_inside_one_of_stdio_takes_no_second_share_of_the_instant(paths: Paths) -> None:
    posix = calls((0, 40, 0), (0, 40, 1), (10, 20, 0))
    posix = replace(posix, names=["read", "fread"], name=np.array([1, 0, 0]), tid=np.array([7, 8, 7]))
    parts, files = composed(paths, spans(), posix)
    assert parts["read"] == 40
    assert files == {"a.h5": [20, 0, 0], "b.h5": [20, 0, 0]}


def test_a_read_path_inside_another_counts_once(paths: Paths) -> None:
    table = spans(
        {"start_ns": 0, "duration_ns": 60, "kind": KIND_READ_PATH, "file": 0},
        {"start_ns": 10, "duration_ns": 30, "kind": KIND_READ_PATH, "file": 0},
    )
    parts, files = composed(paths, table, calls())
    assert parts["decode"] == 60
    assert files == {"a.h5": [0, 60, 0]}


def test_what_follows_the_read_of_one_file_is_transform_after_it(paths: Paths) -> None:
    items = [{"start_ns": start, "duration_ns": 40, "kind": KIND_ITEM} for start in (0, 50)]
    read = {"start_ns": 60, "duration_ns": 10, "kind": KIND_READ_PATH, "file": 1}
    # Before its read at 10 to 15, an item has read nothing.
    parts, files = composed(paths, spans(*items, read), calls((10, 15, 0)))
    assert parts["transform"] == 10 + 25 + 10 + 10 + 20
    assert files == {"a.h5": [5, 0, 25], "b.h5": [0, 10, 20]}


def test_after_two_files_nobody_knows_which_one_the_work_is_about(paths: Paths) -> None:
    item = {"start_ns": 0, "duration_ns": 100, "kind": KIND_ITEM}
    _, files = composed(paths, spans(item), calls((10, 15, 0), (20, 25, 1)))
    assert files == {"a.h5": [5, 0, 0], "b.h5": [5, 0, 0]}
    # Another call than a read, such as stat, reads nothing.
    stat = calls((10, 15, 0), (20, 25, 1))
    stat = replace(stat, names=["read", "stat"], name=np.array([0, 1]))
    _, files = composed(paths, spans(item), stat)
    assert files == {"a.h5": [5, 0, 80], "b.h5": [5, 0, 0]}


def test_a_file_within_a_store_that_a_read_path_reads_is_the_stores(tmp_path: Path) -> None:
    item = {"start_ns": 0, "duration_ns": 100, "kind": KIND_ITEM}
    read = {"start_ns": 10, "duration_ns": 30, "kind": KIND_READ_PATH, "file": 0}
    posix = replace(calls((20, 25, 0), (30, 35, 1)), files=["/d/a.h5/c/0", "/d/a.h5/c/1"])
    known = Paths(tmp_path, "/d", ["/d/a.h5", "/d/a.h5/c/0", "/d/a.h5/c/1"])
    _, files = composed(known, spans(item, read), posix)
    assert files == {"a.h5/c/0": [5, 0, 0], "a.h5/c/1": [5, 0, 0], "a.h5": [0, 20, 60]}


def test_what_a_library_decodes_on_its_own_threads_is_of_the_call_that_has_the_file(paths: Paths) -> None:
    item = {"start_ns": 0, "duration_ns": 100, "kind": KIND_ITEM}
    call = {"start_ns": 10, "duration_ns": 60, "kind": KIND_READ_PATH, "file": 0}
    inner = {"kind": KIND_READ_PATH, "tid": PID + 1}
    own = [{**inner, "start_ns": 20, "duration_ns": 20}, {**inner, "start_ns": 45, "duration_ns": 25}]
    parts, files = composed(paths, spans(item, call, *own, {**own[0], "tid": PID + 2}), calls())
    assert (parts["decode"], files) == (60, {"a.h5": [0, 60, 30]})
    # One that goes on behind the call is not of it: nobody knows its file, and both share the instant.
    parts, files = composed(paths, spans(item, call, {**own[1], "duration_ns": 45}), calls())
    assert (parts["decode"], files["a.h5"][1]) == (80, 47.5)


def test_a_read_path_without_a_file_decodes_what_its_item_read_last(paths: Paths) -> None:
    item = {"start_ns": 0, "duration_ns": 100, "kind": KIND_ITEM}
    decoded = [{"start_ns": at, "duration_ns": 10, "kind": KIND_READ_PATH} for at in (20, 50, 150)]
    parts, files = composed(paths, spans(item, *decoded), calls((10, 15, 0), (40, 45, 1)), end=200)
    assert parts["decode"] == 30
    assert files == {"a.h5": [5, 10, 0], "b.h5": [5, 10, 0]}


def waited(paths: Paths, later_taken: int) -> dict[str, Any]:
    """Explain the wait [60, 160) for a batch of a.h5 made in [10, 70); the next takes 85 ns, of b.h5."""
    table = spans(
        {"start_ns": 10, "duration_ns": 60, "kind": KIND_ITEM},
        {"start_ns": 10, "duration_ns": 60, "kind": KIND_READ_PATH, "file": 0},
        {"start_ns": later_taken, "duration_ns": 85, "kind": KIND_ITEM},
        {"start_ns": later_taken, "duration_ns": 68, "kind": KIND_READ_PATH, "file": 1},
    )
    clock, made_of = Clock([[0, 0, 1]]), {0: "/d/a.h5", 1: "/d/b.h5"}
    main = Process(Identity(1, 1, 0, "main", [0, 0, 1]), clock, [], spans(), {})
    worker = Process(Identity(1, PID, 1, "forked", [0, 0, 1]), clock, [], table, made_of)
    common: dict[str, Any] = {"loader": 0, "iterator": 0, "epoch": 0, "pid": PID, "worker": 0, "up_ns": 5}
    session: Any = SimpleNamespace(
        calls_of=lambda process: calls(),
        paths=paths,
        processes=[main, worker],
        numbered=lambda node, pid: [each for each in (main, worker) if each.pid == pid],
    )
    deliveries = deliveries_of(
        [
            Delivery(
                number=0, index=0, wait_start_ns=60, delivered_ns=160, taken_ns=10, prepared_ns=70, **common
            ),
            Delivery(
                number=1,
                index=1,
                wait_start_ns=later_taken + 85,
                delivered_ns=later_taken + 86,
                taken_ns=later_taken,
                prepared_ns=later_taken + 85,
                **common,
            ),
        ]
    )
    first = next(iter(explain(session, Rank(0, None, 0, main, [worker]), deliveries)))
    assert sum(first.causes.values()) == 100
    return {**{name: ns for name, ns in first.causes.items() if ns}, "files": first.files}


def test_a_batch_under_way_waits_for_what_its_worker_does_meanwhile(paths: Paths) -> None:
    # 85 of the 90 ns after it was made: four fifths in b.h5.
    assert waited(paths, later_taken=72) == {
        "decode": 78,
        "transform": 17,
        "transport": 5,
        "files": {"a.h5": [0, 10, 0], "b.h5": [0, 68, 17]},
    }


def test_a_batch_whose_worker_is_idle_waits_for_its_transport(paths: Paths) -> None:
    for later_taken in (160, 85):  # for all of the way; for 15 of its 90 ns
        found = waited(paths, later_taken)
        assert found == {"decode": 10, "transport": 90, "files": {"a.h5": [0, 10, 0]}}


def test_the_own_code_of_a_sample_that_asks_another_loader_is_its_transform(paths: Paths) -> None:
    table = spans(
        {"start_ns": 0, "duration_ns": 200, "kind": KIND_ITEM},  # of a source that holds the whole batch
        {"start_ns": 15, "duration_ns": 80, "kind": KIND_ITEM},
        {"start_ns": 40, "duration_ns": 20, "kind": KIND_ITEM},  # the other loader's
    )
    main = Process(Identity(1, PID, 0, "main", [0, 0, 1]), Clock([[0, 0, 1]]), [], table, {})
    session: Any = SimpleNamespace(calls_of=lambda process: calls(), paths=paths, processes=[main])
    times = {"wait_start_ns": 10, "delivered_ns": 100, "taken_ns": 10, "prepared_ns": 100}
    made = deliveries_of([Delivery(loader=0, number=0, iterator=0, epoch=0, index=0, **times)])
    held = (np.array([0, 0]), np.array([30, 70]), np.array([60, 75]))
    parts, _ = whole_parts(session, Rank(0, None, 0, main, []), made, held, {PID: []}, FileNames())
    assert dict(zip(PARTS, parts[0].tolist(), strict=True)) == {
        **dict.fromkeys(PARTS, 0),
        "transform": 15 + 10 + 20,
        "unknown": 5 + 5,
    }


def shuffling(head: int, paths: Paths, name: str = "batches", tid: int = PID) -> frozenset[int]:
    """Make 40 items that read one call of 100 bytes each, after `head` such calls in or before the first."""
    before, count = 1000, 40
    items = [
        {"start_ns": before + 20 * each, "duration_ns": 20, "kind": KIND_ITEM, "name": 0, "tid": tid}
        for each in range(count)
    ]
    if tid == PID:  # the first asks of a source fill it
        items[0] = {**items[0], "start_ns": 0, "duration_ns": before + 20}
    reads = [(each, each + 1, 0) for each in range(1, head + 1)]
    reads += [(before + 20 * each + 5, before + 20 * each + 6, 1) for each in range(count)]
    made = calls(*reads)
    made = replace(made, tid=made.tid - PID + tid, result=made.result + 100)
    identity = Identity(format=1, pid=PID, ppid=1, role="forked", clock=[0, 0, 1])
    return threads_reading_ahead(Process(identity, Clock([[0, 0, 1]]), [], spans(*items), {0: name}), made)


@pytest.mark.parametrize("tid", [PID, PID + 1])
def test_a_thread_that_fills_a_buffer_first_reads_ahead(paths: Paths, tid: int) -> None:
    assert shuffling(20, paths, tid=tid) == {tid}
    assert not shuffling(3, paths, tid=tid)


def test_what_an_index_asks_for_is_read_for_it(paths: Paths) -> None:
    assert not shuffling(20, paths, name="Images.__getitem__")


def test_one_large_call_is_no_buffer_and_files_of_another_kind_are_none(paths: Paths) -> None:
    assert shuffling(20, paths) == {PID}
    made = calls((1, 2, 0), *((1000 + 20 * each + 5, 1000 + 20 * each + 6, 1) for each in range(40)))
    made = replace(made, result=np.append(np.array([9000]), made.result[1:] + 100))
    items = [
        {"start_ns": 1000 * (each > 0) + 20 * each, "duration_ns": 20 + 1000 * (not each), "kind": KIND_ITEM}
        for each in range(40)
    ]
    identity = Identity(format=1, pid=PID, ppid=1, role="forked", clock=[0, 0, 1])
    process = Process(identity, Clock([[0, 0, 1]]), [], spans(*items), {0: "rows"})
    assert not threads_reading_ahead(process, made)
    many = calls(
        *((each, each + 1, 0) for each in range(1, 30)),
        *zip(*(made.start_ns[1:], made.end_ns[1:], made.file[1:]), strict=True),
    )
    many = replace(many, result=many.result + 100, files=["/d/index.json", "/d/b.h5"])
    assert not threads_reading_ahead(process, many)
    assert threads_reading_ahead(process, replace(many, files=["/d/a.h5", "/d/b.h5"])) == {PID}


def test_of_what_is_shuffled_nothing_is_told_by_the_file_but_its_reading(paths: Paths) -> None:
    table = spans({"start_ns": 0, "duration_ns": 100, "kind": KIND_ITEM})
    identity = Identity(format=1, pid=PID, ppid=1, role="forked", clock=[0, 0, 1])
    process = Process(identity, Clock([[0, 0, 1]]), [], table, {})
    window = np.array([0]), np.array([100])
    for ahead, own in ((frozenset[int](), [10, 0, 80]), (frozenset({PID}), [10, 0, 0])):
        made = compose(process, calls((10, 20, 0)), paths, *window, ahead=ahead)
        assert made.files.by_owner(1)[0] == {"a.h5": own}
        assert dict(zip(PARTS, made.parts[0].tolist(), strict=True))["transform"] == 90
