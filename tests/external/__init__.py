"""Trackers and launchers for real: ``tools/test --external``."""
