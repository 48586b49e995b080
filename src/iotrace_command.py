"""The command ``iotrace``, whatever else is on the path: cluster modules set PYTHONPATH for other Pythons.

The script that an installer makes imports this module, whose name is nobody else's. So does
`python -m iotrace`.
"""

import atexit
import gc
import os
import sys


def main() -> None:
    """Put iotrace's own installation first on ``sys.path``, then run the command line.

    What PYTHONPATH names comes last: it is the traced program's, and is used where nothing else has a module
    (some sites install each package into a directory of its own). The current directory is left out.
    """
    _isolate()
    # Python would look for garbage before it ends, for 40 ms.
    atexit.register(gc.freeze)
    try:
        from iotrace.cli import main as run

        run()
    except KeyboardInterrupt:  # as its modules are imported; later on the command line handles it
        sys.exit(130)


def _isolate() -> None:
    searched = list(sys.path)
    if not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
        del searched[:1]  # the script's directory, the current one under -m
    variable = "" if sys.flags.ignore_environment else os.environ.get("PYTHONPATH", "")
    given = {os.path.abspath(entry) for entry in variable.split(os.pathsep)} if variable else set()
    own = {os.path.dirname(os.path.abspath(__file__)), *_installed()}
    ranked: list[list[str]] = [[], [], []]
    for entry in searched:
        path = os.path.abspath(entry)
        ranked[0 if path not in given else 1 if path in own else 2].append(entry)
    sys.path[:] = [entry for entries in ranked for entry in entries]
    here = os.path.dirname(os.path.abspath(__file__))
    if here not in map(os.path.abspath, sys.path):  # run from a directory that nobody installed
        sys.path.append(here)


def _installed() -> set[str]:
    """Return where the standard library and packages are installed: PYTHONPATH may repeat them."""
    import site

    library = os.path.dirname(os.path.abspath(os.__file__))
    user = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    return {
        library,
        os.path.join(library, "lib-dynload"),
        *map(os.path.abspath, site.getsitepackages() + user),
    }


if __name__ == "__main__":
    main()
