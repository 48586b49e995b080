"""What an accelerator waits for, beside data. A rule that may be wrong stays silent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from iotrace.analysis.device.modules import short_frame
from iotrace.analysis.results import IdlePart
from iotrace.analysis.rules.facts.device import DeviceFacts, Spent
from iotrace.analysis.rules.model import THE_DEVICE, Finding, fires, rule, silent
from iotrace.units import counted, percent

_HIGH = 0.2  # of the span


def idle_part(cause: str, us: float, **known: Any) -> IdlePart:
    """Make a part of the idle time, for examples."""
    return IdlePart(cause=cause, us=us, gaps=4, **known)


def place_of(part: IdlePart) -> str:
    """Name in parentheses the call and the place that most of a part lies in; empty where none is known."""
    named = [name for name in (part.call, part.where and short_frame(part.where)) if name]
    return f" (in {', '.join(named)})" if named else ""


@rule("IO600", "no-workers", "device", turn=THE_DEVICE)
@fires({"wait_ms": 40.0})
@silent({"wait_ms": None})
def no_workers(facts: DeviceFacts) -> Iterator[Finding]:
    """A trace shows that the loop waits for a DataLoader that has no workers.

    torch.profiler names what delivers such batches. No trace shows what the loader did meanwhile.

    Remedy: give it workers.
    """
    if facts.wait_ms is not None:
        yield Finding(
            text=f"the loop waits {facts.wait_ms:.1f} ms a step for a DataLoader without workers",
            how="give it some",
            remedy="DataLoader(num_workers=2) or more: it has none",
            evidence={"raw_ms": facts.wait_ms},
            cost_ms=facts.wait_ms if facts.exposed_wait_ms is None else facts.exposed_wait_ms,
            gain_ms=facts.wait_ms if facts.exposed_wait_ms is None else facts.exposed_wait_ms,
        )


@rule("IO601", "pageable-copies", "device", turn=THE_DEVICE, saves_wait=False)
@fires({"pageable": Spent(600.0, 4)})
@silent({"pinned": Spent(600.0, 4)}, {"pageable": Spent(100.0, 4)})
def pageable_copies(facts: DeviceFacts, *, least: float = 0.02) -> Iterator[Finding]:
    """Batches are copied to the device from memory that is not pinned, and no kernel computes meanwhile.

    The driver copies pageable memory through a buffer of its own, and the host waits for it.

    Remedy: `pin_memory=True` with `non_blocking=True`.
    """
    if facts.is_worth(facts.pageable.us, least):
        copies = counted(facts.pageable.calls, "copy", "copies")
        text = f"{copies} to the device from pageable memory stop it from computing"
        remedy = "DataLoader(pin_memory=True) with .to(device, non_blocking=True)"
        yield finding_of(facts, text, remedy, facts.pageable.us, copies=facts.pageable.calls)


@rule("IO602", "copies-not-overlapped", "device", turn=THE_DEVICE, saves_wait=False)
@fires({"pinned": Spent(600.0, 4)})
@silent({"pageable": Spent(600.0, 4)}, {"pinned": Spent(100.0, 4)})
def copies_not_overlapped(facts: DeviceFacts, *, least: float = 0.03) -> Iterator[Finding]:
    """Batches are copied from pinned memory while no kernel computes.

    Remedy: copy the next batch on a stream of its own while this one computes.
    """
    if facts.is_worth(facts.pinned.us, least):
        text = f"during {counted(facts.pinned.calls, 'copy', 'copies')} to the device no kernel computes"
        remedy = "copy the next batch on a stream of its own while this one computes"
        yield finding_of(facts, text, remedy, facts.pinned.us, copies=facts.pinned.calls)


@rule("IO603", "synchronising-calls", "device", turn=THE_DEVICE, saves_wait=False)
@fires({"parts": [idle_part("synchronisation", 600.0)]})
@silent({"parts": [idle_part("synchronisation", 100.0)]}, {"parts": [idle_part("launch_gap", 600.0)]})
def synchronising_calls(facts: DeviceFacts, *, least: float = 0.03) -> Iterator[Finding]:
    """The host waits for the device, and launches nothing meanwhile: the device then idles.

    Only the idle time behind such calls counts, up to 1 ms each, not the wait itself.

    Remedy: keep `.item()`, `.cpu()`, `synchronize()` and prints of the loss out of most steps.
    """
    part = facts.idle("synchronisation")
    if facts.is_worth(part.us, least):
        text = f"{counted(part.gaps, 'call')} wait for the device, which then idles{place_of(part)}"
        remedy = "keep .item(), .cpu(), synchronize() and prints of the loss out of most steps"
        yield finding_of(facts, text, remedy, part.us, calls=part.gaps)


@rule("IO604", "launch-bound", "device", turn=THE_DEVICE, saves_wait=False)
@fires({"parts": [idle_part("launch_gap", 3000.0)], "kernels_per_step": 200.0, "kernel_median_us": 5.0})
@silent(
    {"parts": [idle_part("launch_gap", 3000.0)], "kernels_per_step": 200.0, "kernel_median_us": 200.0},
    {"parts": [idle_part("launch_gap", 3000.0)], "kernels_per_step": 10.0, "kernel_median_us": 5.0},
    {"parts": [idle_part("launch_gap", 300.0)], "kernels_per_step": 200.0, "kernel_median_us": 5.0},
    {"parts": [idle_part("host", 3000.0)], "kernels_per_step": 200.0, "kernel_median_us": 5.0},
    {"parts": [idle_part("graph_replay", 3000.0)], "kernels_per_step": 200.0, "kernel_median_us": 5.0},
)
def launch_bound(
    facts: DeviceFacts, *, least: float = 0.05, fewest_kernels: int = 50, most_median_us: float = 20.0
) -> Iterator[Finding]:
    """Kernels are shorter than their launches: the device idles however fast the host is otherwise.

    Only gaps up to 0.2 ms count that began before the launch: longer ones have another reason.

    Remedy: `torch.compile(mode="reduce-overhead")` or CUDA graphs, which launch many kernels at once.
    """
    part = facts.idle("launch_gap")
    if not facts.is_worth(part.us, least) or facts.kernels_per_step < fewest_kernels:
        return
    if facts.kernel_median_us <= most_median_us:
        text = (
            f"the host launches {facts.kernels_per_step:.0f} kernels a step one by one and too late, "
            f"most of them short ({facts.kernel_median_us:.0f} us)"
        )
        remedy = 'torch.compile(mode="reduce-overhead") or CUDA graphs launch them at once'
        kernels, median_us = facts.kernels_per_step, facts.kernel_median_us
        yield finding_of(facts, text, remedy, part.us, kernels_per_step=kernels, median_us=median_us)


@rule("IO605", "exposed-communication", "device", turn=THE_DEVICE, saves_wait=False)
@fires({"exposed": Spent(1500.0, 8), "trains": True})
@silent({"exposed": Spent(1500.0, 8)}, {"exposed": Spent(500.0, 8), "trains": True})
def exposed_communication(facts: DeviceFacts, *, least: float = 0.1) -> Iterator[Finding]:
    """Collectives take time in which the device computes nothing.

    Training by data or by shards of a model overlaps these kinds (all_reduce, reduce_scatter, all_gather);
    nothing is known here of others. Waits for late ranks are part of it.

    Remedy: overlap them with the backward pass.
    """
    if facts.trains and facts.is_worth(facts.exposed.us, least):
        share = percent(facts.exposed.us / facts.span_us)
        text = f"communication that no computation hides, waits for late ranks included, takes {share}"
        remedy = "overlap communication with the backward pass (DDP's bucket_cap_mb, FSDP's prefetch)"
        yield finding_of(facts, text, remedy, facts.exposed.us, calls=facts.exposed.calls)


@rule("IO606", "allocations", "device", turn=THE_DEVICE, saves_wait=False)
@fires({"allocations": Spent(600.0, 12)})
@silent({"allocations": Spent(100.0, 12)})
def allocations(facts: DeviceFacts, *, least: float = 0.05) -> Iterator[Finding]:
    """The device idles while memory is allocated and freed after the first step.

    The caching allocator needs neither where shapes stay the same.

    Remedy: equal shapes, or expandable segments.
    """
    spent = facts.allocations
    if facts.is_worth(spent.us, least):
        text = (
            f"{counted(spent.calls, 'call')} of cudaMalloc and cudaFree after the first step leave the "
            "device idle"
        )
        remedy = "equal shapes, or PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
        yield finding_of(facts, text, remedy, spent.us, calls=spent.calls)


@rule("IO607", "no-tensor-cores", "device", turn=THE_DEVICE, saves_wait=False)
@fires({"single_precision": Spent(3000.0, 5)})
@silent({"single_precision": Spent(500.0, 5)})
def no_tensor_cores(facts: DeviceFacts, *, least_of_busy: float = 0.2) -> Iterator[Finding]:
    """Matrix products in single precision run without the tensor cores that the device has.

    What is saved is the ratio of the device's peaks, where both are known.

    Remedy: TF32 or autocast, where the precision is enough.
    """
    slow = facts.single_precision
    if slow.calls and slow.us >= least_of_busy * facts.busy_us:
        share = percent(slow.us / facts.busy_us)
        text = f"kernels in single precision without tensor cores take {share} of the device's work"
        remedy = 'torch.set_float32_matmul_precision("high") or autocast'
        yield finding_of(facts, text, remedy, slow.us * facts.single_saved, kernels=slow.calls)


def finding_of(
    facts: DeviceFacts, text: str, remedy: str, cost_us: float, /, gains: bool = True, **evidence: float
) -> Finding:
    """Make the finding of what costs `cost_us` over the span; where it comes but once it `gains` nothing."""
    cost_ms = cost_us / 1e3 / facts.steps
    return Finding(
        text=text,
        remedy=remedy,
        level="high" if cost_us >= _HIGH * facts.span_us else "medium",
        evidence={"ms_per_step": cost_ms, **evidence},
        cost_ms=cost_ms,
        gain_ms=cost_ms if gains and facts.stepped else None,
    )
