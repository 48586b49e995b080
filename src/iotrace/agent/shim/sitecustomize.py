"""The way in for interpreters where iotrace is not installed: found through PYTHONPATH.

Starts the agent, then behaves as if it were not there: the next ``sitecustomize`` on the path runs.
"""

import os
import sys


def _start_agent() -> None:
    source = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    try:
        from iotrace.agent.bootstrap import start
    except ImportError:
        # Not installed here. Its directory is on the path only for these imports: it may be another
        # interpreter's site-packages, none of whose modules are this program's business.
        sys.path.insert(0, source)
        try:
            from iotrace.agent.bootstrap import start
        finally:
            sys.path.remove(source)
    start()


def _run_next() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    ours = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        if ours is not None:
            sys.modules["sitecustomize"] = ours


if "IOTRACE_AGENT" in os.environ:
    try:
        _start_agent()
    except Exception:
        pass
_run_next()
