"""``--strict-clocks``: the shortest interval that a timeline orders between hosts, on made-up ranks."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from iotrace.errors import IotraceError
from iotrace.merge.input_files import CHROME, SESSION, InputFile
from iotrace.merge.plan import ClockLink, Input
from iotrace.merge.run import least_sure, refuse_unsure_orders
from iotrace.merge.survey import Survey
from iotrace.sources.clocks.session_clock import ClockMap

EPOCH_NS = 1_795_000_000_123_456_789
Spans = dict[int, tuple[int, int]]  # by sequence number: start and end, µs


def rank(number: int, host: str, bound_us: float, spans: Spans, kind: str = "measured") -> Input:
    """A rank's trace on a host whose clock is ahead, and undone; without a host nothing is known of it."""
    ahead_ns = 3_700_000_000 * number
    found = Survey(absolute=True, rank=number)
    found.collectives = {
        ("allreduce", "0 [0, 1]", "64", str(each)): (
            EPOCH_NS + start * 1000 + ahead_ns,
            EPOCH_NS + end * 1000 + ahead_ns,
        )
        for each, (start, end) in spans.items()
    }
    name = f"rank{number}.json"
    made = Input(InputFile(Path(name), CHROME, name), found)
    made.link = ClockLink(kind, ClockMap(-ahead_ns), round(bound_us * 1000), "so", domain=host)
    return made


def session(host: str) -> Input:
    """What the session says of a host: its name. It holds no collective."""
    made = Input(InputFile(Path("s"), SESSION, f"s/{host}"), Survey(absolute=True, host=host))
    made.link = ClockLink("exact", bound_ns=80, domain=host)
    return made


LATE = {7: (0, 140), 8: (1000, 1130)}  # rank 0 comes first and waits
LAST = {7: (100, 141), 8: (1090, 1131)}  # rank 1 comes 40 µs before the ends


def test_a_bound_below_the_shortest_interval_is_accepted() -> None:
    refuse_unsure_orders([rank(0, "alpha", 6, LATE), rank(1, "beta", 33, LAST)])
    refuse_unsure_orders([rank(0, "alpha", 6, LATE), rank(1, "beta", 34, LAST)])  # it is as long


def test_a_bound_above_it_is_refused_with_the_collective_the_ranks_and_both_lengths() -> None:
    ranks = [session("alpha"), rank(0, "alpha", 6, LATE), rank(1, "beta", 35, LAST), session("beta")]
    with pytest.raises(IotraceError) as caught:
        refuse_unsure_orders(ranks)
    assert str(caught.value) == (
        "the clocks of rank0.json (rank 0 on alpha) and rank1.json (rank 1 on beta) are known to ± 41 µs of "
        "each other, too coarse for an order that is certain: allreduce 7 ends in rank0.json 40 µs after it "
        "begins in rank1.json"
    )
    assert caught.value.remedy == "leave --strict-clocks out to merge them all the same"


def test_an_effect_that_is_shown_before_its_cause_is_refused() -> None:
    with pytest.raises(IotraceError, match=r"allreduce 7 ends in rank0.json 2 µs before it begins in rank1"):
        refuse_unsure_orders([rank(0, "alpha", 0, {7: (0, 98)}), rank(1, "beta", 6, {7: (100, 141)})])


@pytest.mark.parametrize(
    "spans",
    [
        LAST,
        {},
        {9: (100, 141)},  # of another group, of which rank 0 is none
        {7: (5_000_000, 5_000_041)},  # the seventh of another start of the job
    ],
)
def test_one_host_or_no_collective_in_common_orders_nothing(spans: Spans) -> None:
    host = "alpha" if spans == LAST else "beta"
    ranks = [rank(0, "alpha", 99, LATE), rank(1, host, 99, spans)]
    assert least_sure(ranks) is None
    refuse_unsure_orders(ranks)
    refuse_unsure_orders([rank(0, "alpha", 10**6, LATE)])  # alone, it is compared with nothing


def test_traces_of_hosts_that_are_not_known_are_as_good_as_of_several() -> None:
    with pytest.raises(IotraceError, match=r"of rank0.json \(rank 0\) and rank1.json \(rank 1\) are known"):
        refuse_unsure_orders([rank(0, "", 21, LATE, "inferred"), rank(1, "", 20, LAST, "inferred")])
    named = rank(1, "", 20, LAST, "inferred")
    named.survey.named_host = "gpu7"
    with pytest.raises(IotraceError, match=r"and rank1.json \(rank 1 on gpu7\) are known"):
        refuse_unsure_orders([rank(0, "", 21, LATE, "inferred"), named])


@pytest.mark.parametrize(
    ("kind", "bound_us", "said"),
    [("measured", 101, "is known to ± 101 µs: so"), ("assumed", 1, "is assumed: so"), ("none", 1, "is none")],
)
def test_a_clock_that_is_not_known_to_100_us_is_refused_without_any_collective(
    kind: str, bound_us: float, said: str
) -> None:
    with pytest.raises(IotraceError, match=rf"the clock of rank1.json {said}"):
        refuse_unsure_orders([rank(0, "alpha", 1, {}), rank(1, "beta", bound_us, {}, kind)])


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, 90), st.integers(0, 300), st.integers(0, 300)),
        min_size=2,
        max_size=6,
    )
)
def test_the_least_sure_order_is_that_of_a_look_at_each_pair(ranks: list[tuple[str, int, int, int]]) -> None:
    inputs = [
        rank(number, host, bound, {7: (min(times), max(times))})
        for number, (host, bound, *times) in enumerate(ranks)
    ]
    slow = [
        max(ends) - min(starts) - bound - other
        for (host, bound, *starts), (another, other, *ends) in product(ranks, ranks)
        if host != another
    ]
    found = least_sure(inputs)
    if not slow:
        assert found is None
    else:
        assert found is not None
        assert found.interval_ns - found.bound_ns == 1000 * min(slow)
