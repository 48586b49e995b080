"""``iotrace export``: a session for other programs."""

from __future__ import annotations

from pathlib import Path

import click

from iotrace.cli.parameters import SOURCE, TARGET, import_numpy, json_option, output_option, print_json


@click.command()
@click.argument("session", metavar="SESSION", type=SOURCE)
@output_option("FILE", "The file to write; compressed if its name ends in .gz.", required=True, kind=TARGET)
@click.option(
    "--format",
    "format_",
    type=click.Choice(["dftracer"]),
    default="dftracer",
    help="dftracer (the default): events for the analysers of dftracer.",
)
@json_option("the number of written events, by kind,")
def export(session: Path, output: Path, format_: str, as_json: bool) -> int:
    """Write the events of SESSION to FILE, for other programs.

    SESSION is a directory made by iotrace run. iotrace writes all of its events, or none.

    Exit codes: 0 written, 1 SESSION cannot be read or FILE cannot be written, 2 wrong usage.
    """
    import_numpy()
    from iotrace.analysis.rank import SessionAnalysis
    from iotrace.export.dftracer import write_dftracer
    from iotrace.report.printing import echo
    from iotrace.report.progress import watched
    from iotrace.sources.session import open_session

    with watched() as progress:
        opened = open_session(session, progress)
        progress(f"writing {output}")
        counts = write_dftracer(SessionAnalysis(opened), output)
    if as_json:
        print_json({"schema_version": 1, "path": str(output), "format": format_, "events": counts})
    else:
        written = ", ".join(f"{count} {kind}" for kind, count in counts.items()) or "no events"
        echo(f"{output}: {written}")
    return 0
