"""The view of a process's start, to its first step: its parts as a waterfall, imports by package."""

from __future__ import annotations

from iotrace.analysis.results import RankReport, Report
from iotrace.analysis.rules.startup import SLOW_IMPORTS
from iotrace.analysis.startup.waterfall import NOT_NAMED
from iotrace.report.views.table import Field, Table, of_ranks
from iotrace.units import counted, percent, size

_NOT_SEEN = "the loop's first request was not seen"
_RECORD = "iotrace run -- CMD, with a program that asks for batches"
_MOST_PACKAGES = 15
_SHORT, _LONG = 0.005, 0.5  # s


def _seconds(value: float) -> str:
    return f"{value:.2f}"


def startup(report: Report) -> list[Table]:
    """Show the parts of the time to the end of the first step, then the packages that were imported."""
    parts = (
        Field("at_seconds", "from s", _seconds),
        Field("seconds", "s", _seconds),
        Field("name", "part", is_text=True),
    )
    packages = (
        Field("seconds", "s", _seconds),
        Field("cpu_seconds", "CPU s", _seconds),
        Field("modules", "modules"),
        Field("package", "package", is_text=True),
        Field("directory", "in", is_text=True, absent="-"),
    )

    by_mount = (
        *packages[:3],
        Field("packages", "packages"),
        Field("mount", "file system", is_text=True, absent="unknown, or none: built in, not found"),
    )

    def waterfall(rank: RankReport) -> Table:
        found = rank.startup
        parts_of = () if found is None else found.parts
        rows = [part for part in parts_of if part.seconds >= _SHORT or part.name == NOT_NAMED]
        left, notes = len(parts_of) - len(rows), []
        if left:
            notes.append(
                f"{counted(left, 'part')} below {1000 * _SHORT:.0f} ms each: --json, ranks[].startup.parts"
            )
        if found is not None and found.first_step_seconds is not None and found.named_fraction is not None:
            named = f"{percent(found.named_fraction)} of it has a name"
            notes.append(f"{found.first_step_seconds:.2f} s to the end of the first step; {named}")
        notes += _notes(rank)
        why = _NOT_SEEN if found is None or found.unknown_why is None else found.unknown_why
        title = "From the start of the process to the end of the first step"
        return Table(title=title, rows=rows, fields=parts, unknown=why, remedy=_RECORD, notes=notes)

    def imports(rank: RankReport) -> Table:
        rows = rank.startup.imports if rank.startup is not None else []
        left = rows[_MOST_PACKAGES:]
        notes = []
        if left:
            seconds = sum(row.seconds for row in left)
            notes.append(f"{len(left)} more packages, {seconds:.2f} s: --json, ranks[].startup.imports")
        title = "Imports by package, each without the others that it imports"
        return Table(title=title, rows=rows[:_MOST_PACKAGES], fields=packages, unknown=_NOT_SEEN, notes=notes)

    def mounts(rank: RankReport) -> Table:
        rows = rank.startup.mounts if rank.startup is not None else ()
        return Table(title="Imports by file system", rows=rows, fields=by_mount, unknown=_NOT_SEEN)

    return of_ranks(report.ranks, waterfall, imports, mounts)


def _notes(rank: RankReport) -> list[str]:
    """Say what spawned workers cost, and who holds the start up."""
    found, notes = rank.startup, []
    if found is not None and found.pickled_bytes is not None:
        notes.append(f"pickled for spawned processes: {size(found.pickled_bytes)}")
    if found is not None and (found.worker_imports_seconds or 0.0) >= _LONG:
        notes.append(f"a worker spent {found.worker_imports_seconds:.2f} s on imports of its own")
    for culprit in rank.culprits:
        if culprit.id == SLOW_IMPORTS:
            notes.append(f"{culprit.text}{f': {culprit.remedy}' if culprit.remedy else ''}")
    return notes
