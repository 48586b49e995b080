"""Accelerators: their device nodes, and whether the vendor's library for telemetry can be loaded."""

from __future__ import annotations

import ctypes
import glob

from iotrace.doctor.results import Check, ok, warning

_NVIDIA_NODES = "/dev/nvidia[0-9]*"
_AMD_NODE = "/dev/kfd"
_NAME_BYTES = 96


def nvidia() -> Check:
    """NVML and its devices."""
    nodes = glob.glob(_NVIDIA_NODES)
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError as error:
        return judge_nvidia(len(nodes), None, str(error))
    code = nvml.nvmlInit_v2()
    if code:
        return judge_nvidia(len(nodes), None, f"nvmlInit gives error {code}")
    try:
        count = ctypes.c_uint()
        nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
        devices = []
        for index in range(count.value):
            handle, name = ctypes.c_void_p(), ctypes.create_string_buffer(_NAME_BYTES)
            if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) == 0:
                nvml.nvmlDeviceGetName(handle, name, _NAME_BYTES)
            devices.append(name.value.decode(errors="replace") or "a device that does not answer")
        return judge_nvidia(len(nodes), devices, "")
    finally:
        nvml.nvmlShutdown()


def judge_nvidia(nodes: int, devices: list[str] | None, error: str) -> Check:
    """`nodes`: device nodes found; `devices`: NVML's names, None where NVML did not load."""
    if devices:
        counted = ", ".join(f"{devices.count(name)} x {name}" for name in dict.fromkeys(devices))
        return ok("nvidia", f"NVML sees {counted}")
    if not nodes:
        return ok("nvidia", "no NVIDIA device")
    return warning(
        "nvidia",
        f"{nodes} device nodes, but NVML sees none{f': {error}' if error else ''}",
        "no GPU telemetry",
        "in a container: --gpus all, with NVIDIA_DRIVER_CAPABILITIES=compute,utility",
    )


def amd() -> Check:
    """AMD's kernel driver and SMI library."""
    found = bool(glob.glob(_AMD_NODE))
    loaded = False
    for name in ("libamd_smi.so", "librocm_smi64.so") if found else ():
        try:
            ctypes.CDLL(name)
            loaded = True
        except OSError:
            continue
    return judge_amd(found, loaded)


def judge_amd(node: bool, library: bool) -> Check:
    """`node`: whether the driver's device node is there; `library`: whether an SMI library loads."""
    if not node:
        return ok("amd", "no AMD device")
    if library:
        return ok("amd", "the AMD driver and its SMI library are there")
    return warning(
        "amd", "an AMD device, but no SMI library", "no GPU telemetry", "add ROCm's lib to LD_LIBRARY_PATH"
    )
