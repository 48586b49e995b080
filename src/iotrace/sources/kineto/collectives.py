"""What a trace says of a collective: NCCL's kernels in their arguments, ranges on the host in their name.

Which kernels communicate between devices, by their names: one table, a row for each library.

What Kineto's events are: categories and names differ by torch version, vendor and library.
"""

from __future__ import annotations

import json
import math
import re
from enum import IntEnum
from typing import Any

import msgspec

from iotrace.sources.kineto.column_batch import COLLECTIVE_NAME


class Kind(IntEnum):
    """What an event records. `OTHER` is read and counts in no figure."""

    OTHER = 0
    KERNEL = 1
    MEMCPY = 2
    MEMSET = 3
    RUNTIME = 4
    CPU_OP = 5
    ANNOTATION = 6
    GPU_ANNOTATION = 7
    PYTHON = 8


# libkineto's names since torch 1.11, those before it, in lower case.
_KINDS = {
    "kernel": Kind.KERNEL,
    **dict.fromkeys(("gpu_memcpy", "memcpy"), Kind.MEMCPY),
    **dict.fromkeys(("gpu_memset", "memset"), Kind.MEMSET),
    **dict.fromkeys(("cuda_runtime", "cuda_driver", "runtime"), Kind.RUNTIME),
    **dict.fromkeys(("xpu_runtime", "xpu_driver", "mtia_runtime"), Kind.RUNTIME),
    **dict.fromkeys(("privateuse1_runtime", "privateuse1_driver"), Kind.RUNTIME),
    **dict.fromkeys(("cpu_op", "operator"), Kind.CPU_OP),
    "user_annotation": Kind.ANNOTATION,
    "gpu_user_annotation": Kind.GPU_ANNOTATION,
    "python_function": Kind.PYTHON,
}

# What Kineto writes beside these took no device's time: markers, counters, its own costs, waits of streams.
_COUNTED_NOWHERE = frozenset(
    {
        *("", "trace", "cpu_instant_event", "overhead", "cuda_sync", "xpu_sync", "external_correlation"),
        *("collective_comm", "gpu_pm_counter", "instant", "cuda_profiler_range"),
    }
)

LAUNCH = "ac2g"
FORWARD_BACKWARD = "fwdbwd"
# Categories of flows that mean the same: launch to kernel, forward to backward operator.
_FLOWS = {
    "ac2g": LAUNCH,
    "async_cpu_to_gpu": LAUNCH,
    "async": LAUNCH,
    "fwdbwd": FORWARD_BACKWARD,
    "forward_backward": FORWARD_BACKWARD,
}

# The agent names a module's range ``module:encoder.layer.0``, torch ``nn.Module: Linear_0`` where it records
# stacks. The agent's have the category of operators.
_MODULE_PREFIXES = ("module:", "nn.Module: ")

_STEP = re.compile(r"ProfilerStep\s*#\s*(\d+)")
# Of torch, and of TensorFlow's tf.data.
_DATA_WAIT = re.compile(
    r"enumerate\((?:DataLoader\)#.*\.__next__$|DataPipe\)#)|IteratorGetNext(?:AsOptional)?Op::DoCompute$"
)
_WITH_VALUES = re.compile(r"aten::(?:convolution(?:_backward)?|_scaled_dot_product_\w+)$")
# The range that a process group's backend puts around a collective on the host.
_COLLECTIVE_RANGE = re.compile(
    r"(?:(?:nccl|rccl|gloo|mpi|ucc|xccl|ccl|oneccl|hccl):|oneccl_bindings_for_pytorch::)\w"
)


def kind_of(category: str) -> Kind:
    """The kind of events of a category, matched without case."""
    return _KINDS.get(category.lower(), Kind.OTHER)


def is_unknown(category: str) -> bool:
    """Whether events of a category may be another device's, or anything else that no figure counts."""
    return kind_of(category) == Kind.OTHER and category.lower() not in _COUNTED_NOWHERE


def flow_category(category: str) -> str:
    """The name of a category of flows that is one for all writers."""
    return _FLOWS.get(category.lower(), category)


def step_of(name: str) -> int | None:
    """The number of the profiler's step, None for any other range."""
    found = _STEP.match(name)
    return int(found.group(1)) if found else None


def is_data_wait(name: str) -> bool:
    """Whether a range is the consumer's wait in torch's DataLoader (or a DataPipe), or in tf.data."""
    return _DATA_WAIT.match(name) is not None


def is_collective_range(name: str) -> bool:
    """Whether a range on the host is a collective of a process group (``gloo:all_reduce``)."""
    return _COLLECTIVE_RANGE.match(name) is not None


def has_values(name: str) -> bool:
    """Whether inputs of an operator that are no tensors tell its work: strides, groups, a causal mask."""
    return _WITH_VALUES.match(name) is not None


def is_synchronisation(category: str) -> bool:
    """Whether events of a category say what a stream or the host awaited."""
    return category.lower() == "cuda_sync"


def module_of(name: str) -> str | None:
    """The module whose forward a range is, None for any other range."""
    for prefix in _MODULE_PREFIXES:
        if name.startswith(prefix):
            return name.removeprefix(prefix).strip() or name
    return None


class Collective(msgspec.Struct, frozen=True):
    """What a trace says of one collective; None where it does not.

    `elements` is the larger of what went in and came out, per rank; `ranks` are global numbers.
    """

    name: str
    elements: int | None = None
    dtype: str | None = None
    group: str | None = None
    group_size: int | None = None
    ranks: tuple[int, ...] | None = None
    sequence: int | None = None


def collective_of(name: str, arguments: bytes) -> Collective:
    """Read the collective from an event's arguments (JSON), else from the name of its range (``gloo:…``)."""
    args = _decoded(arguments)
    args = args if isinstance(args, dict) else {}
    if args.get(COLLECTIVE_NAME) is not None:
        sizes = [_int(args.get("In msg nelems")), _int(args.get("Out msg nelems"))]
        return Collective(
            name=str(args[COLLECTIVE_NAME]),
            elements=max((size for size in sizes if size is not None), default=None),
            dtype=_text(args.get("dtype")),
            group=_text(args.get("Process Group Name")),
            group_size=_int(args.get("Group size")),
            ranks=_ranks(_list(args.get("Process Group Ranks"))),
            sequence=_int(args.get("Seq")),
        )
    types, kind = _list(args.get("Input type")), name.partition(":")[2].lstrip(":")
    # A range tells what went in: of what a gather brings out more.
    dims = None if "gather" in kind else _list(args.get("Input Dims"))
    return Collective(
        name=kind,
        elements=_elements(dims),
        dtype=str(types[0]) if isinstance(types, list) and types else None,
    )


def _decoded(text: bytes | str) -> Any:
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None


def _list(value: Any) -> Any:
    """A list; torch writes some as strings of lists."""
    return _decoded(value) if isinstance(value, str) else value


def _elements(dims: Any) -> int | None:
    """The number of elements of all tensors, from a list of their shapes (or a list of such lists)."""
    if not isinstance(dims, list):
        return None
    if dims and all(isinstance(size, int) for size in dims):
        return math.prod(dims)
    counts = [count for count in map(_elements, dims) if count is not None]
    return sum(counts) if counts else None


def _ranks(found: Any) -> tuple[int, ...] | None:
    if isinstance(found, list) and found and all(isinstance(rank, int) for rank in found):
        return tuple(found)
    return None  # torch shortens long lists with dots


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _int(value: Any) -> int | None:
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return None


# Library or program, what the names of its communicating kernels hold, and where they are defined.
_KERNELS = (
    (
        "NCCL, RCCL",
        r"(?<![a-z])[nr]ccl",
        "DEFINE_ncclDevKernel in NCCL's src/device/common.h",
    ),
    (
        "MSCCL, MSCCL++",
        r"(?<![a-z])msccl",
        "MSCCL_KERNEL_ENTRY_NAME in RCCL's msccl/msccl_kernel_impl.h; namespace mscclpp",
    ),
    ("oneCCL", r"(?<![a-z])(?:oneccl|ccl_|ccl::)", "oneCCL's SYCL kernels, as oneccl_allreduce_pcie"),
    ("HCCL", r"(?<![a-z])(?:hccl|hcom_)", "Ascend's profiles: hcom_allReduce__428_0_1"),
    ("NVSHMEM", r"(?<![a-z])(?:nvshmem|rocshmem|roc_shmem)", "device kernels of NVSHMEM and rocSHMEM"),
    (
        "torch's symmetric memory",
        r"(?<![a-z])(?:multimem_|(?:one|two)_shot_(?:all_|reduce|multimem)|all_to_all_v(?:_2d|dev)|allToAllV)",
        "torch/csrc/distributed/c10d/symm_mem/CUDASymmetricMemoryOps.cu, nvshmem_extension.cu",
    ),
    (
        "torch's IntraNodeComm",
        r"(?:one|two)ShotAllReduce|hybridCubeMeshAllReduce",
        "torch/csrc/distributed/c10d/intra_node_comm.cu",
    ),
    (
        "TensorRT-LLM, FlashInfer, AITER",
        r"allreduce_fusion_kernel|lamport_style_one_shot_all_reduce",
        "customAllReduceKernels.cu, flashinfer/comm/trtllm_allreduce_fusion.cuh",
    ),
    (
        "vLLM, SGLang, AITER",
        r"cross_device_reduce_|quickreduce::|(?<![a-z])allgather_lastdim",
        "custom_all_reduce.cuh, quick_reduce.h (allreduce_prototype_twoshot)",
    ),
    (
        "DeepEP",
        r"deep_ep::(?:intranode|internode|internode_ll)::",
        "csrc/kernels of DeepEP; layout:: computes",
    ),
    (
        "Transformer Engine",
        r"(?<![a-z])k?userbuffers_",
        "comm_gemm_overlap/userbuffers/userbuffers.cu: userbuffers_fp16_sum_…, kuserbuffers_pushsend",
    ),
)
_COMMUNICATES = re.compile("|".join(pattern for _, pattern, _ in _KERNELS), re.IGNORECASE)


def is_collective_kernel(name: str) -> bool:
    """Whether a kernel communicates between devices, by its name."""
    return _COMMUNICATES.search(name) is not None
