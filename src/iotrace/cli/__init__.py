"""The command ``iotrace``. The single place that turns an error into a sentence and an exit code."""

from __future__ import annotations

import errno
import sys
from typing import Any

import typer

from iotrace import __version__
from iotrace.cli.doctor import doctor
from iotrace.cli.export import export
from iotrace.cli.merge import merge
from iotrace.cli.output import degrade, give_up
from iotrace.cli.report import report
from iotrace.cli.run import run
from iotrace.cli.schema import schema
from iotrace.cli.sweep import sweep
from iotrace.errors import IotraceError

app = typer.Typer(
    name="iotrace",
    help="Why did the accelerator wait? File, decode step, worker, rank and step, from one run.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"iotrace {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and leave."
    ),
) -> None:
    pass


# Everything behind the first word that is no option of ours belongs to the command.
_before_a_command = {"allow_interspersed_args": False, "ignore_unknown_options": False}
app.command(context_settings=_before_a_command)(run)
app.command()(report)
app.command(context_settings=_before_a_command)(sweep)
app.command(context_settings=_before_a_command)(doctor)
app.command()(merge)
app.command()(export)
app.command()(schema)

# typer brings click, as a dependency in older releases and inside itself in newer ones: both derive
# BadParameter from UsageError.
_UsageError: Any = typer.BadParameter.__bases__[0]

_FAILED = 1
_USAGE = 2
_NOT_STARTED = 125
_INTERRUPTED = 130


def main() -> None:
    """Run the command line and leave with its exit code."""
    degrade()
    sys.exit(_main(sys.argv[1:]))


def _main(arguments: list[str]) -> int:
    running = arguments[:1] == ["run"]
    try:
        code = app(arguments, standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except IotraceError as error:
        _say(str(error), error.remedy)
        return error.exit_code
    except _UsageError as error:
        command = error.ctx.command_path if error.ctx is not None else "iotrace"
        _say(error.format_message().rstrip("."), f"see: {command} --help")
        return _NOT_STARTED if running else _USAGE
    except (typer.Abort, KeyboardInterrupt):
        _say("interrupted", "")
        return _INTERRUPTED
    except BrokenPipeError:  # the reader of our output has left: head, a closed pager
        give_up()
        return 0
    except OSError as error:
        give_up()
        _say(_what_failed(error), "")
        return _NOT_STARTED if running else _FAILED
    except SystemExit as leaving:  # click has met the broken pipe first
        if not isinstance(leaving.__context__, BrokenPipeError):
            raise
        give_up()
        return 0


def _what_failed(error: OSError) -> str:
    if error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF):
        return f"the output cannot be written: {error.strerror}"
    return str(error)


def _say(message: str, remedy: str) -> None:
    try:
        print(f"iotrace: {message}" + (f"\n  {remedy}" if remedy else ""), file=sys.stderr)
    except OSError:  # the exit code has to say it
        sys.stderr = None
