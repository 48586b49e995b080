"""What records have in common: a line of records.jsonl each."""

from __future__ import annotations

from typing import Annotated

import msgspec

# Whatever a damaged line holds, its numbers fit a column of int64.
Int = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]


class Record(msgspec.Struct):
    """A line of records.jsonl, by its tag."""
