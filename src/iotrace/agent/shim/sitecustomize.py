"""The way in for interpreters where iotrace is not installed: found through PYTHONPATH.

Starts the agent, then behaves as if it were not there: the next ``sitecustomize`` on the path runs.
Any Python that the command starts reads this file, 2.7 too: no syntax here is newer.
"""

import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))

# Older ones lack what the agent uses: their processes run as if they were not traced.
if "IOTRACE_AGENT" in os.environ and sys.version_info >= (3, 10):
    # The agent's modules are found through a package that runs nothing and is gone afterwards. So it is the
    # launcher's iotrace whatever PYTHONPATH holds, its directory is never on the path (it may be another
    # interpreter's site-packages), and a module `iotrace` of the program's own stays the program's.
    # What the agent imports of the standard library is not looked for in PYTHONPATH either.
    _path = sys.path[:]
    _given = [os.path.abspath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    _library = os.path.dirname(os.__file__)
    sys.path[:] = [entry for entry in _path if entry not in _given or entry.startswith(_library)]
    _package = type(os)("iotrace")
    _package.__path__ = [os.path.dirname(os.path.dirname(_here))]
    _before = sys.modules.get("iotrace")
    sys.modules["iotrace"] = _package
    try:
        from iotrace.agent.bootstrap import start

        start()
    except Exception:
        pass
    finally:
        sys.path[:] = _path
        if _before is None:
            sys.modules.pop("iotrace", None)
        else:
            sys.modules["iotrace"] = _before

sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != _here]
_ours = sys.modules.pop("sitecustomize", None)
try:
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
except ImportError as _error:
    if getattr(_error, "name", "sitecustomize") != "sitecustomize":
        raise
    if _ours is not None:
        sys.modules["sitecustomize"] = _ours
