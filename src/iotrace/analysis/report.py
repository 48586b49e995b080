"""A session's report: every figure of every rank, from columns to results."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from iotrace.analysis.completeness.not_captured import not_captured
from iotrace.analysis.completeness.session_info import clock_bound_ns, clocks_of, session_info
from iotrace.analysis.device.collectives import RankTrace
from iotrace.analysis.device.compute import Beside, compared_trace, memory_in
from iotrace.analysis.device.imbalance import imbalance_of
from iotrace.analysis.gain.gain import gain_of, without_workers
from iotrace.analysis.host.forecasts import forecasts_of
from iotrace.analysis.host.overhead import overhead_of
from iotrace.analysis.host.system import system_of
from iotrace.analysis.loop.loaders import loader_result
from iotrace.analysis.loop.lockstep import lockstep_of
from iotrace.analysis.loop.measured import summarise
from iotrace.analysis.loop.rank_loop import RankLoop, rank_loop_of
from iotrace.analysis.loop.step_phases import step_phases
from iotrace.analysis.loop.thread_cpu import thread_cpu
from iotrace.analysis.program.full_memory import with_nodes, with_swap
from iotrace.analysis.program.trainer import models_of, snapshots_of, speed_of
from iotrace.analysis.rank import RankAnalysis, SessionAnalysis, hangs_in
from iotrace.analysis.results import (
    HALVED,
    SCHEMA_VERSION,
    FileGroup,
    Io,
    PipelineStage,
    ProcessInfo,
    RankReport,
    Recommendation,
    Report,
    RowGroups,
    Steps,
    TrainerTimes,
    last_start,
)
from iotrace.analysis.rules.advice import advice_of, culprits_of, unsilenced
from iotrace.analysis.rules.facts.job import job_facts
from iotrace.analysis.rules.facts.loader_facts import loader_facts
from iotrace.analysis.rules.facts.rank import rank_facts
from iotrace.analysis.rules.loop import PREPARED_IN_THE_LOOP
from iotrace.analysis.rules.model import Finding, find_all, unasked
from iotrace.analysis.rules.waste import READ_BY_EACH_WORKER
from iotrace.analysis.startup.waterfall import startup_of
from iotrace.analysis.storage.amplification import with_amplification
from iotrace.analysis.storage.by_mount import samples_of, with_storage
from iotrace.analysis.storage.few_files import with_few_files
from iotrace.analysis.storage.file_groups import file_groups, used_files
from iotrace.analysis.storage.io import io_of
from iotrace.analysis.storage.passes import passes_by_process, passes_lived, passes_of
from iotrace.analysis.storage.whole_reads import with_whole_reads
from iotrace.analysis.verdict.trust import trust_of
from iotrace.analysis.verdict.verdict import verdict_of
from iotrace.analysis.wait.account import account_of
from iotrace.analysis.wait.blocks import step_blocks
from iotrace.analysis.wait.cpus import with_cpu
from iotrace.analysis.wait.data_builders import with_builders
from iotrace.analysis.wait.data_wait import data_wait
from iotrace.analysis.wait.feeding import feeding_of
from iotrace.analysis.wait.loader_lines import with_hot_lines
from iotrace.analysis.wait.loop_code import code_of_loop, code_samples
from iotrace.analysis.wait.loop_events import loop_events, summed, with_events
from iotrace.analysis.wait.loop_io import loop_reads
from iotrace.analysis.wait.regions import regions_of
from iotrace.analysis.wait.repeated_work import repeated_work
from iotrace.analysis.wait.sample_calls import sample_calls
from iotrace.analysis.wait.sampler_time import samplers_of
from iotrace.analysis.wait.slow_loop_steps import loop_slow_steps
from iotrace.analysis.wait.stages import stages_of
from iotrace.analysis.wait.taking import judged, with_taking
from iotrace.session.manifest import NotCaptured
from iotrace.session.names import KIND_TRAINER
from iotrace.sources.kineto.profiler_traces import Windows
from iotrace.sources.processes import Process
from iotrace.sources.records import ArrayInfo, RowGroupsRead, Versions
from iotrace.sources.session import Session, rank_of


class RankPart(msgspec.Struct, frozen=True):
    """A rank's part of a report, which is made by itself; `trace` is compared with the other ranks'.

    Of its `windows` outlines are kept. `unasked`: rules of a site's own that failed.
    """

    report: RankReport
    advice: list[Recommendation]
    trace: RankTrace | None
    loop: RankLoop | None
    windows: Windows
    unasked: list[NotCaptured]


def rank_part(one: RankAnalysis) -> RankPart:
    """Make everything that a report says of one rank alone."""
    figures = _rank(one)
    facts = rank_facts(one, figures)
    outside = find_all("rank", facts)
    if any(each.rule == READ_BY_EACH_WORKER for each in outside):
        figures = replace(figures, gain=[without_workers(row) for row in figures.gain])
    loaders = [finding for loader in loader_facts(one, figures) for finding in find_all("loader", loader)]
    in_loop = find_all("loop", facts)
    found = [*outside, *in_loop, *loaders, *_of_device(one)]
    named = unsilenced([*outside, *(finding for finding in loaders if finding.is_main_cause)])
    # No advice tells of the first; the second is why nobody knows the wait, the third what most time goes to.
    named += [
        each
        for each in unsilenced(in_loop)
        if not each.remedy or each.rule == PREPARED_IN_THE_LOOP or each.is_main_cause
    ]
    report = replace(figures, culprits=culprits_of(named))
    beside = Beside(one.waits, clock_bound_ns(one.session, one.rank))
    return RankPart(
        report=report,
        advice=advice_of(found, report.rank),
        trace=compared_trace(report.rank, one.compute, beside),
        loop=rank_loop_of(one) if len(one.session.ranks) > 1 else None,
        windows=one.rank.main.windows.outline(),
        unasked=unasked(),
    )


def analyse(analysis: SessionAnalysis, parts: Sequence[RankPart] = ()) -> Report:
    """Make everything that `iotrace report` says of a session; `parts` are those of its ranks, if made."""
    session = analysis.session
    for one, part in zip(analysis.ranks, parts, strict=False):  # what has been read is not read again
        vars(one.rank.main)["windows"] = part.windows
    parts = parts or [rank_part(one) for one in analysis.ranks]
    judged = _last_start(parts)
    compared = [part.trace for part in judged if part.trace]
    ranks = [part.report for part in judged]
    about = session_info(analysis)
    one_job = all(rank.pid is None for rank in ranks)
    imbalance = imbalance_of(compared, ranks[0].world_size) if ranks and one_job else None
    clocks = clocks_of(session)
    if imbalance is not None:
        imbalance = replace(imbalance, incarnation=ranks[0].incarnation)
    loops = [part.loop for part in judged if part.loop] if one_job else []
    lockstep = lockstep_of(loops, imbalance) if len(loops) == len(ranks) else None
    job = job_facts(ranks, imbalance, lockstep) if one_job else None
    together = [] if job is None else find_all("job", job)
    late = None if job is None or job.late is None else job.late.rank
    advice = [item for part in judged for item in part.advice]
    withheld = None if imbalance is None else imbalance.withheld
    fed = [] if job is None else job.fed
    trust = trust_of(about, ranks, clocks, analysis.data_loss, withheld, fed)
    failed = dict.fromkeys([*(item for part in parts for item in part.unasked), *unasked()])
    return Report(
        schema_version=SCHEMA_VERSION,
        session=about,
        verdict=verdict_of(about, ranks, job, advice, trust),
        ranks=[_with_fixes(part) for part in parts],
        processes=[_process(session, process) for process in session.processes],
        imbalance=imbalance,
        lockstep=lockstep,
        culprits=culprits_of(together),
        recommendations=[*advice_of(together, late), *(item for part in parts for item in part.advice)],
        not_captured=[*not_captured(analysis), *failed],
        clocks=clocks,
        forecasts=forecasts_of(session),
    )


def _last_start(parts: Sequence[RankPart]) -> list[RankPart]:
    """Choose the ranks of a restarted job's last start that trained; all of a job that was not restarted."""
    last = last_start([part.report for part in parts])
    return [part for part in parts if part.report.incarnation == last]


def _with_fixes(part: RankPart) -> RankReport:
    """Name the verdict's fix in each row of the rank's gains that means the same."""
    fixes = {item.gain: item.fix for item in part.advice if item.gain}
    rank = part.report
    rows = [row if row.change == HALVED else replace(row, fix=fixes.get(row.id)) for row in rank.gain]
    return replace(rank, gain=rows) if fixes else rank


def _process(session: Session, process: Process) -> ProcessInfo:
    identity = process.identity
    return ProcessInfo(
        pid=process.pid,
        ppid=identity.ppid,
        host=process.host,
        role=session.role_of(process),
        rank=rank_of(process)[0],
        local_rank=identity.local_rank,
        incarnation=identity.incarnation,
        start_method=None if identity.role == "main" else identity.role,
        python=identity.python,
        versions={
            name: text for record in process.of_type(Versions) for name, text in record.versions.items()
        },
    )


def _steps(analysis: RankAnalysis) -> Steps:
    loop, kept = analysis.loop, analysis.kept
    starts_ns, ends_ns = loop.steps["start_ns"], loop.steps["end_ns"]
    found = summarise(
        kept.duration_ns,
        kept["samples"],
        analysis.measured[1],
        loop.begun,
        loop.unknown_why,
        int(ends_ns[-1] - starts_ns[0]) if len(ends_ns) else None,
    )
    per_update = batches = None
    if loop.thread is not None and len(ends_ns):
        per_update = loop.thread.rounds.steps_to_an_update(starts_ns, int(ends_ns[-1]))
    if loop.primary is not None and len(kept):
        batches = int((kept.awaited["loader"] == loop.primary.number).sum()) / len(kept)
    cpu_ms, delay_ms = _thread_ms(analysis, found.mean_ms)
    return replace(
        found, per_update=per_update, batches=batches, thread_cpu_ms=cpu_ms, thread_run_delay_ms=delay_ms
    )


def _thread_ms(analysis: RankAnalysis, step_ms: float | None) -> tuple[float | None, float | None]:
    """What of a step the training thread computed, and waited for a CPU."""
    kept = analysis.kept
    if not len(kept) or not step_ms:
        return None, None
    begin, end = int(kept["start_ns"][0]), int(kept["end_ns"][-1])
    account = thread_cpu(analysis, begin, end)
    shares = (each and each / (end - begin) for each in (account.cpu_ns, account.run_delay_ns))
    cpu_ms, delay_ms = (None if share is None else share * step_ms for share in shares)
    return cpu_ms, delay_ms


def _rank(analysis: RankAnalysis) -> RankReport:
    rank, compute, kept = analysis.rank, analysis.compute, analysis.kept
    system = with_nodes(with_swap(system_of(analysis.session, rank, kept), analysis), analysis)
    wait = with_cpu(data_wait(analysis, system), analysis, system.host)
    traced = io_of(analysis.session, rank, (kept[0].start_ns, kept[-1].end_ns) if kept else None)
    groups, io = file_groups(wait, traced and traced[0], used_files(analysis))
    wait = with_taking(wait, analysis, io)
    if traced is not None and io is not None:
        samples, paths = samples_of(analysis.loaders), analysis.session.paths
        groups, io = with_storage(groups, io, traced[1], analysis.session, rank, samples)
        groups = _with_chunks(groups, io, analysis)
        passes = passes_by_process(analysis.loaders, rank)
        groups = with_amplification(groups, io, traced[1], rank, paths, _row_groups(analysis), passes)
    files_ms = {each.path: each.ms + each.transform_ms for each in wait.files}
    groups = with_whole_reads(groups, traced[1] if traced else {}, analysis, system, files_ms)
    groups = with_few_files(groups, analysis)
    phases = step_phases(analysis, wait.raw_ms)
    gain = gain_of(analysis, system, wait)
    account, events, code = (
        account_of(analysis, hangs_in(analysis.session)),
        loop_events(analysis),
        code_samples(analysis),
    )
    divided = code_of_loop(analysis, code, [(each.starts, each.ends) for each in events], account)
    recurring = summed(analysis, events, account, code)
    pipeline, (samplers, choosing) = _pipeline(analysis), samplers_of(analysis)
    found = RankReport(
        rank=rank.number,
        pid=None if rank.numbered else rank.main.pid,
        argv=[] if rank.numbered else rank.main.identity.argv,
        host=rank.main.host,
        local_rank=rank.main.identity.local_rank,
        world_size=rank.world_size,
        incarnation=rank.incarnation,
        startup=startup_of(analysis),
        account=account,
        steps=_steps(analysis),
        blocks=step_blocks(analysis, phases.by_step_ns),
        data_wait=wait,
        loop_reads=loop_reads(analysis),
        loop_slow_steps=loop_slow_steps(analysis, phases.by_step_ns, events, divided.recurring, choosing),
        loop_events=recurring,
        feeding=feeding_of(analysis, code, events),
        loop_code=with_builders(analysis, code, with_events(divided.code, recurring)),
        stages=stages_of(analysis) if len(pipeline) <= 1 else [],  # else most items are parts of a sample
        pipeline=pipeline,
        phases_ms=phases.means_ms,
        phases_source=phases.source,
        phases_unknown_why=phases.unknown_why,
        loaders=[
            replace(
                with_hot_lines(analysis, loader, loader_result(analysis, loader)),
                sampler=samplers.get(loader.number),
            )
            for loader in analysis.loaders
        ],
        regions=regions_of(rank, len(kept), analysis.measured_waits),
        sample_calls=sample_calls(analysis.session, rank),
        repeated=repeated_work(analysis, traced[1], groups) if traced else [],
        breakdown_ms=compute.breakdown_ms,
        breakdown_raw_ms=compute.breakdown_raw_ms,
        breakdown_steps=compute.breakdown_steps,
        accelerator=compute.accelerator,
        operators=compute.operators,
        slow_steps=compute.slow_steps,
        io=io,
        file_groups=groups,
        system=system,
        overhead=overhead_of(analysis),
        speed=speed_of(analysis),
        trainer=_trainer(analysis),
        models=models_of(rank.main),
        memory=memory_in(rank.main.windows.traces),
        snapshots=snapshots_of(rank.main),
        gain=gain.rows,
        self_prediction_error_pct=gain.error_pct,
        gain_withheld=gain.withheld,
    )
    return judged(found, analysis)


# What few sessions hold is imported where one does.


def _pipeline(analysis: RankAnalysis) -> list[PipelineStage]:
    if analysis.inputs.hops is None and not analysis.has_callbacks:
        return []
    from iotrace.analysis.wait.pipeline import pipeline_of

    return pipeline_of(analysis)


def _of_device(analysis: RankAnalysis) -> list[Finding]:
    if analysis.compute.accelerator is None:
        return []
    from iotrace.analysis.rules.facts.device import device_facts

    return find_all("device", device_facts(analysis.compute))


def _with_chunks(groups: list[FileGroup], io: Io, analysis: RankAnalysis) -> list[FileGroup]:
    rank = analysis.rank
    if not any(process.of_type(ArrayInfo) for process in rank.processes):
        return groups
    from iotrace.analysis.storage.chunks import with_chunks

    return with_chunks(groups, io, rank, analysis.session.paths)


def _row_groups(analysis: RankAnalysis) -> dict[str, RowGroups]:
    if not any(process.of_type(RowGroupsRead) for process in analysis.rank.processes):
        return {}
    from iotrace.analysis.storage.chunks import row_groups

    passes = passes_of(analysis.loaders)
    by_worker = passes_lived(analysis.loaders, passes)
    return row_groups(analysis.rank, analysis.session.paths, passes, by_worker)


def _trainer(analysis: RankAnalysis) -> TrainerTimes | None:
    if not (analysis.rank.main.spans["kind"] == KIND_TRAINER).any():
        return None
    from iotrace.analysis.program.trainer import trainer_times

    return trainer_times(analysis)
