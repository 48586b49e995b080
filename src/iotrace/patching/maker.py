"""Where the settings of a loader are changed: at its call, or where their values come from."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from iotrace.patching import bindings
from iotrace.patching.changes import Changes
from iotrace.patching.command import find_words
from iotrace.patching.hydra import HydraConfig
from iotrace.patching.kinds import Key, Literal, Mapping as DictValue, Option, UnknownError
from iotrace.patching.source import LOADER, Source
from iotrace.patching.values import Values
from iotrace.patching.yaml_keys import YamlFile, written

# DataLoader's arguments by their place; all after these are keywords.
_POSITIONAL = (
    *(
        "dataset",
        "batch_size",
        "shuffle",
        "sampler",
        "batch_sampler",
        "num_workers",
        "collate_fn",
        "pin_memory",
    ),
    *("drop_last", "timeout", "worker_init_fn", "multiprocessing_context", "generator"),
)
ARGUMENTS = (*_POSITIONAL, "prefetch_factor", "persistent_workers", "pin_memory_device", "in_order")
_OF_WORKERS = {"prefetch_factor": "None", "persistent_workers": "False", "multiprocessing_context": "None"}
# What the recorded run had of it says nothing of the program's text: without a device nothing is pinned.
_UNCHECKED = ("pin_memory", "multiprocessing_context")
_FUNCTION = "start_worker"
TRAINING_ARGUMENTS, _PREFIX = "TrainingArguments", "dataloader_"


class Maker:
    """Puts settings of a loader into `changes`; `had` are those of the recorded run."""

    def __init__(self, changes: Changes, had: Mapping[str, str]) -> None:
        self._changes, self._program, self._had = changes, changes.program, had
        self._values = Values(self._program)

    def change(self, site: str, builder: str | None, wanted: Mapping[str, str]) -> None:
        """Change the settings of the loader that a line makes."""
        file, _, line = site.rpartition(":")
        source = self._program.source(file)
        if builder == "transformers":
            self._change_arguments(wanted)
            return
        if not self._program.is_own(source.path):  # of a package: its configuration may be in the command
            words = find_words(self._program.argv, wanted, self._had)
            if words.keys() >= wanted.keys():
                self._changes.words.update(words)
                return
        self._changes.refuse(source)
        if builder == "hydra":
            self._change_instantiated(source, int(line), wanted)
            return
        if builder is not None:
            raise UnknownError(f"{builder} makes the loader at {source.path.name}:{line}")
        calls = source.calls_at(LOADER, int(line))
        if len(calls) != 1:
            count = "no call" if not calls else f"{len(calls)} calls"
            raise UnknownError(
                f"{source.path.name}:{line} has {count} of {LOADER}: which one is not recorded"
            )
        self._change_call(source, calls[0], wanted)

    def start_workers(self, site: str, builder: str | None, lines: Sequence[str]) -> None:
        """Have each worker of the loader that a line makes run these lines as it starts."""
        file, _, line = site.rpartition(":")
        source = self._program.source(file)
        self._changes.refuse(source)
        calls = source.calls_at(LOADER, int(line))
        place = f"{source.path.name}:{line}"
        if builder is not None or len(calls) != 1:
            raise UnknownError(f"{place} has no plain call of {LOADER}")
        (call,) = calls
        given = self._argument(source, call, "worker_init_fn")
        if given is not None and not (isinstance(given[1], ast.Constant) and given[1].value is None):
            raise UnknownError(f"the loader of {place} has a worker_init_fn: {lines[-1]} belongs into it")
        body = "".join(f"    {each}\n" if each else "\n" for each in lines)
        text = f"def {_FUNCTION}(_: int) -> None:\n{body}"
        self._changes.add_function(source, call, _FUNCTION, text)
        if given is None:
            self._changes.note(source, call, "worker_init_fn", _FUNCTION)
        else:
            self._changes.note(source, given[1], "", _FUNCTION)

    def _change_call(self, source: Source, call: ast.Call, wanted: Mapping[str, str]) -> None:
        for name, value in wanted.items():
            self._set(source, call, name, value, self._argument(source, call, name))
        if wanted.get("num_workers") == "0":  # torch refuses these without workers
            for name, none in _OF_WORKERS.items():
                given = None if name in wanted else self._argument(source, call, name)
                if given is not None and not (isinstance(given[1], ast.Constant) and not given[1].value):
                    self._set(source, call, name, none, given, checks=False)

    def _argument(self, source: Source, call: ast.Call, name: str) -> tuple[Source, ast.expr] | None:
        """Return what a call gives an argument of DataLoader; None: nothing, so its default counts."""
        for keyword in call.keywords:
            if keyword.arg == name:
                return source, keyword.value
        if any(isinstance(each, ast.Starred) for each in call.args):
            raise UnknownError(f"the arguments are given by * at {source.path.name}:{call.lineno}")
        partial = source.find_partial(ast.unparse(call.func), LOADER)
        given = call.args if partial is None else [*partial.args[1:], *call.args]
        if name in _POSITIONAL and _POSITIONAL.index(name) < len(given):
            return source, given[_POSITIONAL.index(name)]
        for keyword in call.keywords:
            if keyword.arg is None and (argument := self._within(source, keyword.value, name)) is not None:
                return argument
        for keyword in partial.keywords if partial is not None else ():
            only = not bindings.is_used_elsewhere(source, ast.unparse(call.func))
            if keyword.arg == name and only:
                return source, keyword.value
            if keyword.arg is None:
                raise UnknownError(
                    f"the arguments are given by ** at {source.path.name}:{keyword.value.lineno}"
                )
        return None

    def _within(self, source: Source, node: ast.expr, name: str) -> tuple[Source, ast.expr] | None:
        """Return the expression that ``**node`` gives an argument."""
        value = self._values.of(source, node)
        if isinstance(value, DictValue):
            return self._values.entry(value, name)
        if isinstance(value, Key) and value.function is None and not value.in_words:
            keys = (*value.keys, name)
            if _in_files(value.paths, keys) is None:
                raise UnknownError(_not_found(keys, value.paths))
        return source, ast.copy_location(ast.Subscript(node, ast.Constant(name), ast.Load()), node)

    def _set(
        self,
        source: Source,
        call: ast.Call,
        name: str,
        value: str,
        given: tuple[Source, ast.expr] | None,
        checks: bool = True,
    ) -> None:
        """Put a new value where an argument's value comes from; at the call where it is given none."""
        if given is None:
            self._changes.note(source, call, name, value)
            return
        setting = self._values.of(*given)
        if isinstance(setting, Option):
            given_by = self._program.given(self._program.option(setting.dest)[2])
            if given_by is not None:
                self._check(name, given_by[1], "the command", checks)
                self._changes.words[name] = f"{given_by[0]}{value}"
                return
            setting = self._values.default(setting.dest)
        if isinstance(setting, Key):
            self._set_key(setting, name, value, checks)
            return
        if not isinstance(setting, Literal):
            raise UnknownError(f"{name} is no plain value")
        self._changes.refuse(setting.source)
        place = f"{setting.source.path.name}:{setting.node.lineno}"
        self._check(name, str(ast.literal_eval(setting.node)), place, checks)
        if setting.variable and bindings.is_used_elsewhere(setting.source, setting.variable):
            self._changes.note(*given, "", value)  # the loader's own argument alone
        else:
            self._changes.note(setting.source, setting.node, "", value)

    def _set_key(self, key: Key, name: str, value: str, checks: bool, prefix: str = "") -> None:
        """Set a key of YAML files, or of Hydra's configuration; the command's words set what these do not."""
        dotted = ".".join(key.keys)
        has_words = key.in_words or key.function is not None
        bindings.refuse_stored(self._program.files(), key.keys[-1])
        if has_words and (given := self._program.word(dotted)) is not None:
            self._check(name, given[1], "the command", checks)
            self._changes.words[name] = f"{given[0]}={written(value)}"
            return
        if key.function is None:
            place = _in_files(key.paths, key.keys)
        else:
            config = HydraConfig(key.source, key.function, self._program)
            place = config.find(key.keys, self._had.get(name) if checks else None)
        if place is None and has_words:
            self._changes.words[name] = f"{prefix}{dotted}={written(value)}"
            return
        if place is None:
            raise UnknownError(_not_found(key.keys, key.paths))
        file, keys = place
        scalar = file.find(keys)
        assert scalar is not None
        self._check(name, scalar.value, f"{'.'.join(keys)} of {file.path.name}", checks)
        self._changes.set_scalar(file, scalar, written(value))

    def _change_instantiated(self, source: Source, line: int, wanted: Mapping[str, str]) -> None:
        """Change the configuration that ``hydra.utils.instantiate`` makes the loader of."""
        call = source.call("instantiate", line)
        if call is None or not call.args:
            raise UnknownError(f"hydra makes the loader at {source.path.name}:{line}")
        given = [keyword.arg for keyword in call.keywords]
        config = self._values.of(source, call.args[0])
        if not isinstance(config, Key) or set(given) & wanted.keys():
            raise UnknownError(f"hydra makes the loader at {source.path.name}:{line}")
        for name, value in wanted.items():
            self._set_key(msgspec.structs.replace(config, keys=(*config.keys, name)), name, value, True, "++")

    def _change_arguments(self, wanted: Mapping[str, str]) -> None:
        """Change what the Trainer of transformers makes its loader of."""
        calls = [
            (source, call)
            for source in self._program.files()
            for call in source.nodes(ast.Call)
            if ast.unparse(call.func).endswith(TRAINING_ARGUMENTS)
        ]
        if len(calls) != 1:
            raise UnknownError(
                f"{TRAINING_ARGUMENTS} is called in {len(calls) or 'no'} places of the program"
            )
        source, call = calls[0]
        self._changes.refuse(source)
        for name, value in wanted.items():
            own = _PREFIX + name
            if any(each.arg is None for each in call.keywords):
                raise UnknownError(f"the arguments are given by ** at {source.path.name}:{call.lineno}")
            given = next((each.value for each in call.keywords if each.arg == own), None)
            if given is None:
                self._changes.note(source, call, own, value)
            else:
                self._set(source, call, name, value, (source, given))

    def _check(self, name: str, said: str, place: str, checks: bool) -> None:
        """Refuse a place that does not hold what the recorded run had."""
        had = self._had.get(name)
        if checks and name not in _UNCHECKED and had is not None and said.lower() != had.lower():
            raise UnknownError(f"{place} says {name}={said}, but the recorded run had {had}")


def _in_files(paths: Sequence[Path], keys: Sequence[str]) -> tuple[YamlFile, Sequence[str]] | None:
    """Return the last file that sets a key; None where that is not known for certain."""
    for path in reversed(paths):
        file = YamlFile(path)
        if file.find(keys) is not None:
            return file, keys
        if keys[-1] in file.text:
            return None
    return None


def _not_found(keys: Sequence[str], paths: Sequence[Path]) -> str:
    names = " or ".join(path.name for path in paths)
    return f"{'.'.join(keys)} is not found for certain in {names or 'a file'}"
