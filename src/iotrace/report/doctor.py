"""Print the doctor's findings: each check, what a run would capture, and the command to type next."""

from __future__ import annotations

import shlex

from rich.console import Console
from rich.text import Text

from iotrace.doctor.results import CachedFile, Check, Diagnosis
from iotrace.report.layout import line
from iotrace.report.printing import visible
from iotrace.session.plain_reads import PlainReads
from iotrace.units import counted, if_known, percent, rate, size

_STYLES = {"ok": "green", "warning": "yellow", "missing": "bold red", "unknown": "magenta"}
_STATUS_WIDTH, _ID_WIDTH = 7, 14
_SHOWN_FILES = 5
_ALL = 0.9  # of a file: as good as all of it
_LITTLE_BYTES = 16 << 20  # to one reader: a tenth of a second at 160 MiB/s
_LABEL_WIDTH = _STATUS_WIDTH + 1 + _ID_WIDTH


def print_diagnosis(diagnosis: Diagnosis, console: Console, output: str | None) -> None:
    """Print every check and what follows; `output` is the user's ``-o``, for the command to type next."""
    subject = visible(shlex.join(diagnosis.argv)) or f"no command given: {diagnosis.interpreter}"
    console.print(Text.assemble(("iotrace doctor ", "bold"), subject))
    console.print()
    for check in diagnosis.checks:
        _print_check(check, console)
    count = {status: sum(check.status == status for check in diagnosis.checks) for status in _STYLES}
    summary = ", ".join(f"{number} {status}" for status, number in count.items() if number)
    console.print(Text(f"{summary}; {diagnosis.seconds:.1f} s", style="dim"))
    console.print()
    for label, parts in (("captured", diagnosis.captured), ("not captured", diagnosis.not_captured)):
        if parts:
            line(console, label, " · ".join(parts), _LABEL_WIDTH)
    reasons: dict[str, list[str]] = {}
    for unknown in diagnosis.unknown:
        reasons.setdefault(unknown.why, []).append(unknown.part)
    for why, parts in reasons.items():
        text = Text(" · ".join(parts)).append(f"\n{why}", style="dim")
        line(console, "not known", text, _LABEL_WIDTH, lines=True)
    line(console, "next", _next(diagnosis, output), _LABEL_WIDTH)


def print_storage(found: PlainReads, console: Console) -> None:
    """Print what a plain reader got, from where, and what to do with it."""
    where = {True: "storage", False: "NOT storage: memory", None: "storage or memory, not known"}
    speed = rate(found.bytes, found.seconds)
    files = counted(found.files, "file")
    rows = [
        ("storage", f"{visible(found.point)} ({found.type}): {speed} to one sequential reader"),
        ("read", f"{size(found.bytes)} of {files} in {found.seconds:.2f} s, 1 MiB a read"),
        ("read from", where[found.cold] + (f": {found.why}" if found.why else "")),
    ]
    rows.append(("", "before, iotrace dropped these files from the page cache as far as it could"))
    if found.cold:
        rows.append(("", "what a server or a disk keeps in memory of its own is not seen from here"))
    if found.bytes < _LITTLE_BYTES:
        rows.append(("", "so little says little of bandwidth: name larger files"))
    rows.append(("next", "iotrace report SESSION --view storage" if found.saved else "it could not be kept"))
    for label, text in rows:
        line(console, label, text, _LABEL_WIDTH)


def _next(diagnosis: Diagnosis, output: str | None) -> str:
    """Return the command to type next."""
    command = shlex.join(diagnosis.argv) if diagnosis.argv else "python train.py"
    where = f"-o {shlex.quote(output)} " if output is not None else ""
    if any(check.status == "missing" for check in diagnosis.checks):
        return f"follow the arrows (→) above, then again: iotrace doctor {where}-- {command}"
    return f"iotrace run {where}-- {command}"


def _print_check(check: Check, console: Console) -> None:
    label = Text.assemble((check.status.ljust(_STATUS_WIDTH + 1), _STYLES[check.status]), (check.id, "bold"))
    text = Text(check.what)
    if check.code is not None:
        text.append(f" ({check.code})", style="dim")
    if check.why:
        text.append(f"\n{check.why}", style="dim")
    # Where all or none are in memory, the check's sentence has said it.
    shares = [file.resident_fraction or 0.0 for file in check.files]
    alike = min(shares, default=1.0) > _ALL or max(shares, default=0.0) < 1 - _ALL
    untold = any(file.resident_fraction is None for file in check.files)
    for file in check.files[:_SHOWN_FILES] if (len(check.files) > 1 and not alike) or untold else ():
        text.append(f"\n{_cached(file)}", style="dim")
    if check.remedy:
        text.append(f"\n→ {check.remedy}")
    line(console, label, text, _LABEL_WIDTH, lines=True)


def _cached(file: CachedFile) -> str:
    share = if_known(file.resident_fraction, percent, "?")
    how = file.why or f"{file.sampled_pages} pages sampled"
    return f"{share} of {size(file.bytes)}: {visible(file.path)} ({how})"
