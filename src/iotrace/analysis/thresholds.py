"""XProf's words for how much of a step waits for input."""

from __future__ import annotations

MODERATELY_PERCENT, HIGHLY_PERCENT = 5.0, 20.0


def verdict(wait_fraction: float) -> str:
    """The share of the step that waits for input, in percent: below 5, to 20, above."""
    percent = 100 * wait_fraction
    if percent < MODERATELY_PERCENT:
        return "not input-bound"
    return "moderately input-bound" if percent <= HIGHLY_PERCENT else "highly input-bound"
