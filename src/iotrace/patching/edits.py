"""Edits of a text, exact to the character; a unified diff of them.

A change of a call is checked: the program that it gives has the same syntax tree, but for that argument.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from iotrace.patching.source import Source, Word

_LINE = re.compile(r"[^\n]*\n|[^\n]+$")
_SHORT_LINE = 79  # characters
_QUOTED = re.compile(r"[\x00-\x1f\"\\\x7f]")


class Edit(NamedTuple):
    """The text from `start` to `end` becomes `new`."""

    start: int
    end: int
    new: str


def edited(text: str, edits: Iterable[Edit]) -> str:
    """Carry out edits, which do not overlap."""
    for edit in sorted(edits, reverse=True):
        text = text[: edit.start] + edit.new + text[edit.end :]
    return text


def replaced(source: Source, node: ast.expr, new: str) -> Edit:
    """Put another expression in the place of a node."""
    return Edit(*source.span(node), new)


def added(source: Source, call: ast.Call, arguments: Mapping[str, str]) -> list[Edit]:
    """Add keyword arguments after a call's last one, laid out as the others are."""
    texts = [f"{name}={value}" for name, value in arguments.items()]
    words = source.tokens(call)
    close = words[-1].start
    if not call.args and not call.keywords:
        return [Edit(close, close, ", ".join(texts))]
    has_comma = words[-2].text == ","
    end = words[-3 if has_comma else -2].end
    first = _first_of_last(words[: -2 if has_comma else -1])
    indent = source.text[source.text.rfind("\n", 0, first) + 1 : first]
    if indent.strip() or source.line_at(first) == call.lineno:
        return [Edit(end, end, _behind(source, call, end, ", ".join(texts)))]
    # Each argument begins a line of its own.
    lines = [f"{source.newline}{indent}{text}" for text in texts]
    if source.line_at(close) == source.line_at(words[-2].end):  # the bracket closes after the last one
        return [Edit(end, end, "".join(f",{line}" for line in lines))]
    behind = source.end_of_line(words[-2].end)  # after a comment, too
    if has_comma:
        return [Edit(behind, behind, "".join(f"{line}," for line in lines))]
    if behind == end:
        return [Edit(end, end, "".join(f",{line}" for line in lines))]
    return [Edit(end, end, ","), Edit(behind, behind, ",".join(lines))]


def _behind(source: Source, call: ast.Call, end: int, arguments: str) -> str:
    """Return arguments to go on with in a line; in the next one where it would become the file's longest."""
    line = source.line_at(end)
    text = source.line_text(line)
    if line == call.lineno or len(text) + len(arguments) + 2 <= max(_SHORT_LINE, source.longest_line):
        return f", {arguments}"
    return f",{source.newline}{text[: len(text) - len(text.lstrip())]}{arguments}"


def _first_of_last(words: Sequence[Word]) -> int:
    """Return where the last argument begins, of the words of a call before its closing bracket."""
    depth = 0
    for at in range(len(words) - 1, -1, -1):
        text = words[at].text
        depth += (text in (")", "]", "}")) - (text in ("(", "[", "{"))
        if depth < 0 or (text == "," and not depth):
            return words[at + 1].start
    return words[0].start


def is_exact(
    before: Source,
    after: str,
    changes: Iterable[tuple[ast.AST, Mapping[str, str]]],
    functions: Mapping[int, str] = MappingProxyType({}),
) -> bool:
    """Whether a new text differs from the old one in these alone: values of nodes, keywords of calls.

    A change of a value names it ``""``. `functions` are put before statements of the module, by their index.
    The nodes of `before` are changed.
    """
    assert before.tree is not None
    for index in sorted(functions, reverse=True):
        before.tree.body[index:index] = ast.parse(functions[index]).body
    for node, wanted in changes:
        for name, value in wanted.items():
            new = ast.parse(value, mode="eval").body
            if not name:
                _put(before, node, new)
            else:
                assert isinstance(node, ast.Call)
                node.keywords.append(ast.keyword(arg=name, value=new))
    try:
        tree = ast.parse(after.removeprefix("\ufeff"))
    except (SyntaxError, ValueError):
        return False
    return ast.dump(tree) == ast.dump(before.tree)


def _put(source: Source, node: ast.AST, new: ast.expr) -> None:
    """Replace a node by another."""
    above = source.parents[node]
    for name, value in ast.iter_fields(above):
        if value is node:
            setattr(above, name, new)
        elif isinstance(value, list):
            value[:] = [new if each is node else each for each in value]
    source.parents[new] = above


def unified(name: str, before: str, after: str) -> str:
    """Write a unified diff as git reads it; `name` is the path from the root of the tree."""
    old, new = _LINE.findall(before), _LINE.findall(after)
    written: list[str] = []
    for line in difflib.unified_diff(old, new, _named("a/" + name), _named("b/" + name)):
        written.append(line)
        if not line.endswith("\n"):
            written.append("\n\\ No newline at end of file\n")
    return "".join(written)


def _named(path: str) -> str:
    """Quote a path as git does; one with a space ends with a tab, so that nothing is cut off."""
    if not _QUOTED.search(path):
        return f"{path}\t" if " " in path else path
    escaped = path.encode().decode("latin-1")
    return '"' + "".join(_escaped(character) for character in escaped) + '"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    return character if " " <= character <= "~" else f"\\{ord(character):03o}"
