"""What the sidecar did not sample: gaps, processes, figures of host and devices."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from iotrace.session.manifest import NotCaptured
from iotrace.sources.session import Session
from iotrace.sources.telemetry import Telemetry

_GAP_NS = 2_000_000_000


def unsampled(session: Session) -> Iterator[NotCaptured]:
    """Find hosts that were not sampled, accelerators that no library reads, figures that fail."""
    for launch in session.launches:
        manifest = launch.manifest
        nodes = {process.identity.node for process in session.processes if process.host == manifest.host}
        there = [
            item
            for item in session.telemetry
            if item.sampler.host == manifest.host or item.sampler.node in nodes
        ]
        if manifest.telemetry_ms is None:
            yield NotCaptured("telemetry", "it was switched off", "leave out --no-telemetry")
        elif not there:
            yield NotCaptured(f"telemetry of {manifest.host}", "its sampler did not start")
        elif manifest.accelerators and not any(item.devices or item.problems for item in there):
            why = "; ".join(dict.fromkeys(library.why for item in there for library in item.unavailable))
            if why:  # else it was still being looked for when the run ended
                remedy = "see what iotrace doctor says of it on that host"
                yield NotCaptured(f"gpu on {manifest.host}", why, remedy)
    for rank in session.ranks:
        sampled = session.telemetry_of(rank.main)
        if sampled is not None and all(sampled.process_of(process) is None for process in rank.processes):
            why = "none of its processes is known among those that were sampled"
            yield NotCaptured(f"telemetry of the processes of rank {rank.number}", why)
    for telemetry in session.telemetry:
        yield from _failed_figures(telemetry)
        yield from _gaps(telemetry)


def _gaps(telemetry: Telemetry) -> list[NotCaptured]:
    """Find times in which the sampler did not run, as it was stopped or the host too busy."""
    of_processes = [item.samples["time_ns"] for item in telemetry.processes]
    apart_ns = np.diff(np.unique(np.concatenate([telemetry.host.time_ns, *of_processes])))
    longest = apart_ns[apart_ns > _GAP_NS]
    if not len(longest):
        return []
    what = f"{len(longest)} gaps, the longest of" if len(longest) > 1 else "a gap of"
    why = f"{what} {longest.max() / 1e9:.1f} s: its sampler was stopped, or the host too busy for it"
    return [NotCaptured(f"part of the telemetry of {telemetry.sampler.node}", why)]


# What is known without a buffered figure.
_INSTEAD = {
    "utilisation samples": "util_pct",
    "memory utilisation samples": "memory_util_pct",
    "power samples": "power_w",
}


def _failed_figures(telemetry: Telemetry) -> list[NotCaptured]:
    """List for each device the figures that failed, by what the driver says of them."""
    by_device: dict[str, dict[str, list[str]]] = {}
    devices = {device.about.device: device for device in telemetry.devices}
    for problem in telemetry.problems:
        device = devices.get(problem.device) if problem.device is not None else None
        what = "gpu"
        if device is not None:
            if _INSTEAD.get(problem.figure) in device.series:  # the driver only keeps no buffer of it
                continue
            instance = "" if device.about.instance is None else f" instance {device.about.instance}"
            what = f"gpu {device.about.index}{instance}"
        by_device.setdefault(what, {}).setdefault(problem.why, []).append(problem.figure)
    return [
        NotCaptured(
            f"part of {what} on {telemetry.sampler.node}",
            "; ".join(f"{', '.join(figures)}: {why}" for why, figures in reasons.items()),
        )
        for what, reasons in by_device.items()
    ]
