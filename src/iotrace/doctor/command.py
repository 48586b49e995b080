"""Which interpreter the command starts, and what about the command keeps the tracers out."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

from iotrace.doctor.program import PYTHON, changes_rights, is_static, lacking_interpreter, python_of
from iotrace.doctor.results import Check, missing, ok, unknown

_PYTHON_OPTIONS_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
# These choose an interpreter by themselves, elsewhere than on our PATH.
_CHOOSERS = frozenset(
    {"conda", "mamba", "micromamba", "uv", "poetry", "pipenv", "hatch", "pixi", "docker", "podman"}
    | {"apptainer", "singularity", "ssh"}
)
NOTHING_RUNS = "nothing can be run"
NOTHING_ENTERS = "neither the agent nor the POSIX tracer gets in"


@dataclass(frozen=True)
class Interpreter:
    """How the command starts Python: the words that do (``env -i python -S``), and the program itself.

    `behind` is the program that will start it (srun, mpirun) and is not run by the doctor.
    """

    words: tuple[str, ...]
    program: str
    behind: str = ""

    @property
    def here(self) -> Interpreter:
        """The same with the program by its whole path: to be started in another directory."""
        program = os.path.abspath(self.program)
        if os.path.isabs(self.program):
            own = list(self.words)
        else:  # named so, or found by an entry of PATH that is
            names = (program, os.path.abspath(os.path.basename(program)))
            own = [program if os.path.abspath(word) in names else word for word in self.words]
        return Interpreter(tuple(own), program, self.behind)


def interpreter_of(command: list[str], path: str | None) -> Interpreter | None:
    """The first Python that `command` starts as far as its words tell; None where they do not."""
    if os.path.basename(command[0]) in _CHOOSERS:
        return None
    for place, word in enumerate(command):
        program = shutil.which(word, path=path)
        if program is None:
            continue
        python = python_of(program, path)
        if python is None:
            continue
        own = (word, *_options(command[place + 1 :])) if PYTHON.match(os.path.basename(word)) else (python,)
        if place == 0:
            return Interpreter(own, python)
        if os.path.basename(command[0]) == "env":
            return Interpreter((*command[:place], *own), python)
        return Interpreter(own, python, behind=os.path.basename(command[0]))
    return None


def _options(words: list[str]) -> list[str]:
    """Python's own options, before the script, ``-m`` or ``-c``."""
    found = []
    words = list(words)
    while words and words[0].startswith("-") and words[0] != "-":
        if re.match(r"-[A-Za-z]*[cm]", words[0]):
            break
        found.append(words.pop(0))
        if found[-1] in _PYTHON_OPTIONS_WITH_VALUE and words:
            found.append(words.pop(0))
    return found


def check_command(command: list[str], path: str | None) -> Check:
    """Whether a preloaded library can be loaded into the program that the command names."""
    program = shutil.which(command[0], path=path)
    if program is None:
        return missing("command", *_not_found(command[0]))
    lacking = lacking_interpreter(program, path)
    if lacking is not None:
        return missing("command", *_not_started(program, lacking, path))
    program = python_of(program, path) or program  # told as it was found: what a venv's link leads to is not
    kept_out = _keeps_libraries_out(program)
    if kept_out is not None:
        return kept_out
    emptied = _empties_environment(command)
    if emptied:
        return missing(
            "command",
            f"{emptied} empties the environment",
            NOTHING_ENTERS,
            f"put it before iotrace: {emptied} ... iotrace run -- CMD",
        )
    script = script_of(command)
    if script is not None and not os.path.exists(script):
        shown = shlex.quote(script)
        return missing(
            "command",
            f"{program}, but there is no {shown} here",
            NOTHING_RUNS,
            f"check its path, or run iotrace where {shown} is",
        )
    return ok("command", program)


def _keeps_libraries_out(program: str) -> Check | None:
    if changes_rights(program):
        return missing(
            "command",
            f"{program} changes its rights as it starts (setuid, setgid or file capabilities)",
            "the kernel then ignores LD_PRELOAD: no POSIX calls",
            "run the program without these rights",
        )
    if is_static(Path(program)):
        return missing(
            "command",
            f"{program} is statically linked",
            "LD_PRELOAD has no effect there: no POSIX calls of that process",
            "use a dynamically linked build",
        )
    return None


def _not_found(word: str) -> tuple[str, str, str]:
    """What is wrong with a program that cannot be run, why it matters, and the remedy."""
    shown = shlex.quote(word)
    if os.path.isdir(word):
        return f"{shown} is a directory", NOTHING_RUNS, "name the program in it"
    if not os.path.exists(word):
        remedy = "check its path" if os.sep in word else "check PATH"
        return f"{shown} was not found", NOTHING_RUNS, remedy
    if os.sep not in word:
        return f"{shown} lies here, which is not in PATH", NOTHING_RUNS, f"./{shown}, or python {shown}"
    remedy = f"python {shown}" if word.endswith(".py") else f"chmod +x {shown}"
    return f"{shown} is not executable", NOTHING_RUNS, remedy


def _not_started(script: str, interpreter: str, path: str | None) -> tuple[str, str, str]:
    """The same of a script whose interpreter is not there: an environment was moved or removed."""
    shown, name = shlex.quote(script), shlex.quote(interpreter.rstrip("\r"))
    if interpreter.endswith("\r"):
        what = f"the first line of {shown} ends with a carriage return: there is no such interpreter"
        return what, NOTHING_RUNS, f"dos2unix {shown}"
    what = f"{shown} is run by {name}, which is not there, or not executable"
    base = os.path.basename(interpreter)
    other = "python" if PYTHON.match(base) else base
    if shutil.which(other, path=path) is None:
        return what, NOTHING_RUNS, f"install {name}, or mend the first line of {shown}"
    return what, NOTHING_RUNS, f"{other} {shown}, or mend its first line"


def script_of(command: list[str]) -> str | None:
    """The script that a plain ``python ... script`` runs; None where its words name none."""
    if not PYTHON.match(os.path.basename(command[0])):
        return None
    rest = command[1 + len(_options(command[1:])) :]
    return rest[0] if rest and not rest[0].startswith("-") else None


def _empties_environment(command: list[str]) -> str:
    name = os.path.basename(command[0])
    if name == "env":
        for word in command[1:]:
            if word in ("-", "-i", "--ignore-environment"):
                return f"env {word}"
            if not word.startswith("-") and "=" not in word:
                break
    if name == "sudo" and not {"-E", "--preserve-env"} & set(command[1:3]):
        return "sudo"
    return ""


def check_interpreter(command: list[str], interpreter: Interpreter | None) -> Check:
    """Whether the command's Python could be told from its words."""
    if interpreter is None:
        return unknown(
            "interpreter",
            f"{command[0]} names no Python that could be tried",
            "whether the agent gets into what it starts is seen in a run alone",
            "name the Python behind it: iotrace doctor -- python",
        )
    if interpreter.behind:
        return ok(
            "interpreter",
            f"{interpreter.program}, behind {interpreter.behind}",
            f"tried here, without {interpreter.behind}: it must hand on the environment",
        )
    return ok("interpreter", " ".join(interpreter.words))
