"""Types, options, output, the import of numpy and the end by signals that several commands share."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from iotrace.errors import UsageError
from iotrace.report.printing import echo, encode_json, visible_json

if TYPE_CHECKING:
    from rich.console import Console

    from iotrace.cluster import Cluster
    from iotrace.report.blocks import Document, Table
    from iotrace.stores import Copies

_THREADS = "OPENBLAS_NUM_THREADS"


class Local(click.Path):
    """A path, passed on as it is: the command itself says what is wrong with it. No URL of a store."""

    def __init__(self, *, text: bool = False) -> None:
        super().__init__(path_type=str if text else Path, readable=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path; what names a store becomes a local copy, or is refused."""
        if ctx is not None and not ctx.resilient_parsing and "://" in str(value):
            from iotrace.stores import is_url

            if is_url(str(value)):
                value = self.of_store(str(value), ctx)
        return super().convert(value, param, ctx)

    def of_store(self, url: str, context: click.Context) -> Path:
        """Refuse a URL."""
        raise UsageError(
            f"{url}: this has to be a directory of this machine",
            "record there, then copy it; report, merge, open, check, compare and export read from stores",
        )


class Source(Local):
    """A path, or the URL of what lies in a store: it is fetched for this command."""

    def of_store(self, url: str, context: click.Context) -> Path:
        """Fetch it."""
        with ended_by_signals():
            path = _copies(context).of_input(url)
        echo(f"iotrace: {url} is read from a copy, {path}, which lasts as long as this command", err=True)
        return path


class Target(Local):
    """A path, or a URL that what is written goes to when the command ends."""

    def of_store(self, url: str, context: click.Context) -> Path:
        """Return where it is written first."""
        return _copies(context).of_output(url)


def _copies(context: click.Context) -> Copies:
    key = "iotrace.stores"
    if key not in context.meta:
        from iotrace.stores import Copies

        kept = context.meta[key] = Copies()
        context.call_on_close(lambda: kept.close(lambda text: echo(text, err=True)))
    copies: Copies = context.meta[key]
    return copies


PATH, SOURCE, TARGET = Local(), Source(), Target()

_ENDING = (signal.SIGTERM, signal.SIGHUP)
_SMALLEST_SIZE = 1 << 20
_UNITS = {"B": 0, "KIB": 10, "MIB": 20, "GIB": 30, "TIB": 40}


class Size(click.ParamType):  # type: ignore[type-arg]
    """A number of bytes as people write it: 500MiB, 10GiB; 0 where it is off."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the bytes."""
        text = str(value).strip().upper()
        if text in ("OFF", "0"):
            return 0
        number = text.rstrip("BKMGTI")
        unit = text[len(number) :]
        unit = unit if unit in _UNITS else f"{unit[:1]}IB"  # K, KB: everything here is binary
        try:
            size = int(float(number) * 2 ** _UNITS[unit])
        except (ValueError, KeyError, OverflowError):
            size = 0
        if size < _SMALLEST_SIZE:
            self.fail(f"--max-size takes a size of at least 1MiB, or off; not {value!r}", param, ctx)
        return size


class Tracker(click.ParamType):  # type: ignore[type-arg]
    """A tracker of experiments whose client is installed; which there are is imported when one is named."""

    name = "tracker"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return its name."""
        from iotrace.sinks import why_not

        if why := why_not(str(value)):
            self.fail(why, param, ctx)
        return str(value)


# Everything behind the first word that is no option of ours belongs to the traced command.
BEFORE_A_COMMAND = {"allow_interspersed_args": False, "ignore_unknown_options": False}

io_option = click.option(
    "--io",
    metavar="PATH|off",
    multiple=True,
    help="Trace only POSIX calls on files below PATH, or none (off); repeatable.",
)


def output_option(
    metavar: str, what: str, *, required: bool = False, kind: Any = PATH
) -> Callable[[Any], Any]:
    """``-o``, which says where the command writes."""
    return click.option("-o", "--output", metavar=metavar, type=kind, required=required, help=what)


def json_option(what: str) -> Callable[[Any], Any]:
    """``--json``, which prints `what` as JSON."""
    return click.option("--json", "as_json", is_flag=True, help=f"Print {what} as JSON.")


def form_options(what: str) -> Callable[[Any], Any]:
    """``--format`` and ``--json``: how `what` is printed; the command takes both as `form`."""
    form = click.option(
        "--format",
        "form",
        type=click.Choice(["text", "md", "json"]),
        default="text",
        show_default=True,
        help="Format of the output. md is for mail or pull requests.",
    )

    def add(command: Callable[..., int]) -> Any:
        @wraps(command)
        def call(form: str, as_json: bool, **given: Any) -> int:
            return command(form="json" if as_json else form, **given)

        return form(json_option(what)(call))

    return add


def html_option(what: str) -> Callable[[Any], Any]:
    """``--html``, which also writes a page."""
    return click.option("--html", metavar="FILE", type=TARGET, help=f"Also write {what} as one page of HTML.")


def dask_option(what: str) -> Callable[[Any], Any]:
    """``--dask``, which gives the work to the workers of a Dask cluster."""
    text = f"Process the {what} on a Dask cluster, one task for each. local starts workers on this machine."
    return click.option("--dask", metavar="ADDRESS|local", help=text)


@contextmanager
def dask_cluster(address: str | None, workers: int | None = None) -> Iterator[Cluster | None]:
    """Connect to the cluster that ``--dask`` names, if any."""
    if address is None:
        yield None
        return
    from iotrace.cluster import connected

    with connected(address, workers) as cluster:
        yield cluster


log_option = click.option(
    "--log",
    metavar="NAME",
    type=Tracker(),
    multiple=True,
    help="Also log the result to mlflow, wandb or tensorboard; repeatable.",
)


def save_page(page: str, path: Path) -> None:
    """Write a page, and say where it lies."""
    from iotrace.report.page.render import write_page

    write_page(page, path)
    echo(f"iotrace: wrote {path}", err=True)


def save_tables(tables: Sequence[Table], path: Path) -> None:
    """Write the tables of a view as CSV, and say where they lie."""
    from iotrace.report.blocks import write_csv

    write_csv(tables, path)
    echo(f"iotrace: wrote {path}", err=True)


def print_json(document: Any) -> None:
    """Print `document` indented; JSON is UTF-8 whatever the terminal's encoding."""
    import msgspec

    click.echo(visible_json(msgspec.json.format(encode_json(document), indent=2)))


def print_result(
    result: Any,
    form: str,
    markdown: str | None,
    on_console: Callable[[Any, Console], None],
) -> None:
    """Print `result` as JSON, Markdown or text, as `form` says; text also where there is no Markdown.

    `markdown` names a function of `iotrace.report.markdown`, which is imported only for it.
    """
    if form == "json":
        print_json(result)
    elif form == "md" and markdown is not None:
        echo(*getattr(import_module("iotrace.report.markdown"), markdown)(result).split("\n"))
    else:
        from iotrace.report.console import make_console

        on_console(result, make_console(stderr=False))


def print_document(result: Any, form: str, make: Callable[[Any], Document]) -> None:
    """Print `result` as JSON, or the document that `make` makes of it as Markdown or text."""
    if form == "json":
        print_json(result)
    elif form == "md":
        from iotrace.report.markdown import document_markdown

        echo(*document_markdown(make(result)).split("\n"))
    else:
        from iotrace.report.console import make_console
        from iotrace.report.layout import print_document as on_console

        on_console(make(result), make_console(stderr=False))


def import_numpy() -> None:
    """Import numpy without OpenBLAS's threads, which spin for 80 ms: no command multiplies matrices.

    The environment stays as it was, for the programs that a command starts.
    """
    if _THREADS in os.environ:
        return
    os.environ[_THREADS] = "1"
    import_module("numpy")
    del os.environ[_THREADS]


class _EndedError(BaseException):
    """By the signal of this number. No Exception: a check's guard must not take it for its own."""


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Within it SIGTERM and SIGHUP unwind the main thread; then the process dies of them after all."""

    def end(number: int, frame: FrameType | None) -> None:
        for ending in _ENDING:  # a second one must not stop the cleaning
            signal.signal(ending, signal.SIG_IGN)
        raise _EndedError(number)

    # One that is ignored (nohup) stays so.
    before = {number: signal.getsignal(number) for number in _ENDING}
    taken = [number for number, handler in before.items() if handler == signal.SIG_DFL]
    for number in taken:
        signal.signal(number, end)
    try:
        yield
    except _EndedError as ended:
        (number,) = ended.args
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def ranks_option(text: str) -> frozenset[int] | None:
    """Return the ranks that `--ranks` names, as in ``0,2-3``; None: all.

    Raises:
        UsageError: it names none.
    """
    if not text:
        return None
    ranks: set[int] = set()
    for piece in text.split(","):
        first, dash, last = piece.partition("-")
        wanted = range(0)
        if first.isdecimal() and last.isdecimal() == bool(dash):
            wanted = range(int(first), min(int(last or first), 1 << 24) + 1)
        if not wanted:
            raise UsageError(
                f"--ranks takes numbers and ranges such as 0,2-3, not {text}",
                "give them as in: --ranks 0,2-3",
            )
        ranks.update(wanted)
    return frozenset(ranks)
