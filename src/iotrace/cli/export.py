"""``iotrace export``: a session for other programs."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer


class Format(str, Enum):
    """What can be written."""

    dftracer = "dftracer"


def export(
    session: Annotated[Path, typer.Argument(metavar="SESSION", help="A directory made by iotrace run.")],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="Where to; compressed if it ends in .gz.")
    ],
    format: Annotated[Format, typer.Option("--format", help="dftracer: events for its analysers.")],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the events written, by kind, as JSON.")
    ] = False,
) -> int:
    """Write what SESSION recorded to FILE, whole or not at all.

    Exit codes: 0 written, 1 SESSION cannot be read or FILE not be written, 2 wrong usage.
    """
    from iotrace.analysis.rank import SessionAnalysis
    from iotrace.export.dftracer import write_dftracer
    from iotrace.postrun import make_console
    from iotrace.sources.session import open_session

    with make_console(stderr=True).status("reading the session") as status:
        opened = open_session(session, lambda what: status.update(what))
        status.update(f"writing {output}")
        counts = write_dftracer(SessionAnalysis(opened), output)
    if as_json:
        from iotrace.cli.output import print_json

        document = {"schema_version": 1, "path": str(output), "format": format.value, "events": counts}
        print_json(document)
    else:
        told = ", ".join(f"{count} {kind}" for kind, count in counts.items()) or "no events"
        typer.echo(f"{output}: {told}")
    return 0
