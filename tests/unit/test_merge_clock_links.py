"""From rank to rank: which links are followed, what becomes of the bounds, and who is left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from iotrace.errors import IotraceError
from iotrace.merge.alignment import link
from iotrace.merge.input_files import CHROME, DFTRACER, SESSION, InputFile
from iotrace.merge.plan import ClockLink, Input
from iotrace.merge.run import refuse_unsure_orders
from iotrace.merge.survey import Survey
from iotrace.sources.clocks.session_clock import Clock, ClockMap, Recording

EPOCH_NS = 1_795_000_000_123_456_789
SECOND = 10**9


def _key(group: str, number: int) -> tuple[str, ...]:
    return "allreduce", group, "64", str(number)


def _rank(
    groups: dict[str, int], offset_ns: int = 0, drift_ppm: float = 0.0, jitter_ns: float = 0.0, **more: Any
) -> Survey:
    """A trace with so many collectives of each group, 10 ms apart; its clock is late by `offset_ns`."""
    chance = np.random.default_rng(abs(offset_ns))
    spans = {}
    for group, count in groups.items():
        for number in range(count):
            since = number * SECOND // 100 + round(abs(chance.normal(0, jitter_ns)))
            end = EPOCH_NS + since - offset_ns - round(since * drift_ppm / 1e6)
            spans[_key(group, number)] = end - 50_000, end
    first = min((end for _, end in spans.values()), default=EPOCH_NS - offset_ns)
    last = max((end for _, end in spans.values()), default=first)
    return Survey(
        **{
            "absolute": True,
            "by_kineto": True,
            "first_ns": first,
            "last_ns": last,
            "collectives": spans,
            **more,
        }
    )


def _link(*surveys: Survey, kinds: tuple[str, ...] = (), **options: bool) -> list[ClockLink]:
    kinds = kinds or (CHROME,) * len(surveys)
    inputs = [
        Input(InputFile(Path(f"{index}.json"), kind, f"{index}.json"), survey)
        for index, (kind, survey) in enumerate(zip(kinds, surveys, strict=True))
    ]
    link(inputs, options.get("align_start", False))
    if options.get("strict", False):
        refuse_unsure_orders(inputs)
    return [item.link for item in inputs]


def _kinds(links: list[ClockLink]) -> list[str]:
    return [item.kind for item in links]


def test_ranks_without_a_common_collective_are_joined_by_one_between_them() -> None:
    """Three process groups in a row, A-B, B-C, C-D: bounds add up along the way."""
    ranks = [
        _rank({"ab": 40}, jitter_ns=100),
        _rank({"ab": 40, "bc": 30}, 5 * SECOND, jitter_ns=100),
        _rank({"bc": 30, "cd": 40}, 9 * SECOND, jitter_ns=100),
        _rank({"cd": 40}, -SECOND, jitter_ns=100),
    ]
    links = _link(*ranks, strict=True)
    assert _kinds(links) == ["inferred"] * 4
    # The reference is one in the middle: it has the most matches, and the paths from it are short.
    reference = 1
    assert links[reference].bound_ns == 0
    for item, offset_ns in zip(links, [0, 5 * SECOND, 9 * SECOND, -SECOND], strict=True):
        assert item.bound_ns is not None
        assert abs(item.map.shift_ns - (offset_ns - 5 * SECOND)) <= item.bound_ns < 2_000
    assert (links[3].bound_ns or 0) > (links[2].bound_ns or 0) > 0
    assert "with 2.json" in links[3].why


def test_the_stronger_link_is_followed() -> None:
    """Rank 2 shares three collectives with rank 0, which were late, and many with rank 1."""
    zero = _rank({"all": 100, "few": 3})
    two = _rank({"most": 60, "few": 3}, 3 * SECOND)
    for number in range(3):
        start, end = two.collectives[_key("few", number)]
        two.collectives[_key("few", number)] = start, end + 40_000_000 * number
    links = _link(zero, _rank({"all": 100, "most": 60}, SECOND), two)
    shift = links[2].map.shift_ns - links[0].map.shift_ns
    assert abs(shift - 3 * SECOND) < 10
    assert (links[2].bound_ns or 0) < 10


def test_a_few_more_matches_are_no_reason_for_a_longer_way() -> None:
    ranks = [_rank({"all": 100 - index}, index * SECOND, jitter_ns=1000) for index in range(5)]
    ranks[1].collectives.pop(_key("all", 0))
    links = _link(*ranks)
    assert all("with" not in item.why for item in links)  # all from the reference itself
    assert sum(item.bound_ns == 0 for item in links) == 1


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(st.integers(-(10**12), 10**12), st.floats(-80, 80)), min_size=4, max_size=4),
    st.sampled_from([100.0, 5_000.0]),
)
def test_drifts_add_up_along_the_way(clocks: list[tuple[int, float]], jitter_ns: float) -> None:
    """Five ranks, each sharing a group with the next alone: the true times lie within the bounds."""
    ranks = [_rank({"g0": 500}, 0, 0.0, jitter_ns)]
    for index, (offset_ns, drift_ppm) in enumerate(clocks):
        groups = {f"g{index}": 500} | ({f"g{index + 1}": 500} if index < 3 else {})
        ranks.append(_rank(groups, offset_ns, drift_ppm, jitter_ns))
    links = _link(*ranks)
    assert _kinds(links) == ["inferred"] * 5
    assert sum(item.bound_ns == 0 for item in links) == 1
    for index in range(4):  # what neighbours ended together is together on the merged clock
        off = [
            abs(
                links[index].map.map_one(end)
                - links[index + 1].map.map_one(ranks[index + 1].collectives[key][1])
            )
            for key, (_, end) in ranks[index].collectives.items()
            if key in ranks[index + 1].collectives
        ]
        bound = (links[index].bound_ns or 0) + (links[index + 1].bound_ns or 0)
        assert (np.array(off) <= bound).mean() >= 0.95


def test_two_jobs_that_share_nothing_stay_assumed_to_each_other() -> None:
    links = _link(
        _rank({"one": 40}),
        _rank({"one": 40}, SECOND),
        _rank({"two": 20}, 9 * SECOND),
        _rank({"two": 20}, 11 * SECOND),
        _rank({}),
    )
    assert _kinds(links) == ["inferred", "inferred", "assumed", "assumed", "assumed"]
    assert links[3].map.shift_ns - links[2].map.shift_ns == 2 * SECOND  # related to each other all the same
    assert "whose own clock is assumed" in links[3].why
    with pytest.raises(IotraceError, match="assumed"):
        _link(_rank({"one": 40}), _rank({"one": 40}, SECOND), _rank({}), strict=True)


def test_a_host_whose_session_has_no_collectives_comes_with_its_trace() -> None:
    """Sessions of two hosts and a trace of each: what is known of the trace holds for its session."""
    hosts = [
        Survey(absolute=True, first_ns=EPOCH_NS, bound_ns=90, host="a", clock_domain="boot a", pids=[100]),
        Survey(
            absolute=True,
            first_ns=EPOCH_NS - SECOND,
            bound_ns=80,
            host="b",
            clock_domain="boot b",
            pids=[200],
        ),
    ]
    traces = [_rank({"all": 50}, pids=[100]), _rank({"all": 50}, SECOND, pids=[200])]
    links = _link(*hosts, *traces, kinds=(SESSION, SESSION, CHROME, CHROME))
    assert _kinds(links) == ["exact", "inferred", "exact", "inferred"]
    assert links[1].map.shift_ns == links[3].map.shift_ns == SECOND
    assert (links[1].bound_ns or 0) >= (links[3].bound_ns or 0) + 80
    # Without collectives nothing relates them, though each trace's process is known.
    alone = _link(
        *hosts, _rank({}, pids=[100]), _rank({}, SECOND, pids=[200]), kinds=(SESSION, SESSION, CHROME, CHROME)
    )
    assert _kinds(alone) == ["exact", "assumed", "exact", "assumed"]


def test_containers_of_one_kernel_share_its_clock() -> None:
    hosts = [
        Survey(absolute=True, first_ns=EPOCH_NS, bound_ns=90, host=name, clock_domain="boot") for name in "ab"
    ]
    assert _kinds(_link(*hosts, kinds=(SESSION, SESSION))) == ["exact", "exact"]


def test_an_exact_clock_is_the_reference() -> None:
    log = Survey(absolute=True, first_ns=EPOCH_NS, pids=[200])
    links = _link(
        _rank({"all": 90, "more": 50}),
        _rank({"more": 50}, 2 * SECOND),
        _rank({"all": 90}, SECOND, pids=[200]),
        log,
        kinds=(CHROME, CHROME, CHROME, DFTRACER),
    )
    assert _kinds(links) == ["inferred", "inferred", "exact", "exact"]
    assert links[0].map.shift_ns == -SECOND
    assert links[1].map.shift_ns == SECOND
    assert (links[0].bound_ns or 0) >= 6_000


def test_clocks_since_boot_are_related_by_collectives_to_each_other_and_by_request_to_others() -> None:
    boot = _rank({"all": 40}, EPOCH_NS - 50 * SECOND, absolute=False)
    later = _rank({"all": 40}, EPOCH_NS - 70 * SECOND, absolute=False)
    links = _link(boot, later, strict=True)
    assert _kinds(links) == ["inferred", "inferred"]
    assert links[1].map.shift_ns - links[0].map.shift_ns == -20 * SECOND
    dated = _rank({})
    with pytest.raises(IotraceError, match="nothing relates it"):
        _link(boot, later, dated)
    links = _link(boot, later, dated, align_start=True)
    assert _kinds(links) == ["none", "none", "assumed"]
    for survey, item in zip((boot, later), links, strict=False):
        assert [item.map.map_one(end) for _, end in survey.collectives.values()] == [
            end for _, end in _rank({"all": 40}).collectives.values()
        ]


def _session(number: int, **more: Any) -> Survey:
    extent = {"first_ns": EPOCH_NS, "last_ns": EPOCH_NS + 40 * SECOND, "bound_ns": 100}
    return Survey(**{"absolute": True, "rank": number, "host": "a", "clock_domain": "a", **extent, **more})


@pytest.mark.parametrize("by_ns", [-3_600 * SECOND, -20 * SECOND, 3_600 * SECOND])
@pytest.mark.parametrize("is_before", [True, False])
def test_a_trace_of_a_session_whose_clock_was_set_lies_where_it_was_recorded(
    by_ns: int, is_before: bool
) -> None:
    """By its stamps alone, a trace from before the clock was set back may be one from behind it."""
    anchors = [[i * SECOND, EPOCH_NS + i * SECOND + (by_ns if i >= 20 else 0), 80] for i in range(40)]
    since_ns = (12 if is_before else 30) * SECOND
    own_ns = EPOCH_NS + since_ns + (0 if is_before else by_ns)
    trace = _rank({}, rank=0, pids=[4711], first_ns=own_ns, last_ns=own_ns + SECOND)
    recording = Recording(since_ns - 1000, since_ns + SECOND + 1000)
    session = _session(0, pids=[4711], clock=Clock(anchors), recordings={Path("1.json"): recording})
    (_, found) = _link(session, trace, kinds=(SESSION, CHROME))
    assert (found.kind, found.map) == ("exact", ClockMap(0 if is_before else -by_ns))
    # Who knows nothing of the recording says so, and leaves it where its stamps are.
    session.recordings = {}
    (_, found) = _link(session, trace, kinds=(SESSION, CHROME))
    if by_ns == -20 * SECOND:
        assert (found.kind, found.map, found.bound_ns) == ("assumed", ClockMap(), None)
        assert "where it lies is not known" in found.why
    else:
        assert found.map == ClockMap(0 if is_before else -by_ns)


def test_a_process_number_that_two_hosts_have_is_the_one_of_the_traces_rank() -> None:
    """Containers begin to count alike: a trace has the clock of its rank, whichever of them has one."""
    shift = ClockMap(-3 * SECOND)
    ahead = Clock([[i * SECOND, EPOCH_NS + i * SECOND, 80] for i in range(40)])
    ahead.to_reference = shift
    for rank, expected in ((0, ClockMap()), (1, shift)):
        sessions = [
            _session(0, pids=[120, 130]),
            _session(1, pids=[120, 130], host="b", clock_domain="b", clock=ahead),
        ]
        trace = _rank({}, rank=rank, pids=[120], first_ns=EPOCH_NS + SECOND, last_ns=EPOCH_NS + 2 * SECOND)
        for recordings in ({}, {Path("2.json"): None}):
            sessions[rank].recordings = recordings
            found = _link(*sessions, trace, kinds=(SESSION, SESSION, CHROME))[2]
            assert found.map == expected
