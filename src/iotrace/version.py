"""The version of iotrace."""

__version__ = "1.0.0"
