"""The configuration that Hydra gives a program: its files, and what the command overrides."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

from iotrace.patching.program import Program
from iotrace.patching.source import Source, hydra_main
from iotrace.patching.yaml_keys import YamlFile

_CHOOSING = ("--config-name", "-cn", "--config-path", "-cp", "--config-dir", "-cd", "--multirun", "-m")


class HydraConfig:
    """The configuration of a function that Hydra calls."""

    def __init__(
        self, source: Source, function: ast.FunctionDef | ast.AsyncFunctionDef, program: Program
    ) -> None:
        self._program = program
        decorator = hydra_main(function)
        given = {}
        if isinstance(decorator, ast.Call):
            given = {
                each.arg: each.value.value
                for each in decorator.keywords
                if isinstance(each.value, ast.Constant)
            }
        path, name = given.get("config_path"), given.get("config_name")
        self._folder: Path | None = None
        self._primary: YamlFile | None = None
        chosen = any(word.partition("=")[0] in _CHOOSING for word in program.argv)
        if isinstance(path, str) and isinstance(name, str) and not chosen:
            self._folder = source.path.parent / path
            self._primary = YamlFile(self._folder / f"{name.removesuffix('.yaml')}.yaml")

    def find(self, keys: Sequence[str], had: str | None) -> tuple[YamlFile, Sequence[str]] | None:
        """Return the one file that sets a key, and its keys there; None where it is not known for certain."""
        places = []
        for file, own in self._places(keys):
            scalar = file.find(own)
            if scalar is not None:
                places.append((file, own, scalar.value))
        if len(places) != 1 or (had is not None and places[0][2].lower() != had.lower()):
            return None
        return places[0][:2]

    def files(self) -> Iterator[YamlFile]:
        """Yield the files that it is made of, as far as they are known for certain."""
        return (file for _, file in self._groups())

    def _groups(self) -> Iterator[tuple[list[str], YamlFile]]:
        """Yield each file, with the keys that its own keys are below."""
        if self._primary is None or self._folder is None:
            return
        yield [], self._primary
        for group, option in self._primary.entries("defaults"):
            chosen = self._program.word(group)
            yield group.split("/"), YamlFile(self._folder / group / f"{chosen[1] if chosen else option}.yaml")

    def _places(self, keys: Sequence[str]) -> Iterator[tuple[YamlFile, Sequence[str]]]:
        for parts, file in self._groups():
            if not parts or ("@package" not in file.text and list(keys[: len(parts)]) == parts):
                yield file, keys[len(parts) :]
