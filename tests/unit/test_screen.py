"""The first screen: what stands where, within any width, with no line that ends in a space."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console

from iotrace.analysis.results import (
    Collectives,
    Culprit,
    DataWait,
    Excluded,
    Failure,
    FileGroup,
    Fix,
    HostUse,
    Imbalance,
    LoaderResult,
    LockedRank,
    Lockstep,
    Overhead,
    PhasesMs,
    ProcessUse,
    RankBalance,
    RankReport,
    Recommendation,
    Report,
    SessionInfo,
    Startup,
    Steps,
    Straggler,
    System,
    Trust,
    Verdict,
)
from iotrace.analysis.verdict.worst_rank import of_worst
from iotrace.report.page.sections import ranks_table
from iotrace.report.screen import head_of, trust_text
from iotrace.report.terminal import print_report
from iotrace.report.views.ranks import ranks as views_of_ranks
from iotrace.report.words import file_facts
from iotrace.session.manifest import NotCaptured
from tests.support.results import unknown

NONE = Excluded(first=1, warmup=0, profiled=0)


def group(path: str, **known: Any) -> FileGroup:
    return unknown(FileGroup, **{"path": path, "kind": "file", "reads": 9, **known})


def rank(number: int = 0, **known: Any) -> RankReport:
    wait = unknown(
        DataWait,
        raw_ms=59.5,
        exposed_ms=59.5,
        exposed_source="cpu",
        raw_wait_fraction=0.44,
        verdict="highly input-bound",
        causes_ms={"decode": 54.7, "read": 1.4, "queued": 0.01, "transport": 3.4},
        by_loader=[],
        files=[],
        worst_batches=[],
    )
    steps = unknown(
        Steps, count=32, excluded=NONE, mean_ms=134.4, p95_ms=207.5, per_second=7.4, loop_seconds=725.0
    )
    loader = unknown(
        LoaderResult, id=0, kind="training", primary=True, dataset="D", wrapped=False, workers=1, batches=9,
        phases={}, epochs=1, failures=[],
    )  # fmt: skip
    found = unknown(
        RankReport,
        rank=number,
        host="node1",
        incarnation=0,
        startup=Startup(seconds=4.25),
        steps=steps,
        data_wait=wait,
        file_groups=[
            group("data/case_02.h5", ms=55.8, read_ms=1.4, decode_ms=54.4),
            group("data/rest/", kind="directory", members=3, read_bytes=8 << 20),
        ],
        loaders=[loader],
        regions=[],
        phases_ms=unknown(PhasesMs),
        system=unknown(System, gpus=[], processes=[], rss_peak_bytes=3 << 20),
    )
    return replace(found, **known)


VERDICT = Verdict(
    text="INPUT-BOUND 44 % of each step waits for data (59.5 of 134.4 ms)",
    banner="INPUT-BOUND",
    kind="input-bound",
    why="data/case_02.h5 is slow to decode: 91 % of the wait",
    file="data/case_02.h5",
    cause="decode",
    until=None,
    rank=0,
    fixes=[
        Fix(id="a", text="re-chunk that file", gain_ms_per_step=54.7, speedup=1.69),
        Fix(id="b", text="a longer text " * 6, gain_ms_per_step=2.0, speedup=1.01),
        Fix(id="c", text="who knows", gain_ms_per_step=None, speedup=None),
        Fix(id="d", text="not shown", gain_ms_per_step=1.0, speedup=None),
    ],
    trust=Trust(level="ok", reasons=["32 steps", "tracing <= 0.5 %"]),
)


def report(*ranks: RankReport, **known: Any) -> Report:
    session = unknown(
        SessionInfo, path="/data/session", argv=["python", "train.py"], exit_code=0, ended=True, failures=[]
    )
    whole = Report(
        schema_version=1,
        session=session,
        verdict=VERDICT,
        ranks=list(ranks),
        processes=[],
        imbalance=None,
        recommendations=[],
        not_captured=[],
        clocks=[],
    )
    return replace(whole, **known)


def screen(found: Report, width: int = 80, **options: Any) -> list[str]:
    printed = StringIO()
    print_report(found, Console(file=printed, width=width), **options)
    return printed.getvalue().splitlines()


def test_the_verdict_stands_first_and_what_to_type_last() -> None:
    assert screen(report(rank())) == [
        "INPUT-BOUND   44 % of each step waits for data (59.5 of 134.4 ms)",
        "Why    data/case_02.h5 is slow to decode: 91 % of the wait",
        "Fix    re-chunk that file                                    at most 1.7x faster",
        "       or a longer text a longer text a longer text a longer text a longer text",
        "       a longer text                                       at most 2.0 ms a step",
        "       or who knows",
        "       1 more: -v",
        "Trust  ok: 32 steps, tracing <= 0.5 %",
        "",
        "Step   134.4 ms (p95 207.5) · 7.4 steps/s   data wait 59.5 · rest 74.9",
        "Wait   decode 54.7 · transport 3.4 · read 1.4",
        "Files  data/case_02.h5 55.8 ms a step (decode 54.4, read 1.4)",
        "       3 others: 8.0 MiB read in all",
        "Ran    start-up 4.2 s · training 12 min · 1 worker · memory 3.0 MiB at most",
        "",
        "Next   iotrace report /data/session -v                       loader, system, I/O",
        "       iotrace compare /data/session AFTER                      when it is fixed",
    ]


def late() -> Imbalance:
    balance = [
        RankBalance(
            rank=number, steps=5, step_ms=100.0, compute_ms=20.0, communication_wait_ms=70.0 * (number != 1),
            data_wait_ms=0.0, other_ms=0.0,
        )
        for number in range(20)
    ]  # fmt: skip
    straggler = Straggler(
        rank=1,
        last_to_arrive=9,
        waited_for_ms=1.0,
        impact_pct=70.0,
        severity="critical",
        by_data_pct=90.0,
        kind=None,
        kind_ms=None,
    )
    matched = Collectives(matched=10, unmatched=0, skew_ms_mean=None, skew_ms_max=None)
    return unknown(
        Imbalance,
        ranks_seen=20,
        ranks=balance,
        spread={},
        collectives=matched,
        stragglers=[straggler],
        worst=[],
        late_kinds=[],
    )


def test_the_rank_that_is_late_stands_first_of_its_table() -> None:
    verdict = replace(VERDICT, kind="rank-late", banner="RANK LATE", text="RANK LATE rank 1 is late", rank=1)
    again = [rank(number, incarnation=2) for number in range(2)]
    found = report(*again, rank(1), imbalance=replace(late(), incarnation=2), verdict=verdict)
    shown = screen(found)
    heading = next(number for number, row in enumerate(shown) if row.split()[:2] == ["rank", "host"])
    rows = [" ".join(row.split()) for row in shown[heading + 1 :]]
    assert rows[0] == "late 1, restart 2 node1 134.4 59.5 44 % 0 % 20 % 90 %"
    assert rows[1] == "0, restart 2 node1 134.4 59.5 44 % 70 % 20 % 0 %"
    # Ranks were not compared in the start before: what is known of the last one does not stand there.
    assert rows[2] == "1 node1 134.4 59.5 44 % ? ? ?"
    many = screen(replace(found, imbalance=late(), ranks=[rank(number) for number in range(20)]))
    assert any("median of 20" in row for row in many)
    assert sum("node1" in row for row in many) == 10


def test_of_few_profiled_steps_no_other_rank_is_late_where_all_steps_tell() -> None:
    profiled = replace(late(), ranks_seen=2, ranks=late().ranks[:2])
    own = {"step_ms": 100.0, "parts_ms": {"data": 5.0, "evaluation": 0.0}}
    ranks = [LockedRank(rank=0, **own), LockedRank(rank=1, waits_ms=40.0, **own)]
    loops = unknown(
        Lockstep, steps=90, ranks=ranks, late_rank=0, wait_ms=40.0, wait_pct=40.0, late_by_ms={"data": 40.0},
        kind="data",
    )  # fmt: skip
    found = report(rank(0), rank(1), imbalance=profiled)
    assert "critical the others wait for rank 1: 70 %" in " ".join(
        " ".join(screen(found, verbose=True)).split()
    )
    found = replace(found, lockstep=loops)
    shown = " ".join(" ".join(screen(found, verbose=True)).split())
    assert "the others wait for rank 0: 40.0 ms a step" in shown
    assert "wait for rank 1" not in shown
    rows = {row.rank: row for row in views_of_ranks(found)[0].rows}
    assert (rows[0].waited_for_pct, rows[0].communication_wait_ms) == (40.0, None)
    assert (rows[1].waited_for_pct, rows[1].communication_wait_ms, rows[1].step_ms) == (None, 40.0, 100.0)
    table = ranks_table(found)
    assert table is not None
    assert "waits for other ranks of 90 steps, compute of 5 profiled steps" in table["caption"]
    table = ranks_table(replace(found, lockstep=None))
    assert table is not None
    assert "waits for other ranks of 5 profiled steps" in table["caption"]


def test_the_table_of_ranks_has_steps_with_the_evaluations_that_others_wait_for() -> None:
    own = {"step_ms": 268.8, "waits_ms": None}
    ranks = [
        LockedRank(rank=0, **own, parts_ms={"evaluation": 134.4}),
        LockedRank(rank=1, **own, parts_ms={"evaluation": 0.0}),
    ]
    loops = unknown(
        Lockstep, steps=90, ranks=ranks, late_rank=0, wait_ms=120.0, wait_pct=45.0,
        late_by_ms={"evaluation": 134.4}, kind="evaluation",
    )  # fmt: skip
    shown = " ".join(" ".join(screen(replace(report(rank(0), rank(1)), lockstep=loops))).split())
    assert "0 node1 268.8 59.5 22 %" in shown
    assert "1 node1 134.4 59.5 44 %" in shown  # it evaluates nothing: its step is what was measured
    assert "step: with evaluations; data: own waits for data" in shown


def test_a_mean_above_the_95th_percentile_has_a_word() -> None:
    steps = unknown(Steps, count=32, excluded=NONE, mean_ms=48.5, p95_ms=24.7)
    shown = screen(report(rank(steps=steps)))
    assert any("48.5 ms (p95 24.7, few long steps)" in row for row in shown)
    assert not any("few long steps" in row for row in screen(report(rank())))


def test_memory_that_processes_share_counts_once() -> None:
    processes = [unknown(ProcessUse, pid=number, role="main") for number in range(3)]
    known = unknown(System, gpus=[], processes=processes, rss_peak_bytes=9 << 30)
    shown = screen(report(rank(system=replace(known, pss_peak_bytes=2 << 30))))
    assert any("memory 2.0 GiB at most" in row and "RSS" not in row for row in shown)
    shown = screen(report(rank(system=known)))
    assert "RSS" in " ".join(shown)


def test_the_command_of_a_fix_stands_below_it() -> None:
    fixes = [replace(VERDICT.fixes[0], command="h5repack -l CHUNK=1 a b"), VERDICT.fixes[2]]
    shown = screen(report(rank(), verdict=replace(VERDICT, fixes=fixes)))
    at = next(number for number, row in enumerate(shown) if row.startswith("Fix"))
    assert shown[at + 1].split() == ["h5repack", "-l", "CHUNK=1", "a", "b"]


def test_the_long_report_names_the_views_that_show_something() -> None:
    shown = " ".join(" ".join(screen(report(rank()), verbose=True)).split())
    views = shown.partition(" views ")[2].partition(":")[0].split(", ")
    assert "ranks" in views
    assert not {"kernels", "snapshot", "startup"} & {*views}


def test_processes_are_named_by_what_differs_in_their_commands() -> None:
    commands = [["python", "-u", "/a/train.py", "--lr", "1", what] for what in ("prepare", "resume")]
    ranks = [rank(number, pid=70 + number, argv=argv) for number, argv in enumerate(commands)]
    shown = screen(report(*ranks))
    assert any(row.split()[:3] == ["70", "train.py", "prepare"] for row in shown)
    assert "Of process 70 (train.py prepare):" in shown
    alike = screen(report(*(replace(each, argv=commands[0]) for each in ranks)))
    assert not any("train.py prepare" in row for row in alike)  # nothing tells them apart


def test_a_job_of_many_ranks_is_a_screen_or_two() -> None:
    ranks = [rank(number, host=f"node{number // 8}") for number in range(1024)]
    slow = ranks[700]
    ranks[700] = replace(slow, data_wait=replace(slow.data_wait, raw_wait_fraction=0.9, raw_ms=120.0))
    missing = [NotCaptured(f"compute of rank {number}", "no device", None) for number in range(1024)]
    found = report(*ranks, not_captured=missing)
    shown = screen(found)
    assert len(shown) < 60
    tables = [" ".join(row.split()) for row in shown]
    first = tables[next(number for number, row in enumerate(tables) if row.startswith("rank host")) + 1]
    assert first.startswith("700 node87")
    assert any(row.startswith("most ") and "120.0" in row for row in tables)
    assert any(row.startswith("node87 8 ") and row.endswith("120.0 700") for row in tables)
    assert any("118 more hosts" in row for row in tables)
    assert any("operators and kernels of 1024 ranks" in row for row in tables)
    details = screen(found, verbose=True)
    assert any("1021 more ranks: choose them with --ranks" in row for row in details)


@pytest.mark.parametrize("width", [60, 80, 120, 200])
@pytest.mark.parametrize("verbose", [False, True])
def test_no_line_is_wider_than_the_screen_or_ends_in_a_space(width: int, verbose: bool) -> None:
    lost = NotCaptured("gpu", "NVML was not found on this machine", "install it")
    found = report(rank(), rank(1), imbalance=late(), not_captured=[lost])
    shown = screen(found, width, verbose=verbose, timeline=Path("/data/session/out/timeline.pftrace"))
    assert [row for row in shown if row != row.rstrip()] == []
    # What is typed or opened stays whole: it may be longer.
    assert [row for row in shown if len(row) > width and "/data/session" not in row] == []


def test_what_is_unknown_is_not_shown_as_a_figure() -> None:
    steps = unknown(Steps, count=0, excluded=NONE)
    wait = unknown(DataWait, causes_ms={}, by_loader=[], files=[], worst_batches=[])
    verdict = replace(
        VERDICT,
        kind="wait-unknown",
        banner="WAIT UNKNOWN",
        text="WAIT UNKNOWN no step was measured",
        fixes=[],
        why=None,
    )
    bare = rank(
        file_groups=[],
        startup=None,
        steps=steps,
        data_wait=wait,
        loaders=[],
        system=unknown(System, gpus=[], processes=[]),
    )
    shown = screen(report(bare, verdict=verdict))
    assert shown[:2] == ["WAIT UNKNOWN   no step was measured", "Trust  ok: 32 steps, tracing <= 0.5 %"]
    assert not any(character.isdigit() for row in shown[2:] for character in row)


def test_a_run_that_failed_says_until_when_and_its_stack_once() -> None:
    first = unknown(
        Failure,
        process=7,
        worker=1,
        role="loader worker",
        type="OSError",
        message="no",
        stack="Traceback:\nOSError: no",
    )
    again = replace(first, process=5, worker=None, role="rank", stack=f"In the loop:\n{first.stack}")
    verdict = replace(
        VERDICT,
        kind="failed",
        banner="FAILED",
        text="FAILED exit code 1 after 9 steps: OSError in worker 1 (pid 7)",
        why='x.h5: "no", batch 9',
        until="INPUT-BOUND, 44 % waited for data (decode, data/case_02.h5)",
        fixes=[],
    )
    found = report(rank(), verdict=verdict)
    found = replace(found, session=replace(found.session, exit_code=1, failures=[first, again]))
    shown = screen(found)
    assert shown[:3] == [
        "FAILED   exit code 1 after 9 steps: OSError in worker 1 (pid 7)",
        'Why    x.h5: "no", batch 9',
        "       Until then INPUT-BOUND, 44 % waited for data (decode, data/case_02.h5)",
    ]
    assert "message and stack" in shown[-1]
    whole = screen(found, verbose=True)
    assert "failure      worker 1 (pid 7): OSError: no" in whole
    assert "failure      the training process (pid 5): OSError: no" in whole
    assert whole.count("  OSError: no") == 1


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("killed", "End    unknown, because iotrace run was killed before the program ended"),
        ("unknown", "End    unknown: only node1 can tell whether it still runs"),
        ("running", None),
        ("ended", None),
    ],
)
def test_an_end_that_nobody_saw_stands_below_the_verdict(state: str, said: str | None) -> None:
    found = report(rank())
    shown = screen(replace(found, session=replace(found.session, state=state, host="node1")), 120)
    assert shown[2] == (said or shown[2])
    assert ("End  " in shown[2]) == (said is not None)


def test_a_device_that_idles_for_no_known_fix_has_where_to_look() -> None:
    verdict = replace(VERDICT, kind="device-idle", banner="DEVICE IDLE", fixes=[])
    shown = screen(report(rank(), verdict=verdict))
    assert "Fix    iotrace knows no fix for it; --view gaps has the longest idle times" in shown


def test_batches_that_lie_ready_beside_busy_cpus_ask_for_no_fix() -> None:
    def shown(ready: float) -> list[str]:
        host = unknown(HostUse, cpu_busy_fraction=1.0, cpu_saturated_fraction=1.0)
        found = rank()
        loader = replace(found.loaders[0], primary=True, workers=2, ready_in_turn_mean=ready)
        found = replace(found, system=replace(found.system, host=host), loaders=[loader])
        return screen(report(found, verdict=replace(VERDICT, cause="transport", fixes=[])), 120)

    assert not any(line.startswith("Fix") for line in shown(2.6))
    assert any(line.startswith("Fix") for line in shown(0.2))


def test_beside_other_programs_no_known_fix_asks_for_a_quiet_machine() -> None:
    reasons = ["other programs used 95 % of the CPUs"]
    trust = replace(VERDICT.trust, level="bad", reasons=reasons, codes=["IO702"])

    def fix(others: float) -> str:
        """Say what to do where others took so much of the CPUs."""
        host = unknown(HostUse, cpu_busy_fraction=1.0, cpu_saturated_fraction=1.0, others_cpu_fraction=others)
        found = rank()
        steps = replace(found.steps, thread_cpu_ms=70.0)
        found = replace(found, system=replace(found.system, host=host), steps=steps)
        shown = screen(report(found, verdict=replace(VERDICT, fixes=[], trust=trust)), 120)
        (row,) = [row for row in shown if row.startswith("Fix")]
        return row

    quiet = "Fix    iotrace knows no fix for it; repeat on a quiet machine; -v has loader, system and I/O"
    assert fix(0.95) == quiet
    # The loop would wait without them, too: the machine is not the reason.
    assert fix(0.3) == "Fix    iotrace knows no fix for it; -v has loader, system and I/O"


def test_a_narrow_table_of_ranks_has_whole_headings() -> None:
    shown = screen(report(rank(), rank(1), imbalance=late()), 60)
    head = next(number for number, row in enumerate(shown) if row.split()[:1] == ["rank"])
    assert " ".join(shown[head].split()) == "rank step ms data ms data for others late in"
    assert len(shown[head]) == len(shown[head + 1])


def test_a_step_is_split_into_its_phases_where_they_are_known() -> None:
    known = PhasesMs(forward=20.0, backward=40.0, optimizer=9.9, other=5.0)
    (row,) = [row for row in screen(report(rank(phases_ms=known)), 120) if row.startswith("Step")]
    assert row.endswith("   data wait 59.5 · forward 20.0 · backward 40.0 · optimizer 9.9 · other 5.0")
    partly = PhasesMs(forward=20.0, backward=None, optimizer=9.9, other=None)
    (row,) = [row for row in screen(report(rank(phases_ms=partly)), 120) if row.startswith("Step")]
    assert row.endswith("   data wait 59.5 · forward 20.0 · optimizer 9.9 · rest 45.0")
    unseen = rank(phases_ms=partly, data_wait=DataWait())  # the wait lies in the rest, then
    (row,) = [row for row in screen(report(unseen), 120) if row.startswith("Step")]
    assert row.endswith("   forward 20.0 · optimizer 9.9 · rest 104.5")


def test_slow_imports_that_can_be_helped_stand_where_the_start_is_much_of_the_run() -> None:
    def rows(loop_seconds: float, remedy: str = "keep the environment on a local disk") -> list[str]:
        imports = Culprit(
            id="imports", text="imports are 40.0 s", evidence={}, wait_ms=0.0, leads=False, remedy=remedy
        )
        one = rank(startup=Startup(seconds=60), culprits=[imports])
        one = replace(one, steps=replace(one.steps, loop_seconds=loop_seconds))
        shown = screen(report(one))
        return [row for row in shown if row.startswith("Start") or "local disk" in row]

    told = ["Start  imports are 40.0 s: keep the environment on a local disk"]
    assert (rows(600.0), rows(6000.0), rows(600.0, remedy="")) == (told, [], [])


def test_doubts_about_one_rank_stand_together() -> None:
    reasons = ["rank 0: A", "tracing: about 2 %", "rank 0: B", "rank 1: C"]
    assert trust_text("bad", reasons) == "rank 0: A, B; tracing: about 2 %; rank 1: C"


def test_a_gain_beyond_its_own_cause_says_where_the_rest_comes_from() -> None:
    def rows(cost_ms: float | None) -> list[str]:
        fix = Fix(id="a", text="re-chunk", gain_ms_per_step=54.7, speedup=1.69, cost_ms_per_step=cost_ms)
        found = report(rank(), verdict=replace(VERDICT, fixes=[fix]))
        shown = screen(found)
        # The first screen has the range alone.
        assert shown[[row.startswith("Fix") for row in shown].index(True) + 1].startswith("Trust")
        return [line.note for line in head_of(found).lines if line.label == "Fix"]

    told = "40.2 ms a step of waits for it, and 14.5 ms of waits for others, end with it"
    assert rows(40.2) == [told]
    assert rows(50.0) == [""]
    assert rows(None) == [""]


def test_the_first_screen_has_other_fixes_that_gain_much_alone() -> None:
    fixes = [
        Fix(id="a", text="re-chunk"),
        Fix(id="b", text="resize", is_minor=True),
        Fix(id="c", text="log less", joins="and"),
        Fix(id="d", text="decode once"),
    ]
    found = report(rank(), verdict=replace(VERDICT, fixes=fixes))
    short, whole = (
        [line.text for line in head_of(found, most=most).lines if line.label in ("Fix", "")]
        for most in (3, None)
    )
    assert short[-3:] == ["re-chunk", "and log less", "or decode once"]
    assert whole[-4:] == ["re-chunk", "or resize", "and log less", "or decode once"]


@pytest.mark.parametrize(
    ("argv", "codes", "again"),
    [
        (["python"], ["IO702"], "repeat on a quiet machine, with more steps"),
        (["python"], ["IO701"], "repeat with more steps"),
        ([], [], "trace more steps"),
    ],
)
def test_a_gain_that_is_not_told_has_what_would_tell_it(
    argv: list[str], codes: list[str], again: str
) -> None:
    doubt = Trust(level="bad", reasons=["1 step"], codes=codes)
    untold = replace(VERDICT, trust=doubt, fixes=[VERDICT.fixes[2]])
    advice = unknown(Recommendation, id="a", gain_ms_per_step=9.0, text="do", evidence={})
    found = report(rank(), verdict=untold, recommendations=[advice])
    found = replace(found, session=replace(found.session, argv=argv))
    (row,) = [row for row in screen(found, 120) if row.startswith("Trust")]
    assert row == f"Trust  bad: 1 step; gain unknown: {again}"
    traced = Trust(level="bad", reasons=["tracing took 20 % of a step: repeat with --io off"])
    calls = unknown(
        Overhead, spans=0, processes=1, least_pct_of_step=20.0, posix_calls=9, next_posix_call_us=1.0
    )
    found = replace(found, verdict=replace(untold, trust=traced), ranks=[rank(overhead=calls)])
    (row,) = [row for row in screen(found, 120) if row.startswith("Trust")]
    assert row.endswith(" of a step: repeat with --io off; gain unknown")


def test_files_are_counted_that_were_read_and_no_line_is_of_unknown_bytes() -> None:
    written = group("d/a.zarr", kind="store", members=9, members_read=4, read_bytes=1 << 20)
    mapped = group("d/csv", kind="directory", members=8, members_read=8, read_bytes=None)
    assert file_facts(rank(file_groups=[written])) == ["4 files: 1.0 MiB read in all"]
    assert file_facts(rank(file_groups=[written, mapped])) == ["12 files: ≥ 1.0 MiB read in all"]
    assert file_facts(rank(file_groups=[mapped])) == []


def test_code_of_the_loop_that_takes_most_of_a_step_is_in_the_why() -> None:
    text, figures = "9 of 10 ms is the loop's", {"other_ms": 9.0}
    code = Culprit(id="code-of-the-loop", text=text, evidence=figures, wait_ms=0.0, leads=False)
    wait = replace(rank().data_wait, raw_wait_fraction=0.01, raw_ms=1.0, verdict="not input-bound")
    found = of_worst([rank(data_wait=wait, culprits=[code])])
    assert found.kind == "not-input-bound"
    assert found.why == "9 of 10 ms is the loop's"
    assert "a faster loader" in (found.beside or "")


@pytest.mark.parametrize(
    ("evidence", "own_ms", "said"),
    [
        ({"other_ms": 40.0}, 40.0, "; the loop's own code takes 40 % of each step"),
        ({"asleep_ms": 35.0}, 40.0, ""),  # perhaps in place of a device
        ({"other_ms": 25.0}, 25.0, ""),  # the wait is more
        (None, 40.0, ""),  # no code of the program: a device, or what nobody knows
    ],
)
def test_the_headline_of_a_wait_names_own_code_that_takes_more(
    evidence: dict[str, float] | None, own_ms: float, said: str
) -> None:
    wait = replace(rank().data_wait, raw_wait_fraction=0.3, raw_ms=30.0, verdict="highly input-bound")
    code = Culprit(id="code-of-the-loop", text="", evidence=evidence or {}, wait_ms=0.0, leads=False)
    one = rank(data_wait=wait, culprits=[] if evidence is None else [code])
    steps, phases = replace(one.steps, mean_ms=100.0), replace(one.phases_ms, other=own_ms)
    found = of_worst([replace(one, steps=steps, phases_ms=phases)])
    assert (found.kind, found.text) == (
        "input-bound",
        f"30 % of each step waits for data (30.0 of 100.0 ms){said}",
    )


def test_a_loop_that_sleeps_is_not_said_to_work() -> None:
    about = {"raw_wait_fraction": 0.01, "raw_ms": 1.0, "exposed_ms": 1.0, "verdict": "not input-bound"}
    one = rank(data_wait=replace(rank().data_wait, **about))
    code = Culprit(
        id="code-of-the-loop", text="it sleeps", evidence={"asleep_ms": 35.0}, wait_ms=0.0, leads=False
    )
    one = replace(one, steps=replace(one.steps, mean_ms=100.0), culprits=[code])
    found = of_worst([replace(one, phases_ms=replace(one.phases_ms, other=40.0))])
    assert found.text.endswith("(1.0 of 100.0 ms); the loop sleeps for 35 % of each step")


def test_a_healthy_loop_says_where_its_step_goes() -> None:
    about = {"raw_wait_fraction": 0.01, "raw_ms": 1.0, "exposed_ms": 1.0, "verdict": "not input-bound"}
    one = rank(data_wait=replace(rank().data_wait, **about))
    known = {"steps": replace(one.steps, mean_ms=100.0)}
    for backward, said in ((63.0, "backward takes 63 % of a step"), (30.0, None)):
        phases = replace(one.phases_ms, forward=28.0, backward=backward)
        found = of_worst([replace(one, phases_ms=phases, **known)])
        assert (found.why, found.beside) == ("a faster loader can save at most 1.0 ms a step", said)


def test_of_several_commands_the_one_that_loses_most_time_is_judged() -> None:
    """A short evaluation that only waits loses less than a long training that waits for half of its time."""
    argv = [["python", "/a/job.py", what] for what in ("eval", "train")]
    whole, half = (replace(rank().data_wait, raw_wait_fraction=share) for share in (0.99, 0.6))
    short, long = (replace(rank().steps, loop_seconds=seconds) for seconds in (1.0, 10.0))
    ranks = [
        rank(0, pid=70, argv=argv[0], data_wait=whole, steps=short),
        rank(1, pid=71, argv=argv[1], data_wait=half, steps=long),
    ]
    found = of_worst(ranks)
    assert found.rank is ranks[1]
    assert found.text.startswith("job.py train: 60 %")
    in_step = [replace(each, pid=None, argv=[]) for each in ranks]  # ranks of one job wait for each other
    assert of_worst(in_step).rank is in_step[0]
