"""Which kernels communicate between devices, by their names: one table, a row for each library."""

from __future__ import annotations

import re

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
