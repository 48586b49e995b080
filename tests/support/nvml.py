"""The stand-in for NVML, compiled: nothing that it says was measured on a GPU."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

_SOURCE = Path(__file__).with_name("nvml_standin.c")

needs_compiler = pytest.mark.skipif(
    shutil.which("cc") is None, reason="no C compiler (cc) for the stand-in of NVML"
)


def build_standin(directory: Path, *flags: str) -> Path:
    """Compile it into `directory`, to be named by LD_LIBRARY_PATH."""
    directory.mkdir(exist_ok=True)
    library = directory / "libnvidia-ml.so.1"
    command = ["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", *flags, "-o", str(library)]
    subprocess.run([*command, str(_SOURCE)], check=True, timeout=60)
    return directory
