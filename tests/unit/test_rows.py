"""Rows that a loop takes from a dataset without a DataLoader: what is recorded, when they are its input."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

from iotrace.agent import patching
from iotrace.agent.dataloader import wrapped_source
from iotrace.agent.loaders import record
from iotrace.agent.recording.recorder import Recorder
from iotrace.analysis.loop.deliveries import LoaderRun
from iotrace.analysis.loop.pools import _without_rows
from iotrace.session import names
from iotrace.sources.records import PoolDoubt
from iotrace.sources.session import Rank


class IterableDataset:
    def __iter__(self) -> Any:
        yield from range(6)


def taken(tmp_path: Path) -> tuple[list[Any], list[int]]:
    """What is recorded as a loop takes rows, and the rows."""
    recorder = Recorder(str(tmp_path))
    module = ModuleType("datasets.iterable_dataset")
    vars(module)["IterableDataset"] = IterableDataset
    record.hook_loaders(module, recorder, module.__name__)
    try:
        rows = list(IterableDataset())
    finally:
        recorder.pause()
        patching.undo_all()
    return list(recorder.records), rows


def test_each_row_is_recorded(tmp_path: Path) -> None:
    records, rows = taken(tmp_path)
    assert rows == [*range(6)]
    (about,) = [each for each in records if type(each) is dict and each["type"] == "iterator"]
    assert (about["rows"], about["library"]) == (True, "datasets")
    assert sum(type(each) is tuple and each[0] == names.BATCH_ROW for each in records) == 6


def test_rows_that_come_too_fast_are_recorded_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wrapped_source, "_LOOK_EVERY", 3)
    monkeypatch.setattr(wrapped_source, "_FAST_NS", 10**18)
    records, rows = taken(tmp_path)
    assert rows == [*range(6)]
    assert sum(type(each) is tuple and each[0] == names.BATCH_ROW for each in records) == 3
    assert [each["doubt"] for each in records if type(each) is dict and each["type"] == "pool_doubt"] == [
        "fast"
    ]


def loader(rows: bool) -> LoaderRun:
    return cast(
        LoaderRun, SimpleNamespace(description=SimpleNamespace(rows=rows), passes={(int(rows), 0): None})
    )


@pytest.mark.parametrize(
    ("kinds", "rounds", "fast", "left"),
    [
        ([True], 5, False, [True]),
        ([True], 0, False, []),  # nothing tells where a step begins
        ([True], 5, True, []),
        ([True, False], 5, False, [False]),
        ([False], 0, False, [False]),
    ],
)
def test_rows_are_input_where_nothing_else_is_and_steps_are_known(
    kinds: list[bool], rounds: int, fast: bool, left: list[bool]
) -> None:
    doubts = [PoolDoubt(1, "fast")] if fast else []
    main = SimpleNamespace(
        rows=lambda kind: [None] * (rounds if kind == names.ROUND_ROW else 0), of_type=lambda _: doubts
    )
    found = _without_rows(cast(Rank, SimpleNamespace(main=main)), [loader(each) for each in kinds])
    assert [each.description.rows for each in found] == left
