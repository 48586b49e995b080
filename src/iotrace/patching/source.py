"""A file of the program: its text, its syntax tree, and where each node of it is in the text."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, TypeVar

_Node = TypeVar("_Node", bound=ast.AST)

_LONGEST_CALL = 60  # lines
_LARGEST = 8 << 20  # bytes
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n|$)")  # as Python counts them: str.splitlines knows more ends
_BLANK = (
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.COMMENT,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LOADER = "DataLoader"


class Word(NamedTuple):
    """A word of Python, and where it is in the text."""

    start: int
    end: int
    text: str


class Source:
    """A program's file; nothing is found in one that cannot be read, or is not UTF-8."""

    def __init__(self, path: str | Path) -> None:
        self.path, self.text = Path(path), ""
        self.tree: ast.Module | None = None
        try:
            if self.path.stat().st_size <= _LARGEST:
                self.text = self.path.read_bytes().decode()
                self.tree = ast.parse(self.text.removeprefix("\ufeff"))
        except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
            pass

    @cached_property
    def _lines(self) -> list[str]:
        return _LINE.findall(self.text)

    @cached_property
    def _starts(self) -> list[int]:
        starts, at = [], 0
        for line in self._lines:
            starts.append(at)
            at += len(line)
        return starts

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        """Each node's parent."""
        nodes = ast.walk(self.tree) if self.tree else ()
        return {child: node for node in nodes for child in ast.iter_child_nodes(node)}

    @property
    def newline(self) -> str:
        """How its lines end."""
        first = self._lines[0] if self._lines else ""
        return first[len(first.rstrip("\r\n")) :] or "\n"

    @property
    def longest_line(self) -> int:
        """How many characters its longest line has."""
        return max((len(line.rstrip("\r\n")) for line in self._lines), default=0)

    def line_text(self, line: int) -> str:
        """Return a line, counted from 1, without its end."""
        return self._lines[line - 1].rstrip("\r\n") if 0 < line <= len(self._lines) else ""

    def offset(self, line: int, column: int) -> int:
        """Return where a node's position is in the text; columns are bytes of UTF-8."""
        text = self._lines[line - 1]
        mark = line == 1 and text.startswith("\ufeff")
        before = text.removeprefix("\ufeff").encode()[:column].decode()
        return self._starts[line - 1] + len(before) + mark

    def span(self, node: ast.expr | ast.keyword) -> tuple[int, int]:
        """Return where a node begins in the text, and where it ends."""
        return self.offset(node.lineno, node.col_offset), self.offset(
            node.end_lineno or node.lineno, node.end_col_offset or 0
        )

    def line_at(self, offset: int) -> int:
        """Return the line, counted from 1, of a place in the text."""
        return sum(start <= offset for start in self._starts)

    def nodes(self, kind: type[_Node]) -> Iterator[_Node]:
        """Yield the nodes of a kind."""
        return (node for node in ast.walk(self.tree) if isinstance(node, kind)) if self.tree else iter(())

    def around(self, node: ast.AST, kinds: tuple[type[_Node], ...]) -> _Node | None:
        """Return the innermost node of these kinds around another one."""
        above = self.parents.get(node)
        while above is not None and not isinstance(above, kinds):
            above = self.parents.get(above)
        return above

    def calls_at(self, name: str, line: int) -> list[ast.Call]:
        """Return the calls of `name`, or of what ends so, that cover a line."""
        return [
            call
            for call in self.nodes(ast.Call)
            if call.lineno <= line <= (call.end_lineno or call.lineno) < call.lineno + _LONGEST_CALL
            and self._calls(call.func, name)
        ]

    def call(self, name: str, line: int) -> ast.Call | None:
        """Return the one call of `name`, or of what ends so, that covers a line."""
        calls = self.calls_at(name, line)
        return calls[0] if len(calls) == 1 else None

    def _calls(self, func: ast.expr, name: str) -> bool:
        """Whether a callee is `name` by its own or another name, or a class made of it."""
        said = ast.unparse(func)
        if said.endswith(name):
            return True
        if said == "super().__init__":
            owner = self.around(func, (ast.ClassDef,))
            return owner is not None and any(self._calls(base, name) for base in owner.bases)
        if not isinstance(func, ast.Name):
            return False
        for imported in self.nodes(ast.ImportFrom):
            if any(alias.asname == said and alias.name.endswith(name) for alias in imported.names):
                return True
        for owner in self.nodes(ast.ClassDef):
            if owner.name == said:
                return any(
                    isinstance(base, ast.Name | ast.Attribute) and ast.unparse(base).endswith(name)
                    for base in owner.bases
                )
        return self.find_partial(said, name) is not None

    def find_partial(self, variable: str, name: str) -> ast.Call | None:
        """Return the ``partial(name, ...)`` that a variable is set to, if it is set once."""
        stores = [
            node for node in self.nodes(ast.Name) if node.id == variable and isinstance(node.ctx, ast.Store)
        ]
        made = self.parents.get(stores[0]) if len(stores) == 1 else None
        if not isinstance(made, ast.Assign) or not isinstance(made.value, ast.Call):
            return None
        call = made.value
        of = call.args[0] if call.args else None
        is_partial = ast.unparse(call.func) in ("partial", "functools.partial")
        return call if is_partial and of is not None and ast.unparse(of).endswith(name) else None

    def options(self, dest: str) -> list[str]:
        """The spellings of the command line option that argparse or click store as `dest`."""
        return next((spelled for _, spelled in self.option_calls(dest)), [])

    def option_calls(self, dest: str) -> Iterator[tuple[ast.Call, list[str]]]:
        """Yield what declares an option that is stored as `dest`, and the spellings of it."""
        for node in self.nodes(ast.Call):
            if not ast.unparse(node.func).endswith(("add_argument", "option")):
                continue
            words = [each.value for each in node.args if isinstance(each, ast.Constant)]
            spelled = [word for word in words if isinstance(word, str) and word.startswith("-")]
            long = [word for word in spelled if word.startswith("--")] or spelled
            named = [each.value for each in node.keywords if each.arg == "dest"]
            stored = (
                named[0].value
                if named and isinstance(named[0], ast.Constant)
                else long[0].lstrip("-").replace("-", "_")
                if long
                else None
            )
            if long and stored == dest:
                yield node, spelled

    def of_hydra(self, name: str, line: int) -> bool:
        """Whether `name` is Hydra's configuration, in the function around a line."""
        return any(
            node.lineno <= line <= (node.end_lineno or node.lineno) and is_hydra(node, name)
            for node in self.nodes(ast.FunctionDef)
        )

    def end_of_line(self, offset: int) -> int:
        """Return where the line of a place in the text ends, before its newline."""
        line = self.line_at(offset)
        return self._starts[line - 1] + len(self.line_text(line))

    def tokens(self, call: ast.Call) -> list[Word]:
        """Return the words of a call; comments and ends of lines are none."""
        start, end = self.span(call)
        # A call that goes on in further lines is no statement by itself: brackets hold it together.
        text = f"({self.text[start:end]})"
        starts = [0]
        for line in _LINE.findall(text):
            starts.append(starts[-1] + len(line))
        words = []
        for token in tokenize.generate_tokens(io.StringIO(text, newline="").readline):
            if token.type not in _BLANK:
                at, to = (starts[line - 1] + column for line, column in (token.start, token.end))
                words.append(Word(start + at - 1, start + to - 1, token.string))
        return words[1:-1]


def is_hydra(function: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> bool:
    """Whether Hydra calls a function with its configuration as the argument `name`."""
    first = function.args.args[0].arg if function.args.args else None
    return first == name and hydra_main(function) is not None


def hydra_main(function: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.expr | None:
    """Return the decorator that makes Hydra call a function."""
    return next((each for each in function.decorator_list if "hydra.main" in ast.unparse(each)), None)


def split_chain(value: ast.expr) -> list[str]:
    """The names of ``a.b.c`` or ``a["b"].c``; none of what is built otherwise."""
    if isinstance(value, ast.Name):
        return [value.id]
    if isinstance(value, ast.Attribute):
        before = split_chain(value.value)
        return [*before, value.attr] if before else []
    if isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Constant):
        before = split_chain(value.value)
        return [*before, value.slice.value] if before and isinstance(value.slice.value, str) else []
    return []


def at_line(source: Source, node: ast.AST) -> str:
    """Say where a node is: file and line."""
    return f"{source.path.name}:{getattr(node, 'lineno', 0)}"
