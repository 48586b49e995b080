"""The line that says what a command is doing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[str], None]


@contextmanager
def watched() -> Iterator[Progress]:
    """Yield a function that shows a sentence on standard error, where that is a terminal."""
    if not _is_terminal():
        yield lambda _: None  # `rich` is not even imported
        return
    from iotrace.report.layout import make_console

    with make_console(stderr=True).status("reading") as status:
        yield status.update


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # it is closed
        return False
