"""How the source puts a path together, and what it does with it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from iotrace.patching.kinds import UnknownError
from iotrace.patching.source import Source, at_line

_PATH = ("Path", "pathlib.Path", "PurePath", "pathlib.PurePath")
_JOINS = (*_PATH, "os.path.join", "join")
_SAME = ("str", "os.fspath", "os.path.abspath", "os.path.realpath", "os.path.normpath")
_SAME_METHODS = ("resolve", "absolute", "as_posix")
_SPEAKS = ("print", "getenv", "environ.get", "debug", "info", "warning", "error", "warn", "exception")
_TEXTS = ("help", "description", "epilog", "metavar")


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


def whole_of(source: Source, node: ast.expr) -> ast.AST:
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
    """Whether a path stands at the front of what it is joined to, if to anything."""
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


def name_of(source: Source, part: ast.expr) -> str:
    """Return the name that a path is given, if any.

    Raises:
        UnknownError: it is no path to be opened, but compared, printed, or a key.
    """
    node = whole_of(source, part)
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
