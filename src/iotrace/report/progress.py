"""What a command is at, on standard error where that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from iotrace.report.printing import visible

Progress = Callable[[str], None]


@contextmanager
def watched() -> Iterator[Progress]:
    """Yield a function that shows a sentence on standard error, where that is a terminal."""
    if not _is_terminal():
        yield lambda _: None  # `rich` is not even imported
        return
    from rich.text import Text

    from iotrace.report.console import make_console

    with make_console(stderr=True).status("reading") as status:
        yield lambda text: status.update(Text(visible(text)))


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # it is closed
        return False
