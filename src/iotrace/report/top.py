"""The screen of `iotrace top`: verdict, step, wait by cause, files, workers, memory; a row a rank."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from statistics import median

from rich.console import Console
from rich.text import Text

from iotrace.analysis.results.base import total
from iotrace.analysis.results.top import Top, TopProcess, TopRank
from iotrace.analysis.wait.data_wait import HIGHLY
from iotrace.report.layout import command, line, plain
from iotrace.report.words import soon
from iotrace.units import counted, if_known, one_decimal, percent, size

_LABEL = 8
_MOST_ROWS = 16  # ranks; of more the worst ones, a median and a sum of the rest
_WORST_ROWS = 3
_MOST_FILES = 3
_LONG_S, _LONG_STEPS = 5.0, 5.0  # since the last step: worth telling
_QUIET_S = 10.0
_WORTH_NAMING = 0.01  # of the wait
_OVER = ("ended", "killed")


def print_top(top: Top, console: Console) -> None:
    """Print `top` in lines of at most the console's width."""
    worst = _worst(top)
    _print_state(top, worst, console)
    if len(top.ranks) > 1 and any(rank.steps.count for rank in top.ranks):
        _print_ranks(top.ranks, worst, top.state not in _OVER, console)
    if worst is not None:
        _print_rank(worst, console)
    for host in () if top.state in _OVER else top.hosts:
        free = if_known(host.memory_available_bytes, size, "unknown")
        busy = "" if host.cpu_busy_fraction is None else f"CPUs {percent(host.cpu_busy_fraction)} busy · "
        _line(console, "Host", f"{busy}{free} memory free{f' on {host.host}' if len(top.hosts) > 1 else ''}")
    for text in soon(top.forecasts):
        _line(console, "Forecast", text, "bold")
    for note in top.notes:
        _line(console, "Note", note)
    _print_window(top, worst, console)


def _line(console: Console, label: str, text: str | Text, style: str = "") -> None:
    line(console, label, plain(text, style), _LABEL)


def _banner(console: Console, text: str, style: str = "bold") -> None:
    line(console, "", plain(text, style), 0)


def _worst(top: Top) -> TopRank | None:
    """The rank that the verdict is about; the first one that is known before there is any."""
    told = None if top.verdict is None else top.verdict.rank
    return next((rank for rank in top.ranks if rank.rank == told), next(iter(top.ranks), None))


def _print_state(top: Top, worst: TopRank | None, console: Console) -> None:
    if top.state in _OVER:
        how = "" if top.exit_code is None else f"exit code {top.exit_code}"
        if top.state == "killed":
            how = "nothing of it lives, and no end was written"
        ago = "" if top.news_s is None else f"{_ago(top.news_s)} ago"
        what = "no step was measured" if top.awaited else "below: its last steps"
        told = ", ".join(filter(None, (how, ago)))
        _banner(console, f"{'FAILED' if top.exit_code else top.state.upper()} {told}; {what}")
    elif top.awaited is not None:
        _banner(console, f"RUNNING no figures yet: awaits {top.awaited}")
    if top.verdict is not None:
        high = worst is not None and worst.data_wait.verdict == HIGHLY
        _banner(console, top.verdict.text, "bold red" if high else "bold")
        if top.verdict.why:
            _line(console, "Why", top.verdict.why)
    if worst is not None and top.state not in _OVER and _is_late(worst):
        since = f"; since then {worst.since}" if worst.since else ""
        _line(console, "Late", f"the last step ended {_ago(worst.idle_s or 0.0)} ago{since}", "yellow")


def _is_late(rank: TopRank) -> bool:
    usual_s = (rank.steps.p95_ms or 0.0) / 1e3
    return rank.idle_s is not None and rank.idle_s > max(_LONG_S, _LONG_STEPS * usual_s)


def _print_ranks(ranks: Sequence[TopRank], worst: TopRank | None, living: bool, console: Console) -> None:
    """Print a row a rank, that with the longest wait first."""
    ordered = sorted(ranks, key=lambda rank: -_share(rank))
    columns: list[tuple[str, Callable[[TopRank], str]]] = [
        ("rank", lambda rank: str(rank.rank)),
        ("step ms", lambda rank: _number(rank.steps.mean_ms)),
        ("steps/s", lambda rank: _number(rank.steps.per_second)),
        ("wait ms", lambda rank: _number(rank.data_wait.raw_ms)),
        ("of step", lambda rank: "unknown" if _share(rank) < 0 else percent(_share(rank))),
    ]
    if living:
        columns += [
            ("workers busy", _busy_text),
            ("memory", lambda rank: _memory_text(rank.processes)),
            ("age", lambda rank: if_known(rank.age_s, _ago)),
        ]
    shown = ordered if len(ordered) < _MOST_ROWS else ordered[:_WORST_ROWS]
    if len({rank.host for rank in ranks}) > 1:
        columns.append(("host", lambda rank: rank.host or ""))
    table = [[name, *(cell(rank) for rank in shown)] for name, cell in columns]
    widths = [max(map(len, column)) for column in table]
    while sum(widths) + 2 * (len(widths) - 1) > console.width - len("  < worst"):
        widths.pop()
    console.print()
    for row in range(len(shown) + 1):
        cells = [column[row].rjust(width) for column, width in zip(table, widths, strict=False)]
        mark = "  < worst" if row and shown[row - 1] is worst else ""
        console.print(Text("  ".join(cells) + mark, style="" if row else "bold"), soft_wrap=True)
    rest = ordered[len(shown) :]
    if rest:
        known = [rank.steps.mean_ms for rank in rest if rank.steps.mean_ms is not None]
        waits = [_share(rank) for rank in rest if _share(rank) >= 0]
        medians = f": median step {median(known):.1f} ms" if known else ""
        medians += f", {percent(median(waits))} of it wait" if waits else ""
        console.print(Text(f"{len(rest)} other ranks{medians}"), soft_wrap=True)
    console.print()


def _print_rank(rank: TopRank, console: Console) -> None:
    steps, wait = rank.steps, rank.data_wait
    if steps.mean_ms is not None:
        samples = "" if steps.samples_per_second is None else f" · {steps.samples_per_second:.1f} samples/s"
        rate = f"{_number(steps.per_second)} steps/s{samples}"
        _line(console, "Step", f"{steps.mean_ms:.1f} ms (p95 {steps.p95_ms:.1f}) · {rate}")
        if wait.raw_ms is not None:
            _print_wait(rank, console)
    if rank.processes:
        _print_processes(rank.processes, console)
    for gpu in rank.gpus:
        util = if_known(gpu.util_pct, "{:.0f} %".format, "unknown")
        memory = "" if gpu.memory_bytes is None else f" · {size(gpu.memory_bytes)}"
        total = "" if gpu.memory_total_bytes is None else f" of {size(gpu.memory_total_bytes)}"
        _line(console, f"GPU {gpu.index}", f"{util} busy{memory}{total if memory else ''} · {gpu.name}")


def _print_wait(rank: TopRank, console: Console) -> None:
    wait = rank.data_wait
    raw_ms = wait.raw_ms or 0.0
    causes = sorted(wait.causes_ms.items(), key=lambda pair: -pair[1])
    parts = [f"{cause} {cost_ms:.1f}" for cause, cost_ms in causes if cost_ms >= 0.05]
    _line(console, "Wait", f"{raw_ms:.1f} ms a step{': ' if parts else ''}{' · '.join(parts)}")
    files = [file for file in rank.file_groups if (file.ms or 0.0) >= max(0.05, _WORTH_NAMING * raw_ms)]
    for number, file in enumerate(files[:_MOST_FILES]):
        text = f"{file.ms:.1f} ms (decode {file.decode_ms or 0.0:.1f}, read {file.read_ms or 0.0:.1f})  "
        members = f": {file.members} files" if file.members is not None else ""
        room = console.width - _LABEL - 1 - len(text) - len(members)
        path = file.path if len(file.path) <= room else "…" + file.path[-max(8, room - 1) :]
        _line(console, "" if number else "Files", Text.assemble(text, (path, "bold"), members))
    others = rank.file_groups[len(files[:_MOST_FILES]) :]
    if files and others:
        total_ms = sum(file.ms or 0.0 for file in others)
        _line(console, "", f"{total_ms:.1f} ms {counted(len(others), 'other')}")


def _print_processes(processes: Sequence[TopProcess], console: Console) -> None:
    workers = [process for process in processes if process.role != "main"]
    if workers:
        busy = _range([None if each.busy_fraction is None else 100 * each.busy_fraction for each in workers])
        cpu = _range([each.cpu_pct for each in workers])
        _line(console, "Workers", f"{len(workers)}: make batches {busy} of the time · CPU {cpu}")
    main = next((each for each in processes if each.role == "main"), None)
    own = "" if main is None or main.cpu_pct is None else f" · CPU of the main process {main.cpu_pct:.0f} %"
    _line(
        console,
        "Memory",
        f"{_memory_text(processes)} in {counted(len(processes), 'process', 'processes')}{own}",
    )
    read = total(each.read_bytes_per_s for each in processes)
    stored = total(each.storage_read_bytes_per_s for each in processes)
    if read is not None:
        storage = "" if stored is None else f" · {size(stored)}/s of it from storage"
        _line(console, "Reads", f"{size(read)}/s{storage}")


def _print_window(top: Top, worst: TopRank | None, console: Console) -> None:
    over = top.state in _OVER
    if worst is not None and worst.seconds is not None:
        last = f"the last {counted(worst.steps.count, 'step')} ({_ago(worst.seconds)})"
        profiled = worst.steps.excluded.profiled
        without = f", without {profiled} profiled" if profiled else ""
        newest = "" if over or worst.age_s is None else f" · newest figure {_ago(worst.age_s)} old"
        _line(console, "Window", f"{last}{without}{newest}")
    if not over and top.news_s is not None and top.news_s > _QUIET_S:
        _line(
            console, "Quiet", f"nothing was written for {_ago(top.news_s)}: is the program stopped?", "yellow"
        )
    since = "" if over or top.running_s is None else f" · runs for {_ago(top.running_s)}"
    _line(console, "Session", f"{top.path}{since}")
    _line(console, "", command(top.argv, console.width - _LABEL - 1))
    rest = "" if over else "  (Ctrl-C ends this screen alone)"
    _line(console, "Next", f"iotrace report {shlex.quote(top.path)}{rest}")


def _share(rank: TopRank) -> float:
    fraction = rank.data_wait.raw_wait_fraction
    return -1.0 if fraction is None else fraction


def _number(value: float | None) -> str:
    return if_known(value, one_decimal, "unknown")


def _busy_text(rank: TopRank) -> str:
    workers = [process for process in rank.processes if process.role != "main"]
    known = [each.busy_fraction for each in workers if each.busy_fraction is not None]
    return f"{len(workers)}: {percent(sum(known) / len(known))}" if known else str(len(workers))


def _memory_text(processes: Sequence[TopProcess]) -> str:
    rss_bytes = total(process.rss_bytes for process in processes) if processes else None
    return if_known(rss_bytes, size, "unknown")


def _range(values: Sequence[float | None]) -> str:
    """Percentages of several processes: their mean, and from which to which."""
    known = [value for value in values if value is not None]
    if not known:
        return "unknown"
    mean = f"{sum(known) / len(known):.0f} %"
    return mean if len(known) == 1 else f"{mean} ({min(known):.0f} to {max(known):.0f})"


def _ago(seconds: float) -> str:
    if seconds < 1:
        return f"{1e3 * seconds:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172800 else f"{seconds / 86400:.0f} days"
