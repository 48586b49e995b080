"""What has to be concluded of each program, and what must not be."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

_BOUND = ("input-bound", "moderately-input-bound")
_NOT = ("not-input-bound",)


class Row(NamedTuple):
    """A program and its conclusions, by the codes of rules.

    `before` is a program beside it that makes its data; `apart`, it runs in a directory of its own, and ends
    with `code`. `verdicts`: one of these. `first`: the first fix is one of these. `has`: each is found,
    `never`: none.
    """

    name: str
    program: str
    mended: bool = False
    arguments: tuple[str, ...] = ()
    before: str = ""
    apart: bool = False
    code: int = 0
    ranks: int = 1
    restarts: int = 0
    one_cpu: bool = False
    variables: Mapping[str, str] = MappingProxyType({})
    verdicts: tuple[str, ...] = ()
    first: tuple[str, ...] = ()
    has: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    nothing_to_do: bool = False


def _reported(
    program: str, first: tuple[str, ...], never: tuple[str, ...] = (), **known: object
) -> list[Row]:
    """Make the row of a problem as reported, and the row of the same program mended."""
    name = program.partition("_")[2]
    path = f"reported/{program}.py"
    both = {key: known[key] for key in ("ranks", "one_cpu", "variables") if key in known}
    return [
        Row(name, path, verdicts=_BOUND, first=first, never=never, **known),  # type: ignore[arg-type]
        Row(f"{name}-mended", path, mended=True, never=first, **both),  # type: ignore[arg-type]
    ]
