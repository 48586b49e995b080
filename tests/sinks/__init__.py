"""Trackers for real: ``tools/test --sinks``."""
