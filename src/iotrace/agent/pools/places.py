"""Find where threads leave things for each other, by the source of their code: a list, a slot, an array.

What waits at a condition, an event or a semaphore gets an item only where the loop reads a place into which
the other thread's code puts data. Numbers are none: they may be turns, counts or scores.
"""

from __future__ import annotations

import ast
import linecache

from iotrace.agent.pools import tasks
from iotrace.agent.pools.callers import PROGRAMS, variables_of, whose_file
from iotrace.session.guard import ours

TYPE_CHECKING = False  # `typing` costs half of the agent's start-up
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import CodeType, FrameType
    from typing import Any

    Names = list[Mapping[str, Any]]  # the innermost scope first
    Place = tuple[Any, str]  # what holds it, by its id or as a scope, and the attribute; "": items

_PUTS = ("add", "append", "appendleft", "copy_", "extend", "fill", "insert", "setdefault", "update", "write")
_INTO = ("copyto", "heappush")  # functions whose first argument takes what the others say
_FRAMES = 3  # of the program, from the call outwards
_DEPTH, _MOST_CALLED = 2, 24  # calls in each other that are read, and functions in all
_NUMBERS = (int, float, complex, str, type(None))
_Scope = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_missing = object()


def left_by(frame: FrameType | None, *, in_loop: bool = False) -> set[Place]:
    """Where the code that runs in a frame, and in those around it, puts data; `in_loop`: at each turn."""
    return {
        place
        for names, scope, node, code in _code(frame, whole=not in_loop)
        for place, held in _puts(node, names, scope, code)
        if _is_data(held)
    }


def read_by(frame: FrameType | None, *, whole: bool = False) -> set[Place]:
    """Where the loop that runs in a frame, or around it, takes something from; of its `whole` function."""
    return {
        place
        for names, scope, node, code in _code(frame, whole=whole)
        for place in _reads(node, names, scope, code)
    }


def _code(frame: FrameType | None, *, whole: bool) -> Iterator[tuple[Names, Any, ast.AST, CodeType]]:
    """Yield the program's code around a frame, and what that calls: the names it sees, its scope, its tree.

    Of a frame the innermost loop at its line, unless the `whole` function.
    """
    left = [_MOST_CALLED]
    for _ in range(_FRAMES):
        if frame is None or whose_file(frame.f_code.co_filename) != PROGRAMS:
            return
        code, own = frame.f_code, variables_of(frame)
        node = _function(code, frame.f_globals)
        if node is not None:
            loop = None if whole else _loop(node, frame.f_lineno)
            names: Names = [own, frame.f_globals]
            for part in _body(loop or node):
                yield names, id(frame.f_globals), part, code
                yield from _called(part, names, _DEPTH, left)
        frame = frame.f_back


def _called(
    node: ast.AST, names: Names, depth: int, left: list[int]
) -> Iterator[tuple[Names, Any, ast.AST, CodeType]]:
    if not depth:
        return
    for call in [each for each in _own(node) if isinstance(each, ast.Call)]:
        found = _value(call.func, names)
        function = getattr(found, "__func__", found)
        code = getattr(function, "__code__", None)
        if code is None or whose_file(code.co_filename) != PROGRAMS or left[0] <= 0:
            continue
        left[0] -= 1
        tree = _function(code, function.__globals__)
        if tree is None:
            continue
        own: dict[str, Any] = {}
        if function is not found and code.co_argcount:
            own[code.co_varnames[0]] = found.__self__
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
            try:
                own[name] = cell.cell_contents
            except ours(ValueError):  # not bound yet
                continue
        inner: Names = [own, function.__globals__]
        for part in _body(tree):
            yield inner, id(function.__globals__), part, code
            yield from _called(part, inner, depth - 1, left)


def _function(code: CodeType, variables: dict[str, Any]) -> ast.AST | None:
    lines = linecache.getlines(code.co_filename, variables)
    try:
        tree = ast.parse("".join(lines)) if lines else None
    except ours(SyntaxError):
        return None
    if tree is None or code.co_name == "<module>":
        return tree
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == code.co_name:
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            if first == code.co_firstlineno:
                return node
    return None


def _loop(function: ast.AST, line: int) -> ast.AST | None:
    loops = [
        node
        for node in _own(function)
        if isinstance(node, ast.For | ast.AsyncFor | ast.While)
        and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    return max(loops, key=lambda node: node.lineno, default=None)


def _body(node: ast.AST) -> list[ast.AST]:
    """List what runs of a loop in each turn, or of a function."""
    head = [node.test] if isinstance(node, ast.While) else []
    return [*head, *getattr(node, "body", ())]


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a tree's nodes but those of functions defined in it."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, _Scope):
            yield from _own(child)


def _puts(node: ast.AST, names: Names, scope: Any, code: CodeType) -> Iterator[tuple[Place, Any]]:
    for each in _own(node):
        into: list[ast.expr] = []
        if isinstance(each, ast.Assign):
            into = each.targets
        elif isinstance(each, ast.AugAssign | ast.AnnAssign):
            into = [each.target]
        elif isinstance(each, ast.Call):
            into = [keyword.value for keyword in each.keywords if keyword.arg == "out"]
            called = each.func.attr if isinstance(each.func, ast.Attribute) else ""
            if called in _PUTS and isinstance(each.func, ast.Attribute):
                into.append(each.func.value)
            if (called or getattr(each.func, "id", "")) in _INTO and each.args:
                into.append(each.args[0])
            into = [ast.Subscript(one, ast.Constant(0), ast.Store()) for one in into]
        for target in into:
            yield from _place(target, names, scope, code)


def _place(target: ast.expr, names: Names, scope: Any, code: CodeType) -> Iterator[tuple[Place, Any]]:
    """Yield what a target of an assignment stands for, and what it holds."""
    if isinstance(target, ast.Tuple | ast.List):
        for each in target.elts:
            yield from _place(each, names, scope, code)
    elif isinstance(target, ast.Subscript):
        held = _value(_base(target), names)
        if held is not _missing:
            yield (id(_origin(held)), ""), _Items(held)
    elif isinstance(target, ast.Attribute):
        owner = _value(target.value, names)
        if owner is not _missing:
            yield (id(owner), target.attr), _value(target, names)
    elif isinstance(target, ast.Name):
        if target.id in code.co_freevars:
            yield (code.co_filename, target.id), _value(target, names)
        elif target.id in code.co_names and target.id not in code.co_varnames:
            yield (scope, target.id), _value(target, names)


def _reads(node: ast.AST, names: Names, scope: Any, code: CodeType) -> Iterator[Place]:
    passed: set[int] = set()  # what is no read: the length of a list, the list that something is put into
    for each in _own(node):
        if isinstance(each, ast.Call):
            function = each.func
            if isinstance(function, ast.Name) and function.id == "len":
                passed.update(id(one) for one in each.args)
            if isinstance(function, ast.Attribute) and function.attr in _PUTS:
                passed.add(id(_base(function.value)))
        elif isinstance(each, ast.Subscript) and not isinstance(each.ctx, ast.Load):
            passed.add(id(_base(each)))
        if id(each) in passed or not isinstance(getattr(each, "ctx", None), ast.Load):
            continue
        if isinstance(each, ast.Name | ast.Attribute):
            held = _value(each, names)
            if held is not _missing:
                yield id(_origin(held)), ""
        if isinstance(each, ast.Attribute):
            yield id(_value(each.value, names)), each.attr
        elif isinstance(each, ast.Name):
            bound = each.id in code.co_cellvars or each.id in code.co_freevars
            yield (code.co_filename if bound else scope), each.id


def _base(node: ast.expr) -> ast.expr:
    """Return what is indexed."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return node


def _value(node: ast.expr, names: Names) -> Any:
    """Return what a name or an attribute stands for, without running code of the program."""
    if isinstance(node, ast.Name):
        return next((scope[node.id] for scope in names if node.id in scope), _missing)
    if not isinstance(node, ast.Attribute):
        return _missing
    owner = _value(node.value, names)
    try:
        own = object.__getattribute__(owner, "__dict__")
    except ours(AttributeError, TypeError):
        return _missing
    if node.attr in own:
        return own[node.attr]
    kinds = (vars(kind) for kind in type(owner).__mro__)
    of_class: Any = next((known[node.attr] for known in kinds if node.attr in known), None)
    if hasattr(of_class, "__code__"):
        return of_class.__get__(owner)
    return _missing


def _origin(held: Any) -> Any:
    """Return the array that an array is a part of."""
    while type(held).__module__ == "numpy" and getattr(held, "base", None) is not None:
        held = held.base
    return held


class _Items:
    """What lies in a container."""

    def __init__(self, of: Any) -> None:
        self.of = of


def _is_data(held: Any, depth: int = 3) -> bool:
    """Whether something may be an item of data, or holds one: no number, no text."""
    if isinstance(held, _Items):
        of = held.of
        kind = type(of).__module__.partition(".")[0]
        if isinstance(of, bytearray | memoryview) or kind in ("numpy", "torch", "mmap"):
            return kind == "mmap" or tasks.is_much(of)
        return not isinstance(of, _NUMBERS) and _is_data(of, depth)
    if held is _missing or isinstance(held, _NUMBERS) or getattr(held, "ndim", 1) == 0 or not depth:
        return False
    if type(held).__module__ == "threading":
        return False
    try:
        if isinstance(held, dict):
            held = [*held.values()] if len(held) < 64 else [held[next(reversed(held))]]
        elif isinstance(held, set | frozenset):
            held = [next(iter(held))] if held else []
        elif type(held).__name__ == "deque":
            held = [held[0], held[-1]] if held else []
    except ours(RuntimeError, IndexError, KeyError, StopIteration):  # another thread takes it just now
        return False
    if isinstance(held, list | tuple):
        return any(_is_data(each, depth - 1) for each in (*held[:2], *held[-2:]))
    return True
