"""``iotrace report``: a session's causes, again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    session: Annotated[Path, typer.Argument(metavar="SESSION", help="A directory made by iotrace run.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> int:
    """Print why the run of SESSION waited for data.

    Exit codes: 0 printed, 1 SESSION cannot be read, 2 wrong usage.
    """
    from iotrace.present import load, make_console

    _, result = load(session, make_console(stderr=True))
    if as_json:
        import msgspec

        typer.echo(msgspec.json.format(msgspec.json.encode(result), indent=2).decode())
    else:
        from iotrace.report.terminal import print_report

        print_report(result, make_console(stderr=False))
    return 0
