"""What a device does at most: its maker's figures, without sparsity. Devices not listed are unknown.

Figures that could not be checked are left out: of Intel's devices (their traces do not name them, and half or
all of one may be a device), GB200, MI355X but for 8 bits, and GeForce but for what stands here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from iotrace.analysis.device.kernels import Window
from iotrace.analysis.results import DevicePeaks

_FIRST, _LATER = "2026-11-23", "2026-11-26"  # when they were looked up
# TFLOP/s by type, of chips that are built into several devices, or whose row would not fit a line.
_A100 = {"bfloat16": 312.0, "float16": 312.0, "tf32": 156.0, "float32": 19.5}
_H100 = {"bfloat16": 989.4, "float16": 989.4, "tf32": 494.7, "float32": 66.9, "float8": 1978.9}
_H100_PCIE = {"bfloat16": 756.0, "float16": 756.0, "tf32": 378.0, "float32": 51.2, "float8": 1513.0}
_B200 = {"bfloat16": 2250.0, "float16": 2250.0, "tf32": 1100.0, "float32": 75.0, "float8": 4500.0}
_MI210 = {"bfloat16": 181.0, "float16": 181.0, "float32": 45.3}
# A graphics compute die, which is a device of its own: half of what the data sheet says.
_MI250X = {"bfloat16": 191.5, "float16": 191.5, "float32": 47.9}
_L40S = {"bfloat16": 362.05, "float16": 362.05, "tf32": 183.0, "float32": 91.6, "float8": 733.0}
# With sums in single precision, as torch has them: sums in half precision take half the time.
_RTX_3090 = {"bfloat16": 71.2, "float16": 71.2, "tf32": 35.6, "float32": 35.6}
_RTX_4090 = {"bfloat16": 165.2, "float16": 165.2, "tf32": 82.6, "float32": 82.6, "float8": 330.3}
_H20 = {"bfloat16": 148.0, "float16": 148.0, "tf32": 74.0, "float32": 44.0}
_MI300X = {"bfloat16": 1307.4, "float16": 1307.4, "float32": 163.4, "float8": 2614.9}
# Name in a trace, GB/s of memory, TFLOP/s by type, where they stand, when that was looked up.
_PEAKS: tuple[tuple[str, float, dict[str, float], str, str], ...] = (
    # Of the DGX Station's V100 (V100-DGXS) no data sheet tells the peak.
    (r"V100-SXM2", 900.0, {"float16": 125.0, "float32": 15.7}, "NVIDIA V100 data sheet", _FIRST),
    (r"V100-PCIE", 900.0, {"float16": 112.0, "float32": 14.0}, "NVIDIA V100 data sheet, PCIe", _FIRST),
    (r"A100-SXM4-80GB", 2039.0, _A100, "NVIDIA A100 80GB data sheet", _FIRST),
    (r"A100 80GB PCIe", 1935.0, _A100, "NVIDIA A100 80GB data sheet", _FIRST),
    (r"A100-(?:SXM4|PCIE)-40GB", 1555.0, _A100, "NVIDIA A100 data sheet", _FIRST),
    (r"H100 80GB HBM3", 3350.0, _H100, "NVIDIA H100 data sheet and Hopper white paper, SXM5", _FIRST),
    (r"H100 PCIe", 2000.0, _H100_PCIE, "NVIDIA H100 data sheet, PCIe", _FIRST),
    (r"H200(?! NVL)", 4800.0, _H100, "NVIDIA H200 data sheet, SXM", _FIRST),
    (r"NVIDIA B200", 7700.0, _B200, "NVIDIA HGX B200 specifications, 180 GB at 1,000 W", _FIRST),
    (r"H20$", 4000.0, _H20, "NVIDIA H20 specifications, 96 GB", _LATER),
    (r"L40S", 864.0, _L40S, "NVIDIA L40S data sheet", _LATER),
    (r"RTX 3090$", 936.0, _RTX_3090, "NVIDIA GA102 white paper, sums in single precision", _LATER),
    (r"RTX 4090$", 1008.0, _RTX_4090, "NVIDIA Ada white paper, sums in single precision", _LATER),
    (r"RTX 5090$", 1792.0, {"float32": 104.8}, "NVIDIA GeForce RTX 5090 specifications", _LATER),
    (r"MI250X", 1638.4, _MI250X, "AMD Instinct MI250X data sheet, a die of two", _LATER),
    (r"MI325X", 6000.0, _MI300X, "AMD Instinct MI325X data sheet", _LATER),
    (r"MI355X", 8000.0, {"float8": 5033.2}, "AMD Instinct MI355X data sheet", _LATER),
    (r"MI210", 1638.4, _MI210, "AMD Instinct MI210 data sheet, matrix cores", _FIRST),
    (r"MI300X", 5300.0, _MI300X, "AMD Instinct MI300X data sheet", _FIRST),
)


def peaks_of(devices: Sequence[dict[str, Any]], used: Sequence[int]) -> DevicePeaks | None:
    """Look up the peaks of the devices that a trace used; None where they are unknown, or not all alike."""
    names = {str(one.get("name", "")) for one in devices if one.get("id") in used} or {
        str(one.get("name", "")) for one in devices
    }
    if len(names) != 1:
        return None
    (name,) = names
    for pattern, memory, tflop_per_s, source, looked_up in _PEAKS:
        if re.search(pattern, name):
            return DevicePeaks(
                device=name,
                memory_gb_per_s=memory,
                tflop_per_s=tflop_per_s,
                source=source,
                looked_up=looked_up,
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
