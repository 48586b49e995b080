"""Few files that take most of the time of their group; and groups in which that only looks so."""

from __future__ import annotations

from typing import Any, cast

import pytest

from iotrace.analysis.results import FileGroup
from iotrace.analysis.storage import few_files as module
from iotrace.analysis.storage.few_files import Costs, few_files
from tests.support.results import unknown
from tests.unit.test_file_groups import cost, grouped, images, row


def costs(usual_ns: float, **dear_ns: float) -> Costs:
    """Sixty files that two batches each needed; some cost more."""
    paths = [f"dog/{number:03}" for number in range(60)]
    spent_ns = {path: dear_ns.get(path.replace("dog/", "of_"), usual_ns) for path in paths}
    return {path: (spent, 2, spent) for path, spent in spent_ns.items()}


def without_cpu(known: Costs) -> Costs:
    """The same where all that is dear was a wait for a CPU."""
    return {path: (spent, times, min(spent, 100.0)) for path, (spent, times, _) in known.items()}


def test_three_of_sixty_files() -> None:
    found = few_files(costs(100.0, of_007=9000.0, of_027=10_000.0, of_047=8000.0))
    assert found is not None
    assert (found.paths, found.of) == (["dog/027", "dog/007", "dog/047"], 60)
    assert found.fraction == pytest.approx(27_000 / 32_700)


@pytest.mark.parametrize(
    "alike",
    [
        costs(100.0),  # all are equally dear
        costs(100.0, of_007=900.0, of_027=900.0),  # they cost more, and little in all
        {path: cost for path, cost in costs(1.0, of_007=900.0).items() if path < "dog/009"},  # too few files
        without_cpu(costs(100.0, of_007=9000.0, of_027=10_000.0)),
        {
            **costs(100.0),
            "dog/index": (60_000.0, 600, 60_000.0),
        },  # needed often, and no dearer than the others
    ],
)
def test_none_is_told_where_none_stands_out(alike: Costs) -> None:
    assert few_files(alike) is None


def test_one_of_several_that_dominate_does_not_stand_alone() -> None:
    paths = images("dog", 60)
    dear = frozenset(paths[7::20])
    waits = [cost(path, 50.0 if path == paths[7] else 15.0 if path in dear else 0.1) for path in paths]
    groups, _ = grouped(waits, [row(path) for path in paths], few=dear)
    assert [*groups] == ["dog/"]
    alone, _ = grouped(waits, [row(path) for path in paths])
    assert [*alone] == [paths[7], "dog/"]


def test_a_file_that_stands_alone_is_compared_with_its_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(known: Costs, *groups: str) -> dict[str, list[str] | None]:
        monkeypatch.setattr(module, "_costs", lambda _: known)
        asked: Any = [unknown(FileGroup, path=path) for path in groups]
        found = module.with_few_files(asked, cast(Any, None))
        return {each.path: None if each.few is None else each.few.paths for each in found}

    larger = costs(100.0, of_007=90_000.0)
    assert told(larger, "dog/007", "dog/") == {"dog/007": ["dog/007"], "dog/": None}
    # As dear as another one, or in another directory: it is not told as the larger one.
    assert told(costs(100.0, of_007=9000.0, of_027=9000.0), "dog/007", "dog/")["dog/007"] is None
    assert told({**costs(100.0), "cat/1": (90_000.0, 2, 90_000.0)}, "cat/1", "dog/")["cat/1"] is None
