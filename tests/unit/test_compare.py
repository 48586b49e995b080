"""Two sessions beside each other: the same work, what changed, what got worse beyond noise."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from msgspec.structs import replace

from iotrace.analysis.compare.basis import Rank, basis_of
from iotrace.analysis.compare.check import check
from iotrace.analysis.compare.comparison import compare
from iotrace.analysis.compare.conditions import judge, parse
from iotrace.analysis.compare.results import Changed, Check, Comparison
from iotrace.analysis.compare.same_work import both_names, differences, other_steps
from iotrace.analysis.compare.spread import noise_of
from iotrace.analysis.compare.stage_changes import stage_changes
from iotrace.analysis.compare.step_parts import _changes
from iotrace.analysis.compare.step_verdict import _carries, _speaking, times
from iotrace.analysis.host.disturbance import TRACING_COST
from iotrace.analysis.results import StageCost
from iotrace.errors import UsageError
from iotrace.report.comparison import comparison_head
from tests.support.runs import in_process

STEPS, FILES = 60, ("data/a.h5", "data/b.h5")


def report(
    seed: int = 0,
    decode: float = 1.0,
    slow: float = 1.0,
    others: float = 0.0,
    scatter: float = 0.01,
    slower_cpus: float = 1.0,
    **known: Any,
) -> dict[str, Any]:
    """A run of 60 steps of some 50 ms, 40 of them a wait for decoding two files.

    `decode` multiplies what decoding costs, `slow` that of the second file alone; `others` is the share of
    the CPUs that other programs took. `scatter` is how far the median of the sidecar's piece of work lies
    above its quartile, `slower_cpus` multiplies every CPU time.
    """
    random = np.random.default_rng(seed)
    decode *= slower_cpus
    factors = {FILES[0]: decode, FILES[1]: decode * slow}
    # Neighbours depend on each other, and every run differs from the next.
    noise = np.convolve(random.normal(1.0, 0.2, STEPS + 3), np.ones(4) / 4, "valid")
    files = {
        path: (20 * factor * noise * random.normal(1.0, 0.005)).tolist() for path, factor in factors.items()
    }
    decoded = np.sum(list(files.values()), axis=0)
    steps = decoded + random.normal(10, 0.3, STEPS)
    costs = {path: 8 * factor * random.normal(1.0, 0.01) for path, factor in factors.items()}
    still = others < 0.1
    stages = [
        stage("decode", path, still, cost * random.normal(1.0, 0.03, 20)) for path, cost in costs.items()
    ] + [stage("transform", None, still, slower_cpus * random.normal(0.5, 0.02, 20))]
    mean_ms, wait_ms = float(steps.mean()), float(decoded.mean())
    quartile_us = 400.0 * slower_cpus
    host = {
        "cpu_busy_fraction": 0.5 + others,
        "others_cpu_fraction": others,
        "calibration": {
            "work": "inflate",
            "count": 30,
            "quartile_us": quartile_us,
            "median_us": quartile_us * (1 + scatter),
        },
    }
    return {
        "schema_version": 1,
        "session": {"path": f"run-{seed}", "argv": ["python", "train.py"], "exit_code": 0, "ended": True},
        "verdict": {"text": "INPUT-BOUND", "trust": {"level": "ok", "reasons": ["60 steps"]}},
        "ranks": [
            {
                "rank": 0,
                "world_size": 1,
                "steps": {"count": STEPS, "mean_ms": mean_ms, "per_second": 1e3 / mean_ms},
                "data_wait": {
                    "raw_ms": wait_ms,
                    "raw_wait_fraction": wait_ms / mean_ms,
                    "causes_ms": {"decode": wait_ms, "read": 0.0},
                    "files": [
                        {
                            "path": path,
                            "ms": float(np.mean(own)),
                            "read_ms": 0.0,
                            "decode_ms": float(np.mean(own)),
                        }
                        for path, own in files.items()
                    ],
                },
                "blocks": {
                    "steps": 1,
                    "step_ms": steps.tolist(),
                    "wait_ms": decoded.tolist(),
                    "causes_ms": {"decode": decoded.tolist(), "read": [0.0] * STEPS},
                    "files_ms": files,
                },
                "stages": stages,
                "loaders": [{"primary": True, "dataset": "Volumes", "workers": 2, "batch_size": 4}],
                "system": {"cpu_pct_mean": 100.0, "cpus": 2, "host": host},
                "io": {"files": [{"path": path, "reads": 9} for path in FILES]},
            }
        ],
        **known,
    }


def stage(name: str, path: str | None, still: bool, blocks: Any) -> dict[str, Any]:
    costs = [float(value) for value in blocks]
    return {
        "stage": name,
        "path": path,
        "clock": "cpu",
        "quiet": still,
        "count": 4 * len(costs),
        "per_sample": 0.5,
        "mean_ms": float(np.mean(costs)),
        "quartile_ms": float(np.percentile(costs, 25)),
        "blocks_ms": costs,
    }


def compared(one: dict[str, Any], other: dict[str, Any]) -> Comparison:
    return compare(basis_of(one), basis_of(other))


def checked(now: dict[str, Any], baseline: dict[str, Any], worse_by_pct: float = 5.0) -> Check:
    return check([now], [basis_of(baseline)], [], worse_by_pct)


def test_what_changed_is_told_with_its_interval() -> None:
    found = compared(report(1), report(2, decode=0.5))
    assert (found.comparable, found.verdict) == (True, "faster")
    assert found.text.startswith("FASTER")
    assert found.ci95_pct is not None
    assert found.ci95_pct[0] < found.change_pct < found.ci95_pct[1] < 0
    (change,) = found.changed
    assert (change.what, change.cause, change.file) == ("decode", "decode", None)
    assert change.ci95_ms is not None
    assert change.ci95_ms[0] < change.by_ms < change.ci95_ms[1] < 0
    before, after = found.causes_ms["decode"]
    assert after - before == pytest.approx(change.by_ms)


def test_the_file_is_named_that_most_of_a_change_is_due_to() -> None:
    found = compared(report(1), report(2, slow=2.0))
    assert (found.verdict, found.changed[0].what) == ("slower", "decode of data/b.h5")
    assert [item.what for item in checked(report(2, slow=2.0), report(1)).worse] == [
        "decode of data/b.h5",
        "the step",
    ]


def test_no_difference_is_no_verdict() -> None:
    found = compared(report(1), report(2))
    assert (found.verdict, found.changed) == ("no-difference", [])
    assert found.text.startswith("NO DIFFERENCE seen")


def test_another_run_of_the_same_program_never_fails_and_a_slower_decode_always_does() -> None:
    baseline = report(100)
    for seed in range(20):
        assert checked(report(seed), baseline).ok
        slower = checked(report(seed, decode=1.1), baseline)
        assert not slower.ok
        assert slower.worse[0].what == "decode"
        assert slower.worse[0].text.startswith("decode: +")


# How far the CPU time of one decode differed from run to run on a virtual machine of two cores, divided by
# the sidecar's piece of work: a quieter hour and one in which others took 80 % of the CPUs. And the prior.
MEASURED = [(0.016, 0.021), (0.024, 0.030), (0.037, 0.035)]


@pytest.mark.parametrize(("spread", "prior"), MEASURED)
@pytest.mark.parametrize(("baselines", "sessions"), [(1, 1), (3, 1), (5, 1), (5, 5)])
def test_noise_of_the_spread_measured_seldom_fails_a_run(
    baselines: int, sessions: int, spread: float, prior: float
) -> None:
    """1,000 pairs of sides, without a difference and with 10 %: how many grew by 5 % beyond the noise."""
    found = {1.0: 0, 1.1: 0}
    for factor in found:
        for seed in range(1000):
            random = np.random.default_rng([seed, baselines, sessions, int(factor * 10)])
            sides = [random.normal(0.0, spread, count).tolist() for count in (baselines, sessions)]
            change = float(np.mean(sides[1]) - np.mean(sides[0])) + np.log(factor)
            beyond = noise_of(sides, prior).exceeded_by_1_in_100
            found[factor] += change >= max(np.log(1.05), beyond)
    assert found[1.0] <= 10  # 1 in 100
    if baselines == sessions == 5 and spread < 0.03:
        assert found[1.0] <= 1
        assert found[1.1] >= 998


def several(seeds: range, **known: Any) -> list[dict[str, Any]]:
    """Runs of one program, whose CPU times differ by 4 %, and by 2.4 % at the same speed of the CPUs."""
    runs = []
    for seed in seeds:
        random = np.random.default_rng([seed, 7])
        decode = known.get("decode", 1.0) * float(random.normal(1.0, 0.024))
        slower_cpus = float(random.normal(1.0, 0.03))
        runs.append(report(seed, **{**known, "decode": decode, "slower_cpus": slower_cpus, "scatter": 0.08}))
    return runs


def test_several_runs_tell_a_slower_decode_where_one_does_not() -> None:
    baselines = [basis_of(run) for run in several(range(100, 105))]
    for first in range(0, 15, 5):
        same = check(several(range(first, first + 5)), baselines, [], 5.0)
        assert (same.ok, same.worse) == (True, [])
        slower = check(several(range(first, first + 5), decode=1.1), baselines, [], 5.0)
        assert slower.worse[0].what == "decode"
        assert (len(slower.sessions), len(slower.baselines)) == (5, 5)
    (one,) = several(range(1), decode=1.15)
    alone = check([one], baselines[:1], [], 5.0)
    assert (alone.ok, alone.text) == (True, "NOT CLEAR  decode, the step")
    assert "runs of one program may differ by" in alone.untold[0].text
    assert alone.untold[0].text.endswith("several baselines would show less")


def test_how_fast_the_cpus_were_is_taken_out_of_cpu_times() -> None:
    found = checked(report(1, slower_cpus=1.2), report(2))
    assert found.worse == []
    assert found.comparison is not None
    assert found.comparison.cpu_slower_pct == pytest.approx(20.0)
    (decode,) = (change for change in found.comparison.stages if change.what == "decode")
    assert decode.cost_ms[1] / decode.cost_ms[0] == pytest.approx(1.2, abs=0.05)  # as measured
    assert abs(decode.change_pct) < 5
    other = report(2)
    other["ranks"][0]["system"]["host"]["calibration"]["work"] = "inflate, another zlib"
    found = checked(report(1, slower_cpus=1.2), other)
    assert found.comparison is not None
    assert found.comparison.cpu_slower_pct is None
    assert found.text.startswith("NOT CLEAR  decode")  # nothing says how fast the CPUs were


def test_a_speed_that_differs_much_lets_less_be_told() -> None:
    steady, slow = (checked(report(1, slower_cpus=factor), report(2)).comparison for factor in (1.0, 1.2))
    assert steady is not None
    assert slow is not None
    assert slow.stages[0].noise_pct > 3 * steady.stages[0].noise_pct
    assert checked(report(1, decode=1.1, slower_cpus=1.2), report(2)).text.startswith("NOT CLEAR  decode")


def test_baselines_that_were_held_up_alike_show_what_that_does() -> None:
    busy = [basis_of(report(seed, others=0.8)) for seed in range(3)]
    now = report(9, decode=1.15, others=0.8)
    assert check([now], busy, [], 5.0).worse[0].what == "decode"
    assert check([now], busy[:1], [], 5.0).worse == []
    assert check([report(9, decode=1.15, others=0.5)], busy, [], 5.0).worse == []


def test_what_other_programs_may_have_done_is_not_told() -> None:
    found = checked(report(1, decode=1.1, others=0.4), report(2))
    assert (found.ok, found.worse) == (True, [])
    assert found.text.startswith("NOT CLEAR  decode")
    assert "as in the session other programs took 40 % of the CPUs" in found.untold[0].text
    hidden = checked(report(1), report(2, others=0.4))
    assert (hidden.ok, [item.what for item in hidden.untold]) == (True, ["the step"])
    # So much they do not add.
    assert checked(report(1, decode=2.0, others=0.4), report(2)).worse[0].what == "decode"
    assert checked(report(1, decode=2.0, others=0.65), report(2)).worse == []  # they do: 0.65 / 0.35


def decoding(run: dict[str, Any], mean_bytes: float, error_bytes: float = 0.0) -> dict[str, Any]:
    for cost in run["ranks"][0]["stages"]:
        if cost["stage"] == "decode":
            cost.update(decoded_bytes=mean_bytes, decoded_bytes_error=error_bytes)
    return run


def test_more_bytes_decoded_are_told_whatever_the_machine_does() -> None:
    busy, quiet = (decoding(report(seed, others=others), 2 << 20) for seed, others in ((2, 0.0), (3, 0.6)))
    for baseline in (busy, quiet):
        more = checked(decoding(report(1, decode=1.1, others=0.6), 1.1 * (2 << 20)), baseline)
        assert (more.ok, [item.what for item in more.worse]) == (False, ["decode"])
        assert "+10 % of bytes, counted: 2.0 MiB -> 2.2 MiB decoded a sample" in more.worse[0].text
        assert checked(decoding(report(1, others=0.6), 2 << 20), baseline).ok
    # Half the time for more bytes is not worse.
    assert checked(decoding(report(1, decode=0.5), 4 << 20), report(2)).ok


def test_bytes_that_differ_by_the_choice_of_samples_are_not_told() -> None:
    before, after = decoding(report(2), 1000.0, 30.0), decoding(report(1), 1080.0, 30.0)
    found = checked(after, before)
    assert found.ok
    assert found.comparison is not None
    change = found.comparison.stages[0]
    assert change.decoded_change_pct == pytest.approx(8.0)
    assert change.decoded_noise_pct == pytest.approx(11.4, abs=0.1)  # 3.75 times 2.9 %
    assert checked(decoding(report(1), 1080.0, 3.0), decoding(report(2), 1000.0, 3.0)).worse
    unknown = checked(report(1), decoding(report(2), 1000.0)).comparison
    assert unknown is not None
    assert unknown.stages[0].decoded_bytes is None


def starting(run: dict[str, Any], seconds: float) -> dict[str, Any]:
    """The same run whose loop makes iterators for so long beside 3 s of training."""
    parts = [
        {"name": name, "in_loop": True, "ns": int(1e9 * part_s), "share_pct": None, "times": None}
        for name, part_s in (("training", 3.0), ("iterators", seconds))
    ]
    times_ns = dict.fromkeys(("whole_ns", "loop_ns"), int(1e9 * (3.0 + seconds)))
    return {**run, "ranks": [{**run["ranks"][0], "account": {**times_ns, "steps": STEPS, "parts": parts}}]}


def test_workers_that_are_started_anew_fail_a_check_though_no_step_is_longer() -> None:
    kept, anew = starting(report(1), 0.1), starting(report(2), 30.0)
    found = checked(anew, kept)
    assert [finding.what for finding in found.worse] == ["starting workers"]
    assert "51.7 -> 550.0 ms" in found.worse[0].text
    assert checked(kept, anew).ok
    assert checked(starting(report(2), 0.2), kept).ok


def validating(run: dict[str, Any], seconds: float) -> dict[str, Any]:
    """The same run whose loop validates for so long beside 3 s of training and 0.1 s of first batches."""
    named = (("training", 3.0), ("first_batches", 0.1), ("validation", seconds))
    parts = [
        {"name": name, "in_loop": True, "ns": int(1e9 * part_s), "share_pct": None, "times": None}
        for name, part_s in named
    ]
    times_ns = dict.fromkeys(("whole_ns", "loop_ns"), int(1e9 * (3.1 + seconds)))
    return {**run, "ranks": [{**run["ranks"][0], "account": {**times_ns, "steps": STEPS, "parts": parts}}]}


def test_a_check_names_the_part_that_made_the_whole_longer() -> None:
    """Not starting workers, which took as long as before."""
    (found,) = checked(validating(report(2), 30.0), validating(report(1), 5.0)).worse
    assert (found.what, found.code) == ("validation", "IO962")
    assert found.text.startswith("validation: 83.3 -> 500.0 ms a step, of 135.0 -> 551.7 ms a step in all")
    assert checked(validating(report(2), 5.0), validating(report(1), 30.0)).ok


def test_validation_that_was_added_is_told_where_the_whole_is_longer_for_it() -> None:
    """A side without a loader for it may have validated all the same: then the whole is as long."""
    found = compared(validating(report(1), 0.0), validating(report(2), 30.0))
    assert found.verdict == "slower"
    assert "ms a step in all, of which validation 0.0 -> 500.0" in found.text
    one, other = validating(report(1), 0.0), validating(report(2), 30.0)
    (account,) = (rank["account"] for rank in one["ranks"])
    account["loop_ns"] += 30 * 10**9
    account["parts"][0]["ns"] += 30 * 10**9
    found = compared(one, other)
    assert found.verdict == "no-difference"
    assert found.whole_run is not None
    assert not found.whole_run.changed


def test_what_others_may_have_done_to_a_part_is_told_and_decides_nothing() -> None:
    one, other = (validating(report(seed, others=0.8), seconds) for seed, seconds in ((1, 8.0), (2, 5.0)))
    found = compared(one, other)
    assert found.whole_run is not None
    assert [(part.what, part.unsure) for part in found.whole_run.changed] == [("validation", True)]
    assert found.whole_run.verdict is None
    (line,) = (each for each in comparison_head(found).lines if each.label == "Parts")
    assert line.text == "validation: -50.0 ms a step in all; other programs may have done that"
    other = validating(report(2, others=0.8), 7.0)
    found = compared(one, other)
    assert found.whole_run is not None
    assert not found.whole_run.changed


def test_the_rank_that_others_wait_for_stands_for_the_job() -> None:
    sides = [report(seed) for seed in (1, 2)]
    for side in sides:
        (rank,) = side["ranks"]
        waits_less = {**rank["data_wait"], "raw_ms": 1.0}
        side["ranks"] = [rank, {**rank, "rank": 1, "data_wait": waits_less}]
    assert (compared(*sides).rank, compared(*sides).is_late) == (0, False)
    sides[0]["lockstep"] = {"late_rank": 1}
    found = compared(*sides)
    assert (found.rank, found.is_late) == (1, True)


def test_quiet_seconds_of_a_busy_run_tell() -> None:
    now = report(1, decode=1.1, others=0.4)
    for cost in now["ranks"][0]["stages"]:
        cost["quiet"] = True
    assert [item.what for item in checked(now, report(2)).worse] == ["decode"]


@pytest.mark.parametrize("others", [0.0, 0.4, 0.8])
@pytest.mark.parametrize("quiet", [True, False])
def test_a_check_says_from_which_growth_on_it_fails(others: float, quiet: bool) -> None:
    def run(seed: int, decode: float) -> dict[str, Any]:
        made = report(seed, decode, others=others)
        for cost in made["ranks"][0]["stages"]:
            cost["quiet"] = quiet
        return made

    same = checked(run(1, 1.0), run(2, 1.0))
    assert same.finds_pct is not None
    from_on = 1 + same.finds_pct / 100
    assert checked(run(1, 1.05 * from_on), run(2, 1.0)).worse[0].what == "decode"
    assert checked(run(1, 1 + 0.9 * (from_on - 1)), run(2, 1.0)).worse == []
    assert (same.finds_pct >= 30) == (others > 0 and not quiet)  # what others may do is no less


@pytest.mark.parametrize(("decode", "certain"), [(3.0, True), (1.0, False)])
def test_reading_from_storage_made_no_step_longer_that_decoding_did(decode: float, certain: bool) -> None:
    sides = [report(1), report(2, decode=decode)]
    if not certain:
        (rank,) = sides[1]["ranks"]
        rank["blocks"]["step_ms"] = [3 * each for each in rank["blocks"]["step_ms"]]
        rank["steps"]["mean_ms"] *= 3
    for side, stored_bytes in zip(sides, (0, 60 << 20), strict=True):
        side["ranks"][0]["system"]["processes"] = [{"storage_read_bytes": stored_bytes}]
    found = checked(sides[1], sides[0])
    (step,) = (each for each in (*found.worse, *found.untold) if each.what == "the step")
    assert (step in found.worse) == certain
    assert ("from storage" in step.text) == (not certain)


def test_reading_from_storage_is_not_held_against_reading_from_memory() -> None:
    sides = [report(1), report(2)]
    for side, factor, stored_bytes in zip(sides, (1.0, 5.0), (0, 60 << 20), strict=True):
        (rank,) = side["ranks"]
        rank["stages"].append(stage("read", FILES[0], True, np.full(20, 4.0 * factor)) | {"clock": "wall"})
        rank["system"]["processes"] = [{"storage_read_bytes": stored_bytes}]
    found = checked(sides[1], sides[0])
    assert found.ok
    (finding,) = found.untold
    assert finding.what == "read of data/a.h5"
    assert finding.text.endswith("as the session read its files from storage, the other from memory")


def test_the_smallest_change_worth_failing_is_the_users() -> None:
    assert checked(report(1, decode=1.1), report(2), worse_by_pct=20.0).ok


def test_a_run_that_failed_fails_the_check() -> None:
    failed = report(1)
    failed["session"]["exit_code"] = 3
    assert [item.text for item in checked(failed, report(2)).worse] == ["the run failed: exit code 3"]


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ({"argv": ["/other/bin/python", "train.py"]}, None),
        ({"argv": ["python", "train.py", "--lr", "1"]}, "command: python train.py / python train.py --lr 1"),
        ({"world_size": 8}, "world size: 1 / 8"),
        ({"batch_size": 8}, "batch size: 4 / 8"),
        ({"dataset": "Images"}, "dataset: Volumes / Images"),
        ({"dataset": ""}, None),  # of items that nobody was seen to make
        ({"files": ["data/c.h5"]}, "data: no file was read in both (data/a.h5 / data/c.h5)"),
    ],
)
def test_other_work_is_not_compared(change: dict[str, Any], differs: str | None) -> None:
    other = report(2)
    rank = other["ranks"][0]
    for name, value in change.items():
        if name == "argv":
            other["session"]["argv"] = value
        elif name == "world_size":
            rank["world_size"] = value
        elif name == "files":
            rank["io"]["files"] = [{"path": path, "reads": 1} for path in value]
        else:
            rank["loaders"][0][name] = value
    found = compared(report(1), other)
    assert found.differs == ([] if differs is None else [differs])


@pytest.mark.parametrize(
    ("change", "samples"),
    [({"batch_size": 8}, [4, 8]), ({"world_size": 2}, [4, 8]), ({"world_size": 2, "batch_size": 2}, None)],
)
def test_steps_of_other_sizes_are_compared_for_as_many_samples(
    change: dict[str, int], samples: list[int] | None
) -> None:
    """Half as long for as many: the whole with its parts."""
    other = report(2)
    (rank,) = other["ranks"]
    for name, value in change.items():
        (rank if name == "world_size" else rank["loaders"][0])[name] = value
    found = compared(report(1), other)
    assert found.samples == samples
    if samples is None:
        assert (found.verdict, found.unit) == ("no-difference", "a step")
        return
    assert found.verdict == "faster"
    assert found.text.startswith("FASTER 1.9x")
    assert found.text.endswith(" ms for 4 samples, in steps of 4 -> 8")
    assert found.step_ms[1] == pytest.approx(
        sum(v[1] for v in found.causes_ms.values()) + found.rest_ms["the rest of the step"][1]
    )
    assert found.changed[0].by_ms == pytest.approx(-20, abs=2)


@pytest.mark.parametrize(("batches", "known"), [((60, 60), True), ((60, 30), False)])
def test_what_a_dataset_that_gives_batches_costs_is_of_a_sample_too(
    batches: tuple[int, int], known: bool
) -> None:
    one, other = report(1), report(2)
    for side, count in zip((one, other), batches, strict=True):
        side["ranks"][0]["loaders"][0]["batches"] = count
    (rank,) = other["ranks"]
    rank["loaders"][0]["batch_size"] = None
    for cost in rank["stages"]:  # four samples at once
        for figure in ("mean_ms", "quartile_ms"):
            cost[figure] *= 4
        cost["blocks_ms"] = [4 * each for each in cost["blocks_ms"]]
    stages = compared(one, other).stages
    assert [each.what for each in stages if each.stage == "transform"] == (["transform"] if known else [])
    assert all(abs(each.change_pct) < 10 for each in stages)


def test_samples_that_a_batch_sampler_chooses_cost_what_samples_do() -> None:
    """They are put together to batches: an item is a sample, though the loader has no batch size."""
    one, other = report(1), report(2)
    for side in (one, other):
        stage = {**side["ranks"][0]["stages"][0], "stage": "collate", "path": None, "per_sample": 0.25}
        side["ranks"][0]["stages"].append(stage)
    other["ranks"][0]["loaders"][0]["batch_size"] = None
    stages = compared(one, other).stages
    assert stages
    assert all(abs(each.change_pct) < 20 for each in stages)


@pytest.mark.parametrize(
    ("argv", "same", "refused"),
    [
        (["python", "train.py", "--workers", "8"], False, False),
        (["torchrun", "--nproc-per-node", "4", "train.py"], False, False),
        (["python", "train_fast.py"], True, False),
        (["python", "train_fast.py"], False, True),
        (["python", "-m", "train"], False, True),
    ],
)
def test_programs_that_have_nothing_in_common_are_refused(argv: list[str], same: bool, refused: bool) -> None:
    other = report(2)
    other["session"]["argv"] = argv
    if not same:
        other["ranks"][0]["loaders"][0]["dataset"] = "Images"
        other["ranks"][0]["io"]["files"] = [{"path": "photos/1.jpg", "reads": 1}]
    assert (compared(report(1), other).refused is not None) == refused


@pytest.mark.parametrize(
    ("argv", "batches", "differs"),
    [
        (["python", "train_fixed.py"], 60, []),
        (["python", "new/train.py"], 60, []),
        (["python", "train_fixed.py"], 30, ["command: python train.py / python train_fixed.py"]),
        (["python", "train_fixed.py", "-v"], 60, ["command: python train.py / python train_fixed.py -v"]),
        (["python", "train"], 60, ["command: python train.py / python train"]),
    ],
)
def test_a_program_in_another_file_is_compared_where_it_does_as_much(
    argv: list[str], batches: int, differs: list[str]
) -> None:
    one, other = report(1), report(2)
    other["session"]["argv"] = argv
    for side, count in ((one, 60), (other, batches)):
        side["ranks"][0]["loaders"][0]["batches"] = count
    found = compared(one, other)
    assert found.differs == differs
    named = [item.values for item in found.settings if item.what == "program"]
    assert named == ([] if differs else [["train.py", argv[1]]])


@pytest.mark.parametrize(("steps", "differs"), [(60, False), (30, True), (None, True)])
def test_without_loaders_as_many_steps_are_as_much(steps: int | None, differs: bool) -> None:
    one, other = starting(report(1), 0.1), starting(report(2), 0.1)
    other["session"]["argv"] = ["python", "train_fixed.py"]
    for side, count in ((one, 60), (other, steps)):
        (rank,) = side["ranks"]
        rank["loaders"] = []
        rank["account"] = count and {**rank["account"], "steps": count}
    found = compared(one, other)
    assert bool(found.differs) == differs


def test_a_change_of_the_datasets_own_code_names_the_line_that_had_most_of_it() -> None:
    before, after = report(1), report(2)
    for side, ms, function in ((before, 90.0, "encode_mask"), (after, 1.0, None)):
        (rank,) = side["ranks"]
        hot = {"line": "t.py:36", "function": function, "fraction": 0.9, "samples": 99}
        rank["loaders"] = [{"primary": True, "dataset": "D", "item_hot": hot if function else None}]
        rank["data_wait"]["causes_ms"]["transform"] = ms
    changes = {
        each.what: each for each in _changes(tuple(basis_of(side).ranks[0] for side in (before, after)))
    }
    assert changes["transform"].code == "encode_mask (t.py:36)"
    assert all(each.code is None for name, each in changes.items() if name != "transform")
    longer = {
        each.what: each for each in _changes(tuple(basis_of(side).ranks[0] for side in (after, before)))
    }
    assert longer["transform"].code == "encode_mask (t.py:36)"
    found = replace(compared(before, after), verdict="faster", changed=[changes["transform"]], settings=[])
    assert any(
        "; most of it in A: encode_mask (t.py:36)" in line.text for line in comparison_head(found).lines
    )


def test_a_part_that_takes_longer_is_no_reason_of_a_faster_run() -> None:
    """It is told as a change where nothing is certain, and has its row in the table."""
    before, after = report(1), report(2, decode=0.3)
    found = compared(before, after)
    longer = Changed(what="startup", by_ms=246.3, ci95_ms=[30.3, 543.7], cause="startup", file=None)
    mixed = replace(found, changed=[longer, *found.changed])
    assert found.verdict == "faster"
    assert "startup" not in [each.what for each in mixed.causes]
    assert mixed.causes == found.causes
    slower = replace(mixed, verdict="slower", changed=[longer])
    assert [each.what for each in slower.causes] == ["startup"]
    unclear = replace(mixed, verdict="unknown")
    assert "startup" in [each.what for each in unclear.causes]
    none = replace(found, changed=[longer])
    assert "no part of the step got shorter beyond its noise" in [x.text for x in comparison_head(none).lines]


def test_the_first_start_of_workers_is_no_part_of_the_start_up() -> None:
    """Its parts are no larger than the whole, which is without it."""
    before, after = (
        {
            "startup": {
                "seconds": 20.0,
                "parts": [
                    {"name": name, "at_seconds": 0.0, "seconds": seconds}
                    for name, seconds in {
                        "main (train.py)": own,
                        "workers' start": start,
                        "pickling": 2 * start,
                    }.items()
                ],
            },
            "account": {
                "whole_ns": 40 * 10**9,
                "loop_ns": 10 * 10**9,
                "steps": STEPS,
                "parts": [
                    {
                        "name": "start-up",
                        "in_loop": False,
                        "ns": int(own * 1e9),
                        "share_pct": None,
                        "times": None,
                    }
                ],
            },
        }
        for own, start in ((12.0, 9.0), (4.0, 0.1))
    )
    one, other = report(1), report(2)
    one["ranks"][0] |= before
    other["ranks"][0] |= after
    start = compared(one, other).startup
    assert start is not None
    assert start.seconds == [12.0, 4.0]
    assert [each.what for each in start.parts] == ["main (train.py)"]


def rewritten(run: dict[str, Any], decoded_bytes: float | None = 4096.0) -> dict[str, Any]:
    """The run with its files under other names, and as many bytes decoded for each sample."""
    (rank,) = run["ranks"]
    for item in (*rank["io"]["files"], *rank["data_wait"]["files"], *rank["stages"]):
        item["path"] = item["path"] and item["path"].replace(".h5", ".rechunked.h5")
    return with_bytes(run, decoded_bytes)


def with_bytes(run: dict[str, Any], decoded_bytes: float | None = 4096.0) -> dict[str, Any]:
    for item in run["ranks"][0]["stages"]:
        if item["stage"] == "decode":
            item["decoded_bytes"] = decoded_bytes
            item["decoded_bytes_error"] = None if decoded_bytes is None else 1.0
    return run


def test_data_that_was_rewritten_beside_the_old_is_the_same_work() -> None:
    """As re-chunking does it: a sample gets as many bytes, of a file with another name."""
    found = compared(with_bytes(report(1)), rewritten(report(2, decode=0.3)))
    assert (found.comparable, found.verdict) == (True, "faster")
    assert [(item.what, item.values) for item in found.settings] == [
        ("data", ["data/a.h5 and 1 more", "data/a.rechunked.h5 and 1 more"])
    ]
    assert found.stages[0].what == "decode"
    crowded = [with_bytes(report(1, others=0.9)), rewritten(report(2, decode=0.05, others=0.9))]
    likely = compared(*crowded)
    assert (likely.verdict, likely.likely) == ("faster", True)


@pytest.mark.parametrize("decoded_bytes", [2048.0, None])
def test_files_with_other_bytes_or_an_unknown_number_are_other_work(decoded_bytes: float | None) -> None:
    found = compared(with_bytes(report(1)), rewritten(report(2), decoded_bytes))
    assert not found.comparable
    assert not found.settings


def moved(run: dict[str, Any], directory: str, read_bytes: int | None, batches: int | None) -> dict[str, Any]:
    """The run with its data in another directory, of which so much was read for so many batches."""
    (rank,) = run["ranks"]
    for item in (*rank["io"]["files"], *rank["data_wait"]["files"], *rank["stages"]):
        item["path"] = item["path"] and item["path"].replace("data", directory)
    for item in rank["io"]["files"]:
        item["read_bytes"] = read_bytes
    rank["loaders"][0]["batches"] = batches
    return run


@pytest.mark.parametrize(
    ("read_bytes", "maps", "said"),
    [
        (1 << 19, 0, ": 2.0 MiB -> 1.0 MiB in traced reads"),
        (1 << 20, 0, ": as many bytes"),
        (None, 0, ""),
        (1 << 19, 1, ""),  # what page faults read is not known
    ],
)
def test_other_files_for_as_many_batches_are_compared(read_bytes: int | None, maps: int, said: str) -> None:
    """As images are that were stored smaller: what was read is said only where it is known."""
    before, after = (
        moved(report(1), "data", 1 << 20, 60),
        moved(report(2, decode=0.3), "small", read_bytes, 60),
    )
    after["ranks"][0]["io"]["files"][0]["maps"] = maps
    found = compared(before, after)
    assert (found.comparable, found.verdict) == (True, "faster")
    assert found.stages[0].what == "decode"
    lines = [line.text for line in comparison_head(found).lines]
    assert f"reads small/a.h5 and 1 more in place of data/a.h5 and 1 more{said}" in lines


def test_of_many_files_in_place_of_others_all_are_counted() -> None:
    """Stages name the costliest alone; what both read beside them, and what ends otherwise, replaces none."""
    before, after = moved(report(1), "ct", 1 << 20, 60), moved(report(2, decode=0.3), "ct", 1 << 19, 60)
    for run, ending, size_bytes in ((before, ".h5", 1 << 20), (after, ".nii", 1 << 19)):
        (rank,) = run["ranks"]
        for item in (*rank["io"]["files"], *rank["data_wait"]["files"], *rank["stages"]):
            item["path"] = item["path"] and item["path"].replace(".h5", ending)
        more = [f"ct/more{number}{ending}" for number in range(20)]
        rank["io"]["files"] += [{"path": path, "reads": 9, "read_bytes": size_bytes} for path in more]
        rank["io"]["files"] += [{"path": f"ct/log{ending}.txt", "reads": 9, "read_bytes": 1 << 30}]
        rank["io"]["files"] += [{"path": f"elsewhere/a{ending}", "reads": 9, "read_bytes": 1 << 30}]
    found = compared(before, after)
    lines = [line.text for line in comparison_head(found).lines]
    said = "reads ct/a.nii and 21 more in place of ct/a.h5 and 21 more: 22.0 MiB -> 11.0 MiB in traced reads"
    assert said in lines
    for run in (before, after):
        run["ranks"][0]["io"]["files"] += [{"path": "ct/mask.h5", "reads": 9, "read_bytes": 9}]
    assert "ct/mask.h5" not in str(compared(before, after).settings)


@pytest.mark.parametrize(
    ("before", "after", "short"),
    [
        ("data/ct/a.nii.gz", "data/ct/a.nii", "decode of a.*"),
        ("data/climate/era.h5", "data/climate/era_daily.h5", "decode of era.h5 -> era_daily.h5"),
        ("data/g250/a.mp4", "data/g8/a.mp4", "decode of {g250 -> g8}/a.mp4"),
        ("a/x.h5", "b/y.h5", "decode of a/x.h5 -> b/y.h5"),
    ],
)
def test_of_two_files_a_column_shows_what_differs(before: str, after: str, short: str) -> None:
    change = compared(report(1), report(2)).stages[0]
    named = replace(change, what=f"decode of {both_names(before, after)}", file=before, replaced_by=after)
    assert named.short == short
    assert replace(change, what="decode of data/a.h5").short == "decode of data/a.h5"


@pytest.mark.parametrize("batches", [(60, 30), (60, None), (None, None)])
def test_other_files_for_other_batches_are_other_work(batches: tuple[int | None, int | None]) -> None:
    found = compared(*(moved(report(1), name, 9, count) for name, count in zip("xy", batches, strict=True)))
    assert found.differs == ["data: no file was read in both (x/a.h5 / y/a.h5)"]


def with_rank(run: dict[str, Any], number: int, *files: str) -> dict[str, Any]:
    """The run with another rank, which waits less and reads these files."""
    (rank,) = run["ranks"]
    waits_less = {**rank["data_wait"], "raw_ms": 1.0}
    read = {"files": [{"path": path, "reads": 9} for path in files]}
    stages = [{**each, "path": each["path"] and files[0]} for each in rank["stages"]]
    run["ranks"].append({**rank, "rank": number, "data_wait": waits_less, "io": read, "stages": stages})
    return run


@pytest.mark.parametrize(
    ("of_other_rank", "differs"),
    [
        # All ranks read other files; the other rank reads as before; files are dealt out anew.
        (("u/a.h5", "v/a.h5"), ["data: no file was read in both (x/a.h5 / y/a.h5)"]),
        (("same/a.h5", "same/a.h5"), ["data of rank 0: no file was read in both (x/a.h5 / y/a.h5)"]),
        (("y/a.h5", "x/a.h5"), []),
    ],
)
def test_data_is_called_another_only_where_no_rank_reads_it(
    of_other_rank: tuple[str, str], differs: list[str]
) -> None:
    sides = [
        with_rank(moved(report(1), name, 9, count), 1, file)
        for name, count, file in zip("xy", (60, 30), of_other_rank, strict=True)
    ]
    assert compared(*sides).differs == differs


def test_files_that_ranks_exchanged_replace_none() -> None:
    sides = [
        with_rank(moved(report(1), name, 9, 60), 1, f"{other}/a.h5", f"{other}/b.h5")
        for name, other in ("xy", "yx")
    ]
    found = compared(*sides)
    assert (found.differs, found.settings) == ([], [])


def without_wait(run: dict[str, Any], rest: float) -> dict[str, Any]:
    """The run of a loop that no known loader feeds: a step of two phases, and `rest` times 30 ms."""
    (rank,) = run["ranks"]
    noise = np.random.default_rng(5).normal(1.0, 0.02, STEPS)
    blocks = {"forward": noise.tolist(), "backward": (6 * noise).tolist()}
    step_ms = (7 + 30 * rest) * noise
    rank["steps"]["mean_ms"] = float(step_ms.mean())
    rank["data_wait"] = {}
    rank["blocks"] = {"steps": 1, "step_ms": step_ms.tolist(), "wait_ms": [], "causes_ms": {}, "files_ms": {}}
    rank["blocks"]["phases_ms"] = blocks
    rank["phases_ms"] = {**{name: float(np.mean(own)) for name, own in blocks.items()}, "other": None}
    rank["stages"] = []
    return run


def test_where_the_wait_is_unknown_the_rest_of_the_step_has_it() -> None:
    found = compared(without_wait(report(1), 1.0), without_wait(report(2), 0.1))
    assert [change.what for change in found.changed] == ["the rest of the step"]
    assert list(found.rest_ms) == ["forward", "backward", "the rest of the step"]
    assert sum(before for before, _ in found.rest_ms.values()) == pytest.approx(found.step_ms[0])
    assert found.verdict == "faster"
    one_sided = compared(report(1), without_wait(report(2), 0.1))
    assert not one_sided.causes_ms  # an unknown wait is not compared as none
    assert not any(change.cause for change in one_sided.changed)


@pytest.mark.parametrize(("cost_pct", "verdict"), [(None, "faster"), (40.0, "unknown")])
def test_tracing_of_unknown_cost_is_not_what_made_steps_longer(cost_pct: float | None, verdict: str) -> None:
    before, after = report(1), report(2, decode=0.5)
    reasons = ["tracing took 40 % of a step"]
    before["verdict"]["trust"] = {"level": "bad", "reasons": reasons, "codes": [TRACING_COST]}
    before["ranks"][0]["overhead"] = {"estimated_pct_of_step": cost_pct}
    assert compared(before, after).verdict == verdict


def computing(run: dict[str, Any], cpu_pct: float, delay_pct: float = 70.0) -> dict[str, Any]:
    """The run without stages, on CPUs that others share: what the training process took of one."""
    (rank,) = run["ranks"]
    rank["stages"] = []
    rank["system"]["processes"] = [{"role": "main", "cpu_pct_mean": cpu_pct, "run_delay_pct_mean": delay_pct}]
    return run


@pytest.mark.parametrize(
    ("cpu_pct", "delay_pct", "expected"),
    [
        ((20.0, 20.0), 70.0, ("faster", True)),  # the step is a third, and so is its CPU time
        ((20.0, 36.0), 70.0, ("unknown", False)),  # 1.67 times less: the same work took that beside others
        ((20.0, 55.0), 70.0, ("unknown", False)),  # as much CPU time: the neighbours may have made the change
        ((20.0, 20.0), 10.0, ("unknown", False)),  # a step that hardly computes
    ],
)
def test_cpu_time_of_the_training_tells_beside_neighbours(
    cpu_pct: tuple[float, float], delay_pct: float, expected: tuple[str, bool]
) -> None:
    """Neighbours that are alike make the same program's CPU time no other."""
    runs = [
        computing(report(seed, decode=1 - 0.8 * seed, others=0.9), cpu_pct[seed], delay_pct)
        for seed in (0, 1)
    ]
    found = compared(*runs)
    assert (found.verdict, found.likely) == expected
    assert ("of CPU a step" in found.text) is found.likely


@pytest.mark.parametrize(
    ("cpu_pct", "delay_pct", "workers", "expected"),
    [
        ((20.0, 20.0), 75.0, 2, ("faster", True)),  # they compute a third as long for a step
        ((20.0, 55.0), 75.0, 2, ("unknown", False)),  # as long as before: neighbours may have made the change
        ((20.0, 20.0), 10.0, 2, ("unknown", False)),  # they mostly sleep: their CPU time makes no step
        ((20.0, 20.0), 75.0, 3, ("unknown", False)),  # one has left, or came anew: of it nothing is known
    ],
)
def test_cpu_time_of_the_workers_tells_where_the_loop_waits_for_them(
    cpu_pct: tuple[float, float], delay_pct: float, workers: int, expected: tuple[str, bool]
) -> None:
    runs = [computing(report(seed, decode=1 - 0.8 * seed, others=0.9), 3.0, 8.0) for seed in (0, 1)]
    for run, cpu in zip(runs, cpu_pct, strict=True):
        (rank,) = run["ranks"]
        rank["data_wait"]["raw_ms"] = 0.9 * rank["steps"]["mean_ms"]
        next(each for each in rank["loaders"] if each["primary"])["workers"] = workers
        rank["system"]["processes"] += [
            {"role": f"worker {number}", "cpu_pct_mean": cpu, "run_delay_pct_mean": delay_pct}
            for number in range(2)
        ]
    found = compared(*runs)
    assert (found.verdict, found.likely) == expected
    assert ("its workers take" in found.text) is found.likely


@pytest.mark.parametrize(
    ("one", "other", "differs"),
    [
        ("torchrun --master_port 1 t.py", "torchrun --master-port=2 t.py", False),
        ("torchrun --standalone t.py", "torchrun --rdzv-endpoint localhost:1 --rdzv-id 7 t.py", False),
        (
            "python t.py --output_dir runs/a --run-name a --lr 1",
            "python t.py --lr 1 --output_dir=runs/b",
            False,
        ),
        ("python t.py trainer.default_root_dir=a", "python t.py trainer.default_root_dir=b", False),
        ("python t.py --seed --lr 1", "python t.py --seed 3 --lr 1", False),
        ("torchrun --nproc_per_node 2 t.py", "torchrun --nproc_per_node 4 t.py", True),
        ("torchrun --master_port 1 t.py --lr 1", "torchrun --master_port 2 t.py --lr 2", True),
        ("python t.py --data_dir a", "python t.py --data_dir b", True),
        ("python t.py seed 1", "python t.py seed 2", True),
    ],
)
def test_where_a_run_meets_and_writes_is_no_other_work(one: str, other: str, differs: bool) -> None:
    runs = report(1), report(2)
    for run, command in zip(runs, (one, other), strict=True):
        run["session"]["argv"] = command.split()
    assert bool(compared(*runs).differs) is differs


def test_of_long_commands_what_differs_is_shown() -> None:
    deep = "/scratch/project/users/name/checkouts/of/the/program"
    one, other = report(1), report(2)
    one["session"]["argv"] = ["python", f"{deep}/train.py", "--epochs", "90", "--lr", "0.1"]
    other["session"]["argv"] = ["python", f"{deep}/other.py", "--epochs", "90", "--lr", "0.1"]
    assert compared(one, other).differs == ["command: ...e/program/train.py ... / ...e/program/other.py ..."]
    other["session"]["argv"] = [*one["session"]["argv"], "--compile"]
    assert compared(one, other).differs == ["command: ... nothing / ... --compile"]


def test_many_files_of_the_same_directory_are_the_same_data() -> None:
    sides = [report(1), report(2)]
    for number, side in enumerate(sides):
        names = [f"images/{2 * index + number}.jpg" for index in range(40)]
        side["ranks"][0]["io"]["files"] = [{"path": name, "reads": 1} for name in names]
    assert compared(*sides).comparable


def test_settings_and_surroundings_that_differ_are_told() -> None:
    other = report(2)
    other["ranks"][0]["loaders"][0]["workers"] = 4
    one = report(1)
    one["processes"] = [{"python": "3.11.7", "versions": {}}]
    other["processes"] = [{"python": "3.12.1", "versions": {"torch": "2.13.0"}}]
    found = compared(one, other)  # which torch A had is not known: no difference
    assert [(item.what, item.values) for item in found.settings] == [("num_workers", ["2", "4"])]
    assert [(item.what, item.values) for item in found.environment] == [
        ("Python", ["3.11.7", "3.12.1"]),
    ]


def test_the_rank_that_waits_longest_stands_for_the_job() -> None:
    one, other = report(1), report(2)
    for side in (one, other):
        quick = json.loads(json.dumps(side["ranks"][0])) | {"rank": 1}
        quick["data_wait"]["raw_ms"] = 1.0
        side["ranks"].insert(0, quick)
    found = compared(one, other)
    assert (found.rank, found.ranks) == (0, [2, 2])


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("data_wait.raw_wait_fraction > 20%", True),
        ("data_wait.raw_wait_fraction>0.99", False),
        ("ranks[].steps.mean_ms < 1e9", True),
        ("ranks[1].steps.mean_ms < 1e9", None),
        ("loaders[0].workers == 2", True),
        ("data_wait.causes_ms.decode <= 1", False),
        ("overhead.estimated_pct_of_step > 2%", None),
        ("session.exit_code != 0", False),
    ],
)
def test_conditions_on_the_fields_of_the_json(condition: str, holds: bool | None) -> None:
    assert judge(parse(condition), report()).holds is holds


def test_a_percentage_keeps_its_number() -> None:
    assert parse("overhead.estimated_pct_of_step > 2%").number == 2.0
    assert parse("data_wait.stall_fraction > 2%").number == 0.02


@pytest.mark.parametrize(
    ("condition", "message", "remedy"),
    [
        ("data_wait.raw_ms", "takes FIELD OP NUMBER", "data_wait.raw_wait_fraction > 20%"),
        ("data_wait.raw_wait > 1", "no field data_wait.raw_wait", "data_wait.raw_wait_fraction"),
        ("exposed_ms > 1", "no field exposed_ms", "the nearest: data_wait.exposed_ms"),
        ("data_wait.causes_ms.decoding > 1", "no field", "data_wait.causes_ms.decode"),
        ("verdict.why > 1", "is a text", "iotrace schema report"),
        (
            "data_wait > 10%",
            "data_wait is no number",
            "say which: data_wait.raw_wait_fraction, ",
        ),
        ("ranks[].steps > 10", "is no number; it holds several", "say which: steps.count"),
        ("zebra > 1", "no field zebra", "iotrace schema report"),
    ],
)
def test_a_condition_that_is_none_gets_a_sentence(condition: str, message: str, remedy: str) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        parse(condition)
    assert remedy in raised.value.remedy


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """Reports as a user keeps them: `now.json` decodes more slowly than `before.json`."""
    slower = report(2, decode=1.3)
    failed, running, empty = report(3), report(4), report(5)
    failed["session"]["exit_code"] = 1
    running["session"] |= {"ended": False, "exit_code": None, "state": "running"}
    empty["ranks"][0]["steps"] = {"count": 0}
    written = {
        "before": report(1),
        "now": slower,
        "failed": failed,
        "running": running,
        "empty": empty,
        "newer": report(6, schema_version=2),
        "other": {"traceEvents": []},
    }
    for name, document in written.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(document))
    (tmp_path / "text.json").write_text("no JSON")
    return tmp_path


def test_the_command_line_of_check(kept: Path) -> None:
    def run(*words: str) -> tuple[int, str]:
        done = in_process("check", *words, cwd=kept)
        return done.returncode, done.stdout + done.stderr

    code, text = run("now.json", "--baseline", "before.json")
    assert (code, text.splitlines()[0]) == (4, "WORSE  decode, the step")
    code, text = run("now.json", "--baseline", "before.json", "--format", "md")
    assert code == 4
    assert text.startswith("### ❌ iotrace check: WORSE  decode, the step\n")
    assert "| decode of data/a.h5 (CPU) |" in text
    # A kept report is called by its file: its session was another one of the same name, or is gone.
    code, text = run("now.json", "--baseline", "before.json")
    assert "iotrace compare before.json " in text
    code, text = run("before.json", "--baseline", "before.json", "--json", "--save-baseline", "kept.json")
    found, wrote = text.rsplit("iotrace: ", 1)
    found = json.loads(found)
    assert (code, found["ok"], found["comparable"], wrote) == (0, True, True, "wrote kept.json\n")
    assert json.loads((kept / "kept.json").read_text()) == json.loads((kept / "before.json").read_text())
    code, text = run("now.json", "--baseline", "before.json", "--save-baseline", "kept.json")
    assert (code, text.splitlines()[-1]) == (
        4,
        "iotrace: kept.json is not written: the check did not pass",
    )
    assert json.loads((kept / "kept.json").read_text()) == json.loads((kept / "before.json").read_text())
    code, text = run("before.json", "--fail-if", "steps.mean_ms > 1e6", "--save-baseline", "none/kept.json")
    assert (code, text.splitlines()[0]) == (1, "PASSED")
    assert "iotrace: cannot write none/kept.json: No such file or directory\n  choose another" in text
    assert run("failed.json", "--baseline", "before.json")[0] == 4
    code, text = run(
        "now.json", "--fail-if", "steps.mean_ms > 1", "--fail-if", "data_wait.raw_wait_fraction > 0.1%"
    )
    assert (code, text.splitlines()[0]) == (
        4,
        "FAILED  steps.mean_ms > 1, data_wait.raw_wait_fraction > 0.1%",
    )
    assert re.search(
        r"Why    rank 0: steps.mean_ms is [\d.]+\n       rank 0: data_wait.raw_wait_fraction is [\d.]+ %",
        text,
    )
    code, text = run("now.json", "--fail-if", "steps.mean_ms > 1e6")
    assert (code, text.splitlines()[0]) == (0, "PASSED")
    assert re.search(r"^Passed rank 0: steps.mean_ms is [\d.]+; fails if steps.mean_ms > 1e6$", text, re.M)
    assert run("before.json", "--fail-if", "data_wait.stall_fraction > 20%")[0] == 0
    assert run("before.json", "--fail-if", "data_wait.stall_fraction > 20%", "--strict")[0] == 4


def test_several_sessions_and_baselines_on_the_command_line(kept: Path) -> None:
    words = ["--fail-if", "steps.mean_ms > 1e6", "--save-baseline"]
    assert in_process("check", "before.json", *words, "of/main/", cwd=kept).returncode == 0
    sessions = [str(kept / f"again{seed}.json") for seed in (7, 8)]
    for seed, path in zip((7, 8), sessions, strict=True):
        Path(path).write_text(json.dumps(report(seed)))
    assert in_process("check", *sessions, *words, "of/main", cwd=kept).returncode == 0
    names = sorted(path.name for path in (kept / "of/main").iterdir())
    assert names == [f"19700101T000000Z-run-{seed}.json" for seed in (1, 7, 8)]
    done = in_process("check", "now.json", "--baseline", "of/main", "--json", cwd=kept)
    found = json.loads(done.stdout)
    assert (done.returncode, len(found["baselines"]), found["worse"][0]["what"]) == (4, 3, "decode")
    done = in_process("check", *sessions, *words, "one.json", cwd=kept)
    assert (done.returncode, "would be one file for 2 sessions" in done.stderr) == (2, True)
    (kept / "nothing").mkdir()
    done = in_process("check", "now.json", "--baseline", "nothing", cwd=kept)
    assert (done.returncode, "nothing holds no baseline" in done.stderr) == (1, True)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["now.json"], 2, "nothing to check SESSION against"),
        (["now.json", "--baseline", "newer.json"], 1, "has schema version 2; this iotrace reads 1"),
        (["now.json", "--baseline", "other.json"], 1, "holds no report of iotrace"),
        (["now.json", "--baseline", "text.json"], 1, "holds no report of iotrace"),
        (["now.json", "--baseline", "failed.json"], 1, "the baseline failed.json failed: exit code 1"),
        (["running.json", "--baseline", "now.json"], 1, "run-4 is still running"),
        (["empty.json", "--baseline", "now.json"], 1, "has no measured steps"),
        (["now.json", "--baseline", "none"], 1, "none does not exist"),
        (["now.json", "--fail-if", "data_wait.raw_mss > 3"], 2, "data_wait.raw_ms"),
    ],
)
def test_what_cannot_be_checked_gets_a_sentence(
    kept: Path, words: list[str], code: int, message: str
) -> None:
    done = in_process("check", *words, cwd=kept)
    assert (done.returncode, done.stdout) == (code, "")
    assert message in done.stderr


@pytest.mark.parametrize("width", ["60", "80", "200"])
def test_the_screen_of_compare(kept: Path, width: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", width)
    done = in_process("compare", "before.json", "now.json", cwd=kept)
    lines = done.stdout.splitlines()
    assert done.returncode == 0
    assert lines[0].startswith("SLOWER ")
    assert lines[1].startswith("Why    decode: +")
    assert any(line.startswith("decode ") for line in lines)
    assert max(map(len, lines)) <= int(width)
    assert not [line for line in lines if line != line.rstrip()]
    other = report(7)
    other["session"]["argv"] = ["python", "other.py"]
    (kept / "work.json").write_text(json.dumps(other))
    done = in_process("compare", "before.json", "work.json", cwd=kept)  # both read the same data
    assert done.returncode == 0
    assert "Work   differs in command:" in done.stdout
    other["ranks"][0]["loaders"][0]["dataset"] = "Images"
    other["ranks"][0]["io"]["files"] = [{"path": "photos/1.jpg", "reads": 1}]
    (kept / "work.json").write_text(json.dumps(other))
    done = in_process("compare", "before.json", "work.json", cwd=kept)
    assert (done.returncode, done.stdout) == (1, "")
    assert "have nothing to compare: train.py and other.py read no file in common" in done.stderr
    assert "\n  command: python train.py / python other.py\n" in done.stderr
    done = in_process("compare", "before.json", "work.json", "--anyway", "--json", cwd=kept)
    assert (done.returncode, json.loads(done.stdout)["comparable"]) == (0, False)
    done = in_process("check", "work.json", "--baseline", "before.json", "--anyway", cwd=kept)
    assert done.stdout.endswith(" --anyway\n")


def test_a_baseline_that_lacks_figures_of_the_host_is_read() -> None:
    old = report()
    old["ranks"][0]["system"]["host"] = {"cpu_busy_fraction": None}
    (rank,) = basis_of(old).ranks
    assert rank.system.host is not None
    assert (rank.system.host.others_cpu_fraction, rank.system.host.calibration) == (None, None)
    assert checked(report(), old).ok


@pytest.mark.parametrize(
    ("before", "after", "both"),
    [
        ("data/chunks/a.h5", "data/whole/a.h5", "data/{chunks -> whole}/a.h5"),
        ("data/a.h5", "data/b.h5", "data/{a.h5 -> b.h5}"),
        ("a/x.h5", "b/y.h5", "a/x.h5 -> b/y.h5"),
        ("d/a.h5", "d/more/a.h5", "d/{. -> more}/a.h5"),
    ],
)
def test_two_files_are_named_in_one(before: str, after: str, both: str) -> None:
    assert both_names(before, after) == both


@pytest.mark.parametrize(
    ("collate_ms", "sampling_ms", "carries"),
    [((60.0, 10.0), (0.0, 0.0), True), ((0.5, 0.3), (109.0, 0.1), False), ((None, None), (109.0, 0.1), True)],
)
def test_a_stage_speaks_for_the_step_where_the_wait_for_it_changed_as_much(
    collate_ms: tuple[float | None, float | None], sampling_ms: tuple[float, float], carries: bool
) -> None:
    ranks = [
        SimpleNamespace(
            steps=SimpleNamespace(mean_ms=step_ms),
            data_wait=SimpleNamespace(
                causes_ms={"sampling": sampling} | ({} if collate is None else {"collate": collate})
            ),
        )
        for step_ms, collate, sampling in zip((140.0, 14.0), collate_ms, sampling_ms, strict=True)
    ]
    change: Any = SimpleNamespace(stage="collate")
    assert _carries(change, cast("tuple[Rank, Rank]", tuple(ranks))) is carries


@pytest.mark.parametrize(
    ("decode_ci95", "spoken"),
    [([-54.0, 1.5], "transform"), ([-40.0, -25.0], "transform"), ([-95.0, -85.0], "decode")],
)
def test_the_stage_that_changed_most_speaks_and_none_that_chance_may_have_changed(
    decode_ci95: list[float], spoken: str
) -> None:
    ranks: Any = [
        SimpleNamespace(
            steps=SimpleNamespace(mean_ms=ms),
            data_wait=SimpleNamespace(causes_ms={}),
            system=SimpleNamespace(host=None),
        )
        for ms in (279.0, 167.0)
    ]
    stages: Any = [
        SimpleNamespace(
            stage=name,
            clock="cpu",
            quiet=True,
            file=None,
            change_pct=sum(ci95) / 2,
            ci95_pct=ci95,
            share=share,
            noise_pct=6.0,
        )
        for name, ci95, share in (("decode", decode_ci95, 0.58), ("transform", [-90.0, -78.0], 0.41))
    ]
    found = _speaking(ranks, stages, "faster")
    assert found is not None
    assert found.stage == spoken


def test_the_data_of_a_rank_is_said_to_be_its_own_where_other_ranks_read_the_same() -> None:
    runs = [report(1), moved(report(1), "y", 9, 60)]
    for run in runs:
        (one,) = run["ranks"]
        run["ranks"].append({**one, "rank": 1, "io": {"files": [{"path": "both/a.h5", "reads": 9}]}})
    sides = [basis_of(run) for run in runs]
    pair = (sides[0].ranks[0], replace(sides[1].ranks[0], loaders=[]))
    (said,) = [each for each in differences(*sides, pair) if "no file" in each]
    assert said.startswith("data of rank 0: no file was read in both")


def test_stages_of_several_loaders_are_compared_by_loader() -> None:
    def cost(loader: str, *each_ms: float) -> StageCost:
        known = stage("transform", None, True, each_ms)
        return StageCost(**{**known, "per_sample": 1.0}, loader=loader)

    def rank(unlabelled_ms: float) -> Any:
        noise = np.linspace(0.98, 1.02, 40)
        costs = [cost("Unlabelled", *(unlabelled_ms * noise)), cost("Labelled", *(0.02 * noise))]
        (known,) = basis_of(report(1)).ranks
        return replace(known, stages=costs)

    first, second = stage_changes([rank(2.0)], [rank(1.0)])
    assert (first.what, second.what) == ("transform of Unlabelled", "transform of Labelled")
    assert first.change_pct == pytest.approx(-50, abs=1)
    assert second.change_pct == pytest.approx(0, abs=1)


@pytest.mark.parametrize(
    ("each_ms", "mean_ms", "per_sample", "told"),
    [
        ((2.0, 2.0), (2.0, 2.0), (1.0, 1.0), [0.0]),
        ((2.0, 2.0), (2.0, 2.0), (1.0, 1.3), [0.0]),  # which file is drawn how often is chance
        ((2.0, 2.0), (2.0, 2.0), (1.0, 0.1), [-90.0]),  # what is kept is decoded once
        ((0.02, 2.0), (4.0, 2.0), (2.0, 1.0), []),  # empty calls among the costly ones
        ((2.0, 2.0), (2.0, 9.0), (1.0, 1.0), []),
    ],
)
def test_what_a_stage_costs_counts_as_often_as_it_is_needed(
    each_ms: tuple[float, float],
    mean_ms: tuple[float, float],
    per_sample: tuple[float, float],
    told: list[float],
) -> None:
    def rank(side: int) -> Any:
        known = stage("decode", "a.npz", True, each_ms[side] * np.linspace(0.98, 1.02, 40))
        cost = StageCost(**{**known, "mean_ms": mean_ms[side], "per_sample": per_sample[side]})
        return replace(basis_of(report(1)).ranks[0], stages=[cost])

    assert [each.change_pct for each in stage_changes([rank(0)], [rank(1)])] == pytest.approx(told, abs=1)


@pytest.mark.parametrize(
    ("items", "steps", "other"),
    [((120, 120), (120, 720), True), ((120, 120), (120, 120), False), ((120, 720), (120, 720), False)],
)
def test_as_many_items_in_other_numbers_of_steps_are_other_steps(
    items: tuple[int, int], steps: tuple[int, int], other: bool
) -> None:
    ranks: Any = tuple(
        SimpleNamespace(
            loaders=[
                SimpleNamespace(batches=taken, pool="queue.Queue"),
                SimpleNamespace(batches=9, pool=None),
            ],
            account=SimpleNamespace(steps=counted),
        )
        for taken, counted in zip(items, steps, strict=True)
    )
    assert (other_steps(ranks) is not None) is other


@pytest.mark.parametrize(
    ("ratio", "said"), [(0.47, "2.1x"), (2.8, "2.8x"), (0.9, "1.11x"), (1.08, "1.08x"), (0.97, "3 %")]
)
def test_a_change_is_said_as_a_factor_that_is_not_taken_for_another(ratio: float, said: str) -> None:
    """``FASTER 53 %`` may be read as 1.53 times as fast, where it is 2.1 times."""
    assert times(ratio) == said
