"""What a comparison names beside the step: an epoch of the same data, functions, garbage, the start-up."""

from __future__ import annotations

from typing import Any

import pytest

from iotrace.analysis.compare.basis import basis_of
from iotrace.analysis.compare.check import check
from iotrace.analysis.compare.comparison import compare
from iotrace.analysis.compare.results import Comparison
from iotrace.report.comparison import comparison_head

S = 10**9


def report(
    steps: int = 300,
    step_ms: float = 8.0,
    times: int = 1,
    epochs: int = 1,
    ended: int | None = None,
    distinct_bytes: int = 10**7,
    batch_size: int = 32,
    others: float = 0.0,
    **of_rank: Any,
) -> dict[str, Any]:
    """A loop of `steps` steps, whose workers give each sample so many `times` an epoch."""
    seconds = steps * step_ms / 1e3
    parts = [
        {"name": "start-up", "in_loop": False, "ns": 3 * S, "share_pct": None},
        {"name": "first start", "in_loop": False, "ns": 0, "share_pct": None},
        {"name": "training", "in_loop": True, "ns": round(seconds * S), "share_pct": None},
    ]
    culprits = [{"code": "IO411", "evidence": {"workers": 4.0, "times": float(times)}}] if times > 1 else []
    blocks = [step_ms * (1 + 0.02 * (each % 5 - 2)) for each in range(60)]
    file = {
        "path": "data/a.gz",
        "reads": 9,
        "read_bytes": distinct_bytes * times * epochs,
        "reread_fraction": 1 - 1 / (times * epochs),
    }
    rank = {
        "rank": 0,
        "steps": {"count": steps, "mean_ms": step_ms},
        "data_wait": {"raw_ms": step_ms / 2, "causes_ms": {"transport": step_ms / 2}},
        "blocks": {
            "steps": 1,
            "step_ms": blocks,
            "wait_ms": [each / 2 for each in blocks],
            "causes_ms": {"transport": [each / 2 for each in blocks]},
            "files_ms": {},
        },
        "account": {
            "whole_ns": round(seconds * S) + 3 * S,
            "loop_ns": round(seconds * S),
            "steps": steps,
            "parts": parts,
        },
        "culprits": culprits,
        "loaders": [
            {
                "primary": True,
                "dataset": "Lines",
                "workers": 4,
                "batch_size": batch_size,
                "batches": steps,
                "epochs": epochs,
                "epochs_ended": epochs if ended is None else ended,
            }
        ],
        "system": {
            "cpus": 2,
            "host": {
                "cpu_busy_fraction": min(1.0, 0.4 + others),
                "others_cpu_fraction": others,
                "cpu_saturated_fraction": others,
            },
        },
        "io": {"files": [file]},
        **of_rank,
    }
    return {
        "schema_version": 1,
        "session": {"path": f"run-{steps}", "argv": ["python", "train.py"], "exit_code": 0, "ended": True},
        "verdict": {"text": "INPUT-BOUND", "trust": {"level": "ok", "reasons": [f"{steps} steps"]}},
        "ranks": [rank],
    }


def compared(one: dict[str, Any], other: dict[str, Any]) -> Comparison:
    return compare(basis_of(one), basis_of(other))


def told(found: Comparison) -> list[str]:
    return [line.text for line in comparison_head(found).lines]


def test_an_epoch_that_has_each_sample_once_is_faster_though_no_step_is() -> None:
    found = compared(report(300, times=4), report(76))
    assert found.verdict == "faster"
    assert found.text == (
        "FASTER 3.9x: an epoch takes 2.4 -> 0.608 s, in 300 -> 76 batches; a step took 8.0 -> 8.0 ms"
    )
    assert "an epoch had each sample 4 times in A, and has it once in B" in told(found)


def test_a_check_fails_where_an_epoch_has_each_sample_several_times() -> None:
    found = check([report(300, times=4)], [basis_of(report(76))], [], 5.0)
    assert [(each.what, each.code) for each in found.worse] == [("an epoch", "IO961")]
    assert found.worse[0].text == (
        "an epoch: 3.9x, 0.608 -> 2.4 s, in 76 -> 300 batches: each sample comes 4 times"
    )


def test_more_workers_that_each_give_all_samples_make_no_epoch_shorter() -> None:
    """A step is four times as short: an epoch has four times as many of them."""
    found = compared(report(75, 32.0), report(300, 8.0, times=4))
    assert (found.verdict, found.text.partition(":")[0]) == ("no-difference", "NO DIFFERENCE seen")
    assert found.epoch is not None
    assert found.epoch.times == [1, 4]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param({"steps": 300, "times": 4}, {"steps": 76, "ended": 0}, id="left before its end"),
        pytest.param({"steps": 300}, {"steps": 76}, id="fewer samples"),
        pytest.param(
            {"steps": 300, "times": 4}, {"steps": 38, "distinct_bytes": 5 * 10**6}, id="shared out, and half"
        ),
        pytest.param(
            {"steps": 300, "times": 4},
            {"steps": 76, "distinct_bytes": 25 * 10**5},
            id="a quarter of the data",
        ),
        pytest.param(
            {"steps": 300, "times": 4}, {"steps": 76, "times": 4}, id="each sample as often, but fewer"
        ),
        pytest.param({"steps": 300, "epochs": 4}, {"steps": 75, "epochs": 1}, id="fewer epochs"),
    ],
)
def test_a_program_that_was_run_for_shorter_is_not_faster(one: dict[str, Any], other: dict[str, Any]) -> None:
    found = compared(report(**one), report(**other))
    assert (found.verdict, found.epoch) == ("no-difference", None)


def test_batches_of_other_sizes_are_compared_by_epochs() -> None:
    found = compared(report(300, 8.0, batch_size=32), report(75, 16.0, batch_size=128))
    assert found.differs == ["batch size: 32 / 128"]
    assert found.text == (
        "FASTER 2x: an epoch takes 2.4 -> 1.2 s, in 300 -> 75 batches; a step took 8.0 -> 16.0 ms"
    )


def test_beside_other_programs_an_epoch_is_likely_faster() -> None:
    found = compared(report(300, times=4, others=0.85), report(76, 9.0, others=0.85))
    assert (found.verdict, found.likely) == ("faster", True)
    assert found.text.startswith("LIKELY FASTER 3.5x: an epoch takes ")


def code(function: str, ms: float, samples: int) -> dict[str, Any]:
    return {
        "function": function,
        "seconds": 300 * ms / 1e3,
        "samples": samples,
        "ms_per_step": ms,
        "loop_fraction": 0.5,
    }


def phases(other: float, step_ms: float) -> dict[str, Any]:
    return {
        "phases_ms": {"forward": 1.0, "backward": 1.0, "optimizer": 0.5, "other": other},
        "data_wait": {"raw_ms": 0.0, "causes_ms": {"transport": 0.0}},
        "blocks": {
            "steps": 1,
            "step_ms": [step_ms + 0.1 * (each % 5 - 2) for each in range(60)],
            "wait_ms": [0.0] * 60,
            "causes_ms": {"transport": [0.0] * 60},
            "phases_ms": {
                "forward": [1.0] * 60,
                "backward": [1.0] * 60,
                "optimizer": [0.5] * 60,
                "other": [other + 0.1 * (each % 5 - 2) for each in range(60)],
            },
            "files_ms": {},
        },
    }


def unknown() -> dict[str, Any]:
    return {"data_wait": {"raw_ms": None, "causes_ms": {}}}


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        pytest.param(
            [code("Buffer.sample (her.py:11)", 7.0, 100)],
            [code("Buffer.sample (her.py:14)", 1.0, 14)],
            "Buffer.sample (her.py:11): -6.0 ms a step in all",
            id="moved",
        ),
        pytest.param(
            [code("Buffer.sample (her.py:11)", 7.0, 100)],
            [],
            "Buffer.sample (her.py:11): at least -5.5 ms a step in all",
            id="gone",
        ),
        pytest.param(
            [code("train.py:30", 7.0, 100)],
            [],
            "train.py:30: at least -5.5 ms a step in all",
            id="a line of the loop",
        ),
        pytest.param(
            [code("train.py:30", 7.0, 100)],
            [code("train.py:30", 1.0, 14)],
            "other: -6.0 ms a step",
            id="the same line may be another",
        ),
        pytest.param(
            [code("main (train.py:30)", 4.0, 100), code("main (train.py:33)", 3.0, 75)],
            [code("main (train.py:33)", 0.7, 17), code("main (train.py:31)", 0.3, 8)],
            "main (train.py:30 and other lines): -6.0 ms a step in all",
            id="lines of one function are its time",
        ),
        pytest.param(
            [code("main (train.py:30)", 7.0, 100)],
            [code("main (train.py:30)", 3.6, 50), code("main (train.py:31)", 3.4, 48)],
            "other: -6.0 ms a step",
            id="its time in other lines",
        ),
        pytest.param(
            [code("Buffer.sample (her.py:11)", 7.0, 9)],
            [code("Buffer.sample (her.py:11)", 6.0, 8)],
            "other: -6.0 ms a step",
            id="as long as before",
        ),
    ],
)
def test_the_function_is_named_that_the_loop_was_in(before: Any, after: Any, named: str) -> None:
    found = compared(
        report(step_ms=10.0, loop_code=before, **phases(7.5, 10.0)),
        report(step_ms=4.0, loop_code=after, **phases(1.5, 4.0)),
    )
    first = next(line for line in told(found) if "ms a step" in line)
    assert first.partition(" (95")[0] == named


def test_collections_that_ended_are_named_for_what_is_other() -> None:
    events = {
        "kind": "collection",
        "count": 299,
        "seconds": 1.8,
        "loop_seconds": 3.0,
        "loop_fraction": 0.6,
    }
    found = compared(
        report(step_ms=10.0, loop_events=[events], **phases(7.5, 10.0)),
        report(step_ms=4.0, **phases(1.5, 4.0)),
    )
    assert [each.what for each in found.causes] == ["Python's garbage collection"]
    # Less than 5 % of a loop is not kept.
    assert "Python's garbage collection: at least -5.8 ms a step in all" in told(found)


@pytest.mark.parametrize(
    ("before_ms", "after_ms", "is_why"), [(10.0, 4.0, True), (100.0, 89.9, True), (100.0, 5.0, False)]
)
def test_a_small_part_of_a_change_is_not_told_as_all_of_why(
    before_ms: float, after_ms: float, is_why: bool
) -> None:
    """Collections took up to 6 ms: of a change of 6 that is why, of one of 95 it says nearly nothing."""
    events = {"kind": "collection", "count": 299, "seconds": 1.8, "loop_seconds": 3.0, "loop_fraction": 0.6}
    found = compared(
        report(step_ms=before_ms, loop_events=[events], **unknown()),
        report(step_ms=after_ms, **unknown()),
    )
    said = f"what made most of the change ({after_ms - before_ms:+.1f} ms a step) is not known"
    assert (said in told(found)) != is_why
    none = compared(report(step_ms=before_ms, **unknown()), report(step_ms=after_ms, **unknown()))
    assert "the parts of a step are not known" in told(none)


def starting(*parts: tuple[str, float]) -> dict[str, Any]:
    at = [{"name": name, "at_seconds": 0.0, "seconds": seconds} for name, seconds in parts]
    return {"startup": {"seconds": sum(seconds for _, seconds in parts), "parts": at}}


def test_a_start_up_that_got_shorter_is_told_with_its_parts() -> None:
    before = report(**starting(("imports", 2.0), ("reads", 4.0), ("first batch: read", 9.0)))
    after = report(**starting(("imports", 2.1), ("reads", 0.1), ("first batch: read", 0.1)))
    before["ranks"][0]["account"]["parts"][0]["ns"] = 6 * S
    after["ranks"][0]["account"]["parts"][0]["ns"] = int(2.2 * S)
    assert "start-up 6.0 -> 2.2 s: reads -3.9 s" in told(compared(before, after))
    assert not [line for line in told(compared(before, before)) if line.startswith("start-up")]


def growing(times: float, steps: int = 60, a_step: int = 1) -> dict[str, Any]:
    """A step that takes longer from one to the next: the last one `times` as long as the first of 10 ms."""
    ms = [10 * (1 + (times - 1) * each / (steps - 1)) + 0.2 * (each % 5 - 2) for each in range(steps)]
    mean_ms = sum(ms) / steps
    blocks = {"steps": a_step, "step_ms": ms, "causes_ms": {}, "files_ms": {}}
    return report(
        step_ms=mean_ms, blocks={**blocks, "wait_ms": [0.0] * steps}, data_wait={"raw_ms": 0.0}, others=0.0
    )


def test_a_step_that_grows_is_no_chance_where_both_loops_are_as_long() -> None:
    fixed = report(step_ms=10.0, blocks=growing(1.0)["ranks"][0]["blocks"], data_wait={"raw_ms": 0.0})
    found = compared(growing(20.0), fixed)
    assert found.ci95_pct is not None
    assert found.change_pct == pytest.approx(-90.5, abs=0.1)
    assert found.ci95_pct[0] < found.change_pct < found.ci95_pct[1] < -89.0
    longer = compared(growing(20.0, steps=80), fixed)  # which of its steps the other has is not known
    assert longer.ci95_pct is not None
    assert longer.ci95_pct[0] < longer.change_pct < -80.0 < longer.ci95_pct[1]


def test_an_interval_holds_the_change_where_a_mean_may_be_next_to_nothing() -> None:
    """One block has nearly all: means lie about nothing, and no ratio to nothing has one."""
    blocks = {"steps": 1, "step_ms": [1.0] * 59 + [3000.0], "wait_ms": [0.0] * 60, "causes_ms": {}}
    before = report(step_ms=51.0, blocks={**blocks, "files_ms": {}}, data_wait={"raw_ms": 0.0})
    found = compared(before, report(step_ms=10.0))
    assert found.ci95_pct is not None
    assert found.ci95_pct[0] < found.change_pct < found.ci95_pct[1]
    assert found.verdict == "no-difference"


def test_a_metric_within_forward_is_named_in_its_place() -> None:
    """torchmetrics in a training_step; the same where that explains little of the pass, or is in both."""

    def of(forward: float, code_ms: float, samples: int) -> dict[str, Any]:
        own = phases(0.5, forward + 2.5)
        own["phases_ms"]["forward"] = forward
        own["blocks"]["phases_ms"]["forward"] = [forward + 0.1 * (each % 5 - 2) for each in range(60)]
        metric = {**code("torchmetrics (p2.py:47)", code_ms, samples), "within": True}
        return report(step_ms=forward + 2.5, loop_code=[metric] if samples else [], **own)

    gone = [line for line in told(compared(of(32.0, 25.0, 300), of(8.0, 2.7, 32))) if "ms a step" in line]
    assert gone[0].startswith("torchmetrics (p2.py:47): -22.3 ms a step in all")
    assert not any(line.startswith("forward") for line in gone)
    unnamed = [line for line in told(compared(of(32.0, 25.0, 300), of(8.0, 0.0, 0))) if "ms a step" in line]
    assert unnamed[0].startswith("torchmetrics (p2.py:47): at least -15.5 ms a step in all")
    assert not any(line.startswith("forward") for line in unnamed)
    little = [line for line in told(compared(of(32.0, 5.0, 60), of(8.0, 1.0, 12))) if "ms a step" in line]
    assert little[0].startswith("forward: -24.0 ms a step")
    assert [line.startswith("torchmetrics (p2.py:47): -4.0 ms") for line in little[1:]] == [True]


@pytest.mark.parametrize(
    ("others", "samples", "named"), [(0.0, 30, True), (0.66, 30, False), (0.66, 3000, True)]
)
def test_samples_beside_other_programs_name_what_neither_made(
    others: float, samples: int, named: bool
) -> None:
    """A line of both runs, 3.3 times as long: others may have made it threefold, chance the rest."""
    found = compared(
        report(
            step_ms=10.0, others=others, loop_code=[code("f (t.py:1)", 7.0, samples)], **phases(7.5, 10.0)
        ),
        report(
            step_ms=4.6,
            others=others,
            loop_code=[code("f (t.py:1)", 2.1, round(0.3 * samples))],
            **phases(2.1, 4.6),
        ),
    )
    assert bool(found.code) == named


STAGE = "the loop waits for stage resample (p1.py:39)"


def named(step_ms: float, transform_ms: float, code: str | None = "IO230", **known: Any) -> dict[str, Any]:
    """A run that waits for `transform`, and what its report names first."""
    waits = {"raw_ms": transform_ms, "causes_ms": {"transform": transform_ms}}
    own = phases(1.0, step_ms)
    own["blocks"]["wait_ms"] = [transform_ms] * 60
    own["blocks"]["causes_ms"] = {"transform": [transform_ms + 0.1 * (each % 5 - 2) for each in range(60)]}
    culprits = [{"code": code, "text": STAGE}] if code else []
    run = report(step_ms=step_ms, culprits=culprits, **{**own, "data_wait": waits})
    fixes = [{"code": code, "text": "make resample faster"}] if code else []
    run["verdict"] |= {"cause": "transform", "rank": 0, "fixes": fixes, **known}
    return run


def test_the_cause_that_a_report_named_is_told_once_it_is_gone() -> None:
    slow, fast = named(200.0, 150.0), named(60.0, 10.0, None)
    assert f"in A, and not in B: {STAGE}" in told(compared(slow, fast))
    assert f"in B, and not in A: {STAGE}" in told(compared(fast, slow))
    drawn = named(200.0, 150.0, "IO219")
    drawn["ranks"][0]["culprits"] = []  # an advice alone
    assert "advised in A, and not in B: make resample faster" in told(compared(drawn, fast))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(named(200.0, 150.0), named(60.0, 10.0), id="both name it"),
        pytest.param(named(200.0, 150.0), named(140.0, 90.0, None), id="much of its time is left"),
        pytest.param(named(200.0, 150.0, "IO103"), named(60.0, 10.0, None), id="the part names it"),
        pytest.param(named(200.0, 150.0, "IO306"), named(60.0, 10.0, None), id="other programs"),
        pytest.param(named(200.0, 150.0, rank=1), named(60.0, 10.0, None), id="of another rank"),
        pytest.param(named(200.0, 150.0, None), named(60.0, 10.0), id="the faster one names it"),
        pytest.param(named(200.0, 150.0, cause="read"), named(60.0, 10.0, None), id="another cause's time"),
    ],
)
def test_a_cause_is_not_told_as_gone_where_that_is_not_seen(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    assert compared(before, after).verdict == "faster"
    assert not any(STAGE in line for line in told(compared(before, after)))
