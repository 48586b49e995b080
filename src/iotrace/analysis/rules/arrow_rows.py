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
    share, name = facts.making.as_lists, name_of(os.path.dirname(path))
    if share < MOSTLY:
        return None
    text = (
        f'they are in the format "python": {percent(share)} of taking rows makes lists of what is stored '
        "decoded. Of numbers: a feature of a fixed shape (Array2D, or Sequence with its length), and then "
        'set_format("numpy") or ("torch"), takes them as arrays; without a fixed shape that takes longer. '
        "Of texts: tokenize once, by map, ahead of training"
    )
    said = f"datasets makes Python lists of the rows of {name}"
    if facts.hot_held < MOSTLY:
        return Remedy(
            'set_format("numpy") where they are numbers of fixed shapes (Array2D)',
            text,
            FILES,
            RESIZED,
            evidence={"as_lists": share},
            said=said,
        )
    # A line that makes an array of a list looks at each number of it, and lets no other thread run meanwhile.
    made_ms = {each: facts.causes_ms.get(each, 0.0) for each in ("read", "decode", "transform")}
    at_line_ms = facts.hot_held * made_ms["transform"]
    whole_ms = sum(made_ms.values())
    spared = (whole_ms - made_ms["transform"] + at_line_ms) / whole_ms if whole_ms else 1.0
    return Remedy(
        f'set_format("numpy"), if {facts.hot_line} makes arrays of these lists',
        f"{text}. If {facts.hot_line} makes arrays of the lists, it takes as long as it does for that alone",
        RESIZED,
        share=spared,
        evidence={"as_lists": share, "at_line_ms": at_line_ms},
        said=f"{said}, and most of a sample is {facts.hot_line}, perhaps for these",
    )


def only_copied(facts: LoaderFacts) -> bool:
    """Whether taking rows hardly does anything but copy them: nothing is decoded that could be stored so."""
    return facts.making.as_copied >= MOSTLY
