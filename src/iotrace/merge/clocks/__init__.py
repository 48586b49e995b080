"""How the clocks of a merge's inputs relate to each other."""
