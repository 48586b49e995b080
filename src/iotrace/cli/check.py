"""``iotrace check``: exit code 4 where a run got worse than its baseline, or than a limit."""

from __future__ import annotations

from pathlib import Path

import click

from iotrace.cli.parameters import SOURCE, form_options, import_numpy, print_result

_WORSE = 4


def _complete_field(context: click.Context, option: click.Parameter, incomplete: str) -> list[str]:
    """Complete the name of a field in a condition."""
    from iotrace.analysis.compare.conditions import field_names

    return [name for name in field_names() if name.startswith(incomplete)]


@click.command()
@click.argument("sessions", metavar="SESSION...", type=SOURCE, nargs=-1, required=True)
@click.option(
    "--baseline",
    "baselines",
    metavar="SESSION|JSON|DIR",
    type=SOURCE,
    multiple=True,
    help="What it must not be worse than; repeatable, or a directory of several.",
)
@click.option(
    "--fail-if",
    "conditions",
    metavar="CONDITION",
    multiple=True,
    shell_complete=_complete_field,
    help='Fail where a figure of the report is so: "data_wait.raw_wait_fraction > 20%"; repeatable.',
)
@click.option(
    "--worse-by",
    metavar="PCT",
    type=click.FloatRange(min=0.0),
    default=5.0,
    show_default=True,
    help="The smallest change worth failing.",
)
@click.option("--strict", is_flag=True, help="Fail also where it cannot be told: on a busy machine, say.")
@click.option("--anyway", is_flag=True, help="Compare also with a baseline that did different work.")
@click.option(
    "--save-baseline",
    metavar="FILE|DIR/",
    type=click.Path(),  # a slash at its end counts
    help="Keep the session's report as JSON, if it passes.",
)
@form_options("the result")
def check(
    sessions: tuple[Path, ...],
    baselines: tuple[Path, ...],
    conditions: tuple[str, ...],
    worse_by: float,
    strict: bool,
    anyway: bool,
    save_baseline: str | None,
    form: str,
) -> int:
    """Say whether SESSION got worse than its baseline.

    It names the stage, file or setting that did. A change within the noise is none. Several sessions are
    runs of one program: they, and several baselines, show the noise, and let smaller changes be told.

    A baseline is a session, the JSON that --save-baseline or iotrace report --json wrote, or a directory of
    such.

    Exit codes: 0 not worse, or it cannot be told (a warning says why), 1 a session cannot be read or
    compared, 2 wrong usage, 4 worse, a condition of --fail-if holds, or the run itself failed.
    """
    import_numpy()
    from iotrace.analysis.compare.baselines import kept_at, save
    from iotrace.analysis.compare.basis import basis_of
    from iotrace.analysis.compare.check import check as judge
    from iotrace.analysis.compare.conditions import parse
    from iotrace.cli.compare import report_at
    from iotrace.errors import UsageError
    from iotrace.report.comparison import print_check

    limits = [parse(condition) for condition in conditions]
    if not baselines and not limits and save_baseline is None:
        raise UsageError("nothing to check SESSION against", "give --baseline, --fail-if or --save-baseline")
    reports = [report_at(session) for session in sessions]
    paths = [path for given in baselines for path in kept_at(given, sessions)]
    result = judge(reports, [basis_of(report_at(path), path) for path in paths], limits, worse_by, anyway)
    failed = not result.ok or (strict and bool(result.untold))
    if save_baseline is not None and not failed:
        save(reports, save_baseline)
    print_result(result, form, "check_markdown", print_check)
    return _WORSE if failed else 0
