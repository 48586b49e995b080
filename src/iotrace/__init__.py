"""Why did the accelerator wait?

This module is imported in every traced process and by training code: what it imports costs next to nothing.
docs/api.md shows the names below in use.
"""

from iotrace.agent.recording.regions import batches, region, step

TYPE_CHECKING = False  # `typing` costs more than the rest of this module
if TYPE_CHECKING:
    from iotrace.loading import load
    from iotrace.notebook import load_ipython_extension
    from iotrace.profiling import profile
    from iotrace.sweeping import sweep, try_fix, tune
    from iotrace.timing import Timer
    from iotrace.version import __version__

__all__ = [
    "Timer",
    "__version__",
    "batches",
    "load",
    "load_ipython_extension",
    "profile",
    "region",
    "step",
    "sweep",
    "try_fix",
    "tune",
]

# By name, its module: imported at its first use, as few traced processes need one.
_LATER = {
    "load": "loading",
    "load_ipython_extension": "notebook",
    "profile": "profiling",
    "sweep": "sweeping",
    "__version__": "version",
    "Timer": "timing",
    "try_fix": "sweeping",
    "tune": "sweeping",
}


def __getattr__(name: str) -> object:
    """Import what `_LATER` names at its first use."""
    if name in _LATER:
        from importlib import import_module

        return getattr(import_module(f"iotrace.{_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
