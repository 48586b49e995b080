"""The terminal that a command prints on."""

from __future__ import annotations

from rich.console import Console


class _Console(Console):
    """Standard output, or standard error, possibly of a program that continues."""

    def on_broken_pipe(self) -> None:
        """Stop printing. rich would make standard output, maybe the program's, /dev/null, and exit."""
        self.quiet = True
        raise


def make_console(stderr: bool) -> Console:
    """Make a console that obeys NO_COLOR and COLUMNS, and highlights nothing by itself."""
    return _Console(stderr=stderr, highlight=False, soft_wrap=False)
