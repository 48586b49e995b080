"""A grid of runs: how many workers, and what no loader can beat."""
