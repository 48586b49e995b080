"""Which kernels communicate between devices, by their names: one table, a row for each library."""

from __future__ import annotations

import re

# Library or program, what the names of its communicating kernels hold, and where they are defined.
_KERNELS = (
    ("NCCL, RCCL", r"(?<![a-z])[nr]ccl", "src/device of NCCL and of RCCL: ncclDevKernel_…, rccl…"),
    ("MSCCL, MSCCL++", r"(?<![a-z])msccl", "mscclKernel of MSCCL's RCCL, namespace mscclpp"),
    ("oneCCL", r"(?<![a-z])(?:oneccl|ccl_|ccl::)", "oneCCL's SYCL kernels"),
    ("HCCL", r"(?<![a-z])(?:hccl|hcom_)", "Gaudi's and Ascend's libraries"),
    ("NVSHMEM", r"(?<![a-z])(?:nvshmem|rocshmem|roc_shmem)", "device kernels of NVSHMEM and rocSHMEM"),
    (
        "torch's symmetric memory",
        r"(?<![a-z])(?:multimem_|(?:one|two)_shot_(?:all_|reduce|multimem)|all_to_all_v(?:_2d|dev))",
        "torch/csrc/distributed/c10d/symm_mem/CUDASymmetricMemoryOps.cu, nvshmem_extension.cu",
    ),
    (
        "torch's IntraNodeComm, TensorRT-LLM",
        r"(?:one|two)ShotAllReduce|(?:hybrid)?CubeMeshAllReduce|allreduce_fusion_kernel|lamportStyleOneShotAllReduce",
        "c10d's intra_node_comm.cu; customAllReduceKernels.cu, allReduceFusionKernels.cu (and FlashInfer's)",
    ),
    ("vLLM, SGLang, AITER", r"cross_device_reduce_|quickreduce::", "custom_all_reduce.cuh, quick_reduce.h"),
    (
        "DeepEP",
        r"deep_ep::(?:intranode|internode|internode_ll)::",
        "csrc/kernels of DeepEP; layout:: computes",
    ),
    ("Transformer Engine", r"(?<![a-z])userbuffers_", "comm_gemm_overlap/userbuffers/userbuffers.cu"),
)
_COMMUNICATES = re.compile("|".join(pattern for _, pattern, _ in _KERNELS), re.IGNORECASE)


def is_collective_kernel(name: str) -> bool:
    """Whether a kernel communicates between devices, by its name."""
    return _COMMUNICATES.search(name) is not None
