"""Results for people: the terminal. Nothing here computes a figure."""
