"""Views of device memory: what operators were given of it, and the files of its snapshots."""

from __future__ import annotations

from iotrace.analysis.results import RankReport, Report
from iotrace.report.views.table import Field, Table, of_ranks
from iotrace.units import one_decimal, size

_NO_MEMORY = "no trace of torch.profiler recorded memory"
_RECORD_MEMORY = "iotrace run --torch-options memory -- CMD"


def memory(report: Report) -> list[Table]:
    """Show each device's memory in the profiled steps, over time too, and who was given most."""
    shared: tuple[Field, ...] = (
        Field("allocated_bytes", "given", size),
        Field("freed_bytes", "freed", size),
        Field("allocations", "times"),
    )
    peaks = (Field("peak_bytes", "peak", size), Field("reserved_peak_bytes", "reserved", size, absent="-"))
    at_peak = Field("at_peak_bytes", "at peak", size)
    device = Field("device", "device", is_text=True)
    operator = Field("name", "operator", is_text=True)

    def devices(rank: RankReport) -> Table:
        return Table(
            title="Memory by device, in the profiled steps",
            rows=rank.memory.devices if rank.memory else [],
            fields=(*shared, *peaks, device),
            notes=phases(rank),
            unknown=_NO_MEMORY,
            remedy=_RECORD_MEMORY,
        )

    def phases(rank: RankReport) -> list[str]:
        return [
            f"{one.device} at its peak, by who was given it: "
            + " · ".join(f"{name} {size(held)}" for name, held in one.peak_by_phase_bytes.items() if held)
            for one in (rank.memory.devices if rank.memory else [])
            if one.peak_by_phase_bytes
        ]

    def operators(rank: RankReport) -> Table:
        return Table(
            title="Operators that were given most, themselves",
            rows=rank.memory.operators if rank.memory else [],
            fields=(*shared, at_peak, device, operator),
            unknown=_NO_MEMORY,
        )

    def modules(rank: RankReport) -> Table:
        own = [field for field in shared if field.name != "freed_bytes"]
        return Table(
            title="Modules that were given most, themselves, forward and backward",
            rows=rank.memory.modules if rank.memory else [],
            fields=(*own, at_peak, device, Field("name", "module", is_text=True)),
            unknown=_NO_MEMORY,
        )

    def evolution(rank: RankReport) -> Table:
        kinds = ("forward", "backward", "optimizer", "other", "before")
        return Table(
            title="Memory held over time, by who was given it",
            rows=rank.memory.evolution if rank.memory else [],
            fields=(
                Field("at_us", "at ms", lambda us: f"{us / 1e3:.1f}"),
                Field("held_bytes", "held", size),
                *(Field(f"by_phase_bytes.{kind}", kind, size) for kind in kinds),
                device,
            ),
            unknown=_NO_MEMORY if rank.memory is None else "the trace does not tell addresses",
        )

    return of_ranks(report.ranks, devices, operators, modules, evolution)


def snapshot(report: Report) -> list[Table]:
    """Show where lies what the allocator recorded, for torch's viewer of memory."""
    fields = (
        Field("at_seconds", "at s", one_decimal),
        Field("size_bytes", "size", size),
        Field("path", "file", is_text=True),
    )

    def make(rank: RankReport) -> Table:
        return Table(
            title="Snapshots of device memory, for pytorch.org/memory_viz",
            rows=rank.snapshots,
            fields=fields,
            unknown="none was written; it takes a device of CUDA or HIP",
            remedy="iotrace run --cuda-snapshot 5:3 -- CMD",
        )

    return of_ranks(report.ranks, make)
