"""How to type a change: DataLoader's arguments, the command's own words, variables, a diff of the call.

The call that makes a loader, in a file that can be read: where its settings come from, and a diff.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from iotrace.sweeps.grid import CV2_THREADS, LOADER_ARGUMENTS, SHARING, THREADS
from iotrace.sweeps.results import TRANSFORMERS, Origin

_LONGEST_CALL = 30  # lines
_LONGEST_LINE = 70  # characters: of a longer one the call alone is shown
_Edit = tuple[int, int, int, str]  # line, first and behind the last byte, what stands there instead


class Source:
    """A program's file; nothing is found in one that cannot be read."""

    def __init__(self, path: str) -> None:
        try:
            self.text = Path(path).read_text()
            self.tree: ast.Module | None = ast.parse(self.text)
        except (OSError, ValueError, SyntaxError, RecursionError):
            self.text, self.tree = "", None

    def nodes(self, kind: type[ast.AST]) -> Iterator[ast.AST]:
        """Yield the nodes of a kind."""
        return (node for node in ast.walk(self.tree) if isinstance(node, kind)) if self.tree else iter(())

    def call(self, name: str, line: int) -> ast.Call | None:
        """Find the one call of `name`, or of what ends so, that covers a line."""
        found = [
            node
            for node in self.nodes(ast.Call)
            if isinstance(node, ast.Call)
            and ast.unparse(node.func).endswith(name)
            and node.lineno <= line <= (node.end_lineno or node.lineno) < node.lineno + _LONGEST_CALL
        ]
        return found[0] if len(found) == 1 else None

    def options(self, dest: str) -> list[str]:
        """The spellings of the command line option that argparse or click store as `dest`."""
        for node in self.nodes(ast.Call):
            assert isinstance(node, ast.Call)
            if not ast.unparse(node.func).endswith(("add_argument", "option")):
                continue
            words = [each.value for each in node.args if isinstance(each, ast.Constant)]
            spelled = [word for word in words if isinstance(word, str) and word.startswith("-")]
            long = [word for word in spelled if word.startswith("--")] or spelled
            if long and long[0].lstrip("-").replace("-", "_") == dest:
                return spelled
        return []

    def of_hydra(self, name: str, line: int) -> bool:
        """Whether `name` is Hydra's configuration, in the function around a line."""
        for node in self.nodes(ast.FunctionDef):
            assert isinstance(node, ast.FunctionDef)
            if node.lineno <= line <= (node.end_lineno or node.lineno) and node.args.args:
                decorated = any("hydra.main" in ast.unparse(each) for each in node.decorator_list)
                if decorated and node.args.args[0].arg == name:
                    return True
        return False


def chain_of(value: ast.expr) -> list[str]:
    """The names of ``a.b.c`` or ``a["b"].c``; none of what is built otherwise."""
    if isinstance(value, ast.Name):
        return [value.id]
    if isinstance(value, ast.Attribute):
        before = chain_of(value.value)
        return [*before, value.attr] if before else []
    if isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Constant):
        before = chain_of(value.value)
        return [*before, value.slice.value] if before and isinstance(value.slice.value, str) else []
    return []


def diff(text: str, call: ast.Call, arguments: Mapping[str, str]) -> list[str]:
    """The call's lines before and after; nothing where the call is no plain one."""
    if any(keyword.arg is None for keyword in call.keywords):
        return []  # settings come by ** from elsewhere
    given = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg in arguments}
    if any(value.lineno != value.end_lineno for value in given.values()):
        return []
    edits: list[_Edit] = [
        (value.lineno, value.col_offset, value.end_col_offset or 0, arguments[str(name)])
        for name, value in given.items()
    ]
    missing = ", ".join(f"{name}={value}" for name, value in arguments.items() if name not in given)
    lines = text.splitlines()
    if missing:
        place = _end_of_arguments(call, lines)
        if place is None:
            return []
        edits.append((*place, f", {missing}" if call.args or call.keywords else missing))
    changed: dict[int, str] = {}
    for at, start, end, new in sorted(edits, reverse=True):
        line = changed.get(at, lines[at - 1]).encode()  # offsets are of UTF-8
        changed[at] = (line[:start] + new.encode() + line[end:]).decode()
    pairs = [(lines[at - 1], changed[at]) for at in sorted(changed) if changed[at] != lines[at - 1]]
    if len(pairs) == 1 and call.lineno == call.end_lineno and len(pairs[0][0].strip()) > _LONGEST_LINE:
        old, new = pairs[0]  # the call alone
        before, behind = old.encode()[: call.col_offset], old.encode()[call.end_col_offset :]
        old, new = (each.encode()[len(before) :].removesuffix(behind).decode() for each in (old, new))
        pairs = [(old, new)]
    return [line for old, new in pairs for line in (f"- {old.strip()}", f"+ {new.strip()}")]


def _end_of_arguments(call: ast.Call, lines: list[str]) -> tuple[int, int, int] | None:
    """Where a further argument goes; None where that is not plain."""
    if call.keywords:
        last = max(call.keywords, key=lambda each: (each.end_lineno or 0, each.end_col_offset or 0))
        return last.end_lineno or 0, last.end_col_offset or 0, last.end_col_offset or 0
    if call.lineno != call.end_lineno:
        return None
    end = (call.end_col_offset or 0) - 1  # of what stands before the call's own closing bracket
    before = lines[call.lineno - 1].encode()[:end].decode()
    return call.lineno, len(before.rstrip(", ").encode()), end


_OF_OTHERS = re.compile(r"(?i)(?<![a-z])(val|valid|validation|test|eval|evaluation|predict)(?![a-z])")


def changes(params: Mapping[str, str], command: Sequence[str], origin: Origin | None) -> list[str]:
    """Return the lines to type for `params`, shortest first; `origin` is that of the program's own loader."""
    found = []
    builder = None if origin is None else origin.builder
    arguments = {LOADER_ARGUMENTS[name]: value for name, value in params.items() if name in LOADER_ARGUMENTS}
    if arguments:
        found += _of_loader(arguments, command, origin, builder)
    others = []
    if THREADS in params:
        others.append(f"OMP_NUM_THREADS={params[THREADS]} before the command")
    if CV2_THREADS in params:
        others.append(f"OPENCV_FOR_THREADS_NUM={params[CV2_THREADS]} before the command")
    if SHARING in params:
        others.append(f"torch.multiprocessing.set_sharing_strategy({params[SHARING]!r})")
    return found + [f"and {text}" if arguments else text for text in others]


def _of_loader(
    arguments: Mapping[str, str], command: Sequence[str], origin: Origin | None, builder: str | None
) -> list[str]:
    called = "TrainingArguments" if builder == TRANSFORMERS else "DataLoader"
    prefix = "dataloader_" if builder == TRANSFORMERS else ""
    listed = ", ".join(f"{prefix}{name}={value}" for name, value in arguments.items())
    site = None if origin is None else _shortened(origin.site)
    others = [_shortened(other) or "" for other in origin.others] if origin is not None else []
    sites = " and ".join(filter(None, [site, *others]))
    found = [f"{called}({listed})" + (f" at {sites}" if sites and builder is None else "")]
    own = (
        {LOADER_ARGUMENTS[name]: value for name, value in origin.settings.items()}
        if origin is not None
        else {}
    )
    words = _words(command, arguments, own)
    file, _, number = (site or "").rpartition(":")
    line = int(number) if number.isdigit() else 0
    source = Source(file)
    if builder == TRANSFORMERS and "HfArgumentParser" in source.text:
        for name, value in arguments.items():
            words.setdefault(name, f"--{prefix}{name} {value}")
    if builder == "hydra" and (call := source.call("instantiate", line)) and call.args:
        path = chain_of(call.args[0])
        if len(path) > 1 and source.of_hydra(path[0], line):
            for name, value in arguments.items():
                words.setdefault(name, f"++{'.'.join([*path[1:], name])}={value}")
    call = source.call("DataLoader", line) if builder is None else None
    if call is not None:
        for keyword in call.keywords:
            name, path = str(keyword.arg), chain_of(keyword.value)
            if name not in arguments or name in words or not path:
                continue
            if len(path) > 1 and source.of_hydra(path[0], line):
                words[name] = f"{'.'.join(path[1:])}={arguments[name]}"
            elif spelled := source.options(path[-1]) or _options_in(command, path[-1]):
                words[name] = f"{_as_given(spelled, command)} {arguments[name]}"
    if words:
        found.append(f"by {' '.join(words.values())} in the command")
    rest = {name: value for name, value in arguments.items() if name not in words}
    for each in [site or "", *others] if rest and builder is None else []:
        found += _diff_at(each, rest)
    return found


def _diff_at(site: str, arguments: Mapping[str, str]) -> list[str]:
    """The change of the call at a line, as a diff; empty where it is not a call of DataLoader there."""
    file, _, number = site.rpartition(":")
    source = Source(file)
    call = source.call("DataLoader", int(number) if number.isdigit() else 0)
    return [] if call is None else diff(source.text, call, arguments)


def _shortened(site: str | None) -> str | None:
    """A path as origin from here, where it lies below."""
    here = os.getcwd() + os.sep
    return site[len(here) :] if site and site.startswith(here) else site


def _options_in(command: Sequence[str], dest: str) -> list[str]:
    """The option of this destination in the command's own program."""
    for word in command:
        if word.endswith(".py") and (found := Source(word).options(dest)):
            return found
    return []


def _as_given(spelled: Sequence[str], command: Sequence[str]) -> str:
    """An option as the command has it, or its long name."""
    given = [word for word in spelled if word in command]
    return (given or sorted(spelled, key=len, reverse=True))[0]


def _words(command: Sequence[str], arguments: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """The words of the command that name a setting (Hydra's overrides, options), with the new value.

    Only those that have the value that the training loader had; not those of validation.
    """
    found: dict[str, str] = {}
    for at, word in enumerate(command):
        key, equals, value = word.partition("=")
        follows = command[at + 1] if at + 1 < len(command) else ""
        if not equals and not word.startswith("--"):
            continue
        for name, new in arguments.items():
            spelled = name.replace("_", "[-_]").replace("num[-_]", "(num[-_])?")
            if not re.fullmatch(rf"[\w.+\-/]*(?<![a-z]){spelled}[\w.]*", key) or _OF_OTHERS.search(
                key.replace("_", " ")
            ):
                continue
            if (value if equals else follows).lower() == own.get(name, "").lower():
                found[name] = f"{key}={new}" if equals else f"{word} {new}"
    return found
