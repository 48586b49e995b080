"""The data wait: how long, why, and for which files."""
