"""The report on a terminal: its first screen, then all the rest where that is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from iotrace.analysis.results import (
    Accelerator,
    DataWait,
    Failure,
    Imbalance,
    LoaderResult,
    Lockstep,
    Overhead,
    RankBalance,
    RankReport,
    Report,
    Straggler,
)
from iotrace.analysis.verdict.loop_costs import loop_costs
from iotrace.analysis.verdict.reason import unit_of
from iotrace.report import tables
from iotrace.report.blocks import Bar, Bars, Block, Commands, Heading, Line, Paragraph, Verbatim, shortened
from iotrace.report.layout import LABEL_WIDTH, print_document, print_parts
from iotrace.report.printing import command
from iotrace.report.screen import following, opened, screen_of
from iotrace.report.screen_ranks import MOST_RANKS, advice_rows, advice_text, latest_first
from iotrace.report.terminal_system import io_blocks, system_lines
from iotrace.report.views import filled
from iotrace.report.views.device import CLASSES
from iotrace.report.words import (
    hang_rows,
    pace_texts,
    part_not_captured,
    slow_text,
    spawned_texts,
    who_failed,
)
from iotrace.sources.clocks.session_clock import step_text
from iotrace.units import bounds, counted, if_known, length, milliseconds, percent, with_article

_WORTH_SHOWING = 0.005  # of the step
_MOST_MODULES = 3
_ROLE_NAMES = {"cpu_op": "CPU ops", "dataloader": "data loader"}
_MOST_CAUSES = 5
_MOST_REGIONS = 6
_LEGEND = (
    "read: in calls to the file system; decode: in a reading library otherwise; transform: the rest of the "
    "dataset's own code; collate: samples to a batch; sampling: the loop itself chose samples; transport: "
    "from the worker to the loop; queued: no worker had begun; startup: workers were started"
)
_WORTH_NAMING = 0.01  # of the wait
_LEAST_MS = 0.05  # what is shown as 0.0
_OPEN_ENDS = {
    "running": "  (still running: so far)",
    "killed": "  (killed: exit code unknown)",
    "unknown": "  (exit code unknown)",
}
_DETAILED = 3  # ranks, where there are many
_LEAST_LONGER_MS = 0.5
_NOTICEABLE_PERCENT = 2.0  # of the step, spent on tracing


def print_report(
    report: Report, console: Console, verbose: bool = False, timeline: Path | None = None
) -> None:
    """Print the first screen of `report`, and all that is known with `verbose`; the same without colour."""
    print_document(screen_of(report, console.width), console)
    if verbose:
        print_parts(details_of(report, console.width), console, LABEL_WIDTH)
    commands = [*([] if timeline is None else opened(report)), *following(report, verbose)]
    print_parts([[Commands(commands)]], console)


def details_of(report: Report, width: int) -> list[Sequence[Block]]:
    """Say all that is known of a run, apart by empty lines, for a screen of `width` columns."""
    several = len(report.ranks) > 1
    shown = report.ranks if len(report.ranks) <= MOST_RANKS else latest_first(report)[:_DETAILED]
    parts: list[list[Block]] = [[*_about(report, width)]]
    explained = next((rank for rank in shown if any(_worth_a_bar(rank))), None)
    for rank in shown:
        first, *others = _of_rank(rank, several, legend=_LEGEND if rank is explained else "")
        if several:
            parts.append(first)
        else:
            parts[-1] += first
        parts += others
    if len(shown) < len(report.ranks):
        left = len(report.ranks) - len(shown)
        parts[-1].append(Paragraph(f"{left} more ranks: choose them with --ranks LIST"))
    for forecast in report.forecasts:
        if forecast.seconds is None:
            parts[-1].append(Line("memory", f"{forecast.text} [{forecast.code}]"))
    if report.imbalance is not None:
        parts.append([*_imbalance(report.imbalance, report.lockstep)])
    numbers = {None, *(rank.rank for rank in shown)}
    advice = [item for item in report.recommendations if item.rank in numbers]
    typed = {advice_text(item): item.command for item in advice}
    told: list[Block] = []
    for whose, text in advice_rows(advice, several=several):
        told.append(Line("advice", f"{whose}: {text}" if whose else text))
        if typed[text]:
            told.append(Verbatim([f"  {typed[text]}"]))
    missing: list[Block] = []
    for item in report.not_captured:
        remedy = f" → {item.remedy}" if item.remedy else ""
        code = f" [{item.code}]" if item.code else ""
        missing.append(Line("not captured", f"{part_not_captured(item.what)}: {item.why}{remedy}{code}"))
    shows = filled(report)
    views = [Line("views", f"{', '.join(shows)}: iotrace report --view NAME shows one")] if shows else []
    return [*parts, *(part for part in (told, missing, views) if part)]


def _about(report: Report, width: int) -> Iterator[Block]:
    """Say what ran, how it ended, and how far to trust its figures."""
    session = report.session
    if session.argv:
        yield Line("command", command(session.argv, width - LABEL_WIDTH - 1))
        if session.exit_code is not None:
            how = f"  (exit code {session.exit_code})"
        else:  # a block of a program has no exit code; an end that was not seen is unknown
            how = "" if session.ended else _OPEN_ENDS[session.state]
        yield Line("session", f"{session.path}{how}")
    else:
        traces = "trace" if len(report.ranks) == 1 else f"{len(report.ranks)} traces in"
        yield Line("traces", f"torch.profiler's {traces} {session.path}")
    for number, failure in enumerate(session.failures):
        yield from _failure(failure, session.failures[:number], len(report.ranks) > 1)
    for label, text in hang_rows(session):
        yield Line(label, text)
    yield Line("trust", f"{report.verdict.trust.level}: {'; '.join(report.verdict.trust.reasons)}")
    clocks = {
        (clock.host or "", item.by_ns, item.at_ns): None for clock in report.clocks for item in clock.set
    }
    for host, by_ns, at_ns in clocks:
        yield Line("clock", step_text(host, by_ns, at_ns))


def _failure(failure: Failure, earlier: Sequence[Failure], several: bool) -> Iterator[Block]:
    """Say who failed, how and where; the stack of an exception that is raised again only once."""
    who = who_failed(failure, several)
    where = f" at {failure.at}" if failure.at else ""
    pid = f" (pid {failure.process})" if failure.process is not None else ""
    told, *more = failure.message.splitlines() or [""]
    yield Line("failure", f"{who}{pid}: {failure.type}{where}: {told}")
    for row in more:
        yield Line("", row)
    if not any(each.stack and each.stack in failure.stack for each in earlier):
        yield Verbatim([f"  {row.rstrip().expandtabs()}" for row in failure.stack.splitlines()], "dim")


def _of_rank(rank: RankReport, several: bool, legend: str) -> Iterator[list[Block]]:
    """Say all that is known of a rank, in parts; of `several` with its name. `legend` explains causes."""
    blocks: list[Block] = []
    if several:
        restart = f", restart {rank.incarnation}" if rank.incarnation else ""
        host = f" on {rank.host}" if rank.host else ""
        blocks.append(Heading(f"{rank.called}{host}{restart}"))
    steps = rank.steps
    if steps.mean_ms is None:
        blocks.append(Line("steps", "none measured"))
    else:
        at_start = steps.excluded.first + steps.excluded.warmup
        excluded = [f"{at_start} at the start"] if at_start else []
        if steps.excluded.profiled:
            excluded.append(f"{steps.excluded.profiled} profiled")
        without = f" (without {' and '.join(excluded)})" if excluded else ""
        each = f"{milliseconds(steps.mean_ms)} each (p95 {steps.p95_ms:.1f})"
        text = " · ".join([f"{steps.count} measured{without}: {each}", *pace_texts(rank)])
        blocks.append(Line("steps", text))
        if rank.loop_slow_steps is not None and rank.loop_slow_steps.count:
            blocks.append(Line("slow steps", slow_text(rank.loop_slow_steps)))
        blocks += _wait(rank, steps.mean_ms, legend)
    blocks += _compute(rank)
    if rank.overhead is not None:
        blocks += overhead_lines(rank.overhead)
    for loader in rank.loaders:
        label = f"loader {loader.id}" if len(rank.loaders) > 1 else "loader"
        blocks.append(Line(label, loader_text(loader, unit_of(rank) if loader.primary else "batches")))
    blocks += [Line("workers", text) for text in spawned_texts(rank.account)]
    if rank.regions:
        yield blocks
        blocks = [shortened(tables.regions(rank), _MOST_REGIONS)]
    blocks += system_lines(rank.system)
    blocks += [Line("NUMA", culprit.text) for culprit in rank.culprits if culprit.id.startswith("numa-")]
    yield blocks
    if rank.io is not None:
        yield [*io_blocks(rank.io, rank.file_groups)]


def _worth_a_bar(rank: RankReport) -> Iterator[bool]:
    yield from (ms >= _LEAST_MS for ms in (rank.data_wait.causes_ms or {}).values())


def _wait(rank: RankReport, step_ms: float, legend: str) -> Iterator[Block]:
    wait = rank.data_wait
    if wait.raw_ms is None or wait.raw_wait_fraction is None:
        why = f": {rank.steps.unknown_why}" if rank.steps.unknown_why else ""
        yield Line("data wait", f"unknown{why}")
        return
    exposed = ""
    if wait.exposed_ms is None:
        exposed = " (unknown how long the accelerator was idle meanwhile)"
    elif wait.exposed_source != "cpu":
        idle = milliseconds(wait.exposed_ms)
        exposed = f"; {idle} with the accelerator idle (profiled steps: {wait.exposed_steps})"
    share, costs = f"{percent(wait.raw_wait_fraction)} of it: {wait.verdict}", loop_costs(rank)
    if costs is not None and costs.fraction > wait.raw_wait_fraction:  # the verdict judges that
        share = f"{percent(wait.raw_wait_fraction)} of it; loaders cost {costs.text}"
    text = f"{milliseconds(wait.raw_ms)} a step, {share}{exposed}"
    yield Line("data wait", text, strong=share, tone="bad" if wait.raw_wait_fraction > 0.2 else "")
    if len(wait.by_loader) > 1:
        names = {loader.id: f"{loader.named} (loader {loader.id})" for loader in rank.loaders}
        shares = (f"{names[item.loader]} {milliseconds(item.raw_ms)}" for item in wait.by_loader)
        yield Line("by loader", " · ".join(shares))
    causes = sorted(wait.causes_ms.items(), key=lambda pair: -pair[1])
    bars = [
        Bar(cause, ms, [milliseconds(ms), percent(ms / wait.raw_ms)])
        for cause, ms in causes[:_MOST_CAUSES]
        if ms >= _LEAST_MS and wait.raw_ms
    ]
    if bars:
        yield Bars("cause", bars, legend)
    yield from after_reading(wait)
    if wait.files and wait.files[0].ms >= _WORTH_NAMING * wait.raw_ms:
        costly = wait.files[0]
        of = f"(decode {costly.decode_ms:.1f}, read {costly.read_ms:.1f})"
        of_step = f"{percent(costly.ms / step_ms)} of the step"
        text = f"{costly.path}: {milliseconds(costly.ms)} a step {of}, {of_step}"
        yield Line("costly file", text, strong=costly.path)


def after_reading(wait: DataWait) -> Iterator[Line]:
    """Name the file whose reading most of the transform followed, where much of it followed one file each."""
    transform_ms = wait.causes_ms.get("transform", 0.0)
    after = [file for file in wait.files if file.transform_ms > 0]
    if not after or transform_ms < _LEAST_MS or sum(file.transform_ms for file in after) < transform_ms / 2:
        return
    most = max(after, key=lambda file: file.transform_ms)
    others = f"; {len(after) - 1} other file{'s'[: len(after) - 2]} likewise" if len(after) > 1 else ""
    cost = f"{milliseconds(most.transform_ms)} a step, {percent(most.transform_ms / transform_ms)} of it"
    yield Line("transform", f"after reading {most.path}: {cost}{others}", strong=most.path)


def _compute(rank: RankReport) -> Iterator[Line]:
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
        yield Line("breakdown", f"{' · '.join(parts)} (of {steps}, {milliseconds(step_ms)} each)")
    if rank.accelerator is not None:
        yield from _accelerator(rank.accelerator, rank.breakdown_steps)


def _accelerator(found: Accelerator, steps: int | None) -> Iterator[Line]:
    """Say sums over the profiled steps: a mean stands in the line of the breakdown alone."""
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
    yield Line("accelerator", text)
    if not found.idle_us:
        return
    classes = [f"{CLASSES[name]} {us / 1e3:.1f}" for name, us in found.idle_by_class_us.items() if us > 0]
    yield Line("idle", f"{milliseconds(found.idle_us / 1e3)} of it: {' · '.join(classes)}")
    account = found.idle_time
    if account is not None:
        told = [one for one in account.parts if one.us >= _WORTH_SHOWING * account.span_us]
        causes = [f"{one.cause.replace('_', ' ')} {one.us / 1e3:.1f}" for one in told]
        span = milliseconds(account.span_us / 1e3)
        yield Line("idle due to", f"{milliseconds(account.idle_us / 1e3)} of {span}: {' · '.join(causes)}")
    ended = [
        f"{one.module or 'no module'}, {one.phase} {one.idle_us / 1e3:.1f}"
        for one in found.idle_by_module[:_MOST_MODULES]
        if one.idle_us > 0
    ]
    yield Line("idle before", " · ".join(ended))


def _imbalance(found: Imbalance, loops: Lockstep | None) -> Iterator[Block]:
    """The ranks compared, and which of them the others wait for: of all steps, then of the profiled ones."""
    yield Heading("ranks compared")
    if loops is not None and loops.late_rank is not None:
        who = f"the others wait for rank {loops.late_rank}"
        longer = sorted(loops.late_by_ms.items(), key=lambda pair: -pair[1])
        told = ", ".join(f"{part} {ms:.1f} ms" for part, ms in longer if ms >= _LEAST_LONGER_MS)
        wait = f"{loops.wait_ms:.1f} ms a step, {loops.wait_pct:.0f} % of their time"
        yield Line("late", f"{who}: {wait}; it takes longer: {told} (in {loops.steps} steps)", strong=who)
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
        yield Line(f"rank {one.rank}", f"{' · '.join(shares)} ({of})")
    collectives = found.collectives
    if collectives.skew_ms_mean is not None and collectives.skew_ms_max is not None:
        unmatched = f", {collectives.unmatched} not matched" if collectives.unmatched else ""
        yield Line(
            "skew",
            f"{milliseconds(collectives.skew_ms_mean)} mean, {milliseconds(collectives.skew_ms_max)} worst, "
            f"over {collectives.matched} collectives{unmatched}",
        )
    if found.world_size is not None and found.ranks_seen < found.world_size:
        yield Line("", f"{found.ranks_seen} of {found.world_size} ranks left a trace")
    if found.withheld is not None:
        yield Line("late", found.withheld)
    for straggler in found.stragglers:
        if straggler.severity is not None and (loops is None or loops.agrees(straggler.rank)):
            yield _straggler(straggler.severity, straggler, found.of(straggler.rank)[0])


def _straggler(severity: str, found: Straggler, own: RankBalance | None) -> Line:
    who = f"the others wait for rank {found.rank}"
    cause = "" if found.by_data_pct is None else f"; {found.by_data_pct:.0f} % of its lateness is data wait"
    evidence = "" if found.evidence is None else f"; {found.evidence}"
    impact = f"{found.impact_pct:.0f} % of their time; it comes last in {found.last_to_arrive} collectives"
    impact += f" of {counted(own.steps, 'profiled step')}" if own is not None else ""
    tone = "bad" if severity == "critical" else ""
    return Line(severity, f"{who}: {impact}{cause}{evidence}", strong=who, tone=tone)


def overhead_lines(overhead: Overhead) -> Iterator[Line]:
    """What tracing may have cost, where that was measured; with its remedy where it is noticeable."""
    slowed = overhead.estimated_pct_of_step
    if slowed is None:
        return
    if slowed < _NOTICEABLE_PERCENT:
        bound = f"up to {slowed:.1f} %" if slowed >= 0.05 else "less than 0.1 %"
        yield Line("tracing", f"slowed the steps by {bound}", tone="dim")
        return
    calls, of_calls = "", (overhead.posix_calls or 0) * (overhead.posix_call_us or 0.0)
    of_spans = overhead.spans * (overhead.span_us or 0.0)
    if 1e3 * overhead.hooks_ms > max(of_spans, of_calls):
        calls = f": its hooks took {length(overhead.hooks_ms)} of CPU"
    elif of_spans > of_calls:
        calls = f": {overhead.spans} spans at {overhead.span_us:.1f} µs"
    elif overhead.posix_calls and overhead.posix_call_us is not None:
        each = f"{overhead.posix_call_us:.1f} µs"
        if overhead.next_posix_call_us is not None:
            each = f"{min(overhead.next_posix_call_us, overhead.posix_call_us):.1f} to {each}"
        calls = f": {overhead.posix_calls} POSIX calls at {each}; --io PATH traces fewer, --io off none"
    share = bounds(overhead.least_pct_of_step, slowed)
    yield Line("tracing", f"may itself take {share} of the steps{calls}")


def loader_text(loader: LoaderResult, unit: str = "batches") -> str:
    """What a loader is, and how it ran; `unit` is what it hands over."""
    role = f"{loader.kind}{' (primary)' if loader.primary else ''}"
    if loader.after_training:
        role += ", after the trainer's last run: no training reads"
    parts = [f"{loader.named}, {role if loader.within is None else f'within loader {loader.within}'}"]
    how = f" by {loader.start_method}" if loader.start_method else ""
    workers = f"{counted(loader.workers, 'worker')}{how}"
    if loader.pool:
        made = f"made by {counted(loader.workers, 'worker')}"
        by = "unknown who made them" if loader.made_fraction == 0 else made
        made = f"{by}, taken from {with_article(loader.pool)}"
    elif loader.library:
        made = f"{loader.library}'s loader{f', {workers}' if loader.workers else ''}"
    else:
        made = "iterated by the loop itself" if loader.wrapped else workers
    phases = [f"{count} in {phase}" for phase, count in loader.phases.items()]
    parts += [
        f"{made}, {loader.batches} {unit}",
        ", ".join(phases) if len(phases) > 1 else "",
        if_known(loader.production_ms, "{:.1f} ms to prepare one".format),
        _ready(loader),
        if_known(loader.first_batch_ms, "first batch after {:.0f} ms".format),
        f"ended by {', '.join(loader.failures)}" if loader.failures else "",
    ]
    return " · ".join(filter(None, parts))


def _ready(loader: LoaderResult) -> str:
    """Say how many batches lie ready, and how many of them the loop can take, where that differs."""
    ready, in_turn = loader.queue_depth_mean, loader.ready_in_turn_mean
    said = if_known(ready, "the loop finds {:.1f} ready".format)
    if ready is None or in_turn is None or f"{ready:.1f}" == f"{in_turn:.1f}":
        return said
    return f"{said}, {in_turn:.1f} of them in turn"
