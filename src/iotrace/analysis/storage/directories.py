"""Paths and the directories above them."""

from __future__ import annotations

import os
from collections.abc import Collection


def parents(path: str) -> list[str]:
    """The directories above a path, the nearest first; the root is the last."""
    found = []
    while not is_root(path):
        path = os.path.dirname(path)
        found.append(path)
    return found


def is_root(directory: str) -> bool:
    """Whether nothing lies above a directory."""
    return directory in ("", "/", "//") or directory.endswith(":")


def group_of(path: str, groups: Collection[str]) -> str | None:
    """The group of a file, by its path: itself, or a directory that it lies in."""
    within = (f"{directory}/" for directory in parents(path))
    return next((each for each in (path, *within) if each in groups), None)
