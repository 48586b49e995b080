"""The page's colours in both themes, and the pattern of each cause: no meaning stands in a colour alone.

A test computes the contrasts: text 4.5 to 1, areas and lines that mean something 3 to 1 (WCAG 2.2, AA).
"""

from __future__ import annotations

# Each colour on light and on dark.
_COLOURS = {
    "bg": ("#ffffff", "#10151b"),
    "panel": ("#f5f7f9", "#19212a"),
    "ink": ("#1a2129", "#e8edf2"),
    "dim": ("#55606b", "#a3afbb"),
    "line": ("#d3dae1", "#35404b"),
    "rest": ("#7f8a95", "#6b7885"),
    "link": ("#0a5fb4", "#79bdff"),
    "plain": ("#44708f", "#86b3d1"),
    "bad": ("#b3261e", "#ff8f86"),
    "warn": ("#7d5700", "#e5b84b"),
    "good": ("#1a6b35", "#6fd391"),
    "startup": ("#4f5f70", "#9db1c6"),
    "queued": ("#7d5700", "#e5b84b"),
    "read": ("#0a5fb4", "#79bdff"),
    "decode": ("#b3261e", "#ff8f86"),
    "transform": ("#6a3fb0", "#c7abff"),
    "collate": ("#0b6b50", "#63d6ab"),
    "transport": ("#97337a", "#ff9fd8"),
    "unknown": ("#5f6468", "#b3bac1"),
    "heat": ("#f6b59f", "#7a3328"),
}
LIGHT = {name: light for name, (light, _) in _COLOURS.items()}
DARK = {name: dark for name, (_, dark) in _COLOURS.items()}
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
