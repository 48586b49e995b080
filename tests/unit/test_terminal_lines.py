"""Lines of the terminal report that sum up a machine."""

from __future__ import annotations

import io

from hypothesis import given, strategies as st
from rich.console import Console

from iotrace.analysis.results import DataWait, FileCost, Gpu, HostUse, LoaderResult, ProcessUse, System
from iotrace.report.layout import LABEL_WIDTH, print_blocks
from iotrace.report.printing import command
from iotrace.report.terminal import after_reading, loader_text
from iotrace.report.terminal_system import system_lines
from tests.support.results import unknown
from tests.support.texts import any_text

MIB = 1 << 20


def process(role: str, growth: int | None, peak: int | None) -> ProcessUse:
    return ProcessUse(
        pid=1,
        role=role,
        cpu_pct_mean=None,
        rss_peak_bytes=peak,
        rss_growth_bytes=growth,
        major_faults=None,
        io_calls=None,
        storage_read_bytes=None,
        storage_write_bytes=None,
    )


def shown(processes: list[ProcessUse], gpus: list[Gpu], throttled: float | None = None) -> str:
    host = HostUse(
        cpu_busy_fraction=None,
        cpu_saturated_fraction=None,
        others_cpu_fraction=None,
        cpu_stolen_fraction=None,
        iowait_fraction=None,
        cpu_throttled_fraction=throttled,
        pressure_fraction={},
        cgroup_pressure_fraction={},
        memory_available_bytes_min=None,
        sampler_cpu_pct_mean=None,
    )
    peaks = [item.rss_peak_bytes for item in processes if item.rss_peak_bytes is not None]
    system = System(
        gpus=gpus,
        cpu_pct_mean=None,
        rss_peak_bytes=max(peaks, default=None),
        cpus=None,
        processes=processes,
        host=host,
    )
    console = Console(file=io.StringIO(), width=200)
    print_blocks(system_lines(system), console, LABEL_WIDTH)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_memory_that_grew_is_named_the_most_first() -> None:
    steady = process("main", 15 * MIB, 100 * MIB)
    noise = process("worker 9", 40 * MIB, 4000 * MIB)
    unknown = process("worker 8", None, 100 * MIB)
    assert "grew" not in shown([steady, noise, unknown], [])
    grown = [process(f"worker {n}", n * 20 * MIB, 200 * MIB) for n in range(1, 7)]
    text = shown([steady, *grown], [])
    assert "worker 6 120.0 MiB, worker 5 100.0 MiB, worker 4 80.0 MiB, worker 3 60.0 MiB, 2 more" in text
    # Workers of two epochs have the same numbers.
    again = [process("worker 0", n * 20 * MIB, 200 * MIB) for n in (2, 3)]
    text = shown([process("worker 1", 50 * MIB, 200 * MIB), *again], [])
    assert "worker 0 60.0 MiB (the most of 2 processes), worker 1 50.0 MiB\n" in text


def test_processes_without_a_sample_are_counted() -> None:
    seen, unseen = process("main", None, 100 * MIB), process("worker 0", None, None)
    assert "100.0 MiB at most, without 2 of 3 that were never sampled\n" in shown([seen, unseen, unseen], [])
    assert "100.0 MiB at most\n" in shown([seen], [])


def test_a_quota_that_held_the_job_back_is_named() -> None:
    assert "throttled by its CPU quota in 39 % of the periods" in shown([], [], 0.39)
    assert "quota" not in shown([], [], 0.001)
    assert "quota" not in shown([], [], None)


def test_a_device_with_peaks_and_energy() -> None:
    figures = dict.fromkeys(Gpu.__struct_fields__)
    known = {"index": 0, "name": "A", "throttle_reasons": {}, "util_pct_mean": 40.2, "util_pct_peak": 97.0}
    power = {
        "power_w_mean": 250.0,
        "power_w_peak": 310.0,
        "energy_j_per_step": 12.5,
        "energy_j_per_sample": 0.78,
    }
    text = shown([], [Gpu(**{**figures, **known, **power})])  # type: ignore[arg-type]
    assert "A: 40 % busy (at most 97) · 250 W (at most 310), 12.5 J a step, 0.78 J a sample" in text
    large = power | {"energy_j_per_step": 197.7, "energy_j_per_sample": 197.7}
    text = shown([], [Gpu(**{**figures, **known, **large})])  # type: ignore[arg-type]
    assert "197.7 J a step, 197.7 J a sample" in text
    assert "A: 40 % busy (at most 97)\n" in shown([], [Gpu(**{**figures, **known})]).replace(" \n", "\n")  # type: ignore[arg-type]


@given(st.lists(any_text(min_size=1, max_size=40), min_size=1, max_size=12), st.integers(20, 120))
def test_a_command_fits_one_line_and_keeps_both_ends(argv: list[str], width: int) -> None:
    text = command(["python", *argv, "--last"], width)
    assert len(text) <= width
    assert "\n" not in text
    assert text.startswith("python")
    assert text.endswith("--last")


def test_a_short_command_is_whole() -> None:
    assert command(["python", "a b.py"], 80) == "python 'a b.py'"


def shown_after(transform_ms: float, *after_ms: float) -> str:
    """The line of a transform of which `after_ms` followed the read of one file each."""
    files = [
        FileCost(path=f"d/{number}.npy", ms=0.0, read_ms=0.0, decode_ms=0.0, transform_ms=after)
        for number, after in enumerate(after_ms)
    ]
    wait = unknown(
        DataWait, causes_ms={"transform": transform_ms}, by_loader=[], files=files, worst_batches=[]
    )
    return "".join(f"{line.text}\n" for line in after_reading(wait))


def test_transform_names_the_file_that_was_read_before() -> None:
    assert "after reading d/0.npy: 8.0 ms a step, 100 % of it\n" in shown_after(8.0, 8.0)
    assert "after reading d/1.npy: 6.0 ms a step, 75 % of it; 1 other file likewise" in shown_after(
        8.0, 1.0, 6.0
    )
    assert "after reading" not in shown_after(8.0, 3.0)  # most of it followed no read of one file
    assert not shown_after(0.0)


def test_memory_in_swap_is_told_with_whose_it_was() -> None:
    def line(back: int | None, *held: tuple[int | None, int | None]) -> str:
        host = unknown(HostUse, pressure_fraction={}, cgroup_pressure_fraction={}, swap_in_bytes=back)
        processes = [
            unknown(ProcessUse, pid=number, role=f"worker {number}", swap_bytes_peak=peak, swap_in_bytes=own)
            for number, (peak, own) in enumerate(held)
        ]
        console = Console(file=io.StringIO(), width=200)
        system = unknown(System, gpus=[], processes=processes, host=host)
        print_blocks(system_lines(system), console, LABEL_WIDTH)
        assert isinstance(console.file, io.StringIO)
        return " ".join(console.file.getvalue().split())

    assert line(300 * MIB, (200 * MIB, 250 * MIB), (400 * MIB, None), (0, 0)) == (
        "swap 300.0 MiB came back over the measured steps · worker 1 400.0 MiB in swap at most, ? back · "
        "worker 0 200.0 MiB in swap at most, 250.0 MiB back"
    )
    assert line(None, (400 * MIB, None)).startswith("swap how much came back is unknown · ")
    assert line(0, (None, 0), (MIB, 0)) == ""


def test_a_loader_without_a_dataset_goes_by_its_queue() -> None:
    known = {"id": 0, "kind": "training", "primary": True, "batches": 9, "phases": {}, "failures": []}
    queue = unknown(LoaderResult, **known, dataset="", pool="asyncio.Queue", workers=1, made_fraction=0.0)
    assert loader_text(queue) == (
        "asyncio.Queue, training (primary) · unknown who made them, taken from an asyncio.Queue, 9 batches"
    )
    pool = unknown(LoaderResult, **known, dataset="load", pool="Pool", workers=2, made_fraction=1.0)
    assert loader_text(pool).startswith(
        "load, training (primary) · made by 2 workers, taken from a Pool, 9 batches"
    )
