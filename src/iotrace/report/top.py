"""The screen of `iotrace top`: verdict, step, wait by cause, files, workers, memory; a row a rank."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from statistics import median

from rich.console import Console

from iotrace.analysis.results.base import total
from iotrace.analysis.results.top import Top, TopProcess, TopRank
from iotrace.analysis.wait.data_wait import HIGHLY
from iotrace.report.blocks import Block, Grid, Line, Paragraph, Verbatim
from iotrace.report.layout import print_blocks
from iotrace.report.printing import command
from iotrace.report.words import forecast_texts
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
    print_blocks(_blocks(top, console.width), console, _LABEL)


def _blocks(top: Top, width: int) -> Iterator[Block]:
    worst = _worst(top)
    yield from _state(top, worst)
    if len(top.ranks) > 1 and any(rank.steps.count for rank in top.ranks):
        yield from _ranks(top.ranks, worst, top.state not in _OVER, width)
    if worst is not None:
        yield from _of_rank(worst, width)
    for host in () if top.state in _OVER else top.hosts:
        free = if_known(host.memory_available_bytes, size, "unknown")
        busy = "" if host.cpu_busy_fraction is None else f"CPUs {percent(host.cpu_busy_fraction)} busy · "
        yield Line("Host", f"{busy}{free} memory free{f' on {host.host}' if len(top.hosts) > 1 else ''}")
    yield from (Line("Forecast", text, tone="bold") for text in forecast_texts(top.forecasts))
    yield from (Line("Note", note) for note in top.notes)
    yield from _window(top, worst, width)


def _worst(top: Top) -> TopRank | None:
    """The rank that the verdict is about; the first one that is known before there is any."""
    told = None if top.verdict is None else top.verdict.rank
    return next((rank for rank in top.ranks if rank.rank == told), next(iter(top.ranks), None))


def _state(top: Top, worst: TopRank | None) -> Iterator[Line | Paragraph]:
    if top.state in _OVER:
        how = "" if top.exit_code is None else f"exit code {top.exit_code}"
        if top.state == "killed":
            how = "its processes are gone, before it said that it ended"
        ago = "" if top.news_s is None else f"{_ago(top.news_s)} ago"
        if top.state == "killed" and ago:
            ago = f"it last wrote {ago}"
        what = "no step was measured" if top.awaited else "below: its last steps"
        told = ", ".join(filter(None, (how, ago)))
        yield _banner(f"{'FAILED' if top.exit_code else top.state.upper()} {told}; {what}")
    elif top.awaited is not None:
        yield _banner(f"RUNNING no figures yet: awaits {top.awaited}")
    if top.verdict is not None:
        high = worst is not None and worst.data_wait.verdict == HIGHLY
        yield _banner(top.verdict.text, "bad" if high else "bold")
        if top.verdict.why:
            yield Line("Why", top.verdict.why)
    if worst is not None and top.state not in _OVER and _is_late(worst):
        since = f"; since then {worst.since}" if worst.since else ""
        yield Line("Late", f"the last step ended {_ago(worst.idle_s or 0.0)} ago{since}", tone="caution")


def _banner(text: str, tone: str = "bold") -> Paragraph:
    return Paragraph(text, tone=tone)


def _is_late(rank: TopRank) -> bool:
    usual_s = (rank.steps.p95_ms or 0.0) / 1e3
    return rank.idle_s is not None and rank.idle_s > max(_LONG_S, _LONG_STEPS * usual_s)


def _ranks(ranks: Sequence[TopRank], worst: TopRank | None, living: bool, width: int) -> Iterator[Block]:
    """Show a row a rank, that with the longest wait first."""
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
    while sum(widths) + 2 * (len(widths) - 1) > width - len("  < worst"):
        widths.pop()
    marks = ["", *("< worst" if rank is worst else "" for rank in shown)]
    headings, *rows = zip(*table[: len(widths)], marks, strict=True)
    yield Verbatim([""])
    yield Grid(headings, rows, [len(widths)])
    rest = ordered[len(shown) :]
    if rest:
        known = [rank.steps.mean_ms for rank in rest if rank.steps.mean_ms is not None]
        waits = [_share(rank) for rank in rest if _share(rank) >= 0]
        medians = f": median step {median(known):.1f} ms" if known else ""
        medians += f", {percent(median(waits))} of it wait" if waits else ""
        yield Verbatim([f"{len(rest)} other ranks{medians}"])
    yield Verbatim([""])


def _of_rank(rank: TopRank, width: int) -> Iterator[Line]:
    steps, wait = rank.steps, rank.data_wait
    if steps.mean_ms is not None:
        samples = "" if steps.samples_per_second is None else f" · {steps.samples_per_second:.1f} samples/s"
        rate = f"{_number(steps.per_second)} steps/s{samples}"
        yield Line("Step", f"{steps.mean_ms:.1f} ms (p95 {steps.p95_ms:.1f}) · {rate}")
        if wait.raw_ms is not None:
            yield from _wait(rank, width)
    if rank.processes:
        yield from _processes(rank.processes)
    for gpu in rank.gpus:
        util = if_known(gpu.util_pct, "{:.0f} %".format, "unknown")
        memory = "" if gpu.memory_bytes is None else f" · {size(gpu.memory_bytes)}"
        total = "" if gpu.memory_total_bytes is None else f" of {size(gpu.memory_total_bytes)}"
        yield Line(f"GPU {gpu.index}", f"{util} busy{memory}{total if memory else ''} · {gpu.name}")


def _wait(rank: TopRank, width: int) -> Iterator[Line]:
    wait = rank.data_wait
    raw_ms = wait.raw_ms or 0.0
    causes = sorted(wait.causes_ms.items(), key=lambda pair: -pair[1])
    parts = [f"{cause} {cost_ms:.1f}" for cause, cost_ms in causes if cost_ms >= 0.05]
    yield Line("Wait", f"{raw_ms:.1f} ms a step{': ' if parts else ''}{' · '.join(parts)}")
    files = [file for file in rank.file_groups if (file.ms or 0.0) >= max(0.05, _WORTH_NAMING * raw_ms)]
    for number, file in enumerate(files[:_MOST_FILES]):
        text = f"{file.ms:.1f} ms (decode {file.decode_ms or 0.0:.1f}, read {file.read_ms or 0.0:.1f})  "
        members = f": {file.members} files" if file.members is not None else ""
        room = width - _LABEL - 1 - len(text) - len(members)
        path = file.path if len(file.path) <= room else "…" + file.path[-max(8, room - 1) :]
        yield Line("" if number else "Files", f"{text}{path}{members}", strong=path)
    others = rank.file_groups[len(files[:_MOST_FILES]) :]
    if files and others:
        total_ms = sum(file.ms or 0.0 for file in others)
        yield Line("", f"{total_ms:.1f} ms {counted(len(others), 'other')}")


def _processes(processes: Sequence[TopProcess]) -> Iterator[Line]:
    workers = [process for process in processes if process.role != "main"]
    if workers:
        busy = _range([None if each.busy_fraction is None else 100 * each.busy_fraction for each in workers])
        cpu = _range([each.cpu_pct for each in workers])
        yield Line("Workers", f"{len(workers)}: make batches {busy} of the time · CPU {cpu}")
    main = next((each for each in processes if each.role == "main"), None)
    own = "" if main is None or main.cpu_pct is None else f" · CPU of the main process {main.cpu_pct:.0f} %"
    used = f"{_memory_text(processes)} in {counted(len(processes), 'process', 'processes')}"
    yield Line("Memory", f"{used}{own}")
    read = total(each.read_bytes_per_s for each in processes)
    stored = total(each.storage_read_bytes_per_s for each in processes)
    if read is not None:
        storage = "" if stored is None else f" · {size(stored)}/s of it from storage"
        yield Line("Reads", f"{size(read)}/s{storage}")


def _window(top: Top, worst: TopRank | None, width: int) -> Iterator[Line]:
    over = top.state in _OVER
    if worst is not None and worst.seconds is not None:
        last = f"the last {counted(worst.steps.count, 'step')} ({_ago(worst.seconds)})"
        profiled = worst.steps.excluded.profiled
        without = f", without {profiled} profiled" if profiled else ""
        newest = "" if over or worst.age_s is None else f" · newest figure {_ago(worst.age_s)} old"
        yield Line("Window", f"{last}{without}{newest}")
    if not over and top.news_s is not None and top.news_s > _QUIET_S:
        quiet = f"nothing was written for {_ago(top.news_s)}: is the program stopped?"
        yield Line("Quiet", quiet, tone="caution")
    since = "" if over or top.running_s is None else f" · runs for {_ago(top.running_s)}"
    yield Line("Session", f"{top.path}{since}")
    yield Line("", command(top.argv, width - _LABEL - 1))
    rest = "" if over else "  (Ctrl-C ends only this screen)"
    yield Line("Next", f"iotrace report {shlex.quote(top.path)}{rest}")


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
