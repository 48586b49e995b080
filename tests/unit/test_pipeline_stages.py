"""What is told of the stages behind a loop's items, and of the bytes that came through their queues."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from iotrace.analysis.loop.deliveries import FIELDS, Deliveries
from iotrace.analysis.loop.queue_names import firsts_of, named_apart
from iotrace.analysis.results import PipelineStage, busiest
from iotrace.analysis.rules.facts.loader_facts import _did
from iotrace.analysis.storage.kernel_account import coverage_of
from iotrace.analysis.table import NONE
from iotrace.analysis.wait.called import _most_at_once, _own_time, with_settings
from iotrace.analysis.wait.pipeline import _holds_up, _Items
from iotrace.session import names
from iotrace.sources.clocks.session_clock import Clock
from iotrace.sources.columns import Columns
from iotrace.sources.posix_calls import COLUMNS, PosixCalls
from iotrace.sources.processes import SPAN_DTYPE, Process
from iotrace.sources.records import Identity, Queue, Stage, Tick
from iotrace.sweeps.execute import _stages_have, settings_by_hand

PID = 7


def numbers(*values: int) -> Any:
    return np.array(values, np.int64)


def made(taken: list[int], prepared: list[int]) -> Deliveries:
    known: dict[str, Any] = {field: np.full(len(taken), NONE) for field in FIELDS}
    return Deliveries(
        Columns(len(taken), {**known, "taken_ns": numbers(*taken), "prepared_ns": numbers(*prepared)}), {}
    )


def test_a_maker_waits_for_room_from_one_item_to_the_next() -> None:
    items = _Items.__new__(_Items)
    items._start_ns, items._end_ns = 0, 100
    own = made([0, 50, 90, 10], [10, 60, 95, 20])
    assert items._room(numbers(1, 1, 1, 2), 2, own) == (40 + 30) / 200


def test_queues_that_a_library_makes_anew_for_each_pass_are_one_stage() -> None:
    put = [("torchdata", 0), ("load", 0), ("torchdata", 0), ("load", 0), ("load", 8)]
    queues = [Queue(queue=at, of="queue.Queue", limit=n, by=by, mono_ns=0) for at, (by, n) in enumerate(put)]
    none = numbers()
    assert firsts_of([*queues, None, None], none, none, renewed=True).tolist() == [0, 1, 0, 1, 4, 5, 6]


def of_program(*apart: list[str], by: str = "put_all") -> list[Queue | None]:
    return [
        Queue(queue=at, of="queue.Queue", limit=4, by=by, mono_ns=0, apart=own)
        for at, own in enumerate(apart)
    ]


def test_a_queue_that_the_program_makes_anew_is_one_stage_and_two_side_by_side_are_two() -> None:
    queues = of_program(["thread Thread-1"], ["thread Thread-2"], ["thread Thread-3"])
    taken, ns = numbers(0, 0, 1, 1, 2, 2), numbers(1, 2, 11, 12, 21, 22)
    assert firsts_of(queues, taken, ns).tolist() == [0, 0, 0]
    # The next epoch's is filled, and asked once, before the last one of the epoch before.
    assert firsts_of(queues[:2], numbers(0, 0, 0, 1, 0, 1, 1, 1), numbers(*range(8))).tolist() == [0, 0]
    assert firsts_of(queues[:2], numbers(0, 1, 0, 1), numbers(1, 2, 3, 4)).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("apart", "called"),
    [
        ((["images", "thread a"], ["labels", "thread b"]), ["images", "labels"]),
        ((["main", "thread a"], ["main", "thread b"]), ["put_all in thread a", "put_all in thread b"]),
        ((["line a.py:3"], ["line a.py:5"]), ["put_all taken at a.py:3", "put_all taken at a.py:5"]),
        # A name that both have tells nothing; of one that nothing tells from the other, none is called anew.
        ((["main", "images"], ["main", "labels"]), ["images", "labels"]),
        ((["main"], ["main", "labels"]), ["put_all", "put_all"]),
        ((["images"],), ["put_all"]),
    ],
)
def test_stages_of_one_function_are_called_by_what_tells_them_apart(
    apart: tuple[list[str], ...], called: list[str]
) -> None:
    queues = of_program(*apart)
    assert [each.by for each in named_apart(queues, numbers(*range(len(queues)))) if each] == called


def test_a_stage_has_the_line_of_what_it_is_called_by() -> None:
    lines = {"put_all": "a.py:3", "images": "a.py:9", "labels": "a.py:20"}
    queues = [
        replace(each, sites=lines)
        for each in of_program(["images", "thread a"], ["labels", "thread b"])
        if each is not None
    ]
    assert [each.site for each in named_apart(queues, numbers(0, 1)) if each] == ["a.py:9", "a.py:20"]
    alike = [replace(each, apart=[f"thread {each.queue}"]) for each in queues]
    assert [each.site for each in named_apart(alike, numbers(0, 1)) if each] == ["a.py:3", "a.py:3"]
    two_of_one_name = [
        replace(queues[0], apart=["images"], sites={"put_all": "a.py:3", "images": ""}),
        queues[1],
    ]
    assert [each.site for each in named_apart(two_of_one_name, numbers(0, 1)) if each] == [None, "a.py:20"]


def test_of_several_queues_made_anew_each_goes_on_with_its_own_stage() -> None:
    own = ["images", "thread 1"], ["labels", "thread 2"], ["labels", "thread 3"], ["images", "thread 4"]
    taken, ns = numbers(0, 1, 0, 1, 2, 3, 2, 3), numbers(*range(8))
    assert firsts_of(of_program(*own), taken, ns).tolist() == [0, 1, 1, 0]
    # Where nothing tells, in the order in which they were made.
    none = of_program(["thread 1"], ["thread 2"], ["thread 3"], ["thread 4"])
    assert firsts_of(none, taken, ns).tolist() == [0, 1, 0, 1]


def test_a_queue_made_anew_is_called_as_the_first() -> None:
    queues = of_program(["images"], ["labels"], ["images"], ["labels"])
    found = [each.by for each in named_apart(queues, numbers(0, 1, 0, 1)) if each]
    assert found == ["images", "labels", "images", "labels"]


def test_more_queues_side_by_side_than_are_told_apart_keep_their_names() -> None:
    queues = of_program(*([f"thread {number}"] for number in range(200)))
    # Each hands over at the same times.
    numbered, ns = np.tile(np.arange(200), 3), np.repeat(np.arange(3), 200)
    firsts = firsts_of(queues, numbered, ns)
    assert firsts.tolist() == [*range(200)]
    assert {each.by for each in named_apart(queues, firsts) if each} == {"put_all"}


def test_a_queue_for_each_request_is_one_stage() -> None:
    queues = of_program(*([] for _ in range(200)))
    assert set(firsts_of(queues, np.arange(200), np.arange(200)).tolist()) == {0}


def test_a_function_has_as_many_threads_as_were_in_it_at_once() -> None:
    assert _most_at_once(numbers(0, 10, 12, 30), numbers(10, 20, 14, 40)) == 2


def calls(*rows: tuple[int, int, int, int]) -> Any:
    """Make spans of their start, duration, thread and CPU time (-1: of a coroutine)."""
    spans: Any = np.zeros(len(rows), SPAN_DTYPE)
    for field, values in zip(
        ("start_ns", "duration_ns", "tid", "cpu_ns"), zip(*rows, strict=True), strict=True
    ):
        spans[field] = values
    return spans


def test_a_task_of_a_library_does_itself_what_no_function_does_that_it_calls() -> None:
    own_ns, inside = _own_time(
        calls((0, 100, 1, 9), (10, 30, 1, 9), (50, 20, 1, 9), (55, 5, 1, 9), (10, 30, 2, 9))
    )
    assert own_ns.tolist() == [50, 30, 15, 5, 30]
    assert inside.tolist() == [-1, 0, 0, 2, -1]


def test_coroutines_of_one_thread_hold_each_other_not() -> None:
    own_ns, inside = _own_time(calls((0, 100, 1, -1), (10, 30, 1, -1)))
    assert (own_ns.tolist(), inside.tolist()) == ([100, 30], [-1, -1])


def stage(name: str, busy: float, of: str = "threads", wait_ms: float = 5.0) -> PipelineStage:
    return PipelineStage(
        name=name, makers=1, of=of, busy=busy, items=9, item_ms=1.0, puts="spdl", wait_ms=wait_ms
    )


def told(*records: tuple[str, str, int, str | None]) -> Any:
    made = [
        Stage(library="spdl", name=name, value=value, mono_ns=1, site="/a/b.py:3", setting=setting, set_at=at)
        for name, setting, value, at in records
    ]
    of = SimpleNamespace(of_type=lambda _: made)
    paths = SimpleNamespace(shown=lambda path: path.removeprefix("/a/"))
    return SimpleNamespace(
        rank=SimpleNamespace(main=of, processes=[of]), session=SimpleNamespace(paths=paths)
    )


def test_a_stage_has_the_setting_of_its_function_with_its_line() -> None:
    analysis = told(("load", "concurrency", 3, "/a/b.py:9"), ("", "num_threads", 8, "/a/b.py:10"))
    (found,) = with_settings(analysis, [stage("load", 2.8)])
    assert (found.makers, found.site, found.setting, found.set_at) == (3, "b.py:3", "concurrency", "b.py:9")


def test_where_all_threads_work_their_number_holds_up() -> None:
    analysis = told(("load", "concurrency", 3, "/a/b.py:9"), ("", "num_threads", 2, "/a/b.py:10"))
    found = with_settings(analysis, [stage("load", 1.2), stage("crop", 0.7), stage("ask", 5.0, "coroutines")])
    assert [each.setting for each in found] == ["num_threads", "num_threads", None]
    assert found[0].makers == 2


def test_a_setting_that_more_threads_than_it_allows_contradict_says_nothing() -> None:
    """Several datasets have it at once, as where one interleaves others."""
    analysis = told(("load", "num_parallel_calls", 1, "/a/b.py:9"))
    (found,) = with_settings(analysis, [replace(stage("load", 1.7), makers=2)])
    assert (found.makers, found.setting, found.set_at) == (2, None, None)
    (found,) = with_settings(analysis, [replace(stage("load", 1.0), makers=2)])  # calls of two epochs overlap
    assert (found.makers, found.setting, found.set_at) == (1, "num_parallel_calls", "b.py:9")


def test_two_lines_that_set_it_differently_say_nothing() -> None:
    analysis = told(("load", "concurrency", 3, "/a/b.py:9"), ("load", "concurrency", 4, "/a/b.py:12"))
    (found,) = with_settings(analysis, [stage("load", 2.8)])
    assert (found.makers, found.setting, found.set_at) == (1, None, None)


def test_of_two_stages_that_work_all_the_time_the_one_without_room_holds_up() -> None:
    waits = [stage("load", 0.4, wait_ms=5.1), stage("decode", 1.0)]
    assert max(waits, key=_holds_up).name == "decode"


def no_calls() -> PosixCalls:
    columns: dict[str, Any] = {name: numbers() for name in COLUMNS}
    return PosixCalls(**columns, names=[], files=[], nodes=[], pids=frozenset(), problems=[])


def process(item: int, queue: int) -> Process:
    row = {"queue": queue, "item": item, "tid": PID, "asked_ns": 4, "taken_ns": 5, "length": -1, "kind": -1}
    handed = Columns(1, {name: numbers(value) for name, value in row.items()})
    ticks = [Tick(clock=(at, 0, at), cpu_ns=0, rchar=read) for at, read in ((1, 0), (9, 10_000))]
    identity = Identity(format=1, pid=PID, ppid=1, role="main", clock=(0, 0, 1))
    spans: Any = np.zeros(0, SPAN_DTYPE)
    return Process(identity, Clock([[0, 0, 1]]), [*ticks], spans, {}, arrays={names.HANDED_ROW: handed})


def test_what_came_through_a_followed_pipe_is_no_untraced_read() -> None:
    message = 123 << 30 | 9_000
    assert coverage_of(process(message, queue=5), no_calls(), []).kernel_bytes == 1_000
    assert coverage_of(process(8, queue=4), no_calls(), []).kernel_bytes == 10_000
    of_pool = process(8, queue=4)
    task = {"pool": 5, "item": 0, "came_ns": 5, "bytes": 7_000}
    of_pool.arrays[names.GIVEN_ROW] = Columns(1, {name: numbers(value) for name, value in task.items()})
    assert coverage_of(of_pool, no_calls(), []).kernel_bytes == 3_000


def test_a_sweep_names_the_settings_of_a_librarys_stages_to_change_by_hand() -> None:
    """`num_threads` limits all of them, and is not what the sweep sets; a queue is no library's stage."""
    known = replace(stage("load", 1.2), setting="concurrency", set_at="train.py:9")
    limited = replace(stage("crop", 0.7), setting="num_threads", set_at="train.py:10")
    assert settings_by_hand([known, known, limited]) == ["concurrency at train.py:9", "concurrency of spdl"]
    of_nodes = replace(known, puts="queue.Queue", setting="num_workers")  # torchdata hands over by queues
    assert settings_by_hand([of_nodes]) == ["num_workers at train.py:9"]
    assert settings_by_hand([replace(of_nodes, setting=None, set_at=None)]) == []


def test_a_sweep_sees_what_a_librarys_stages_were_given() -> None:
    """A queue of the program and what limits all stages say nothing; those that differ are not set by it."""
    known = replace(stage("load", 1.2), setting="concurrency", setting_value=4, set_at="train.py:9")
    limited = replace(known, setting="num_threads", setting_value=8)
    assert _stages_have([known, known, limited, stage("crop", 0.7)]) == 4
    assert _stages_have([known, replace(known, setting_value=2)]) is None
    assert _stages_have([limited]) is None


@pytest.mark.parametrize(
    ("busy", "name"), [((0.1, 1.1, 0.0), "b"), ((0.4, 0.5, 0.3), None), ((0.5, 0.5), "a"), ((), None)]
)
def test_the_busiest_stage_works_as_long_as_all_the_others(busy: tuple[float, ...], name: str | None) -> None:
    found = busiest([stage("abc"[number], each) for number, each in enumerate(busy)])
    assert (found and found.name) == name


@pytest.mark.parametrize(
    ("known", "did"),
    [
        # It waited for a CPU: that is no sleep.
        ({"on_cpu_fraction": 0.4, "queued_fraction": 0.6}, (0.0, 0.4)),
        # For the interpreter, which Python code of another thread had: nor is that.
        ({"on_cpu_fraction": 0.4, "queued_fraction": 0.1, "locks_ms": {"interpreter": 5.0}}, (0.0, 0.4)),
        ({"on_cpu_fraction": 0.1, "queued_fraction": 0.1}, (0.8, 0.1)),  # for a server
        ({"on_cpu_fraction": 0.1, "queued_fraction": None}, (None, None)),
        ({"on_cpu_fraction": 0.1, "queued_fraction": 0.0, "item_ms": 0.5}, (None, None)),  # not timed
    ],
)
def test_a_stage_sleeps_only_where_it_neither_computes_nor_waits_to(
    known: dict[str, Any], did: tuple[float | None, float | None]
) -> None:
    about: dict[str, Any] = {"name": "resample", "makers": 1, "of": "threads", "busy": 0.8, "items": 90}
    about |= {"item_ms": 10.0, "puts": "queue.Queue", "wait_ms": 8.0, **known}
    assert _did(PipelineStage(**about)) == tuple(
        None if each is None else pytest.approx(each) for each in did
    )
