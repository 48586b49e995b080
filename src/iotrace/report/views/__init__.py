"""``iotrace report --view NAME``: tables of one part of the report, for the terminal, JSON and CSV alike.

A new view is a row of `VIEWS`, and in the module that it names a function with its name, ``-`` as ``_``,
that takes the report and returns `Table`s. What it shows stands in the report: no figure is computed here.
A column is a figure that declares its heading, `said`.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from iotrace.analysis.results import Report
    from iotrace.report.blocks import Table


class View(NamedTuple):
    """What a view shows, as its help says it; the module of this package that makes its tables.

    `section` of a report's page has them: what a `device` did, what else `traces` hold.
    """

    shows: str
    module: str
    section: str = ""


# The command line reads this table at each start: the modules are imported when a view is asked for.
VIEWS = {
    "kernels": View("by name, and who launched them", "device", "device"),
    "operators": View("time on the host and on the device", "device", "device"),
    "ranges": View("parts that the program named: time on the host and on the device", "device", "device"),
    "shapes": View("operators by input shapes: FLOP/s against the roofline", "device", "device"),
    "slow-steps": View("their causes, and what a trace's first steps cost", "steps", "traces"),
    "launches": View("the host's cost, delay until the device begins, queue", "device", "device"),
    "collectives": View(
        "communication by kind and group: bandwidth, exposed part, late rank", "device", "device"
    ),
    "memory-operations": View("copies and sets of device memory: bandwidth, overlap", "device", "device"),
    "gaps": View("the ten longest idle times of the device", "device", "device"),
    "idle-time": View("the idle time of the device by cause, and where on the host", "device", "device"),
    "runtime-calls": View(
        "calls of CUDA's runtime and its like: cost, who calls, which wait", "device", "device"
    ),
    "categories": View(
        "the device's time by kind of operator: GEMM, attention, elementwise", "device", "device"
    ),
    "critical-path": View("the parts of a step's length, on host and device", "device", "device"),
    "stream-waits": View("which stream waited for which, and what ended the wait", "device", "device"),
    "ranks": View("one line for each rank: its step, its waits, why it is late", "ranks"),
    "modules": View("idle, device time, communication by module and phase", "device", "device"),
    "gain": View("what each change would gain: causes, files, settings", "steps"),
    "pipeline": View(
        "the stages between queues and pools: how busy each is, how many items wait for it", "steps"
    ),
    "samples": View(
        "the calls that make a sample, one in another: functions, regions, libraries, opens, reads", "steps"
    ),
    "streams": View("each stream of a device: busy, idle by class", "device", "device"),
    "startup": View("from the launch to the first step: imports by package, first batch", "steps"),
    "speed": View("batches and samples a second by phase, over time", "program"),
    "time": View("where Lightning's trainer spends its time: hooks, callbacks", "program"),
    "model": View("the layers of the model: parameters, shapes", "program"),
    "memory": View("memory of each device that operators were given", "program", "traces"),
    "snapshot": View("the files of device memory for pytorch.org/memory_viz", "program", "traces"),
    "storage": View("reads: latency, small, random, amplified, device bytes", "host"),
    "system": View("means and peaks of processes, host and devices", "host"),
}


def tables_of(name: str, report: Report) -> Sequence[Table]:
    """Make the tables of the view `name`, one of `VIEWS`."""
    module = import_module(f"{__name__}.{VIEWS[name].module}")
    found: Sequence[Table] = getattr(module, name.replace("-", "_"))(report)
    return found


def filled(report: Report) -> list[str]:
    """Name the views that show something of this report."""
    return [name for name in VIEWS if any(table.rows for table in tables_of(name, report))]
