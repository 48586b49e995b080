"""``iotrace check``: exit code 4 where a run got worse than its baseline, or than a limit."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from iotrace.cli.parameters import SOURCE, TARGET, form_options, import_numpy, print_document, print_json
from iotrace.errors import replacing, writing
from iotrace.report.printing import echo, encode_json

if TYPE_CHECKING:
    from iotrace.analysis.compare.results import Check
    from iotrace.patching.suggest import Suggestions

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
    help="Compare with this baseline; repeatable, or a directory of several.",
)
@click.option(
    "--fail-if",
    "conditions",
    metavar="CONDITION",
    multiple=True,
    shell_complete=_complete_field,
    help='Fail if this holds for a figure of the report: "data_wait.raw_wait_fraction > 20%"; repeatable.',
)
@click.option(
    "--worse-by",
    metavar="PCT",
    type=click.FloatRange(min=0.0),
    default=5.0,
    show_default=True,
    help="Ignore changes below this percentage.",
)
@click.option("--strict", is_flag=True, help="Also fail if the result is not known, as on a busy machine.")
@click.option("--anyway", is_flag=True, help="Also compare with a baseline that did different work.")
@click.option(
    "--save-baseline",
    metavar="FILE|DIR/",
    type=click.Path(),  # a slash at its end counts
    help="Save the session's report as JSON, if the check passes.",
)
@click.option(
    "--suggest",
    "suggests",
    is_flag=True,
    help="Also print a fix with its patch. In a job on GitHub, add it to the job's summary.",
)
@click.option(
    "--sarif",
    metavar="FILE",
    type=TARGET,
    help="Also write the fixes as SARIF: annotations at file and line.",
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
    suggests: bool,
    sarif: Path | None,
    form: str,
) -> int:
    """Fail if SESSION got worse than its baseline.

    iotrace names the stage, file or setting that got worse. It ignores changes within the noise. Several
    sessions must be runs of one program. Several sessions and several baselines show the noise, so iotrace
    finds smaller changes.

    With --suggest, iotrace also prints the first fix of SESSION's report, and the first one that it has a
    patch of your source for (iotrace patch). In a job on GitHub it adds all this to the job's summary.

    A baseline is a session, the JSON that --save-baseline or iotrace report --json wrote, or a directory of
    these.

    Exit codes: 0 not worse, or not known (a warning says why), 1 a session cannot be read or compared, 2
    wrong usage, 4 worse, a condition of --fail-if holds, or the run itself failed.
    """
    import_numpy()
    from iotrace.analysis.compare.basis import basis_of
    from iotrace.analysis.compare.check import check as judge, kept_at, save
    from iotrace.analysis.compare.conditions import parse
    from iotrace.cli.compare import report_at
    from iotrace.errors import UsageError
    from iotrace.report.comparison import check_document

    limits = [parse(condition) for condition in conditions]
    if not baselines and not limits and save_baseline is None:
        raise UsageError("nothing to check SESSION against", "give --baseline, --fail-if or --save-baseline")
    reports = [report_at(session) for session in sessions]
    paths = [path for given in baselines for path in kept_at(given, sessions)]
    result = judge(reports, [basis_of(report_at(path), path) for path in paths], limits, worse_by, anyway)
    failed = not result.ok or (strict and bool(result.untold))
    suggested = _suggested(sessions[0]) if suggests or sarif is not None else None
    if suggested is None or not suggests or form != "json":
        titled = partial(check_document, label="iotrace check" if form == "md" else "")
        print_document(result, form, titled)
    if suggested is not None and suggests:
        _print_suggested(result, suggested, form)
    if suggested is not None and sarif is not None:
        from iotrace.report.suggestion import sarif as sarif_of

        with replacing(sarif, "choose another --sarif FILE") as file:
            file.write_bytes(encode_json(sarif_of(suggested)))
        echo(f"iotrace: wrote {sarif}", err=True)
    if save_baseline is not None:  # after the result, which is worth more where it cannot be kept
        wrote = [] if failed else save(reports, save_baseline)
        echo(*(f"iotrace: wrote {path}" for path in wrote), err=True)
        if failed:
            echo(f"iotrace: {save_baseline} is not written: the check did not pass", err=True)
    return _WORSE if failed else 0


def _suggested(session: Path) -> Suggestions | None:
    """Return the fixes of a session; None for a report that was kept, which says nothing of the source."""
    from iotrace.patching.suggest import suggestions

    if session.is_file():
        echo(f"iotrace: {session} is a report: fixes are suggested of a session", err=True)
        return None
    return suggestions(session)


def _print_suggested(result: Check, suggested: Suggestions, form: str) -> None:
    """Print suggested fixes after the result, and add all to the summary of a job on GitHub."""
    from iotrace.report.comparison import check_document
    from iotrace.report.markdown import document_markdown
    from iotrace.report.suggestion import lines_of_suggestion, markdown_of_suggestion

    path = suggested.report.session.path
    # The first one is worth trying first; where the source does not change for it, another may have a patch.
    shown = suggested.found[:1] + [each for each in suggested.found[1:] if each is suggested.first]
    said = [markdown_of_suggestion(each, path) for each in shown]
    if form == "json":
        print_json({**msgspec.to_builtins(result), "suggestions": shown})
    else:
        for each, text in zip(shown, said, strict=True):
            echo(*(["", *text.split("\n")] if form == "md" else lines_of_suggestion(each, path)))
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary:
        with writing(Path(summary), "leave out --suggest"), open(summary, "a", encoding="utf-8") as file:
            document = document_markdown(check_document(result, "iotrace check"))
            file.write("\n\n".join([document, *said]) + "\n")
