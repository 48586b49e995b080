"""The version of iotrace."""

__version__ = "0.1.0"
