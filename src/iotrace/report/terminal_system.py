"""The machine's part of the terminal report: CPU, memory, GPUs, and I/O by file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from iotrace.analysis.results import Chunks, FileGroup, FileIo, Gpu, Io, ProcessUse, System, total
from iotrace.report.blocks import Block, Grid, Line, Paragraph
from iotrace.units import counted, digits, if_known, milliseconds, percent, size

_MOST_FILES = 6
_MOST_GPUS = 8
_IO_HEADINGS = ("I/O by file", "opens", "reads", "read", "read time", "metadata", "written")
_AT_LEAST = "≥ "
_UNSEEN_BYTES = 1 << 20
_WORTH_NAMING = 0.01  # of the time
# Memory that grew by this much over the measured steps, and by this share of its largest.
_GROWN_BYTES, _GROWN_FRACTION = 16 << 20, 0.05
_MOST_GROWN = 4


def system_lines(system: System) -> Iterator[Line]:
    """Say what CPU, memory and GPUs did."""
    told = {
        "system": " · ".join(_parts(system)),
        "memory": _growing(system.processes),
        "swap": _in_swap(system),
    }
    yield from (Line(label, text) for label, text in told.items() if text)
    rows = _gpu_rows(system.gpus)
    yield from (Line(label, text) for label, text in rows[:_MOST_GPUS])
    if len(rows) > _MOST_GPUS:
        yield Line("", f"{len(rows) - _MOST_GPUS} more devices: --json")


def _parts(system: System) -> Iterator[str]:
    if system.cpu_pct_mean is not None:
        of = f" of {counted(system.cpus, 'CPU')}" if system.cpus else " CPUs"
        yield f"the run used {system.cpu_pct_mean / 100:.2g}{of}"
    if system.rss_peak_bytes is not None:
        yield f"RSS of its processes {size(system.rss_peak_bytes)} at most{_unsampled(system)}"
    host = system.host
    if host is None:
        return
    if host.cpu_busy_fraction is not None and host.cpu_saturated_fraction is not None:
        busy, full = percent(host.cpu_busy_fraction), percent(host.cpu_saturated_fraction)
        yield f"host {busy} busy, all cores {full} of the time"
    if (waits := host.iowait_fraction or 0.0) >= _WORTH_NAMING:
        yield f"iowait {percent(waits)}"
    pressures = {name: share for name, share in host.pressure_fraction.items() if share >= _WORTH_NAMING}
    if pressures:
        yield f"pressure: {', '.join(f'{name} {percent(share)}' for name, share in pressures.items())}"
    if (held_back := host.cpu_throttled_fraction or 0.0) >= _WORTH_NAMING:
        yield f"throttled by its CPU quota in {percent(held_back)} of the periods"


def _unsampled(system: System) -> str:
    """How many processes ended before a sample was taken of them."""
    missing = sum(process.rss_peak_bytes is None for process in system.processes)
    return f", without {missing} of {len(system.processes)} that were never sampled" if missing else ""


def _growing(processes: list[ProcessUse]) -> str:
    """The processes whose memory grew over the measured steps, by how much; empty where none did."""
    of_roles: dict[str, list[int]] = {}
    for process in processes:
        grown_bytes, peak_bytes = process.rss_growth_bytes, process.rss_peak_bytes
        if not peak_bytes or grown_bytes is None:
            continue
        if grown_bytes >= max(_GROWN_BYTES, _GROWN_FRACTION * peak_bytes):
            of_roles.setdefault(process.role, []).append(grown_bytes)
    if not of_roles:
        return ""
    grown = sorted(of_roles.items(), key=lambda own: -max(own[1]))
    # Each epoch's workers have the same numbers.
    named = ", ".join(
        f"{role} {size(max(own))}{f' (the most of {len(own)} processes)' if len(own) > 1 else ''}"
        for role, own in grown[:_MOST_GROWN]
    )
    more = f", {len(grown) - _MOST_GROWN} more" if len(grown) > _MOST_GROWN else ""
    return f"grew over the measured steps: {named}{more}"


def _in_swap(system: System) -> str:
    """What came back from swap, and whose memory was there at most; empty where neither is worth it."""
    back = system.host.swap_in_bytes if system.host is not None else None
    held = [(each.swap_bytes_peak or 0, each) for each in system.processes]
    if max(back or 0, sum(size_bytes for size_bytes, _ in held)) < _GROWN_BYTES:
        return ""
    came_back = if_known(back, lambda count: f"{size(count)} came back over the measured steps")
    parts = [came_back or "how much came back is unknown"]
    for size_bytes, each in sorted(held, key=lambda pair: -pair[0])[:_MOST_GROWN]:
        if size_bytes:
            own = if_known(each.swap_in_bytes, size, "?")
            parts.append(f"{each.role} {size(size_bytes)} in swap at most, {own} back")
    return " · ".join(parts)


def _gpu_rows(gpus: Sequence[Gpu]) -> list[tuple[str, str]]:
    """A row for each device; those of a name of which nothing more is known share one."""
    rows: dict[str, list[str]] = {}
    for gpu in gpus:
        text = gpu_text(gpu)
        key = text if text == f"{gpu.name}: unknown" else gpu_label(gpu)
        rows.setdefault(key, [gpu_label(gpu), text])[2:] = [gpu_label(gpu).removeprefix("gpu ")]
    return [
        (first, text) if first == f"gpu {last}" else (f"{first} to {last}", text)
        for first, text, last in rows.values()
    ]


def gpu_label(gpu: Gpu) -> str:
    """Name a device by its index."""
    return f"gpu {gpu.index}" if gpu.instance is None else f"gpu {gpu.index}.{gpu.instance}"


def gpu_text(gpu: Gpu) -> str:
    """What a device is, and what it did over the measured steps."""
    power = [
        if_known(gpu.power_w_mean, lambda mean: f"{mean:.0f} W{_peak(mean, gpu.power_w_peak)}"),
        if_known(gpu.energy_j_per_step, lambda each: f"{_joules(each)} J a step"),
        if_known(gpu.energy_j_per_sample, lambda each: f"{_joules(each)} J a sample"),
    ]
    parts = [
        if_known(gpu.util_pct_mean, lambda mean: f"{mean:.0f} % busy{_peak(mean, gpu.util_pct_peak)}"),
        ", ".join(filter(None, power)) if gpu.power_w_mean is not None else "",
        if_known(gpu.memory_bytes_peak, lambda peak: f"{size(peak)} at most"),
        if_known(gpu.sm_clock_mhz_mean, "{:.0f} MHz".format),
        if_known(gpu.temperature_c_max, "{:.0f} °C at most".format),
    ]
    if gpu.throttled_fraction:
        parts.append(f"throttled {percent(gpu.throttled_fraction)}: {', '.join(gpu.throttle_reasons)}")
    return f"{gpu.name}: {' · '.join(filter(None, parts)) or 'unknown'}"


def _joules(energy_j: float) -> str:
    """At least two digits, and one decimal from 1 J on."""
    return f"{energy_j:.1f}" if energy_j >= 1 else f"{energy_j:.2g}"


def _peak(mean: float, peak: float | None) -> str:
    return f" (at most {peak:.0f})" if peak is not None and round(peak) > round(mean) else ""


def io_blocks(io: Io, groups: Sequence[FileGroup] = ()) -> Iterator[Block]:
    """Show the files that most time went to, those of a store, archive or directory in one row."""
    coverage, partly = io.seen_fraction, io.seen_in_part
    at_least = _AT_LEAST if partly else ""
    rows: dict[str, list[FileIo]] = defaultdict(list)
    for file in io.files:
        if file.group is not None:  # without temporary files and libraries'
            rows[file.group].append(file)
    shown = []
    for path, files in list(rows.items())[:_MOST_FILES]:
        shown.append(
            [
                path,
                str(sum(file.opens for file in files)),
                str(sum(file.reads for file in files)),
                _bytes_read(files, at_least),
                if_known(total(file.read_ms_total for file in files), milliseconds, "?"),
                milliseconds(sum(file.metadata_ms_total for file in files)),
                size(sum(file.write_bytes for file in files)),
            ]
        )
    if rows:
        yield Grid(_IO_HEADINGS, shown)
    for group in groups:
        if group.chunks is not None:
            yield Line("chunks", f"{group.path}: {chunks_text(group.chunks)}")
    more = len(rows) - _MOST_FILES
    rest = f"{counted(more, 'more row')}; " if more > 0 else ""
    told, when = f"{rest}{io.calls} calls", " in the measured steps" if io.data_coverage_of_steps else ""
    if not partly and io.unseen_because is not None:
        whose = " for what makes batches" if io.data_coverage is not None else ""
        seen = if_known(coverage, percent, "how much")
        told += f"; traced: {seen} of the bytes that the kernel counts as read{whose}{when}"
        told += " is unknown" if coverage is None else ""
    yield Paragraph(told, tone="dim")
    workers = [process for process in io.processes if process.is_worker]
    if partly:
        whose = "the bytes that the kernel counted as read"
        if io.data_coverage is not None and workers:
            counted_bytes = [each.steps_kernel_bytes if when else each.kernel_bytes for each in workers]
            whose += f" by workers{when}, {size(sum(filter(None, counted_bytes)))}"
        yield Line("not seen", f"{percent(1 - (coverage or 0.0))} of {whose}: {io.unseen_because}")
    # What the kernel counted beside the data: code, and what the training process takes from workers.
    others = [process for process in io.processes if not process.is_worker and process.kernel_bytes]
    unseen = sum((process.kernel_bytes or 0) - (process.traced_bytes or 0) for process in others)
    if workers and unseen >= _UNSEEN_BYTES:
        yield Line("not data", f"{size(unseen)} read by the training process: code, pipes of its workers")


def chunks_text(chunks: Chunks) -> str:
    """How many chunks were read of how many, how much of them was used, of which dates and variables."""
    of = f" of {chunks.of}" if chunks.of is not None else ""
    parts = [f"{chunks.read}{of} read, {chunks.times_read} times in all"]
    if chunks.decoded_bytes is not None and chunks.used_bytes and chunks.amplification is not None:
        used = f"decoded {size(chunks.decoded_bytes)} for {size(chunks.used_bytes)} asked for"
        parts.append(f"{used}: {digits(chunks.amplification, 2)}x")
    if chunks.first_date is not None:
        parts.append(f"{chunks.first_date[:16]} to {(chunks.last_date or '?')[:16]}")
    if chunks.variables:
        parts.append(f"{len(chunks.variables)} variables")
    return " · ".join(parts)


def _bytes_read(files: Sequence[FileIo], at_least: str) -> str:
    """What was read of files: ``? B`` where unknown, ``≥`` where more may have been read."""
    read_bytes = total(file.read_bytes for file in files)
    if read_bytes is None:
        return "? B"
    some = any(file.maps for file in files) or (at_least and any(file.reads for file in files))
    return (_AT_LEAST if some else "") + size(read_bytes)
