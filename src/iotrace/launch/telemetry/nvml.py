"""Read NVIDIA's devices through NVML (nvidia-ml-py)."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import Any

from iotrace.launch.telemetry import Record
from iotrace.launch.telemetry.gpus import (
    SELDOM,
    Device,
    Emit,
    Figure,
    FigureError,
    UnavailableError,
    gauge,
    read_numa_node,
)

_KIB = 1 << 10
# NVML_GPU_UTILIZATION_SAMPLES, NVML_MEMORY_UTILIZATION_SAMPLES, NVML_TOTAL_POWER_SAMPLES
_UTILISATION, _MEMORY_UTILISATION, _POWER = 1, 2, 0
# Members of the union in which a sample lies, by NVML's type of value.
_VALUES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


def find(emit: Emit) -> list[Device]:
    """Find all devices of the host, and the MIG instances of the divided ones."""
    try:
        import pynvml as nvml
    except ImportError as error:
        raise UnavailableError("nvidia-ml-py is not installed") from error
    try:
        nvml.nvmlInit()
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as error:
        raise UnavailableError(f"NVML: {error}") from error
    devices = []
    for index in range(count):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            devices.append(_Nvidia(nvml, handle).device(index, None))
        except (nvml.NVMLError, FigureError) as error:
            emit({"type": "problem", "device": None, "figure": f"gpu {index}", "why": str(error)})
            continue
        for instance, mig in _instances(nvml, handle):
            try:
                devices.append(_Nvidia(nvml, mig).device(index, instance))
            except (nvml.NVMLError, FigureError) as error:
                what = f"gpu {index} instance {instance}"
                emit({"type": "problem", "device": None, "figure": what, "why": str(error)})
    return devices


def _instances(nvml: ModuleType, handle: object) -> list[tuple[int, object]]:
    """Return numbers and handles of the MIG instances; none where MIG is off or unknown to the device."""
    instances: list[tuple[int, object]] = []
    with suppress(nvml.NVMLError):
        if nvml.nvmlDeviceGetMigMode(handle)[0] != nvml.NVML_DEVICE_MIG_ENABLE:
            return instances
        for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            with suppress(nvml.NVMLError_NotFound):  # a slot without an instance
                instances.append((number, nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)))
    return instances


class _Nvidia:
    """The questions to one handle."""

    def __init__(self, nvml: ModuleType, handle: object) -> None:
        self._nvml = nvml
        self._handle = handle
        self._began_us = time.time_ns() // 1000
        self._seen_us = {_UTILISATION: 0, _MEMORY_UTILISATION: 0, _POWER: 0}

    def device(self, index: int, instance: int | None) -> Device:
        """Return the device with its figures. A MIG instance has figures of memory and processes alone."""
        nvml = self._nvml
        about: Record = {
            "index": index,
            "instance": instance,
            "uuid": _text(self._ask(nvml.nvmlDeviceGetUUID)),
            "name": _text(self._ask(nvml.nvmlDeviceGetName)),
            "memory_total_bytes": None,
            "numa_node": None,
        }
        with suppress(FigureError):  # reported when it is read as a figure
            about["memory_total_bytes"] = self._memory().total
        with suppress(FigureError):  # a MIG instance has no bus of its own
            about["numa_node"] = read_numa_node(self._ask(nvml.nvmlDeviceGetPciInfo).busId)
        figures = [
            gauge("memory", "memory_bytes", lambda: self._memory().used),
            Figure("processes", self._processes, SELDOM),
        ]
        if instance is None:
            figures += [
                Figure("utilisation", self._utilisation),
                self._samples("utilisation samples", "util_samples", _UTILISATION),
                self._samples("memory utilisation samples", "memory_util_samples", _MEMORY_UTILISATION),
                gauge("power", "power_w", lambda: self._ask(nvml.nvmlDeviceGetPowerUsage) / 1e3),
                self._samples("power samples", "power_samples", _POWER, 1e-3),
                gauge(
                    "energy", "energy_j", lambda: self._ask(nvml.nvmlDeviceGetTotalEnergyConsumption) / 1e3
                ),
                gauge("SM clock", "sm_clock_mhz", lambda: self._clock(nvml.NVML_CLOCK_SM)),
                gauge("memory clock", "memory_clock_mhz", lambda: self._clock(nvml.NVML_CLOCK_MEM)),
                gauge("temperature", "temperature_c", self._temperature),
                gauge("clock event reasons", "clock_reasons", self._reasons),
                Figure("PCIe throughput", self._pcie, SELDOM),  # NVML measures for 20 ms while one waits
            ]
        return Device(about, figures)

    def _ask(self, function: Callable[..., Any], *arguments: object) -> Any:
        nvml = self._nvml
        try:
            return function(self._handle, *arguments)
        except nvml.NVMLError as error:
            never = (
                nvml.NVML_ERROR_NOT_SUPPORTED,
                nvml.NVML_ERROR_NO_PERMISSION,
                nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
                nvml.NVML_ERROR_INVALID_ARGUMENT,
                nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
                nvml.NVML_ERROR_DEPRECATED,
            )
            lost = (nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_RESET_REQUIRED)
            raise FigureError(str(error), error.value in never, error.value in lost) from error

    def _either(self, newer: Callable[[], Any], older: Callable[[], Any]) -> Any:
        """Return `newer()`, or `older()` on a driver that does not have the former yet."""
        try:
            return newer()
        except FigureError as error:
            cause = error.__cause__
            if getattr(cause, "value", None) != self._nvml.NVML_ERROR_FUNCTION_NOT_FOUND:
                raise
            return older()

    def _memory(self) -> Any:
        # The first version counts what the driver keeps for itself as used.
        nvml = self._nvml
        return self._either(
            lambda: self._ask(nvml.nvmlDeviceGetMemoryInfo, nvml.nvmlMemory_v2),
            lambda: self._ask(nvml.nvmlDeviceGetMemoryInfo),
        )

    def _utilisation(self) -> Record:
        rates = self._ask(self._nvml.nvmlDeviceGetUtilizationRates)
        return {"util_pct": rates.gpu, "memory_util_pct": rates.memory}

    def _samples(self, name: str, field: str, kind: int, factor: float = 1) -> Figure:
        return Figure(name, lambda: self._read_samples(field, kind, factor))

    def _read_samples(self, field: str, kind: int, factor: float) -> Record:
        """Return what the driver has buffered since the last call: [us of CLOCK_REALTIME, value] pairs."""
        try:
            kind_of_value, samples = self._ask(self._nvml.nvmlDeviceGetSamples, kind, self._seen_us[kind])
        except FigureError as error:
            if getattr(error.__cause__, "value", None) == self._nvml.NVML_ERROR_NOT_FOUND:
                return {}  # nothing new
            raise
        # The buffer reaches back to before the run; an unused entry in it has no time.
        since_us = max(self._seen_us[kind], self._began_us)
        if kind_of_value >= len(_VALUES):
            raise FigureError(
                f"its samples have a type of value that is not known: {kind_of_value}", final=True
            )
        member = _VALUES[kind_of_value]
        pairs = [
            (sample.timeStamp, getattr(sample.sampleValue, member) * factor)
            for sample in samples
            if sample.timeStamp > since_us
        ]
        if not pairs:
            return {}
        self._seen_us[kind] = max(time_us for time_us, _ in pairs)
        return {field: sorted(pairs)}

    def _clock(self, kind: int) -> int:
        return int(self._ask(self._nvml.nvmlDeviceGetClockInfo, kind))

    def _temperature(self) -> Any:
        return self._ask(self._nvml.nvmlDeviceGetTemperature, self._nvml.NVML_TEMPERATURE_GPU)

    def _reasons(self) -> Any:
        nvml = self._nvml
        return self._either(
            lambda: self._ask(nvml.nvmlDeviceGetCurrentClocksEventReasons),
            lambda: self._ask(nvml.nvmlDeviceGetCurrentClocksThrottleReasons),
        )

    def _pcie(self) -> Record:
        nvml = self._nvml
        counters = {"sent": nvml.NVML_PCIE_UTIL_TX_BYTES, "received": nvml.NVML_PCIE_UTIL_RX_BYTES}
        return {
            f"pcie_{way}_bytes_per_s": self._ask(nvml.nvmlDeviceGetPcieThroughput, counter) * _KIB
            for way, counter in counters.items()
        }

    def _processes(self) -> Record:
        """Return [pid, bytes] pairs; bytes are None where the driver hides them, as in some containers."""
        processes = self._ask(self._nvml.nvmlDeviceGetComputeRunningProcesses)
        return {"processes": [(process.pid, process.usedGpuMemory) for process in processes]}


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
