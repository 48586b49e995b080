"""Check whether the command can run, and whether anything about it keeps agent and POSIX tracer out."""

from __future__ import annotations

import os
import shlex
import shutil
import stat
import struct

from iotrace.doctor.command import PYTHON, Interpreter, missing_interpreter, python_of, script_of
from iotrace.doctor.results import Check, missing, ok, unknown
from iotrace.errors import LaunchError
from iotrace.launch import child

NOTHING_RUNS = "nothing can be run"
NOTHING_ENTERS = "neither the agent nor the POSIX tracer gets in"
_PROGRAM_HEADER = struct.Struct("<I52x")  # of ELF, 64 bits: its type
_PT_INTERP = 3
_ELF64_LITTLE_ENDIAN = b"\x7fELF\x02\x01"


def check_command(command: list[str], path: str | None) -> Check:
    """Check the program and the script that `command` names, searched on `path`."""
    try:
        program = child.find(command, path)
    except LaunchError as error:
        return missing("command", str(error), NOTHING_RUNS, error.remedy)
    interpreter = missing_interpreter(program, path)
    if interpreter is not None:
        return missing("command", *_not_started(program, interpreter, path))
    program = python_of(program, path) or program
    if _changes_rights(program):
        return missing(
            "command",
            f"{program} changes its rights as it starts (setuid, setgid or file capabilities)",
            "the kernel then ignores LD_PRELOAD: no POSIX calls",
            "run the program without these rights",
        )
    if _is_static(program):
        return missing(
            "command",
            f"{program} is statically linked",
            "LD_PRELOAD has no effect there: no POSIX calls of that process",
            "use a dynamically linked build",
        )
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
        what = f"{program}, but there is no {shown} here"
        return missing("command", what, NOTHING_RUNS, f"check its path, or run iotrace where {shown} is")
    return ok("command", program)


def check_interpreter(command: list[str], interpreter: Interpreter | None) -> Check:
    """Check whether the words of `command` name a Python that can be tried."""
    if interpreter is None:
        return unknown(
            "interpreter",
            f"{command[0]} names no Python that could be tried",
            "only a run shows whether the agent gets into what it starts",
            "name the Python behind it: iotrace doctor -- python",
        )
    if interpreter.behind:
        return ok(
            "interpreter",
            f"{interpreter.program}, behind {interpreter.behind}",
            f"tried here, without {interpreter.behind}: it must hand on the environment",
        )
    return ok("interpreter", " ".join(interpreter.words))


def _not_started(script: str, interpreter: str, path: str | None) -> tuple[str, str, str]:
    """Return what, why and remedy for a script whose interpreter is gone: its environment was moved."""
    shown, name = shlex.quote(script), shlex.quote(interpreter.rstrip("\r"))
    if interpreter.endswith("\r"):
        what = f"the first line of {shown} ends with a carriage return: there is no such interpreter"
        return what, NOTHING_RUNS, f"dos2unix {shown}"
    what = f"{shown} is run by {name}, which is not there, or not executable"
    base = os.path.basename(interpreter)
    other = "python" if PYTHON.match(base) else base
    if shutil.which(other, path=path) is None:
        return what, NOTHING_RUNS, f"install {name}, or correct the first line of {shown}"
    return what, NOTHING_RUNS, f"{other} {shown}, or correct its first line"


def _empties_environment(command: list[str]) -> str:
    """Return the words of `command` that empty the environment; else the empty string."""
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


def _changes_rights(program: str) -> bool:
    """Say whether the kernel starts `program` with other rights than ours, and so without LD_PRELOAD."""
    if os.statvfs(program).f_flag & os.ST_NOSUID:
        return False
    status = os.stat(program)
    if status.st_mode & stat.S_ISUID and status.st_uid != os.getuid():
        return True
    if status.st_mode & stat.S_ISGID and status.st_mode & stat.S_IXGRP and status.st_gid != os.getgid():
        return True
    try:
        return os.getuid() != 0 and bool(os.getxattr(program, "security.capability"))
    except OSError:
        return False


def _is_static(program: str) -> bool:
    """Say whether an ELF program names no dynamic loader; False for any other file."""
    try:
        with open(program, "rb") as file:
            head = file.read(64)
            if len(head) < 64 or not head.startswith(_ELF64_LITTLE_ENDIAN):
                return False
            (offset,) = struct.unpack_from("<Q", head, 32)
            size, count = struct.unpack_from("<HH", head, 54)
            if size != _PROGRAM_HEADER.size:
                return False
            file.seek(offset)
            headers = _PROGRAM_HEADER.iter_unpack(file.read(size * count))
    except (OSError, struct.error):  # not readable, or cut
        return False
    return (_PT_INTERP,) not in list(headers)
