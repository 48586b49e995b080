"""Standard output and standard error of every command: what they cannot show, and when they fail."""

from __future__ import annotations

import io
import sys
from typing import Any

import click


def degrade() -> None:
    """Print ``?`` for what the terminal's encoding does not have, in place of an exception."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def give_up() -> None:
    """Print nothing more: else the interpreter tries again at its exit, fails, and changes the exit code."""
    sys.stdout = None


def print_json(document: Any) -> None:
    """Print `document` indented; JSON is UTF-8 whatever the terminal's encoding."""
    import msgspec

    click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2))
