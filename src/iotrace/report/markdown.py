"""Report, sweep, comparison and check as Markdown, for mail and pull requests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from iotrace.analysis.compare.results import Check, Comparison
from iotrace.analysis.compare.traces import TraceComparison
from iotrace.analysis.results import Fix, RankReport, Report
from iotrace.report.blocks import Table, cells_of, whose
from iotrace.report.comparison import (
    FROM_TO,
    part_texts,
    reasons_label,
    reasons_of,
    seen_by,
    stage_rows,
    trust_of,
)
from iotrace.report.printing import visible
from iotrace.report.screen import ending, fact_rows, following, silenced, trust_text
from iotrace.report.sweeps.head import banner_of, saved
from iotrace.report.sweeps.sweep import point_rows
from iotrace.report.views.trace_comparison import facts_of, headline, tables_of
from iotrace.report.words import gain_words
from iotrace.sweeps.results import SweepResult
from iotrace.units import if_known, one_decimal, percent

_MOST_STAGES = 8
_MOST_CHANGES = 10
_MOST_RANKS = 16
_MOST_BATCHES = 5
_SIGNS = {"not-input-bound": "✅", "moderately-input-bound": "⚠️", "wait-unknown": "⚠️", "running": "⚠️"}


def report_markdown(report: Report) -> str:
    """Write the first screen of `report`, its causes, ranks and worst batches."""
    found = report.verdict
    lines = [f"### {_SIGNS.get(found.kind, '❌')} {escape(found.banner)}: {escape(found.said)}", ""]
    lines += [f"- **Why**: {escape(found.why)}"] if found.why else []
    lines += [f"- **{label}**: {escape(text)}" for label, text in ending(report)]
    lines += _fixes(found.fixes)
    trust = trust_text(found.trust.level, found.trust.reasons, silenced(report))
    lines.append(f"- **Trust** {found.trust.level}: {escape(trust)}")
    rank = report.main_rank
    if rank is not None:
        whose = f" of {rank.called}" if len(report.ranks) > 1 else ""
        rows = [(label, "; ".join(parts)) for label, parts in fact_rows(rank)]
        lines += ["", *_table((f"Figures{whose}", ""), rows, 0)]
        lines += _worst(rank)
    if len(report.ranks) > 1:
        lines += ["", *_table(("rank", "host", "step ms", "data wait ms", "data wait"), _ranks(report), 2)]
    if report.not_captured:
        missing = dict.fromkeys(item.what for item in report.not_captured)
        lines += ["", f"Not captured: {escape(', '.join(missing))}"]
    return "\n".join([*lines, "", *_commands(following(report, verbose=False))])


def tables_markdown(tables: Sequence[Table]) -> str:
    """Write the tables of a view, all their rows."""
    lines: list[str] = []
    for table, name in zip(tables, whose(tables), strict=True):
        lines += ["", f"**{escape(name + table.title)}**", ""]
        if table.rows:
            headings = [escape(field.heading) for field in table.fields]
            lines += _table(headings, cells_of(table), [not field.is_text for field in table.fields])
        else:
            lines.append(escape(table.unknown_text))
        lines += [f"\n{escape(note)}" for note in table.notes]
        lines += [""] * bool(table.commands)
        lines += [
            f"{number}. `{visible(text).replace('`', '')}`" for number, text in enumerate(table.commands, 1)
        ]
    return "\n".join(lines[1:])


def _fixes(fixes: Sequence[Fix]) -> list[str]:
    return [
        f"- **{'or' if number else 'Fix'}** {escape(fix.text)}{f' ({gain})' if gain else ''}"
        for number, (fix, gain) in enumerate((fix, gain_words(fix)) for fix in fixes)
    ]


def _worst(rank: RankReport) -> list[str]:
    rows = [
        (str(worst.batch), f"{worst.wait_ms:.1f}", worst.cause, worst.made_by, "".join(worst.files[:1]))
        for worst in rank.data_wait.worst_batches[:_MOST_BATCHES]
    ]
    return ["", *_table(("worst batch", "waited ms", "mostly", "made by", "file"), rows, 0)] if rows else []


def _ranks(report: Report) -> list[tuple[str, ...]]:
    ranks = sorted(report.ranks, key=lambda rank: -(rank.data_wait.raw_wait_fraction or 0.0))
    return [
        (
            f"{rank.rank}",
            rank.host or "",
            if_known(rank.steps.mean_ms, one_decimal, "unknown"),
            if_known(rank.data_wait.raw_ms, one_decimal, "unknown"),
            if_known(rank.data_wait.raw_wait_fraction, percent, "unknown"),
        )
        for rank in ranks[:_MOST_RANKS]
    ]


def sweep_markdown(result: SweepResult) -> str:
    """Write what a sweep advises, and its points."""
    found = result.verdict
    banner, text = banner_of(found)
    lines = [f"### {'⚠️' if found.kind == 'no-advice' else '✅'} {banner}: {escape(text)}", ""]
    lines += [f"- **Why**: {escape(found.why)}"] if found.why else []
    for fix in found.fixes:
        lines.append(f"- **Fix** {escape(fix.text)}{f' ({saved(fix)})' if saved(fix) else ''}")
    trust = trust_text(found.trust.level, found.trust.reasons)
    lines.append(f"- **Trust** {found.trust.level}: {escape(trust)}")
    headings, rows = point_rows(result)
    lines += ["", *_table(headings, rows, 0)]
    return "\n".join(lines + [f"- warning: {escape(warning)}" for warning in result.warnings])


def comparison_markdown(result: Comparison) -> str:
    """Write what changed from one session to another."""
    sign = {"slower": "❌", "faster": "✅"}.get(result.verdict, "⚠️" if result.verdict == "unknown" else "✅")
    lines = [f"### {sign} {escape(result.text)}", ""]
    lines += [f"- **differs**: {escape(difference)}" for difference in result.differs]
    lines += [f"- **{reasons_label(result)}**: {escape(reason)}" for reason in reasons_of(result)]
    lines += [
        f"- around: {escape(item.what)}: {escape(' / '.join(item.values))}" for item in result.environment
    ]
    lines += ["", *_table(("ms a step", "A", "B", "change", "95 %"), part_texts(result), 1)]
    if result.stages:
        headings = ("ms a sample", "A", "B", "change", "95 %")
        lines += ["", *_table(headings, stage_rows(result.stages[:_MOST_STAGES]), 1)]
    return "\n".join([*lines, "", f"<sub>Trust {escape('; '.join(trust_of(result)))}</sub>"])


def trace_comparison_markdown(result: TraceComparison) -> str:
    """Write what changed of a step between two traces, and which kernels and operators did."""
    label, _, text = headline(result).partition("   ")
    lines = [f"### ⚠️ {escape(label)}: {escape(text)}", ""]
    lines += [f"- **{label or 'and'}** {escape(text)}" for label, text in facts_of(result)]
    for table in tables_of(result, _MOST_CHANGES):
        lines += ["", f"{escape(table.title)}", ""]
        headings = [field.heading for field in table.fields]
        lines += _table(headings, cells_of(table), 0) if table.rows else [table.unknown]
    return "\n".join(lines)


def check_markdown(result: Check) -> str:
    """Write whether a session passes, and what is worse."""
    sign = "❌" if not result.ok else "⚠️" if result.untold else "✅"
    lines = [f"### {sign} iotrace check: {escape(result.text)}", ""]
    lines += [f"- **worse**: {escape(finding.text)}" for finding in result.worse]
    lines += [f"- **cannot be told**: {escape(finding.text)}" for finding in result.untold]
    lines += [f"- passed: `{item.condition}`" for item in result.conditions if item.holds is False]
    comparison = result.comparison
    if comparison is not None:
        lines += [f"- {escape(comparison.text)}"] if comparison.verdict != "unknown" else []
        lines += [
            f"- {escape(item.what)}: {escape(' → '.join(item.values))}"
            for item in [*comparison.settings, *comparison.environment]
        ]
        lines += [f"- sees {escape(text)}" for text in seen_by(result)]
        headings = ("ms a sample", *FROM_TO, "change", "95 %")
        lines += ["", *_table(headings, stage_rows(comparison.stages[:_MOST_STAGES]), 1)]
        lines += ["", f"<sub>Trust {escape('; '.join(trust_of(comparison, FROM_TO)))}</sub>"]
    return "\n".join(lines)


def _table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], figures: int | Sequence[bool]
) -> list[str]:
    """A table; its columns from `figures` on (0: none) hold figures, or those of which it says so."""
    if isinstance(figures, int):
        figures = [0 < figures <= number for number in range(len(headings))]
    sides = ["---:" if is_figure else "---" for is_figure in figures]
    found = [f"| {' | '.join(headings)} |", f"|{'|'.join(sides)}|"]
    return found + [f"| {' | '.join(map(escape, row))} |" for row in rows]


def _commands(commands: Iterable[tuple[str, str]]) -> list[str]:
    return [f"- `{visible(command).replace('`', '')}` {what}" for command, what in commands]


def escape(text: str) -> str:
    """Keep what Markdown would take for markup: names of files hold underscores."""
    text = visible(text)
    for sign in "\\`*_{}[]<>|#":
        text = text.replace(sign, f"\\{sign}")
    return text
