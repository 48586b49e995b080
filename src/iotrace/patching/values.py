"""Where a value of the program comes from: a literal, an option of its command, a key of its configuration.

What is set in more than one place, or computed, has no one place: `UnknownError` says so.
"""

from __future__ import annotations

import ast
from pathlib import Path

import msgspec

from iotrace.patching import bindings
from iotrace.patching.kinds import (
    Instance,
    Key,
    Literal,
    Mapping,
    Module,
    Option,
    Options,
    UnknownError,
    Value,
)
from iotrace.patching.program import Program
from iotrace.patching.source import FUNCTIONS, Source, at_line, hydra_main, is_hydra

_DEEPEST = 30
_CASTS = ("int", "bool", "str", "float")
_LOADS = ("yaml.safe_load", "yaml.load", "yaml.full_load", "OmegaConf.load")
_FROM_WORDS = ("OmegaConf.from_cli", "OmegaConf.from_dotlist")
_SAME = (
    "OmegaConf.create",
    "OmegaConf.to_container",
    "EasyDict",
    "edict",
    "Box",
    "Munch",
    "munchify",
    "DotMap",
)
_DICTS = ("dict", "SimpleNamespace", "types.SimpleNamespace", "argparse.Namespace", "Namespace")


class Values:
    """Finds values in the files of a program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._depth = 0

    def of(self, source: Source, node: ast.expr) -> Value:
        """Return what an expression of a file means.

        Raises:
            UnknownError: it is set in several places, computed, or comes from outside of the program.
        """
        if self._depth > _DEEPEST:
            raise UnknownError("its origin is too far away")
        self._depth += 1
        try:
            return self._of(source, node)
        finally:
            self._depth -= 1

    def _of(self, source: Source, node: ast.expr) -> Value:
        if isinstance(node, ast.Constant) or _is_negative(node):
            return Literal(source, node)
        if isinstance(node, ast.Name):
            return self._named(source, node, node.id)
        if isinstance(node, ast.Attribute):
            return self.get(self.of(source, node.value), node.attr)
        if isinstance(node, ast.Subscript):
            if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
                return self.get(self.of(source, node.value), node.slice.value)
        elif isinstance(node, ast.Dict):
            return Mapping(source, node)
        elif isinstance(node, ast.Call):
            return self._called(source, node)
        raise UnknownError(f"it is computed: {_shown(node)} at {at_line(source, node)}")

    def _called(self, source: Source, call: ast.Call) -> Value:
        name = ast.unparse(call.func)
        if name.endswith(".parse_args") or name == "parse_args":
            return Options()
        if name == "vars" and len(call.args) == 1:
            return self.of(source, call.args[0])
        if name in _CASTS and len(call.args) == 1 and not call.keywords:
            return self.of(source, call.args[0])
        if name in _DICTS and not call.args:
            return Mapping(source, call)
        if name in _LOADS and call.args:
            return Key(source, paths=(self._file(source, call.args[0]),))
        if name == "OmegaConf.structured":
            return Key(source)
        if name in _FROM_WORDS:
            return self._words(source, call)
        if name in ("OmegaConf.merge", "OmegaConf.unsafe_merge") and call.args:
            return self._merged(source, call)
        if name in _SAME and len(call.args) == 1:
            return self.of(source, call.args[0])
        if name in ("os.getenv", "os.environ.get", "environ.get", "getenv"):
            raise UnknownError(f"it comes from the environment: {_shown(call)} at {at_line(source, call)}")
        if isinstance(call.func, ast.Attribute) and call.func.attr == "get" and call.args:
            return self._of(source, ast.copy_location(ast.Subscript(call.func.value, call.args[0]), call))
        definition = self.program.find_class(name)
        if definition is not None:
            return Instance(*definition, source, call)
        if (result := self.program.find_result(name)) is not None:
            return self.of(*result)
        raise UnknownError(f"it is computed: {_shown(call)} at {at_line(source, call)}")

    def _merged(self, source: Source, call: ast.Call) -> Key:
        """Return what several configurations are together: a later one counts."""
        parts = [self.of(source, each) for each in call.args]
        keys = [each for each in parts if isinstance(each, Key) and not each.keys and each.function is None]
        if len(keys) != len(parts) or any(each.in_words for each in keys[:-1]):
            raise UnknownError(f"it is computed: {_shown(call)} at {at_line(source, call)}")
        paths = tuple(path for each in keys for path in each.paths)
        return Key(source, paths=paths, in_words=keys[-1].in_words)

    def _words(self, source: Source, call: ast.Call) -> Key:
        """Return what the words of the command set; those that a parser does not know are such, too."""
        if call.args and isinstance(call.args[0], ast.List | ast.Tuple):
            raise UnknownError(f"it is computed: {_shown(call)} at {at_line(source, call)}")
        return Key(source, in_words=True)

    def _file(self, source: Source, node: ast.expr) -> Path:
        """Return the path of a file that is opened, or handed over by its name."""
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name in ("open", "Path", "pathlib.Path") and node.args:
                return self._file(source, node.args[0])
            if isinstance(node.func, ast.Attribute) and node.func.attr in ("open", "read_text", "read"):
                return self._file(source, node.func.value)
        if isinstance(node, ast.Name) and (opened := bindings.opened(source, node)) is not None:
            return self._file(source, opened)
        value = self.of(source, node)
        given = None
        if isinstance(value, Key) and value.in_words:
            given = self.program.word(".".join(value.keys))
        elif isinstance(value, Option):
            given = self.program.given(self.program.option(value.dest)[2])
        if given is not None:
            return self.program.cwd / given[1]
        if isinstance(value, Option):
            value = self.default(value.dest)
        literal = value.node if isinstance(value, Literal) else None
        if isinstance(literal, ast.Constant) and isinstance(literal.value, str):
            return self.program.cwd / literal.value
        raise UnknownError("the name of its configuration file is not known")

    def default(self, dest: str) -> Value:
        """Return the default of the one option that is stored as `dest`."""
        source, call, spelled = self.program.option(dest)
        for each in self.program.files():
            if any(ast.unparse(other.func).endswith("set_defaults") for other in each.nodes(ast.Call)):
                raise UnknownError("set_defaults sets options of the program")
        given = [keyword.value for keyword in call.keywords if keyword.arg == "default"]
        if not given:
            raise UnknownError(f"{spelled[-1]} has no default at {at_line(source, call)}")
        return self.of(source, given[0])

    def _named(self, source: Source, node: ast.AST, name: str) -> Value:
        """Return what a name means at a node."""
        scope, all_bound = bindings.of_name(source, node, name)
        if not all_bound:
            raise UnknownError(f"{name} is set nowhere in {source.path.name}")
        if len(all_bound) > 1:
            lines = ", ".join(str(line) for line in sorted({each.line for each in all_bound}))
            raise UnknownError(f"{name} is set in several places of {source.path.name}: lines {lines}")
        (bound,) = all_bound
        if bound.parameter is not None:
            assert isinstance(scope, FUNCTIONS)
            return self._parameter(source, scope, name)
        if bound.imported is not None:
            return self._imported(source, *bound.imported)
        if bound.value is None:
            raise UnknownError(f"{name} is set at {source.path.name}:{bound.line}, by no plain assignment")
        value = self.of(source, bound.value)
        if isinstance(value, Literal) and value.node is bound.value:
            return Literal(value.source, value.node, name)
        if isinstance(value, Mapping):
            bindings.refuse_changed(source, name)
        return value

    def _imported(self, source: Source, module: str | None, level: int, member: str) -> Value:
        if not member:
            imported = self.program.module(source, module, level)
            if imported is not None:
                return Module(imported)
        else:
            imported = self.program.module(source, module, level)
            if imported is not None and imported.tree is not None and bindings.in_module(imported, member):
                return self._named(imported, imported.tree, member)
            inner = self.program.module(source, ".".join(filter(None, (module, member))), level)
            if inner is not None:
                return Module(inner)
        raise UnknownError(f"it comes from {module or '.'}, which is no module of the program")

    def _parameter(
        self, source: Source, function: ast.FunctionDef | ast.AsyncFunctionDef, name: str
    ) -> Value:
        owner = source.parents.get(function)
        if isinstance(owner, ast.ClassDef) and function.args.args and function.args.args[0].arg == name:
            return Instance(source, owner)
        if is_hydra(function, name):
            return Key(source, function=function)
        if any(ast.unparse(each).split("(")[0].endswith("option") for each in function.decorator_list):
            return Option(name)
        if hydra_main(function) is not None:
            raise UnknownError(f"hydra calls {function.name}")
        wanted = (
            owner.name if isinstance(owner, ast.ClassDef) and function.name == "__init__" else function.name
        )
        is_bound = isinstance(owner, ast.ClassDef) and "staticmethod" not in map(
            ast.unparse, function.decorator_list
        )
        arguments = [
            bindings.argument(*call, function, name, is_bound) for call in self.program.calls(wanted)
        ]
        if not arguments:
            raise UnknownError(f"{wanted} is called nowhere in the files of the program")
        values = [
            self.of(source if node is None else at, node or bindings.default_value(function, name))
            for at, node in arguments
        ]
        if any(value != values[0] for value in values):
            raise UnknownError(f"{wanted} is called in {len(arguments)} places, with another {name} each")
        return values[0]

    def get(self, value: Value, key: str) -> Value:
        """Return an attribute, or what a mapping has by a key."""
        if isinstance(value, Key):
            return msgspec.structs.replace(value, keys=(*value.keys, key))
        if isinstance(value, Module):
            assert value.source.tree is not None
            return self._named(value.source, value.source.tree, key)
        if isinstance(value, Options | Instance):
            self._refuse_set(key, value)
        if isinstance(value, Options):
            return Option(key)
        if isinstance(value, Mapping):
            entry = self.entry(value, key)
            if entry is None:
                raise UnknownError(f"{key} is no key of the dict at {at_line(value.source, value.node)}")
            return self.of(*entry)
        if isinstance(value, Instance):
            return self._attribute(value, key)
        raise UnknownError(f"{key} is computed")

    @staticmethod
    def entry(value: Mapping, key: str) -> tuple[Source, ast.expr] | None:
        """Return the expression that a dict has by a key; None where it has none."""
        node = value.node
        if isinstance(node, ast.Dict):
            pairs = [
                (name.value if isinstance(name, ast.Constant) else None, each)
                for name, each in zip(node.keys, node.values, strict=True)
            ]
        else:
            pairs = [(keyword.arg, keyword.value) for keyword in node.keywords]
        if any(name is None for name, _ in pairs):
            raise UnknownError(f"the dict at {at_line(value.source, node)} takes keys from elsewhere")
        values = [each for name, each in pairs if name == key]
        return (value.source, values[-1]) if values else None

    def _refuse_set(self, key: str, value: Options | Instance) -> None:
        """Refuse what the program sets later on, as ``args.workers = 4``."""
        for source in self.program.files():
            for node in source.nodes(ast.Attribute):
                if node.attr != key or not isinstance(node.ctx, ast.Store):
                    continue
                inner = source.around(node, (ast.ClassDef,))
                own = (
                    isinstance(value, Instance) and inner is value.made and ast.unparse(node.value) == "self"
                )
                if not own and ast.unparse(node.value) != "self":
                    raise UnknownError(f"{ast.unparse(node)} is set again at {at_line(source, node)}")

    def _attribute(self, value: Instance, key: str) -> Value:
        source, made = value.source, value.made
        init = next(
            (each for each in made.body if isinstance(each, FUNCTIONS) and each.name == "__init__"), None
        )
        if value.of_hparams:
            if init is None or "save_hyperparameters" not in ast.unparse(init):
                raise UnknownError(f"save_hyperparameters is not called in {made.name}")
            return self._parameter(source, init, key)
        if key == "hparams":
            return msgspec.structs.replace(value, of_hparams=True)
        stores = bindings.of_attribute(made, key)
        if len(stores) > 1:
            raise UnknownError(f"self.{key} is set in {len(stores)} places of {made.name}")
        if stores:
            if stores[0] is None:
                raise UnknownError(f"self.{key} of {made.name} is set by no plain assignment")
            return self.of(source, stores[0])
        fields = bindings.list_fields(made)
        if key not in fields:
            raise UnknownError(f"{key} of {made.name} is set nowhere in {source.path.name}")
        if init is None and made.decorator_list:
            given = self._field_given(value, key, list(fields))
            if given is not None:
                return given
        default = bindings.find_default(fields[key])
        if default is None:
            raise UnknownError(f"{key} of {made.name} has no plain default")
        return self.of(source, default)

    def _field_given(self, value: Instance, key: str, fields: list[str]) -> Value | None:
        """Return what the one call that makes an object of a dataclass gives a field; None: its default."""
        calls = (
            self.program.calls(value.made.name) if value.call is None else [(value.call_source, value.call)]
        )
        if len(calls) != 1:
            raise UnknownError(f"{value.made.name} is made in {len(calls) or 'no'} places")
        source, call = calls[0]
        assert source is not None
        assert call is not None
        if any(keyword.arg is None for keyword in call.keywords) or any(
            isinstance(each, ast.Starred) for each in call.args
        ):
            raise UnknownError(f"its value is given by * or ** at {at_line(source, call)}")
        for keyword in call.keywords:
            if keyword.arg == key:
                return self.of(source, keyword.value)
        at = fields.index(key)
        return self.of(source, call.args[at]) if at < len(call.args) else None


def _is_negative(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.UnaryOp)
        and isinstance(node.op, ast.USub)
        and isinstance(node.operand, ast.Constant)
    )


def _shown(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 60 else text[:57] + "..."
