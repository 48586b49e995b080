"""Real traces that others recorded; they lie beside the checkout, not in it."""

from __future__ import annotations

from pathlib import Path

_TRACES = Path(__file__).parent.parent.parent.parent / "shared" / "traces"
SHARED = _TRACES if _TRACES.is_dir() else None


def shared_trace(name: str) -> Path:
    """The path of a shared trace; only where `SHARED` is not None."""
    assert SHARED is not None
    return SHARED / name
