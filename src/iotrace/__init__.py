"""Why did the accelerator wait?

This module is imported in every traced process and by training code: what it imports costs next to nothing.
docs/api.md shows the names below in use.
"""

from iotrace.agent.public_api import batches, step
from iotrace.agent.recording.regions import region

TYPE_CHECKING = False  # `typing` costs more than the rest of this module
if TYPE_CHECKING:
    from iotrace.profiling import profile
    from iotrace.sweeping import sweep

__all__ = ["__version__", "batches", "profile", "region", "step", "sweep"]

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Import `profile` and `sweep` at their first use: few traced processes begin one."""
    if name == "profile":
        from iotrace.profiling import profile

        return profile
    if name == "sweep":
        from iotrace.sweeping import sweep

        return sweep
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
