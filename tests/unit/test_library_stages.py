"""What is recorded of functions that libraries call to make batches, and of settings for them."""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from iotrace.agent import bootstrap
from iotrace.agent.loaders import stages
from iotrace.agent.patching import undo_all
from iotrace.agent.pools.tasks import name_of, of_program
from iotrace.agent.recording.recorder import Recorder
from iotrace.session.names import KIND_CALLBACK


@pytest.fixture
def recorder(tmp_path: Path) -> Any:
    stages._told.clear()
    yield Recorder(str(tmp_path))
    undo_all()


def told(recorder: Any) -> list[dict[str, Any]]:
    return [each for each in recorder.records if isinstance(each, dict) and each["type"] == "stage"]


def double(value: int) -> int:
    return 2 * value


async def fetch(value: int) -> int:
    await asyncio.sleep(0)
    return value + 1


class Builder:
    def pipe(self, op: Any, *, concurrency: int = 1) -> Builder:
        return self

    def build(self, *, num_threads: int) -> int:
        return num_threads


class Maps:
    """As grain's datasets: a function, which an element is given to."""

    def __init__(self, function: Any) -> None:
        self._map_fn = function

    def _map_element(self, element: Any) -> Any:
        return self._map_fn(element)


def test_the_settings_of_a_pipeline_are_told_with_their_lines(recorder: Any) -> None:
    stages.hook_spdl_builder(SimpleNamespace(PipelineBuilder=Builder), recorder)
    for _ in range(2):  # once
        assert Builder().pipe(double, concurrency=3).pipe(fetch).build(num_threads=4) == 4
    about = [(each["name"], each["setting"], each["value"]) for each in told(recorder)]
    assert about == [("double", "concurrency", 3), ("fetch", "concurrency", 1), ("", "num_threads", 4)]
    first = told(recorder)[0]
    assert first["site"] == f"{__file__}:{double.__code__.co_firstlineno}"
    assert first["set_at"].startswith(f"{__file__}:")


def test_a_coroutine_is_a_call_of_its_function(recorder: Any) -> None:
    module = SimpleNamespace(convert_to_async=lambda op, executor: op)
    stages.hook_spdl_pipes(module, recorder)
    called = module.convert_to_async(fetch, None)
    assert asyncio.iscoroutinefunction(called)
    assert asyncio.run(called(4)) == 5
    span = recorder.spans[-1]
    assert (span[2], span[7], span[5]) == (-1, KIND_CALLBACK, recorder.text("fetch"))


def test_what_is_converted_stays_the_library_s(recorder: Any) -> None:
    async def converted(value: int) -> int:
        return value

    module = SimpleNamespace(convert_to_async=lambda op, executor: converted)
    stages.hook_spdl_pipes(module, recorder)
    assert module.convert_to_async(double, None) is converted


def test_a_coroutine_that_fails_fails_as_ever(recorder: Any) -> None:
    async def broken(value: int) -> int:
        raise ValueError(value)

    module = SimpleNamespace(convert_to_async=lambda op, executor: op)
    stages.hook_spdl_pipes(module, recorder)
    with pytest.raises(ValueError, match="4"):
        asyncio.run(module.convert_to_async(broken, None)(4))


def test_a_function_that_a_dataset_maps_is_recorded_and_stays_as_it_is(recorder: Any) -> None:
    before = pickle.dumps(Maps(double))
    stages.hook_grain_maps(SimpleNamespace(MapMapDataset=Maps), recorder)
    assert Maps(double)._map_element(3) == 6
    assert recorder.spans[-1][5] == recorder.text("double")
    assert pickle.dumps(Maps(double)) == before


class Batches:
    """As a program's `PyDataset` of keras."""

    def __getitem__(self, index: int) -> int:
        return 10 * index


def test_what_keras_threads_call_of_a_dataset_is_recorded(recorder: Any) -> None:
    datasets = {0: Batches()}
    enqueuer = type("OrderedEnqueuer", (), {"__init__": lambda self, dataset, workers=1: None})
    module = SimpleNamespace(
        _SHARED_SEQUENCES=datasets,
        OrderedEnqueuer=enqueuer,
        get_index=lambda uid, index: datasets[uid][index],
    )
    stages.hook_keras_datasets(module, recorder)
    enqueuer(Batches(), workers=3)
    assert module.get_index(0, 4) == 40
    first = told(recorder)[0]
    assert (first["name"], first["setting"], first["value"]) == ("Batches.__getitem__", "workers", 3)
    assert [span[7] for span in recorder.spans] == [KIND_CALLBACK]


def test_functions_that_are_called_all_the_time_are_recorded_no_longer(
    recorder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages.hook_grain_maps(SimpleNamespace(MapMapDataset=Maps), recorder)
    monkeypatch.setattr(stages._pace, "is_fast", True)
    assert Maps(double)._map_element(3) == 6
    assert not [each for each in recorder.spans if each[5] == recorder.text("double")]


def test_a_task_of_a_library_has_the_name_of_the_program_s_function() -> None:
    library: Any = SimpleNamespace(__name__="run")

    def items() -> Any:
        yield 1

    held = items()

    def go_on() -> Any:
        return next(held)

    assert of_program((library, double, 3)) is double
    assert of_program((len, [1])) is None
    code = go_on.__code__.replace(co_filename="/usr/lib/python3/dist-packages/spdl/run.py")
    assert go_on.__closure__ is not None
    library_s = type(go_on)(code, globals(), "go_on", None, go_on.__closure__)
    assert name_of(of_program((library_s,))) == "items"


def test_what_is_hooked_is_there() -> None:
    for function in bootstrap.STAGE_MODULES.values():
        assert callable(getattr(stages, function))
