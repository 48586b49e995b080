"""Memory in swap is named where samples sleep until it is read back; swapped memory that rests is not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
from msgspec.structs import replace

from iotrace.analysis.program.full_memory import memory_limit_bytes, slept_for_swap, with_swap
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import (
    Culprit,
    DataWait,
    HostUse,
    ProcessUse,
    RankReport,
    Steps,
    System,
)
from iotrace.analysis.rules.advice import advice_of, resolve
from iotrace.analysis.rules.facts.examples import facts_of
from iotrace.analysis.rules.facts.rank import RankFacts
from iotrace.analysis.rules.model import Finding, rule_of
from iotrace.session.names import KIND_ITEM
from iotrace.sources.records import Mapped
from iotrace.sources.samples import SAMPLE_DTYPE, MemoryRecord
from iotrace.sources.telemetry import SampledProcess, Series
from tests.support.results import unknown
from tests.support.rules import blamed_by, found_by
from tests.unit.test_production import spans
from tests.unit.test_telemetry import SECOND, steps

MIB = 1 << 20


def grown(faults: int, read: int, called: int) -> npt.NDArray[Any]:
    """Samples of 10 s in which these counters of a process grew from 0."""
    table = np.zeros(11, SAMPLE_DTYPE)
    table["time_ns"] = np.arange(11) * SECOND
    for field, amount in (("major_faults", faults), ("read_bytes", read), ("rchar", called)):
        table[field] = np.linspace(0, amount, 11).astype(np.int64)
    return table


class Case:
    """A training process without samples, and workers: what faults, calls and swap they had in 10 s."""

    def __init__(
        self,
        back: int | None,
        *workers: tuple[int, int, int, int],
        faults: int = 40,
        mapped: bool = False,
        limit: int | None = None,
    ) -> None:
        """`workers`: major faults, bytes from storage, bytes of calls, bytes in swap at most.

        Each made a sample of 10 s, in which it slept for 8; `faults` of 40 sleeps were page faults.
        """
        figures = {}
        if back is not None:
            figures["swap_in_bytes"] = Series(
                np.arange(11, dtype=np.int64) * SECOND, np.linspace(5, 5 + back, 11)
            )
        rows = [(0, 0, 0, 0), *workers]
        sampled = {pid: SampledProcess(pid, pid, 0, "", grown(*row[:3])) for pid, row in enumerate(rows)}
        telemetry = SimpleNamespace(
            host=SimpleNamespace(figures=figures),
            memory=[] if limit is None else [MemoryRecord(mono_ns=0, group=(1, limit))],
            last_ns=10 * SECOND,
            process_of=lambda process: sampled[process.pid],
        )
        item = {
            "kind": KIND_ITEM,
            "duration_ns": 10 * SECOND,
            "cpu_ns": 2 * SECOND,
            "major_faults": faults,
            "voluntary_switches": 40,
        }
        records = [Mapped] if mapped else []
        processes = [
            SimpleNamespace(
                pid=pid,
                spans=spans(item) if pid else spans(),
                of_type=lambda kind: [kind] if kind in records else [],
            )
            for pid in range(len(rows))
        ]
        self.analysis: Any = SimpleNamespace(
            telemetry=telemetry,
            rank=SimpleNamespace(main=processes[0], processes=processes),
            kept=steps((0, 10 * SECOND)),
        )
        self.system = unknown(
            System,
            gpus=[],
            processes=[
                unknown(
                    ProcessUse,
                    pid=pid,
                    role=f"worker {pid - 1}" if pid else "main",
                    storage_read_bytes=row[1],
                    swap_bytes_peak=row[3],
                )
                for pid, row in enumerate(rows)
            ],
            host=unknown(HostUse, pressure_fraction={"memory": 0.5}, cgroup_pressure_fraction={}),
        )

    def own(self) -> list[int | None]:
        """What each worker read back."""
        system = with_swap(self.system, cast(RankAnalysis, self.analysis))
        return [each.swap_in_bytes for each in system.processes[1:]]

    def culprits(self, causes_ms: dict[str, float] | None = None) -> list[Culprit]:
        """The culprits of a rank that waits 50 ms of steps of 100."""
        system = with_swap(self.system, cast(RankAnalysis, self.analysis))
        wait = unknown(DataWait, raw_ms=50.0, causes_ms=causes_ms or {"read": 40.0, "transform": 10.0})
        report = unknown(RankReport, data_wait=wait, steps=unknown(Steps, mean_ms=100.0), system=system)
        return blamed_by("IO401", report, **self.facts(report))

    def facts(self, report: RankReport) -> dict[str, Any]:
        """What rules rest on beside the report."""
        return {
            "limit_bytes": memory_limit_bytes(self.analysis.telemetry),
            "slept_for_swap": slept_for_swap(cast(RankAnalysis, self.analysis), report),
        }


SWAPPING = (20_000, 160 * MIB, MIB, 300 * MIB)
RESTING = (0, 0, MIB, 300 * MIB)


def test_memory_that_is_read_back_is_named_before_the_cause() -> None:
    case = Case(320 * MIB, SWAPPING, SWAPPING, limit=420 * MIB)
    assert case.own() == [159 * MIB] * 2
    (found,) = case.culprits()
    assert found.text == (
        "memory in swap: 2 workers read 318.0 MiB of their own memory back: asleep for it 40.0 ms a step"
    )
    assert found.remedy == (
        "give the job more memory (its control group may use 420.0 MiB), fewer workers or smaller caches"
    )
    assert (found.leads, found.wait_ms) == (True, 40.0)
    assert found.evidence["swap_in_bytes"] == 318 * MIB
    assert found.evidence["memory_pressure_fraction"] == 0.5
    assert found.gain_ms_per_step is None


def test_the_one_whose_memory_it_was_is_named() -> None:
    (found,) = Case(160 * MIB, RESTING, RESTING, SWAPPING).culprits({"read": 50.0})
    assert found.text.startswith("memory in swap: worker 2 read 159.0 MiB of its own memory back")
    assert Case(160 * MIB, RESTING, SWAPPING).own() == [0, 159 * MIB]


@pytest.mark.parametrize(
    "case",
    [
        Case(0, RESTING, RESTING),  # it is in swap, and nobody asks for it
        Case(0, (20_000, 160 * MIB, MIB, 0)),  # a mapped file is read for the first time
        Case(320 * MIB, SWAPPING, SWAPPING, faults=2),  # samples sleep for something else
        Case(320 * MIB, SWAPPING, SWAPPING, mapped=True),  # the faults may be the file's
        Case(900 * MIB, SWAPPING, SWAPPING),  # others in the group read back, too
        Case(40 * MIB, SWAPPING, SWAPPING),  # most of the faults were of files
        Case(9 * MIB, (2000, 9 * MIB, 0, 9 * MIB)),  # next to nothing
        Case(None, SWAPPING, SWAPPING),  # the kernel does not count
    ],
)
def test_what_only_looks_like_swap_is_not_named(case: Case) -> None:
    assert case.culprits() == []


def test_what_a_process_read_back_is_unknown_where_it_may_have_been_something_else() -> None:
    assert Case(0, RESTING).own() == [0]
    assert Case(0, SWAPPING, mapped=True).own() == [0]
    assert Case(320 * MIB, SWAPPING, mapped=True).own() == [None]
    assert Case(900 * MIB, SWAPPING).own() == [None]
    assert Case(None, SWAPPING).own() == [None]
    assert Case(170 * MIB, SWAPPING, (100, MIB, MIB, 0)).own() == [159 * MIB, 0]  # nothing of it in swap


def test_bytes_of_calls_may_hide_what_faults_fetched_and_each_fault_is_a_page_at_least() -> None:
    hidden = (20_000, 160 * MIB, 900 * MIB, 300 * MIB)
    assert Case(160 * MIB, hidden).own() == [20_000 * 4096]


def test_a_small_share_of_the_wait_is_named_behind_the_cause_or_not_at_all() -> None:
    case = Case(320 * MIB, SWAPPING, SWAPPING, faults=20)
    (found,) = case.culprits()
    assert (found.leads, found.wait_ms) == (False, 20.0)
    assert case.culprits({"transport": 40.0, "read": 10.0}) == []


@pytest.mark.parametrize(("leads", "left"), [(True, ["IO206"]), (False, ["IO204", "IO103", "IO206"])])
def test_memory_comes_before_more_workers_and_before_the_samples_own_code(
    leads: bool, left: list[str]
) -> None:
    (swap,) = (rule_of("IO401").find(facts_of(rule_of("IO401"), rule_of("IO401").fires[0])),)
    found = [replace(each, rule="IO401", is_main_cause=leads, remedy="") for each in swap]
    found += [Finding(rule=code, text="", remedy="do") for code in ("IO204", "IO103", "IO206")]
    assert [each.rule for each in resolve(found)] == left


@pytest.mark.parametrize(
    ("back", "faults", "pressed", "led", "advised"),
    [
        (100 * MIB, 5000, 0.0, False, True),  # 500 a second
        (100 * MIB, 4999, 0.0, False, False),  # a readahead of many pages each
        (100 * MIB, 10, 0.05, False, True),  # tasks waited for memory
        (15 * MIB, 5000, 1.0, False, False),
        (None, 5000, 1.0, False, False),  # it may have been a file's
        (100 * MIB, 5000, 0.5, True, False),  # it is told already
    ],
)
def test_a_training_that_reads_its_own_memory_back_is_advised_to_hold_less(
    back: int | None, faults: int, pressed: float, led: bool, advised: bool
) -> None:
    case = Case(100 * MIB, limit=420 * MIB)
    main = unknown(ProcessUse, pid=0, role="main", swap_in_bytes=back, major_faults=faults)
    host = unknown(HostUse, pressure_fraction={"memory": 1.0}, cgroup_pressure_fraction={"memory": pressed})
    report = unknown(
        RankReport,
        steps=unknown(Steps, count=100, mean_ms=100.0),
        system=unknown(System, gpus=[], processes=[main], host=host),
    )
    facts = RankFacts(report=report, limit_bytes=memory_limit_bytes(case.analysis.telemetry))
    known = [Finding(rule="IO401", text="", is_main_cause=True, silences=("IO501",))] if led else []
    found = advice_of([*known, *found_by("IO501", facts)], None)
    assert [(each.id, each.gain_ms_per_step) for each in found] == ([("swap", None)] if advised else [])
    if found:
        assert found[0].text == (
            "memory in swap: the training read 100.0 MiB of its own memory back, 1.0 MiB a step: give the "
            "job more memory (its control group may use 420.0 MiB), or let the training hold less"
        )
