"""What sets a name, an attribute, a field: found by its syntax, in the scope in which Python looks for it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

import msgspec

from iotrace.patching.kinds import UnknownError
from iotrace.patching.source import FUNCTIONS, Source, at_line

_SCOPES = (*FUNCTIONS, ast.Lambda, ast.ClassDef, ast.Module)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_CHANGES = ("update", "setdefault", "pop", "clear", "__setitem__")


class Binding(msgspec.Struct, frozen=True):
    """Something that sets a name: a plain `value`, a `parameter`, an import, or what is not looked into."""

    line: int
    value: ast.expr | None = None
    parameter: ast.arg | None = None
    imported: tuple[str | None, int, str] | None = None  # module, level, member


def of_name(source: Source, node: ast.AST, name: str) -> tuple[ast.AST, list[Binding]]:
    """Return the scope in which a name is found from a node, and what sets it there."""
    scope = source.parents.get(node) if not isinstance(node, ast.Module) else node
    while scope is not None:
        if isinstance(scope, _COMPREHENSIONS):
            stores = [each for part in scope.generators for each in ast.walk(part.target)]
            if any(isinstance(each, ast.Name) and each.id == name for each in stores):
                return scope, [Binding(scope.lineno)]
        elif isinstance(scope, _SCOPES) and (
            not isinstance(scope, ast.ClassDef) or source.parents.get(node) is scope
        ):
            bound = list(_in_scope(source, scope, name))
            if bound:
                return scope, bound
        scope = source.parents.get(scope)
    return source.tree or node, []


def in_module(source: Source, name: str) -> bool:
    """Whether a module sets a name."""
    return source.tree is not None and any(True for _ in _in_scope(source, source.tree, name))


def _in_scope(source: Source, scope: ast.AST, name: str) -> Iterator[Binding]:
    if isinstance(scope, (*FUNCTIONS, ast.Lambda)):
        arguments = scope.args
        plain = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        for argument in plain:
            if argument.arg == name:
                is_plain = isinstance(scope, FUNCTIONS)
                yield Binding(argument.lineno, parameter=argument if is_plain else None)
        for argument in filter(None, (arguments.vararg, arguments.kwarg)):
            if argument.arg == name:
                yield Binding(argument.lineno)
    yield from _in_body(source, scope, name)
    if isinstance(scope, ast.Module):  # a function that says ``global``
        for node in source.nodes(ast.Global):
            if name in node.names:
                yield Binding(node.lineno)


def _in_body(source: Source, scope: ast.AST, name: str) -> Iterator[Binding]:
    for node in _own_nodes(scope):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Load):
            yield _of_store(source, node)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if (alias.asname or alias.name.partition(".")[0]) == name:
                    yield Binding(line, imported=(alias.name if alias.asname else name, 0, ""))
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    yield Binding(line, imported=(node.module, node.level, alias.name))
        elif (
            (isinstance(node, (*FUNCTIONS, ast.ClassDef)) and node.name == name)
            or (isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name == name)
            or (isinstance(node, ast.MatchMapping) and node.rest == name)
            or (isinstance(node, ast.Global | ast.Nonlocal) and name in node.names)
        ):
            yield Binding(line)


def _own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a scope, and not those of functions and classes in it."""
    body = (
        scope.body
        if isinstance(scope, (*FUNCTIONS, ast.ClassDef, ast.Module))
        else [scope.body]
        if isinstance(scope, ast.Lambda)
        else []
    )
    waiting: list[ast.AST] = list(body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Lambda)):
            waiting += ast.iter_child_nodes(node)


def _of_store(source: Source, node: ast.Name) -> Binding:
    """Return what a name is set to, if it is a plain assignment, or one of a tuple to a tuple."""
    above = source.parents.get(node)
    if isinstance(above, ast.Assign) and len(above.targets) == 1:
        return Binding(node.lineno, above.value)
    if isinstance(above, ast.AnnAssign):
        return Binding(node.lineno, above.value)
    if isinstance(above, ast.Tuple | ast.List):
        assigned = source.parents.get(above)
        if (
            isinstance(assigned, ast.Assign)
            and isinstance(assigned.value, ast.Tuple)
            and len(assigned.targets) == 1
        ):
            values = assigned.value.elts
            starred = any(isinstance(each, ast.Starred) for each in (*values, *above.elts))
            if len(values) == len(above.elts) and not starred:
                return Binding(node.lineno, values[above.elts.index(node)])
        if (
            isinstance(assigned, ast.Assign)
            and isinstance(assigned.value, ast.Call)
            and above.elts.index(node) == 0
        ):
            call = assigned.value  # args, unknown = parser.parse_known_args()
            if ast.unparse(call.func).endswith("parse_known_args"):
                name = ast.Attribute(call.func, "parse_args", ast.Load())
                return Binding(node.lineno, ast.Call(name, [], []))
    return Binding(node.lineno)


def opened(source: Source, node: ast.Name) -> ast.expr | None:
    """Return what ``with ... as name`` around a node opens."""
    around = source.around(node, (ast.With,))
    while around is not None:
        for item in around.items:
            if isinstance(item.optional_vars, ast.Name) and item.optional_vars.id == node.id:
                return item.context_expr
        around = source.around(around, (ast.With,))
    return None


def is_used_elsewhere(source: Source, name: str) -> bool:
    """Whether a name is read more than once in a file."""
    reads = [node for node in source.nodes(ast.Name) if node.id == name and isinstance(node.ctx, ast.Load)]
    return len(reads) > 1 or any(
        alias.name == name for node in source.nodes(ast.ImportFrom) for alias in node.names
    )


def refuse_changed(source: Source, name: str) -> None:
    """Refuse a dict that is changed after it was made."""
    for node in source.nodes(ast.Name):
        above = source.parents.get(node)
        if node.id != name:
            continue
        is_set = isinstance(above, ast.Subscript) and not isinstance(above.ctx, ast.Load)
        is_method = isinstance(above, ast.Attribute) and above.attr in _CHANGES
        if is_set or is_method or isinstance(above, ast.AugAssign):
            raise UnknownError(f"{name} is changed at {source.path.name}:{node.lineno}")


def refuse_stored(sources: Iterable[Source], key: str) -> None:
    """Refuse a key of a configuration that a program sets itself, as ``cfg["workers"] = 4``."""
    for source in sources:
        stored: list[ast.Subscript | ast.Attribute] = [
            *(each for each in source.nodes(ast.Subscript) if ast.unparse(each.slice) == repr(key)),
            *(each for each in source.nodes(ast.Attribute) if each.attr == key),
        ]
        for node in stored:
            if isinstance(node.ctx, ast.Store) and ast.unparse(node.value) != "self":
                raise UnknownError(f"{ast.unparse(node)} is set again at {at_line(source, node)}")


def of_attribute(made: ast.ClassDef, key: str) -> list[ast.expr | None]:
    """Return what methods of a class set ``self.key`` to; None of what is no plain assignment."""
    values: list[ast.expr | None] = []
    for node in ast.walk(made):
        targets = (
            node.targets
            if isinstance(node, ast.Assign)
            else [node.target]
            if isinstance(node, ast.AnnAssign | ast.AugAssign | ast.For)
            else []
        )
        for target in targets:
            for each in ast.walk(target):
                if isinstance(each, ast.Attribute) and each.attr == key and ast.unparse(each.value) == "self":
                    is_plain = isinstance(node, ast.Assign | ast.AnnAssign) and each is target
                    values.append(
                        node.value if is_plain and isinstance(node, ast.Assign | ast.AnnAssign) else None
                    )
    return values


def list_fields(made: ast.ClassDef) -> dict[str, ast.Assign | ast.AnnAssign]:
    """Return what the body of a class sets, by name."""
    fields: dict[str, ast.Assign | ast.AnnAssign] = {}
    for node in made.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            fields[node.target.id] = node
        elif (
            isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)
        ):
            fields[node.targets[0].id] = node
    return fields


def find_default(field: ast.Assign | ast.AnnAssign) -> ast.expr | None:
    """Return a field's default: what it is set to, or ``default`` of ``field(...)``."""
    value = field.value
    if isinstance(value, ast.Call) and ast.unparse(value.func).endswith("field"):
        return next((each.value for each in value.keywords if each.arg == "default"), None)
    return value


def argument(
    source: Source,
    call: ast.Call,
    function: ast.FunctionDef | ast.AsyncFunctionDef,
    name: str,
    bound: bool,
) -> tuple[Source, ast.expr | None]:
    """Return what a call gives a function's parameter; None: nothing, so its default counts."""
    if any(isinstance(each, ast.Starred) for each in call.args) or any(
        each.arg is None for each in call.keywords
    ):
        raise UnknownError(f"its value is given by * or ** at {at_line(source, call)}")
    for keyword in call.keywords:
        if keyword.arg == name:
            return source, keyword.value
    positional = [each.arg for each in (*function.args.posonlyargs, *function.args.args)][bound:]
    if name in positional and positional.index(name) < len(call.args):
        return source, call.args[positional.index(name)]
    return source, None


def default_value(function: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> ast.expr:
    """Return the default of a function's parameter.

    Raises:
        UnknownError: it has none.
    """
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    pairs = [
        *zip(reversed(positional), reversed(arguments.defaults), strict=False),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ]
    for argument, default in pairs:
        if argument.arg == name and default is not None:
            return default
    raise UnknownError(f"{name} of {function.name} has no default")
