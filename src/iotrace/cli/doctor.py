"""``iotrace doctor``: what a run would capture here, what not, why, and what would help."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from iotrace.cli.parameters import BEFORE_A_COMMAND, json_option

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from iotrace.doctor.results import Check, Diagnosis

_STYLES = {"ok": "green", "warning": "yellow", "missing": "bold red", "unknown": "magenta"}
_STATUS_WIDTH, _ID_WIDTH = 7, 14
_LABEL_WIDTH = _STATUS_WIDTH + 1 + _ID_WIDTH + 1


@click.command(context_settings=BEFORE_A_COMMAND)
@click.argument("command", metavar="[--] [CMD [ARG]...]", nargs=-1, type=click.UNPROCESSED)
@click.option("--data", metavar="PATH", help="The data that CMD reads; default: a guess.")
@click.option(
    "-o",
    "--output",
    metavar="DIR",
    help="The directory that the session would have; default: one made here.",
)
@json_option("the findings")
def doctor(command: tuple[str, ...], data: str | None, output: str | None, as_json: bool) -> int:
    """Say what iotrace run will capture of CMD here, what not, and why. CMD itself is not run.

    Exit codes: 0 nothing that matters is missing, as far as is known; 1 some is missing; 2 wrong usage.
    """
    from iotrace.cli.interruption import ended_by_signals
    from iotrace.doctor.diagnose import diagnose

    # Paths stay text: even asking whether one exists may hang, and is a check's business.
    with ended_by_signals():
        diagnosis = diagnose(list(command), data, output)
    if as_json:
        from iotrace.cli.output import print_json

        print_json(diagnosis)
    else:
        from iotrace.report.console import make_console

        _print(diagnosis, output, make_console(stderr=False))
    return 1 if any(check.status == "missing" for check in diagnosis.checks) else 0


def _print(diagnosis: Diagnosis, output: str | None, console: Console) -> None:
    import shlex

    from rich.text import Text

    subject = shlex.join(diagnosis.argv) or f"no command given: {diagnosis.interpreter}"
    console.print(Text.assemble(("iotrace doctor ", "bold"), subject))
    console.print()
    for check in diagnosis.checks:
        _print_check(check, console)
    count = {status: sum(check.status == status for check in diagnosis.checks) for status in _STYLES}
    told = ", ".join(f"{number} {status}" for status, number in count.items() if number)
    console.print(Text(f"{told}; {diagnosis.seconds:.1f} s", style="dim"))
    console.print()
    for label, parts in (("captured", diagnosis.captured), ("not captured", diagnosis.not_captured)):
        if parts:
            _print_row(console, Text(label, style="bold"), Text(" · ".join(parts)))
    reasons: dict[str, list[str]] = {}
    for unknown in diagnosis.unknown:
        reasons.setdefault(unknown.why, []).append(unknown.part)
    for why, parts in reasons.items():
        text = Text(" · ".join(parts)).append(f"\n{why}", style="dim")
        _print_row(console, Text("not known", style="bold"), text)
    _print_row(console, Text("next", style="bold"), Text(_next(diagnosis, output)))


def _next(diagnosis: Diagnosis, output: str | None) -> str:
    """The command to type next."""
    import shlex

    command = shlex.join(diagnosis.argv) if diagnosis.argv else "python train.py"
    where = f"-o {shlex.quote(output)} " if output is not None else ""
    if any(check.status == "missing" for check in diagnosis.checks):
        return f"follow the arrows (→) above, then again: iotrace doctor {where}-- {command}"
    return f"iotrace run {where}-- {command}"


def _print_check(check: Check, console: Console) -> None:
    from rich.text import Text

    label = Text.assemble((check.status.ljust(_STATUS_WIDTH + 1), _STYLES[check.status]), (check.id, "bold"))
    text = Text(check.what)
    if check.why:
        text.append(f"\n{check.why}", style="dim")
    if check.remedy:
        text.append(f"\n→ {check.remedy}")
    _print_row(console, label, text)


def _print_row(console: Console, label: Text, text: Text) -> None:
    """`text` folded right of `label`. No table: rich fills its lines up with blanks."""
    from rich.text import Text

    width = max(1, console.width - _LABEL_WIDTH)
    for number, line in enumerate(text.wrap(console, width, overflow="fold")):
        line.rstrip()
        start = Text().append_text(label if number == 0 else Text())
        start.pad_right(_LABEL_WIDTH - start.cell_len)
        console.print(start.append_text(line), soft_wrap=True)
