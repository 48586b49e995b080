"""``iotrace ls``: the sessions in a directory; deletes those that are named."""

from __future__ import annotations

import os
from pathlib import Path

import click

from iotrace.cli.parameters import PATH, json_option, print_json
from iotrace.errors import SessionError
from iotrace.report.printing import echo


@click.command()
@click.argument("directory", metavar="[DIR]", type=PATH, default=Path())
@click.option("--delete", metavar="SESSION", multiple=True, help="Delete this session in DIR. Repeatable.")
@json_option("the list")
def ls(directory: Path, delete: tuple[str, ...], as_json: bool) -> int:
    """List the sessions in DIR, the newest first.

    The default is this directory. Each row shows the start time, duration, exit code, size, verdict (if
    iotrace run stored one) and command of a session. --delete takes the name of a session as the list shows
    it, and prints the list of the others. A session that still runs is not deleted.

    Exit codes: 0 listed, also if there is no session, 1 DIR cannot be read or a session cannot be deleted,
    2 wrong usage.
    """
    from iotrace.session.listing import delete_sessions, list_sessions

    if not directory.is_dir():
        problem = "is no directory" if directory.exists() else "does not exist"
        raise SessionError(f"{directory} {problem}", "name a directory that holds sessions")
    os.listdir(directory)  # a pattern finds nothing where it may not look
    if delete:
        delete_sessions(directory, delete)
    listing = list_sessions(directory)
    if as_json:
        print_json(listing)
    elif listing.sessions:
        from iotrace.report.listing import print_sessions

        print_sessions(listing)
    else:
        echo(f"iotrace: there is no session in {directory.absolute()}", err=True)
        echo("  make one with: iotrace run -- CMD", err=True)
    return 0
