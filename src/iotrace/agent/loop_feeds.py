"""Find which lines of a loop make what a call in it is given, by the loop's source."""

from __future__ import annotations

import ast
from typing import NamedTuple

_COUNTS = ("range", "trange", "count")  # headers of loops that make no data
_SHOWN = 60  # characters
_Loop = (ast.For, ast.AsyncFor, ast.While)
_Scope = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp)


class Feeds(NamedTuple):
    """What makes the data of a call: its code, and the lines that it is on; none where nothing tells."""

    name: str
    lines: list[int]


class _Bound(NamedTuple):
    names: set[str]
    value: ast.expr
    lines: range


def feeds_of(source: str, line: int, called: str) -> Feeds | None:
    """Find what feeds the call of `called` on a line; None where no loop of its function holds that.

    Data that is made of other data of the loop is the loop's own work: lines that do so are left out.
    """
    chain = _chain(ast.parse(source), line)
    scope = max((at for at, node in enumerate(chain) if isinstance(node, _Scope)), default=-1)
    loop = next((node for node in chain[scope + 1 :] if isinstance(node, _Loop)), None)
    if loop is None:
        return None
    given = _given(chain, called)
    bound = [each for node in ast.walk(loop) for each in _bindings(node)]
    needed = set().union(*map(_names, given))
    chosen: list[_Bound] = []
    grown = True
    while grown:
        more = [each for each in bound if each.names & needed and each not in chosen]
        chosen += more
        grown = bool(more)
        needed = needed.union(*(_names(each.value) for each in more))
    made = [each for each in chosen if not _counts(each.value)]
    made += [_Bound(set(), each, _lines(each)) for each in given if _calls(each)]
    data = set().union(*(each.names for each in made))
    first = [each for each in made if not _names(each.value) & data]
    lines = sorted({line for each in first for line in each.lines})
    return Feeds(ast.unparse(first[0].value)[:_SHOWN] if first else "", lines)


def _chain(node: ast.AST, line: int) -> list[ast.AST]:
    """List the nodes on a line, from the outermost inwards."""
    found: list[ast.AST] = []
    inside: ast.AST | None = node
    while inside is not None:
        found.append(inside)
        inside = next((each for each in ast.iter_child_nodes(inside) if line in _lines(each)), None)
    return found


def _lines(node: ast.AST) -> range:
    first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", None)
    return range(first, (last or first) + 1)


def _given(chain: list[ast.AST], called: str) -> list[ast.expr]:
    """List the arguments of a call in the innermost statement; of none that is found all that it calls."""
    statement = next(node for node in reversed(chain) if isinstance(node, ast.stmt))
    calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call)]
    own = [call for call in calls if called == getattr(call.func, "attr", getattr(call.func, "id", None))]
    return [
        each for call in own or calls for each in (*call.args, *(keyword.value for keyword in call.keywords))
    ]


def _bindings(node: ast.AST) -> list[_Bound]:
    if isinstance(node, ast.For | ast.AsyncFor):
        return [_Bound(_names(node.target), node.iter, range(node.lineno, _lines(node.iter).stop))]
    if isinstance(node, ast.With | ast.AsyncWith):
        held = [(item.optional_vars, item.context_expr) for item in node.items]
        return [_Bound(_names(name), value, _lines(value)) for name, value in held if name is not None]
    if isinstance(node, ast.Assign):
        return [_Bound(set().union(*map(_names, node.targets)), node.value, _lines(node))]
    if isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr) and node.value is not None:
        also = _names(node.target) if isinstance(node, ast.AugAssign) else set()
        return [_Bound(_names(node.target) | also, node.value, _lines(node))]
    return []


def _names(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _calls(node: ast.AST) -> bool:
    return any(isinstance(each, ast.Call) for each in ast.walk(node))


def _counts(value: ast.expr) -> bool:
    """Whether what a name is bound to only counts, also under a bar of progress."""
    called = _names(value) & {*_COUNTS, "tqdm"}
    return bool(called) and not _names(value) - called - _plain(value)


def _plain(value: ast.expr) -> set[str]:
    """Names that are no calls: bounds of a count."""
    calls = {
        each.func.id
        for each in ast.walk(value)
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Name)
    }
    return _names(value) - calls
