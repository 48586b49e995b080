"""``iotrace report --view NAME``: tables of one part of the report, for the terminal, JSON and CSV alike.

A new view is a row of `VIEWS`, and in the module that it names a function with its name, ``-`` as ``_``,
that takes the report and returns `Table`s. What it shows stands in the report: no figure is computed here.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from iotrace.analysis.results import Report
    from iotrace.report.views.table import Table


class View(NamedTuple):
    """What a view shows, as its help says it; the module of this package that makes its tables."""

    shows: str
    module: str


# The command line reads this table at each start: the modules are imported when a view is asked for.
VIEWS = {
    "kernels": View("kernels by name, and who launched them", "device"),
    "operators": View("operators: time on the host and on the device", "device"),
    "ranges": View("ranges that the program named: time on the host and on the device", "device"),
    "shapes": View("operators by input shapes: FLOP/s against the roofline", "device"),
    "slow-steps": View("slow steps with causes, costs of a trace's first steps", "slow"),
    "launches": View("launches: the host's cost, delay until the device begins, queue", "device"),
    "collectives": View("communication by kind and group: bandwidth, exposed part, late rank", "device"),
    "memory-operations": View("copies and sets of device memory: bandwidth, overlap", "device"),
    "gaps": View("the ten longest idle times of the device", "device"),
    "idle-time": View("the idle time of the device by cause, and where on the host", "device"),
    "runtime-calls": View("calls of CUDA's runtime and its like: cost, who calls, which wait", "device"),
    "categories": View("the device's time by kind of operator: GEMM, attention, elementwise", "device"),
    "critical-path": View("the parts of a step's length, on host and device", "dependencies"),
    "stream-waits": View("which stream waited for which, and what ended the wait", "dependencies"),
    "ranks": View("one line for each rank: its step, its waits, why it is late", "ranks"),
    "modules": View("idle, device time, communication by module and phase", "device"),
    "gain": View("what each change would gain: causes, files, settings", "gain"),
    "streams": View("each stream of a device: busy, idle by class", "device"),
    "startup": View("from the launch to the first step: imports by package, first batch", "startup"),
    "speed": View("batches and samples a second by phase, over time", "program"),
    "time": View("where Lightning's trainer spends its time: hooks, callbacks", "program"),
    "model": View("the layers of the model: parameters, shapes", "program"),
    "memory": View("memory of each device that operators were given", "memory"),
    "snapshot": View("the files of device memory for pytorch.org/memory_viz", "memory"),
    "storage": View("reads: latency, small, random, amplified, device bytes", "storage"),
    "system": View("means and peaks of processes, host, devices", "system"),
}


def tables_of(name: str, report: Report) -> Sequence[Table]:
    """Make the tables of the view `name`, one of `VIEWS`."""
    module = import_module(f"{__name__}.{VIEWS[name].module}")
    found: Sequence[Table] = getattr(module, name.replace("-", "_"))(report)
    return found


def filled(report: Report) -> list[str]:
    """Name the views that show something of this report."""
    return [name for name in VIEWS if any(table.rows for table in tables_of(name, report))]
