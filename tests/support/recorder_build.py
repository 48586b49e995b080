"""Run programs with the recorder of POSIX calls preloaded; compile it, and programs in C for it."""

from __future__ import annotations

import atexit
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import iotrace

_PACKAGE = Path(iotrace.__file__).parent
COMPILER = shutil.which("gcc") or shutil.which("cc")
RECORDER_GAP = (
    "no C compiler"
    if COMPILER is None
    else ""
    if platform.system() == "Linux" and platform.libc_ver()[0] == "glibc"
    else "the recorder needs glibc"
)


@cache
def recorder() -> Path:
    """The built library; compiled now where the package has none, or sources that are newer."""
    built = _PACKAGE / "_posix_recorder.so"
    sources = sorted((_PACKAGE / "capture").glob("*.[ch]"))
    newest = max((source.stat().st_mtime for source in sources), default=0.0)
    if built.exists() and built.stat().st_mtime >= newest:
        return built
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return build_recorder(folder, str(COMPILER))


def build_recorder(folder: Path, compiler: str) -> Path:
    """Compile it into a folder."""
    library = folder / "_posix_recorder.so"
    parts = sorted(str(source) for source in (_PACKAGE / "capture").glob("*.c"))
    command = [compiler, "-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-Wl,-z,now"]
    subprocess.run([*command, "-o", str(library), *parts, "-ldl"], check=True)
    return library


def recorded(session: Path, base: dict[str, str] | None = None, **more: str) -> dict[str, str]:
    """The environment of a program whose calls go to a folder."""
    given = dict(os.environ) if base is None else base
    return {**given, "LD_PRELOAD": str(recorder()), "IOTRACE_POSIX": str(session), **more}


def compile_program(folder: Path, source: str, flags: list[str] | None = None) -> Path:
    """Compile one program."""
    program = folder / "program"
    (folder / "program.c").write_text(source)
    command = [str(COMPILER), "-O2", "-w", "-pthread", *(flags or []), "-o", str(program)]
    subprocess.run([*command, str(folder / "program.c")], check=True)
    return program
