"""What a device does at most: its maker's figures, without sparsity. Devices not listed are unknown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from iotrace.analysis.device.kernels import Window
from iotrace.analysis.results import DevicePeaks

_LOOKED_UP = "2026-11-23"
# TFLOP/s by type, of chips that are built into several devices, or whose row would not fit a line.
_A100 = {"bfloat16": 312.0, "float16": 312.0, "tf32": 156.0, "float32": 19.5}
_H100 = {"bfloat16": 989.4, "float16": 989.4, "tf32": 494.7, "float32": 66.9, "float8": 1978.9}
_H100_PCIE = {"bfloat16": 756.0, "float16": 756.0, "tf32": 378.0, "float32": 51.2, "float8": 1513.0}
_B200 = {"bfloat16": 2250.0, "float16": 2250.0, "tf32": 1100.0, "float32": 75.0, "float8": 4500.0}
_MI210 = {"bfloat16": 181.0, "float16": 181.0, "float32": 45.3}
_MI300X = {"bfloat16": 1307.4, "float16": 1307.4, "float32": 163.4, "float8": 2614.9}
# Name in a trace, GB/s of memory, TFLOP/s by type, where they stand.
_PEAKS: tuple[tuple[str, float, dict[str, float], str], ...] = (
    # Of the DGX Station's V100 (V100-DGXS) no data sheet tells the peak.
    (r"V100-SXM2", 900.0, {"float16": 125.0, "float32": 15.7}, "NVIDIA V100 data sheet"),
    (r"V100-PCIE", 900.0, {"float16": 112.0, "float32": 14.0}, "NVIDIA V100 data sheet, PCIe"),
    (r"A100-SXM4-80GB", 2039.0, _A100, "NVIDIA A100 80GB data sheet"),
    (r"A100 80GB PCIe", 1935.0, _A100, "NVIDIA A100 80GB data sheet"),
    (r"A100-(?:SXM4|PCIE)-40GB", 1555.0, _A100, "NVIDIA A100 data sheet"),
    (r"H100 80GB HBM3", 3350.0, _H100, "NVIDIA H100 data sheet and Hopper white paper, SXM5"),
    (r"H100 PCIe", 2000.0, _H100_PCIE, "NVIDIA H100 data sheet, PCIe"),
    (r"H200(?! NVL)", 4800.0, _H100, "NVIDIA H200 data sheet, SXM"),
    (r"NVIDIA B200", 7700.0, _B200, "NVIDIA HGX B200 specifications, 180 GB at 1,000 W"),
    (r"MI210", 1638.4, _MI210, "AMD Instinct MI210 data sheet, matrix cores"),
    (r"MI300X", 5300.0, _MI300X, "AMD Instinct MI300X data sheet"),
)


def peaks_of(devices: Sequence[dict[str, Any]], used: Sequence[int]) -> DevicePeaks | None:
    """Look up the peaks of the devices that a trace used; None where they are unknown, or not all alike."""
    names = {str(one.get("name", "")) for one in devices if one.get("id") in used} or {
        str(one.get("name", "")) for one in devices
    }
    if len(names) != 1:
        return None
    (name,) = names
    for pattern, memory, tflop_per_s, source in _PEAKS:
        if re.search(pattern, name):
            return DevicePeaks(
                device=name,
                memory_gb_per_s=memory,
                tflop_per_s=tflop_per_s,
                source=source,
                looked_up=_LOOKED_UP,
            )
    return None


def peaks_of_windows(windows: Sequence[Window]) -> DevicePeaks | None:
    """Look up the peaks of the devices that a rank's traces used."""
    found = [
        peaks_of(window.activity.trace.devices, np.unique(window.activity.trace.events.device[rows]).tolist())
        for window in windows
        for rows in [window.activity.device]
    ]
    return found[0] if all(one == found[0] for one in found) else None
