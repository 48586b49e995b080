"""Read paths that other packages add to the agent's table, by entry points; no package is imported for them.

An entry point's value is the call, ``mylib.reader:Reader.read``. Its name says the rest, between semicolons:
a label that makes it unique, then any of ``file FINDER``, ``size FINDER``, ``threads`` and ``each``.
"""

from __future__ import annotations

import re
from operator import attrgetter

from iotrace.session import names
from iotrace.session.manifest import NotCaptured

# As `agent.readpaths.finders` reads them.
_FINDER = re.compile(r"(\d+(:\w+)?|result)(\.\w+(\(\))?)*|length")
_CALL = re.compile(r"\w+(\.\w+)*")
_REMEDY = "see docs/readpaths.md"


def added_read_paths() -> tuple[dict[str, str], list[NotCaptured]]:
    """Return the agent's setting with the rows that entry points add, and those that are no rows."""
    from importlib.metadata import entry_points

    rows, refused = [], []
    found = entry_points(group=names.READ_PATHS_GROUP)
    for point in sorted(found, key=attrgetter("value", "name")):
        module, _, call = point.value.partition(":")
        row, why = _row(point.name)
        if not why and not (_CALL.fullmatch(module.strip()) and _CALL.fullmatch(call.strip())):
            why = "its value is no MODULE:CALL"
        if why:
            refused.append(NotCaptured(f"the read path {point.value}", f"{why} (entry point)", _REMEDY))
        else:
            rows.append("\t".join((module.strip(), call.strip(), *row)))
    return ({names.READ_PATHS: "\n".join(rows)} if rows else {}), refused


def _row(name: str) -> tuple[list[str], str]:
    """Return the finders of file and size and the words in an entry point's name, or why that says none."""
    finders = {"file": "", "size": "result"}
    words = []
    for field in name.split(";")[1:]:
        key, _, finder = field.strip().partition(" ")
        if key in ("threads", "each") and not finder:
            words.append(key)
        elif key in finders and (_FINDER.fullmatch(finder) or (key, finder) == ("size", "unknown")):
            finders[key] = "" if finder == "unknown" else finder
        else:
            return [], f"'{field.strip()}' is no field of a read path"
    return [*finders.values(), " ".join(words)], ""
