"""What has to be concluded of each program, and what must not be."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

_BOUND = ("input-bound", "moderately-input-bound")
_NOT = ("not-input-bound",)


class Row(NamedTuple):
    """A program and its conclusions, by the codes of rules.

    `needs` is a module that the program imports. `verdicts`: one of these. `first`: the first fix is one of
    these. `has`: each is found, `never`: none.
    """

    name: str
    program: str
    mended: bool = False
    ranks: int = 1
    one_cpu: bool = False
    needs: str = ""
    variables: Mapping[str, str] = MappingProxyType({})
    verdicts: tuple[str, ...] = ()
    first: tuple[str, ...] = ()
    has: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    nothing_to_do: bool = False


def _reported(
    program: str,
    first: tuple[str, ...],
    never: tuple[str, ...] = (),
    *,
    verdicts: tuple[str, ...] = _BOUND,
    nothing_left: bool = False,
    **known: object,
) -> list[Row]:
    """Make the row of a problem as reported, and the row of the same program mended.

    `nothing_left`: the mended one is to be told nothing to do.
    """
    name = program.partition("_")[2]
    path = f"reported/{program}.py"
    both = {key: known[key] for key in ("ranks", "one_cpu", "needs", "variables") if key in known}
    return [
        Row(name, path, verdicts=verdicts, first=first, never=never, **known),  # type: ignore[arg-type]
        Row(
            f"{name}-mended",
            path,
            mended=True,
            never=first,
            nothing_to_do=nothing_left,
            **both,  # type: ignore[arg-type]
        ),
    ]


# What makes the batches is not to be made faster where something else is the cause.
_FASTER_CODE = ("IO103", "IO104")
_SHORTER = ("not-input-bound", *_BOUND)  # what the logger or validation costs is beside the wait

REPORTED = [
    *_reported("01_gsplat1058", ("IO207",), nothing_left=True),
    *_reported("02_pt139792", ("IO203", "IO208"), _FASTER_CODE, nothing_left=True),
    *_reported("03_mmpose923", ("IO203",), ("IO103",), nothing_left=True),
    # Threads spin while they wait: four workers of one thread each still keep two CPUs busy.
    *_reported("04_hy2dl48", ("IO301", "IO304"), variables={"OMP_NUM_THREADS": "2"}),
    *_reported("05_openmhc16", ("IO102",), has=("IO403",)),
    *_reported("06_unet449", ("IO407",), _FASTER_CODE),
    *_reported("07_geodl418", ("IO407",), _FASTER_CODE),
    *_reported("08_torchgeo1754", ("IO101", "IO102", "IO407")),
    *_reported("11_pl434", ("IO209",), verdicts=_SHORTER),
    *_reported("12_caney44", ("IO302", "IO307"), one_cpu=True),
    *_reported("14_pt106704", ("IO211",), _FASTER_CODE),
    *_reported("15_finetrainers174", ("IO216",), ("IO102", "IO103", "IO407"), ranks=2, needs="cv2"),
    *_reported("17_deeplake1760", ("IO213",), ("IO103",), needs="webdataset"),
    *_reported("18_modernbert236", ("IO215",), ("IO104",), needs="tokenizers", nothing_left=True),
    *_reported("19_geti5958", ("IO204",), nothing_left=True),
    *_reported("21_pathml131", ("IO407",), _FASTER_CODE),
    *_reported("22_wandb8666", ("IO505",), ("IO201",), verdicts=_SHORTER, nothing_left=True),
]
PROGRAMS = REPORTED
