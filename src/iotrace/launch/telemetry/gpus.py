"""Poll accelerators, a thread each: one that hangs or fails never delays another.

A backend (`nvml`, `amd`) gives devices; a device gives figures. A figure that fails is unknown for that
device and reported once; the others go on. (No dataclasses: they bring `inspect`, 7 ms.)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from iotrace.launch.telemetry import Record

Emit = Callable[[Record], None]

PERIOD_S = 0.5
# Each device costs some 0.05 % of a core: with more than these, each is asked half as often.
MANY_DEVICES = 4
SELDOM = 4  # turns: for what takes the driver long
_STUCK_S = 10.0
_SLOW_S = 2.0  # to find devices: a run may end sooner than that


class UnavailableError(Exception):
    """The vendor's library is not there, or does not work on this host."""


class FigureError(Exception):
    """A figure could not be read. `final`: it never will be; `lost`: nor will any other of the device."""

    def __init__(self, why: str, final: bool = False, lost: bool = False) -> None:
        super().__init__(why)
        self.final = final
        self.lost = lost


class Figure(NamedTuple):
    """Something to ask a device for, at every `every`-th turn. `read` gives fields of a record."""

    name: str
    read: Callable[[], Record]
    every: int = 1


def gauge(name: str, field: str, read: Callable[[], object]) -> Figure:
    """Make a figure of one field."""
    return Figure(name, lambda: {field: read()})


def read_numa_node(bus_id: object, devices: str = "/sys/bus/pci/devices") -> int | None:
    """Return the NUMA node that a PCI device is at, by its number as drivers write it; None: not known.

    Drivers write more digits of the domain than the kernel does (``00000000:1B:00.0``, ``0000:1b:00.0``).
    """
    text = bus_id.decode(errors="replace") if isinstance(bus_id, bytes) else str(bus_id)
    domain, _, rest = text.strip().lower().partition(":")
    try:
        with open(f"{devices}/{int(domain, 16):04x}:{rest}/numa_node") as file:
            node = int(file.read())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


class Device:
    """An accelerator, or an instance of a divided one (MIG). `about` holds its index, uuid and name."""

    def __init__(self, about: Record, figures: list[Figure]) -> None:
        self.about = about
        self.figures = figures
        self.asked = ""  # the figure that is being read, and since when
        self.asked_s = 0.0
        self.reported: set[str] = set()


class DevicePoller:
    """Finds the host's devices and polls them until it is stopped. `emit` is called from several threads."""

    def __init__(self, backends: Mapping[str, Callable[[Emit], list[Device]]], emit: Emit) -> None:
        self._backends = backends
        self._emit = emit
        self._stop = threading.Event()
        self._devices: list[Device] = []
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._finding = dict.fromkeys(backends, time.monotonic())  # the libraries that have not answered yet

    def start(self) -> None:
        """Start, without waiting: finding devices may take seconds."""
        for library in self._backends:
            self._run(self._find, library)

    def stop(self, seconds: float) -> None:
        """Poll every device a last time, and wait `seconds` at most for that."""
        self._stop.set()
        deadline = time.monotonic() + seconds
        for thread in list(self._threads):
            thread.join(max(0.0, deadline - time.monotonic()))
        self._report_silent(_SLOW_S)

    def check(self) -> None:
        """Report libraries and devices that have not answered for long; called now and then."""
        self._report_silent(_STUCK_S)
        for device in self._devices:
            if device.asked and time.monotonic() - device.asked_s > _STUCK_S:
                self._report(device, device.asked, f"no answer for {_STUCK_S:.0f} s")

    def _report_silent(self, seconds: float) -> None:
        """Report the libraries that have searched for devices for longer than `seconds`."""
        now_s = time.monotonic()
        for library, since_s in list(self._finding.items()):
            if now_s - since_s > seconds and self._finding.pop(library, None) is not None:
                why = f"{library}: no answer for {now_s - since_s:.0f} s"
                self._emit({"type": "unavailable", "library": library, "why": why})

    def _run(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _find(self, library: str) -> None:
        try:
            devices = self._backends[library](self._emit)
        except Exception as error:  # any kind, from the vendors' libraries
            why = str(error) if isinstance(error, UnavailableError) else repr(error)
            self._emit({"type": "unavailable", "library": library, "why": why})
            return
        finally:
            self._finding.pop(library, None)
        with self._lock:  # the number is the index
            for device in devices:
                number = len(self._devices)
                self._emit({"type": "device", "device": number, "library": library, **device.about})
                self._devices.append(device)
                self._run(self._poll, number, device)

    def _poll(self, number: int, device: Device) -> None:
        turn = 0
        figures = list(device.figures)
        while figures:
            stopping = self._stop.is_set()
            figures = self._turn(number, device, figures, turn)
            turn += 1
            if stopping:
                return
            self._stop.wait(PERIOD_S if len(self._devices) <= MANY_DEVICES else 2 * PERIOD_S)

    def _turn(self, number: int, device: Device, figures: list[Figure], turn: int) -> list[Figure]:
        """Read each figure that is due; return those to read again."""
        record: Record = {"type": "gpu", "device": number, "mono_ns": time.monotonic_ns()}
        costs, kept = {}, []
        for figure in figures:
            if turn % figure.every:
                kept.append(figure)
                continue
            device.asked, device.asked_s = figure.name, time.monotonic()
            before_ns = time.perf_counter_ns()
            try:
                record.update(figure.read())
                kept.append(figure)
            except FigureError as error:
                self._report(device, figure.name, str(error))
                if error.lost:
                    kept = []
                    break
                if not error.final:
                    kept.append(figure)
            except Exception as error:  # as above
                self._report(device, figure.name, repr(error))
            costs[figure.name] = time.perf_counter_ns() - before_ns
        device.asked = ""
        self._emit({**record, "cost_ns": costs})
        return kept

    def _report(self, device: Device, figure: str, why: str) -> None:
        if figure not in device.reported:
            device.reported.add(figure)
            self._emit(
                {"type": "problem", "device": self._devices.index(device), "figure": figure, "why": why}
            )
