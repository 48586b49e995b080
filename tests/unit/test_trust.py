"""How far figures can be relied on: each doubt turns up where its bound says; what is not known is told."""

from __future__ import annotations

import json
import struct
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from iotrace.analysis.host.disturbance import is_disturbed
from iotrace.analysis.host.measured import MeasuredTime
from iotrace.analysis.host.others import others_and_stolen
from iotrace.analysis.loop.measured import summarise
from iotrace.analysis.loop.step_table import Step
from iotrace.analysis.results import (
    ClockInfo,
    ClockSet,
    DataWait,
    Excluded,
    Gpu,
    HostUse,
    Io,
    Overhead,
    ProcessCoverage,
    ProcessUse,
    RankReport,
    Recommendation,
    SessionInfo,
    System,
)
from iotrace.analysis.verdict.failed import trust_after
from iotrace.analysis.verdict.gains import fixes_of
from iotrace.analysis.verdict.trust import trust_of, trust_of_traces
from iotrace.report.screen import trust_text
from iotrace.session import names
from iotrace.session.manifest import NotCaptured
from iotrace.sources.clocks.session_clock import Clock
from iotrace.sources.processes import SPAN_DTYPE, Process
from iotrace.sources.records import Identity, Tick
from iotrace.sources.samples import read_sidecars
from iotrace.sources.telemetry import read_telemetry
from tests.support.results import unknown
from tests.support.tables import steps_of

MS, SECOND = 1_000_000, 1_000_000_000
RUN = unknown(SessionInfo, path="s", argv=["python"], exit_code=0, ended=True, complete=True, failures=[])
EXCLUDED = Excluded(first=1, warmup=0, profiled=0)


def host(**known: Any) -> HostUse:
    quiet = {
        "cpu_busy_fraction": 0.4,
        "cpu_saturated_fraction": 0.0,
        "others_cpu_fraction": 0.01,
        "cpu_stolen_fraction": 0.0,
    }
    return unknown(HostUse, **{"pressure_fraction": {}, "cgroup_pressure_fraction": {}, **quiet, **known})


def rank(number: int = 0, *, lengths_ms: Any = (100.0, 101.0) * 16, **known: Any) -> RankReport:
    """A rank with 32 steps of some 100 ms, half of which it waits, on a machine with free CPUs."""
    none = {"by_loader": [], "files": [], "worst_batches": []}
    causes = {"decode": 50.0, "unknown": known.pop("unknown_ms", 0.0)}
    fraction = known.pop("fraction", 0.5)
    wait = unknown(DataWait, raw_ms=50.0, raw_wait_fraction=fraction, causes_ms=causes, **none)
    wait = replace(wait, raw_wait_fraction_ci95=known.pop("fraction_ci95", [0.49, 0.51]))
    if known.pop("exposed_known", True) and fraction is not None:
        wait = replace(wait, exposed_ms=50.0, exposed_source="cpu", stall_fraction=fraction)
        wait = replace(wait, stall_fraction_ci95=wait.raw_wait_fraction_ci95)
    gpus = known.pop("gpus", [])
    system = unknown(System, gpus=gpus, processes=[], host=known.pop("host", host()))
    cost = known.pop("cost", 0.4)
    overhead = unknown(
        Overhead, spans=1, processes=1, estimated_pct_of_step=cost, least_pct_of_step=known.pop("least", 0.1)
    )
    return unknown(
        RankReport,
        rank=number,
        incarnation=0,
        loaders=[],
        regions=[],
        steps=summarise(
            np.array([round(length * MS) for length in lengths_ms], np.int64),
            np.empty(0, np.int64),
            EXCLUDED,
            99,
        ),
        data_wait=wait,
        system=system,
        overhead=overhead,
        **known,
    )


def told(*ranks: RankReport, about: SessionInfo = RUN, **more: Any) -> tuple[str, list[str]]:
    found = trust_of(about, ranks, **more)
    return found.level, found.reasons


def test_a_rank_that_trains_on_what_others_send_raises_no_doubt_about_its_loader() -> None:
    sends = rank()
    given = rank(1, fraction=None, host=host(others_cpu_fraction=0.9, cpu_busy_fraction=1.0))
    given = replace(given, data_wait=replace(given.data_wait, raw_ms=None))
    assert "rank 1: the data wait was not seen" in told(sends, given)[1]
    assert told(sends, given, fed=[1])[0] == "ok"


def test_memory_that_came_back_from_swap_is_a_doubt() -> None:
    def swapped(back: int | None, own: int) -> tuple[str, list[str]]:
        one = rank(host=host(swap_in_bytes=back))
        use = unknown(ProcessUse, pid=1, role="main", swap_bytes_peak=own)
        return told(replace(one, system=replace(one.system, processes=[use])))

    assert swapped(300 << 20, 500 << 20) == (
        "caution",
        ["memory in swap: 300.0 MiB of it came back in the steps"],
    )
    assert swapped(300 << 20, 0)[0] == "ok"  # another program's
    assert swapped(0, 500 << 20)[0] == "ok"  # nobody asks for it
    assert swapped(None, 500 << 20)[0] == "ok"


def test_good_figures_say_what_they_rest_on() -> None:
    assert told(rank()) == ("ok", ["32 steps", "tracing <= 0.4 %", "the machine had free cores"])
    busy = host(cpu_busy_fraction=0.97)
    assert told(rank(host=busy))[1][-1] == "no other program was busy"


@pytest.mark.parametrize(
    ("changed", "level", "reason"),
    [
        ({"lengths_ms": [100.0, 101.0] * 7}, "caution", "14 steps measured"),
        ({"lengths_ms": [100.0, 101.0, 100.0]}, "bad", "3 steps measured"),
        ({"lengths_ms": []}, "bad", "no step was measured"),
        ({"host": None}, "caution", "not known: whether other programs were busy"),
        (
            {"host": host(others_cpu_fraction=None)},
            "caution",
            "not known: whether other programs were busy",
        ),
        (
            {"host": host(others_cpu_fraction=0.3)},
            "caution",
            "other programs used 30 % of the CPUs",
        ),
        (
            {"host": host(cpu_busy_fraction=0.95, others_cpu_fraction=0.06)},
            "caution",
            "other programs used 6 % of the CPUs: without them a step takes 93.1 to 100.5 ms",
        ),
        (
            {"host": host(cpu_saturated_fraction=0.5, others_cpu_fraction=0.5)},
            "bad",
            "other programs used 50 % of the CPUs: without them a step takes 44.0 to 100.5 ms",
        ),
        (
            {"host": host(cpu_stolen_fraction=0.25)},
            "bad",
            "the hypervisor took 25 % of the CPUs' time",
        ),
        (
            {"host": host(cpu_throttled_fraction=0.34)},
            "caution",
            "the CPU quota held the job back in 34 % of its periods",
        ),
        ({"unknown_ms": 12.0}, "caution", "24 % of the wait is not explained"),
        ({"unknown_ms": 30.0}, "bad", "60 % of the wait is not explained"),
        ({"fraction": None}, "caution", "the data wait was not seen"),
        ({"fraction_ci95": [0.12, 0.27]}, "caution", "the wait is 12 to 27 % of a step (95 %)"),
        ({"cost": None}, "caution", "tracing cost unknown: it was not measured after the run"),
        ({"cost": 4.0, "least": 1.0}, "caution", "tracing took 1 to 4 % of a step"),
        ({"cost": 40.0, "least": 5.0}, "caution", "tracing took 5 to 40 % of a step"),
        ({"cost": 40.2, "least": 40.0}, "bad", "tracing took about 40 % of a step"),
        ({"cost": 40.0, "least": 12.0}, "bad", "tracing took 12 to 40 % of a step"),
        (
            {"lengths_ms": [100.0 + step for step in range(32)]},
            "caution",
            "later steps are 15 % longer than earlier ones",
        ),
    ],
)
def test_a_doubt_is_told_from_its_bound_on(changed: dict[str, Any], level: str, reason: str) -> None:
    assert told(rank(**changed))[0] == level
    assert reason in told(rank(**changed))[1]


@pytest.mark.parametrize(
    "fine",
    [
        {"host": host(others_cpu_fraction=0.2)},  # some CPUs are free
        {"host": host(cpu_busy_fraction=1.0, others_cpu_fraction=0.04)},
        {"host": host(cpu_throttled_fraction=0.05)},
        {"unknown_ms": 9.0},
        {"fraction": 0.01, "fraction_ci95": [0.005, 0.02], "unknown_ms": 49.0},  # of a wait that is none
        {"cost": 1.9},
    ],
)
def test_below_its_bound_nothing_is_doubted(fine: dict[str, Any]) -> None:
    assert told(rank(**fine))[0] == "ok"


def test_steps_that_vary_say_how_well_their_mean_is_known() -> None:
    lengths_ms = [40.0, 300.0, 60.0, 50.0, 45.0, 55.0, 250.0, 40.0] * 4
    level, reasons = told(rank(lengths_ms=lengths_ms))
    assert level == "caution"
    (reason,) = reasons
    assert reason.startswith("steps vary: mean 105.0 ± ")
    assert reason.endswith("(p95 is 5.7x the median)")


def test_a_device_at_its_power_cap_works_as_it_should() -> None:
    def gpu(**reasons: float) -> Gpu:
        return unknown(Gpu, index=0, uuid="", name="A", throttle_reasons=reasons)

    assert told(rank(gpus=[gpu(**{"power cap": 0.9})]))[0] == "ok"
    level, reasons = told(rank(gpus=[gpu(**{"power cap": 0.9, "thermal (hardware)": 0.4})]))
    assert (level, reasons) == ("caution", ["GPU 0 was slowed down 40 % of the time (thermal (hardware))"])


def test_what_was_not_traced_counts_where_it_is_more_than_code_and_pipes() -> None:
    def io(megabytes: int, of_steps: int | None = None) -> Io:
        read = ProcessCoverage(
            pid=1, role="main", coverage=0.2, traced_bytes=None, kernel_bytes=megabytes << 20
        )
        none = {"calls": 1, "bytes": 1, "ms_total": 1.0, "files": []}
        found = Io(coverage=0.2, unseen_because="numpy.load", processes=[read], **none)  # type: ignore[arg-type]
        if of_steps is None:
            return found
        processes = [replace(read, steps_kernel_bytes=of_steps << 20)]
        return replace(found, data_coverage=0.2, data_coverage_of_steps=True, processes=processes)

    assert told(rank(io=io(5)))[0] == "ok"
    untraced = "80 % of the bytes read were not traced: some of decode may be reading"
    assert told(rank(io=io(50))) == ("caution", [untraced])
    assert told(rank(io=io(50, of_steps=1)))[0] == "ok"  # the rest was read before the steps
    assert told(rank(io=io(50, of_steps=50)))[0] == "caution"


def test_idle_time_of_a_few_profiled_steps_is_said_to_be_of_these() -> None:
    def of(steps: int) -> RankReport:
        known = rank()
        return replace(
            known, data_wait=replace(known.data_wait, exposed_source="kernels", exposed_steps=steps)
        )

    assert told(of(16))[0] == "ok"
    assert told(of(4)) == ("caution", ["whether the accelerator idles is known only for 4 profiled steps"])


def test_the_worst_rank_is_named_and_the_worst_reason_comes_first() -> None:
    bad = host(cpu_busy_fraction=1.0, others_cpu_fraction=0.5)
    level, reasons = told(rank(0, cost=3.0), rank(1, host=bad), rank(2))
    assert level == "bad"
    assert reasons == [
        "rank 1: other programs used 50 % of the CPUs: without them a step takes 44.0 to 100.5 ms",
        "rank 0: tracing took up to 3 % of a step",
    ]
    assert told(rank(0, host=bad), rank(1, host=bad))[1] == [reasons[0].removeprefix("rank 1: ")]


def test_others_whose_cost_was_counted_are_no_more_than_a_caution() -> None:
    one = rank(host=host(cpu_busy_fraction=1.0, others_cpu_fraction=0.5))
    main = unknown(ProcessUse, pid=1, role="main", run_delay_pct_mean=2.0)
    system = replace(one.system, cpus=2, processes=[main])
    wait = replace(one.data_wait, without_cpu_ms={"decode": 40.0}, queueing_ms=44.0)
    counted = replace(one, system=system, data_wait=wait)
    alone = "other programs used 50 % of the CPUs: without them a step takes 47.7 to 100.5 ms"
    wait_text = "without other programs the wait is 11 to 51 % of a step"
    assert told(counted) == ("caution", [alone, wait_text])
    assert told(one)[0] == "bad"  # nobody counted
    item = Recommendation(
        id="decode-bound", severity="high", text="", evidence={}, gain_ms_per_step=50.0, remedy="do", rank=0
    )
    (fix,) = fixes_of([item], [counted], trust_of(RUN, [counted]))
    assert fix.gain_ms_per_step == 50.0


@pytest.mark.parametrize("lengths_ms", [[], [100.0, 101.0], [100.0, 101.0] * 16])
def test_beside_a_certain_failure_trust_is_a_caution_at_most(lengths_ms: list[float]) -> None:
    one = rank(lengths_ms=lengths_ms, unknown_ms=40.0)
    assert told(one)[0] == "bad"
    assert trust_after(trust_of(RUN, [one]), [one]).level == "caution"


def test_a_rank_without_steps_is_told_beside_those_that_have_some() -> None:
    without = rank(lengths_ms=[]), rank(1, lengths_ms=[])
    assert told(rank(), without[1]) == ("caution", ["rank 1: no step was measured"])
    assert told(*without)[0] == "bad"


def test_what_the_run_lost_is_told() -> None:
    lost = [NotCaptured("the end of main (pid 7)", "killed"), NotCaptured("part of the POSIX calls", "cut")]
    both = "lost: the end of main (pid 7) and part of the POSIX calls"
    assert told(rank(), losses=[*lost, lost[1]]) == ("caution", [both])
    lost.append(NotCaptured("part of main (pid 7)", "cut"))
    assert told(rank(), losses=lost)[1] == ["lost: the end of main (pid 7) and 2 other parts"]
    assert told(rank(), about=replace(RUN, ended=False))[1] == ["the end of the run was not seen"]


def test_clocks_are_doubted_where_they_were_not_compared_or_are_vague() -> None:
    def clock(name: str, bound_ns: int | None, *by_ns: int) -> ClockInfo:
        steps = [ClockSet(at_ns=0, by_ns=each) for each in by_ns]
        return ClockInfo(source="agent", host=name, kind="", offset_ns=0, bound_ns=bound_ns, set=steps)

    one, far = clock("a", 1000), clock("b", None)
    assert told(rank(), clocks=[one])[0] == "ok"
    assert told(rank(), clocks=[one, far]) == ("caution", ["the clocks of 2 hosts were not compared"])
    assert told(rank(), clocks=[clock("a", 6 * MS)])[1] == ["times of POSIX calls are known to ± 6.0 ms"]
    was_set = clock("a", 1000, 2500 * MS)
    assert told(rank(), clocks=[was_set])[1] == ["a clock was set by 2500.0 ms during the run (undone)"]


def test_on_bad_figures_no_gain_is_promised() -> None:
    item = Recommendation(
        id="decode-bound", severity="high", text="", evidence={}, gain_ms_per_step=50.0, remedy="do", rank=0
    )
    good, bad = rank(), rank(unknown_ms=30.0)
    (fix,) = fixes_of([item], [good], trust_of(RUN, [good]))
    assert fix.gain_ms_per_step == 50.0
    (fix,) = fixes_of([item], [bad], trust_of(RUN, [bad]))
    assert (fix.text, fix.gain_ms_per_step, fix.speedup) == ("do", None, None)


def test_bare_traces_say_what_they_do_not_hold() -> None:
    one = rank(lengths_ms=[100.0] * 5)
    found = trust_of_traces([one], [], complete=True)
    assert (found.level, found.reasons) == (
        "caution",
        ["5 steps", "no shapes or stacks recorded", "no file is known"],
    )
    assert "no stacks recorded" in trust_of_traces([one], ["shapes"], complete=True).reasons
    assert "part of a trace was lost" in trust_of_traces([one], [], complete=False).reasons


def test_disturbed_is_a_machine_whose_cpus_others_took() -> None:
    assert is_disturbed(host(cpu_busy_fraction=1.0, others_cpu_fraction=0.2))
    assert is_disturbed(host(cpu_stolen_fraction=0.2))
    assert not is_disturbed(host(others_cpu_fraction=0.5))
    assert not is_disturbed(None)


def test_the_screen_has_the_worst_reasons_and_counts_the_others() -> None:
    assert trust_text("ok", ["32 steps", "a", "b"], most=3) == "32 steps, a, b"
    doubts = ["a", "b", "c", "d", "e"]
    assert trust_text("bad", doubts, "gain unknown: repeat", 3) == (
        "a; b; c; 2 more with -v; gain unknown: repeat"
    )


# --- other programs' CPU time ---

_SAMPLE = struct.Struct(names.SAMPLE_FORMAT).pack


def sampled(
    tmp_path: Path, busy: list[tuple[int, int]], job_ms: list[int], stolen: int = 0
) -> tuple[Any, ...]:
    """What a sidecar left of two CPUs, second by second: ticks busy, and a job's CPU time so far."""
    directory = tmp_path / names.TELEMETRY / "n-1"
    directory.mkdir(parents=True)
    lines: list[dict[str, Any]] = [
        {"type": "sampler", "pid": 1, "node": "n", "clock": [0, 0, 5], "interval_ns": SECOND},
        {"type": "process", "number": 0, "pid": 7, "start_ns": 0},
    ]
    for second in range(len(busy) + 1):
        record = {"type": "system", "sampler_cpu_ns": 0, "clock": [second * SECOND, second * SECOND, 5]}
        if second:
            first, other = busy[second - 1]
            record["cpus"] = {"0": [first, 0, 100 - first], "1": [other, 0, 100 - other]}
            record["stolen_ticks"] = stolen
        lines.append(record)
    (directory / names.RECORDS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    unused = [0] * (len(names.SAMPLE_FIELDS) - 4)
    rows = [_SAMPLE(second * SECOND, 0, 1, used * MS, *unused) for second, used in enumerate(job_ms)]
    (directory / names.SAMPLES).write_bytes(b"".join(rows))
    (telemetry,) = read_telemetry(read_sidecars(tmp_path))
    identity = Identity(format=1, pid=7, ppid=1, role="main", clock=(0, 0, 1), node="n")
    ticks = [Tick(clock=(3 * SECOND, 3 * SECOND, 1), cpu_ns=2400 * MS)] if len(job_ms) < 4 else []
    main = Process(identity, Clock([[0, 0, 1]]), ticks, np.zeros(0, dtype=SPAN_DTYPE), {})
    return types.SimpleNamespace(processes=[main]), main, telemetry


def measured(start_s: int, end_s: int) -> MeasuredTime:
    return MeasuredTime(steps_of([Step(None, start_s * SECOND, end_s * SECOND)]))


def test_others_used_what_the_job_did_not(tmp_path: Path) -> None:
    # The job uses 800 ms of each second of two CPUs; both are busy for 1.6 s of it, then for 1 s.
    session, main, telemetry = sampled(tmp_path, [(80, 80), (60, 40), (60, 40)], [0, 800, 1600, 2400])
    assert others_and_stolen(session, main, telemetry, measured(0, 1))[0] == pytest.approx(0.4)
    assert others_and_stolen(session, main, telemetry, measured(1, 3))[0] == pytest.approx(0.1)
    assert others_and_stolen(session, main, telemetry, measured(0, 9))[0] is None  # not sampled for so long


def test_the_last_account_of_a_process_is_its_agents(tmp_path: Path) -> None:
    session, main, telemetry = sampled(tmp_path, [(80, 80), (60, 40), (60, 40)], [0, 800, 1600])
    assert others_and_stolen(session, main, telemetry, measured(2, 3))[0] == pytest.approx(0.1)


def test_stolen_time_is_no_programs(tmp_path: Path) -> None:
    session, main, telemetry = sampled(tmp_path, [(90, 90)] * 3, [0, 800, 1600, 2400], stolen=36)
    others, stolen = others_and_stolen(session, main, telemetry, measured(0, 3))
    assert (others, stolen) == (pytest.approx(0.9 - 0.18 - 0.4), pytest.approx(0.18))


def test_without_the_jobs_own_account_others_are_not_known(tmp_path: Path) -> None:
    session, main, telemetry = sampled(tmp_path, [(80, 80)] * 3, [])
    assert others_and_stolen(session, main, telemetry, measured(0, 3))[0] is None
