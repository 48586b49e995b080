"""Views of what the device did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from iotrace.analysis.device.modules import short_frame
from iotrace.analysis.results import Accelerator, RankReport, Report
from iotrace.report.views.ranks import late_in_groups, speeds
from iotrace.report.views.table import Field, Table, of_ranks
from iotrace.units import counted, one_decimal, size, three_digits

NO_TRACE = "no trace of torch.profiler shows a device"
CLASSES = {"data_wait": "data wait", "host_wait": "host late", "kernel_wait": "short gap", "other": "other"}
REMEDY = "iotrace run -- CMD records one where torch sees a device"


def _ms(time_us: float) -> str:
    return f"{time_us / 1e3:.1f}"


_ON_BOTH = (
    Field("host_self_us", "host self", _ms),
    Field("host_total_us", "host", _ms),
    Field("device_self_us", "device self", _ms, absent="-"),
    Field("device_total_us", "device", _ms, absent="-"),
    Field("calls", "calls"),
)


def of_device(
    report: Report,
    title: str,
    fields: Sequence[Field],
    rows: Callable[[Accelerator], Sequence[msgspec.Struct]],
    notes: Callable[[Accelerator], Sequence[str]] = lambda _: (),
    commands: Callable[[Accelerator], Sequence[str]] = lambda _: (),
    unknown: str = "none was recorded",
    remedy: str = "",
) -> list[Table]:
    """Make a table for each rank of what `rows` takes from its device; `unknown`: why it may be nothing."""

    def make(rank: RankReport) -> Table:
        found = rank.accelerator
        if found is None:
            return Table(title=title, rows=[], fields=fields, unknown=NO_TRACE, remedy=REMEDY)
        return Table(
            title=title,
            rows=rows(found),
            fields=fields,
            unknown=unknown,
            remedy=remedy,
            notes=notes(found),
            commands=commands(found),
        )

    return of_ranks(report.ranks, make)


def kernel_name(kernel: str) -> str:
    """Leave out of a kernel's name what all kernels share, and its parameters."""
    name = kernel.removeprefix("void ").replace("(anonymous namespace)::", "")
    return name.partition("(")[0].strip() or kernel


def kernels(report: Report) -> list[Table]:
    """Show the kernels, the costliest first."""
    fields = (
        Field("total_us", "ms", _ms),
        Field("calls", "calls"),
        Field("median_us", "median us", one_decimal, absent="-"),
        Field("blocks_per_sm", "blocks/SM", three_digits, absent="-"),
        Field("occupancy_pct", "occup. %", three_digits, absent="-"),
        Field("op", "launched by", is_text=True),
        Field("name", "kernel", kernel_name, is_text=True),
    )

    def notes(found: Accelerator) -> list[str]:
        said = []
        if found.sm_efficiency_pct is not None:
            occupancy = "unknown: Kineto estimates none where kernels use much shared memory"
            if found.occupancy_pct is not None:
                occupancy = f"{found.occupancy_pct:.1f} % over the kernels' time, estimated"
            said.append(f"SM efficiency {found.sm_efficiency_pct:.1f} % · occupancy {occupancy}")
        if found.without_launch:
            events = counted(found.without_launch, "event")
            said.append(f"{events} of the device: launched before the trace, or not in it")
        return said

    return of_device(report, "Kernels", fields, lambda found: found.kernels, notes)


def operators(report: Report) -> list[Table]:
    """Show the operators, the costliest for the host first."""
    fields = (*_ON_BOTH, Field("name", "operator", is_text=True))

    def make(rank: RankReport) -> Table:
        none = "no trace of torch.profiler holds operators"
        return Table(title="Operators, in ms", rows=rank.operators or [], fields=fields, unknown=none)

    return of_ranks(report.ranks, make)


def ranges(report: Report) -> list[Table]:
    """Show the ranges that the program named, the costliest for the host first."""
    fields = (*_ON_BOTH, Field("name", "range", is_text=True))
    none, remedy = (
        "the program named none",
        "torch.profiler.record_function(NAME) around what is to be told apart",
    )
    title = "Ranges of the program, in ms, with what their own threads launched"
    return of_device(report, title, fields, lambda found: found.ranges, unknown=none, remedy=remedy)


def shapes(report: Report) -> list[Table]:
    """Show the operators by the shapes of their inputs, the costliest for the device first."""
    fields = (
        Field("device_total_us", "device ms", _ms),
        Field("calls", "calls"),
        Field("tflop_per_s", "TFLOP/s", three_digits, absent="-"),
        Field("roofline_pct", "roofline %", three_digits, absent="-"),
        Field("bound", "bound by", is_text=True, absent="-"),
        Field("name", "operator", is_text=True),
        Field("shapes", "input shapes", _dims, is_text=True),
    )

    def notes(found: Accelerator) -> list[str]:
        if found.peaks is None:
            return ["roofline: unknown, this device is not in the table of peaks"] if found.shapes else []
        return [
            f"roofline: of the {found.peaks.device}, dense, from its {found.peaks.source}; the lower of the "
            "peak and what memory allows for these shapes"
        ]

    return of_device(
        report,
        "Operators by input shapes",
        fields,
        lambda found: found.shapes,
        notes,
        unknown="no shapes were recorded",
        remedy="torch.profiler with record_shapes=True",
    )


def _dims(shapes: list[list[int]]) -> str:
    return " ".join("x".join(map(str, shape)) for shape in shapes if shape)


def collectives(report: Report) -> list[Table]:
    """Show the communication, the costliest first."""
    fields = (
        Field("total_us", "ms", _ms),
        Field("exposed_us", "exposed ms", _ms),
        Field("calls", "calls"),
        Field("bytes", "bytes", size),
        Field("algorithm_gb_per_s", "alg. GB/s", three_digits),
        Field("bus_gb_per_s", "bus GB/s", three_digits),
        Field("group_size", "ranks"),
        Field("group", "group", is_text=True),
        Field("kind", "kind", is_text=True),
    )

    def notes(_: Accelerator) -> list[str]:
        return ["exposed: while no kernel computed; a bandwidth includes the wait for late ranks"]

    tables = of_device(report, "Communication", fields, lambda found: found.collectives, notes)
    return [*tables, speeds(report), late_in_groups(report)]


def memory_operations(report: Report) -> list[Table]:
    """Show what copied and set memory, the costliest first."""
    fields = (
        Field("total_us", "ms", _ms),
        Field("overlapped_us", "overlapped ms", _ms),
        Field("calls", "calls"),
        Field("bytes", "bytes", size),
        Field("gb_per_s", "GB/s", three_digits),
        Field("name", "operation", is_text=True),
    )
    return of_device(report, "Memory operations", fields, lambda found: found.memory_operations)


def gaps(report: Report) -> list[Table]:
    """Show the longest times in which the device did nothing."""
    fields = (
        Field("start_us", "at ms", _ms),
        Field("us", "idle ms", _ms),
        Field("kind", "class", lambda name: CLASSES.get(name, name), is_text=True),
        Field("op", "ended by", is_text=True),
        Field("module", "module", is_text=True, absent="no module"),
        Field("after", "kernel after", kernel_name, is_text=True),
    )

    def notes(found: Accelerator) -> list[str]:
        parts = [f"{name.replace('_', ' ')} {_ms(us)}" for name, us in found.idle_other_us.items() if us > 0]
        lines = Counter(gap.source for gap in found.gaps if gap.source is not None)
        return [
            *([f"class other, in ms: {' · '.join(parts)}"] if parts else []),
            *(
                f"launched from {source}: {counted(times, 'kernel')} after"
                for source, times in lines.most_common()
            ),
        ]

    return of_device(
        report,
        "Longest idle times of the device",
        fields,
        lambda found: found.gaps,
        notes,
        commands=lambda found: [gap.command for gap in found.gaps],
    )


def idle_time(report: Report) -> list[Table]:
    """Show the account of idle time, the costliest cause first."""
    fields = (
        Field("us", "idle ms", _ms),
        Field("gaps", "gaps"),
        Field("cause", "cause", lambda name: name.replace("_", " "), is_text=True),
        Field("call", "call", is_text=True, absent="-"),
        Field("where", "on the host", short_frame, is_text=True, absent="-"),
    )

    def notes(found: Accelerator) -> list[str]:
        if found.idle_time is None:
            return []
        return [f"they sum to {_ms(found.idle_time.idle_us)} of {_ms(found.idle_time.span_us)} ms"]

    def rows(found: Accelerator) -> Sequence[msgspec.Struct]:
        return [] if found.idle_time is None else found.idle_time.parts

    return of_device(report, "Idle time of the device by cause", fields, rows, notes)


def runtime_calls(report: Report) -> list[Table]:
    """Show the calls of the runtime and the driver, the costliest for the host first."""
    fields = (
        Field("total_us", "host ms", _ms),
        Field("calls", "calls"),
        Field("median_us", "median us", one_decimal),
        Field("max_us", "longest us", one_decimal),
        Field("waits", "waits", lambda waits: "yes" if waits else "-", is_text=True),
        Field("called_by", "called by", is_text=True, absent="-"),
        Field("name", "call", is_text=True),
    )
    note = "waits: it returns when the device has done something; called by: the operator around most of it"
    return of_device(
        report, "Calls of the runtime", fields, lambda found: found.runtime_calls, lambda _: [note]
    )


def categories(report: Report) -> list[Table]:
    """Show what the device's time was for, the most first."""
    fields = (
        Field("total_us", "ms", _ms),
        Field("pct", "%", one_decimal),
        Field("calls", "calls"),
        Field("category", "category", is_text=True),
    )
    return of_device(report, "The device's time by kind of operator", fields, lambda found: found.categories)


def modules(report: Report) -> list[Table]:
    """Show for which module's kernels the device idled, and which communication the module launched."""
    fields = (
        Field("idle_us", "idle ms", _ms),
        Field("device_us", "device ms", _ms),
        Field("comm_us", "comm ms", _ms),
        Field("phase", "phase", is_text=True),
        Field("module", "module", is_text=True, absent="no module"),
    )
    by_module = of_device(
        report,
        "Modules: idle time that they ended, the device's time, communication in it",
        fields,
        lambda found: found.idle_by_module,
    )
    origins = (
        Field("idle_us", "idle ms", _ms),
        *(Field(f"idle_by_class_us.{name}", CLASSES[name], _ms) for name in _classes_of(report)),
        Field("kind", "ended by", is_text=True),
        Field("phase", "phase", is_text=True),
        Field("name", "name", kernel_name, is_text=True),
    )
    title = "Idle time by module; without one by operator, else by kernel"
    return by_module + of_device(report, title, origins, lambda found: found.idle_by_origin)


def _classes_of(report: Report) -> list[str]:
    """List the classes of idle time that a device has any of; empty columns would leave names no room."""
    found = [rank.accelerator.idle_by_class_us for rank in report.ranks if rank.accelerator is not None]
    return [name for name in CLASSES if any(classes.get(name) for classes in found)]


def launches(report: Report) -> list[Table]:
    """Show the calls that launch: what they cost the host, how long until the device begins."""
    fields = (
        Field("host_us", "host ms", _ms),
        Field("calls", "calls"),
        Field("host_median_us", "median us", one_decimal),
        Field("delay_median_us", "delay us", one_decimal),
        Field("delay_p95_us", "p95", one_decimal),
        Field("device_median_us", "runs us", one_decimal),
        Field("shorter_than_call", "shorter"),
        Field("name", "call", is_text=True),
    )

    def notes(found: Accelerator) -> list[str]:
        said = ["delay: from the call to the start on the device; shorter: runs shorter than its call"]
        if found.launch_queue_mean is not None:
            queue = f"{found.launch_queue_mean:.1f} in the mean, {found.launch_queue_max} at most"
            said.append(f"launched and not begun: {queue}")
        return said

    return of_device(report, "Launches", fields, lambda found: found.launches, notes)


def streams(report: Report) -> list[Table]:
    """Show each stream: how long it was busy, and why it idled."""
    fields = (
        Field("device", "device"),
        Field("stream", "stream"),
        Field("events", "events"),
        Field("busy_us", "busy ms", _ms),
        *(Field(f"idle_by_class_us.{name}", heading, _ms) for name, heading in CLASSES.items()),
    )
    return of_device(
        report, "Streams: events, busy and idle time by class", fields, lambda found: found.streams
    )
