"""What to do about rows of Hugging Face's datasets, whose Arrow files hold columns that need no decoding."""

from __future__ import annotations

import os

from iotrace.analysis.rules.causes import MOSTLY, Remedy
from iotrace.analysis.rules.chunks import name_of
from iotrace.analysis.rules.facts.loader import LoaderFacts
from iotrace.analysis.wait.gain_bound import FILES, RESIZED
from iotrace.units import percent

ARROW = frozenset({".arrow"})


def made_lists(facts: LoaderFacts, path: str) -> Remedy | None:
    """Of rows that become Python's lists and numbers, one object for each number: what makes arrays of them.

    Lists within lists whose length is not fixed take longer as arrays: these are of Python's objects.
    """
    share = facts.making.as_lists
    if share < MOSTLY:
        return None
    text = (
        f'they are in the format "python": {percent(share)} of taking rows makes lists of what is stored '
        "decoded. Of numbers: a feature of a fixed shape (Array2D, or Sequence with its length), and then "
        'set_format("numpy") or ("torch"), takes them as arrays; without a fixed shape that takes longer. '
        "Of texts: tokenize once, by map, ahead of training"
    )
    return Remedy(
        'fixed shapes (Array2D) and set_format("numpy"), where they are numbers',
        text,
        FILES,
        RESIZED,
        evidence={"as_lists": share},
        said=f"datasets makes Python lists of the rows of {name_of(os.path.dirname(path))}",
    )


def only_copied(facts: LoaderFacts) -> bool:
    """Whether taking rows hardly does anything but copy them: nothing is decoded that could be stored so."""
    return facts.making.as_copied >= MOSTLY
