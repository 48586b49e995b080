"""Two sessions beside each other: the same work or not, what changed and why, whether it got worse."""
