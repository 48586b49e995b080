"""The first look of a merge at an input's times."""

from __future__ import annotations

from iotrace.merge.survey import _typical_ends


def test_times_that_no_integer_holds_are_no_ends() -> None:
    edges = b'"ts":1795099999999999999999999999999\n"ts":1795099999999999999999999999998\n'
    assert _typical_ends(edges) == (None, None)
    assert _typical_ends(edges + b'"ts":1795099999000000\n') == (1795099999000000000, 1795099999000000000)
