"""The files of a program that was run: its script, the file of a loader, and what of its own they import."""

from __future__ import annotations

import ast
import shutil
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from iotrace.patching.kinds import UnknownError
from iotrace.patching.source import FUNCTIONS, Source

_INSTALLED = {"site-packages", "dist-packages"}
_MOST_FILES = 300
_ABBREVIATED = 3  # letters of an option's name that argparse takes for the whole


class Program:
    """The command, its directory, and the files that are known to belong to it."""

    def __init__(self, argv: Sequence[str], cwd: str) -> None:
        self.argv, self.cwd = list(argv), Path(cwd)
        self._read: dict[Path, Source] = {}
        self._files: list[Source] | None = None
        self._known: set[Path] = set()
        if (script := self._script()) is not None:
            self._known.add(script)

    def source(self, path: str | Path) -> Source:
        """Return a file, and count it to the program."""
        at = self.cwd / path
        self._known.add(at)
        if at not in self._read:
            self._read[at] = Source(at)
            self._files = None
        return self._read[at]

    @staticmethod
    def is_own(path: Path) -> bool:
        """Whether a file is the user's: not one of an installed package, or of Python."""
        parts = path.parts
        is_pythons = any(part == "lib" and above.startswith("python") for part, above in pairwise(parts))
        return not _INSTALLED & set(parts) and not is_pythons and path.suffix == ".py"

    def has_installed(self, name: str) -> bool:
        """Whether the command's Python has a module of this name installed, as far as its directory shows."""
        first = self.argv[0] if self.argv else ""
        program = str(self.cwd / first) if "/" in first else shutil.which(first)
        root = Path(program).parent.parent if program else None
        return root is not None and any(
            any(root.glob(f"lib/python*/*-packages/{name}{end}")) for end in (".py", "/__init__.py")
        )

    def files(self) -> list[Source]:
        """Return the known files, and those of the program that they import."""
        if self._files is None:
            sources: dict[Path, Source] = {}
            waiting = sorted(self._known)
            while waiting and len(sources) < _MOST_FILES:
                path = waiting.pop()
                if path in sources or not self.is_own(path):
                    continue
                sources[path] = self._read.setdefault(path, Source(path))
                waiting += [module for module in self._imports(sources[path]) if module not in sources]
            self._files = list(sources.values())
        return self._files

    def module(self, source: Source, name: str | None, level: int) -> Source | None:
        """Return the program's own module that a file imports by this name."""
        parts = (name or "").split(".") if name else []
        for root in self._roots(source, level):
            path = root.joinpath(*parts)
            for file in (path.with_suffix(".py") if parts else path / "__init__.py", path / "__init__.py"):
                if file.is_file() and self.is_own(file):
                    return self._read.setdefault(file, Source(file))
        return None

    def option(self, dest: str) -> tuple[Source, ast.Call, list[str]]:
        """Return what declares the one option that is stored as `dest`, and its spellings.

        Raises:
            UnknownError: there is none, or several.
        """
        options = [
            (source, call, spelled) for source in self.files() for call, spelled in source.option_calls(dest)
        ]
        if len(options) != 1:
            raise UnknownError(f"{len(options) or 'no'} options of the program are stored as {dest}")
        return options[0]

    def calls(self, name: str) -> list[tuple[Source, ast.Call]]:
        """Return the calls of a function or class of this name, also as a method."""
        return [
            (source, call)
            for source in self.files()
            for call in source.nodes(ast.Call)
            if (isinstance(call.func, ast.Name) and call.func.id == name)
            or (isinstance(call.func, ast.Attribute) and call.func.attr == name)
        ]

    def find_class(self, name: str) -> tuple[Source, ast.ClassDef] | None:
        """Return the class of the program that has this name, if it is one."""
        last = name.rpartition(".")[2]
        classes = [
            (each, made) for each in self.files() for made in each.nodes(ast.ClassDef) if made.name == last
        ]
        return classes[0] if len(classes) == 1 else None

    def find_result(self, name: str) -> tuple[Source, ast.expr] | None:
        """Return what the one function of the program that has this name returns, if in one place."""
        last = name.rpartition(".")[2]
        results = [
            (each, made)
            for each in self.files()
            for made in each.nodes(ast.FunctionDef)
            if made.name == last and not made.decorator_list
        ]
        if len(results) != 1:
            return None
        source, made = results[0]
        returned = [
            each.value
            for each in source.nodes(ast.Return)
            if source.around(each, (*FUNCTIONS, ast.Lambda)) is made
        ]
        return (source, returned[0]) if len(returned) == 1 and returned[0] is not None else None

    def word(self, key: str) -> tuple[str, str] | None:
        """Return how a word of the command sets a key of a configuration: before ``=``, the value."""
        for word in reversed(self.argv):
            name, equals, value = word.partition("=")
            if equals and name.lstrip("+") == key:
                return name, value
        return None

    def given(self, spelled: Sequence[str]) -> tuple[str, str] | None:
        """Return how the command gives an option: what it types before the value, and the value."""
        for at, word in enumerate(self.argv):
            name, equals, value = word.partition("=")
            for option in spelled:
                is_short = option.startswith("-") and not option.startswith("--") and len(option) == 2
                if is_short and word.startswith(option) and len(word) > 2 and not equals:
                    return option, word[2:]
                shortened = (
                    option.startswith(name) and name.startswith("--") and len(name) >= 2 + _ABBREVIATED
                )
                if name == option or shortened:
                    if equals:
                        return f"{name}=", value
                    return f"{name} ", self.argv[at + 1] if at + 1 < len(self.argv) else ""
        return None

    def _script(self) -> Path | None:
        for at, word in enumerate(self.argv):
            if word.endswith(".py") and (self.cwd / word).is_file():
                return self.cwd / word
            if word == "-m" and at + 1 < len(self.argv):
                path = self.cwd.joinpath(*self.argv[at + 1].split("."))
                for file in (path.with_suffix(".py"), path / "__main__.py"):
                    if file.is_file():
                        return file
        return None

    def _roots(self, source: Source, level: int) -> list[Path]:
        """Return the directories from which a file's imports start."""
        folder = source.path.parent
        if level:
            return [folder.joinpath(*[".."] * (level - 1)).resolve()]
        package = folder
        while (package / "__init__.py").is_file() and package != package.parent:
            package = package.parent
        script = self._script()
        return list(dict.fromkeys([folder, *([script.parent] if script else []), self.cwd, package]))

    def _imports(self, source: Source) -> Iterator[Path]:
        for node in source.nodes(ast.Import):
            for alias in node.names:
                if (module := self.module(source, alias.name, 0)) is not None:
                    yield module.path
        for statement in source.nodes(ast.ImportFrom):
            names = [
                statement.module,
                *(".".join(filter(None, (statement.module, alias.name))) for alias in statement.names),
            ]
            for name in names:
                if (module := self.module(source, name, statement.level)) is not None:
                    yield module.path
