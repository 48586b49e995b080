"""``iotrace compare``: what changed between two sessions, and why."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from iotrace.cli.parameters import (
    SOURCE,
    TARGET,
    form_options,
    html_option,
    import_numpy,
    print_document,
    save_page,
    save_tables,
)
from iotrace.report.printing import echo

if TYPE_CHECKING:
    from iotrace.analysis.page.sides import SideSteps

_LOOK_BYTES = 4096


@click.command()
@click.argument("before", metavar="A", type=SOURCE)
@click.argument("after", metavar="B", type=SOURCE)
@click.option("--anyway", is_flag=True, help="Also compare runs of programs that have nothing in common.")
@form_options("the result")
@html_option("the comparison")
@click.option("--csv", metavar="FILE", type=TARGET, help="Also write the tables of two traces as CSV.")
def compare(
    before: Path,
    after: Path,
    anyway: bool,
    form: str,
    html: Path | None,
    csv: Path | None,
) -> int:
    """Show what changed from session A to B, by how much, and why.

    A and B are sessions, or reports that iotrace report --json wrote; A is the earlier one. iotrace says what
    differs in command, data, ranks and batch size. It compares steps of different sizes by the sample. It
    refuses two programs that have nothing in common. In two traces of torch.profiler, it compares kernels and
    operators by name.

    Exit codes: 0 compared, 1 A or B cannot be read, has no measured steps, or nothing in common, 2 wrong
    usage.
    """
    import_numpy()
    from iotrace.analysis.compare.basis import basis_of
    from iotrace.analysis.compare.comparison import compare as compare_both
    from iotrace.errors import UsageError
    from iotrace.report.comparison import comparison_document

    if before.resolve() == after.resolve():
        raise UsageError(
            f"{before} is both A and B", "give the session before a change, and the one after it"
        )
    if are_traces((before, after)):
        _compare_traces(before, after, form, html, csv)
        return 0
    if csv is not None:
        raise UsageError("--csv writes the tables of two traces", "iotrace compare A B --json")
    result = compare_both(basis_of(report_at(before), before), basis_of(report_at(after), after))
    refused = None if anyway else result.refused
    if html is not None and not refused:
        from iotrace.report.page.results import comparison_page

        save_page(comparison_page(result, _read_steps((before, after), result.rank)), html)
    if form == "json" or not refused:
        print_document(result, form, comparison_document)
    if refused:
        echo(f"iotrace: A and B have nothing to compare: {refused}", err=True)
        for difference in result.differs:
            echo(f"  {difference}", err=True)
        echo("  --anyway compares them all the same", err=True)
        return 1
    return 0


def are_traces(paths: Sequence[Path]) -> bool:
    """Tell whether all `paths` are files, and none is a report that was kept."""
    for path in paths:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            if b'"schema_version"' in file.read(_LOOK_BYTES):
                return False
    return True


def _compare_traces(before: Path, after: Path, form: str, html: Path | None, csv: Path | None) -> None:
    from iotrace.analysis.compare.traces import compare_traces
    from iotrace.cli.report import report_of_traces
    from iotrace.report.comparison import changes_of, trace_document

    reports = (report_of_traces((path,), of_steps=True) for path in (before, after))
    comparison = compare_traces(*reports)
    if html is not None:
        from iotrace.report.page.results import trace_comparison_page

        save_page(trace_comparison_page(comparison), html)
    if csv is not None:
        save_tables(changes_of(comparison), csv)
    print_document(comparison, form, trace_document)


def _read_steps(paths: tuple[Path, Path], rank: int) -> list[SideSteps | None]:
    """Return the steps of both sessions, for a page; a report that was kept has none."""
    from iotrace.analysis.page.sides import side_steps
    from iotrace.analysis.rank import SessionAnalysis
    from iotrace.sources.session import open_session

    if any(path.is_file() for path in paths):
        return []
    return [side_steps(SessionAnalysis(open_session(path)), rank) for path in paths]


def report_at(path: Path) -> Any:
    """Read a session's report, or one that was kept, as plain data."""
    import msgspec

    from iotrace.analysis.compare.basis import parse_report
    from iotrace.cli.report import analysed

    if path.is_file():
        return parse_report(path.read_bytes(), path)
    return msgspec.to_builtins(analysed(path)[1])
