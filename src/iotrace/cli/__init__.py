"""The command ``iotrace``. The single module that turns an error into a sentence and an exit code.

A command's module is imported when the command is called: `iotrace report` pays for no other.
"""

from __future__ import annotations

import codecs
import io
import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import click

from iotrace.errors import IotraceError, UsageError, what_failed
from iotrace.report.printing import echo, in_other_words
from iotrace.version import __version__

_NAME = "iotrace"
_COMPLETION_VARIABLE = "_IOTRACE_COMPLETE"  # set by the shell when it asks for completions
_COMMANDS = (
    "run",
    "top",
    "status",
    "report",
    "open",
    "ls",
    "ui",
    "compare",
    "check",
    "patch",
    "sweep",
    "tune",
    "try",
    "doctor",
    "merge",
    "export",
    "mcp",
    "schema",
    "rules",
    "explain",
)
_OTHERWISE = {"open": "open_", "try": "try_"}  # what has the name of a builtin function, or is a keyword
_TOGETHER = {
    "try": "trial",
    "schema": "reference",
    "rules": "reference",
    "explain": "reference",
}  # by its module

_FAILED = 1
_USAGE = 2
_NOT_STARTED = 125
_INTERRUPTED = 130


class _Commands(click.Group):
    """Each command is a function, in a module of its name or in one that holds several commands."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module = import_module(f"iotrace.cli.{_TOGETHER.get(cmd_name, cmd_name)}")
        command: click.Command = getattr(module, _OTHERWISE.get(cmd_name, cmd_name))
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does; another word than a command's name is wrong usage."""
        if args[0] not in _COMMANDS and not args[0].startswith("-") and not ctx.resilient_parsing:
            from iotrace.cli.usage import no_command

            raise UsageError(no_command(args[0], _COMMANDS), f"see: {_NAME} --help")
        return super().resolve_command(ctx, args)


def _completion(context: click.Context, option: click.Parameter, shell: str | None) -> None:
    if shell is None or context.resilient_parsing:
        return
    from iotrace.cli.usage import completion_script, install

    shown = option.name == "show_completion"
    click.echo((completion_script if shown else install)(context.command, _COMPLETION_VARIABLE, shell))
    context.exit()


def _shell_option(name: str, text: str) -> Callable[[Any], Any]:
    """An option that takes a shell's name, or none: then it is the user's own shell."""
    return click.option(
        name,
        metavar="[SHELL]",
        is_flag=False,
        flag_value="by $SHELL",
        callback=_completion,
        is_eager=True,
        expose_value=False,
        help=text,
    )


@click.group(_NAME, cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message=f"{_NAME} %(version)s", help="Print the version and exit.")
@_shell_option(
    "--install-completion",
    "Install shell completion (bash, zsh, fish); says which file it wrote.",
)
@_shell_option("--show-completion", "Print the script of shell completion.")
def app() -> None:
    """Why did the accelerator wait? File, decode step, worker, rank and step, from one run."""


def main() -> None:
    """Run the command line and exit with its exit code."""
    codecs.register_error(_NAME, in_other_words)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_NAME)
    sys.exit(_main(sys.argv[1:]))


def _main(arguments: list[str]) -> int:
    asked = os.environ.get(_COMPLETION_VARIABLE)
    if asked:
        from click.shell_completion import shell_complete

        return shell_complete(app, {}, _NAME, _COMPLETION_VARIABLE, asked)
    running = arguments[:1] == ["run"]
    try:
        with app.make_context(_NAME, arguments or ["--help"]) as context:
            code = app.invoke(context)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    except IotraceError as error:
        _say(str(error), error.remedy, error.output)
        return error.exit_code
    except click.UsageError as error:
        _say_usage(error, arguments)
        return _NOT_STARTED if running else _USAGE
    except MemoryError:
        _say("the memory is not enough for this", "free some, or give fewer or smaller inputs")
        return _FAILED
    except (KeyboardInterrupt, RuntimeError) as error:  # click.Abort is one
        if not _is_interrupt(error):
            raise
        _say("interrupted", "no file is left half-written: give the same command again")
        return _INTERRUPTED
    except BrokenPipeError:  # the reader of our output has left: head, a closed pager
        _give_up()
        return 0
    except OSError as error:
        _give_up()
        _say(*_explained(error))
        return _NOT_STARTED if running else _FAILED


def _is_interrupt(error: BaseException) -> bool:
    """Whether it was Ctrl-C, which Python before 3.12 wraps where it comes as a class is being made."""
    kinds = (click.Abort, KeyboardInterrupt)
    return isinstance(error, kinds) or isinstance(error.__cause__, KeyboardInterrupt)


def _explained(error: OSError) -> tuple[str, str]:
    """Say what the system refused, and what helps where it is a session of another user."""
    if isinstance(error, PermissionError) and os.path.basename(str(error.filename)) == "manifest.json":
        from pathlib import Path

        from iotrace.session.manifest import not_readable

        refused = not_readable(Path(str(error.filename)).parent)
        return str(refused), refused.remedy
    return what_failed(error), ""


def _say_usage(error: click.UsageError, arguments: list[str]) -> None:
    from iotrace.cli.usage import describe

    command = next((word for word in arguments if not word.startswith("-")), "")
    if command in _COMMANDS:  # click does not always say where it was
        known = _Commands().get_command(click.Context(app), command)
        assert known is not None
        _say(describe(error, known), f"see: {_NAME} {command} --help")
    else:
        _say(describe(error, app), f"see: {_NAME} --help")


def _give_up() -> None:
    """Print nothing more: else the interpreter tries again at its exit, fails, and changes the exit code."""
    sys.stdout = None


def _say(message: str, remedy: str, output: str = "") -> None:
    said = [f"  | {line}" for line in output.splitlines()]
    try:
        echo(f"iotrace: {message}", *said, *(f"  {line}" for line in remedy.splitlines()), err=True)
    except OSError:  # the exit code has to say it
        sys.stderr = None
