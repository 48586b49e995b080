"""What is known of a rank beyond its report: what rules on its surroundings rest on."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from iotrace.analysis.host.measured import MeasuredTime
from iotrace.analysis.intervals import Coverage, union
from iotrace.analysis.program.copied_memory import copied_bytes
from iotrace.analysis.program.full_memory import memory_limit_bytes, read_again_bytes, slept_for_swap
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import RankReport, System
from iotrace.analysis.storage.read_by_each import ReadByEach, read_by_each
from iotrace.analysis.wait.asleep import sleep_outside_waits
from iotrace.analysis.wait.collectives import Collectives, collectives_of_loop
from iotrace.analysis.wait.cpus import asleep_for_pool, decoding_without_cpu, queueing_ms, samples_made
from iotrace.analysis.wait.data_wait import MODERATELY_PERCENT, bound_together
from iotrace.analysis.wait.interpreter import LoopTurns, loop_turns
from iotrace.analysis.wait.loop_io import LoopWrites, loop_writes
from iotrace.session.names import KIND_REDUCTION, OF_GRADIENTS, OPTIMIZER
from iotrace.sources.records import DebugSwitches, Threads

TOLD, MAIN = 0.25, 0.5  # of the data wait: what is worth telling, and what is a main cause
_QUEUES = 0.1  # of a step: so long the training thread has no CPU
_BUSY = 0.9  # of the time of the CPUs beside the bound ones


class RankFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's report, and figures of its surroundings; None is unknown.

    `variables` are those that bind threads to CPUs. `cpus_beside_busy`: the CPUs that bound processes may
    not use were busy. `cpu_gain_ms` bounds what a step loses without the waits for a CPU. `undecoded` is
    the share of decoding in which zarr's threads had no CPU, `asleep_for_pool` that of the samples' making
    in which their threads slept for a library's. `read_again_bytes` came from storage though it had been in
    memory; `limit_bytes` is the memory that the control group may use. `slept_for_swap` is the share of the
    samples' making in which their threads slept for memory in swap. `sampled`: the host's memory was.
    `writes` is what the training thread wrote in its steps, `collectives` its waits in collectives there,
    outside of its phases and data waits. `copied_bytes` is what each forked worker copied of the
    training process's memory, at least. `read_by_each` are files that each worker reads.
    `reduced` is the share of the loop's steps in which DDP reduces gradients, `updated` that in which an
    optimizer steps; `unused_ms` a step is reduced in those without one.
    `switches` are those for debugging that were on, each with the line that names it, if that is known.
    `asleep`: how long the training thread is in ``time.sleep`` in each step beside its data waits, in ms, and
    at which line. `made_asleep` is the share of the samples' making in which their threads slept. `turns`:
    what it waits beside its data waits for the interpreter, and whose threads have it.
    """

    report: RankReport
    variables: dict[str, str] = {}
    cpus_beside_busy: bool = False
    cpu_gain_ms: float | None = None
    undecoded: float | None = None
    asleep_for_pool: float | None = None
    sampled: bool = True
    read_again_bytes: float | None = None
    limit_bytes: int | None = None
    slept_for_swap: float = 0.0
    writes: LoopWrites | None = None
    collectives: Collectives = Collectives()
    copied_bytes: list[int] = []
    read_by_each: ReadByEach | None = None
    reduced: float = 0.0
    updated: float = 0.0
    unused_ms: float = 0.0
    switches: dict[str, str] = {}
    asleep: tuple[float, str] = (0.0, "")
    made_asleep: float | None = None
    turns: LoopTurns = LoopTurns()

    def is_significant(self, cost_ms: float) -> bool:
        """Whether that is a quarter of the data wait or more, and 5 % of a step."""
        wait_ms, step_ms = self.report.data_wait.raw_ms, self.report.steps.mean_ms
        if not wait_ms or not step_ms:
            return False
        return cost_ms >= TOLD * wait_ms and 100 * cost_ms >= MODERATELY_PERCENT * step_ms

    def is_main_cause(self, cost_ms: float) -> bool:
        """Whether that is half of the data wait or more: a verdict then names it before the cause."""
        return cost_ms >= MAIN * (self.report.data_wait.raw_ms or 0.0)

    @property
    def without_cpu_ms(self) -> float:
        """The data wait in which its makers were ready to run, and had no CPU."""
        return sum((self.report.data_wait.without_cpu_ms or {}).values())

    @property
    def lacks_cpus(self) -> bool:
        """Whether that wait is worth a word."""
        return self.is_significant(self.without_cpu_ms)

    @property
    def loop_queues_ms(self) -> float:
        """How long the loop queues for a CPU in a step, at most, where workers are bound to its CPUs."""
        system, steps = self.report.system, self.report.steps
        found = bound_together(system.processes)
        main = None if found is None else next((each for each in found[1] if each.role == "main"), None)
        if main is None or not steps.mean_ms:
            return 0.0
        if steps.thread_run_delay_ms is not None:
            return min(steps.mean_ms, steps.thread_run_delay_ms)
        return min(1.0, (main.run_delay_pct_mean or 0.0) / 100) * steps.mean_ms

    @property
    def loop_lacks_cpus(self) -> bool:
        """Whether that is worth a word."""
        return self.loop_queues_ms >= _QUEUES * (self.report.steps.mean_ms or math.inf)


def rank_facts(analysis: RankAnalysis, report: RankReport) -> RankFacts:
    """Look at the surroundings of a rank, as far as its waits make that worth while."""
    telemetry = analysis.telemetry
    facts = RankFacts(
        report=report,
        undecoded=decoding_without_cpu(analysis, report),
        asleep_for_pool=asleep_for_pool(analysis, report),
        sampled=telemetry is not None,
        read_again_bytes=read_again_bytes(analysis),
        limit_bytes=None if telemetry is None else memory_limit_bytes(telemetry),
        slept_for_swap=slept_for_swap(analysis, report),
        writes=loop_writes(analysis),
        collectives=collectives_of_loop(analysis),
        copied_bytes=copied_bytes(analysis),
        read_by_each=read_by_each(analysis, report.io, report.sample_calls),
        switches=_switches(analysis),
        asleep=sleep_outside_waits(analysis),
        made_asleep=None if analysis.source is None else samples_made(analysis, analysis.source)[0],
        turns=loop_turns(analysis, report),
        **_reductions(analysis),
    )
    if not (facts.lacks_cpus or facts.loop_lacks_cpus):
        return facts
    return msgspec.structs.replace(
        facts,
        variables=next((each.variables for each in analysis.rank.main.of_type(Threads)), {}),
        cpus_beside_busy=_are_other_cpus_busy(analysis, report.system),
        cpu_gain_ms=_cpu_gain_ms(analysis, report),
    )


def _reductions(analysis: RankAnalysis) -> dict[str, Any]:
    """In which share of the measured steps DDP reduces gradients, and an optimizer steps."""
    kept, main = analysis.kept, analysis.rank.main
    named = {text: number for number, text in main.texts.items()}
    spans, phases = main.spans, analysis.phase_spans
    own = spans[(spans["kind"] == KIND_REDUCTION) & (spans["name"] == named.get(OF_GRADIENTS, -1))]
    updates = phases[phases["name"] == named.get(OPTIMIZER, -1)]
    if not len(kept) or not len(own) or not len(updates):
        return {}
    starts, ends = kept["start_ns"], kept["end_ns"]
    held = [
        Coverage(*union(each["start_ns"], each["start_ns"] + each["duration_ns"])).within(starts, ends)
        for each in (own, updates)
    ]
    return {
        "reduced": float((held[0] > 0).mean()),
        "updated": float((held[1] > 0).mean()),
        "unused_ms": float(held[0][held[1] == 0].sum()) / len(kept) / 1e6,
    }


def _switches(analysis: RankAnalysis) -> dict[str, str]:
    paths = analysis.session.paths
    found: dict[str, str] = {}
    for record in analysis.rank.main.of_type(DebugSwitches):
        for name, place in record.places.items():
            file, _, line = place.rpartition(":")
            found[name] = f"{paths.shown(file)}:{line}" if place else ""
    return found


def _are_other_cpus_busy(analysis: RankAnalysis, system: System) -> bool:
    """Whether the CPUs that the bound processes may not use were busy, as far as they were sampled."""
    found, telemetry = bound_together(system.processes), analysis.telemetry
    if found is None or telemetry is None:
        return False
    host = telemetry.host
    columns = [column for column, cpu in enumerate(host.cpus) if cpu not in found[0]]
    if not columns:
        return False
    mean = MeasuredTime(analysis.kept).mean_share(host.time_ns, host.busy[:, columns].mean(axis=1))
    return mean is not None and mean >= _BUSY


def _cpu_gain_ms(analysis: RankAnalysis, report: RankReport) -> float | None:
    """Bound what a step loses: a replay without the waits for a CPU, and the work that CPUs have to do."""
    system, step_ms = report.system, report.steps.mean_ms or 0.0
    gain_ms = queueing_ms(analysis, transport=False)
    if gain_ms is None:
        return None
    # All of the host's are a bound whatever binds the job to fewer, and however many others take.
    cpus = max(system.cpus_online or 0, len(system.cpus_usable or []))
    if system.cpu_pct_mean is not None and cpus:
        gain_ms = min(gain_ms, max(0.0, step_ms - step_ms * system.cpu_pct_mean / 100 / cpus))
    return gain_ms
