"""The words of a command that set a loader: overrides of Hydra's, options."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_OF_OTHERS = re.compile(r"(?i)(?<![a-z])(val|valid|validation|test|eval|evaluation|predict)(?![a-z])")


def find_words(
    command: Sequence[str], arguments: Mapping[str, str], had: Mapping[str, str]
) -> dict[str, str]:
    """Return the words of a command that name a setting (Hydra's overrides, options), with the new value.

    Only those that have the value that the training loader `had`, not those of validation.
    """
    words: dict[str, str] = {}
    for at, word in enumerate(command):
        key, equals, value = word.partition("=")
        follows = command[at + 1] if at + 1 < len(command) else ""
        if not equals and not word.startswith("--"):
            continue
        for name, new in arguments.items():
            spelled = name.replace("_", "[-_]").replace("num[-_]", "(num[-_])?")
            if not re.fullmatch(rf"[\w.+\-/]*(?<![a-z]){spelled}[\w.]*", key) or _OF_OTHERS.search(
                key.replace("_", " ")
            ):
                continue
            if (value if equals else follows).lower() == had.get(name, "").lower():
                words[name] = f"{key}={new}" if equals else f"{word} {new}"
    return words
