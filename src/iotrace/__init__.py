"""Why did the accelerator wait?

This module is imported in every traced process, so it imports nothing.
"""

__version__ = "0.1.0"
