"""What a trace says of a collective: NCCL's kernels in their arguments, ranges on the host in their name.

Which kernels communicate between devices, by their names: one table, a row for each library.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

import msgspec

from iotrace.sources.kineto.column_batch import COLLECTIVE_NAME


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


def parse_collective(name: str, arguments: bytes) -> Collective:
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
    # A range says what went in: a gather brings out more.
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


def _ranks(value: Any) -> tuple[int, ...] | None:
    if isinstance(value, list) and value and all(isinstance(rank, int) for rank in value):
        return tuple(value)
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
