"""The way in for interpreters where iotrace is not installed: found through PYTHONPATH.

Starts the agent, then behaves as if it were not there: the next ``sitecustomize`` on the path runs.
Any Python that the command starts reads this file, 2.7 too: no syntax here is newer.
"""

import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))

# Older ones lack what the agent uses: their processes run as if they were not traced.
if "IOTRACE_AGENT" in os.environ and sys.version_info >= (3, 10):
    try:
        try:
            from iotrace.agent.bootstrap import start
        except ImportError:
            # Not installed here. Its directory is on the path only for these imports: it may be another
            # interpreter's site-packages, none of whose modules are this program's business.
            _source = os.path.dirname(os.path.dirname(os.path.dirname(_here)))
            sys.path.insert(0, _source)
            try:
                from iotrace.agent.bootstrap import start
            finally:
                sys.path.remove(_source)
        start()
    except Exception:
        pass

sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != _here]
_ours = sys.modules.pop("sitecustomize", None)
try:
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
except ImportError as _error:
    if getattr(_error, "name", "sitecustomize") != "sitecustomize":
        raise
    if _ours is not None:
        sys.modules["sitecustomize"] = _ours
