"""``iotrace status``: whether a run goes on, and where it is stuck."""

from __future__ import annotations

from pathlib import Path

import click

from iotrace.cli.parameters import PATH, json_option, print_json
from iotrace.report.printing import echo


@click.command()
@click.argument("session", metavar="[SESSION]", type=PATH, required=False)
@json_option("the state and the hangs")
def status(session: Path | None, as_json: bool) -> int:
    """Show whether a run goes on, or where it is stuck.

    A run hangs when no batch came for 30 s, and for 20 times as long as usual, and no process of its loop
    computes, reads or writes. iotrace then prints a line for each process: what the process waits for, and
    where in the program. It also names a process that computes in one place for a minute without a batch.
    iotrace run prints the same once on standard error. docs/culprits.md has the rules. The default SESSION
    is the newest one in this directory.

    Exit codes: 0 printed, 1 SESSION cannot be read, 2 wrong usage.
    """
    from iotrace.session.hangs import read_status
    from iotrace.session.listing import newest_session

    answer = read_status(session or newest_session(Path()))
    if as_json:
        print_json(answer)
        return 0
    for line in answer.text:
        echo(line)
    if not answer.text:
        echo(answer.state)
    return 0
