"""Read Intel's devices by Level Zero's Sysman, by pyzes: each device, and each of its tiles.

What counts since the driver was loaded (energy, activity, bytes on the bus) is a rate between two turns.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from ctypes import byref, c_double, c_uint32
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

_LOADER = "libze_loader.so.1"
# What holds the device back, by the bits of NVML that mean the same.
_POWER_CAP, _SLOWDOWN, _THERMAL, _BRAKE = 0x4, 0x8, 0x40, 0x80
_REASONS = {
    "AVE_PWR_CAP": _POWER_CAP,
    "BURST_PWR_CAP": _POWER_CAP,
    "POWER": _POWER_CAP,
    "THERMAL_LIMIT": _THERMAL,
    "THERMAL": _THERMAL,
    "CURRENT_LIMIT": _SLOWDOWN,
    "PSU_ALERT": _BRAKE,
}


def find(emit: Emit) -> list[Device]:
    """Find all devices of the host, and their tiles."""
    zes = _library()
    if zes.zesInit(0) != zes.ZE_RESULT_SUCCESS:
        raise UnavailableError("Level Zero: zesInit fails: no driver, or no device that this user may use")
    devices: list[Device] = []
    for driver in _handles(zes.zesDriverGet, zes.zes_driver_handle_t):
        for handle in _handles(zes.zesDeviceGet, zes.zes_device_handle_t, driver):
            index = sum(1 for device in devices if device.about["instance"] is None)
            try:
                devices += _Intel(zes, handle).devices(index)
            except FigureError as error:
                emit({"type": "problem", "device": None, "figure": f"gpu {index}", "why": str(error)})
    return devices


def _library() -> ModuleType:
    """Import pyzes, which loads the library where Debian has it, and nowhere else."""
    load = ctypes.CDLL

    def by_name(name: Any, *arguments: Any, **named: Any) -> ctypes.CDLL:
        known = isinstance(name, str) and os.path.basename(name) == _LOADER and not os.path.exists(name)
        return load(_LOADER if known else name, *arguments, **named)

    try:
        ctypes.CDLL = by_name  # type: ignore[misc, assignment]
        import pyzes
    except ImportError as error:
        raise UnavailableError("pyzes is not installed") from error
    except OSError as error:
        raise UnavailableError(f"Level Zero: {error}") from error
    finally:
        ctypes.CDLL = load  # type: ignore[misc]
    library: ModuleType = pyzes
    return library


def _handles(function: Callable[..., int], kind: Any, *of: Any) -> list[Any]:
    """Ask for the number of handles, then for these; none where the device has none of the kind."""
    count = c_uint32(0)
    if function(*of, byref(count), None) or not count.value:
        return []
    handles = (kind * count.value)()
    return [] if function(*of, byref(count), handles) else list(handles[: count.value])


class _Rate:
    """The growth of a counter between two turns, by the device's own time of it in us."""

    def __init__(self) -> None:
        self._before: tuple[int, int] | None = None

    def of(self, count: int, time_us: int) -> float | None:
        """Return what it grew by in a us; None at first, and where no time has passed."""
        before, self._before = self._before, (count, time_us)
        if before is None or time_us <= before[1] or count < before[0]:
            return None
        return (count - before[0]) / (time_us - before[1])


class _Intel:
    """The questions to one device; of its parts, each handle with its properties."""

    def __init__(self, zes: ModuleType, handle: Any) -> None:
        self._zes = zes
        self._handle = handle
        self._engines = self._parts("EngineGroups", "Engine", "engine", "ENGINE")
        self._memories = self._parts("MemoryModules", "Memory", "mem", "MEM")
        self._powers = self._parts("PowerDomains", "Power", "pwr", "POWER")
        self._clocks = self._parts("FrequencyDomains", "Frequency", "freq", "FREQ")
        self._sensors = self._parts("TemperatureSensors", "Temperature", "temp", "TEMP")

    def devices(self, index: int) -> Iterator[Device]:
        """Yield the device, then each of its tiles, if it has several."""
        zes = self._zes
        about = zes.zes_device_properties_t(stype=zes.ZES_STRUCTURE_TYPE_DEVICE_PROPERTIES)
        self._ask("zesDeviceGetProperties", self._handle, byref(about))
        uuid = bytes(about.core.uuid.id).hex()
        name = (about.core.name or about.modelName).decode(errors="replace")
        yield self._device(index, None, uuid, name)
        for tile in range(about.numSubdevices if about.numSubdevices > 1 else 0):
            yield self._device(index, tile, f"{uuid}/{tile}", f"{name} tile {tile}")

    def _device(self, index: int, tile: int | None, uuid: str, name: str) -> Device:
        known: Record = {"index": index, "instance": tile, "uuid": uuid, "name": name}
        memories = [properties.physicalSize for _, properties in self._list_memories(tile)]
        about = {**known, "memory_total_bytes": sum(memories) or None, "numa_node": self._numa_node()}
        activity: dict[int, _Rate] = {}
        figures = [
            Figure("utilisation", lambda: self._utilisation(tile, activity)),
            gauge("memory", "memory_bytes", lambda: self._memory(tile)),
            Figure("clocks", lambda: self._frequencies(tile)),
            gauge("temperature", "temperature_c", lambda: self._temperature(tile)),
        ]
        if tile is None:
            power, sent, received = _Rate(), _Rate(), _Rate()
            figures += [
                Figure("power", lambda: self._power(power)),
                Figure("PCIe throughput", lambda: self._pcie(sent, received), SELDOM),
                Figure("processes", self._processes, SELDOM),
            ]
        return Device(about, figures)

    def _ask(self, function: str, *arguments: Any) -> None:
        zes = self._zes
        result = getattr(zes, function)(*arguments)
        if result == zes.ZE_RESULT_SUCCESS:
            return
        never = zes.ZE_RESULT_ERROR_UNSUPPORTED_FEATURE, zes.ZE_RESULT_ERROR_INSUFFICIENT_PERMISSIONS
        lost = zes.ZE_RESULT_ERROR_DEVICE_LOST, zes.ZE_RESULT_ERROR_DEVICE_REQUIRES_RESET
        raise FigureError(f"{function}: {result:#x}", result in never, result in lost)

    def _parts(self, group: str, kind: str, short: str, structure: str) -> list[tuple[Any, Any]]:
        """List the handles of a group, each with its properties; those that tell none are left out."""
        zes, parts = self._zes, []
        enumerate_all = getattr(zes, f"zesDeviceEnum{group}")
        for handle in _handles(enumerate_all, getattr(zes, f"zes_{short}_handle_t"), self._handle):
            stype = getattr(zes, f"ZES_STRUCTURE_TYPE_{structure}_PROPERTIES")
            name = {"pwr": "power"}.get(short, short)
            properties = getattr(zes, f"zes_{name}_properties_t")(stype=stype)
            if getattr(zes, f"zes{kind}GetProperties")(handle, byref(properties)) == zes.ZE_RESULT_SUCCESS:
                parts.append((handle, properties))
        return parts

    def _list_memories(self, tile: int | None) -> list[tuple[Any, Any]]:
        on_device = self._zes.ZES_MEM_LOC_DEVICE
        return _of_tile([part for part in self._memories if part[1].location == on_device], tile)

    def _utilisation(self, tile: int | None, rates: dict[int, _Rate]) -> Record:
        """Return for how much of the time engines that compute were active, the mean of the tiles."""
        zes, shares = self._zes, []
        for kind in (zes.ZES_ENGINE_GROUP_COMPUTE_ALL, zes.ZES_ENGINE_GROUP_ALL):
            own = _of_tile([part for part in self._engines if part[1].type == kind], tile)
            if own:
                break
        else:
            raise FigureError("it tells no engine that computes", final=True)
        for number, (handle, _) in enumerate(own):
            stats = zes.zes_engine_stats_t()
            self._ask("zesEngineGetActivity", handle, byref(stats))
            share = rates.setdefault(number, _Rate()).of(stats.activeTime, stats.timestamp)
            shares += [] if share is None else [min(share, 1.0)]
        return {"util_pct": 100 * sum(shares) / len(shares)} if shares else {}

    def _memory(self, tile: int | None) -> int:
        zes, used = self._zes, 0
        parts = self._list_memories(tile)
        if not parts:
            raise FigureError("it tells no memory of its own", final=True)
        for handle, _ in parts:
            state = zes.zes_mem_state_t(stype=zes.ZES_STRUCTURE_TYPE_MEM_STATE)
            self._ask("zesMemoryGetState", handle, byref(state))
            used += state.size - state.free
        return used

    def _power(self, rate: _Rate) -> Record:
        """Return the energy of the whole card, and the power since the last turn."""
        zes = self._zes
        if not self._powers:
            raise FigureError("it tells no energy", final=True)
        energy_uj = time_us = 0
        for handle, _ in _of_tile(self._powers, None):
            counter = zes.zes_power_energy_counter_t()
            self._ask("zesPowerGetEnergyCounter", handle, byref(counter))
            energy_uj, time_us = energy_uj + counter.energy, max(time_us, counter.timestamp)
        watt = rate.of(energy_uj, time_us)  # uJ in a us
        return {"energy_j": energy_uj / 1e6, **({} if watt is None else {"power_w": watt})}

    def _frequencies(self, tile: int | None) -> Record:
        """Return the clocks, the mean of the tiles, and what holds any of them back."""
        zes, clocks_mhz, reasons = self._zes, {}, 0
        kinds = (("sm", zes.ZES_FREQ_DOMAIN_GPU), ("memory", zes.ZES_FREQ_DOMAIN_MEMORY))
        for name, kind in kinds:
            clocks = []
            for handle, _ in _of_tile([part for part in self._clocks if part[1].type == kind], tile):
                state = zes.zes_freq_state_t(stype=zes.ZES_STRUCTURE_TYPE_FREQ_STATE)
                self._ask("zesFrequencyGetState", handle, byref(state))
                clocks += [state.actual] if state.actual >= 0 else []  # below 0: not known
                reasons |= self._reasons(state.throttleReasons)
            if clocks:
                clocks_mhz[f"{name}_clock_mhz"] = sum(clocks) / len(clocks)
        if not clocks_mhz:
            raise FigureError("it tells no clock", final=True)
        return {**clocks_mhz, "clock_reasons": reasons}

    def _reasons(self, flags: int) -> int:
        prefix, reasons = "ZES_FREQ_THROTTLE_REASON_FLAG_", 0
        for name, bit in _REASONS.items():
            reasons |= bit if flags & getattr(self._zes, f"{prefix}{name}", 0) else 0
        return reasons

    def _temperature(self, tile: int | None) -> float:
        zes, temperatures = self._zes, []
        kinds = zes.ZES_TEMP_SENSORS_GPU, zes.ZES_TEMP_SENSORS_GLOBAL
        for handle, _ in _of_tile([part for part in self._sensors if part[1].type in kinds], tile):
            value = c_double()
            self._ask("zesTemperatureGetState", handle, byref(value))
            temperatures.append(value.value)
        if not temperatures:
            raise FigureError("it tells no temperature", final=True)
        return max(temperatures)

    def _pcie(self, sent: _Rate, received: _Rate) -> Record:
        stats = self._zes.zes_pci_stats_t()
        self._ask("zesDevicePciGetStats", self._handle, byref(stats))
        ways = (("sent", sent, stats.txCounter), ("received", received, stats.rxCounter))
        rates = {way: rate.of(count, stats.timestamp) for way, rate, count in ways}
        return {f"pcie_{way}_bytes_per_s": rate * 1e6 for way, rate in rates.items() if rate is not None}

    def _processes(self) -> Record:
        zes = self._zes
        processes = _handles(zes.zesDeviceProcessesGetState, zes.zes_process_state_t, self._handle)
        return {"processes": [(process.processId, process.memSize) for process in processes]}

    def _numa_node(self) -> int | None:
        zes = self._zes
        properties = zes.zes_pci_properties_t(stype=zes.ZES_STRUCTURE_TYPE_PCI_PROPERTIES)
        if zes.zesDevicePciGetProperties(self._handle, byref(properties)) != zes.ZE_RESULT_SUCCESS:
            return None
        at = properties.address
        return read_numa_node(f"{at.domain:04x}:{at.bus:02x}:{at.device:02x}.{at.function:x}")


def _of_tile(parts: list[tuple[Any, Any]], tile: int | None) -> list[tuple[Any, Any]]:
    """Choose the parts of a tile; of a whole device those of all of it, else those of its tiles."""
    if tile is not None:
        return [part for part in parts if part[1].onSubdevice and part[1].subdeviceId == tile]
    return [part for part in parts if not part[1].onSubdevice] or parts
