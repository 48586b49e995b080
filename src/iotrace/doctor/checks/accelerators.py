"""Check the accelerators: their device nodes, and what the sidecar's readers get of them."""

from __future__ import annotations

import glob
from collections.abc import Callable

from iotrace.doctor.results import Check, ok, warning
from iotrace.launch.telemetry import Record, amd as amd_smi, nvml
from iotrace.launch.telemetry.gpus import Device, Emit, FigureError, UnavailableError
from iotrace.units import counted

_NVIDIA_NODES = "/dev/nvidia[0-9]*"
_AMD_NODE = "/dev/kfd"
NO_NVIDIA, NO_AMD = "no NVIDIA device", "no AMD device"
_CONTAINER = "in a container: --gpus all, with NVIDIA_DRIVER_CAPABILITIES=compute,utility"


def nvidia() -> Check:
    """Check NVML, its devices, and the figures that they give."""
    return judge_nvidia(len(glob.glob(_NVIDIA_NODES)), *_ask(nvml.find))


def amd() -> Check:
    """Check amdsmi in the same way; without a device it is not loaded, which takes long."""
    return judge_amd(*_ask(amd_smi.find)) if glob.glob(_AMD_NODE) else ok("amd", NO_AMD)


def _ask(find: Callable[[Emit], list[Device]]) -> tuple[list[str] | None, str, dict[str, str]]:
    """Return the devices' names (None without the library), the problems, and why each figure failed."""
    emitted: list[Record] = []
    try:
        devices = find(emitted.append)
    except UnavailableError as error:
        return None, str(error), {}
    failing = {}
    for device in devices:
        for figure in device.figures:
            try:
                figure.read()
            except FigureError as error:
                failing[figure.name] = str(error)
    problems = "; ".join(f"{problem['figure']}: {problem['why']}" for problem in emitted)
    return [str(device.about["name"] or "a device without a name") for device in devices], problems, failing


def judge_nvidia(nodes: int, devices: list[str] | None, error: str, failing: dict[str, str]) -> Check:
    """Judge the number of device nodes, and the names that NVML gives (None: it did not load)."""
    if devices:
        return _seen("nvidia", "NVML", devices, error, failing)
    if not nodes:
        return ok("nvidia", NO_NVIDIA)
    remedy = "pip install nvidia-ml-py" if "nvidia-ml-py" in error else _CONTAINER
    what = f"{counted(nodes, 'device node')}, but NVML sees none{f': {error}' if error else ''}"
    return warning("nvidia", what, "no GPU telemetry", remedy)


def judge_amd(devices: list[str] | None, error: str, failing: dict[str, str]) -> Check:
    """Judge in the same way where the driver's device node exists."""
    if devices:
        return _seen("amd", "amdsmi", devices, error, failing)
    what = f"an AMD device, but amdsmi sees none{f': {error}' if error else ''}"
    remedy = "pip install amdsmi, of the version of this host's ROCm (/opt/rocm)"
    return warning("amd", what, "no GPU telemetry", remedy)


def _seen(identity: str, library: str, devices: list[str], error: str, failing: dict[str, str]) -> Check:
    names = ", ".join(f"{devices.count(name)} x {name}" for name in dict.fromkeys(devices))
    by_reason: dict[str, list[str]] = {}
    for figure, why in failing.items():
        by_reason.setdefault(why, []).append(figure)
    unread = [error] if error else []
    unread += [f"{', '.join(figures)}: {why}" for why, figures in by_reason.items()]
    return ok(identity, f"{library} sees {names}", f"not available: {'; '.join(unread)}" if unread else "")
