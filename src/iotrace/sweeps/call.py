"""The call that makes a loader, in a file that can be read: where its settings come from, and a diff."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

_LONGEST_CALL = 30  # lines
_LONGEST_LINE = 70  # characters: of a longer one the call alone is shown
_Edit = tuple[int, int, int, str]  # line, first and behind the last byte, what stands there instead


class Source:
    """A program's file; nothing is found in one that cannot be read."""

    def __init__(self, path: str) -> None:
        try:
            self.text = Path(path).read_text()
            self.tree: ast.Module | None = ast.parse(self.text)
        except (OSError, ValueError, SyntaxError, RecursionError):
            self.text, self.tree = "", None

    def nodes(self, kind: type[ast.AST]) -> Iterator[ast.AST]:
        """Yield the nodes of a kind."""
        return (node for node in ast.walk(self.tree) if isinstance(node, kind)) if self.tree else iter(())

    def call(self, name: str, line: int) -> ast.Call | None:
        """Find the one call of `name`, or of what ends so, that covers a line."""
        found = [
            node
            for node in self.nodes(ast.Call)
            if isinstance(node, ast.Call)
            and ast.unparse(node.func).endswith(name)
            and node.lineno <= line <= (node.end_lineno or node.lineno) < node.lineno + _LONGEST_CALL
        ]
        return found[0] if len(found) == 1 else None

    def options(self, dest: str) -> list[str]:
        """The spellings of the command line option that argparse or click store as `dest`."""
        for node in self.nodes(ast.Call):
            assert isinstance(node, ast.Call)
            if not ast.unparse(node.func).endswith(("add_argument", "option")):
                continue
            words = [each.value for each in node.args if isinstance(each, ast.Constant)]
            spelled = [word for word in words if isinstance(word, str) and word.startswith("-")]
            long = [word for word in spelled if word.startswith("--")] or spelled
            if long and long[0].lstrip("-").replace("-", "_") == dest:
                return spelled
        return []

    def of_hydra(self, name: str, line: int) -> bool:
        """Whether `name` is Hydra's configuration, in the function around a line."""
        for node in self.nodes(ast.FunctionDef):
            assert isinstance(node, ast.FunctionDef)
            if node.lineno <= line <= (node.end_lineno or node.lineno) and node.args.args:
                decorated = any("hydra.main" in ast.unparse(each) for each in node.decorator_list)
                if decorated and node.args.args[0].arg == name:
                    return True
        return False


def chain_of(value: ast.expr) -> list[str]:
    """The names of ``a.b.c`` or ``a["b"].c``; none of what is built otherwise."""
    if isinstance(value, ast.Name):
        return [value.id]
    if isinstance(value, ast.Attribute):
        before = chain_of(value.value)
        return [*before, value.attr] if before else []
    if isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Constant):
        before = chain_of(value.value)
        return [*before, value.slice.value] if before and isinstance(value.slice.value, str) else []
    return []


def diff(text: str, call: ast.Call, arguments: Mapping[str, str]) -> list[str]:
    """The call's lines before and after; nothing where the call is no plain one."""
    if any(keyword.arg is None for keyword in call.keywords):
        return []  # settings come by ** from elsewhere
    given = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg in arguments}
    if any(value.lineno != value.end_lineno for value in given.values()):
        return []
    edits: list[_Edit] = [
        (value.lineno, value.col_offset, value.end_col_offset or 0, arguments[str(name)])
        for name, value in given.items()
    ]
    missing = ", ".join(f"{name}={value}" for name, value in arguments.items() if name not in given)
    lines = text.splitlines()
    if missing:
        place = _end_of_arguments(call, lines)
        if place is None:
            return []
        edits.append((*place, f", {missing}" if call.args or call.keywords else missing))
    changed: dict[int, str] = {}
    for at, start, end, new in sorted(edits, reverse=True):
        line = changed.get(at, lines[at - 1]).encode()  # offsets are of UTF-8
        changed[at] = (line[:start] + new.encode() + line[end:]).decode()
    pairs = [(lines[at - 1], changed[at]) for at in sorted(changed) if changed[at] != lines[at - 1]]
    if len(pairs) == 1 and call.lineno == call.end_lineno and len(pairs[0][0].strip()) > _LONGEST_LINE:
        old, new = pairs[0]  # the call alone
        before, behind = old.encode()[: call.col_offset], old.encode()[call.end_col_offset :]
        old, new = (each.encode()[len(before) :].removesuffix(behind).decode() for each in (old, new))
        pairs = [(old, new)]
    return [line for old, new in pairs for line in (f"- {old.strip()}", f"+ {new.strip()}")]


def _end_of_arguments(call: ast.Call, lines: list[str]) -> tuple[int, int, int] | None:
    """Where a further argument goes; None where that is not plain."""
    if call.keywords:
        last = max(call.keywords, key=lambda each: (each.end_lineno or 0, each.end_col_offset or 0))
        return last.end_lineno or 0, last.end_col_offset or 0, last.end_col_offset or 0
    if call.lineno != call.end_lineno:
        return None
    end = (call.end_col_offset or 0) - 1  # of what stands before the call's own closing bracket
    before = lines[call.lineno - 1].encode()[:end].decode()
    return call.lineno, len(before.rstrip(", ").encode()), end
