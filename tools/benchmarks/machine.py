"""What a figure was measured on, and how quiet it was there."""

from __future__ import annotations

import os
import platform
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import Any


def machine() -> dict[str, Any]:
    """CPU, memory, versions and date, as a table's heading tells them."""
    return {
        "date": date.today().isoformat(),
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in ("iotrace-agent", "dftracer", "torch", "h5py")},
        "load_average": os.getloadavg()[0],
    }


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
