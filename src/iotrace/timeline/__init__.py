"""Columns to pictures: tracks, lanes, arrows, and the writers."""
