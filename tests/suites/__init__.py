"""Peers' own tests as judges: test by test, the outcome under ``iotrace run`` is that without it."""
