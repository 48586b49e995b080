"""``iotrace report``: a session's causes, again; or what bare traces of torch.profiler hold."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer


class Compat(str, Enum):
    """Tools whose figures can be reproduced, quirks included."""

    tb = "tb"
    hta = "hta"


def report(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="SESSION | TRACE...",
            help="A directory made by iotrace run, or a trace (.json, .json.gz) of torch.profiler per rank.",
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
    kernel_gap_us: Annotated[
        float,
        typer.Option(
            metavar="US",
            min=0.0,
            help="Idle gaps shorter than this are kernel_wait, if the host was in time.",
        ),
    ] = 30.0,
    compat: Annotated[
        Compat | None,
        typer.Option(
            help="Print what torch-tb-profiler 0.4.3 (tb) or HolisticTraceAnalysis 0.5.0 (hta) says of TRACE."
        ),
    ] = None,
) -> int:
    """Print why the run of SESSION waited for data, or what the steps of TRACE consist of.

    Exit codes: 0 printed, 1 SESSION or TRACE cannot be read, 2 wrong usage.
    """
    from iotrace.postrun import load, load_traces, make_console

    bare = all(path.is_file() for path in sources)
    if not bare and len(sources) > 1:
        raise typer.BadParameter("give one session, or traces of torch.profiler alone")
    if compat is not None:
        if not bare:
            raise typer.BadParameter("--compat takes traces of torch.profiler, not a session")
        from iotrace.cli.compat import print_compat

        print_compat(sources, compat.value, as_json)
        return 0
    console = make_console(stderr=True)
    if bare:
        result = load_traces(sources, console, kernel_gap_us)
    else:
        _, result = load(sources[0], console, kernel_gap_us)
    if as_json:
        from iotrace.cli.output import print_json

        print_json(result)
    else:
        from iotrace.report.terminal import print_report

        print_report(result, make_console(stderr=False))
    return 0
