"""The terminal that commands print on; a command that shows no report imports none of its blocks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from iotrace.report.printing import visible


class _Console(Console):
    """Standard output, or standard error, possibly of a program that continues."""

    def on_broken_pipe(self) -> None:
        """Stop printing. rich would make standard output, maybe the program's, /dev/null, and exit."""
        self.quiet = True
        raise

    def render_str(self, text: str, **given: Any) -> Text:
        """Take `text` as it is: a name may hold what rich would take for markup."""
        return super().render_str(visible(text, lines=True), **given)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield what is printed. What made a text without `plain` gives only its width wrong."""
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else visible(segment.text, lines=True)
            yield segment if text == segment.text else Segment(text, segment.style)


def make_console(stderr: bool, **given: Any) -> Console:
    """Make a console that obeys NO_COLOR and COLUMNS; it highlights nothing, and knows no markup."""
    return _Console(stderr=stderr, highlight=False, soft_wrap=False, markup=False, emoji=False, **given)
