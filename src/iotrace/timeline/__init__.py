"""Columns to pictures: tracks, lanes, flows, and the writers."""
