"""The verdict over a job: what holds for all its ranks, why, and what each fix can save."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from iotrace.analysis.results import (
    Accelerator,
    Account,
    Amplification,
    ChunkedArray,
    Collectives,
    Culprit,
    DataWait,
    Excluded,
    Failure,
    Feeding,
    FileCost,
    FileGroup,
    Fix,
    GainRow,
    HostUse,
    HotLine,
    IdlePart,
    IdleTime,
    Imbalance,
    KernelCategory,
    LoaderResult,
    LoaderWait,
    LoopCode,
    LoopEvents,
    LoopReads,
    Overhead,
    PipelineStage,
    ProcessUse,
    RankReport,
    Recommendation,
    SessionInfo,
    Steps,
    Straggler,
    System,
    Trust,
    Verdict,
)
from iotrace.analysis.rules.facts.job import JobFacts, LateRank, job_facts
from iotrace.analysis.rules.waste import _of_layout
from iotrace.analysis.verdict.gains import fixes_of, with_other_ranks
from iotrace.analysis.verdict.verdict import verdict_of
from iotrace.analysis.wait.data_wait import verdict
from iotrace.report.words import gain_text
from tests.support.results import unknown

OK = Trust(level="ok", reasons=["32 steps"])


def session(**known: Any) -> SessionInfo:
    return unknown(
        SessionInfo,
        **{
            "path": "s",
            "argv": ["python"],
            "exit_code": 0,
            "ended": True,
            "state": "ended",
            "failures": [],
            **known,
        },
    )


def rank(
    number: int = 0, wait_ms: float | None = 50.0, groups: Sequence[FileGroup] = (), **known: Any
) -> RankReport:
    """A rank with steps of 100 ms; its wait, of one cause if not told otherwise."""
    none = {"causes_ms": {}, "by_loader": [], "files": [], "worst_batches": []}
    waited = {**none, "causes_ms": {"transform": wait_ms}}
    data_wait = unknown(DataWait, **none)
    if wait_ms is not None:
        fraction = wait_ms / 100
        waited |= {"raw_ms": wait_ms, "raw_wait_fraction": fraction, "verdict": verdict(fraction)}
        data_wait = unknown(DataWait, **{**waited, **known})
    steps = unknown(
        Steps,
        count=32,
        mean_ms=100.0,
        unknown_why="threads",
        excluded=Excluded(first=1, warmup=0, profiled=0),
    )
    parts = {"loaders": [], "regions": [], "file_groups": groups, "steps": steps, "data_wait": data_wait}
    return unknown(RankReport, rank=number, incarnation=0, **parts)


def judged(*ranks: RankReport, imbalance: Imbalance | None = None, **about: Any) -> Verdict:
    return verdict_of(session(**about), ranks, job_facts(ranks, imbalance, None), [], OK)


def late(number: int, impact_pct: float, by_data_pct: float) -> Imbalance:
    straggler = Straggler(
        rank=number,
        last_to_arrive=9,
        waited_for_ms=1.0,
        impact_pct=impact_pct,
        severity=None,
        by_data_pct=by_data_pct,
        kind=None,
        kind_ms=None,
    )
    none = Collectives(matched=9, unmatched=0, skew_ms_mean=None, skew_ms_max=None)
    return unknown(
        Imbalance, ranks_seen=4, ranks=[], spread={}, collectives=none, stragglers=[straggler], worst=[]
    )


@pytest.mark.parametrize(
    ("wait_ms", "kind", "banner"),
    [
        (4.9, "not-input-bound", "NOT INPUT-BOUND 5 % of each step"),
        (5.0, "moderately-input-bound", "MODERATELY INPUT-BOUND 5 % of each step"),
        (20.1, "input-bound", "INPUT-BOUND 20 % of each step waits for data (20.1 of 100.0 ms)"),
    ],
)
def test_the_share_of_the_wait_decides(wait_ms: float, kind: str, banner: str) -> None:
    found = judged(rank(wait_ms=wait_ms))
    assert (found.kind, found.rank) == (kind, 0)
    assert found.text.startswith(banner)


_IN_FEW = "50 % of the steps' time waits for data (50.0 of 100.0 ms a step), in"


@pytest.mark.parametrize(
    ("count", "first", "said"),
    [
        (3, 3, f"{_IN_FEW} 3 of 32 steps, the first of each epoch"),
        (3, 0, f"{_IN_FEW} 3 of 32 steps"),
        (8, 8, f"{_IN_FEW} 8 of 32 steps, the first of each epoch"),
        (8, 2, "50 % of each step waits for data (50.0 of 100.0 ms)"),
        (29, 4, "50 % of each step waits for data (50.0 of 100.0 ms)"),
    ],
)
def test_a_wait_that_lies_in_few_steps_is_not_told_of_each_step(count: int, first: int, said: str) -> None:
    found = judged(rank(long_wait_steps=count, long_wait_first=first))
    assert found.text == f"INPUT-BOUND {said}"


@pytest.mark.parametrize(("share", "count", "said"), [(0.5, 5, True), (0.19, 5, False), (0.5, 1, False)])
def test_what_takes_much_of_the_loop_beside_its_steps_is_said(share: float, count: int, said: bool) -> None:
    seconds = 100 * share
    events = LoopEvents(
        kind="evaluation", count=count, seconds=seconds, loop_seconds=100.0, loop_fraction=share
    )
    found = judged(replace(rank(wait_ms=1.0), loop_events=[events]))
    assert found.text.endswith("; validation takes 50 % of the loop") is said


def test_it_is_said_beside_a_wait_too_and_of_functions_that_samples_name() -> None:
    code = LoopCode(
        function="log (a.py:9)", seconds=3.0, samples=60, ms_per_step=30.0, loop_fraction=0.3, count=4
    )
    found = judged(replace(rank(wait_ms=50.0), loop_code=[code]))
    assert found.text.endswith("waits for data (50.0 of 100.0 ms); log (a.py:9) takes 30 % of the loop")


@pytest.mark.parametrize(
    ("before_ms", "function", "kind", "why", "fixes"),
    [
        (4.0, "batch (a.py:9)", "not-input-bound", "no known loader feeds the loop", []),
        (40.0, "batch (a.py:9)", "wait-unknown", "it makes batches", []),
        (40.0, None, "wait-unknown", None, ["name-the-source"]),
    ],
)
def test_a_loop_without_a_loader_is_judged_by_what_lies_before_its_forward_pass(
    before_ms: float, function: str | None, kind: str, why: str | None, fixes: list[str]
) -> None:
    feeding = Feeding(before_ms=before_ms, before_fraction=before_ms / 100, function=function)
    by_itself = Culprit(
        id="prepared-in-the-loop", text="it makes batches", evidence={}, wait_ms=0.0, leads=False
    )
    known = replace(rank(wait_ms=None), feeding=feeding, culprits=[by_itself] if function else [])
    found = judged(known)
    assert (found.kind, [each.id for each in found.fixes]) == (kind, fixes)
    assert found.why is None if why is None else (found.why or "").startswith(why)
    assert f"at most {before_ms:.0f} % of each step" in found.text


def test_what_the_loop_itself_does_comes_first_where_no_loader_feeds_it() -> None:
    feeding = Feeding(before_ms=1.0, before_fraction=0.01, function=None)
    own = Culprit(id="code-of-the-loop", text="it matches", evidence={}, wait_ms=0.0, leads=True)
    found = judged(replace(rank(wait_ms=None), feeding=feeding, culprits=[own]))
    assert found.kind == "not-input-bound"
    assert found.why == "it matches"
    assert (found.beside or "").startswith("no known loader feeds the loop")


PARSE = "parse (a.py:9) runs 900 times in the measured steps, 16.0 ms each"


@pytest.mark.parametrize(
    ("busy", "makers", "said"),
    [
        (0.76, 1, f"{PARSE}: 76 % of their time"),
        (1.9, 4, f"{PARSE}, on 4 threads: together 190 % of their time"),
        (0.1, 1, None),
    ],
)
def test_where_the_wait_is_unknown_a_function_that_a_library_calls_is_named(
    busy: float, makers: int, said: str | None
) -> None:
    """Keras asks in its compiled step; whether it waits is not known, how long the function works is."""
    stage = unknown(
        PipelineStage, name="parse", site="a.py:9", busy=busy, items=900, item_ms=16.0, makers=makers
    )
    loader = unknown(LoaderResult, id=0, library="keras", dataset="fit")
    found = judged(replace(rank(wait_ms=None), pipeline=[stage], loaders=[loader]))
    assert (found.kind, found.why) == ("wait-unknown", said)
    assert [each.id for each in found.fixes] == ["ask-in-python"]


@pytest.mark.parametrize(
    ("decoded", "command", "fixes"),
    [
        (3_240_000_000, "h5repack a.h5", ["decode-bound", "ask-in-python"]),
        (3_240_000_000, "", ["ask-in-python"]),  # no other chunks fit better
        (162_000_000, "h5repack a.h5", ["ask-in-python"]),  # three times what is used
        (216_000_000, "h5repack a.h5", ["ask-in-python"]),  # half a second of a loop of 30 s
    ],
)
def test_a_file_that_is_decoded_in_vain_is_a_suspect_where_the_wait_is_unknown(
    decoded: int, command: str, fixes: list[str]
) -> None:
    array = unknown(
        ChunkedArray, path="d/a.h5", used_bytes=54_000_000, decoded_at_least_bytes=decoded, command=command,
        suggested_chunk=[1, 96, 192],
    )  # fmt: skip
    amplification = unknown(Amplification, why="", arrays=[array])
    group = unknown(FileGroup, path="d/a.h5", kind="file", amplification=amplification)
    loader = unknown(LoaderResult, id=0, library="keras", dataset="fit")
    account = unknown(Account, loop_ns=30 * 10**9, parts=[])
    found = judged(replace(rank(wait_ms=None, groups=[group]), loaders=[loader], account=account))
    assert [each.id for each in found.fixes] == fixes
    said = "d/a.h5 is decoded 60 times for what is used of it (3.0 GiB for 51.5 MiB)"
    is_named = found.why == f"{said}: that may be a part of the wait"
    assert is_named == (len(fixes) > 1)


@pytest.mark.parametrize(
    ("waits", "last", "told"),
    [
        (0.12, 55, True),
        (0.12, 10, False),  # it comes last by chance
        (0.03, 55, False),  # not for its data
    ],
)
def test_a_second_rank_that_comes_last_as_it_waits_is_told_with_its_fix(
    waits: float, last: int, told: bool
) -> None:
    late = LateRank(rank=0, pct=48.0, kind="evaluation", longer_ms={"evaluation": 89.6}, wait_ms=83.0)
    ranks = [rank(0, 10.0), rank(1, 100 * waits)]
    job = JobFacts(ranks=ranks, late=late, in_step=True, last_in={0: (76 - last, 76), 1: (last, 76)})
    advice = unknown(
        Recommendation, id="transform-bound", severity="medium", text="", evidence={}, remedy="cache it",
        rank=1, code="IO103",
    )  # fmt: skip
    found = verdict_of(session(), ranks, job, [advice], OK)
    first, *second = found.fixes
    assert (first.code, first.gain_ms_per_step, first.at_most) == ("IO802", 83.0, True)
    assert first.most_speedup == pytest.approx(1 / 0.52)
    assert [each.text for each in second] == ["on rank 1: cache it"] * told
    assert [each.gain_ms_per_step for each in second] == [None] * told
    said = f"rank 1 waits for data 12 % of its time, and comes last in {last} of 76 late steps: "
    assert (found.beside or "").startswith(said) == told


@pytest.mark.parametrize("tries", [True, False])
def test_why_is_of_what_the_first_fix_ends(tries: bool) -> None:
    threads = Culprit(
        id="threads", text="many threads", evidence={}, wait_ms=40.0, leads=True, remedy="one", tries=tries
    )
    known = replace(rank(wait_ms=50.0), culprits=[replace(threads, code="IO304")])
    first = unknown(
        Recommendation, id="transform-bound", code="IO103", remedy="vectorise", rank=0, evidence={}
    )
    second = replace(first, id="threads", code="IO304", remedy="one")
    found = verdict_of(session(), [known], None, [first, second], OK)
    assert (found.culprit is None) is tries
    assert ("many threads" in (found.why or "")) is not tries


def test_a_job_that_waits_is_never_told_not_to() -> None:
    found = judged(rank(0, 1.0), rank(1, 60.0), rank(2, None))
    assert (found.kind, found.rank) == ("input-bound", 1)
    assert "rank 1: 60 %" in found.text
    found = judged(rank(0, 1.0), rank(1, None))
    assert (found.kind, found.rank, found.text) == ("wait-unknown", 1, "WAIT UNKNOWN rank 1: threads")
    assert [fix.id for fix in found.fixes] == ["name-the-source"]
    assert judged().kind == "wait-unknown"


def test_the_file_is_named_that_most_of_the_cause_is_spent_on() -> None:
    files = [
        FileCost(path="a.h5", ms=30.0, read_ms=1.0, decode_ms=29.0, transform_ms=0.0),
        FileCost(path="b.h5", ms=21.0, read_ms=10.0, decode_ms=11.0, transform_ms=0.0),
    ]
    found = judged(rank(causes_ms={"decode": 40.0, "read": 10.0}, files=files))
    assert (found.file, found.cause, found.why) == (
        "a.h5",
        "decode",
        "a.h5 is slow to decode: 58 % of the wait",
    )
    spread = judged(rank(causes_ms={"decode": 70.0, "read": 10.0}, files=files))
    assert (spread.file, spread.cause) == (None, "decode")


@pytest.mark.parametrize(
    ("other", "picked"), [({}, True), ({"filtered": True}, False), ({"chunks_touched": 8}, False)]
)
def test_rows_that_are_picked_from_what_is_stored_plainly_are_not_decoded(
    other: dict[str, Any], picked: bool
) -> None:
    file = FileCost(path="a.nwb", ms=30.0, read_ms=1.0, decode_ms=29.0, transform_ms=0.0)
    array = {"dataset": "/x", "accesses": 140, "chunks_touched": 0, "filtered": False, **other}
    used = Amplification(why="a list", arrays=[unknown(ChunkedArray, path="a.nwb", **array)])
    group = unknown(FileGroup, path="a.nwb", kind="file", read_ms=1.0, decode_ms=29.0, amplification=used)
    found = judged(rank(causes_ms={"decode": 40.0}, files=[file], groups=[group]))
    said = "picking rows from a.nwb by a list or a mask takes 58 % of the wait"
    assert (found.why == said) is picked


def test_the_directory_is_named_where_no_single_file_costs_most() -> None:
    cost = {"ms": 4.0, "read_ms": 0.0, "decode_ms": 4.0, "transform_ms": 0.0}
    files = [FileCost(path=f"harbour/{number}.jpg", **cost) for number in range(10)]
    group = unknown(FileGroup, path="harbour/", kind="directory", members=10, read_ms=0.0, decode_ms=40.0)
    one = unknown(FileGroup, path="road.jpg", kind="file", read_ms=0.0, decode_ms=3.0)
    found = judged(rank(causes_ms={"decode": 45.0}, files=files, groups=[one, group]))
    assert (found.file, found.why) == (
        "harbour/",
        "harbour/ (10 files) is slow to decode: 80 % of the wait",
    )
    half = replace(group, decode_ms=20.0)
    assert judged(rank(causes_ms={"decode": 45.0}, files=files, groups=[half])).file is None
    # A file that costs half of it goes first.
    single = replace(files[0], decode_ms=30.0)
    assert judged(rank(causes_ms={"decode": 45.0}, files=[single], groups=[group])).file == single.path


def test_a_wait_that_was_not_explained_has_no_cause() -> None:
    found = judged(rank(causes_ms={"decode": 10.0, "unknown": 40.0}))
    assert found.cause == "unknown"
    assert found.why == "unknown: 80 % of the wait is not explained by what was seen"


def test_of_two_loaders_the_one_that_is_waited_for_is_named() -> None:
    """Zipped, the quick one is asked first."""
    quick = unknown(LoaderResult, id=0, primary=True, wrapped=False, item="Quick.__getitem__ (train.py:9)")
    slow = replace(quick, id=1, primary=False, item="Slow.__getitem__ (train.py:7)")
    known = rank()
    waits = [LoaderWait(loader=0, raw_ms=2.0), LoaderWait(loader=1, raw_ms=48.0)]
    found = judged(replace(known, loaders=[quick, slow], data_wait=replace(known.data_wait, by_loader=waits)))
    assert found.why == "Slow.__getitem__ (train.py:7) takes 100 % of the wait"


def test_the_function_is_named_whose_time_it_is() -> None:
    loader = unknown(LoaderResult, primary=True, wrapped=False, item="Volumes.__getitem__ (train.py:41)")
    found = judged(replace(rank(), loaders=[loader]))
    assert found.why == "Volumes.__getitem__ (train.py:41) takes 100 % of the wait"
    named = judged(replace(rank(), loaders=[replace(loader, item=None, dataset="Volumes")]))
    assert named.why == "the own code of Volumes (transform) takes 100 % of the wait"
    decodes = judged(replace(rank(causes_ms={"decode": 50.0}), loaders=[loader]))
    assert decodes.why == "decoding takes 100 % of the wait"
    source = replace(loader, wrapped=True)
    unseen = judged(replace(rank(causes_ms={"unknown": 50.0}), loaders=[source]))
    assert unseen.why == "unknown what the source did in 100 % of the wait; iotrace.region in it shows that"
    assert unseen.fixes == []


@pytest.mark.parametrize(
    ("passes", "decode_ms", "said"),
    [
        (0.98, 20.0, "90 % of the wait, reading and decoding included, most of it at train.py:44"),
        (0.6, 20.0, "50 % of the wait, most of it at train.py:44"),  # another line decodes
        (None, 20.0, "50 % of the wait, most of it at train.py:44"),  # of an older session
        (0.98, 5.0, "50 % of the wait, most of it at train.py:44"),
    ],
)
def test_a_line_in_which_all_of_a_sample_passes_has_what_is_decoded_there(
    passes: float | None, decode_ms: float, said: str
) -> None:
    hot = HotLine(line="train.py:44", fraction=0.97, samples=100, passes_fraction=passes)
    loader = unknown(
        LoaderResult, primary=True, wrapped=False, item="Clips.__getitem__ (train.py:41)", item_hot=hot
    )
    causes = {"transform": 25.0, "decode": decode_ms, "transport": 25.0 - decode_ms}
    found = judged(replace(rank(causes_ms=causes), loaders=[loader]))
    assert found.why == f"Clips.__getitem__ (train.py:41) takes {said}"


def test_items_that_nobody_is_seen_to_make_need_no_region() -> None:
    queue = unknown(
        LoaderResult, id=0, primary=True, wrapped=True, pool="queue.Queue", dataset="", made_fraction=0.01
    )
    found = judged(replace(rank(causes_ms={"unknown": 50.0}), loaders=[queue]))
    assert found.why == (
        "unknown who made 99 % of the items from the queue.Queue: iotrace follows threads and processes, "
        "no coroutines"
    )
    taker = replace(queue, id=1, pool=None, made_fraction=1.0)
    within = judged(
        replace(rank(causes_ms={"unknown": 50.0}), loaders=[taker, replace(queue, within=1, primary=False)])
    )
    assert within.why == found.why
    made = judged(replace(rank(causes_ms={"unknown": 50.0}), loaders=[replace(queue, made_fraction=1.0)]))
    assert made.why == "unknown what the source did in 100 % of the wait; iotrace.region in it shows that"


def test_the_rank_that_is_late_stands_over_those_that_wait_for_it() -> None:
    ranks = [rank(0, 1.0), rank(1, 60.0)]
    found = judged(*ranks, imbalance=late(1, 53.0, 95.0))
    assert (found.kind, found.rank, found.cause) == ("rank-late", 1, "transform")
    assert "rank 1 is late; 3 ranks wait 53 % of each step for it" in found.text
    of_two = replace(late(1, 53.0, 95.0), ranks_seen=2)
    assert "rank 1 is late; rank 0 waits 53 % of each step for it" in judged(*ranks, imbalance=of_two).text
    assert judged(*ranks, imbalance=late(1, 9.0, 95.0)).kind == "input-bound"
    computes = judged(*ranks, imbalance=late(0, 53.0, 10.0))
    # Nothing was seen that made it late: that its data did not is said of no such rank.
    assert (computes.kind, computes.rank, computes.why) == ("rank-late", 0, "what made it late was not seen")


def test_a_late_rank_has_the_evidence_of_what_made_it_late() -> None:
    ranks, evidence = [rank(0, 1.0), rank(1, 60.0)], "it computes 8.1 ms a step longer"
    computes = late(0, 53.0, 10.0)
    (one,) = computes.stragglers
    slow = replace(computes, stragglers=[replace(one, kind="compute", evidence=evidence)])
    assert judged(*ranks, imbalance=slow).why == evidence
    stays = replace(
        slow, pattern="stays", late_steps=10, stragglers=[replace(slow.stragglers[0], late_steps=9)]
    )
    assert judged(*ranks, imbalance=stays).why == (
        f"{evidence}, in 9 of 10 late steps: look at its device and its share of the work"
    )
    few = replace(slow, late_steps=5, stragglers=[replace(slow.stragglers[0], late_steps=2)])
    assert (
        judged(*ranks, imbalance=few).kind != "rank-late"
    )  # one of four comes last in two of five by chance
    # No machine is blamed where its data made the rank late; of several workers the one is named.
    data = replace(
        stays, stragglers=[replace(late(1, 53.0, 95.0).stragglers[0], kind="data", worker=1, late_steps=9)]
    )
    workers = unknown(LoaderResult, id=0, kind="training", primary=True, workers=4, batches=8)
    found = judged(*(replace(each, loaders=[workers]) for each in ranks), imbalance=data)
    assert (found.why or "").endswith("100 % of the wait; late most by worker 1")


@pytest.mark.parametrize(
    ("by", "why"),
    [("data", "their data, not a slow machine: "), ("compute", "")],
)
def test_ranks_that_are_late_by_turns_are_late_together(by: str, why: str) -> None:
    """None of four costs 10 %, all together do; where one stays the late one that counts alone."""
    late_by = {by: 10.0}
    own = [
        replace(late(number, 9.0 - number, 90.0).stragglers[0], late_steps=3 - number, late_by_ms=late_by)
        for number in range(2)
    ]
    moves = replace(late(0, 9.0, 90.0), stragglers=own, pattern="moves", late_steps=5, late_pct=12.0)
    found = judged(rank(0, 60.0), rank(1, 60.0), imbalance=moves)
    assert (found.kind, found.rank) == ("rank-late", 0)
    assert found.text == "RANK LATE 2 ranks are late by turns; ranks wait 12 % of each step for one"
    assert (found.why or "").startswith(f"{why}rank 0 is late in 3 of 5 late steps, another one in the rest")
    assert judged(rank(0, 60.0), rank(1, 60.0), imbalance=replace(moves, pattern=None)).kind == "input-bound"
    often = Culprit(
        id="reduces-in-each-step",
        text="in each step",
        evidence={},
        wait_ms=60.0,
        leads=True,
        remedy="no_sync",
        code="IO514",
    )
    found = judged(replace(rank(0, 60.0), culprits=[often]), rank(1, 60.0), imbalance=moves)
    assert [each.text for each in found.fixes] == ([] if by == "data" else ["no_sync"])
    if by != "data":
        assert found.why == "in each step"
        assert found.beside == judged(rank(0, 60.0), rank(1, 60.0), imbalance=moves).why


def failure(**known: Any) -> Failure:
    about = {"process": 7, "role": "rank", "rank": 0, "type": "ValueError", "message": "no", "stack": ""}
    return unknown(Failure, **{**about, "at": "train.py:4 in train", "after_steps": 33, **known})


def test_a_failure_comes_first_and_what_held_until_then_is_kept() -> None:
    found = judged(rank(), exit_code=3)
    assert (found.kind, found.text) == ("failed", "FAILED exit code 3 after 33 steps")
    assert found.why is not None
    assert found.why.startswith("unknown: no exception")
    assert found.until == "INPUT-BOUND, 50 % waited for data (transform)"
    assert (found.trust.level, found.trust.reasons) == ("caution", ["the last step is not whole"])
    assert judged(rank()).until is None


IN_WORKER = {"role": "loader worker", "worker": 1, "process": 4711, "type": "OSError", "batch": 18}


@pytest.mark.parametrize(
    ("first", "about", "text", "why"),
    [
        (
            failure(**IN_WORKER, file="data/part2.h5", message="unable to read chunk"),
            {"exit_code": 1},
            "FAILED exit code 1 after 33 steps: OSError in worker 1 (pid 4711)",
            'data/part2.h5: "unable to read chunk", batch 18',
        ),
        (
            failure(after_steps=0, batch=3),
            {"exit_code": 1},
            "FAILED exit code 1 before the first step ended: ValueError",
            'train.py:4 in train: "no", batch 3',
        ),
        (
            failure(**IN_WORKER),
            {"exit_code": 5},
            "FAILED exit code 5 after 33 steps: OSError in worker 1 (pid 4711)",
            'train.py:4 in train: "no", batch 18',
        ),
        (
            failure(type="SIGKILL", at=None, after_steps=1),
            {"exit_code": 137, "signal": "SIGKILL", "oom_kills": 0},
            "KILLED by SIGKILL (exit code 137) after 1 step",
            "unknown who sent it; the kernel counted no out-of-memory kill",
        ),
        (
            failure(type="SIGKILL", at=None),
            {"exit_code": 137, "signal": "SIGKILL", "oom_kills": 1},
            "KILLED by SIGKILL (exit code 137) after 33 steps",
            "out of memory: the kernel ended 1 process of this control group",
        ),
        (
            failure(type="KeyboardInterrupt"),
            {"exit_code": 130, "signal": "SIGINT"},
            "INTERRUPTED by SIGINT (exit code 130) after 33 steps",
            "Ctrl-C, or a signal from elsewhere",
        ),
        (
            failure(type="SIGSEGV", rank=2),
            {"exit_code": 1},
            "FAILED exit code 1 after 33 steps: SIGSEGV on rank 2 (pid 7)",
            "a crash in compiled code: python -X faulthandler names the line",
        ),
    ],
)
def test_what_failed_is_named(first: Failure, about: dict[str, Any], text: str, why: str) -> None:
    found = judged(rank(), failures=[first, failure(message="a consequence")], **about)
    assert (found.text, found.why, found.kind) == (text, why, "failed")


def test_an_exception_that_does_not_explain_the_exit_code_is_not_its_cause() -> None:
    helper, console = failure(role="helper"), failure()
    assert "ValueError" not in judged(rank(), exit_code=3, failures=[console]).text
    helped = judged(rank(), exit_code=1, failures=[helper])
    assert "ValueError" not in helped.text
    assert helped.why == "unknown; a process that it started failed: ValueError (pid 7)"
    assert judged(rank(), exit_code=0, failures=[console]).kind == "input-bound"
    threaded = judged(rank(), exit_code=1, failures=[failure(thread="feeder")])
    assert "ValueError" not in threaded.text
    assert threaded.why is not None
    assert threaded.why.startswith("unknown; before it, thread feeder ended: ValueError: ")
    killed = judged(rank(), exit_code=137, failures=[])
    assert killed.why == "unknown: no exception was left uncaught; 137 is a shell's code for SIGKILL"


def advice(gain_ms: float | None, of: int = 0) -> Recommendation:
    return Recommendation(
        id="decode-bound",
        severity="high",
        text="",
        evidence={},
        gain_ms_per_step=gain_ms,
        remedy="do",
        rank=of,
    )


def test_the_same_fix_of_two_loaders_names_each() -> None:
    items = [replace(advice(None), evidence={"loader": number}) for number in (1.0, 2.0)]
    assert [fix.text for fix in verdict_of(session(), [rank()], None, items, OK).fixes] == [
        "loader 1: do",
        "loader 2: do",
    ]
    assert verdict_of(session(), [rank()], None, items[:1], OK).fixes[0].text == "do"


def test_a_fix_saves_at_most_its_wait_and_what_the_device_idles() -> None:
    def fixes(one: RankReport, *items: Recommendation) -> list[tuple[float | None, float | None]]:
        found = verdict_of(session(), [one], None, items, OK).fixes
        return [(fix.gain_ms_per_step, fix.speedup) for fix in found]

    assert fixes(rank(), advice(50.0), advice(None), advice(1.0, of=3)) == [(50.0, 2.0), (None, None)]
    hidden = rank()
    hidden = replace(hidden, data_wait=replace(hidden.data_wait, exposed_ms=20.0))
    assert fixes(hidden, advice(50.0)) == [(20.0, 1.25)]


def test_a_wait_that_the_device_works_through_is_not_what_binds_the_loop() -> None:
    # As seen on an H100: a loop that waits 87 % of its step, while kernels of the step before run.
    def on_device(idle_ms: float) -> Verdict:
        about = {"exposed_ms": idle_ms, "exposed_source": "cuda_events", "stall_fraction": idle_ms / 100}
        return judged(rank(0, 87.0, **about))

    busy = on_device(0.0)
    assert (busy.kind, busy.text) == (
        "not-input-bound",
        "NOT INPUT-BOUND the device waits for data in no step (0.0 of 100.0 ms)",
    )
    saved = "a faster loader can save at most 0.0 ms a step"
    assert busy.why == f"the loop waits 87.0 ms, but the device has work meanwhile: {saved}"
    idle = on_device(45.0)
    assert (idle.kind, idle.text) == (
        "input-bound",
        "INPUT-BOUND the device waits for data in 45 % of each step (45.0 of 100.0 ms)",
    )
    # Of two ranks, the one whose device idles is told, not the one whose loop waits longer.
    longer = rank(0, 90.0, exposed_ms=1.0, exposed_source="cuda_events", stall_fraction=0.01)
    idler = rank(1, 40.0, exposed_ms=40.0, exposed_source="cuda_events", stall_fraction=0.4)
    assert judged(longer, idler).rank == 1


@pytest.mark.parametrize(
    ("code", "behind_ms", "slower_ms", "most_ms", "text"),
    [
        ("IO101", 30.0, None, 80.0, "2.0x to 5.0x faster"),
        ("IO101", 0.0, 40.0, 50.0, "at most 2.0x faster"),
        ("IO101", None, None, None, "about 2.0x faster, perhaps more"),  # what it waits for others: unknown
        ("IO101", None, 90.0, None, "about 1.1x faster, perhaps more"),  # another makes its batches in 90 ms
        ("IO101", 30.0, 90.0, 80.0, "1.1x to 5.0x faster"),
        ("IO504", 30.0, 90.0, 50.0, "at most 2.0x faster"),  # a checkpoint: no wait for data
    ],
)
def test_a_fix_that_other_ranks_have_too_ends_waits_for_them(
    code: str, behind_ms: float | None, slower_ms: float | None, most_ms: float | None, text: str
) -> None:
    fix = Fix(id="more", text="more", gain_ms_per_step=50.0, speedup=2.0, most_ms_per_step=50.0, code=code)
    found = with_other_ranks(fix, behind_ms, 100.0, slower_ms)
    assert found.most_ms_per_step == most_ms
    assert gain_text(found) == text


@pytest.mark.parametrize(
    ("making_ms", "gain", "beside"),
    [
        (40.0, "about 2.0x faster, perhaps more", None),
        (
            90.0,
            "about 1.1x faster, perhaps more",
            "rank 0 takes 90 ms a step to make its batches, so it needs a fix, too: do",
        ),
    ],
)
def test_a_late_rank_gains_no_more_than_the_next_slowest_loader_leaves(
    making_ms: float, gain: str, beside: str | None
) -> None:
    loaders = [
        unknown(LoaderResult, id=0, kind="training", primary=True, workers=1, batches=8, production_ms=ms)
        for ms in (making_ms, 95.0)
    ]
    ranks = [replace(rank(number, 50.0), loaders=[own]) for number, own in enumerate(loaders)]
    slow = LateRank(rank=1, pct=30.0, kind="data", longer_ms={"data": 30.0})
    found = verdict_of(
        session(),
        ranks,
        JobFacts(ranks=ranks, late=slow, in_step=True),
        [advice(50.0), advice(50.0, of=1)],
        OK,
    )
    (fix,) = found.fixes
    assert (found.rank, gain_text(fix), found.beside) == (1, gain, beside)


def test_what_is_predicted_of_a_whole_cause_is_a_bound_too() -> None:
    rows = [unknown(GainRow, id="transform", change="gone"), unknown(GainRow, id="workers", change="4")]
    one = replace(rank(0, 60.0), gain=rows)
    counted = replace(one.steps, thread_cpu_ms=0.0, thread_run_delay_ms=0.0)
    one = replace(one, steps=counted)
    predicted = [
        replace(advice(50.0), gain=row.id, gain_interval_ms=[45.0, 60.0], most_ms_per_step=60.0)
        for row in rows
    ]
    bound, told = verdict_of(session(), [one], None, predicted, OK).fixes
    assert gain_text(bound) == "about 2.0x, at most 2.5x faster"  # a bound is not below the truth
    assert (bound.speedup, bound.most_ms_per_step) == (2.0, 60.0)
    assert gain_text(told) == "2.0x faster (1.8 to 2.5)"
    small = replace(advice(2.0), gain="transform", gain_interval_ms=[1.0, 3.0], most_ms_per_step=3.0)
    (fix,) = verdict_of(session(), [one], None, [small], OK).fixes
    assert gain_text(fix) == "at most 3.0 ms a step"


def test_where_the_training_shares_busy_cpus_with_workers_no_bound_is_told() -> None:
    def why(busy: float, workers: int, *stages: PipelineStage, **cpu_pct: float | None) -> str | None:
        loader = unknown(LoaderResult, primary=True, workers=workers, ready_in_turn_mean=2.0)
        host = unknown(HostUse, cpu_busy_fraction=busy)
        one = rank(0, 1.0, exposed_ms=1.0, exposed_source="cpu")
        processes = [
            unknown(ProcessUse, pid=pid, role=role.replace("_", " "), cpu_pct_mean=used)
            for pid, (role, used) in enumerate(cpu_pct.items())
        ]
        system = unknown(System, gpus=[], processes=processes, host=host)
        return judged(replace(one, loaders=[loader], system=system, pipeline=[*stages])).why

    ready = "the loader keeps up: the loop finds 2.0 batches ready"
    bound = f"{ready}; a faster loader can save at most 1.0 ms a step"
    assert (why(0.5, workers=2), why(1.0, workers=0)) == (bound, bound)
    untold = "no CPU was free: a loader that computes less may speed up the rest"
    assert why(1.0, workers=2) == f"{ready}; {untold}"
    assert why(1.0, workers=2, main=90.0, worker_0=30.0, worker_1=20.0) == f"{ready}; {untold}"
    assert why(1.0, workers=2, main=90.0, worker_0=5.0, worker_1=None) == f"{ready}; {untold}"
    # They compute next to nothing: less of it frees no CPU.
    assert why(1.0, workers=2, main=90.0, worker_0=5.0, worker_1=4.0) == f"{ready}; no CPU was free"
    # Threads of the program's own.
    half, little = (unknown(PipelineStage, of="threads", busy=busy) for busy in (0.5, 0.03))
    assert why(1.0, 1, half, little) == f"{ready}; {untold}"
    assert why(1.0, 1, little) == f"{ready}; no CPU was free"


def test_a_run_that_failed_has_no_fix_of_its_wait_unless_it_was_interrupted() -> None:
    def fixes(exit_code: int) -> int:
        return len(verdict_of(session(exit_code=exit_code), [rank()], None, [advice(50.0)], OK).fixes)

    assert (fixes(0), fixes(1), fixes(137), fixes(130)) == (1, 0, 0, 1)


def test_without_a_loader_the_reads_of_the_loop_itself_are_told() -> None:
    files = [FileCost(path="train.npy", ms=30.0, read_ms=30.0, decode_ms=0.0, transform_ms=0.0)]
    alone = replace(rank(0, None), loop_reads=LoopReads(read_ms=35.0, decode_ms=5.0, files=files))
    why = "the training thread itself reads for 40.0 of 100.0 ms a step (40 %), most in train.npy"
    assert judged(alone).why == why
    beside = judged(replace(rank(0, 2.0), loop_reads=alone.loop_reads))
    assert (beside.kind, beside.why, beside.file) == ("input-bound", why, "train.npy")
    assert beside.text == "INPUT-BOUND 42 % of each step waits for data or reads it (42.0 of 100.0 ms)"
    assert [fix.id for fix in beside.fixes] == ["read-in-the-dataset"]
    waiting = judged(replace(rank(0, 30.0), loop_reads=alone.loop_reads))
    assert (waiting.kind, waiting.why) == ("input-bound", why)  # the larger of both is why
    longer = judged(replace(rank(0, 50.0), loop_reads=alone.loop_reads))
    assert longer.text.startswith("INPUT-BOUND 50 % of each step")
    little = LoopReads(read_ms=4.0, decode_ms=0.9, files=files)
    assert judged(replace(rank(0, 2.0), loop_reads=little)).kind == "not-input-bound"


def traced(idle_us: float, **wait: Any) -> Verdict:
    """The verdict over a bare trace of a device that idled so long of 1 s."""
    device = unknown(
        Accelerator,
        span_us=1e6,
        busy_us=1e6 - idle_us,
        comm_us=0.0,
        comm_comp_overlap_us=0.0,
        idle_us=idle_us,
        idle_time=IdleTime(
            span_us=1e6,
            idle_us=idle_us,
            parts=[
                IdlePart(cause="launch_gap", us=0.7 * idle_us, gaps=2000),
                IdlePart(cause="host", us=0.3 * idle_us, gaps=3, where="a/train.py(41): augment"),
            ],
        ),
        categories=[KernelCategory(category="gemm", calls=9, total_us=1e6 - idle_us, pct=100.0)],
    )
    one = replace(rank(**wait), accelerator=device, system=unknown(System, gpus=[], processes=[]))
    return judged(one, argv=[])


def test_bare_traces_tell_the_idle_time_of_the_device() -> None:
    idle = traced(240_000, wait_ms=None)
    assert (idle.kind, idle.text) == (
        "device-idle",
        "DEVICE IDLE 24 % of the traced time (240.0 of 1000.0 ms)",
    )
    assert idle.why == (
        "168.0 ms in 2000 gaps of at most 0.2 ms: the host launches kernels too late; "
        "72.0 ms in 3 gaps of more than 0.2 ms, in which the host does other work, "
        "most in train.py(41): augment"
    )
    assert traced(240_000, wait_ms=50.0).kind == "input-bound"
    busy = traced(50_000, wait_ms=1.0)
    assert busy.kind == "not-input-bound"
    saved = "a faster loader can save at most 1.0 ms a step"
    assert busy.why == f"{saved}; the device is busy 95 % of the traced steps"
    silent = traced(50_000, wait_ms=None)
    assert (silent.kind, silent.text) == ("device-busy", "DEVICE BUSY 100 % GEMM")
    assert silent.why == "the device is hardly idle: it works 95 % of the traced time (950.0 of 1000.0 ms)"


def test_a_run_that_goes_on_is_told_so_and_gets_no_advice_on_what_was_not_seen() -> None:
    running = session(state="running", exit_code=None, ended=False)
    found = verdict_of(running, [rank()], None, [], OK)
    assert found.kind == "running"
    assert found.text.startswith("RUNNING so far: INPUT-BOUND 50 % of each step waits for data")
    for state, kind in (("running", "running"), ("killed", "wait-unknown")):
        young = verdict_of(session(state=state, exit_code=None), [rank(wait_ms=None)], None, [], OK)
        assert (young.kind, young.fixes) == (kind, [])


def test_a_wait_that_tracing_may_have_made_is_no_verdict() -> None:
    cost = unknown(Overhead, least_pct_of_step=45.0, estimated_pct_of_step=60.0, spans=9)
    found = judged(replace(rank(0, 80.0), overhead=cost))
    assert (found.kind, found.fixes) == ("wait-unknown", [])
    assert found.text == "WAIT UNKNOWN tracing itself took 45 to 60 % of a step, the wait 80 %"
    assert judged(replace(rank(0, 95.0), overhead=cost)).kind == "input-bound"
    perhaps_all = replace(cost, least_pct_of_step=28.0, posix_calls=9, next_posix_call_us=3.0)
    assert judged(replace(rank(0, 61.0), overhead=perhaps_all)).kind == "input-bound"
    found = judged(replace(rank(0, 60.0), overhead=perhaps_all))
    assert found.text == "WAIT UNKNOWN tracing itself took 28 to 60 % of a step, the wait 60 %"
    assert [fix.text for fix in found.fixes] == ["run again with --io off: POSIX calls cost most of that"]
    little = replace(cost, least_pct_of_step=9.0)
    assert judged(replace(rank(0, 60.0), overhead=little)).kind == "input-bound"


@pytest.mark.parametrize(
    ("cause", "once", "told"), [("transport", 1.0, 0), ("startup", 1.0, 1), ("transport", 4.0, 1)]
)
def test_what_is_won_once_at_the_start_is_no_fix_of_steps(cause: str, once: float, told: int) -> None:
    unpickled = Recommendation(
        id="dataset-unpickled",
        severity="high",
        text="",
        evidence={"starts": once},
        gain_ms_per_step=30.0,
        rank=0,
        code="IO208",
    )
    assert len(fixes_of([unpickled], [rank()], OK, cause)) == told
    ids = [each.id for each in fixes_of([unpickled, advice(2.0)], [rank()], OK, cause)]
    assert len(ids) == 2
    assert (ids[0] == "dataset-unpickled") == (cause == "startup" or once > 1)


def test_a_fix_of_another_cause_than_the_verdicts_says_of_which() -> None:
    def text(**causes_ms: float) -> str:
        (fix,) = verdict_of(session(), [rank(causes_ms=causes_ms)], None, [advice(10.0)], OK).fixes
        return fix.text

    assert text(transform=40.0, decode=10.0) == "do (decode: 20 % of the wait)"
    # It gains 10 ms: more than it is charged with, as batches are made while the loop computes, too.
    assert text(transform=30.0, transport=12.0, decode=8.0) == "do (decode: 21 % of making a batch)"
    assert text(transform=10.0, decode=40.0) == "do"


def test_chunks_of_several_arrays_of_a_store_are_one_reason() -> None:
    """Each of them costs a third of the wait: together they are what makes decoding slow."""

    def reasons(used: int) -> list[str]:
        arrays = [
            unknown(
                ChunkedArray, path=f"s.zarr/{name}", dataset="", used_bytes=used,
                decoded_at_least_bytes=2_400, decoded_at_most_bytes=2_400, predicted_bytes=used,
                suggested_chunk=[1],
            )
            for name in "tuv"
        ]  # fmt: skip
        group = unknown(FileGroup, path="s.zarr", ms=60.0, amplification=Amplification(why="", arrays=arrays))
        costs = {array.path: 20.0 for array in arrays}
        return [f"{seen[0]}, {cost} ms" for cost, seen in _of_layout(group, costs, "an epoch") if seen]

    assert reasons(100) == [
        "its chunks do not fit what a sample reads: 24 bytes are decoded for each byte used, 60.0 ms"
    ]
