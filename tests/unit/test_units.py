"""One formatter for sizes, rates, times, shares and counts."""

from __future__ import annotations

import pytest

from iotrace import units


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536 << 10, "1.5 MiB"),
        (-(3 << 20), "-3.0 MiB"),
        (5 << 30, "5.0 GiB"),
        (7 << 40, "7.0 TiB"),
        (7 << 50, "7168.0 TiB"),
    ],
)
def test_sizes_are_binary(count: int, text: str) -> None:
    assert units.size(count) == text


def test_rates_are_sizes_per_second() -> None:
    assert units.rate(10 << 20, 2.0) == "5.0 MiB/s"
    assert units.rate(10, 0.0) == ""


@pytest.mark.parametrize(
    ("time_ns", "text"),
    [(0, "0 ns"), (999, "999 ns"), (1_500, "1.5 µs"), (-2_345_678, "-2.35 ms"), (12 * 10**9, "12 s")],
)
def test_times_are_in_the_largest_unit_that_they_reach(time_ns: int, text: str) -> None:
    assert units.duration(time_ns) == text


@pytest.mark.parametrize(
    ("change_pct", "around_pct", "text"),
    [
        (271.7, None, "3.7x"),
        (2444.0, None, "25x"),
        (11_000.0, None, "111x"),
        (9.94, None, "+9.9 %"),
        (-20.0, None, "-20 %"),
        (93.0, 105.0, "1.9x"),
        (0.0, None, "0.0 %"),
    ],
)
def test_changes_have_two_digits(change_pct: float, around_pct: float | None, text: str) -> None:
    assert units.grown(change_pct, around_pct) == text


def test_shares_and_counts() -> None:
    assert units.milliseconds(12.34) == "12.3 ms"
    assert units.percent(0.126) == "13 %"
    assert [units.counted(number, "slice") for number in (0, 1, 2)] == ["0 slices", "1 slice", "2 slices"]
    assert units.counted(2, "process", "processes") == "2 processes"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.002, "< 0.1 s"),
        (0.7, "0.7 s"),
        (1.96, "2 s"),
        (12.4, "12 s"),
        (60, "1 min"),
        (185, "3 min 5 s"),
        (3600, "1 h"),
        (90_061, "1 d 1 h"),
    ],
)
def test_spans_are_in_two_units_at_most(seconds: float, text: str) -> None:
    assert units.time_span(seconds) == text


def test_a_column_of_small_figures_has_more_decimals() -> None:
    assert [units.decimals(most) for most in (0.0, 22.5, 1.1, 0.4, 0.003)] == [1, 1, 2, 3, 4]
    assert units.fixed(0.0028, 0.0033) == "0.0028"


def test_a_change_that_is_none_has_no_sign() -> None:
    assert [units.signed(change) for change in (1.25, -0.04, 0.0, -0.06)] == ["+1.2", "0.0", "0.0", "-0.1"]


def test_figures_are_never_written_with_powers() -> None:
    assert [units.digits(value) for value in (0.0981, 54.06, 1137.2, 2.5e6)] == [
        "0.0981",
        "54.1",
        "1137",
        "2500000",
    ]
    assert units.digits(213.2, 2) == "213"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0123, "0.0123"), (99.94, "99.9"), (999.7, "1,000"), (1234.5, "1,234"), (-2e6, "-2,000,000")],
)
def test_three_digits_never_have_an_exponent(value: float, text: str) -> None:
    assert units.three_digits(value) == text


def test_what_is_unknown_is_named_so() -> None:
    assert units.if_known(2.0, "{:.1f} ms".format) == "2.0 ms"
    assert units.if_known(None, str, "?") == "?"
    assert units.if_known(None) == ""
