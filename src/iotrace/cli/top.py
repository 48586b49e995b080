"""``iotrace top``: what a run does while it runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from iotrace.cli.parameters import PATH, ended_by_signals, import_numpy, json_option
from iotrace.report.printing import visible_json
from iotrace.session.listing import newest_session

if TYPE_CHECKING:
    from iotrace.analysis.results.top import Top

_Show = Callable[["Top"], None]
# Of a core: where a look costs more, looks are made less often.
_MOST_CPU = 0.05


@click.command()
@click.argument("session", metavar="[SESSION]", type=PATH, required=False)
@click.option(
    "-i",
    "--interval",
    metavar="S",
    type=click.FloatRange(min=0.2, max=3600),
    default=2.0,
    show_default=True,
    help="Refresh every S seconds.",
)
@click.option(
    "-n",
    "--count",
    metavar="N",
    type=click.IntRange(min=1),
    help="End after N refreshes; default: when the run ends.",
)
@click.option(
    "--steps",
    metavar="N",
    type=click.IntRange(min=1, max=1000),
    default=50,
    show_default=True,
    help="Show figures of the last N steps, from at most 120 s.",
)
@json_option("one object a refresh, a line each,")
def top(session: Path | None, interval: float, count: int | None, steps: int, as_json: bool) -> int:
    """Show what a running command waits for: causes, files, workers.

    SESSION is the directory that iotrace run writes; default: the newest one in this directory. iotrace top
    writes nothing into SESSION and does not touch the program. It ends when the run ends, or with Ctrl-C.

    Exit codes: 0 ended or interrupted, 1 SESSION cannot be read, 2 wrong usage.
    """
    import_numpy()
    from iotrace.analysis.looks import looks

    path = session or newest_session(Path())
    try:
        with ended_by_signals(), _screen(as_json) as show:
            for number, look in enumerate(looks(path, interval, _MOST_CPU, steps), 1):
                show(look)
                if number == count:
                    break
    except KeyboardInterrupt:
        pass
    return 0


@contextmanager
def _screen(as_json: bool) -> Iterator[_Show]:
    """Yield what shows a look: lines of JSON, blocks of text, or on a terminal one screen that is redrawn."""
    if as_json:
        import msgspec

        yield lambda look: _write(visible_json(msgspec.json.encode(look)).decode() + "\n")
        return

    from iotrace.report.console import make_console
    from iotrace.report.top import print_top

    console = make_console(stderr=False)

    def rendered(look: Top, most: int | None = None) -> str:
        with console.capture() as capture:
            print_top(look, console)
        return "".join(capture.get().splitlines(keepends=True)[:most])

    if not console.is_terminal or console.is_dumb_terminal:
        yield lambda look: _write(rendered(look) + "\n")
        return
    last: list[Top] = []

    def draw(look: Top) -> None:
        last[:] = [look]
        # Each line is cleared behind its end, and what is below the last one: no flicker of a whole clear.
        rows = rendered(look, max(1, console.height - 1)).rstrip("\n").replace("\n", "\x1b[K\n")
        _write(f"\x1b[H{rows}\x1b[K\x1b[J")

    _write("\x1b[?1049h\x1b[?25l")  # the alternate screen, no cursor
    try:
        yield draw
    finally:
        _write("\x1b[?25h\x1b[?1049l")
        for look in last:
            _write(rendered(look))


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
