"""What occupied the device, by name: kernels with who launched them, memory operations with bandwidth."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

import msgspec
import numpy as np

from iotrace.analysis.device.activity import Activity, Mask, summed_by
from iotrace.analysis.device.modules import Origins, origins_of
from iotrace.analysis.device.operators import OperatorTree
from iotrace.analysis.intervals import intersect, length, union
from iotrace.analysis.results import Kernel, KernelCategory, MemoryOperation
from iotrace.sources.kineto.kinds import Kind
from iotrace.sources.kineto.trace import Column, Details, Floats

# Of kernels with tensor cores: instructions (HMMA, WGMMA), their shapes (s16816), libraries of such alone.
_TENSOR_CORES = re.compile(
    r"[hsci](?:884|1688|16816|8816)|hmma|imma|wgmma|tensorop|(?<![a-z])nvjet_|flash_(?:fwd|bwd)"
    r"|xmma_(?:gemm|fprop|dgrad|wgrad|sparse|warp)",
    re.IGNORECASE,
)
_NO_TENSOR_CORES = re.compile(
    r"(?:volta|ampere|maxwell|turing|hopper)_sgemm|_simt_|[^t]f32f32_f32f32_f32", re.IGNORECASE
)
# What a kernel's name says of its category, in this order, in lower case; cijk is of hipBLASLt.
_KERNELS = {
    "attention": r"flash_?(?:fwd|bwd|attn|attention)|fmha|attn_(?:fwd|bwd)|_attention|paged_?attn",
    "norm": r"(?:layer|batch|group|instance|rms)_?norm|rowwisemoments|computeinternalgradients|bn_(?:fw|bw)",
    "convolution": r"convolve|conv\d?d|_conv_|im2col|col2im|xmma_(?:[fd]prop|[dw]grad)|winograd|igemm_",
    "gemm": r"gemm|gemv|cijk_|cutlass::kernel|nvjet_|xmma|dot_kernel|triton_tem_|matmul",
    "elementwise": r"elementwise|multi_tensor_apply|triton_poi_|dropout|_act_and_mul|activation_kernel",
    "reduction": r"softmax|reduce|triton_(?:red|per)_|cumsum|scan_|argmax|topk|nll_loss|cross_entropy",
    "index": r"index|gather|scatter|embedding|sort|lookup|permute",
    "copy": r"catarray|copy|transpose|memcpy|memset|fill",
}
_LONG_ENOUGH = 160  # of a kernel's name: its parameters tell of others
# And what its operator says, where the kernel's name says nothing.
_OPERATORS = {
    "attention": r"attention|flash_attn",
    "norm": r"norm",
    "convolution": r"conv",
    "gemm": r"aten::(?:mm|bmm|addmm|addbmm|baddbmm|matmul|linear|_scaled_mm)$",
    "elementwise": r"aten::(?:add|sub|mul|div|pow|r?sqrt|neg|exp|log|relu|gelu|silu|tanh|sigmoid|where)_?$",
    "reduction": r"aten::(?:sum|mean|max|min|var|std|prod|any|all|softmax|_softmax|log_softmax)\b",
    "index": r"index|gather|scatter|embedding|sort",
    "copy": r"aten::(?:copy_|cat|clone|contiguous|fill_|zero_|stack)$",
}
CATEGORIES = (*_KERNELS, "communication", "other")
_MOSTLY = 0.9
_DIRECTION = re.compile(r"\b(?:Memcpy |Copy)?([HDP])(?:ost|evice|eer)?To([HDP])", re.IGNORECASE)
# Level Zero's M is memory of the program, pageable; H is of SYCL's on the host, pinned; S is shared.
_LEVEL_ZERO = re.compile(r"Memcpy ([MHD])2([MHD]) \(")
_IN_LEVEL_ZERO = {"M": "H"}


class Window(msgspec.Struct, frozen=True):
    """A trace with its operators, and the modules of what its device did."""

    activity: Activity
    tree: OperatorTree
    origins: Origins
    details: Details

    @classmethod
    def of(cls, activity: Activity) -> Window:
        """Join what is known of a trace."""
        return cls(activity, OperatorTree(activity), origins_of(activity), Details(activity.trace))


class _Sums(msgspec.Struct):
    """Sums of one kernel's calls, in ns; `by_launcher` by operator and module.

    `filling`: blocks per SM and occupancy, each times duration, and the durations where it is known.
    """

    is_collective: bool
    calls: int = 0
    total: int = 0
    lasted: list[Column] = msgspec.field(default_factory=list)
    by_launcher: dict[tuple[str | None, str | None], int] = {}
    filling: list[float] = msgspec.field(default_factory=lambda: [0.0] * 4)


def kernels_of(windows: Sequence[Window]) -> list[Kernel]:
    """Sum up the kernels by name, the costliest first, each with who launched most of its time."""
    sums: dict[str, _Sums] = {}
    for window in windows:
        _add(sums, window)
    found = []
    for name, one in sums.items():
        lasted = np.concatenate(one.lasted)
        operator, module = (_most(one.by_launcher, at) for at in range(2))
        found.append(
            Kernel(
                name=name,
                calls=one.calls,
                total_us=one.total / 1e3,
                mean_us=one.total / one.calls / 1e3,
                max_us=int(lasted.max()) / 1e3,
                median_us=float(np.median(lasted)) / 1e3,
                min_us=int(lasted.min()) / 1e3,
                deviation_us=float(lasted.std()) / 1e3,
                is_collective=one.is_collective,
                op=operator,
                module=module,
                blocks_per_sm=_mean(*one.filling[:2]),
                occupancy_pct=_mean(*one.filling[2:]),
                tensor_cores=uses_tensor_cores(name),
            )
        )
    return sorted(found, key=lambda one: (-one.total_us, one.name))


def _most(by_launcher: dict[tuple[str | None, str | None], int], at: int) -> str | None:
    """Name the operator (`at` 0) or module (1) that launched most of the time."""
    totals: dict[str | None, int] = {}
    for launcher, ns in by_launcher.items():
        totals[launcher[at]] = totals.get(launcher[at], 0) + ns
    return max(totals, key=lambda each: totals[each])


def _add(sums: dict[str, _Sums], window: Window) -> None:
    activity, trace, events = window.activity, window.activity.trace, window.activity.trace.events
    rows = np.flatnonzero(activity.kinds == Kind.KERNEL)
    if not len(rows):
        return
    operator = window.tree.names(window.tree.launcher[rows])
    module = window.origins.module[rows]
    # One number for the three, for numpy finds equal rows of a table ten times slower.
    operators, modules = len(trace.names) + 1, len(window.origins.modules) + 1
    keys = (events.name[rows].astype(np.int64) * operators + operator + 1) * modules + module + 1
    groups, number, counts = np.unique(keys, return_inverse=True, return_counts=True)
    totals = np.bincount(number, weights=events.duration_ns[rows]).astype(np.int64)
    order = np.argsort(number, kind="stable")
    lasted = np.split(events.duration_ns[rows[order]], np.cumsum(counts)[:-1])
    filling = []
    for values in (window.details.blocks_per_sm, window.details.occupancy_pct):
        each = window.details.of(values, rows)
        known = np.where(np.isnan(each), 0, events.duration_ns[rows])
        for weights in (np.nan_to_num(each) * known, known):
            filling.append(np.bincount(number, weights=weights, minlength=len(groups)).tolist())
    collective = np.zeros(len(groups), dtype=np.bool_)
    collective[number] = activity.collective_kernels[rows]
    for at, group in enumerate(groups.tolist()):
        pair, path = divmod(group, modules)
        name, op = divmod(pair, operators)
        one = sums.setdefault(trace.names[name], _Sums(bool(collective[at])))
        one.calls += int(counts[at])
        one.total += int(totals[at])
        one.filling = [whole + part[at] for whole, part in zip(one.filling, filling, strict=True)]
        one.lasted.append(lasted[at])
        launcher = (trace.names[op - 1] if op else None, window.origins.modules[path - 1] if path else None)
        one.by_launcher[launcher] = one.by_launcher.get(launcher, 0) + int(totals[at])


def _mean(weighted: float, known: float) -> float | None:
    return weighted / known if known else None


@lru_cache(maxsize=4096)  # names are long, and asked for by kernel and by operator
def uses_tensor_cores(name: str) -> bool | None:
    """Whether a kernel multiplies by tensor cores, as its name tells; None where it tells nothing."""
    if _NO_TENSOR_CORES.search(name):
        return False
    return True if _TENSOR_CORES.search(name) else None


def filling_of(windows: Sequence[Window], span_ns: int) -> tuple[float | None, float | None]:
    """Compute SM efficiency and occupancy in per cent; None where kernels do not tell, as on AMD.

    SM efficiency: of the multiprocessors, how many had a block, over `span_ns` and all devices; a kernel has
    min(blocks per SM, 1) of them, kernels beside each other at most all. Occupancy is the mean over the time
    of kernels; unknown where it is for a tenth of that.
    """
    used_ns = weighted = known_ns = kernels_ns = 0.0
    devices: set[int] = set()
    for window in windows:
        events = window.activity.trace.events
        rows = np.flatnonzero(window.activity.kinds == Kind.KERNEL)
        blocks = window.details.of(window.details.blocks_per_sm, rows)
        occupancy = window.details.of(window.details.occupancy_pct, rows)
        if np.isnan(blocks).any():
            return None, None
        weighted += float(np.nansum(occupancy * events.duration_ns[rows]))
        known_ns += float(events.duration_ns[rows][~np.isnan(occupancy)].sum())
        kernels_ns += float(events.duration_ns[rows].sum())
        for device in np.unique(events.device[rows]).tolist():
            devices.add(device)
            own = events.device[rows] == device
            used_ns += _used(events.start_ns[rows[own]], events.end_ns[rows[own]], np.minimum(blocks[own], 1))
    if not kernels_ns or not span_ns:
        return None, None
    tells = known_ns >= _MOSTLY * kernels_ns
    return 100 * used_ns / span_ns / len(devices), weighted / known_ns if tells else None


def _used(starts: Column, ends: Column, shares: Floats) -> float:
    """Integrate the sum of `shares`, 1 at most, over time."""
    times = np.concatenate((starts, ends))
    order = np.argsort(times, kind="stable")
    sums = np.cumsum(np.concatenate((shares, -shares))[order])
    return float((np.clip(sums[:-1], 0, 1) * np.diff(times[order])).sum())


class _Copies(msgspec.Struct):
    calls: int = 0
    total: int = 0
    bytes: int | None = 0
    overlapped: int = 0


def memory_operations_of(windows: Sequence[Window]) -> list[MemoryOperation]:
    """Sum up copies and sets of memory by name; where one event states no bytes, their sum is unknown."""
    sums: dict[str, _Copies] = {}
    for window in windows:
        activity, events = window.activity, window.activity.trace.events
        compute = union(*activity.intervals(activity.compute_kernels))
        for name in np.unique(events.name[activity.memory_operations]).tolist():
            own: Mask = activity.memory_operations & (events.name == name)
            one = sums.setdefault(activity.trace.names[name], _Copies())
            one.calls += int(own.sum())
            one.total += int(events.duration_ns[own].sum())
            sizes = events.bytes[own]
            known = one.bytes is not None and bool((sizes >= 0).all())
            one.bytes = (one.bytes or 0) + int(sizes.sum()) if known else None
            one.overlapped += length(intersect(union(*activity.intervals(own)), compute))
    return sorted((_memory(name, one) for name, one in sums.items()), key=lambda one: -one.total_us)


def _memory(name: str, one: _Copies) -> MemoryOperation:
    direction, pinned = _way(name)
    return MemoryOperation(
        name=name,
        direction=direction,
        pinned=pinned,
        calls=one.calls,
        bytes=one.bytes,
        total_us=one.total / 1e3,
        # Bytes in a ns are GB/s.
        gb_per_s=one.bytes / one.total if one.bytes is not None and one.total else None,
        overlapped_us=one.overlapped / 1e3,
    )


def _way(name: str) -> tuple[str | None, bool | None]:
    """Tell from where to where a copy goes, and whether the host's memory is pinned; None where unknown."""
    if (found := _LEVEL_ZERO.match(name)) is not None:
        ends = [_IN_LEVEL_ZERO.get(end, end) for end in found.groups()]
        pinned = "M" not in found.groups() if "H" in ends else None
        return "to".join(ends), pinned
    found = _DIRECTION.search(name)
    pinned = True if "Pinned" in name else False if "Pageable" in name else None
    return (f"{found[1]}to{found[2]}".upper().replace("TO", "to") if found else None), pinned


def without_launch(windows: Sequence[Window]) -> int:
    """Count what the device did without a launch in the trace: most was launched before it began."""
    return sum(int((each.activity.device & (each.activity.launch < 0)).sum()) for each in windows)


def categories_of(windows: Sequence[Window]) -> list[KernelCategory]:
    """Sum up what the device did by category, the most first."""
    sums = np.zeros((len(CATEGORIES), 2), np.int64)
    for window in windows:
        activity, trace = window.activity, window.activity.trace
        events, rows = trace.events, np.flatnonzero(activity.device)
        operator = window.tree.names(window.tree.launcher[rows])
        collective = activity.collective_kernels[rows]
        copies = activity.kinds[rows] != Kind.KERNEL
        size = len(trace.names) + 1
        keys = (events.name[rows].astype(np.int64) * size + operator + 1) * 3 + np.where(
            collective, 2, copies
        )
        for key, row in summed_by(keys, np.ones(len(keys)), events.duration_ns[rows]):
            pair, which = divmod(key, 3)
            name, op = divmod(pair, size)
            known = ("", "copy", "communication")[which]
            category = known or category_of(trace.names[name], trace.names[op - 1] if op else "")
            sums[CATEGORIES.index(category)] += row
    whole = int(sums[:, 1].sum())
    found = [
        KernelCategory(category=name, calls=calls, total_us=ns / 1e3, pct=100 * ns / whole)
        for name, (calls, ns) in zip(CATEGORIES, sums.tolist(), strict=True)
        if calls and whole
    ]
    return sorted(found, key=lambda one: -one.total_us)


def category_of(kernel: str, operator: str = "") -> str:
    """Name the category of a kernel that an operator launched; `other` where neither name tells."""
    for patterns, name in ((_KERNELS, kernel[:_LONG_ENOUGH].lower()), (_OPERATORS, operator)):
        for category, pattern in patterns.items():
            if re.search(pattern, name):
                return category
    return "other"
