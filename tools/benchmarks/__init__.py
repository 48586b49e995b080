"""Measurements of iotrace itself; started by tools/bench."""
