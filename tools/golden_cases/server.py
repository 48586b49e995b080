"""Run commands of one checkout, each in a fork of a process that has imported what they need.

The checkout's interpreter runs this file. Standard input holds one JSON object a line: `arguments` of
iotrace, `cwd`, and the files `stdout` and `stderr`. Standard output gets the exit status of each.

A start of iotrace takes a second, mostly imports; a fork takes 20 ms. The first command's modules are the
ones that the server imports: it names none of iotrace's.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import signal
import sys
from typing import Any

LIMIT_SECONDS = 300


def _run(request: dict[str, Any], modules: int | None = None) -> None:
    """Become ``iotrace ARGUMENTS``; never returns. The descriptor `modules` gets the names of its modules."""
    os.chdir(request["cwd"])
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    signal.alarm(LIMIT_SECONDS)
    sys.argv = ["iotrace", *request["arguments"]]
    code: Any = 1
    try:
        runpy.run_module("iotrace", run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass
    if modules is not None:
        with os.fdopen(modules, "w") as stream:
            json.dump(sorted(sys.modules), stream)
    os._exit(code)


def _status(child: int) -> int:
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def _preload(request: dict[str, Any]) -> None:
    """Import what the command of `request` imports."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _run(request, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        names = stream.read()
    _status(child)
    for name in json.loads(names or b"[]"):
        if name not in sys.modules and not name.startswith("__"):
            try:
                importlib.import_module(name)
            except Exception:  # the command itself will report it
                pass


def main() -> None:
    """Serve until the input ends."""
    sys.path.pop(0)  # this file's directory: its modules are none of iotrace's
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        request = json.loads(line)
        code = 0
        if request.get("preload"):
            _preload(request)
            gc.freeze()  # a collection in a fork would copy all that is here
        else:
            child = os.fork()
            if child == 0:
                _run(request)
            code = _status(child)
        answers.write(f"{code}\n")
        answers.flush()


if __name__ == "__main__":
    main()
