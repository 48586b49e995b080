"""What is recorded of results that a loop takes from ``joblib.Parallel``."""

from __future__ import annotations

import gc
import multiprocessing.pool
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from iotrace.agent.patching import undo_all
from iotrace.agent.pools import joblib_calls, process_pools
from iotrace.agent.recording.recorder import Recorder
from iotrace.session import names

joblib = pytest.importorskip("joblib")


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    found = Recorder(str(tmp_path))
    monkeypatch.setattr(found, "start_loop", lambda: None)
    process_pools.hook_pool(multiprocessing.pool, found)
    joblib_calls.hook_parallel(joblib.parallel, found)
    yield found
    undo_all()


def rows(recorder: Recorder, kind: int) -> list[dict[str, int]]:
    found = [row for row in recorder.records if isinstance(row, tuple) and row[0] == kind]
    return [dict(zip(names.ROW_FIELDS[kind], row[1:], strict=True)) for row in found]


class Item:
    """What a task returns; it can be referred to weakly."""


def make(fails: bool = False) -> Item:
    if fails:
        raise KeyError("no such file")
    return Item()


def parallel(how: str, **more: Any) -> Any:
    return joblib.Parallel(n_jobs=2, backend="threading", return_as=how, batch_size=1, **more)


@pytest.mark.parametrize("how", ["generator", "generator_unordered"])
def test_each_result_of_a_generator_is_an_item(recorder: Recorder, how: str) -> None:
    assert len(list(parallel(how)(joblib.delayed(make)() for _ in range(9)))) == 9
    taken, made = rows(recorder, names.BATCH_ROW), rows(recorder, names.MADE_ROW)
    assert len(taken) == 9
    assert [each["index"] for each in taken] == [each["task"] for each in made]
    (start,) = [each for each in recorder.records if isinstance(each, dict) and each["type"] == "iterator"]
    assert (start["pool"], start["dataset"]) == ("joblib.Parallel", "make")


def test_each_result_of_tasks_in_batches_is_an_item(recorder: Recorder) -> None:
    calls = joblib.Parallel(n_jobs=2, backend="threading", return_as="generator", batch_size=4)
    assert len(list(calls(joblib.delayed(make)() for _ in range(9)))) == 9
    taken, made = rows(recorder, names.BATCH_ROW), rows(recorder, names.MADE_ROW)
    assert [each["index"] for each in taken] == [each["task"] for each in made]
    at_once = [each for each in made if each["prepared_ns"] == each["taken_ns"]]
    assert 0 < len(at_once) < 9  # they came along with the first of their batch
    assert len({each["index"] for each in taken}) == 9


def test_a_list_of_results_is_one_item(recorder: Recorder) -> None:
    for _ in range(3):
        assert len(parallel("list")(joblib.delayed(make)() for _ in range(4))) == 4
    assert len(rows(recorder, names.BATCH_ROW)) == 3


def test_errors_and_ends_are_as_without_iotrace(recorder: Recorder) -> None:
    with pytest.raises(KeyError, match="no such file"):
        list(parallel("generator")(joblib.delayed(make)(number == 2) for number in range(4)))
    left = parallel("generator")(joblib.delayed(make)() for _ in range(4))
    next(left)
    left.close()
    assert next(left, None) is None


def test_no_result_is_kept_alive(recorder: Recorder) -> None:
    results = parallel("generator")(joblib.delayed(make)() for _ in range(3))
    gone = [weakref.ref(result) for result in results]
    del results
    gc.collect()
    assert [each() for each in gone[:-1]] == [None, None]
