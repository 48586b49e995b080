"""What has to be concluded of each program, and what must not be."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

_BOUND = ("input-bound", "moderately-input-bound")
_NOT = ("not-input-bound",)


class Row(NamedTuple):
    """A program and its conclusions, by the codes of rules.

    `needs` is a module that the program imports. `before` is one beside it that makes its data. `apart`: it
    runs in a directory of its own; it ends with `code`. `verdicts`: one of these. `first`: the first fix
    is one of these. `has`: each is found, `never`: none.
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
    # Mended, 8 workers make a batch in 12 ms, as long as the loop takes for one: it waits a little, truly.
    *_reported("19_geti5958", ("IO204",)),
    *_reported("21_pathml131", ("IO407",), _FASTER_CODE),
    *_reported("22_wandb8666", ("IO505",), ("IO201",), verdicts=_SHORTER, nothing_left=True),
]


def _round3(name: str, program: str, **known: object) -> Row:
    """Make the row of a program of ../shared/programs/round3, which writes where it runs."""
    return Row(name, f"round3/{program}", apart=True, **known)  # type: ignore[arg-type]


_LATE = ("rank-late",)
_FASTER_LOADER = ("IO103", "IO204")  # the dataset's own code, more workers
_RESTARTS = ("IO203", "IO207", "IO208", "IO209")
_OF_JOB = ("IO801", "IO802", "IO803", "IO804", "IO805", "IO806")


def _late(code: str) -> dict[str, object]:
    """Make what holds where a rank is late for one reason and no other."""
    never = tuple(other for other in _OF_JOB if other != code)
    return {"ranks": 2, "verdicts": _LATE, "has": (code,), "never": never}


ROUND3 = [
    _round3("p01-uneven-shards", "p01_ddp_uneven.py", first=_FASTER_LOADER, **_late("IO801")),
    _round3("p02-slow-forward", "p02_ddp_nosync.py", first=("IO804",), **_late("IO804")),
    _round3("p03-slow-file-of-a-rank", "p03_fsdp2.py", first=_FASTER_LOADER, **_late("IO801")),
    _round3(
        "p04-pipeline",
        "p04_pipeline.py",
        ranks=2,
        verdicts=_LATE,
        first=_FASTER_LOADER,
        has=("IO801", "IO808"),
        never=("IO706", "IO804"),
    ),
    _round3("p06-job-of-commands", "p06_bash_job.sh", verdicts=_BOUND, first=_FASTER_LOADER),
    # Two forked workers start in 40 ms: the loader that is made anew costs 1 to 5 % of the loop.
    _round3("p07-loader-made-anew", "p07_curriculum.py", verdicts=_BOUND, first=_FASTER_LOADER),
    _round3(
        "p08-evaluation",
        "p08_periodic_eval.py",
        verdicts=_NOT,
        first=("IO503",),
        never=(*_FASTER_LOADER, *_RESTARTS),
    ),
    _round3(
        "p09-fed-by-a-thread", "p09_rl_replay.py", verdicts=_BOUND, first=("IO210",), never=_FASTER_LOADER
    ),
    _round3(
        "p12-iterator-for-each-batch",
        "p12_next_iter.py",
        arguments=("2",),
        verdicts=_BOUND,
        first=("IO203",),
        never=("IO204", "IO710"),
    ),
    _round3(
        "p12-without-workers",
        "p12_next_iter.py",
        arguments=("0",),
        verdicts=_BOUND,
        first=_FASTER_LOADER,
        never=("IO203",),
    ),
    _round3("p18-preempted", "p18_signal.py", verdicts=_BOUND, first=_FASTER_LOADER),
    _round3("p20b-restarted", "p20b_elastic.py", restarts=1, first=_FASTER_LOADER, **_late("IO801")),
    _round3(
        "p23-checkpoint",
        "p23_checkpoint.py",
        verdicts=_NOT,
        first=("IO504",),
        never=(*_FASTER_LOADER, "IO503"),
    ),
    _round3("p26-buckets", "p26_buckets.py", arguments=("25",), first=_FASTER_LOADER, **_late("IO801")),
    _round3(
        "p26b-many-buckets", "p26_buckets.py", arguments=("0.5",), first=_FASTER_LOADER, **_late("IO801")
    ),
    _round3("p27-turns", "p27_turns.py", verdicts=_NOT, nothing_to_do=True),
    _round3("p28-evaluates-alone", "p28_eval_rank0.py", first=("IO802",), **_late("IO802")),
    _round3("p28-each-4-steps", "p28_k4.py", first=("IO802",), **_late("IO802")),
    _round3(
        "collate", "collate.py", verdicts=_BOUND, first=("IO204",), has=("IO104",), never=("IO103", "IO203")
    ),
    _round3(
        "few-large-images",
        "images.py",
        before="mkimg.py",
        verdicts=_BOUND,
        first=("IO102",),
        has=("IO409",),
        never=("IO101", "IO403"),
    ),
    _round3(
        "lightning",
        "lightning_training_step.py",
        verdicts=_BOUND,
        first=_FASTER_LOADER,
        never=("IO203", "IO503"),
    ),
    _round3("region", "reg.py", verdicts=_BOUND, first=_FASTER_LOADER, has=("IO408",)),
    _round3("fine", "fine.py", verdicts=_NOT, nothing_to_do=True, never=("IO201", "IO202")),
    _round3("crash", "crash.py", code=1, verdicts=("failed",), nothing_to_do=True),
]

PROGRAMS = [*REPORTED, *ROUND3]
