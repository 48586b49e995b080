"""``iotrace status``: whether a run goes on, and what it hangs in."""

from __future__ import annotations

from pathlib import Path

import click

from iotrace.cli.parameters import PATH, json_option, print_json
from iotrace.report.printing import echo


@click.command()
@click.argument("session", metavar="[SESSION]", type=PATH, required=False)
@json_option("the state and the hangs")
def status(session: Path | None, as_json: bool) -> int:
    """Say whether a run goes on, or in what it hangs.

    A run hangs where no batch came for 30 s, and for 20 times as long as usual, and no process of its loop
    computes, reads or writes. Then each process has a line: what it waits for, and where in the program. A
    process that computes for a minute in one place, without a batch, is told as such. iotrace run says the
    same once on standard error. docs/culprits.md has the rules. Without SESSION it is the newest one here.

    Exit codes: 0 told, 1 SESSION cannot be read, 2 wrong usage.
    """
    from iotrace.session.hangs import status_of
    from iotrace.session.listing import newest_session

    found = status_of(session or newest_session(Path()))
    if as_json:
        print_json(found)
        return 0
    for line in found.text:
        echo(line)
    if not found.text:
        echo(found.state)
    return 0
