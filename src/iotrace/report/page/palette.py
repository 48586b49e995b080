"""The page's colours in both themes, and the pattern of each cause: no meaning stands in a colour alone.

A test computes the contrasts: text 4.5 to 1, areas and lines that mean something 3 to 1 (WCAG 2.2, AA).
"""

from __future__ import annotations

LIGHT = {
    "bg": "#ffffff",
    "panel": "#f5f7f9",
    "ink": "#1a2129",
    "dim": "#55606b",
    "line": "#d3dae1",
    "rest": "#7f8a95",
    "link": "#0a5fb4",
    "plain": "#44708f",
    "bad": "#b3261e",
    "warn": "#7d5700",
    "good": "#1a6b35",
    "startup": "#4f5f70",
    "queued": "#7d5700",
    "read": "#0a5fb4",
    "decode": "#b3261e",
    "transform": "#6a3fb0",
    "collate": "#0b6b50",
    "transport": "#97337a",
    "unknown": "#5f6468",
    "heat": "#f6b59f",
}
DARK = {
    "bg": "#10151b",
    "panel": "#19212a",
    "ink": "#e8edf2",
    "dim": "#a3afbb",
    "line": "#35404b",
    "rest": "#6b7885",
    "link": "#79bdff",
    "plain": "#86b3d1",
    "bad": "#ff8f86",
    "warn": "#e5b84b",
    "good": "#6fd391",
    "startup": "#9db1c6",
    "queued": "#e5b84b",
    "read": "#79bdff",
    "decode": "#ff8f86",
    "transform": "#c7abff",
    "collate": "#63d6ab",
    "transport": "#ff9fd8",
    "unknown": "#b3bac1",
    "heat": "#7a3328",
}
# Lines over a cause's colour, in a square of eight units.
PATTERNS = {
    "startup": "M0 4H8M4 0V8",
    "queued": "M0 4H8",
    "read": "M4 0V8",
    "decode": "M-2 2L2 -2M0 8L8 0M6 10L10 6",
    "transform": "M-2 6L2 10M0 0L8 8M6 -2L10 2",
    "collate": "M0 2H8M0 6H8",
    "transport": "M2 0V8M6 0V8",
    "unknown": "M0 0L8 8M8 0L0 8",
}


def variables(theme: dict[str, str]) -> str:
    """The theme as CSS variables."""
    return "".join(f"--{name}:{colour};" for name, colour in theme.items())
