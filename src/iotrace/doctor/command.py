"""Read a command's words, without running it: the Python that it starts, its workers, ranks and data."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from iotrace.analysis.rules.facts.host import Demand
from iotrace.launch.child import script_interpreter
from iotrace.session.identity import nodes

PYTHON = re.compile(r"(python|pypy)[0-9.]*t?$")
_PYTHON_OPTIONS_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
# These choose an interpreter by themselves, elsewhere than on our PATH.
_CHOOSERS = frozenset(
    {"conda", "mamba", "micromamba", "uv", "poetry", "pipenv", "hatch", "pixi", "docker", "podman"}
    | {"apptainer", "singularity", "ssh"}
)

_WORKERS = re.compile(r"(?!.*persistent)(?:.*[-_.])?(?:num)?workers(?:\.[\w.]+)?")
_PREFETCH = re.compile(r"(?:.*[-_.])?prefetch[-_]factor")
_BATCH = re.compile(r"(?:.*[-_.])?batch[-_]size")
_RANKS = re.compile(r"-{1,2}nproc[-_]per[-_]node")
_HOSTS = re.compile(r"(?:-{1,2}|.*[.])?(?:nnodes|nodes|num[-_]nodes|num[-_]machines)|-N")


@dataclass(frozen=True)
class Interpreter:
    """How the command starts Python: the words that do (``env -i python -S``), and the program itself.

    Paths are absolute: the doctor starts it in another directory. `behind` is the program that will start it
    (srun, mpirun). The doctor does not run that one.
    """

    words: tuple[str, ...]
    program: str
    behind: str = ""


def find_interpreter(command: list[str], path: str | None) -> Interpreter | None:
    """Find the first Python that `command` names, searched on `path`; None where it names none."""
    launcher = os.path.basename(command[0])
    if launcher in _CHOOSERS:
        return None
    for index, word in enumerate(command):
        program = shutil.which(word, path=path)
        python = find_python(program, path) if program is not None else None
        if python is None:
            continue
        python = os.path.abspath(python)
        words: tuple[str, ...] = (python,)
        if PYTHON.match(os.path.basename(word)):
            words = (python if "/" in word else word, *_options(command[index + 1 :]))
        if index == 0:
            return Interpreter(words, python)
        if launcher == "env":
            return Interpreter((*command[:index], *words), python)
        return Interpreter(words, python, behind=launcher)
    return None


def find_script(command: list[str]) -> str | None:
    """Return the script that a plain ``python ... SCRIPT`` runs; None where the words name none."""
    if not PYTHON.match(os.path.basename(command[0])):
        return None
    rest = command[1 + len(_options(command[1:])) :]
    return rest[0] if rest and not rest[0].startswith("-") else None


def _options(words: list[str]) -> list[str]:
    """Return Python's own options: those before the script, ``-m`` or ``-c``."""
    count = 0
    while count < len(words) and re.match(r"-(?![A-Za-z]*[cm]).", words[count]):
        count += 2 if words[count] in _PYTHON_OPTIONS_WITH_VALUE else 1
    return words[:count]


def find_python(program: str, path: str | None) -> str | None:
    """Return `program` if it is a Python, else the existing Python that its ``#!`` names; else None."""
    if PYTHON.match(os.path.basename(program)):
        return program
    _, interpreter = script_interpreter(program, path)
    return interpreter if interpreter is not None and PYTHON.match(os.path.basename(interpreter)) else None


def parse_demand(command: list[str]) -> Demand:
    """Return what the words ask for: ``--workers 4``, ``batch_size=32``, torchrun's ``--nproc-per-node``."""

    def largest(option: re.Pattern[str]) -> int | None:
        values = (int(value) for name, value in settings if option.fullmatch(name) and value.isdecimal())
        return max(values, default=None)

    settings = list(_settings(command))
    ranks = max(1, largest(_RANKS) or 1)
    return Demand(largest(_WORKERS), ranks, largest(_PREFETCH), largest(_BATCH))


def count_hosts(command: list[str], environment: Mapping[str, str]) -> int:
    """Return how many hosts take part, by the options of launchers and the variables of schedulers."""
    named = [value.partition(":")[2] or value for name, value in _settings(command) if _HOSTS.fullmatch(name)]
    return max([nodes(environment), *(int(text) for text in named if text.isdecimal())])


def guess_data(command: list[str], directory: Path) -> Path | None:
    """Guess the data: the existing path after an option with ``data`` in its name, else ``data`` here."""
    named = [value for name, value in _settings(command) if value and "data" in name.lower()]
    return next((Path(path) for path in (*named, "data") if (directory / path).exists()), None)


def _settings(command: list[str]) -> Iterator[tuple[str, str]]:
    """Yield pairs of an option's name and its value, which follows ``=`` or is the next word."""
    for word, following in pairwise([*command, ""]):
        name, equals, value = word.partition("=")
        if equals or word.startswith("-"):
            yield name, value if equals else following
