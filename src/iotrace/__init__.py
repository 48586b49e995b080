"""Why did the accelerator wait?

This module is imported in every traced process and by training code: what it imports costs next to nothing.
docs/api.md shows the names below in use.
"""

from iotrace.agent.public_api import batches, step
from iotrace.agent.recording.regions import region
from iotrace.profiling import profile
from iotrace.sweeping import sweep

__all__ = ["__version__", "batches", "profile", "region", "step", "sweep"]

__version__ = "0.1.0"
