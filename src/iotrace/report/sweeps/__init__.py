"""Sweeps and searches on the terminal and as CSV."""
