"""``iotrace ui``: all runs below directories in the browser."""

from __future__ import annotations

import secrets
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import click

from iotrace.cli.parameters import PATH, ended_by_signals
from iotrace.errors import IotraceError, SessionError, UsageError

_PORT = 7333
_LEAST_TOKEN = 16
_NEEDS = ("starlette", "uvicorn")


@click.command()
@click.argument("directories", metavar="[DIR...]", type=PATH, nargs=-1)
@click.option(
    "--port",
    metavar="N",
    type=click.IntRange(0, 65535),
    default=_PORT,
    help=f"Use this port, or the next one that is free. Default: {_PORT}.",
)
@click.option("--no-browser", is_flag=True, help="Do not open a browser.")
@click.option(
    "--host",
    metavar="HOST",
    default="127.0.0.1",
    show_default=True,
    help="Listen on this address. All but this machine's own need --token.",
)
@click.option("--token", metavar="TOKEN", help="What a browser has to know; default: a random one.")
@click.option("--read-only", is_flag=True, help="Let nobody delete a session or set a baseline.")
def ui(
    directories: tuple[Path, ...], port: int, no_browser: bool, host: str, token: str | None, read_only: bool
) -> int:
    """Show all runs below DIR in the browser, live and past.

    The default is this directory. The list shows sessions, sweeps, tunes, baselines and traces of
    torch.profiler. Each has its report, views and timeline. Two runs can be compared, and all runs of a
    program have a history that marks what got worse. A run that goes on updates itself, and /metrics serves
    its figures for Prometheus.

    iotrace serves this machine only. A browser needs the token in the address that iotrace prints. iotrace ui
    needs the extra iotrace-agent[ui].

    Exit codes: 0 served until Ctrl-C, 1 DIR cannot be read or no port is free, 2 wrong usage.
    """
    roots = directories or (Path(),)
    for root in roots:
        if not root.is_dir():
            problem = "is no directory" if root.exists() else "does not exist"
            raise SessionError(f"{root} {problem}", "name a directory that holds sessions")
    if missing := [name for name in _NEEDS if find_spec(name) is None]:
        raise IotraceError(f"iotrace ui needs {', '.join(missing)}", "pip install 'iotrace-agent[ui]'")
    from iotrace.ui.access import is_loopback
    from iotrace.ui.server import serve

    if token is None and not is_loopback(host):
        raise UsageError(f"--host {host} lets other machines in", "add --token TOKEN: they have to know it")
    if token is not None and (len(token) < _LEAST_TOKEN or not token.isascii() or not token.isalnum()):
        raise UsageError(f"--token takes at least {_LEAST_TOKEN} letters and digits", "openssl rand -hex 16")
    known = token or secrets.token_hex(16)
    with ended_by_signals(), suppress(KeyboardInterrupt):
        serve([root.resolve() for root in roots], host, port, known, read_only, not no_browser)
    return 0
