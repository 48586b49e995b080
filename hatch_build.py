"""Compiles the inner loops of `iotrace merge` when iotrace is built; without a C compiler it does without."""

from __future__ import annotations

import os
import shlex
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_SOURCES = [
    f"src/iotrace/{name}.c"
    for name in (
        "sources/chrome/scan",
        "timeline/writers/chrome_json",
        "timeline/writers/lanes",
        "timeline/writers/native",
    )
]
_LIBRARY = "src/iotrace/_compiled.so"


class CompileHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the library to a wheel, or puts it beside its source for an editable install."""

    PLUGIN_NAME = "compile"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before a wheel is put together."""
        library = Path(self.root, _LIBRARY)
        compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
        made = library.with_suffix(".made")  # a process may have the old library loaded
        command = [
            *shlex.split(compiler),
            "-O2",
            "-shared",
            "-fPIC",
            "-Isrc/iotrace/sources/chrome",
            "-o",
            str(made),
            *_SOURCES,
        ]
        try:
            subprocess.run(command, cwd=self.root, check=True, capture_output=True, text=True)
            made.replace(library)
        except (OSError, subprocess.CalledProcessError) as error:
            library.unlink(missing_ok=True)
            why = getattr(error, "stderr", None) or error
            self.app.display_warning(f"no C compiler ({why}): `iotrace merge` will be slower")
            return
        build_data["artifacts"].append(_LIBRARY)
        # The library knows nothing of Python: any version of it on this platform can load it.
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"
