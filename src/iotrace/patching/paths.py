"""Where the program names a path: its source, its configuration or its command, in one place only.

And how its source puts a path together, and what it does with it.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from typing import NamedTuple

from iotrace.patching import bindings
from iotrace.patching.hydra import HydraConfig
from iotrace.patching.kinds import UnknownError
from iotrace.patching.program import Program
from iotrace.patching.source import Source, at_line, hydra_main
from iotrace.patching.yaml_keys import Scalar, YamlFile

_PATH = ("Path", "pathlib.Path", "PurePath", "pathlib.PurePath")
_JOINS = (*_PATH, "os.path.join", "join")
_SAME = ("str", "os.fspath", "os.path.abspath", "os.path.realpath", "os.path.normpath")
_SAME_METHODS = ("resolve", "absolute", "as_posix")
_SPEAKS = ("print", "getenv", "environ.get", "debug", "info", "warning", "error", "warn", "exception")
_TEXTS = ("help", "description", "epilog", "metavar")
_DEEPEST = 20
_LONGEST = 4096  # characters of a path


class Part(NamedTuple):
    """The expression that gives a path's last part, after `before` ("": all of the path)."""

    source: Source
    node: ast.expr
    before: str


class InFile(NamedTuple):
    """A value of a YAML file."""

    file: YamlFile
    scalar: Scalar


class Word(NamedTuple):
    """A word of the command; `given` comes before the path in it."""

    given: str


Place = Part | InFile | Word


class Paths:
    """Finds what names a path in the files of a program."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def place(self, path: str) -> Place:
        """Return the one place that names a path.

        Raises:
            UnknownError: there is none, or several, or what a place does with it is not known.
        """
        wanted, shown = os.path.realpath(path), os.path.relpath(path, self._program.cwd)
        in_command, in_source = list(self._words(wanted)), self._parts(wanted)
        named: list[Place] = [*in_command, *in_source, *self._scalars(wanted)]
        if not named:
            raise UnknownError(f"neither the program's source nor its command says {shown} as it is")
        if len(named) > 1:
            places = ", ".join(map(_shown, named))
            raise UnknownError(f"{shown} is named in {len(named)} places: {places}")
        if isinstance(named[0], Part):
            name = find_name(named[0].source, named[0].node)
            for source in self._program.files() if name else ():
                for node in uses(source, name):
                    if not begins(source, node):
                        raise UnknownError(f"its path is a part of another one at {at_line(source, node)}")
        return named[0]

    def gives(self, source: Source, node: ast.expr, path: str) -> bool:
        """Whether an expression of the source gives a path, as it is written out there."""
        return self._is(self._text(source, node), os.path.realpath(path))

    def _is(self, text: str | None, wanted: str) -> bool:
        if not text or len(text) > _LONGEST or "\0" in text or "\n" in text:
            return False
        return os.path.realpath(self._program.cwd / text) == wanted

    def _words(self, wanted: str) -> Iterator[Word]:
        argv = self._program.argv
        for at, word in enumerate(argv[1:], 1):
            name, equals, value = word.partition("=")
            if equals and self._is(value, wanted):
                yield Word(f"{name}=")
            elif self._is(word, wanted):
                yield Word(f"{argv[at - 1]} " if argv[at - 1].startswith("-") else "")

    def _parts(self, wanted: str) -> list[Part]:
        parts: dict[int, Part] = {}
        for source in self._program.files():
            for node in source.nodes(ast.expr):
                if (
                    isinstance(node, ast.Constant | ast.BinOp | ast.Call)
                    and self._is(self._text(source, node), wanted)
                    and begins(source, node)
                ):
                    part = self._part(source, node)
                    if part is None:
                        raise UnknownError(f"its path is computed at {at_line(source, node)}")
                    if not self._is_overruled(part):
                        parts[id(part.node)] = part
        return list(parts.values())

    def _scalars(self, wanted: str) -> Iterator[InFile]:
        for file in self._yaml_files():
            for _, scalar in file.values():
                if scalar is not None and self._is(scalar.value, wanted):
                    yield InFile(file, scalar)

    def _yaml_files(self) -> list[YamlFile]:
        """Return the configuration that the program's text, or its command, names."""
        names, files = set(self._program.argv[1:]), {}
        for source in self._program.files():
            names |= {
                text
                for node in source.nodes(ast.Constant)
                if isinstance(node.value, str) and (text := node.value).endswith((".yaml", ".yml"))
            }
            for function in source.nodes(ast.FunctionDef):
                if hydra_main(function) is not None:
                    config = HydraConfig(source, function, self._program)
                    files.update({file.path.resolve(): file for file in config.files()})
        for name in names:
            path = self._program.cwd / name.rpartition("=")[2]
            if path.suffix in (".yaml", ".yml") and path.is_file():
                files.setdefault(path.resolve(), YamlFile(path))
        return list(files.values())

    def _is_overruled(self, part: Part) -> bool:
        """Whether a part is the default of an option that the command gives."""
        above = part.source.parents.get(find_whole(part.source, part.node))
        call = part.source.parents.get(above) if isinstance(above, ast.keyword) else None
        if not isinstance(call, ast.Call) or not ast.unparse(call.func).endswith(("add_argument", "option")):
            return False
        words = [each.value for each in call.args if isinstance(each, ast.Constant)]
        spelled = [word for word in words if isinstance(word, str) and word.startswith("-")]
        return self._program.given(spelled) is not None

    def _text(self, source: Source, node: ast.expr, depth: int = 0) -> str | None:
        """Return the path that an expression gives, as far as it is written out; relative ones stay so."""
        if depth > _DEEPEST:
            return None
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, str) else None
        if isinstance(node, ast.Name):
            if node.id == "__file__":
                return str(source.path)
            bound = self._bound(source, node)
            return None if bound is None else self._text(*bound, depth + 1)
        if isinstance(node, ast.Attribute) and node.attr == "parent":
            text = self._text(source, node.value, depth + 1)
            return None if text is None else os.path.dirname(text)
        parts = [self._text(source, each, depth + 1) for each in joined(node)]
        known = [text for text in parts if text is not None]
        return os.path.join(*known) if parts and len(known) == len(parts) else None

    def _part(self, source: Source, node: ast.expr, depth: int = 0) -> Part | None:
        if depth > _DEEPEST:
            return None
        if isinstance(node, ast.Constant):
            return Part(source, node, "")
        if isinstance(node, ast.Name):
            bound = self._bound(source, node)
            return None if bound is None else self._part(*bound, depth + 1)
        parts = joined(node)
        if len(parts) < 2:
            return self._part(source, parts[0], depth + 1) if parts else None
        before = [self._text(source, each) or "" for each in parts[:-1]]
        return Part(source, parts[-1], os.path.join(*before))

    def _bound(self, source: Source, node: ast.Name) -> tuple[Source, ast.expr] | None:
        """Return what a name is set to, where that is once, in this module or one of the program's."""
        _, bound = bindings.of_name(source, node, node.id)
        if len(bound) == 1 and bound[0].imported is not None:
            module, level, member = bound[0].imported
            inner = self._program.module(source, module, level) if member else None
            if inner is None or inner.tree is None:
                return None
            source, (_, bound) = inner, bindings.of_name(inner, inner.tree, member)
        if len(bound) != 1 or bound[0].value is None:
            return None
        return source, bound[0].value


def _shown(place: Place) -> str:
    if isinstance(place, Part):
        return at_line(place.source, place.node)
    if isinstance(place, InFile):
        content = place.file.text
        return f"{place.file.path.name}:{content.count(chr(10), 0, place.scalar.start) + 1}"
    return "the command"


def joined(node: ast.AST) -> list[ast.expr]:
    """Return the expressions that a path is put together of; none of what is another call."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return [node.left, node.right]
    if not isinstance(node, ast.Call) or node.keywords or any(isinstance(a, ast.Starred) for a in node.args):
        return []
    name = ast.unparse(node.func)
    if name in _JOINS or (name in _SAME and len(node.args) == 1):
        return node.args
    if isinstance(node.func, ast.Attribute) and not node.args and node.func.attr in _SAME_METHODS:
        return [node.func.value]
    return []


def find_whole(source: Source, node: ast.expr) -> ast.AST:
    """Return the whole of the path that an expression is a part of."""
    whole: ast.AST = node
    while True:
        above = source.parents.get(whole)
        if isinstance(above, ast.Attribute):
            above = source.parents[above]
        if above is None or whole not in joined(above):
            return whole
        whole = above


def begins(source: Source, node: ast.AST) -> bool:
    """Whether a path comes first in what it is joined to, if to anything."""
    above = source.parents.get(node)
    if isinstance(above, ast.FormattedValue):
        texts = source.parents[above]
        assert isinstance(texts, ast.JoinedStr)
        behind = texts.values[1] if len(texts.values) > 1 else None
        goes_on = behind is None or (isinstance(behind, ast.Constant) and str(behind.value).startswith("/"))
        return texts.values[0] is above and goes_on
    if isinstance(above, ast.BinOp) and isinstance(above.op, ast.Add | ast.Mod):
        return False
    if isinstance(above, ast.Call) and node is not above.func:
        name = ast.unparse(above.func)
        is_joined = name in _JOINS or name.endswith((".joinpath", ".with_name"))
        return not is_joined or (name in _JOINS and node is above.args[0])
    return not isinstance(above, ast.BinOp) or node is above.left


def uses(source: Source, name: str) -> Iterator[ast.expr]:
    """Yield what reads a variable, an attribute, or an entry of a dict, by its name."""
    for node in source.nodes(ast.expr):
        is_name = isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
        is_attribute = isinstance(node, ast.Attribute) and node.attr == name
        key = node.slice if isinstance(node, ast.Subscript) else None
        if is_name or is_attribute or (isinstance(key, ast.Constant) and key.value == name):
            yield node


def find_name(source: Source, part: ast.expr) -> str:
    """Return the name that a path is given, if any.

    Raises:
        UnknownError: it is no path to be opened, but compared, printed, or a key.
    """
    node = find_whole(source, part)
    above = source.parents.get(node)
    while isinstance(above, ast.List | ast.Tuple):
        outer = source.parents.get(above)
        if isinstance(outer, ast.Assign) and isinstance(outer.targets[0], ast.Tuple):  # a, b = "data", 4
            targets = outer.targets[0].elts
            pairs = zip(above.elts, targets, strict=False) if len(targets) == len(above.elts) else ()
            own = next((target for value, target in pairs if value is node), None)
            if isinstance(own, ast.Name):
                return own.id
        node, above = above, outer
    place = at_line(source, part)
    if isinstance(above, ast.JoinedStr):
        raise UnknownError(f"its path is computed at {place}")
    if isinstance(above, ast.keyword):
        call = source.parents[above]
        if above.arg not in _TEXTS and not _speaks(call):
            return _dest(call) if above.arg == "default" else above.arg or ""
    elif isinstance(above, ast.Call) and node is not above.func and not _speaks(above):
        return ""
    elif isinstance(above, ast.Dict) and node in above.values:
        key = above.keys[above.values.index(node)]
        return str(key.value) if isinstance(key, ast.Constant) else ""
    elif isinstance(above, ast.Assign | ast.AnnAssign | ast.NamedExpr):
        target = above.targets[0] if isinstance(above, ast.Assign) else above.target
        return target.id if isinstance(target, ast.Name) else getattr(target, "attr", "")
    elif isinstance(above, ast.arguments):
        return _parameter(above, node)
    elif isinstance(above, ast.Return | ast.Attribute):
        return ""
    raise UnknownError(f"what the program does with its path at {place} is not known")


def _dest(call: ast.AST) -> str:
    """Return under which name an option is stored."""
    words = [each.value for each in getattr(call, "args", []) if isinstance(each, ast.Constant)]
    long = [word for word in words if isinstance(word, str) and word.startswith("--")]
    return long[0].lstrip("-").replace("-", "_") if long else ""


def _parameter(arguments: ast.arguments, default: ast.AST) -> str:
    plain = [*arguments.posonlyargs, *arguments.args]
    pairs = [
        *zip(reversed(plain), reversed(arguments.defaults), strict=False),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ]
    return next((each.arg for each, value in pairs if value is default), "")


def _speaks(call: ast.AST | None) -> bool:
    """Whether a call prints its arguments, or asks the environment."""
    return isinstance(call, ast.Call) and ast.unparse(call.func).endswith(_SPEAKS)
