"""Views of what the device did, and of what awaited what: the critical path, waits between streams."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Annotated

import msgspec

from iotrace.analysis.device.modules import short_frame
from iotrace.analysis.results import (
    Accelerator,
    CollectiveKind,
    CriticalPart,
    CriticalPath,
    Gap,
    IdleByModule,
    IdleByOrigin,
    Kernel,
    Launches,
    MemoryOperation,
    Operator,
    OperatorShapes,
    RankReport,
    Report,
    StreamIdle,
    StreamWait,
)
from iotrace.analysis.results.base import figure
from iotrace.report.blocks import Field, Table, columns, dims, kernel_name, of_ranks, us_as_2_digits, us_as_ms
from iotrace.report.views.ranks import late_in_groups, speeds, waits
from iotrace.units import counted, one_decimal, three_digits

CLASSES = {"data_wait": "data wait", "host_wait": "host late", "kernel_wait": "short gap", "other": "other"}
_NO_TRACE = "no trace of torch.profiler shows a device"
_REMEDY = "iotrace run -- CMD records one where torch sees a device"
_KINDS = {
    "data_wait": "data wait",
    "operator": "operators on the host",
    "runtime": "calls of the runtime",
    "host": "host, outside of operators",
    "kernel": "kernels",
    "collective": "collectives",
    "memory": "copies and sets",
    "launch_delay": "launch delay",
    "kernel_gap": "between kernels of a stream",
    "stream_wait": "going on after another stream",
    "unknown": "unknown",
}


class KindRow(msgspec.Struct, frozen=True):
    """A kind's part of the critical path; `us` is the mean of a step."""

    kind: Annotated[str, figure("what it is", said="kind")]
    us: Annotated[float, figure("the mean of a step", said="ms a step")]
    pct: Annotated[float, figure("of all of the path", said="%")]


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
            return Table(title=title, rows=[], fields=fields, unknown=_NO_TRACE, remedy=_REMEDY)
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


def kernels(report: Report) -> list[Table]:
    """Show the kernels, the costliest first."""

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

    fields = columns(Kernel, blocks_per_sm=three_digits, occupancy_pct=three_digits, name=kernel_name)
    return of_device(report, "Kernels", fields, lambda found: found.kernels, notes)


def operators(report: Report) -> list[Table]:
    """Show the operators, the costliest for the host first."""

    def make(rank: RankReport) -> Table:
        none = "no trace of torch.profiler holds operators"
        rows = rank.operators or []
        return Table(title="Operators, in ms", rows=rows, fields=columns(Operator), unknown=none)

    return of_ranks(report.ranks, make)


def ranges(report: Report) -> list[Table]:
    """Show the ranges that the program named, the costliest for the host first."""
    fields = columns(Operator)
    none, remedy = (
        "the program named none",
        "torch.profiler.record_function(NAME) around each part of the program",
    )
    title = "Ranges of the program, in ms, with what their own threads launched"
    return of_device(report, title, fields, lambda found: found.ranges, unknown=none, remedy=remedy)


def shapes(report: Report) -> list[Table]:
    """Show the operators by the shapes of their inputs, the costliest for the device first."""

    def notes(found: Accelerator) -> list[str]:
        if found.peaks is None:
            return ["roofline: unknown, this device is not in the table of peaks"] if found.shapes else []
        return [
            f"roof: of the {found.peaks.device}, dense, from its {found.peaks.source}; the lower of the "
            "peak and what memory allows for these shapes, each operand moved once"
        ]

    return of_device(
        report,
        "Operators by input shapes, in ms on the device",
        columns(OperatorShapes, roofline_pct=three_digits, shapes=dims),
        lambda found: found.shapes,
        notes,
        unknown="no shapes were recorded",
        remedy="torch.profiler with record_shapes=True",
    )


def collectives(report: Report) -> list[Table]:
    """Show the communication, the costliest first."""
    notes = ["exposed: while no kernel computed; a bandwidth includes the wait for late ranks"]
    fields = columns(CollectiveKind)
    of_devices = of_device(report, "Communication", fields, lambda found: found.collectives, lambda _: notes)
    of_all = [speeds(report), waits(report), late_in_groups(report)]
    # Collectives of CPUs (gloo) are known without a device: then no line says that none was seen.
    is_known = any(table.rows for table in of_all)
    return [*(table for table in of_devices if table.rows or not is_known), *of_all]


def memory_operations(report: Report) -> list[Table]:
    """Show what copied and set memory, the costliest first."""
    fields = columns(MemoryOperation)
    return of_device(report, "Memory operations", fields, lambda found: found.memory_operations)


def gaps(report: Report) -> list[Table]:
    """Show the longest times in which the device did nothing."""

    def notes(found: Accelerator) -> list[str]:
        other = {name.replace("_", " "): us for name, us in found.idle_other_us.items() if us > 0}
        parts = [f"{name} {us_as_ms(us)}" for name, us in other.items()]
        lines = Counter(gap.source for gap in found.gaps if gap.source is not None).most_common()
        said = [f"class other, in ms: {' · '.join(parts)}"] if parts else []
        return said + [f"launched from {at}: {counted(times, 'kernel')} after" for at, times in lines]

    return of_device(
        report,
        "Longest idle times of the device",
        columns(Gap, kind=lambda name: CLASSES.get(name, name), after=kernel_name),
        lambda found: found.gaps,
        notes,
        commands=lambda found: [gap.command for gap in found.gaps],
    )


def idle_time(report: Report) -> list[Table]:
    """Show the account of idle time, the costliest cause first."""
    fields = (
        Field("us", "idle ms", us_as_ms),
        Field("gaps", "gaps"),
        Field("cause", "cause", lambda name: name.replace("_", " "), is_text=True),
        Field("call", "call", is_text=True, absent="-"),
        Field("where", "on the host", short_frame, is_text=True, absent="-"),
    )

    def notes(found: Accelerator) -> list[str]:
        if found.idle_time is None:
            return []
        return [f"they sum to {us_as_ms(found.idle_time.idle_us)} of {us_as_ms(found.idle_time.span_us)} ms"]

    def rows(found: Accelerator) -> Sequence[msgspec.Struct]:
        return [] if found.idle_time is None else found.idle_time.parts

    return of_device(report, "Idle time of the device by cause", fields, rows, notes)


def runtime_calls(report: Report) -> list[Table]:
    """Show the calls of the runtime and the driver, the costliest for the host first."""
    fields = (
        Field("total_us", "host ms", us_as_ms),
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
        Field("total_us", "ms", us_as_ms),
        Field("pct", "%", one_decimal),
        Field("calls", "calls"),
        Field("gb_per_s", "GB/s", three_digits, absent="-"),
        Field("roofline_pct", "roof %", three_digits, absent="-"),
        Field("known_pct", "known %", three_digits, absent="-"),
        Field("category", "category", is_text=True),
    )
    title = "The device's time by kind of operator"
    return of_device(report, title, fields, lambda found: found.categories, _rates)


def _rates(found: Accelerator) -> list[str]:
    """Say what rates of memory are, and of which part of a category they are told."""
    if all(one.gb_per_s is None for one in found.categories):
        return []
    told = "GB/s: bytes of their inputs and outputs, each moved once; known: the part of the time it is of"
    return (
        [told]
        if found.peaks is None
        else [told, f"roof: {found.peaks.memory_gb_per_s:.0f} GB/s, the memory's"]
    )


def modules(report: Report) -> list[Table]:
    """Show for which module's kernels the device idled, and which communication the module launched."""
    # Empty columns would leave names no room.
    found = [rank.accelerator.idle_by_class_us for rank in report.ranks if rank.accelerator is not None]
    classes = {name: text for name, text in CLASSES.items() if any(each.get(name) for each in found)}
    return of_device(
        report,
        "Modules: idle time that they ended, the device's time, communication in it",
        columns(IdleByModule),
        lambda found: found.idle_by_module,
    ) + of_device(
        report,
        "Idle time by module; without one by operator, else by kernel",
        columns(IdleByOrigin, classes, name=kernel_name),
        lambda found: found.idle_by_origin,
    )


def launches(report: Report) -> list[Table]:
    """Show the calls that launch: what they cost the host, how long until the device begins."""

    def notes(found: Accelerator) -> list[str]:
        said = ["delay: from the call to the start on the device; shorter: runs shorter than its call"]
        if found.launch_queue_mean is not None:
            queue = f"{found.launch_queue_mean:.1f} in the mean, {found.launch_queue_max} at most"
            said.append(f"launched and not begun: {queue}")
        return said

    fields = columns(Launches, delay_p95_us=one_decimal)
    return of_device(report, "Launches", fields, lambda found: found.launches, notes)


def streams(report: Report) -> list[Table]:
    """Show each stream: how long it was busy, and why it idled."""
    title = "Streams: events, busy and idle time by class"
    return of_device(report, title, columns(StreamIdle, CLASSES), lambda found: found.streams)


def critical_path(report: Report) -> list[Table]:
    """Show what a step's length was made of: by kind, then by name."""
    by_name = of_ranks(report.ranks, _path_by_name)
    return [*of_ranks(report.ranks, _path_by_kind), *(table for table in by_name if table.rows)]


def _path(rank: RankReport) -> CriticalPath | None:
    return None if rank.accelerator is None else rank.accelerator.critical_path


def _path_by_kind(rank: RankReport) -> Table:
    fields = columns(KindRow, us=us_as_2_digits, kind=lambda kind: _KINDS.get(kind, kind))
    found = _path(rank)
    rows, notes = [], []
    if found is not None:
        by_kind = sorted(found.by_kind_us.items(), key=lambda pair: -pair[1])
        rows = [KindRow(kind, us / found.steps, 100 * us / found.span_us) for kind, us in by_kind if us]
        of = f"{counted(found.steps, 'step')} of {found.of_steps}"
        notes = [f"of {of}, {found.span_us / found.steps / 1e3:.1f} ms each: the kinds sum to them"]
        inferred, measured = found.stream_waits_inferred, found.stream_waits_measured
        if inferred:
            notes.append(f"{inferred} of {inferred + measured} waits between streams are inferred")
    title = "Critical path, by kind"
    return Table(title=title, rows=rows, fields=fields, notes=notes, unknown=_NO_TRACE, remedy=_REMEDY)


def _path_by_name(rank: RankReport) -> Table:
    found = _path(rank)
    return Table(
        title="Critical path, by name: all steps",
        rows=found.parts if found is not None else [],
        fields=columns(CriticalPart, us=us_as_2_digits, name=kernel_name),
        notes=["a faster kernel or call that is not on the path makes no step shorter"],
    )


def stream_waits(report: Report) -> list[Table]:
    """Show which stream waited for which, and for which kernel."""
    inferred = ["inferred: from cudaStreamWaitEvent calls and times"]
    fields = columns(
        StreamWait,
        waited_us=us_as_2_digits,
        measured=lambda known: "measured" if known else "inferred",
        kernel_before=kernel_name,
        kernel=kernel_name,
    )
    return of_device(
        report,
        "Waits of streams for each other",
        fields,
        lambda found: found.stream_waits,
        lambda found: inferred if found.stream_waits else [],
        unknown="no stream was seen to wait for another one",
    )
