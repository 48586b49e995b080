"""The report on a terminal: its first screen, then all the rest where that is asked for.

The accelerator's part of the terminal report: breakdown, idle time, and the ranks compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from iotrace.analysis.results import (
    Accelerator,
    DataWait,
    Failure,
    Imbalance,
    LoaderResult,
    Overhead,
    RankReport,
    Report,
    Straggler,
)
from iotrace.report import tables
from iotrace.report.blocks import shortened
from iotrace.report.layout import LABEL_WIDTH, command, line, plain, print_table, print_tables
from iotrace.report.screen import print_next, print_screen
from iotrace.report.screen_ranks import MOST_RANKS, advice_rows, advice_text, latest_first
from iotrace.report.terminal_system import print_io, print_system
from iotrace.report.views import filled
from iotrace.report.views.device import CLASSES
from iotrace.report.words import hang_rows, pace_texts, slow_text, spawned_texts, who_failed
from iotrace.sources.clocks.session_clock import step_text
from iotrace.units import bounds, counted, if_known, milliseconds, percent

_WORTH_SHOWING = 0.005  # of the step
_MOST_MODULES = 3
_ROLE_NAMES = {"cpu_op": "CPU ops", "dataloader": "data loader"}


def print_compute(rank: RankReport, console: Console) -> None:
    """What the rank's torch.profiler traces say; nothing where it left none."""
    if rank.breakdown_ms is not None:
        step_ms = sum(rank.breakdown_ms.values())
        parts = [
            f"{_ROLE_NAMES.get(role, role)} {percent(ms / step_ms)}"
            for role, ms in rank.breakdown_ms.items()
            if ms >= _WORTH_SHOWING * step_ms > 0
        ]
        # Profiling slows a step: its parts are shares, beside the ms of the measured steps.
        steps = counted(rank.breakdown_steps or 0, "profiled step")
        line(console, "breakdown", f"{' · '.join(parts)} (of {steps}, {milliseconds(step_ms)} each)")
    if rank.accelerator is not None:
        _print_accelerator(rank.accelerator, rank.breakdown_steps, console)


def _print_accelerator(found: Accelerator, steps: int | None, console: Console) -> None:
    """Print sums over the profiled steps: a mean stands in the line of the breakdown alone."""
    in_all = f" ({counted(steps, 'step')} in all)" if steps else ""
    span = f"{milliseconds(found.span_us / 1e3)}{in_all}"
    busy = percent(found.busy_us / found.span_us)
    text = f"busy {busy} of {span}: compute {found.compute_us / 1e3:.1f}"
    if found.comm_us:
        text += f", communication {found.comm_us / 1e3:.1f}"
        if found.comm_comp_overlap_pct is not None:
            text += f" ({found.comm_comp_overlap_pct:.0f} % of it during compute)"
    if found.memory_us:
        text += f", memory {found.memory_us / 1e3:.1f}"
    line(console, "accelerator", text)
    if not found.idle_us:
        return
    classes = [f"{CLASSES[name]} {us / 1e3:.1f}" for name, us in found.idle_by_class_us.items() if us > 0]
    line(console, "idle", f"{milliseconds(found.idle_us / 1e3)} of it: {' · '.join(classes)}")
    account = found.idle_time
    if account is not None:
        told = [one for one in account.parts if one.us >= _WORTH_SHOWING * account.span_us]
        causes = [f"{one.cause.replace('_', ' ')} {one.us / 1e3:.1f}" for one in told]
        span = milliseconds(account.span_us / 1e3)
        line(console, "idle due to", f"{milliseconds(account.idle_us / 1e3)} of {span}: {' · '.join(causes)}")
    ended = [
        f"{one.module or 'no module'}, {one.phase} {one.idle_us / 1e3:.1f}"
        for one in found.idle_by_module[:_MOST_MODULES]
        if one.idle_us > 0
    ]
    line(console, "idle before", " · ".join(ended))


def print_imbalance(found: Imbalance, console: Console) -> None:
    """The ranks compared, and which of them the others wait for."""
    console.print()
    console.rule("ranks compared", align="left")
    for one in found.ranks:
        parts = {
            "compute": one.compute_ms,
            "communication wait": one.communication_wait_ms,
            "data wait": one.data_wait_ms,
            "other": one.other_ms,
        }
        known = {name: ms for name, ms in parts.items() if one.step_ms and ms is not None}
        shares = [f"{name} {percent(ms / one.step_ms)}" for name, ms in known.items()]
        of = f"of {counted(one.steps, 'profiled step')}, {milliseconds(one.step_ms)} each"
        line(console, f"rank {one.rank}", f"{' · '.join(shares)} ({of})")
    collectives = found.collectives
    if collectives.skew_ms_mean is not None and collectives.skew_ms_max is not None:
        unmatched = f", {collectives.unmatched} not matched" if collectives.unmatched else ""
        line(
            console,
            "skew",
            f"{milliseconds(collectives.skew_ms_mean)} mean, {milliseconds(collectives.skew_ms_max)} worst, "
            f"over {collectives.matched} collectives{unmatched}",
        )
    if found.world_size is not None and found.ranks_seen < found.world_size:
        line(console, "", f"{found.ranks_seen} of {found.world_size} ranks left a trace")
    if found.withheld is not None:
        line(console, "late", found.withheld)
    for straggler in found.stragglers:
        if straggler.severity is not None:
            line(console, straggler.severity, _straggler(straggler))


def _straggler(found: Straggler) -> Text:
    cause = "" if found.by_data_pct is None else f"; {found.by_data_pct:.0f} % of its lateness is data wait"
    return Text.assemble(
        (f"rank {found.rank} is waited for", "bold red" if found.severity == "critical" else "bold"),
        f": {found.impact_pct:.0f} % of the others' time, last in {found.last_to_arrive} collectives{cause}"
        + ("" if found.evidence is None else f"; {found.evidence}"),
    )


_MOST_CAUSES = 5
_MOST_REGIONS = 6
_LEGEND = (
    "read: in calls to the file system; decode: in a reading library otherwise; transform: the rest of the "
    "dataset's own code; collate: samples to a batch; sampling: the loop itself chose samples; transport: "
    "from the worker to the loop; queued: no worker had begun; startup: workers were started"
)
_BAR_CELLS = 20
_WORTH_NAMING = 0.01  # of the wait
_OPEN_ENDS = {
    "running": "  (still running: so far)",
    "killed": "  (killed: exit code unknown)",
    "unknown": "  (exit code unknown)",
}
_DETAILED = 3  # ranks, where there are many
_NOTICEABLE_PERCENT = 2.0  # of the step, spent on tracing


def print_report(
    report: Report, console: Console, verbose: bool = False, timeline: Path | None = None
) -> None:
    """Print the first screen of `report`, and all that is known with `verbose`; the same without colour."""
    print_screen(report, console)
    if verbose:
        _print_details(report, console)
    print_next(report, timeline, console, verbose)


def _print_details(report: Report, console: Console) -> None:
    session = report.session
    console.print()
    if session.argv:
        line(console, "command", command(session.argv, console.width - LABEL_WIDTH - 1))
        if session.exit_code is not None:
            how = f"  (exit code {session.exit_code})"
        else:  # a block of a program has no exit code; an end that was not seen is unknown
            how = "" if session.ended else _OPEN_ENDS[session.state]
        line(console, "session", f"{session.path}{how}")
    else:
        traces = "trace" if len(report.ranks) == 1 else f"{len(report.ranks)} traces in"
        line(console, "traces", f"torch.profiler's {traces} {session.path}")
    for number, failure in enumerate(session.failures):
        _print_failure(failure, console, session.failures[:number], len(report.ranks) > 1)
    for label, text in hang_rows(session):
        line(console, label, text)
    line(console, "trust", f"{report.verdict.trust.level}: {'; '.join(report.verdict.trust.reasons)}")
    clocks = {
        (clock.host or "", item.by_ns, item.at_ns): None for clock in report.clocks for item in clock.set
    }
    for host, by_ns, at_ns in clocks:
        line(console, "clock", step_text(host, by_ns, at_ns))
    shown = report.ranks if len(report.ranks) <= MOST_RANKS else latest_first(report)[:_DETAILED]
    for rank in shown:
        _print_rank(rank, console, len(report.ranks) > 1)
    if len(shown) < len(report.ranks):
        line(console, "", f"{len(report.ranks) - len(shown)} more ranks: choose them with --ranks LIST", 0)
    for forecast in report.forecasts:
        if forecast.seconds is None:
            line(console, "memory", f"{forecast.text} [{forecast.code}]")
    if report.imbalance is not None:
        print_imbalance(report.imbalance, console)
    numbers = {None, *(rank.rank for rank in shown)}
    advice = [item for item in report.recommendations if item.rank in numbers]
    if advice:
        console.print()
    typed = {advice_text(item): item.command for item in advice}
    for whose, text in advice_rows(advice, several=len(report.ranks) > 1):
        line(console, "advice", f"{whose}: {text}" if whose else text)
        if typed[text]:
            console.print(plain(f"  {typed[text]}"), soft_wrap=True)
    if report.not_captured:
        console.print()
    for missing in report.not_captured:
        remedy = f" → {missing.remedy}" if missing.remedy else ""
        code = f" [{missing.code}]" if missing.code else ""
        line(console, "not captured", f"{missing.what}: {missing.why}{remedy}{code}")
    if shows := filled(report):
        console.print()
        line(console, "views", f"{', '.join(shows)}: iotrace report --view NAME shows one")


def _print_failure(failure: Failure, console: Console, earlier: Sequence[Failure], several: bool) -> None:
    """Print who failed, how and where; the stack of an exception that is raised again only once."""
    who = who_failed(failure, several)
    where = f" at {failure.at}" if failure.at else ""
    pid = f" (pid {failure.process})" if failure.process is not None else ""
    told, *more = failure.message.splitlines() or [""]
    line(console, "failure", f"{who}{pid}: {failure.type}{where}: {told}")
    for row in more:
        line(console, "", row)
    if any(each.stack and each.stack in failure.stack for each in earlier):
        return
    for row in failure.stack.splitlines():
        console.print(plain(f"  {row.rstrip().expandtabs()}", style="dim"), soft_wrap=True)


def _print_rank(rank: RankReport, console: Console, several: bool) -> None:
    if several:
        console.print()
        restart = f", restart {rank.incarnation}" if rank.incarnation else ""
        host = f" on {rank.host}" if rank.host else ""
        console.rule(f"{rank.called}{host}{restart}", align="left")
    steps = rank.steps
    if steps.mean_ms is None:
        line(console, "steps", "none measured")
    else:
        at_start = steps.excluded.first + steps.excluded.warmup
        excluded = [f"{at_start} at the start"] if at_start else []
        if steps.excluded.profiled:
            excluded.append(f"{steps.excluded.profiled} profiled")
        without = f" (without {' and '.join(excluded)})" if excluded else ""
        each = f"{milliseconds(steps.mean_ms)} each (p95 {steps.p95_ms:.1f})"
        line(console, "steps", " · ".join([f"{steps.count} measured{without}: {each}", *pace_texts(steps)]))
        if rank.loop_slow_steps is not None and rank.loop_slow_steps.count:
            line(console, "slow steps", slow_text(rank.loop_slow_steps))
        _print_wait(rank, steps.mean_ms, console)
    print_compute(rank, console)
    if rank.overhead is not None:
        _print_overhead(rank.overhead, console)
    for loader in rank.loaders:
        line(console, f"loader {loader.id}" if len(rank.loaders) > 1 else "loader", loader_text(loader))
    for text in spawned_texts(rank.account):
        line(console, "workers", text)
    if rank.regions:
        console.print()
        print_tables([shortened(tables.regions(rank), _MOST_REGIONS)], console)
    print_system(rank.system, console)
    for culprit in rank.culprits:
        if culprit.id.startswith("numa-"):
            line(console, "NUMA", culprit.text)
    if rank.io is not None:
        print_io(rank.io, console, rank.file_groups)


def _print_wait(rank: RankReport, step_ms: float, console: Console) -> None:
    wait = rank.data_wait
    if wait.raw_ms is None or wait.raw_wait_fraction is None:
        why = f": {rank.steps.unknown_why}" if rank.steps.unknown_why else ""
        line(console, "data wait", f"unknown{why}")
        return
    exposed = ""
    if wait.exposed_ms is None:
        exposed = " (unknown how long the accelerator was idle meanwhile)"
    elif wait.exposed_source != "cpu":
        idle = milliseconds(wait.exposed_ms)
        exposed = f"; {idle} with the accelerator idle (profiled steps: {wait.exposed_steps})"
    high = wait.raw_wait_fraction > 0.2
    text = Text.assemble(
        f"{milliseconds(wait.raw_ms)} a step, ",
        (f"{percent(wait.raw_wait_fraction)} of it: {wait.verdict}", "bold red" if high else "bold"),
        exposed,
    )
    line(console, "data wait", text)
    if len(wait.by_loader) > 1:
        names = {loader.id: f"{loader.dataset} (loader {loader.id})" for loader in rank.loaders}
        shares = (f"{names[item.loader]} {milliseconds(item.raw_ms)}" for item in wait.by_loader)
        line(console, "by loader", " · ".join(shares))
    _print_causes(wait, console)
    _print_after_reading(wait, console)
    if wait.files and wait.files[0].ms >= _WORTH_NAMING * wait.raw_ms:
        costly = wait.files[0]
        line(
            console,
            "costly file",
            Text.assemble(
                (costly.path, "bold"),
                f": {milliseconds(costly.ms)} a step "
                f"(decode {costly.decode_ms:.1f}, read {costly.read_ms:.1f}), "
                f"{percent(costly.ms / step_ms)} of the step",
            ),
        )


def _print_causes(wait: DataWait, console: Console) -> None:
    causes = sorted(wait.causes_ms.items(), key=lambda pair: -pair[1])
    shown = [(cause, cost_ms) for cause, cost_ms in causes if cost_ms >= 0.05][:_MOST_CAUSES]
    if not shown or not wait.raw_ms:
        return
    table = Table.grid(padding=(0, 1))
    for width, justify in ((LABEL_WIDTH, "left"), (10, "left"), (10, "right"), (6, "right"), (None, "left")):
        table.add_column(width=width, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for row, (cause, cost_ms) in enumerate(shown):
        bar = "█" * max(1, round(_BAR_CELLS * cost_ms / shown[0][1]))
        label = Text("cause" if row == 0 else "", style="bold")
        style = "red" if row == 0 else "dim"
        table.add_row(
            label, cause, milliseconds(cost_ms), percent(cost_ms / wait.raw_ms), Text(bar, style=style)
        )
    print_table(console, table)
    line(console, "", Text(_LEGEND, style="dim"))


def _print_after_reading(wait: DataWait, console: Console) -> None:
    """Name the file whose reading most of the transform followed, where much of it followed one file each."""
    transform_ms = wait.causes_ms.get("transform", 0.0)
    after = [file for file in wait.files if file.transform_ms > 0]
    if not after or transform_ms < 0.05 or sum(file.transform_ms for file in after) < transform_ms / 2:
        return
    most = max(after, key=lambda file: file.transform_ms)
    others = f"; {len(after) - 1} other file{'s'[: len(after) - 2]} likewise" if len(after) > 1 else ""
    line(
        console,
        "transform",
        Text.assemble(
            "after reading ",
            (most.path, "bold"),
            f": {milliseconds(most.transform_ms)} a step, {percent(most.transform_ms / transform_ms)} of it",
            others,
        ),
    )


def _print_overhead(overhead: Overhead, console: Console) -> None:
    """What tracing may have cost, where that was measured; with its remedy where it is noticeable."""
    slowed = overhead.estimated_pct_of_step
    if slowed is None:
        return
    if slowed < _NOTICEABLE_PERCENT:
        bound = f"up to {slowed:.1f} %" if slowed >= 0.05 else "less than 0.1 %"
        line(console, "tracing", Text(f"slowed the steps by {bound}", style="dim"))
        return
    calls, of_calls = "", (overhead.posix_calls or 0) * (overhead.posix_call_us or 0.0)
    of_spans = overhead.spans * (overhead.span_us or 0.0)
    if of_spans > of_calls:
        calls = f": {overhead.spans} spans at {overhead.span_us:.1f} µs"
    elif overhead.posix_calls and overhead.posix_call_us is not None:
        each = f"{overhead.posix_call_us:.1f} µs"
        if overhead.next_posix_call_us is not None:
            each = f"{min(overhead.next_posix_call_us, overhead.posix_call_us):.1f} to {each}"
        calls = f": {overhead.posix_calls} POSIX calls at {each}; --io PATH traces fewer, --io off none"
    share = bounds(overhead.least_pct_of_step, slowed)
    line(console, "tracing", f"may itself take {share} of the steps{calls}")


def loader_text(loader: LoaderResult) -> str:
    """What a loader is, and how it ran."""
    role = f"{loader.kind}{' (primary)' if loader.primary else ''}"
    if loader.after_training:
        role += ", after the trainer's last run: no training reads"
    parts = [f"{loader.dataset}, {role if loader.within is None else f'within loader {loader.within}'}"]
    how = f" by {loader.start_method}" if loader.start_method else ""
    workers = f"{counted(loader.workers, 'worker')}{how}"
    if loader.pool:
        made = f"made by {counted(loader.workers, 'worker')}, taken from a {loader.pool}"
    elif loader.library:
        made = f"{loader.library}'s loader{f', {workers}' if loader.workers else ''}"
    else:
        made = "wrapped by iotrace.batches" if loader.wrapped else workers
    phases = [f"{count} in {phase}" for phase, count in loader.phases.items()]
    parts += [
        f"{made}, {loader.batches} batches",
        ", ".join(phases) if len(phases) > 1 else "",
        if_known(loader.production_ms, "{:.1f} ms to prepare one".format),
        if_known(loader.queue_depth_mean, "the loop finds {:.1f} ready".format),
        if_known(loader.first_batch_ms, "first batch after {:.0f} ms".format),
        f"ended by {', '.join(loader.failures)}" if loader.failures else "",
    ]
    return " · ".join(filter(None, parts))
