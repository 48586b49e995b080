"""Clocks through the whole merge: drifted hosts in Kineto's layout, sessions whose clock was set."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from iotrace.analysis.rank import SessionAnalysis
from iotrace.analysis.report import analyse
from iotrace.errors import IotraceError
from iotrace.merge.input_files import identify
from iotrace.merge.plan import Options
from iotrace.merge.run import merge
from iotrace.merge.survey import Wants, survey
from iotrace.report.merge import print_summary
from iotrace.report.terminal import print_report
from iotrace.sources.posix_calls import PosixCalls
from iotrace.sources.session import open_session
from tests.support.perfetto import ERRORS, query
from tests.support.runs import UNET, Run, run_script

SECOND = 10**9
TRUE_NS = 1_795_000_000_000_000_000
BASE_NS = TRUE_NS - 1000 * SECOND
ONE = Options(processes=1)
_COLLECTIVE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


class _Host:
    """A rank's trace as torch.profiler writes it, stamped by a clock that is off and drifts."""

    def __init__(self, rank: int, offset_ns: int, drift_ppm: float, base_ns: int) -> None:
        self.rank, self._offset_ns, self._drift_ppm, self._base_ns = rank, offset_ns, drift_ppm, base_ns
        self.events: list[str] = []

    def stamp(self, true_ns: int) -> int:
        since = true_ns - TRUE_NS
        found = since - self._offset_ns - round(since * self._drift_ppm / 1e6) + TRUE_NS - self._base_ns
        assert found >= 0  # torch's stamps are
        return found

    def slice(self, category: str, name: str, tid: int, start_ns: int, end_ns: int, **args: Any) -> None:
        start, end = self.stamp(start_ns), self.stamp(end_ns)
        pid = 0 if category == "kernel" else 4000 + self.rank
        self.events.append(
            f'  {{\n    "ph": "X", "cat": "{category}", "name": "{name}", "pid": {pid}, "tid": {tid},\n'
            f'    "ts": {start // 1000}.{start % 1000:03d}, "dur": {(end - start) / 1000:.3f},\n'
            f'    "args": {{\n      {json.dumps(args)[1:-1]}\n    }}\n  }},\n'
        )

    def arrow(self, phase: str, number: int, tid: int, time_ns: int) -> None:
        stamp = self.stamp(time_ns)
        pid, bound = (0, ', "bp": "e"') if phase == "f" else (4000 + self.rank, "")
        self.events.append(
            f'  {{\n    "ph": "{phase}", "id": {number}, "pid": {pid}, "tid": {tid}, '
            f'"ts": {stamp // 1000}.{stamp % 1000:03d},\n    "cat": "ac2g", "name": "ac2g"{bound}\n  }},\n'
        )

    def write(self, path: Path) -> str:
        path.write_text(
            '{\n  "schemaVersion": 1,\n'
            f'  "distributedInfo": {{"backend": "nccl", "rank": {self.rank}, "world_size": 2}},\n'
            f'  "baseTimeNanoseconds": {self._base_ns},\n  "traceEvents": [\n'
            + "".join(self.events).removesuffix(",\n")
            + '\n  ],\n  "traceName": "made-up.json"\n}\n'
        )
        return str(path)


def _job(directory: Path, hosts: list[_Host], steps: int = 150, late: float = 0.1) -> list[str]:
    """Steps of 200 ms that end with an all-reduce; a share of them ends late on the last rank alone."""
    chance = random.Random(4)
    for step in range(steps):
        begin = TRUE_NS + step * SECOND // 5
        end = begin + 190_000_000 + chance.randrange(5_000_000)
        for host in hosts:
            main = 4000 + host.rank
            arrived = begin + 20_000_000 + chance.randrange(100_000_000)
            left = end + chance.randrange(3_000)
            if host is hosts[-1] and chance.random() < late:
                left += chance.randrange(4_000_000)
            host.slice("user_annotation", f"ProfilerStep#{step}", main, begin, begin + SECOND // 5)
            # Both end where the step does: they nest to the ns, and have to do so afterwards.
            host.slice("cpu_op", "aten::linear", main, begin + 1_000_000, begin + SECOND // 5)
            host.slice("cuda_runtime", "cudaLaunchKernel", main, arrived - 8_000, begin + SECOND // 5)
            host.arrow("s", step + 1, main, arrived - 8_000)
            group = {"Process Group Name": "0", "Process Group Ranks": "[0, 1]"}
            sizes = {"Collective name": "allreduce", "In msg nelems": 4096, "Seq": step, **group}
            host.slice("kernel", "gemm", 7, begin, arrived)
            host.slice("kernel", _COLLECTIVE, 7, arrived, left, **sizes)
            host.arrow("f", step + 1, 7, arrived)
    return [host.write(directory / f"rank{host.rank}.json") for host in hosts]


@pytest.mark.parametrize("ranks", [2, 5])
def test_ranks_whose_clocks_drift(capsys: pytest.CaptureFixture[str], tmp_path: Path, ranks: int) -> None:
    """Collectives end together to within the bound, all nests, no kernel comes before its launch."""
    drifts = [0.0, 23.0, -41.0, 8.0, -90.0][:ranks]
    hosts = [
        _Host(rank, 3_700_000_001 * rank, drift, TRUE_NS - 1000 * SECOND * (rank + 1))
        for rank, drift in enumerate(drifts)
    ]
    output = tmp_path / "out.json"
    inputs = _job(tmp_path, hosts)
    summary = merge(inputs, output, Options(processes=1))
    with pytest.raises(IotraceError, match=r"is known to ± .* ms"):  # collectives that a rank ends late
        merge(inputs, tmp_path / "strict.json", Options(processes=1, strict_clocks=True))
    assert summary.lanes_moved == summary.arrows_backwards == 0
    assert {source.clock for source in summary.sources} == {"inferred"}
    document = json.loads(output.read_bytes())
    reference = next(place for place, source in enumerate(summary.sources) if not source.clock_bound_ns)
    for rank, source in enumerate(summary.sources):
        drift = (drifts[rank] - drifts[reference]) * 1e3
        assert (source.clock_drift_ppb or 0) == pytest.approx(drift, abs=300)
        stored = document["iotrace_merge"]["sources"][rank]
        for name in ("clock_drift_ppb", "clock_shift_at_ns", "clock_shift_ns", "clock_bound_ns"):
            assert stored[name] == getattr(source, name)
        assert (source.lanes_moved, source.arrows_backwards) == (0, 0)
    ends: dict[int, list[float]] = defaultdict(list)
    for event in document["traceEvents"]:
        if event["ph"] == "X" and event["name"].startswith("nccl"):
            ends[event["args"]["Seq"]].append((event["ts"] + event["dur"]) * 1000)
    apart = np.array([max(found) - min(found) for found in ends.values()])
    bounds = sorted(source.clock_bound_ns or 0 for source in summary.sources)
    assert len(apart) == 150
    assert (apart <= bounds[-1] + bounds[-2]).mean() >= 0.9
    assert np.median(apart) < 8_000  # the drifts alone would leave up to 3.9 ms
    print_summary(summary)
    printed = capsys.readouterr().out
    assert "drift undone" in printed
    assert "23 ppm" in printed or reference == 1


def test_both_kinds_of_output_hold_the_drifted_alike(tmp_path: Path) -> None:
    inputs = _job(tmp_path, [_Host(0, 0, 0.0, BASE_NS), _Host(1, 5 * SECOND, 60.0, 0)], steps=40)
    found = []
    for kind in ("out.json", "out.pftrace"):
        merge(inputs, tmp_path / kind, ONE)
        errors, slices, arrows = query(
            tmp_path / kind,
            ERRORS,
            "select name, depth, count(*), sum(dur) from slice group by 1, 2 order by 1, 2",
            "select count(*), min(b.ts - a.ts) from flow "
            "join slice a on a.id = slice_out join slice b on b.id = slice_in",
        )
        assert errors == []
        found.append((slices, arrows))
    assert found[0] == found[1]
    ((count, shortest),) = found[0][1]
    assert count == 80
    assert shortest == pytest.approx(8_000, abs=2)


def test_parts_by_step_and_by_time_of_a_drifted_rank(tmp_path: Path) -> None:
    """Windows are of the merged clock: each rank's part is the same one."""
    inputs = _job(tmp_path, [_Host(0, 0, 0.0, BASE_NS), _Host(1, 5 * SECOND, 80.0, BASE_NS)], late=0.0)
    for options in (Options(processes=1, steps=(100, 102)), Options(processes=1, seconds=(20.001, 20.3))):
        merge(inputs, tmp_path / "out.json", options)
        events = json.loads((tmp_path / "out.json").read_bytes())["traceEvents"]
        steps = Counter(event["name"] for event in events if event["name"].startswith("ProfilerStep"))
        assert steps == {"ProfilerStep#100": 2, "ProfilerStep#101": 2}


def test_broadcasts_tell_no_clock(tmp_path: Path) -> None:
    """The root of one may be through before another rank begins."""
    inputs = _job(tmp_path, [_Host(0, 0, 0.0, BASE_NS), _Host(1, 0, 0.0, BASE_NS)], steps=20)
    for path in map(Path, inputs):
        path.write_text(path.read_text().replace('"allreduce"', '"broadcast"'))
    summary = merge(inputs, tmp_path / "out.json", ONE)
    assert {source.clock for source in summary.sources} == {"assumed"}


def test_of_many_collectives_ranks_keep_the_same_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("iotrace.merge.survey._MOST_COLLECTIVES", 40)
    hosts = [_Host(0, 0, 0.0, BASE_NS), _Host(1, SECOND, 15.0, BASE_NS)]
    inputs = _job(tmp_path, hosts, steps=300)
    sources = [identify(Path(path), [], []) for path in inputs]
    first, second = (survey(source, Wants(collectives=True)).collectives for source in sources if source)
    assert first.keys() == second.keys()
    assert 15 < len(first) <= 40
    times = sorted(end for _, end in first.values())
    assert times[-1] - times[0] > 50 * SECOND  # of the 60 s
    summary = merge(inputs, tmp_path / "out.json", ONE)
    assert sum(source.clock_drift_ppb or 0 for source in summary.sources) != 0


def _set_clock(session: Path, told: Callable[[int], int]) -> None:
    """As if CLOCK_REALTIME had been told(its time) while the session was recorded."""

    def anchor(match: re.Match[str]) -> str:
        return f'"clock":[{match[1]},{told(int(match[2]))},{match[3]}]'

    for path in [*session.rglob("records.jsonl"), *session.rglob("process.json")]:
        path.write_text(re.sub(r'"clock":\s*\[(\d+),\s*(\d+),\s*(\d+)\]', anchor, path.read_text()))
    for path in session.rglob("*.pfw"):
        text = re.sub(
            r'"ts":(\d+)', lambda match: f'"ts":{told(int(match[1]) * 1000) // 1000}', path.read_text()
        )
        path.write_text(text)
    for path in session.rglob("torch-*.json*"):
        path.unlink()


def _between_calls(start_ns: Any, end_ns: Any) -> int:
    """A time in the middle of a run when no call was under way: one that was would last for the step, too."""
    order = np.argsort(start_ns)
    starts, ended = np.asarray(start_ns)[order], np.maximum.accumulate(np.asarray(end_ns)[order])
    gaps = starts[1:][starts[1:] - ended[:-1] > 4_000]
    middle = (starts[0] + starts[-1]) // 2
    return int(gaps[np.argmin(np.abs(gaps - middle))]) - 2_000


def _reads(session: Path, output: Path) -> tuple[dict[str, list[tuple[int, int, int]]], Any]:
    """Slices of read paths and of POSIX calls as (process, start, end), in CLOCK_REALTIME."""
    summary = merge([str(session)], output, ONE)
    document = json.loads(output.read_bytes())
    found: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for event in document["traceEvents"]:
        if event["ph"] == "X" and event.get("cat") in ("read path", "POSIX"):
            start = round(event["ts"] * 1000) + document["baseTimeNanoseconds"]
            found[event["cat"]].append((event["pid"], start, start + round(event["dur"] * 1000)))
    return found, summary


def _held(found: dict[str, list[tuple[int, int, int]]]) -> list[int]:
    """When those POSIX calls began that lie within a read path of their process."""
    slack_ns = 3_000  # calls are stamped in whole us
    held = []
    for pid in {pid for pid, _, _ in found["POSIX"]}:
        rows = [row for row in found["read path"] if row[0] == pid]
        starts, ends = (np.array([row[place] for row in rows], np.int64) for place in (1, 2))
        for _, start, end in (row for row in found["POSIX"] if row[0] == pid):
            if ((starts <= start + slack_ns) & (end - slack_ns <= ends)).any():
                held.append(start)
    return held


# Reads what the U-Net does, without the volume that is one chunk, and sleeps where that computes.
_READS_ALONE = f"""
import sys, time
from pathlib import Path
import torch
from torch.utils.data import DataLoader
sys.path.insert(0, {str(Path(UNET).parent)!r})
from unet3d_hdf5 import Volumes

if __name__ == "__main__":
    torch.set_num_threads(1)
    volumes = Volumes(Path("data/unet3d"), 120)
    volumes.paths = [path for path in volumes.paths if path.stem != "case_02"]
    weight = torch.ones(1, requires_grad=True)
    for image, label in DataLoader(volumes, 2, num_workers=2):
        (image.mean() * weight).backward()
        time.sleep(0.08)
"""


@pytest.fixture(scope="module")
def long_run(unet_directory: Path) -> Run:
    """Long enough that most of it lies beyond the second in which a clock is set."""
    run = run_script(unet_directory, _READS_ALONE)
    assert run.code == 0, run.stderr
    return run


@pytest.mark.parametrize("what", ["slewed", "set forward", "set back"])
def test_a_session_whose_clock_was(long_run: Run, tmp_path: Path, what: str) -> None:
    """POSIX calls, stamped by that clock, stay inside the read paths, which were stamped by another."""
    plain, set_ = tmp_path / "plain", tmp_path / "set"
    for path in (plain, set_):
        shutil.copytree(long_run.session, path, ignore=shutil.ignore_patterns("out", "torch-*"))
    before, summary = _reads(plain, tmp_path / "plain.json")
    assert summary.first_ns is not None
    held = _held(before)
    _, starts, ends = np.array(before["POSIX"]).T
    middle = _between_calls(starts, ends)

    def told(real_ns: int) -> int:
        if what == "slewed":  # by 500 ppm, as adjtime does
            return real_ns + round((real_ns - summary.first_ns) * 500e-6)
        return real_ns + (middle < real_ns) * (7 if what == "set forward" else -7) * SECOND

    _set_clock(set_, told)
    after, summary_after = _reads(set_, tmp_path / "set.json")
    (source,) = summary_after.sources
    assert source.clock == "exact"
    # The same calls, in the same places beside the read paths, whose times are CLOCK_MONOTONIC's.
    assert Counter(end - start for _, start, end in after["POSIX"]) == Counter(
        end - start for _, start, end in before["POSIX"]
    )
    assert Counter(end - start for _, start, end in after["read path"]) == Counter(
        end - start for _, start, end in before["read path"]
    )
    assert len(_held(after)) == len(held) > 50
    moved = np.array(sorted(after["POSIX"])) - np.array(sorted(before["POSIX"]))
    bound_ns = source.clock_bound_ns
    assert bound_ns is not None
    if what == "slewed":
        assert summary_after.notes == []
        assert bound_ns < (summary.last_ns - summary.first_ns) * 600e-6
    else:
        # On a busy machine a call may lie where two places suit it: the bound then says so.
        assert np.abs(moved).max() <= max(2_000, bound_ns)
        assert np.quantile(np.abs(moved), 0.9) <= 2_000
        (note,) = summary_after.notes
        assert f"was set by {'+7.0' if what == 'set forward' else '-7.0'} s at " in note


def _moved_ns(plain: PosixCalls, as_set: PosixCalls) -> int:
    """How long the calls are in all that begin or end elsewhere.

    On a busy machine two places may suit a call, and the clock may have been set within one that is as long.
    """
    sides = []
    for calls in (plain, as_set):
        order = np.lexsort((calls.start_ns, calls.tid, calls.pid))
        sides.append(np.array([calls.start_ns[order], calls.end_ns[order]]))
    elsewhere = (np.abs(sides[0] - sides[1]) > 2_000).any(axis=0)
    durations = np.maximum(*(ends - starts for starts, ends in sides))
    return int(durations[elsewhere].sum())


@pytest.mark.parametrize("by_ns", [7 * SECOND, -7 * SECOND, 40_000_000, -40_000_000])
def test_figures_do_not_change_where_the_clock_was(long_run: Run, tmp_path: Path, by_ns: int) -> None:
    """Steps, waits, their causes and the I/O of a run are the same whatever its host's clock was set to."""
    plain, set_ = tmp_path / "plain", tmp_path / "set"
    for path in (plain, set_):
        shutil.copytree(long_run.session, path, ignore=shutil.ignore_patterns("out", "torch-*"))
    session = open_session(plain)
    middle = _between_calls(session.calls.start_ns, session.calls.end_ns)
    _set_clock(set_, lambda real_ns: real_ns + by_ns * (middle < real_ns))
    as_set = open_session(set_)
    moved_ns = _moved_ns(session.calls, as_set.calls)
    before, after = (analyse(SessionAnalysis(one)) for one in (session, as_set))
    for one, two in zip(before.ranks, after.ranks, strict=True):
        assert one.steps == two.steps
        assert one.data_wait.raw_ms == two.data_wait.raw_ms
        most_ms = 0.2 + moved_ns / one.steps.count / 1e6
        assert one.data_wait.causes_ms == pytest.approx(two.data_wait.causes_ms, abs=most_ms)
        assert one.loaders == two.loaders
        assert one.io is not None
        assert two.io is not None
        assert one.io.coverage == two.io.coverage
        read_ms = [{file.path: file.read_ms_total for file in each.io.files} for each in (one, two)]
        assert read_ms[0] == pytest.approx(read_ms[1], abs=moved_ns / 1e6 + 1e-9)
    assert not any(clock.set for clock in before.clocks)
    printed = StringIO()
    print_report(before, Console(file=printed, width=200), verbose=True)
    assert "was set by" not in printed.getvalue()
    for clock in after.clocks:
        (found,) = clock.set
        assert found.by_ns == pytest.approx(by_ns, abs=10_000)
        assert 0 <= middle - found.at_ns < 1.5 * SECOND
    print_report(after, Console(file=printed, width=200), verbose=True)
    size = f"{by_ns / 1e9:+.1f} s" if abs(by_ns) > SECOND else f"{by_ns / 1e6:+.3g} ms"
    assert printed.getvalue().count(f"was set by {size} at ") == 1
