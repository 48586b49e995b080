"""Which rank comes last to the collectives of a kind and group: answers by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from iotrace.analysis.device.collectives import RankTrace
from iotrace.analysis.device.imbalance import imbalance_of
from iotrace.analysis.device.late_groups import TIED, UNSURE
from iotrace.analysis.results import Imbalance, LateGroup
from iotrace.analysis.traces import analyse_traces
from iotrace.report.blocks import whose
from iotrace.report.views import tables_of
from iotrace.sources.kineto.reader import read_kineto
from tests.support.kineto import operator
from tests.unit.test_imbalance import nccl, rank

DATA = Path(__file__).parent.parent / "data"
ALL, SOME = "[0, 1, 2]", "[0, 2]"
# By sequence number its end, and when each rank came.
CALLS = {1: (150, (100, 140, 120)), 2: (250, (240, 230, 210)), 3: (350, (320, 340, 320))}


def ranks(off_ns: int | None = None) -> list[RankTrace]:
    """Three ranks: rank 1 is last in two of three calls, rank 0 in one; in another group none is."""
    made = []
    for number in range(3):
        own = [nccl(arrives[number], end, sequence, "0", ALL) for sequence, (end, arrives) in CALLS.items()]
        if number != 1:
            own.append(nccl(400, 420, 1, "1", SOME))
        made.append(replace(rank(number, operator("aten::mm", 0, 5), *own), clock_bound_ns=off_ns))
    return made


def compared(found: Imbalance | None) -> list[LateGroup]:
    assert found is not None
    return found.late_groups


def test_the_last_rank_of_each_kind_and_group() -> None:
    everyone, pair = compared(imbalance_of(ranks()))
    assert (everyone.kind, everyone.group, everyone.ranks) == ("all_reduce", "0", [0, 1, 2])
    assert (everyone.late_rank, everyone.late_calls, everyone.matched) == (1, 2, 3)
    assert everyone.late_pct == pytest.approx(200 / 3)
    # The others come at 100 and 120, then both at 320: it is 30 and 20 us later than their median.
    assert everyone.late_ms == pytest.approx(0.025)
    assert everyone.unknown_why is None
    assert (pair.group, pair.ranks, pair.matched, pair.tied) == ("1", [0, 2], 1, 1)
    assert (pair.late_rank, pair.late_ms, pair.late_pct, pair.unknown_why) == (None, None, None, TIED)


def test_clocks_that_do_not_confirm_the_order_name_no_rank() -> None:
    found = imbalance_of(ranks(off_ns=20_000))  # 40 us apart at most: no skew is larger
    assert found is not None
    assert found.withheld is not None
    assert {(one.late_rank, one.unknown_why) for one in found.late_groups} == {(None, found.withheld)}
    # Within 1 us they confirm it.
    everyone, _ = compared(imbalance_of(ranks(off_ns=500)))
    assert (everyone.late_rank, everyone.unsure) == (1, 0)
    assert UNSURE not in (everyone.unknown_why, found.withheld)


def test_what_only_shows_a_profiler_that_began_later_counts_as_no_lateness() -> None:
    made = [
        rank(number, operator("aten::mm", began, began + 5), nccl(began + 50, 200, 1))
        for number, began in enumerate((0, 100))
    ]
    (group,) = compared(imbalance_of(made))
    assert (group.late_rank, group.late_ms) == (1, 0)
    assert group.skew_ms == pytest.approx(0.1)


def test_the_view_of_two_real_ranks_names_the_late_one() -> None:
    traces = [read_kineto(DATA / f"gloo_rank{number}.json.gz") for number in (0, 1)]
    late = tables_of("collectives", analyse_traces(traces))[-1]
    (group,) = late.rows
    assert isinstance(group, LateGroup)
    assert (group.kind, group.late_rank, group.matched) == ("all_reduce", 1, 4)
    assert any("no clock was compared" in note for note in late.notes)
    alone = tables_of("collectives", analyse_traces(traces[:1]))[-1]
    assert (alone.rows, alone.unknown) == ([], "it takes traces of two ranks or more")


def test_tables_of_one_rank_do_not_name_it() -> None:
    trace = read_kineto(DATA / "gloo_rank0.json.gz")
    assert set(whose(tables_of("collectives", analyse_traces([trace])))) == {""}
