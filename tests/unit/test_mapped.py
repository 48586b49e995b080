"""Page faults outside read paths: what of an item's blocked time is reading, and of which file."""

from __future__ import annotations

import numpy as np
import pytest

from iotrace.session.names import KIND_ITEM, KIND_MAPPED, KIND_READ_PATH
from iotrace.sources.paths import Paths
from tests.unit.test_production import calls, composed, paths, spans

__all__ = ["paths"]

ITEM = {"start_ns": 0, "duration_ns": 100, "cpu_ns": 40, "kind": KIND_ITEM}
VIEW = {"duration_ns": 1, "kind": KIND_MAPPED, "bytes": 4096}


def test_blocked_time_of_an_item_is_read_where_every_switch_was_a_fault(paths: Paths) -> None:
    table = spans({**ITEM, "major_faults": 5, "voluntary_switches": 5}, {**VIEW, "start_ns": 10, "file": 0})
    parts, files = composed(paths, table, calls())
    # 60 of 99 ns outside the access were blocked; the access itself is a read path.
    assert parts["read"] == pytest.approx(60)
    assert parts["transform"] == pytest.approx(39)
    assert files["a.h5"] == pytest.approx([60, 1, 89 * 39 / 99])


@pytest.mark.parametrize(("faults", "switches", "read"), [(0, 1, 0), (1, 4, 15), (9, 3, 60), (4, 0, 0)])
def test_the_share_of_faults_among_switches_counts(
    paths: Paths, faults: int, switches: int, read: float
) -> None:
    table = spans({**ITEM, "major_faults": faults, "voluntary_switches": switches})
    parts, files = composed(paths, table, calls())
    assert parts["read"] == pytest.approx(read)
    assert parts["read"] + parts["transform"] == pytest.approx(100)
    assert files == {}


def test_read_paths_and_calls_keep_their_own_faults_and_time(paths: Paths) -> None:
    table = spans(
        {**ITEM, "major_faults": 6, "voluntary_switches": 6},
        {"start_ns": 0, "duration_ns": 50, "cpu_ns": 20, "kind": KIND_READ_PATH, "file": 1}
        | {"major_faults": 4, "voluntary_switches": 4},
    )
    # The item's own: 50 ns, 30 of them blocked, 10 of these in a call, with both its switches faults.
    parts, files = composed(paths, table, calls((60, 70, 0)))
    assert parts["read"] == pytest.approx(30 + 10 + 20)
    assert parts["decode"] == pytest.approx(20)
    assert parts["transform"] == pytest.approx(20)
    assert files["b.h5"] == pytest.approx([30, 20, 0])
    assert files["a.h5"] == pytest.approx([10, 0, 0])


def test_files_are_charged_by_the_bytes_accessed(paths: Paths) -> None:
    table = spans(
        {**ITEM, "major_faults": 5, "voluntary_switches": 5},
        {**VIEW, "start_ns": 10, "file": 0, "bytes": 3 * 4096},
        {**VIEW, "start_ns": 20, "file": 1},
        {**VIEW, "start_ns": 300, "file": 1},
    )
    _, files = composed(paths, table, calls())
    assert files["a.h5"][0] == pytest.approx(45)
    assert files["b.h5"][0] == pytest.approx(15)


def test_without_an_access_the_only_mapped_file_is_charged(paths: Paths) -> None:
    table = spans({**ITEM, "major_faults": 5, "voluntary_switches": 5})
    parts, files = composed(paths, table, calls(), mapped_files=["/d/b.h5"])
    assert files == {"b.h5": pytest.approx([60, 0, 0])}
    _, files = composed(paths, table, calls(), mapped_files=["/d/a.h5", "/d/b.h5"])
    assert files == {}
    assert parts["read"] == pytest.approx(60)


def test_a_copy_out_of_a_map_is_a_read_path(paths: Paths) -> None:
    copy = {"start_ns": 0, "duration_ns": 80, "cpu_ns": 30, "kind": KIND_MAPPED, "file": 0, "bytes": 8192}
    table = spans(
        {**ITEM, "major_faults": 2, "voluntary_switches": 2},
        {**copy, "major_faults": 2, "voluntary_switches": 2},
    )
    parts, files = composed(paths, table, calls())
    assert (parts["read"], parts["decode"], parts["transform"]) == pytest.approx((50, 30, 20))
    assert files["a.h5"] == pytest.approx([50, 30, 20])


def test_an_item_of_another_thread_is_not_touched(paths: Paths) -> None:
    table = spans(
        {**ITEM, "major_faults": 5, "voluntary_switches": 5},
        {**VIEW, "start_ns": 10, "file": 0, "tid": 99},
    )
    _, files = composed(paths, table, calls())
    assert files["a.h5"][0] == 0
    assert np.isclose(files["a.h5"][1], 1)
