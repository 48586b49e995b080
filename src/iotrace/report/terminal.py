"""One screen: steps, wait, its cause, the costliest file, I/O, what was not captured, what next."""

from __future__ import annotations

import shlex
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from iotrace.analysis.results import DataWait, Io, LoaderResult, Overhead, RankReport, Report

_MOST_FILES = 6
_MOST_CAUSES = 5
_BAR_CELLS = 20
_LABEL_WIDTH = 12
# What the figures of the I/O table need beside the path.
_FIGURES_WIDTH = 58
_NARROWEST_PATH = 16
_WORTH_NAMING = 0.01  # of the wait
_NOTICEABLE_PERCENT = 2.0  # of the step, spent on tracing


def print_report(report: Report, console: Console) -> None:
    """Print `report` on `console`; it reads the same without colour."""
    session = report.session
    exit_code = "unknown" if session.exit_code is None else str(session.exit_code)
    console.print(Text.assemble(("iotrace ", "bold"), shlex.join(session.argv)), soft_wrap=False)
    _line(console, "session", f"{session.path}  (exit code {exit_code})")
    for rank in report.ranks:
        _print_rank(rank, console, len(report.ranks) > 1)
    if report.recommendations:
        console.print()
    for item in report.recommendations:
        _line(console, "do", item.text)
    if report.not_captured:
        console.print()
    for missing in report.not_captured:
        remedy = f" → {missing.remedy}" if missing.remedy else ""
        _line(console, "not captured", f"{missing.what}: {missing.why}{remedy}")


def print_next(report: Report, timelines: list[Path], console: Console) -> None:
    """Print what to type and open next."""
    console.print()
    for path in timelines:
        _line(console, "timeline", f"open {path} in https://ui.perfetto.dev")
    _line(console, "again", f"iotrace report {shlex.quote(report.session.path)}")


def _line(console: Console, label: str, text: str | Text, style: str = "bold") -> None:
    """One labelled paragraph, wrapped beside its label."""
    table = Table.grid(padding=(0, 1))
    table.add_column(width=_LABEL_WIDTH, no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(Text(label, style=style), text if isinstance(text, Text) else Text(text))
    console.print(table)


def _print_rank(rank: RankReport, console: Console, several: bool) -> None:
    if several:
        console.print()
        restart = f", restart {rank.incarnation}" if rank.incarnation else ""
        console.rule(f"rank {rank.rank} on {rank.host}{restart}", align="left")
    steps, wait = rank.steps, rank.data_wait
    if steps.mean_ms is None:
        _line(console, "steps", "none measured")
    else:
        left_out = steps.excluded.first + steps.excluded.warmup
        samples = (
            f" · {steps.samples_per_second:.1f} samples/s" if steps.samples_per_second is not None else ""
        )
        _line(
            console,
            "steps",
            f"{steps.count} measured ({left_out} at the start left out): {steps.mean_ms:.1f} ms each "
            f"(p95 {steps.p95_ms:.1f}) · {steps.per_second:.1f} steps/s{samples}",
        )
        _print_wait(wait, steps.mean_ms, console)
    _print_overhead(rank.overhead, console)
    for loader in rank.loaders:
        _line(console, "loader", _loader_text(loader))
    if rank.io is not None:
        _print_io(rank.io, console)


def _print_wait(wait: DataWait, step_ms: float, console: Console) -> None:
    if wait.raw_ms is None or wait.raw_wait_fraction is None:
        _line(console, "data wait", "unknown")
        return
    exposed = "" if wait.exposed_ms is not None else " (how much of it idled the accelerator is unknown)"
    high = wait.raw_wait_fraction > 0.2
    text = Text.assemble(
        f"{wait.raw_ms:.1f} ms a step, ",
        (f"{100 * wait.raw_wait_fraction:.0f} % of it: {wait.verdict}", "bold red" if high else "bold"),
        exposed,
    )
    _line(console, "data wait", text)
    _print_causes(wait, console)
    if wait.files and wait.files[0].ms >= _WORTH_NAMING * wait.raw_ms:
        costly = wait.files[0]
        _line(
            console,
            "costly file",
            Text.assemble(
                (costly.path, "bold"),
                f": {costly.ms:.1f} ms a step "
                f"(decode {costly.decode_ms:.1f}, read {costly.read_ms:.1f}), "
                f"{100 * costly.ms / step_ms:.0f} % of the step",
            ),
        )


def _print_causes(wait: DataWait, console: Console) -> None:
    causes = sorted(wait.causes_ms.items(), key=lambda pair: -pair[1])
    shown = [(cause, cost_ms) for cause, cost_ms in causes if cost_ms >= 0.05][:_MOST_CAUSES]
    if not shown or not wait.raw_ms:
        return
    table = Table.grid(padding=(0, 1))
    for width, justify in ((_LABEL_WIDTH, "left"), (10, "left"), (10, "right"), (6, "right"), (None, "left")):
        table.add_column(width=width, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for row, (cause, cost_ms) in enumerate(shown):
        bar = "█" * max(1, round(_BAR_CELLS * cost_ms / shown[0][1]))
        percent = f"{100 * cost_ms / wait.raw_ms:.0f} %"
        label = Text("cause" if row == 0 else "", style="bold")
        style = "red" if row == 0 else "dim"
        table.add_row(label, cause, f"{cost_ms:.1f} ms", percent, Text(bar, style=style))
    console.print(table)


def _print_overhead(overhead: Overhead, console: Console) -> None:
    """A line only where tracing may have slowed the steps noticeably."""
    slowed = overhead.estimated_pct_of_step
    if slowed is None or slowed < _NOTICEABLE_PERCENT:
        return
    calls = ""
    if overhead.posix_calls and overhead.posix_call_us is not None:
        calls = (
            f": {overhead.posix_calls} POSIX calls at {overhead.posix_call_us:.1f} µs; --io PATH traces fewer"
        )
    _line(console, "tracing", f"may itself have slowed the steps by up to {slowed:.0f} %{calls}")


def _loader_text(loader: LoaderResult) -> str:
    parts = [f"{loader.dataset}, {loader.kind}{' (primary)' if loader.primary else ''}"]
    how = f" by {loader.start_method}" if loader.start_method else ""
    parts.append(f"{loader.workers} workers{how}, {loader.batches} batches")
    if loader.production_ms is not None:
        parts.append(f"{loader.production_ms:.1f} ms to make one")
    if loader.queue_depth_mean is not None:
        parts.append(f"{loader.queue_depth_mean:.1f} ready when asked")
    if loader.first_batch_ms is not None:
        parts.append(f"the first took {loader.first_batch_ms:.0f} ms")
    if loader.failures:
        parts.append(f"ended by {', '.join(loader.failures)}")
    return " · ".join(parts)


def _print_io(io: Io, console: Console) -> None:
    console.print()
    seen = "unknown" if io.coverage is None else f"{100 * io.coverage:.0f} %"
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    table.add_column("I/O by file", overflow="ellipsis", no_wrap=True)
    for heading in ("opens", "reads", "read", "read time", "metadata", "written"):
        table.add_column(heading, justify="right", no_wrap=True)
    moved = [file for file in io.files if file.reads or file.writes]
    for file in moved[:_MOST_FILES]:
        table.add_row(
            _shorten(file.path, max(_NARROWEST_PATH, console.width - _FIGURES_WIDTH)),
            str(file.opens),
            str(file.reads),
            _bytes(file.read_bytes),
            f"{file.read_ms_total:.1f} ms",
            f"{file.metadata_ms_total:.1f} ms",
            _bytes(file.write_bytes),
        )
    console.print(table)
    more = len(io.files) - min(len(moved), _MOST_FILES)
    rest = f"{more} more files; " if more > 0 else ""
    console.print(Text(f"{rest}{io.calls} calls, coverage of the kernel's own account: {seen}", style="dim"))


def _shorten(path: str, width: int) -> str:
    return path if len(path) <= width else "…" + path[-(width - 1) :]


def _bytes(count: int) -> str:
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return ""
