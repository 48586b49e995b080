"""``iotrace doctor``: what a run would capture here, what not, why, and what would help."""

from __future__ import annotations

from functools import partial

import click

from iotrace.cli.parameters import BEFORE_A_COMMAND, import_numpy, json_option, output_option, print_result
from iotrace.doctor.run import TORCH_SECONDS
from iotrace.report.printing import echo


@click.command(context_settings=BEFORE_A_COMMAND)
@click.argument("command", metavar="[--] [CMD [ARG]...]", nargs=-1, type=click.UNPROCESSED)
@click.option("--data", metavar="PATH", help="Data that CMD reads; default: iotrace guesses.")
@click.option(
    "--storage",
    metavar="PATH",
    help="Only measure how fast a plain sequential reader reads files there; at most 3 s and 256 MiB.",
)
@output_option("DIR", "Directory of the session; default: a new one here.", kind=str)
@click.option(
    "--timeout",
    metavar="S",
    type=click.FloatRange(min=1.0),
    default=TORCH_SECONDS,
    show_default=True,
    help="Wait at most S seconds for the import of torch.",
)
@json_option("the findings")
def doctor(
    command: tuple[str, ...],
    data: str | None,
    storage: str | None,
    output: str | None,
    timeout: float,
    as_json: bool,
) -> int:
    """Show what iotrace run will capture here, and what not.

    The doctor also says why, and what would help. It does not run CMD. It answers within 5 seconds, or when
    the import of torch has ended.

    With --storage, it drops files from the page cache, reads the largest ones in pieces of 1 MiB, and keeps
    the result for reports on this host (iotrace report --view storage).

    Exit codes: 0 nothing that matters is missing, as far as is known, 1 something is missing, 2 wrong usage.
    """
    if storage is not None:
        if command or data is not None or output is not None:
            raise click.UsageError("--storage PATH takes no other option and no command")
        return _read_storage(storage, as_json)
    import_numpy()
    from iotrace.cli.parameters import ended_by_signals
    from iotrace.doctor.diagnose import diagnose
    from iotrace.report.doctor import print_diagnosis

    # Paths stay text: even a look whether one exists may hang, so a check does it.
    with ended_by_signals():
        diagnosis = diagnose(list(command), data, output, timeout, lambda _: _say_waiting(timeout))
    form = "json" if as_json else "text"
    print_result(diagnosis, form, None, partial(print_diagnosis, output=output))
    return 1 if any(check.status == "missing" for check in diagnosis.checks) else 0


def _read_storage(path: str, as_json: bool) -> int:
    from iotrace.doctor.plain_reader import read_plainly
    from iotrace.report.doctor import print_storage

    print_result(read_plainly(path), "json" if as_json else "text", None, print_storage)
    return 0


def _say_waiting(timeout: float) -> None:
    echo(f"iotrace: waiting for torch to be imported, {timeout:g} s at most (--timeout S)", err=True)
