"""Print the doctor's findings: each check, what a run would capture, and the command to type next."""

from __future__ import annotations

import shlex

from rich.console import Console
from rich.text import Text

from iotrace.doctor.results import CachedFile, Check, Diagnosis
from iotrace.report.layout import plain
from iotrace.report.printing import visible
from iotrace.session.plain_reads import PlainReads
from iotrace.units import counted, if_known, percent, rate, size

_STYLES = {"ok": "green", "warning": "yellow", "missing": "bold red", "unknown": "magenta"}
_STATUS_WIDTH, _ID_WIDTH = 7, 14
_SHOWN_FILES = 5
_LITTLE_BYTES = 16 << 20  # to one reader: a tenth of a second at 160 MiB/s
_LABEL_WIDTH = _STATUS_WIDTH + 1 + _ID_WIDTH + 1


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
            _print_labelled(console, label, " · ".join(parts))
    reasons: dict[str, list[str]] = {}
    for unknown in diagnosis.unknown:
        reasons.setdefault(unknown.why, []).append(unknown.part)
    for why, parts in reasons.items():
        _print_labelled(console, "not known", Text(" · ".join(parts)).append(f"\n{why}", style="dim"))
    _print_labelled(console, "next", _next(diagnosis, output))


def print_storage(found: PlainReads, console: Console) -> None:
    """Print what a plain reader got, from where, and what to do with it."""
    where = {True: "from storage", False: "NOT from storage", None: "from storage or memory, not known"}
    speed = rate(found.bytes, found.seconds)
    files = counted(found.files, "file")
    rows = [
        ("storage", f"{visible(found.point)} ({found.type}): {speed} to one sequential reader"),
        ("read", f"{size(found.bytes)} of {files} in {found.seconds:.2f} s, 1 MiB a read"),
        ("from", where[found.cold] + (f": {found.why}" if found.why else "")),
    ]
    if found.cold:
        rows.append(("", "what a server or a disk keeps in memory of its own is not seen from here"))
    if found.bytes < _LITTLE_BYTES:
        rows.append(("", "so little says little of bandwidth: name larger files"))
    rows.append(("next", "iotrace report SESSION --view storage" if found.saved else "it could not be kept"))
    for label, text in rows:
        _print_labelled(console, label, text)


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
    untold = any(file.resident_fraction is None for file in check.files)
    for file in check.files[:_SHOWN_FILES] if len(check.files) > 1 or untold else ():
        text.append(f"\n{_cached(file)}", style="dim")
    if check.remedy:
        text.append(f"\n→ {check.remedy}")
    _print_labelled(console, label, text)


def _cached(file: CachedFile) -> str:
    share = if_known(file.resident_fraction, percent, "?")
    how = file.why or f"{file.sampled_pages} pages sampled"
    return f"{share} of {size(file.bytes)}: {visible(file.path)} ({how})"


def _print_labelled(console: Console, label: str | Text, text: str | Text) -> None:
    """Print `text` folded right of `label`. No table: rich pads its lines with blanks."""
    first = Text(label, style="bold") if isinstance(label, str) else label
    width = max(1, console.width - _LABEL_WIDTH)
    for number, line in enumerate(plain(text, lines=True).wrap(console, width, overflow="fold")):
        line.rstrip()
        start = Text().append_text(Text() if number else first)
        start.pad_right(_LABEL_WIDTH - start.cell_len)
        console.print(start.append_text(line), soft_wrap=True)
