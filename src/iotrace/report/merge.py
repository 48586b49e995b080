"""A merge's summary as text. It needs no rich, whose import would be a fifth of a small merge's time."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

from iotrace.merge.input_files import SESSION
from iotrace.merge.summary import SourceSummary, Summary
from iotrace.report.printing import aligned, echo, echo_beside, middle_cut, visible
from iotrace.session.listing import session_title
from iotrace.units import counted, duration, if_known, rate, size

_SHOWN = 12
_FIXED = 5  # columns of the table that are always there
_LABEL_WIDTH = 13


def print_summary(summary: Summary) -> None:
    """Print counts in and out, clocks with their bounds, the check after the alignment, what was lost."""
    for path in summary.outputs:
        echo(f"{'merged':{_LABEL_WIDTH}}{path}")
    _line(
        "size",
        f"{size(summary.bytes_read)} read, {size(summary.bytes_written)} written "
        f"in {summary.seconds:.1f} s ({rate(summary.bytes_read, summary.seconds)})",
    )
    selected = any(count.selected_away for count in summary.counts.values())
    for index, (kind, count) in enumerate(summary.counts.items()):
        text = f"{kind:10} {count.read} in, {count.written} out"
        if selected:
            text += f", {count.selected_away} left out on request"
        _line("counts" if index == 0 else "", text)
    # Batches that are ready at once overlap by their nature: a session's slices say nothing of clocks.
    moved = sum(source.lanes_moved for source in summary.sources if source.kind != SESSION)
    check = [
        f"{counted(moved, 'slice')} outside the slice that they begin in (children outside their parents)"
        + (", on a track of its own" if moved else ""),
        f"{counted(summary.arrows_backwards, 'flow')} backwards (kernels before their launch)",
    ]
    if summary.loose_arrow_ends:
        check.append(f"{counted(summary.loose_arrow_ends, 'flow end')} in no slice")
    _line("check", "; ".join(check))
    echo("")
    _print_clocks(summary.sources)
    echo("")
    for kind in ("exact", "measured", "inferred", "assumed", "none"):
        _lines(kind, _reasons([item for item in summary.sources if item.clock == kind], summary.sources))
    for note in summary.notes:
        _line("note", note)
    _lines("damage", summary.problems)
    echo("")
    for path in summary.outputs[:_SHOWN]:
        _line("open", f"iotrace open {shlex.quote(path)}")
    sessions = dict.fromkeys(item.path for item in summary.sources if item.kind == SESSION)
    for path in list(sessions)[:_SHOWN]:
        _line("report", f"iotrace report {shlex.quote(path)}")


def _reasons(known: list[SourceSummary], sources: list[SourceSummary]) -> list[str]:
    """Say why the clocks of inputs are `known` so, each reason once, with the inputs that it is about."""
    inputs: dict[str, list[str]] = {}
    for item in known:
        inputs.setdefault(item.clock_why, []).append(_name(item, sources))
    return [
        why if len(names) == len(sources) > 1 else f"{_listed(names)}: {why}" for why, names in inputs.items()
    ]


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {counted(len(names) - 1, 'other')}"


def _name(source: SourceSummary, sources: list[SourceSummary]) -> str:
    """Name an input as the user knows it: a trace that a session holds by both."""
    path = Path(source.path)
    if source.kind == SESSION:
        return visible(session_title(path))
    holders = (item.path for item in sources if item.kind == SESSION)
    held = next((holder for holder in holders if path.is_relative_to(holder)), None)
    return visible(path.name if held is None else f"{path.name} in {session_title(Path(held))}")


def _lines(label: str, texts: list[str]) -> None:
    for text in texts[:_SHOWN]:
        _line(label, text)
    if len(texts) > _SHOWN:
        _line(label, f"{len(texts) - _SHOWN} more: --json lists them")


def _line(label: str, text: str) -> None:
    echo_beside(label, text, _LABEL_WIDTH, shutil.get_terminal_size().columns)


def _print_clocks(sources: list[SourceSummary]) -> None:
    """Print a row for each input, its columns aligned; all but the input's and the clock's to the right."""
    shown = sources[:_SHOWN]
    rows = [["input", "rank", "events", "clock", "bound", "shifted by", "drift undone"]]
    for source in shown:
        drift, bound = source.clock_drift_ppb, source.clock_bound_ns
        rows.append(
            [
                _name(source, sources),
                if_known(source.rank),
                str(source.events),
                source.clock,
                if_known(bound, lambda bound_ns: f"± {duration(bound_ns)}", "unknown"),
                duration(source.clock_shift_ns) if source.clock_shift_ns else "",
                f"{abs(drift) / 1e3:.3g} ppm" if drift else "",
            ]
        )
    for column in range(len(rows[0]) - 1, _FIXED - 1, -1):
        if not any(row[column] for row in rows[1:]):
            rows = [row[:column] + row[column + 1 :] for row in rows]
    echo(*aligned(rows, (0, 3), sys.maxsize, middle_cut))
    if len(sources) > _SHOWN:
        echo(f"{len(sources) - _SHOWN} more inputs: --json lists them")
