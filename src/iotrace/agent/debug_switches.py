"""Record the switches for debugging that are on as the program trains: each costs time in all steps."""

from __future__ import annotations

import os
import re
import sys
from typing import Any

from iotrace.session.guard import ours

_MOST_FILES, _MOST_BYTES = 200, 1_000_000
_OURS = os.path.join(__file__.rpartition(f"{os.sep}agent{os.sep}")[0], "")
_LIBRARIES = ("-packages/", "/lib/python", _OURS)
_WORDS = {"anomaly": r"detect_anomaly|set_anomaly_enabled", "deterministic": r"deterministic"}


def debug_switches() -> dict[str, Any] | None:
    """Return a record of those that are on, each with the line of the program that names it; None of none.

    The line is empty where the program's modules have none, or more than one: which it was is not known.
    """
    torch: Any = sys.modules["torch"]
    cuda, distributed = (sys.modules.get(f"torch.{name}") for name in ("cuda", "distributed"))
    on = {
        "anomaly": torch.is_anomaly_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "launch_blocking": os.environ.get("CUDA_LAUNCH_BLOCKING") == "1" and _says(cuda, "is_initialized"),
        "distributed_detail": os.environ.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL"
        and _says(distributed, "is_initialized"),
    }
    found = {name: _place(_WORDS[name]) if name in _WORDS else "" for name, is_on in on.items() if is_on}
    return {"type": "debug_switches", "places": found} if found else None


def _says(module: Any, name: str) -> bool:
    return bool(getattr(module, name, bool)())


def _place(words: str) -> str:
    """Find the one line of the program's modules that has one of `words`, and turns nothing off."""
    named = re.compile(rf"^[^#\n]*\b\w*(?:{words})\w*.*$", re.MULTILINE)
    files = {getattr(module, "__file__", None) or "" for module in [*sys.modules.values()]}
    own = sorted(
        file for file in files if file.endswith(".py") and not any(part in file for part in _LIBRARIES)
    )
    places: list[str] = []
    for file in own[:_MOST_FILES]:
        try:
            with open(file, encoding="utf-8", errors="replace") as source:
                text = source.read(_MOST_BYTES)
        except ours(OSError):
            continue
        found = [match for match in named.finditer(text) if "False" not in match[0]]
        places += [f"{os.path.abspath(file)}:{text.count(chr(10), 0, match.start()) + 1}" for match in found]
    return places[0] if len(places) == 1 else ""
