"""A session in the formats of other programs."""
