"""Colours in Perfetto, by the hash that its pages take (version 52)."""

from __future__ import annotations

import pytest

from iotrace.timeline.writers.track_event import colour

_HUES = 360


def _hue(field: bytes) -> int:
    """What `hash(text, 360)` of Perfetto's pages is: JavaScript multiplies as floating-point numbers."""
    found = 18652613
    for character in field[3:].decode():  # behind two bytes of tag and one of length
        found = int(16777619.0 * float(found ^ ord(character))) & 0xFFFFFFFF
        found -= (found >> 31) << 32
    return abs(found) % _HUES


@pytest.mark.parametrize(
    ("category", "cause", "hue"),
    [
        ("failure", None, 10),  # red
        ("data wait", "decode", 12),
        ("data wait", "read", 252),  # blue
        ("data wait", "transform", 276),  # violet
        ("data wait", "collate", 156),  # green
        ("data wait", "transport", 320),  # magenta
        ("transport", None, 320),
    ],
)
def test_slices_have_the_hue_of_the_page(category: str, cause: str | None, hue: int) -> None:
    assert _hue(colour(category, cause)) == hue


def test_other_slices_are_coloured_by_their_names() -> None:
    assert colour("step", None) == colour("data wait", None) == colour("POSIX", "decode") == b""
