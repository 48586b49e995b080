"""What a patch changes: expressions and calls of the source, values of YAML files, words of the command."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from iotrace.patching.edits import Edit, added, edited, is_exact, replaced
from iotrace.patching.kinds import UnknownError
from iotrace.patching.program import Program
from iotrace.patching.source import Source
from iotrace.patching.yaml_keys import Scalar, YamlFile


class ChangedFile(NamedTuple):
    """The text of a file before and after, and the lines that change, as they are counted before."""

    path: Path
    before: str
    after: str
    lines: list[int]


class Changes:
    """Collects the edits of a patch; files that were written after `began_ns` get none."""

    def __init__(self, program: Program, began_ns: int) -> None:
        self.program, self._began_ns = program, began_ns
        self.words: dict[str, str] = {}
        self._nodes: dict[Path, list[tuple[ast.AST, dict[str, str]]]] = {}
        self._scalars: dict[Path, dict[Scalar, str]] = {}
        self._functions: dict[Path, dict[int, str]] = {}

    def refuse(self, source: Source) -> None:
        """Refuse a file that is not the user's, cannot be read, or is another than the recorded run had."""
        if not self.program.is_own(source.path):
            raise UnknownError(f"the place is in {source.path}, which is not the program's own source")
        if source.tree is None:
            raise UnknownError(f"{source.path} cannot be read as Python in UTF-8")
        if source.path.stat().st_mtime_ns > self._began_ns:
            raise UnknownError(_changed(source.path))

    def note(self, source: Source, node: ast.AST, name: str, value: str) -> None:
        """Have an argument of a call, or (`name` "") an expression by itself, become `value`."""
        noted = self._nodes.setdefault(source.path, [])
        for other, arguments in noted:
            if other is node:
                arguments[name] = value
                return
        noted.append((node, {name: value}))

    def set_scalar(self, file: YamlFile, scalar: Scalar, value: str) -> None:
        """Have a value of a YAML file become another one, as YAML writes it.

        Raises:
            UnknownError: the file is another than the recorded run had.
        """
        if file.path.stat().st_mtime_ns > self._began_ns:
            raise UnknownError(_changed(file.path))
        self._scalars.setdefault(file.path, {})[scalar] = value

    def add_function(self, source: Source, near: ast.AST, name: str, text: str) -> None:
        """Put a function before the statement of the module that `near` is in; one for all calls of a file.

        Raises:
            UnknownError: the file has such a name already.
        """
        used = {node.id for node in source.nodes(ast.Name)}
        used |= {node.name for node in source.nodes(ast.FunctionDef)}
        if name in used or source.tree is None:
            raise UnknownError(f"{source.path.name} has a {name} of its own")
        top = near
        while source.parents[top] is not source.tree:
            top = source.parents[top]
        assert isinstance(top, ast.stmt)
        before = [source.tree.body.index(top), *self._functions.get(source.path, {})]
        self._functions[source.path] = {min(before): text}

    @property
    def command(self) -> str | None:
        """Return the words in which the command sets what the files do not."""
        return " ".join(self.words.values()) or None

    def files(self) -> list[ChangedFile]:
        """Return the files that change.

        Raises:
            UnknownError: one would change in more than the settings.
        """
        files = []
        for path, notes in sorted(self._nodes.items()):
            source = self.program.source(path)
            edits = [edit for node, arguments in notes for edit in _edits(source, node, arguments)]
            lines = [source.line_at(edit.start) for edit in edits]
            functions = self._functions.get(path, {})
            edits += [_before(source, index, text) for index, text in functions.items()]
            after = edited(source.text, edits)
            if not is_exact(source, after, notes, functions):
                raise UnknownError(f"{path.name} cannot be changed without changing more")
            files.append(ChangedFile(path, source.text, after, lines))
        for path, scalars in sorted(self._scalars.items()):
            text = YamlFile(path).text
            edits = [Edit(scalar.start, scalar.end, new) for scalar, new in scalars.items()]
            lines = [text.count("\n", 0, edit.start) + 1 for edit in edits]
            files.append(ChangedFile(path, text, edited(text, edits), lines))
        return [file for file in files if file.before != file.after]


def _edits(source: Source, node: ast.AST, arguments: Mapping[str, str]) -> list[Edit]:
    own = arguments.get("")
    if own is not None:
        assert isinstance(node, ast.expr)
        return [replaced(source, node, own)]
    assert isinstance(node, ast.Call)
    return added(source, node, arguments)


def _before(source: Source, index: int, function: str) -> Edit:
    """Put a function before a statement of the module, and before its decorators."""
    assert source.tree is not None
    top = source.tree.body[index]
    first = min([top.lineno, *(each.lineno for each in getattr(top, "decorator_list", []))])
    at = source.offset(first, 0)
    return Edit(at, at, f"{function}\n\n".replace("\n", source.newline))


def _changed(path: Path) -> str:
    return f"{path.name} was changed after the recorded run began: record it again"
