"""Read AMD's devices through amdsmi, which comes with ROCm."""

from __future__ import annotations

from collections.abc import Callable
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


def find(emit: Emit) -> list[Device]:
    """Find all devices of the host."""
    try:
        import amdsmi
    except Exception as error:  # it loads its C library at import, and fails in several ways
        why = "amdsmi is not installed" if isinstance(error, ModuleNotFoundError) else f"amdsmi: {error}"
        raise UnavailableError(why) from error
    try:
        amdsmi.amdsmi_init()
        handles = amdsmi.amdsmi_get_processor_handles()
    except Exception as error:  # AmdSmiException has no common base in older versions
        raise UnavailableError(f"amdsmi: {error}") from error
    return [_device(amdsmi, handle, index) for index, handle in enumerate(handles)]


def _device(smi: ModuleType, handle: object, index: int) -> Device:
    def ask(function: str, *arguments: object) -> Any:
        try:
            return getattr(smi, function)(handle, *arguments)
        except AttributeError as error:
            raise FigureError(f"this amdsmi has no {function}", final=True) from error
        except Exception as error:
            raise FigureError(str(error) or type(error).__name__) from error

    def known(function: Callable[[], Any]) -> Any:
        try:
            return function()
        except FigureError:
            return None

    kinds = smi.AmdSmiMemoryType, smi.AmdSmiTemperatureType, smi.AmdSmiTemperatureMetric, smi.AmdSmiClkType
    memory, sensor, metric, clock = kinds

    def energy() -> float:
        count = ask("amdsmi_get_energy_count")
        counter = _number(count, "energy_accumulator", "power")
        return counter * _number(count, "counter_resolution") / 1e6  # in uJ

    def power() -> float:
        fields = "current_socket_power", "average_socket_power", "socket_power"
        return _number(ask("amdsmi_get_power_info"), *fields)

    def mhz(kind: object) -> float:
        return _number(ask("amdsmi_get_clock_info", kind), "clk", "cur_clk")

    def processes() -> Record:
        entries = [entry for entry in ask("amdsmi_get_gpu_process_list") if isinstance(entry, dict)]
        pairs = [(entry["pid"], entry.get("memory_usage", {}).get("vram_mem")) for entry in entries]
        return {"processes": pairs}

    about = {
        "index": index,
        "instance": None,
        "uuid": str(known(lambda: ask("amdsmi_get_gpu_device_uuid")) or ""),
        "name": str((known(lambda: ask("amdsmi_get_gpu_asic_info")) or {}).get("market_name", "")),
        "memory_total_bytes": known(lambda: ask("amdsmi_get_gpu_memory_total", memory.VRAM)),
        "numa_node": read_numa_node(known(lambda: ask("amdsmi_get_gpu_device_bdf"))),
    }
    temperature = "amdsmi_get_temp_metric", sensor.HOTSPOT, metric.CURRENT
    figures = [
        gauge("utilisation", "util_pct", lambda: _number(ask("amdsmi_get_gpu_activity"), "gfx_activity")),
        gauge("memory", "memory_bytes", lambda: ask("amdsmi_get_gpu_memory_usage", memory.VRAM)),
        gauge("power", "power_w", power),
        gauge("energy", "energy_j", energy),
        Figure("processes", processes, SELDOM),
        gauge("SM clock", "sm_clock_mhz", lambda: mhz(clock.GFX)),
        gauge("memory clock", "memory_clock_mhz", lambda: mhz(clock.MEM)),
        gauge("temperature", "temperature_c", lambda: ask(*temperature)),
    ]
    return Device(about, figures)


def _number(record: Record, *fields: str) -> float:
    """Return the first of `fields` that holds a number: what a device does not have reads ``N/A``."""
    for name in fields:
        value = record.get(name)
        if isinstance(value, int | float) and value >= 0:
            return value
    raise FigureError(f"{fields[0]} is not available", final=True)
