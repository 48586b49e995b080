"""``iotrace try``: carry out a fix of a report, and prove what it gains."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from iotrace.cli.parameters import PATH, TARGET, import_numpy, json_option, output_option, print_json
from iotrace.errors import IotraceError, replacing
from iotrace.report.printing import echo
from iotrace.session.listing import newest_session

if TYPE_CHECKING:
    from iotrace.patching.patch import Patch
    from iotrace.trying.results import Trial

_COMMAND = "iotrace.command"
FEWEST_RUNS = 6  # three pairs, as `trying.proof` wants: importing that takes longer than refusing


class _WithCommand(click.Command):
    """A command whose last argument is another one's line, behind ``--``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take the line apart first: all of it belongs to the program."""
        at = args.index("--") if "--" in args else len(args)
        ctx.meta[_COMMAND] = args[at + 1 :]
        return super().parse_args(ctx, args[:at])

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Show where it goes."""
        return [*super().collect_usage_pieces(ctx), "[-- CMD [ARG]...]"]


@click.command("try", cls=_WithCommand)
@click.argument("session", metavar="[SESSION]", required=False, type=PATH)
@click.option(
    "--fix",
    "wanted",
    metavar="N|CODE",
    multiple=True,
    help="Try this fix: its number in the report (1 is the first one), or its rule's code. Repeat it to try"
    " several together. Default: the first fix that needs no edit of the program.",
)
@click.option(
    "--runs",
    metavar="N",
    type=click.IntRange(min=FEWEST_RUNS),
    default=10,
    show_default=True,
    help="Run the program N times at most.",
)
@click.option(
    "--minutes",
    metavar="M",
    type=click.FloatRange(min=0, min_open=True),
    show_default="120",
    help="Start no run that would end later.",
)
@click.option(
    "--steps",
    metavar="N",
    type=click.IntRange(min=2),
    help="End each run after N measured steps. Default: 100; none where the fix saves time between steps.",
)
@click.option(
    "--bare", is_flag=True, help="Compare whole runs, untraced. Not for settings of the DataLoader."
)
@click.option("--as-it-is", is_flag=True, help="Let experiment trackers send what the runs log.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask before the first run.")
@click.option(
    "--patch", metavar="FILE", type=TARGET, help="If it is proven, write it as a diff of your own source."
)
@click.option(
    "--apply",
    "applies",
    is_flag=True,
    help="If it is proven, apply that diff, to a clean git tree only. Of data, without --patch: put the copy"
    " in place, and keep the original.",
)
@output_option("DIR", "The directory of the trial; default: iotrace-try-<date>-<time>.")
@json_option("the result")
def try_(
    session: Path | None,
    wanted: tuple[str, ...],
    runs: int,
    minutes: float | None,
    steps: int | None,
    bare: bool,
    as_it_is: bool,
    yes: bool,
    patch: Path | None,
    applies: bool,
    output: Path | None,
    as_json: bool,
) -> int:
    """Try a fix of SESSION's report, and measure what it gains.

    iotrace runs the session's command without and with the fix in turn, until the runs show whether it is
    faster. That takes at least six runs. It changes neither the program nor its data, unless you give
    --apply. It can set DataLoader's arguments, and CPUs and threads of libraries in each worker. It can keep
    archives open. It can write a copy of data, which the program gets in place of the original.

    The default SESSION is the newest one here. CMD replaces the recorded command.

    Exit codes: 0 proven faster; 1 no fix can be tried, or the program fails; 2 wrong usage; 4 not proven: the
    fix does not help, or the runs do not show it; 130 interrupted.
    """
    import_numpy()
    from msgspec.structs import replace

    from iotrace.errors import UsageError
    from iotrace.report.console import make_console
    from iotrace.report.trial import print_trial
    from iotrace.trying.options import Options
    from iotrace.trying.patched import is_made
    from iotrace.trying.results import FAILED
    from iotrace.trying.trial import in_place, is_replaceable, open_trial

    if session is None:
        session = newest_session(Path())
        echo(f"iotrace: the newest session here is {session}", err=True)
    options = Options(runs=runs, minutes=minutes, steps=steps, bare=bare, as_it_is=as_it_is, directory=output)
    command: list[str] = click.get_current_context().meta[_COMMAND]
    trying = open_trial(session, wanted, command, options)
    if applies:
        trying.check_apply()
    echo(*[f"iotrace: {line}" for line in trying.intent], err=True)
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError("there is no terminal to ask whether to run it", "--yes runs it without asking")
        if not click.confirm("iotrace: run it?", err=True):
            return 130
    trial = trying.run(lambda text: echo(f"  {text}", err=True))
    refused = made = None
    swaps = applies and patch is None and is_replaceable(trial)
    others = trial.settings or trial.variables or trial.in_workers
    if trial.proven and swaps:
        try:
            trial = in_place(trial)
        except IotraceError as error:
            refused = error
    if trial.proven and (patch is not None or applies) and (others or not swaps):
        made = trying.patch(replace(trial, data=[]) if swaps else trial)
    if as_json:
        print_json(trial)
    else:
        print_trial(trial, make_console(stderr=False), made is not None and is_made(made))
    if refused is not None:
        raise refused
    if made is not None:
        _carry_out(made, trial, patch, applies)
    return 0 if trial.proven else 1 if trial.kind == FAILED else 4


def _carry_out(made: Patch, trial: Trial, target: Path | None, applies: bool) -> None:
    """Write what was proven as a diff of your own source, and apply it, or print the command's words."""
    if made.diff is None and made.command is not None:
        echo(f"iotrace: no file has to change: give the command {made.command}", err=True)
    elif made.diff is None:
        remedy = "--apply without --patch puts the copy in its place" if trial.data else ""
        raise IotraceError(f"it is proven, but there is no patch: {made.why_not}", remedy)
    else:
        _write(made, made.diff, target, applies)
    if trial.data:
        echo(f"iotrace: it reads the copy in {trial.path}: keep that directory", err=True)


def _write(made: Patch, diff: str, target: Path | None, applies: bool) -> None:
    from iotrace.patching.git import apply

    if target is not None:
        with replacing(target, "choose another --patch FILE") as file:
            file.write_bytes(diff.encode())
        echo(f"iotrace: wrote {target}; in {made.root}: git apply {target}", err=True)
    if applies:
        apply(made)
        echo(f"iotrace: changed {', '.join(dict.fromkeys(file for file, _ in made.lines))}", err=True)
    if made.command is not None:
        echo(f"iotrace: the rest is in the command: {made.command}", err=True)
