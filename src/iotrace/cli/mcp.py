"""``iotrace mcp``: a server of the Model Context Protocol for an assistant."""

from __future__ import annotations

from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import click

from iotrace.cli.parameters import PATH, import_numpy
from iotrace.errors import IotraceError, SessionError


@click.command()
@click.argument("directory", metavar="[DIR]", type=PATH, default=Path())
@click.option(
    "--allow-run",
    is_flag=True,
    help="Also offer tools that run programs: run, try_fix, sweep. They run any command, as you.",
)
def mcp(directory: Path, allow_run: bool) -> int:
    """Serve the sessions below DIR to an assistant (MCP).

    MCP is the Model Context Protocol. The default DIR is this directory. The server speaks on standard input
    and output: the assistant's program starts it. Its tools list sessions, and give verdicts, views, files,
    worst batches, source lines and patches, in answers of 4 kB at most. They read nothing outside of DIR and
    change nothing.

    iotrace mcp needs the extra iotrace-agent[mcp].

    Exit codes: 0 the assistant left, 1 DIR cannot be read, or the extra is not installed, 2 wrong usage.
    """
    if not directory.is_dir():
        problem = "is no directory" if directory.exists() else "does not exist"
        raise SessionError(f"{directory} {problem}", "name a directory that holds sessions")
    if find_spec("mcp") is None or find_spec("mcp_types") is None:
        raise IotraceError("iotrace mcp needs the package mcp, version 2", "pip install 'iotrace-agent[mcp]'")
    import_numpy()
    from iotrace.mcp_server.server import serve

    with suppress(KeyboardInterrupt):
        serve(directory, allow_run)
    return 0
