"""What Kineto's events are: categories and names differ by torch version, vendor and library."""

from __future__ import annotations

import re
from enum import IntEnum


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

# What Kineto writes besides these took no device's time: markers, counters, its own costs, waits of streams.
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


def find_kind(category: str) -> Kind:
    """The kind of events of a category, matched without case."""
    return _KINDS.get(category.lower(), Kind.OTHER)


def kind_of_process(pid: int | str) -> Kind:
    """The kind of events without a category, which torch's profiler wrote before Kineto (torch 1.8)."""
    return {"CPU functions": Kind.CPU_OP, "CUDA functions": Kind.KERNEL}.get(str(pid), Kind.OTHER)


def is_unknown(category: str) -> bool:
    """Whether events of a category may be another device's, or anything else that no figure counts."""
    return find_kind(category) == Kind.OTHER and category.lower() not in _COUNTED_NOWHERE


def flow_category(category: str) -> str:
    """The name of a category of flows that is one for all writers."""
    return _FLOWS.get(category.lower(), category)


def step_of(name: str) -> int | None:
    """The number of the profiler's step, None for any other range."""
    match = _STEP.match(name)
    return int(match.group(1)) if match else None


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
