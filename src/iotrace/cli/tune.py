"""``iotrace tune``: search the loader's settings, and prove the best one."""

from __future__ import annotations

from pathlib import Path

import click

from iotrace.cli.parameters import (
    BEFORE_A_COMMAND,
    PATH,
    html_option,
    import_numpy,
    io_option,
    json_option,
    output_option,
)
from iotrace.cli.sweep import show

_STEPS = 100


@click.command(context_settings=BEFORE_A_COMMAND)
@click.argument("command", metavar="[--] CMD [ARG]...", nargs=-1, type=click.UNPROCESSED)
@click.option("--budget", metavar="TIME", help="Start no run that would end later: 90s, 10m or 1h.")
@click.option(
    "--steps",
    metavar="N",
    type=click.IntRange(min=2),
    show_default="100",
    help="End each run after N measured steps.",
)
@output_option("DIR", "The directory of the runs; default: iotrace-tune-<date>-<time>.")
@click.option("--resume", is_flag=True, help="Continue the search in DIR, without repeating its runs.")
@json_option("the result")
@html_option("the result")
@click.option("--csv", metavar="FILE", type=PATH, help="Also write the tested settings as CSV.")
@io_option
def tune(
    command: tuple[str, ...],
    budget: str | None,
    steps: int | None,
    output: Path | None,
    resume: bool,
    as_json: bool,
    html: Path | None,
    csv: Path | None,
    io: tuple[str, ...],
) -> int:
    """Find the best settings of CMD's DataLoader.

    iotrace runs CMD as it is, then with the settings that a model of its batches predicts to be best: some
    eight runs. At the end it runs yours and the best in turn. It does not change the program: it prints the
    change to make. CMD writes its files in each run: give it a separate directory.

    Exit codes: 0 there is advice, or nothing to gain; 1 there is none, or CMD has no loop over a loader;
    2 wrong usage; 130 interrupted (the results so far are printed and kept).
    """
    import_numpy()
    from iotrace.doctor.resources_left import resources_left
    from iotrace.errors import UsageError
    from iotrace.report.console import make_console
    from iotrace.report.sweep_watch import progress
    from iotrace.sweeps.execute import execute
    from iotrace.sweeps.model import look
    from iotrace.sweeps.plan import keep, kept_steps
    from iotrace.sweeps.tune.search import open_search, parse_seconds
    from iotrace.sweeps.tune.summary import sum_up

    if resume and output is None:
        raise UsageError("--resume needs the search's directory", "iotrace tune --resume -o DIR ...")
    if steps is None:
        steps = (kept_steps(output) if resume and output is not None else None) or _STEPS
    budget_s = None if budget is None else parse_seconds(budget)
    search = open_search(list(command), look, resources_left(), budget_s, steps, output, resume, list(io))
    console = make_console(stderr=True)
    interrupted = False
    before, after = progress(console, budget_s)
    try:
        search.run(execute, before, after)
    except KeyboardInterrupt:
        interrupted = True
    result = sum_up(search)
    keep(result)
    show(result, "json" if as_json else "text", html, csv)
    if interrupted:
        return 130
    return 1 if result.verdict.kind == "no-advice" else 0
