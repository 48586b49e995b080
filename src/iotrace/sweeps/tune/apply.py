"""How to type a change: DataLoader's arguments, the command's own words, variables, a diff of the call."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from iotrace.sweeps.grid import IN_ORDER, PERSISTENT, PIN_MEMORY, PREFETCH, SHARING, THREADS, WORKERS

_ARGUMENTS = {
    WORKERS: "num_workers",
    PREFETCH: "prefetch_factor",
    PERSISTENT: "persistent_workers",
    PIN_MEMORY: "pin_memory",
    IN_ORDER: "in_order",
}
_LONGEST_CALL = 30  # lines


def changes(params: Mapping[str, str], command: Sequence[str], site: str | None) -> list[str]:
    """Return the lines to type for `params`, shortest first; `site` is the line of the loader's call."""
    found = []
    arguments = {_ARGUMENTS[name]: value for name, value in params.items() if name in _ARGUMENTS}
    if arguments:
        listed = ", ".join(f"{name}={value}" for name, value in arguments.items())
        found.append(f"DataLoader({listed})" + (f" at {site}" if site else ""))
        found += [f"{word} in the command" for word in _words(command, arguments)]
    if THREADS in params:
        found.append(f"OMP_NUM_THREADS={params[THREADS]} before the command")
    if SHARING in params:
        found.append(f"torch.multiprocessing.set_sharing_strategy({params[SHARING]!r})")
    if site and arguments:
        found += _diff(site, arguments)
    return found


def _words(command: Sequence[str], arguments: Mapping[str, str]) -> list[str]:
    """The words of the command that name a setting (Hydra's overrides, options), with the new value."""
    found = []
    for at, word in enumerate(command):
        for name, value in arguments.items():
            spelled = re.compile(rf"[\w.+\-]*{name.replace('_', '[-_]')}[\w.]*")
            key, equals, _ = word.partition("=")
            if not spelled.fullmatch(key):
                continue
            if equals:
                found.append(f"{key}={value}")
            elif word.startswith("--") and at + 1 < len(command):
                found.append(f"{word} {value}")
    return found


def _diff(site: str, arguments: Mapping[str, str]) -> list[str]:
    """The call's lines before and after; nothing where the file is not there or the call is no plain one."""
    file, _, number = site.rpartition(":")
    if not number.isdigit():
        return []
    try:
        text = Path(file).read_text()
        tree = ast.parse(text)
    except (OSError, ValueError, SyntaxError):
        return []
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).endswith("DataLoader")
        and node.lineno <= int(number) <= (node.end_lineno or node.lineno) < node.lineno + _LONGEST_CALL
    ]
    if len(calls) != 1:
        return []
    call, lines = calls[0], text.splitlines()
    if any(keyword.arg is None for keyword in call.keywords):
        return []  # settings come by ** from elsewhere
    first, last = call.lineno - 1, (call.end_lineno or call.lineno) - 1
    before = lines[first : last + 1]
    after = list(before)
    given = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg in arguments}
    missing = ", ".join(f"{name}={value}" for name, value in arguments.items() if name not in given)
    edits = [
        (value.lineno - 1 - first, value.col_offset, value.end_col_offset or 0, arguments[str(name)])
        for name, value in given.items()
        if value.lineno == value.end_lineno
    ]
    if missing and last != first:
        return []
    if missing:
        end = (call.end_col_offset or 0) - 1  # of what stands before the call's own closing bracket
        behind = len(before[0].encode()[:end].decode().rstrip(", ").encode())
        edits.append((0, behind, end, f", {missing}" if call.args or call.keywords else missing))
    for at, start, end, new in sorted(edits, reverse=True):
        line = after[at].encode()  # offsets are of UTF-8
        after[at] = (line[:start] + new.encode() + line[end:]).decode()
    pairs = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    return [line for old, new in pairs for line in (f"- {old.strip()}", f"+ {new.strip()}")]
