"""Sampled figures brought to the measured time; devices that fail; sessions read back."""

from __future__ import annotations

import itertools
import json
import struct
import sys
import sysconfig
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from iotrace.analysis.completeness.not_captured import _gaps
from iotrace.analysis.host.measured import MeasuredTime
from iotrace.analysis.host.system import _calibration, _gpu, _ready_ns, _throttled
from iotrace.analysis.loop.step_table import Step, StepTable
from iotrace.launch.telemetry import amd, gpus
from iotrace.launch.telemetry.gpus import Device, DevicePoller, Figure, FigureError, UnavailableError
from iotrace.launch.telemetry.sidecar import Calibration, Sidecar
from iotrace.launch.telemetry.start import claim, import_path
from iotrace.session import names
from iotrace.sources.records import Identity, WorkerUp
from iotrace.sources.samples import SAMPLE_DTYPE, DeviceRecord, read_sidecars
from iotrace.sources.telemetry import SampledDevice, SampledProcess, Series, read_telemetry
from iotrace.timeline.telemetry import _process
from tests.support.rows import process_of
from tests.support.tables import steps_of

SECOND = 1_000_000_000


def steps(*intervals: tuple[int, int]) -> StepTable:
    return steps_of(Step(None, start, end) for start, end in intervals)


def series(*points: tuple[int, float]) -> Series:
    times = np.array([time_ns for time_ns, _ in points], dtype=np.int64)
    return Series(times, np.array([value for _, value in points], dtype=np.float64))


# --- the measured time ---


def test_a_sample_stands_for_the_time_since_the_one_before() -> None:
    measured = MeasuredTime(steps((0, 10), (10, 20)))
    gauge = series((0, 7.0), (5, 10.0), (15, 40.0), (30, 100.0))
    # 0-5: 10, 5-15: 40, 15-20: 100
    assert measured.mean(gauge) == pytest.approx((5 * 10 + 10 * 40 + 5 * 100) / 20)
    assert measured.extreme(gauge) == 100
    assert measured.extreme(gauge, largest=False) == 10


def test_what_lies_between_two_epochs_is_not_measured() -> None:
    measured = MeasuredTime(steps((0, 10), (90, 100)))
    counter = series((0, 0.0), (100, 1000.0))
    assert measured.growth(counter) == pytest.approx(200)
    assert measured.per_second(1.0) == pytest.approx(1 / 20e-9)


def test_a_sum_needs_samples_over_the_whole_measured_time() -> None:
    measured = MeasuredTime(steps((0, 100)))
    assert measured.growth(series((2, 0.0), (100, 50.0))) is None
    assert measured.growth(series((0, 0.0))) is None
    assert measured.growth(None) is None
    assert measured.growth(series((0, 0.0), (200, 50.0))) == pytest.approx(25)


def test_a_gap_without_samples_is_not_averaged_over() -> None:
    measured = MeasuredTime(steps((0, 100 * SECOND)))
    gauge = series(*((n * SECOND, 90.0 if n > 40 else 10.0) for n in (*range(1, 41), *range(55, 101))))
    # 55 s stands for 2.5 s at most, not for 15.
    assert measured.mean(gauge) == pytest.approx((40 * 10 + 47.5 * 90) / 87.5)
    # An average over the time since the one before is one of all that time.
    assert measured.mean(gauge, 100 * SECOND) == pytest.approx((40 * 10 + 60 * 90) / 100)


def test_what_is_asked_for_seldom_stands_until_it_is_asked_for_again() -> None:
    measured = MeasuredTime(steps((0, 40 * SECOND)))
    assert measured.mean(series(*((n * SECOND, 8.0) for n in range(4, 41, 4)))) == 8
    assert measured.mean(series(*((n * SECOND, 8.0) for n in range(10, 41, 10)))) is None


def test_half_of_the_measured_time_is_no_figure_of_it() -> None:
    measured = MeasuredTime(steps((0, 10 * SECOND)))
    gauge = series(*((n * SECOND, 8.0) for n in range(1, 6)))  # its sampler was killed
    for average_of_ns in (SECOND, 100 * SECOND):
        assert measured.mean(gauge, average_of_ns) is None
    assert measured.extreme(gauge) is None
    assert measured.change(gauge, 0, None) is None
    assert not measured.seen(-SECOND, 5 * SECOND)
    assert measured.seen(-SECOND, 8 * SECOND)
    assert MeasuredTime(steps()).seen(0, SECOND)
    most = series(*((n * SECOND, 8.0) for n in range(1, 9)))
    assert measured.mean(most) == measured.extreme(most) == 8


def test_what_memory_grew_before_the_steps_is_not_charged_to_them() -> None:
    measured = MeasuredTime(steps((3 * SECOND, 13 * SECOND)))
    sparse = series((0, 17.0), (5 * SECOND, 300.0), (10 * SECOND, 300.0), (13 * SECOND, 300.0))
    assert measured.change(sparse, 0, None) == 0
    assert measured.change(series((0, 17.0), (5 * SECOND, 300.0), (10 * SECOND, 300.0)), 0, None) is None
    grown = series(*((n * SECOND, 10.0 * n) for n in range(20)))
    assert measured.change(grown, 0, None) == 100
    # A worker that was made after the start, or had ended before the end: as far as it lived.
    worker = series(*((n * SECOND, 10.0 * n) for n in range(6, 9)))
    assert measured.change(worker, 6 * SECOND, 8 * SECOND) == 20
    assert measured.change(worker, 0, 9 * SECOND) is None


def test_a_workers_memory_grows_from_when_it_has_its_dataset() -> None:
    sampled = SampledProcess(1, 1, 2 * SECOND, "worker", np.empty(0, SAMPLE_DTYPE))
    identity = Identity(format=1, pid=1, ppid=0, role="worker", clock=(0, 0, 1))
    worker = process_of(identity, [WorkerUp(mono_ns=7 * SECOND), WorkerUp(mono_ns=9 * SECOND)])
    assert _ready_ns(worker, sampled) == 7 * SECOND
    assert _ready_ns(process_of(identity, []), sampled) == 2 * SECOND  # the training itself
    # Fresh workers unpickle their dataset while the loop waits: that is start-up.
    memory = series(*((n * SECOND, min(10.0 * n, 70.0)) for n in range(2, 20)))
    assert MeasuredTime(steps((0, 19 * SECOND))).change(memory, _ready_ns(worker, sampled), None) == 0


def test_without_measured_steps_nothing_is_known() -> None:
    measured = MeasuredTime(steps())
    gauge = series((0, 1.0), (10, 2.0))
    assert measured.mean(gauge) is None
    assert measured.growth(gauge) is None
    assert measured.change(gauge, 0, None) is None
    assert measured.per_second(1.0) is None


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), min_size=1, max_size=5),
    st.lists(
        st.tuples(st.integers(0, 80), st.floats(0, 100)), min_size=2, max_size=8, unique_by=lambda p: p[0]
    ),
)
def test_means_and_growths_agree_with_every_instant_counted(
    spans: list[tuple[int, int]], points: list[tuple[int, float]]
) -> None:
    points = sorted(points)
    measured = MeasuredTime(steps(*[(start, start + length) for start, length in spans]))
    instants = sorted({t for start, length in spans for t in range(start, start + length)})
    times = [time_ns for time_ns, _ in points]
    first_hold = np.median(np.diff(times))
    held = []
    for instant in instants:
        stands = next((value for time_ns, value in points if time_ns > instant), None)
        if stands is not None and instant >= times[0] - first_hold:
            held.append(stands)
    # Half a nanosecond of the first sample's hold is rounded away.
    expected = float(np.mean(held)) if len(held) >= 0.75 * len(instants) else None
    mean = measured.mean(series(*points))
    if float(first_hold).is_integer():
        assert mean == (None if expected is None else pytest.approx(expected))
    if times[0] <= instants[0] and times[-1] > instants[-1]:
        values = [value for _, value in points]
        grown = sum(np.interp(t + 1, times, values) - np.interp(t, times, values) for t in instants)
        assert measured.growth(series(*points)) == pytest.approx(grown, abs=1e-6)


# --- a device's figures ---


def device(**figures: Series) -> SampledDevice:
    about = DeviceRecord(device=0, index=0, name="made up", uuid="GPU-0")
    users = [(5, 11, 100), (5, 12, 50), (5, 99, 1000), (15, 11, 120)]
    return SampledDevice(about, figures, users)


def test_energy_is_the_counters_where_there_is_one() -> None:
    time_of_steps = MeasuredTime(steps((0, 10 * SECOND)))
    energy = series((0, 1000.0), (10 * SECOND, 3000.0))
    power = series(*((n * SECOND, 50.0) for n in range(1, 11)))
    counted = _gpu(device(energy_j=energy, power_w=power), {11, 12}, 10, 40, time_of_steps)
    assert (counted.energy_j, counted.energy_source) == (pytest.approx(2000), "counter")
    assert counted.power_w_mean == pytest.approx(200)
    assert counted.energy_j_per_step == pytest.approx(200)
    assert counted.energy_j_per_sample == pytest.approx(50)
    assert counted.rank_memory_bytes_peak == 150
    powered = _gpu(device(power_w=power), set(), 10, None, time_of_steps)
    assert (powered.energy_j, powered.energy_source) == (pytest.approx(500), "power")
    assert powered.energy_j_per_sample is None
    unknown = _gpu(device(), set(), 10, 40, time_of_steps)
    assert (unknown.energy_j, unknown.energy_source, unknown.power_w_mean) == (None, None, None)
    assert unknown.util_pct_mean is None
    assert unknown.throttled_fraction is None


def test_idle_and_set_clocks_hold_nothing_back() -> None:
    time_of_steps = MeasuredTime(steps((0, 4 * SECOND)))
    reasons = series((SECOND, 0x1), (2 * SECOND, 0x2), (3 * SECOND, 0x4 | 0x40), (4 * SECOND, 0x4))
    found = _gpu(device(clock_reasons=reasons), set(), 1, None, time_of_steps)
    assert found.throttled_fraction == pytest.approx(0.5)
    assert found.throttle_reasons == pytest.approx({"power cap": 0.5, "thermal (hardware)": 0.25})


def test_buffered_utilisation_is_preferred_to_polled() -> None:
    time_of_steps = MeasuredTime(steps((0, 4 * SECOND)))
    polled = series((2 * SECOND, 99.0), (4 * SECOND, 99.0))
    buffered = series((2 * SECOND, 20.0), (4 * SECOND, 60.0))
    found = _gpu(device(util_pct=polled, util_samples=buffered), set(), 1, None, time_of_steps)
    assert (found.util_pct_mean, found.util_pct_peak, found.util_source) == (40, 60, "buffered")
    found = _gpu(device(util_pct=polled), set(), 1, None, time_of_steps)
    assert (found.util_pct_mean, found.util_source) == (99, "polled")


# --- polling devices ---


class Polling:
    """A poller over made-up devices whose turns pass at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *figures: Callable[[], dict[str, Any]]) -> None:
        monkeypatch.setattr(gpus, "PERIOD_S", 0.005)
        self.told: list[dict[str, Any]] = []
        asked = [Figure(f"figure {number}", read) for number, read in enumerate(figures)]
        devices = [
            Device({"index": 0}, asked),
            Device({"index": 1}, [Figure("whole", lambda: {"util_pct": 1})]),
        ]
        self.poller = DevicePoller({"made up": lambda emit: devices}, self.told.append)

    def run(self, *devices: int, turns: int = 5) -> None:
        self.poller.start()
        deadline = time.monotonic() + 10
        while min(len(self.of(device)) for device in devices) < turns and time.monotonic() < deadline:
            time.sleep(0.002)
        self.poller.stop(1)

    def of(self, device: int) -> list[dict[str, Any]]:
        return [record for record in self.told if record["type"] == "gpu" and record["device"] == device]

    def problems(self) -> list[tuple[int, str, str]]:
        found = [record for record in self.told if record["type"] == "problem"]
        return [(record["device"], record["figure"], record["why"]) for record in found]


def failing(counts: list[int], error: Exception) -> Callable[[], dict[str, Any]]:
    def read() -> dict[str, Any]:
        counts.append(1)
        raise error

    return read


def test_a_figure_that_fails_is_told_once_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    timeouts: list[int] = []
    never: list[int] = []
    broken: list[int] = []
    polling = Polling(
        monkeypatch,
        failing(timeouts, FigureError("Timeout")),
        failing(never, FigureError("Not Supported", final=True)),
        failing(broken, KeyError("a defect of the library")),
        lambda: {"power_w": 5},
    )
    polling.run(0, 1)
    assert sorted(polling.problems()) == [
        (0, "figure 0", "Timeout"),
        (0, "figure 1", "Not Supported"),
        (0, "figure 2", "KeyError('a defect of the library')"),
    ]
    assert len(timeouts) > 2  # it may pass
    assert len(never) == len(broken) == 1
    assert all(record["power_w"] == 5 and "figure 3" in record["cost_ns"] for record in polling.of(0))
    assert len(polling.of(1)) >= 5


def test_many_devices_are_asked_half_as_often(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        poller._stop.set()

    devices = [Device({"index": n}, [Figure("whole", lambda: {"util_pct": 1})]) for n in range(5)]
    poller = DevicePoller({"made up": lambda emit: devices}, lambda record: None)
    poller._devices.extend(devices)
    monkeypatch.setattr(poller._stop, "wait", wait)
    poller._poll(0, devices[0])
    poller._devices.pop()
    poller._stop.clear()
    poller._poll(0, devices[0])
    assert waits == [2 * gpus.PERIOD_S, gpus.PERIOD_S]


def test_a_lost_device_is_asked_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    lost: list[int] = []
    polling = Polling(
        monkeypatch, failing(lost, FigureError("GPU is lost", lost=True)), lambda: {"power_w": 5}
    )
    polling.run(1)
    assert len(lost) == 1
    assert polling.problems() == [(0, "figure 0", "GPU is lost")]
    assert all("power_w" not in record for record in polling.of(0))
    assert len(polling.of(1)) >= 5


def test_a_device_that_hangs_is_told_and_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]
    answer = threading.Event()
    polling = Polling(monkeypatch, lambda: {"late": answer.wait(10)})
    clock = types.SimpleNamespace(
        monotonic=lambda: now_s[0], monotonic_ns=time.monotonic_ns, perf_counter_ns=time.perf_counter_ns
    )
    monkeypatch.setattr(gpus, "time", clock)
    polling.poller.start()
    while len(polling.of(1)) < 5:
        time.sleep(0.002)
    polling.poller.check()
    assert polling.problems() == []
    now_s[0] += 11
    polling.poller.check()
    polling.poller.check()
    assert polling.problems() == [(0, "figure 0", "no answer for 10 s")]
    answer.set()
    polling.poller.stop(5)


def test_a_library_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: Any) -> list[Device]:
        raise UnavailableError("not installed")

    def defect(_: Any) -> list[Device]:
        raise ZeroDivisionError

    told: list[dict[str, Any]] = []
    poller = DevicePoller({"one": missing, "other": defect}, told.append)
    poller.start()
    poller.stop(5)
    assert [(record["library"], record["why"]) for record in told] == [
        ("one", "not installed"),
        ("other", "ZeroDivisionError()"),
    ]


def test_amd_devices_by_a_made_up_amdsmi(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: Any) -> Any:
        raise RuntimeError("AMDSMI_STATUS_NOT_SUPPORTED")

    kinds = types.SimpleNamespace(VRAM=0, HOTSPOT=1, CURRENT=2, GFX=3, MEM=4)
    smi = types.SimpleNamespace(
        AmdSmiMemoryType=kinds,
        AmdSmiTemperatureType=kinds,
        AmdSmiTemperatureMetric=kinds,
        AmdSmiClkType=kinds,
        amdsmi_init=lambda: None,
        amdsmi_get_processor_handles=lambda: ["handle"],
        amdsmi_get_gpu_device_uuid=lambda _: "uuid",
        amdsmi_get_gpu_asic_info=lambda _: {"market_name": "made up"},
        amdsmi_get_gpu_memory_total=lambda _, kind: 1000,
        amdsmi_get_gpu_activity=lambda _: {"gfx_activity": 40, "umc_activity": "N/A"},
        amdsmi_get_gpu_memory_usage=lambda _, kind: 600,
        amdsmi_get_power_info=lambda _: {"current_socket_power": "N/A", "average_socket_power": 250},
        amdsmi_get_energy_count=lambda _: {"energy_accumulator": 10**9, "counter_resolution": 15.3},
        amdsmi_get_clock_info=lambda _, kind: {"clk": 1700 if kind == 3 else 900},
        amdsmi_get_temp_metric=lost,
    )
    monkeypatch.setitem(sys.modules, "amdsmi", smi)
    (found,) = amd.find(lambda record: None)
    assert (found.about["uuid"], found.about["name"], found.about["memory_total_bytes"]) == (
        "uuid",
        "made up",
        1000,
    )
    read: dict[str, Any] = {}
    failed = {}
    for figure in found.figures:
        try:
            read.update(figure.read())
        except FigureError as error:
            failed[figure.name] = str(error)
    assert read == {
        "util_pct": 40,
        "memory_bytes": 600,
        "power_w": 250,
        "energy_j": pytest.approx(15300),
        "sm_clock_mhz": 1700,
        "memory_clock_mhz": 900,
    }
    assert failed == {
        "temperature": "AMDSMI_STATUS_NOT_SUPPORTED",
        "processes": "this amdsmi has no amdsmi_get_gpu_process_list",
    }


# --- the claim and the files ---


def test_a_host_is_sampled_once(tmp_path: Path) -> None:
    first = claim(tmp_path)
    assert first is not None
    assert claim(tmp_path) is None  # it has not said who it is yet
    mine = Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()
    told = {"type": "sampler", "pid": int(Path("/proc/self").readlink().name), "start_ticks": int(mine[19])}
    (first / names.RECORDS).write_text(json.dumps(told) + "\n")
    assert claim(tmp_path) is None
    (first / names.RECORDS).write_text(json.dumps({**told, "start_ticks": 1}) + "\n")
    second = claim(tmp_path)  # the pid is another process's by now
    assert second is not None
    assert second != first


def _sampled(directory: Path, lines: list[dict[str, Any]], samples: bytes) -> None:
    directory.mkdir(parents=True)
    (directory / names.RECORDS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    (directory / names.SAMPLES).write_bytes(samples)


SAMPLER = {"type": "sampler", "pid": 1, "node": "n", "clock": [0, 10 * SECOND, 5], "interval_ns": 1}
SYSTEM = {"type": "system", "sampler_cpu_ns": 0}


def sample(time_ns: int, number: int, rss: int) -> bytes:
    return struct.pack(names.SAMPLE_FORMAT, time_ns, number, 1, 0, rss, 0, -1, -1, -1, -1, -1, -1)


def test_samples_of_a_killed_sampler_are_read_as_far_as_they_go(tmp_path: Path) -> None:
    lines = [
        SAMPLER,
        {"type": "process", "number": 0, "pid": 7, "start_ns": 1},
        {"type": "process", "number": 1, "pid": 8, "start_ns": 2},
        {"type": "of a later version"},
    ]
    data = sample(5, 1, 100) + sample(6, 0, 300) + sample(15, 1, 200)
    _sampled(tmp_path / names.TELEMETRY / "n-1", lines, data + b"cut")
    (found,) = read_telemetry(read_sidecars(tmp_path))
    assert [process.pid for process in found.processes] == [7, 8]
    assert found.processes[1].samples["rss_bytes"].tolist() == [100, 200]
    assert found.processes[1].samples["time_ns"].tolist() == [10 * SECOND + 5, 10 * SECOND + 15]
    assert found.processes[1].series("read_bytes") is None
    assert not found.ended
    assert len(found.damage) == 2


def test_a_sampler_that_never_said_who_it_is_counts_for_nothing(tmp_path: Path) -> None:
    _sampled(tmp_path / names.TELEMETRY / "n-1", [], b"")
    (tmp_path / names.TELEMETRY / "n-2").mkdir()
    assert read_telemetry(read_sidecars(tmp_path)) == []


def test_a_gap_in_the_samples_is_told(tmp_path: Path) -> None:
    records = [{**SYSTEM, "clock": [second * SECOND, 10 * SECOND, 5]} for second in (1, 2, 4, 7, 8)]
    lines = [SAMPLER, {"type": "process", "number": 0, "pid": 7, "start_ns": 1}, *records]
    _sampled(tmp_path / names.TELEMETRY / "n-1", lines, sample(5 * SECOND, 0, 1))
    (found,) = read_telemetry(read_sidecars(tmp_path))
    assert [*_gaps(found)] == []
    records[3]["clock"][0] = 7_500_000_000
    (tmp_path / names.TELEMETRY / "n-1" / names.RECORDS).write_text(
        "".join(json.dumps(line) + "\n" for line in lines)
    )
    (found,) = read_telemetry(read_sidecars(tmp_path))
    assert [item.why.split(":")[0] for item in _gaps(found)] == ["a gap of 2.5 s"]


def test_every_number_that_is_sampled_of_a_host_is_a_series(tmp_path: Path) -> None:
    """What folds it is declared at the figure: nothing else has to name it."""
    numbers = ["stolen_ticks", "tcp_retransmits", "sampler_cpu_ns"]
    records = [
        {**SYSTEM, "clock": [at * SECOND, 10 * SECOND, 5], "memory": {"dirty_bytes": at}}
        | dict.fromkeys(numbers, at)
        for at in (1, 2, 3)
    ]
    _sampled(tmp_path / names.TELEMETRY / "n-1", [SAMPLER, *records], b"")
    (found,) = read_telemetry(read_sidecars(tmp_path))
    for name in (*numbers, "memory_dirty_bytes"):
        assert found.host.figures[name].value.tolist() == [1, 2, 3]


# --- how fast the CPUs were ---


def test_the_fixed_piece_of_work_is_summed_up_over_the_measured_steps(tmp_path: Path) -> None:
    sampler = {**SAMPLER, "calibration": "inflate"}
    taken = [[index * SECOND // 4, (400 + index) * 1000] for index in range(32)]
    record = {**SYSTEM, "clock": [8 * SECOND, 18 * SECOND, 5], "calibration_ns": taken}
    _sampled(tmp_path / names.TELEMETRY / "n-1", [sampler, record], b"")
    (found,) = read_telemetry(read_sidecars(tmp_path))
    start = 10 * SECOND
    # From 2 s to 6 s: the 9th to the 25th.
    inside = MeasuredTime(steps((start + 2 * SECOND + 1, start + 6 * SECOND)))
    calibration = _calibration(found, inside)
    assert calibration is not None
    assert (calibration.work, calibration.count) == ("inflate", 16)
    assert (calibration.quartile_us, calibration.median_us) == (412.75, 416.5)
    assert _calibration(found, MeasuredTime(steps((start, start + SECOND)))) is None  # too few of them


def test_the_piece_of_work_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, cpu_ns = [0], itertools.count(0, 500_000)
    monkeypatch.setattr("time.monotonic_ns", lambda: clock[0])
    monkeypatch.setattr("time.thread_time_ns", lambda: next(cpu_ns))
    piece = Calibration()
    piece.run()
    clock[0] = 249_000_000
    piece.run()
    assert piece.take() == [(0, 500_000)]
    clock[0] = 250_000_000  # 500 times as long: 0.2 % of a core
    piece.run()
    assert piece.take() == [(250_000_000, 500_000)]
    assert piece.take() == []


# --- the CPU quota ---


def _records_of_quotas(*told: dict[str, list[int]]) -> list[dict[str, Any]]:
    return [
        {**SYSTEM, "clock": [second * SECOND, 10 * SECOND, 5], "cgroup_quotas": quotas}
        for second, quotas in enumerate(told)
    ]


def test_the_quota_that_holds_back_most_is_told_whichever_group_has_it(tmp_path: Path) -> None:
    told = _records_of_quotas(
        {"/job": [100, 100], "/job/task": [5, 0], "/": [0, 0]},
        {"/job": [110, 108], "/job/task": [15, 1], "/": [0, 0]},
        {"/job": [120, 116], "/job/task": [25, 2], "/": [0, 0]},
    )
    _sampled(tmp_path / names.TELEMETRY / "n-1", [SAMPLER, *told], b"")
    (found,) = read_telemetry(read_sidecars(tmp_path))
    assert set(found.host.quotas) == {"/job", "/job/task"}
    start = int(found.host.time_ns[0])
    assert _throttled(found.host, MeasuredTime(steps((start, start + 2 * SECOND)))) == pytest.approx(0.8)
    assert _throttled(found.host, MeasuredTime(steps((start, start + 9 * SECOND)))) is None  # not covered


def test_without_a_quota_nothing_is_told_of_it(tmp_path: Path) -> None:
    told = _records_of_quotas({"/": [0, 0]}, {"/": [0, 0]})
    _sampled(tmp_path / names.TELEMETRY / "n-1", [SAMPLER, *told], b"")
    (found,) = read_telemetry(read_sidecars(tmp_path))
    start = int(found.host.time_ns[0])
    assert _throttled(found.host, MeasuredTime(steps((start, start + SECOND)))) is None


# --- the processes ---


def test_a_pid_of_another_namespace_is_the_processes_own(tmp_path: Path) -> None:
    lines = [
        SAMPLER,
        {"type": "process", "number": 0, "pid": 700, "own_pid": 1, "start_ns": 1},
        {"type": "process", "number": 1, "pid": 1, "start_ns": 1},
        {"type": "process", "number": 2, "pid": 800, "own_pid": 5, "start_ns": 1},
    ]
    data = sample(3 * SECOND, 0, 100) + sample(3 * SECOND, 1, 200) + sample(3 * SECOND, 2, 300)
    _sampled(tmp_path / names.TELEMETRY / "n-1", lines, data)
    (found,) = read_telemetry(read_sidecars(tmp_path))

    def of(pid: int, began_ns: int) -> SampledProcess | None:
        identity = types.SimpleNamespace(node="n")
        return found.process_of(types.SimpleNamespace(pid=pid, began_ns=began_ns, identity=identity))  # type: ignore[arg-type]

    began_ns = found.processes[0].start_ns + SECOND
    assert of(5, began_ns) is found.processes[2]
    assert of(800, began_ns) is None
    assert of(1, began_ns) is None  # two that live at once: which of them it is, is not known


def test_counters_of_a_process_that_never_move_are_left_out(tmp_path: Path) -> None:
    def counted(second: int, calls: int, read: int) -> bytes:
        return struct.pack(
            names.SAMPLE_FORMAT, second * SECOND, 0, 1, 0, 7, 0, read, 0, calls, calls, read, 0
        )

    told = [{**SYSTEM, "clock": [n * SECOND, 10 * SECOND, 5], "switches": [[0, 30 * n, 0]]} for n in range(3)]
    lines = [SAMPLER, {"type": "process", "number": 0, "pid": 7, "start_ns": 0}, *told]
    _sampled(
        tmp_path / names.TELEMETRY / "n-1",
        lines,
        counted(0, 0, 0) + counted(1, 5, 3 << 20) + counted(2, 25, 3 << 20),
    )
    (found,) = read_telemetry(read_sidecars(tmp_path))
    counters = {
        (counter.name, counter.unit): [value for _, value in counter.points]
        for counter in _process(found.processes[0], found, is_over=True)
    }
    assert counters.pop(("CPU", "%")) == [0, 0, 0]
    assert counters.pop(("RSS", "bytes"))[0] == 7
    assert counters == {
        ("storage read", "MiB/s"): pytest.approx([3, 0, 0]),
        ("I/O calls", "/s"): pytest.approx([10, 40, 0]),
        ("voluntary switches", "/s"): pytest.approx([30, 30, 0]),
    }


@pytest.mark.parametrize(("cost_ms", "turn_ms"), [(0, 20), (2, 1000), (30, 5000)])
def test_a_turn_that_costs_much_makes_the_next_one_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cost_ms: int, turn_ms: int
) -> None:
    used_ns = 0

    def sample(new_alone: bool = False) -> bytes:
        nonlocal used_ns
        used_ns += cost_ms * 1_000_000
        return b""

    monkeypatch.setattr(time, "thread_time_ns", lambda: used_ns)
    sidecar = Sidecar(str(tmp_path), str(tmp_path), 20_000_000)
    sidecar._tree.sample = sample  # type: ignore[method-assign]
    sidecar._sample()
    assert sidecar._turn_ns == turn_ms * 1_000_000


# --- where the sidecar imports from ---


def test_installed_packages_are_found_from_within_their_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = sysconfig.get_path("purelib")
    monkeypatch.setattr(sys, "path", [packages, str(tmp_path), "relative", ""])
    monkeypatch.chdir(packages)
    assert {packages, str(tmp_path), f"{packages}/relative"} <= set(import_path().split(":"))
    monkeypatch.chdir(tmp_path)
    assert str(tmp_path) not in import_path().split(":")
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert import_path().split(":")[1:] == [packages, str(tmp_path)]
